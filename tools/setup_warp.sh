#!/bin/bash
# Makes a virtual environment with mujoco-warp in it, from the package index that pip uses: 0.6 GB, a minute.
# Usage: setup_warp.sh VENV [PYTHON]     PYTHON: 3.10 or later, by default python3
# Then:  RLPROF_WARP_PYTHON=VENV/bin/python rlprof run embodied --simulator mujoco_warp ...
set -euo pipefail
[ $# -ge 1 ] && [ $# -le 2 ] && [ -n "$1" ] && [ "${1#-}" = "$1" ] || { sed -n 2,4p "$0"; exit 2; }
venv=$1 python=${2:-python3}
here=$(cd "$(dirname "$0")" && pwd)
list=$here/warp-requirements.txt
say() { echo "setup_warp: $*" >&2; }
die() { say "$*"; exit 1; }
unset PYTHONPATH PYTHONHOME  # another MuJoCo would be found first

command -v "$python" >/dev/null || die "no Python called $python; name one of 3.10 or later as second argument"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  die "$("$python" --version 2>&1) cannot run mujoco-warp 4.0.0; name a Python of 3.10 or later as second argument"
works() { "$venv/bin/python" "$here/check_warp.py" "$@"; }
export_line() { echo "export RLPROF_WARP_PYTHON=$(cd "$venv" && pwd)/bin/python"; }
if works --versions >/dev/null 2>&1 && works; then
  say "already there; $(export_line)"
  exit 0
fi
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  [ ! -e "$venv" ] || [ -d "$venv" ] || die "$venv is a file; name a folder that is to be made"
  said=$("$python" -m venv "$venv" 2>&1) || die "no environment can be made in $venv: $(echo "$said" | tr '\n' ' ')"
fi
say "installing mujoco-warp, MuJoCo and Warp into $venv"
"$venv/bin/python" -m pip --disable-pip-version-check -q install -r "$list" ||
  die "pip could not install what $list names into $venv, see above"
say "trying a step; without a GPU its kernels are compiled for the processor, half a minute the first time"
works || die "mujoco-warp does not work in $venv, see above"
say "done; now: $(export_line)"
