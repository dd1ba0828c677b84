#!/bin/bash
# Raw measurements for `rlprof calibrate` and for predicted against measured, in one go on a bare machine:
# Python, PyTorch and nothing else. With two GPUs also links and operators of both, and each measures a half of the rest.
# Usage: calibrate.sh OUT [RAW...]   RAW: files of an earlier run on such a machine, by their names, to go on from
# SECONDS_IN_ALL (default 240) ends it; PRESET: full (default), quick or smoke; DEVICES: as of rlprof calibrate.
set -u
mkdir -p "$1"; out=$(cd "$1" && pwd); shift
here=$(cd "$(dirname "$0")/../.." && pwd)
for earlier in "$@"; do
  there=$out/$(basename "$earlier"); [ -s "$there" ] || cp "$earlier" "$there"
done
cd "$here" || exit 1
# NVLink multicast needs rights that containers do not always have
export PYTHONUNBUFFERED=1 NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}
set -o pipefail
python3 -m benchmarks.gpu.calibrate measure --out "$out" --seconds "${SECONDS_IN_ALL:-240}" \
  --preset "${PRESET:-full}" ${DEVICES:+--devices "$DEVICES"} 2>&1 | tee -a "$out/calibrate.log" | cut -c1-300
code=$?
ls -l "$out"
exit $code
