#!/bin/bash
# Two configurations of optimize.sh on LIBERO at the same time, each on a GPU and half of the cores of a bare machine with
# two GPUs: what differs between them is not the machine or the hour.
# Usage: side_by_side.sh OUT
# Environment: SECONDS_IN_ALL (300) ends both; SET_0, SET_1, MORE_0, MORE_1: SET and MORE of each; NAME_0 (_0), NAME_1 (_1) are
# added to the results' names; PARTS, GRAPH_0, GRAPH_1 as of optimize.sh.
set -u
simulator=libero
limit_all=${SECONDS_IN_ALL:-300}
here=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1"; out=$(cd "$1" && pwd)
cd "$here" || exit 1
. benchmarks/gpu/embodied_setup.sh
machine_ready
simulator_ready || exit 1
half=$(( $(nproc) / 2 ))
export CUDA_DEVICE_ORDER=PCI_BUS_ID
python3 -m benchmarks.gpu.egl_devices | tee "$out/egl_devices.txt"
run() { # of GPU $1
  local k=$1 egl set="SET_$1" more="MORE_$1" name="NAME_$1" graph="GRAPH_$1"
  egl=$(python3 -m benchmarks.gpu.egl_devices "$k") || { echo "== no EGL device for GPU $k"; return 1; }
  SECONDS_IN_ALL=$(left) CUDA_VISIBLE_DEVICES=$k MUJOCO_EGL_DEVICE_ID=$egl SET=${!set:-} MORE=${!more:-} NAME=${!name:-_$k} GRAPH=${!graph:-} \
    taskset -c $(( k * half ))-$(( k * half + half - 1 )) bash benchmarks/gpu/optimize.sh "$out/$k" libero > "$out/$k.txt" 2>&1
}
: > "$out/0.txt"; : > "$out/1.txt"
run 0 & pids=($!)
run 1 & pids+=($!)
( for (( s = 0; s < 60; s++ )); do kill -0 "${pids[@]}" || exit; sleep 1; done; nvidia-smi; ) > "$out/processes.txt" 2>&1 & # while both run
failed=0
for k in 0 1; do wait "${pids[k]}" || failed=1; done
for k in 0 1; do echo "== GPU $k"; grep -v '^   *LEFT OUT' "$out/$k.txt" | tail -n "${SHOWN:-45}" | cut -c1-420; done
echo "== processes by GPU and kind"; grep -E ' (C|G|C\+G|M\+C) ' "$out/processes.txt" | awk '{print $2, $6}' | sort | uniq -c
rm -f "$out"/[01].txt; ls -la "$out"/*; echo "== all: $SECONDS s"
exit $failed
