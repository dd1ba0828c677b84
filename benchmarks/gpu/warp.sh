#!/bin/bash
# The simulator mujoco_warp on a bare GPU machine: unpack it, measure it, keep the kernels that were missing.
# Usage: warp.sh OUT [PART...]   PART: what tools/pack_warp.py packed; those of earlier calls on the machine are kept
# Environment: WARP_DEST (/tmp/warp), PROBE_SECONDS (110): no case begins later, TARGET_S (1.3): a chunk that substeps are found for.
# OUT gets warp_probe.json, logs, and kernels.tar.xz.* if kernels had to be compiled: carry those the next time.
set -u
mkdir -p "$1"; out=$(cd "$1" && pwd); shift
here=$(cd "$(dirname "$0")/../.." && pwd)
warp=${WARP_DEST:-/tmp/warp}
cd "$here" || exit 1
step() { local name=$1 limit=$2 began=$SECONDS code; shift 2
  echo "== $name (limit $limit s)"; timeout -k 10 "$limit" "$@" > "$out/$name.log" 2>&1; code=$?
  tail -n 40 "$out/$name.log" | cut -c1-400
  echo "== $name: code $code, $((SECONDS - began)) s, $SECONDS s in all"; return $code; }
[ $# -eq 0 ] || step unpack 120 tools/unpack_warp.sh "$@" "$warp"
ls "$warp"/lib/python3*/site-packages/warp/__init__.py > /dev/null 2>&1 || { echo "== mujoco-warp IS NOT THERE YET"; exit 0; }
. "$warp/env.sh"
unset PYTHONPATH # no other MuJoCo
export PYTHONUNBUFFERED=1 MUJOCO_GL=disable
kernels() { find "$WARP_CACHE_PATH" -name '*.cubin' | wc -l; }
before=$(kernels)
step device 60 "$RLPROF_WARP_PYTHON" -c '
import warp as wp
wp.init()
a = wp.array([3.0, 1.0, 2.0, 0.0, 0.0, 0.0], dtype=float, device="cuda:0")
i = wp.array([0, 1, 2, 0, 0, 0], dtype=int, device="cuda:0")
wp.utils.radix_sort_pairs(a, i, 3)
print(a.numpy()[:3], i.numpy()[:3], wp.get_device("cuda:0").name, wp.get_device("cuda:0").arch)
assert list(i.numpy()[:3]) == [1, 2, 0]' || echo "== the library's own GPU code DOES NOT RUN: carry rest.tar.xz.* too"
step probe $(( ${PROBE_SECONDS:-110} + 60 )) "$RLPROF_WARP_PYTHON" -m benchmarks.gpu.warp_probe --out "$out" \
  --seconds "${PROBE_SECONDS:-110}" --target-s "${TARGET_S:-1.3}" --device "${DEVICE:-cuda:0}"
[ "$(kernels)" -gt "$before" ] && step kernels 60 "$RLPROF_WARP_PYTHON" tools/pack_warp.py kernels "$WARP_CACHE_PATH" "$out"
ls -la "$out"; echo "== warp: $SECONDS s"
