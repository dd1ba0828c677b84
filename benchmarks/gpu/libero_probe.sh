#!/bin/bash
# LIBERO by itself on a bare GPU machine: unpack, then 16 environments in 16 processes, timed for each way of drawing.
# Usage: libero_probe.sh OUT [VARIANT,...]   for example egl+w16,egl+w14,egl+w8: so many processes; with .libero/libero.tar.xz of tools/pack_libero.py in the repository's folder
# SECONDS_IN_ALL (default 240) ends it; ENVS, WORKERS, IMAGE, TIMES. Writes OUT/libero_probe.json after every variant.
set -u
mkdir -p "$1"; out=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")/../.." && pwd)
cd "$here" || exit 1
limit=${SECONDS_IN_ALL:-240}
export PYTHONUNBUFFERED=1 PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}
. benchmarks/gpu/libero.sh
nvidia-smi -L; nproc; free -g | sed -n 2p
ldconfig -p | grep -E 'libEGL|libOpenGL|libGL\.|libX11\.so|libOSMesa' | head -20
timeout 20 find / -xdev \( -name '10_nvidia.json' -o -name 'libEGL_nvidia.so*' \) 2>/dev/null | head
timeout 20 find /usr/local/nvidia \( -name '10_nvidia.json' -o -name 'libEGL_nvidia.so*' \) 2>/dev/null | head
began=$SECONDS
libero_ready || { echo "== LIBERO does not work here"; exit 1; }
libero_osmesa
echo "== unpacked and checked in $((SECONDS - began)) s"
cat "${RLPROF_LIBERO_PYTHON}"
timeout -k 10 $((limit - SECONDS)) python3 -m benchmarks.gpu.libero_probe --out "$out" ${2:+--variants "$2"} \
  --envs "${ENVS:-16}" --workers "${WORKERS:-16}" --image "${IMAGE:-224}" --times "${TIMES:-5}" \
  --seconds $((limit - SECONDS - 45)) 2>&1 | tee -a "$out/libero_probe.log" | cut -c1-600
echo "== all: $SECONDS s"; ls -la "$out"
