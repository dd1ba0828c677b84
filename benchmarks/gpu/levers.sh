#!/bin/bash
# Levers of embodied training on a bare GPU machine, each alone, those that tell most for their time first.
# Usage: levers.sh OUT [SIMULATOR]   SIMULATOR: libero (default), mujoco_warp, mujoco_arm
# What the machine lacks lies in the folders that embodied_setup.sh names. Environment: SECONDS_IN_ALL (250) ends it; PRESET, POLICY,
# DEVICE, WORKERS, SET ("NAME=VALUE ..."); MPS=1 runs under an MPS daemon; LEVERS names levers, in their order; GRAPH is a graph.json of
# an earlier call; MEASURED is the measurements_levers.jsonl of a call that this one goes on with: its rows come again, and cost nothing;
# NAME is added to the results' names; MORE are further options of benchmarks.gpu.levers.
set -u
simulator=${2:-libero}
limit_all=${SECONDS_IN_ALL:-250}
here=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1"; out=$(cd "$1" && pwd)
cd "$here" || exit 1
. benchmarks/gpu/embodied_setup.sh
machine_ready
simulator_ready || exit 1
if [ "$simulator" = libero ] && [ -r .osmesa/osmesa.tar.xz ]; then
  . benchmarks/gpu/libero.sh; libero_osmesa .osmesa/osmesa.tar.xz "${LIBERO_DEST:-/tmp/libero}"
fi
common_options
common+=("${named[@]}")
[ -n "${LEVERS:-}" ] && common+=(--levers "$LEVERS")
[ -n "${GRAPH:-}" ] && common+=(--graph "$GRAPH")
[ -n "${MEASURED:-}" ] && common+=(--measured "$MEASURED")
# shellcheck disable=SC2086
LINES_SHOWN=${SHOWN:-110} step levers "$(left)" python3 -m benchmarks.gpu.levers --out "$out" "${common[@]}" --seconds "$(rest)" ${MORE:-}
rm -rf "$out/activity"
ls -la "$out"; echo "== all: $SECONDS s"
