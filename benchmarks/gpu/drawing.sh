#!/bin/bash
# Drawing of LIBERO by itself on a bare GPU machine, each way that `drawing.py` knows, in one process and in 16.
# Usage: drawing.sh OUT [OPTION...]   with .libero/libero.tar.xz of tools/pack_libero.py in the repository's folder;
# options of benchmarks.gpu.drawing. A minute to unpack (LIBERO_DEST, /tmp/libero, keeps it), then half a minute.
set -u
mkdir -p "$1"; out=$(cd "$1" && pwd); shift
cd "$(dirname "$0")/../.." || exit 1
export PYTHONUNBUFFERED=1 PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
. benchmarks/gpu/libero.sh
libero_ready .libero/libero.tar.xz "${LIBERO_DEST:-/tmp/libero}" || { echo "== LIBERO does not work here"; exit 1; }
echo "== unpacked and checked in $SECONDS s"
timeout -k 5 "${SECONDS_IN_ALL:-60}" "$RLPROF_LIBERO_PYTHON" -m benchmarks.gpu.drawing --out "$out" "$@" 2>&1 |
  tee -a "$out/drawing.log" | grep -v robosuite | cut -c1-600
code=${PIPESTATUS[0]}
echo "== all: $SECONDS s"
exit "$code"
