#!/bin/bash
# Levers of embodied training on a bare GPU machine, within nine minutes: each alone, then the graph with those that pay.
# Usage: levers.sh OUT [SIMULATOR]   SIMULATOR: libero (default), mujoco_warp, mujoco_arm
# What the machine lacks lies in the folders that embodied_setup.sh names. Environment: SECONDS_IN_ALL (530) ends it; PRESET, POLICY,
# DEVICE, WORKERS, SET ("NAME=VALUE ..."); MPS=1 runs under an MPS daemon; LEVERS names levers; RESUME=1 goes on with what OUT holds;
# MORE are further options of benchmarks.gpu.levers.
set -u
simulator=${2:-libero}
limit_all=${SECONDS_IN_ALL:-530}
here=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1"; out=$(cd "$1" && pwd)
cd "$here" || exit 1
. benchmarks/gpu/embodied_setup.sh
machine_ready
simulator_ready || exit 1
if [ "$simulator" = libero ]; then . benchmarks/gpu/libero.sh; libero_osmesa .osmesa/osmesa.tar.xz "${LIBERO_DEST:-/tmp/libero}" || echo "== no osmesa: that way of drawing will be refused"; fi
common_options
[ -n "${MPS:-}" ] && common+=(--mps)
[ -n "${LEVERS:-}" ] && common+=(--levers "$LEVERS")
[ -n "${RESUME:-}" ] && common+=(--resume)
seconds=$(( $(left) - 25 ))
# shellcheck disable=SC2086
LINES_SHOWN=${SHOWN:-110} step levers $(( seconds + 15 )) python3 -m benchmarks.gpu.levers --out "$out" "${common[@]}" --seconds "$seconds" ${MORE:-}
ls -la "$out"; echo "== all: $SECONDS s"
