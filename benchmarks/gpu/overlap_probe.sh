#!/bin/bash
# Why two rollout epochs side by side stretch each other, on a bare GPU machine: answers and chunks alone and both at once,
# for each way of drawing and each nice value of the simulator's processes. 150 s in all.
# Usage: overlap_probe.sh OUT [SIMULATOR]   SIMULATOR: libero (default), mujoco_arm
# What the machine lacks lies in the folders that embodied_setup.sh names; OSMesa in .osmesa, or already in LIBERO_DEST/osmesa,
# where the first of two calls put it: overlap_probe.sh --stage. Without it variants that draw with it are left out.
# Environment: SECONDS_IN_ALL (150) ends it; VARIANTS (egl,egl+nice10,osmesa+plain,...: see overlap_probe.py), in order of importance;
# LIBERO_DEST (/tmp/libero); PRESET, POLICY, DEVICE, WORKERS, SET ("NAME=VALUE ...", by default cuda_graph=True reward=dense);
# MORE are further options of benchmarks.gpu.overlap_probe, such as "--cycles 12"; NAME is added to the result's name.
set -u
here=$(cd "$(dirname "$0")/../.." && pwd)
cd "$here" || exit 1
export LIBERO_DEST=${LIBERO_DEST:-/tmp/libero}
if [ "$1" = --stage ]; then
  . benchmarks/gpu/libero.sh
  libero_osmesa .osmesa/osmesa.tar.xz "$LIBERO_DEST" && ls "$LIBERO_DEST"/osmesa/*.so* && echo "== staged in $SECONDS s"
  exit
fi
simulator=${2:-libero}
limit_all=${SECONDS_IN_ALL:-150}
mkdir -p "$1"; out=$(cd "$1" && pwd)
. benchmarks/gpu/embodied_setup.sh
machine_ready
simulator_ready || exit 1
default=egl,egl+nice10,osmesa+plain,osmesa+plain+nice10,none,none+nice10,osmesa,osmesa+nice10
[ "$simulator" = libero ] || default=here,here+nice10,none,none+nice10
variants=${VARIANTS:-$default}
if [ "$simulator" = libero ]; then
  . benchmarks/gpu/libero.sh
  if ! ldconfig -p | grep -q libOSMesa.so && ! libero_osmesa .osmesa/osmesa.tar.xz "$LIBERO_DEST"; then
    echo "== no OSMesa here: its variants are left out"
    variants=$(tr , '\n' <<< "$variants" | grep -v '^osmesa' | paste -sd,)
  fi
fi
SET=${SET-cuda_graph=True reward=dense}
common_options
[ -n "${NAME:-}" ] && common+=(--name "$NAME")
# shellcheck disable=SC2086
LINES_SHOWN=${SHOWN:-80} step overlap "$(left)" python3 -m benchmarks.gpu.overlap_probe --out "$out" "${common[@]}" \
  --variants "$variants" --seconds "$(rest 4)" ${MORE:-} # which keeps nothing for itself
finish
