#!/bin/sh
# Prints the Python to make the environment with: the newest fit is not needed, the first one that is
# new enough and complete is. Usage: find-python.sh [PYTHON]   (PYTHON: use this one or fail)
# A name on PATH is tried by running it: pyenv's shims exist for versions that are not active.
set -u
old='' bare=''
for name in ${1:-python3 python3.13 python3.12 python3.11 python3.14 python}; do
  "$name" -c '' >/dev/null 2>&1 || continue
  if ! "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    old="$old $name ($("$name" -c 'import platform; print(platform.python_version())' 2>&1))"
  elif ! "$name" -c 'import venv, ensurepip' 2>/dev/null; then
    bare="${bare:-$name}"
  else
    command -v "$name"
    exit 0
  fi
done
if [ -n "$bare" ]; then
  echo "$bare has no venv or no ensurepip module. Next: install it (Debian, Ubuntu: apt-get install python3-venv), or name another Python: make PYTHON=/path/to/python3 ..." >&2
elif [ -n "$old" ]; then
  echo "rlprof needs Python 3.11 or later, found only:$old. Next: install one, or name it: make PYTHON=/path/to/python3 ..." >&2
else
  echo "no Python that runs under the name ${1:-python3}. Next: install Python 3.11 or later, or name it: make PYTHON=/path/to/python3 ..." >&2
fi
exit 1
