#!/bin/bash
# Embodied RL on a bare GPU machine, within nine minutes: the policy by itself, inference and simulation alone and
# together, complete iterations under each schedule.
# Usage: embodied.sh OUT [SIMULATOR]   SIMULATOR: mujoco_arm (default), libero, mujoco_warp
# What the machine lacks lies in folders of the repository: .whl (wheels for all), .gl (loaders of GL), and by simulator
#   .mujoco_arm  wheels of mujoco-core and PyOpenGL
#   .libero      libero.tar.xz of tools/pack_libero.py
#   .warp        parts of tools/pack_warp.py; those of an earlier call on the same machine are kept
# Environment: SECONDS_IN_ALL (530) ends it; STEPS ("selftest run"; also solo: the solo measurements alone, without MPS,
# SOLO_SECONDS (90) of the time; mps_solo: the same under an MPS daemon, MPS_SECONDS (100) of the time); PARTS (solo,schedules; also async); ROUNDS (5 counted
# iterations of each schedule, as far as time allows); SCHEDULES (colocated,colocated-pipe,hybrid,hybrid-pipe; a name may go
# on with +graph or +prefetch); MPS=1 runs under an MPS daemon; NAME is added to the result's name; PRESET, POLICY,
# DEVICE, WORKERS and SET ("NAME=VALUE ...") change the configuration.
set -u
simulator=${2:-mujoco_arm}
limit_all=${SECONDS_IN_ALL:-530}
here=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1"; out=$(cd "$1" && pwd)
cd "$here" || exit 1
site=/tmp/site_$simulator; mkdir -p "$site" # one for each: their versions of MuJoCo differ
left() { echo $((limit_all - SECONDS)); }
step() { name=$1; limit=$2; shift 2; [ "$(left)" -lt 15 ] && { echo "== $name: LEFT OUT, no time"; return 1; }
  [ "$limit" -gt "$(left)" ] && limit=$(left)
  echo "== $name (limit $limit s)"; began=$SECONDS; timeout -k 10 "$limit" "$@" > "$out/$name.log" 2>&1; code=$?
  tail -n "${LINES_SHOWN:-30}" "$out/$name.log" | cut -c1-700
  echo "== $name: code $code, $((SECONDS - began)) s, $SECONDS s in all"; return $code; }
packages() {
  for folder in .whl ".$simulator"; do
    ls $folder/*.whl > /dev/null 2>&1 &&
      python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target $site $folder/*.whl
  done
  ldconfig -p | grep -q libEGL.so.1 || { for f in .gl/*.deb; do [ -e "$f" ] && dpkg -x "$f" /; done; ldconfig; }
  ls $site | tr '\n' ' '; echo
  [ -n "${__EGL_VENDOR_LIBRARY_FILENAMES:-}" ] && ls -l "$__EGL_VENDOR_LIBRARY_FILENAMES"
  ldconfig -p | grep -i -E 'libEGL|libOpenGL'; nvidia-smi -L; free -g | sed -n 2p; nproc
}
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
export -f packages; export site simulator
if [ "$simulator" != mujoco_warp ]; then # rendering on the GPU, without a display
  for f in /usr/local/nvidia/share/glvnd/egl_vendor.d/10_nvidia.json /usr/share/glvnd/egl_vendor.d/10_nvidia.json; do
    [ -e "$f" ] && export __EGL_VENDOR_LIBRARY_FILENAMES=$f && break
  done
fi
step packages 60 bash -c packages
export PYTHONPATH=$here:$site
case $simulator in
  mujoco_arm) export MUJOCO_GL=${MUJOCO_GL:-egl} PYOPENGL_PLATFORM=${PYOPENGL_PLATFORM:-egl} ;;
  libero)
    step libero 150 tools/unpack_libero.sh .libero/libero.tar.xz "${LIBERO_DEST:-/tmp/libero}" python3
    line=$(grep '^RLPROF_LIBERO_PYTHON=' "$out/libero.log" | tail -n 1)
    if [ -n "$line" ]; then export "${line?}"; else echo "== LIBERO DOES NOT WORK HERE: the self-test alone is run"; STEPS=selftest; fi ;;
  mujoco_warp)
    warp=${WARP_DEST:-/tmp/warp}
    [ -d "$warp/lib" ] && ! ls .warp/*.tar.xz.* > /dev/null 2>&1 || step warp 120 tools/unpack_warp.sh .warp/*.tar.xz.* "$warp"
    if ls "$warp"/lib/python3*/site-packages/warp/__init__.py > /dev/null 2>&1; then . "$warp/env.sh"
    else echo "== mujoco-warp IS NOT THERE YET: nothing with it is run"; steps=${STEPS-selftest}; STEPS=${steps//run/}; STEPS=${STEPS//solo/}; fi ;;
esac
common=(--preset "${PRESET:-h200}" --policy "${POLICY:-pi0}" --simulator "$simulator")
[ -n "${DEVICE:-}" ] && common+=(--device "$DEVICE")
[ -n "${WORKERS:-}" ] && common+=(--workers "$WORKERS")
# shellcheck disable=SC2206
[ -n "${SET:-}" ] && common+=(--set $SET)
steps=${STEPS-selftest run}
case " $steps " in *" selftest "*)
  step selftest "${SELFTEST_SECONDS:-100}" python3 -m benchmarks.gpu.embodied selftest --out "$out" "${common[@]}";; esac
case " $steps " in *" solo "*)
  LINES_SHOWN=40 step solo "${SOLO_SECONDS:-90}" python3 -m benchmarks.gpu.embodied run --out "$out" "${common[@]}" \
    --seconds "${SOLO_SECONDS:-90}" --parts solo --name _solo;; esac
case " $steps " in *" run "*)
  seconds=$(( $(left) - 25 ))
  case " $steps " in *" mps_solo "*) seconds=$(( seconds - ${MPS_SECONDS:-100} ));; esac
  more=(--parts "${PARTS:-solo,schedules}" --rounds "${ROUNDS:-5}" --schedules "${SCHEDULES:-colocated,colocated-pipe,hybrid,hybrid-pipe}")
  [ -n "${MPS:-}" ] && more+=(--mps --name "${NAME:-_mps}")
  [ -z "${MPS:-}" ] && [ -n "${NAME:-}" ] && more+=(--name "$NAME")
  LINES_SHOWN=90 step run $(( seconds + 15 )) python3 -m benchmarks.gpu.embodied run --out "$out" "${common[@]}" \
    --seconds "$seconds" "${more[@]}";; esac
case " $steps " in *" mps_solo "*)
  LINES_SHOWN=40 step mps_solo "${MPS_SECONDS:-100}" python3 -m benchmarks.gpu.embodied run --out "$out" "${common[@]}" \
    --seconds "${MPS_SECONDS:-100}" --parts solo --mps --name _mps_solo;; esac
rm -rf "$out/activity"
cd "$out" || exit 1
tar czf logs.tar.gz ./*.log && rm -f ./*.log; ls -la; echo "== all: $SECONDS s"
