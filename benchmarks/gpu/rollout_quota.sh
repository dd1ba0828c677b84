#!/bin/bash
# Quotas of the rollout's process beside physics on the GPU, on a bare GPU machine: the whole range, and around its best.
# Usage: rollout_quota.sh OUT [SIMULATOR]   SIMULATOR: mujoco_warp (default)
# What the machine lacks lies in the folders that embodied_setup.sh names.
# Environment: SECONDS_IN_ALL (180) ends it; PRESET, POLICY, DEVICE, WORKERS, SET ("NAME=VALUE ..."); MORE are further
# options of benchmarks.gpu.rollout_quota. MPS=0 starts no daemon: with MORE="--pair-only --name _unmanaged" both at once alone.
set -u
simulator=${2:-mujoco_warp}
limit_all=${SECONDS_IN_ALL:-180}
here=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1"; out=$(cd "$1" && pwd)
cd "$here" || exit 1
. benchmarks/gpu/embodied_setup.sh
machine_ready
simulator_ready || exit 1
common_options
daemon=--mps; [ "${MPS:-1}" = 0 ] && daemon=
# shellcheck disable=SC2086
LINES_SHOWN=${SHOWN:-60} step rollout_quota "$(left)" python3 -m benchmarks.gpu.rollout_quota --out "$out" "${common[@]}" $daemon --seconds "$(rest)" ${MORE:-}
finish
