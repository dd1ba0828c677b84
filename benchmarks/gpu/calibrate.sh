#!/bin/bash
# Raw measurements for `rlprof calibrate` and for predicted against measured, within nine minutes, on a bare machine:
# Python, PyTorch and nothing else.
# Usage: calibrate.sh OUT [RAW]   RAW: measurements of an earlier run on such a machine, to go on from
# SECONDS_IN_ALL (default 520) ends it; PRESET: full (default), quick or smoke; DEVICES: as of rlprof calibrate.
set -u
out=$1; earlier=${2:-}
here=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$out"
raw=$out/calibration.raw.jsonl
[ -n "$earlier" ] && [ ! -s "$raw" ] && cp "$earlier" "$raw"
cd "$here" || exit 1
# NVLink multicast needs rights that containers do not always have
export PYTHONUNBUFFERED=1 NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
exec python3 -m benchmarks.gpu.calibrate measure --raw "$raw" --seconds "${SECONDS_IN_ALL:-520}" \
  --preset "${PRESET:-full}" ${DEVICES:+--devices "$DEVICES"}
