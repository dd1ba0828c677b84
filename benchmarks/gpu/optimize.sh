#!/bin/bash
# Algorithm 1 on a bare GPU machine, within nine minutes: optimise embodied training, then all orders in turn.
# Usage: optimize.sh OUT [SIMULATOR]   SIMULATOR: mujoco_arm (default), libero, mujoco_warp
# What the machine lacks lies in the folders that embodied.sh names (.whl, .gl, .mujoco_arm, .libero, .warp).
# Environment: SECONDS_IN_ALL (530) ends it; PRESET, POLICY, DEVICE, WORKERS, SET ("NAME=VALUE ..."); MPS=1 runs under an MPS
# daemon; GRAPH is a graph.json of an earlier call, run in place of a search; NAME is added to the results' names; MORE are
# further options of benchmarks.gpu.optimize, such as "--rounds 1 --spares 1 --groups 2,4".
set -u
simulator=${2:-mujoco_arm}
limit_all=${SECONDS_IN_ALL:-530}
here=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1"; out=$(cd "$1" && pwd)
cd "$here" || exit 1
site=/tmp/site; mkdir -p $site
left() { echo $((limit_all - SECONDS)); }
step() { name=$1; limit=$2; shift 2; [ "$(left)" -lt 15 ] && { echo "== $name: LEFT OUT, no time"; return 1; }
  [ "$limit" -gt "$(left)" ] && limit=$(left)
  echo "== $name (limit $limit s)"; began=$SECONDS; timeout -k 10 "$limit" "$@" > "$out/$name.log" 2>&1; code=$?
  tail -n "${LINES_SHOWN:-30}" "$out/$name.log" | cut -c1-500
  echo "== $name: code $code, $((SECONDS - began)) s, $SECONDS s in all"; return $code; }
packages() {
  for folder in .whl ".$simulator"; do
    ls $folder/*.whl > /dev/null 2>&1 &&
      python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target $site $folder/*.whl
  done
  ldconfig -p | grep -q libEGL.so.1 || { for f in .gl/*.deb; do [ -e "$f" ] && dpkg -x "$f" /; done; ldconfig; }
  ls $site | tr '\n' ' '; echo; nvidia-smi -L; nproc
}
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export -f packages; export site simulator
if [ "$simulator" != mujoco_warp ]; then # rendering on the GPU, without a display
  for f in /usr/local/nvidia/share/glvnd/egl_vendor.d/10_nvidia.json /usr/share/glvnd/egl_vendor.d/10_nvidia.json; do
    [ -e "$f" ] && export __EGL_VENDOR_LIBRARY_FILENAMES=$f && break
  done
fi
step packages 60 bash -c packages
export PYTHONPATH=$here:$site
parts=${PARTS:-optimise,variants}
case $simulator in
  mujoco_arm) export MUJOCO_GL=${MUJOCO_GL:-egl} PYOPENGL_PLATFORM=${PYOPENGL_PLATFORM:-egl} ;;
  libero)
    step libero 150 tools/unpack_libero.sh .libero/libero.tar.xz "${LIBERO_DEST:-/tmp/libero}" python3
    line=$(grep '^RLPROF_LIBERO_PYTHON=' "$out/libero.log" | tail -n 1)
    if [ -n "$line" ]; then export "${line?}"; else echo "== LIBERO DOES NOT WORK HERE"; exit 1; fi ;;
  mujoco_warp)
    warp=${WARP_DEST:-/tmp/warp}
    [ -e "$warp/env.sh" ] && ! ls .warp/*.tar.xz.* > /dev/null 2>&1 || step warp 120 tools/unpack_warp.sh .warp/*.tar.xz.* "$warp"
    if [ -e "$warp/env.sh" ]; then . "$warp/env.sh"; else echo "== NO mujoco-warp"; exit 1; fi ;;
esac
common=(--preset "${PRESET:-h200}" --policy "${POLICY:-pi0}" --simulator "$simulator" --parts "$parts")
[ -n "${DEVICE:-}" ] && common+=(--device "$DEVICE")
[ -n "${WORKERS:-}" ] && common+=(--workers "$WORKERS")
# shellcheck disable=SC2206
[ -n "${SET:-}" ] && common+=(--set $SET)
[ -n "${MPS:-}" ] && common+=(--mps --name "${NAME:-_mps}")
[ -z "${MPS:-}" ] && [ -n "${NAME:-}" ] && common+=(--name "$NAME")
[ -n "${GRAPH:-}" ] && common+=(--graph "$GRAPH")
seconds=$(( $(left) - 25 ))
# shellcheck disable=SC2086
LINES_SHOWN=${SHOWN:-110} step optimise $(( seconds + 15 )) python3 -m benchmarks.gpu.optimize --out "$out" "${common[@]}" --seconds "$seconds" ${MORE:-}
rm -rf "$out/activity"
cd "$out" || exit 1
tar czf logs.tar.gz ./*.log && rm -f ./*.log; ls -la; echo "== all: $SECONDS s"
