#!/bin/bash
# Algorithm 1 on a bare GPU machine, within nine minutes: optimise embodied training, then all orders in turn.
# Usage: optimize.sh OUT [SIMULATOR]   SIMULATOR: mujoco_arm (default), libero, mujoco_warp
# What the machine lacks lies in the folders that embodied_setup.sh names.
# Environment: SECONDS_IN_ALL (530) ends it; PRESET, POLICY, DEVICE, WORKERS, SET ("NAME=VALUE ..."); MPS=1 runs under an MPS
# daemon; GRAPH is a graph.json of an earlier call, run in place of a search; NAME is added to the results' names; MORE are
# further options of benchmarks.gpu.optimize, such as "--rounds 1 --spares 1 --groups 2,4". All orders train the same iteration;
# "--no-same-iteration" trains on.
set -u
simulator=${2:-mujoco_arm}
limit_all=${SECONDS_IN_ALL:-530}
here=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1"; out=$(cd "$1" && pwd)
cd "$here" || exit 1
. benchmarks/gpu/embodied_setup.sh
machine_ready
simulator_ready || exit 1
common_options
common+=(--parts "${PARTS:-optimise,variants}")
common+=("${named[@]}")
[ -n "${GRAPH:-}" ] && common+=(--graph "$GRAPH")
# shellcheck disable=SC2086
LINES_SHOWN=${SHOWN:-110} step optimise "$(left)" python3 -m benchmarks.gpu.optimize --out "$out" "${common[@]}" --seconds "$(rest)" ${MORE:-}
finish
