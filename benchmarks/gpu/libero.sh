# Functions for scripts that run LIBERO on a bare machine; to be sourced: . benchmarks/gpu/libero.sh
#
# libero_ready [ARCHIVE [DEST [PYTHON]]]
#   Unpacks .libero/libero.tar.xz (of tools/pack_libero.py) to /tmp/libero, checks it, and exports RLPROF_LIBERO_PYTHON.
#   About a minute, seconds when it is there already. Code 1 and a line that says why if LIBERO does not work there.
# libero_osmesa [ARCHIVE [DEST]]
#   Unpacks .osmesa/osmesa.tar.xz (of tools/pack_osmesa.sh), so that --rendering osmesa works. Code 1 if there is none.

libero_ready() {
  local archive=${1:-.libero/libero.tar.xz} dest=${2:-/tmp/libero} python=${3:-python3} line
  line=$("$(dirname "${BASH_SOURCE[0]}")/../../tools/unpack_libero.sh" "$archive" "$dest" "$python") || return 1
  export "${line?}"
  echo "$line"
}

libero_osmesa() {
  local archive=${1:-.osmesa/osmesa.tar.xz} dest=${2:-/tmp/libero}
  [ -e "$dest/osmesa/libOSMesa.so" ] && return 0
  [ -r "$archive" ] || { echo "libero_osmesa: no archive $archive; make one with tools/pack_osmesa.sh"; return 1; }
  mkdir -p "$dest" &&
    python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter="data")' "$archive" "$dest" || return 1
  # what the machine has itself is newer, and everything else there is made for it
  local there file; there=$(ldconfig -p)
  for file in "$dest"/osmesa/*.so.*; do
    if grep -q "^[[:space:]]*$(basename "$file") " <<< "$there"; then rm "$file"; fi
  done
}
