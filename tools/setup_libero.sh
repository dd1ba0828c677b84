#!/bin/bash
# Makes a virtual environment with real LIBERO in it, from the package index that pip uses: about 1.5 GB, minutes.
# It is apart from rlprof's own, because MuJoCo newer than 3.3 breaks LIBERO.
# Usage: setup_libero.sh VENV [PYTHON]     PYTHON: 3.11 to 3.13, by default python3
# Then:  RLPROF_LIBERO_PYTHON=VENV/bin/python rlprof run embodied --simulator libero ...
set -euo pipefail
[ $# -ge 1 ] && [ "${1#-}" = "$1" ] || { sed -n 2,5p "$0"; exit 2; }
venv=$1 python=${2:-python3}
here=$(cd "$(dirname "$0")" && pwd)
list=$here/libero-requirements.txt
say() { echo "setup_libero: $*" >&2; }
die() { say "$*"; exit 1; }

command -v "$python" >/dev/null || die "no Python called $python"
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' ||
  die "$("$python" --version) cannot run MuJoCo 3.3.7; name a Python 3.11 to 3.13 as second argument"
works() { "$venv/bin/python" "$here/check_libero.py" >/dev/null 2>&1; }
if works; then say "already there: $venv"; exit 0; fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check -q "$@" --no-warn-conflicts; }
say "installing LIBERO, robosuite and MuJoCo into $venv"
pip install --no-deps $(sed -n '/^# then/q; /^[^#]/p' "$list")
pip install $(sed -n '/^# then/,$ { /^[^#]/p }' "$list")
"$venv/bin/python" "$here/check_libero.py" || die "LIBERO does not work in $venv, see above"
say "done; now: export RLPROF_LIBERO_PYTHON=$(cd "$venv" && pwd)/bin/python"
