# Functions for scripts that run embodied workloads on a bare machine; to be sourced in the repository's folder:
# . benchmarks/gpu/embodied_setup.sh, with `here` (that folder), `out`, `simulator` and `limit_all` (seconds) set.
# What the machine lacks lies in folders of the repository: .whl (wheels for all), .gl (loaders of GL), and by simulator
#   .mujoco_arm  wheels of mujoco-core and PyOpenGL
#   .libero      libero.tar.xz of tools/pack_libero.py
#   .warp        parts of tools/pack_warp.py; those of an earlier call on the same machine are kept
#
# left                      seconds that are left
# step NAME LIMIT COMMAND   runs a command with a limit of seconds, into OUT/NAME.log; shows its end
# machine_ready             packages, variables of rendering, PYTHONPATH
# simulator_ready           unpacks the simulator; code 1 and a line that says so if it is not there
# common_options            sets the array `common`: options that all programs of benchmarks.gpu take

site=/tmp/site_$simulator; mkdir -p "$site" # one for each: their versions of MuJoCo differ
left() { echo $((limit_all - SECONDS)); }
step() { local name=$1 limit=$2 began=$SECONDS code; shift 2; [ "$(left)" -lt 15 ] && { echo "== $name: LEFT OUT, no time"; return 1; }
  [ "$limit" -gt "$(left)" ] && limit=$(left)
  echo "== $name (limit $limit s)"; timeout -k 10 "$limit" "$@" > "$out/$name.log" 2>&1; code=$?
  tail -n "${LINES_SHOWN:-30}" "$out/$name.log" | cut -c1-700
  echo "== $name: code $code, $((SECONDS - began)) s, $SECONDS s in all"; return $code; }
packages() {
  local folder f
  for folder in .whl ".$simulator"; do
    ls $folder/*.whl > /dev/null 2>&1 || continue
    [ "$(cat "$site/$folder.installed" 2>/dev/null)" = "$(ls -s $folder)" ] && continue # by an earlier call
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target $site $folder/*.whl &&
      ls -s $folder > "$site/$folder.installed"
  done
  ldconfig -p | grep -q libEGL.so.1 || { for f in .gl/*.deb; do [ -e "$f" ] && dpkg -x "$f" /; done; ldconfig; }
  ls $site | tr '\n' ' '; echo
  [ -n "${__EGL_VENDOR_LIBRARY_FILENAMES:-}" ] && ls -l "$__EGL_VENDOR_LIBRARY_FILENAMES"
  ldconfig -p | grep -i -E 'libEGL|libOpenGL'; nvidia-smi -L; free -g | sed -n 2p; nproc
}
machine_ready() {
  local f
  export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
  export -f packages; export site simulator
  if [ "$simulator" != mujoco_warp ]; then # rendering on the GPU, without a display
    for f in /usr/local/nvidia/share/glvnd/egl_vendor.d/10_nvidia.json /usr/share/glvnd/egl_vendor.d/10_nvidia.json; do
      [ -e "$f" ] && export __EGL_VENDOR_LIBRARY_FILENAMES=$f && break
    done
  fi
  step packages 60 bash -c packages
  export PYTHONPATH=$here:$site
}
simulator_ready() {
  local line warp
  case $simulator in
    mujoco_arm) export MUJOCO_GL=${MUJOCO_GL:-egl} PYOPENGL_PLATFORM=${PYOPENGL_PLATFORM:-egl} ;;
    libero)
      [ -n "${RLPROF_LIBERO_PYTHON:-}" ] && return 0 # one that works here already
      step libero 150 tools/unpack_libero.sh .libero/libero.tar.xz "${LIBERO_DEST:-/tmp/libero}" python3
      line=$(grep '^RLPROF_LIBERO_PYTHON=' "$out/libero.log" | tail -n 1)
      [ -n "$line" ] || { echo "== LIBERO DOES NOT WORK HERE"; return 1; }
      export "${line?}" ;;
    mujoco_warp)
      warp=${WARP_DEST:-/tmp/warp}
      [ -d "$warp/lib" ] && ! ls .warp/*.tar.xz.* > /dev/null 2>&1 || step warp 120 tools/unpack_warp.sh .warp/*.tar.xz.* "$warp"
      ls "$warp"/lib/python3*/site-packages/warp/__init__.py > /dev/null 2>&1 || { echo "== mujoco-warp IS NOT THERE YET"; return 1; }
      . "$warp/env.sh" ;;
  esac
}
common_options() {
  common=(--preset "${PRESET:-h200}" --policy "${POLICY:-pi0}" --simulator "$simulator")
  [ -n "${DEVICE:-}" ] && common+=(--device "$DEVICE")
  [ -n "${WORKERS:-}" ] && common+=(--workers "$WORKERS")
  # shellcheck disable=SC2206
  [ -n "${SET:-}" ] && common+=(--set $SET)
  return 0
}
