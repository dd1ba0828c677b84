# Functions for scripts that run embodied workloads on a bare machine; to be sourced in the repository's folder:
# . benchmarks/gpu/embodied_setup.sh, with `here` (that folder), `out`, `simulator` and `limit_all` (seconds) set.
# What the machine lacks lies in folders of the repository: .whl (wheels for all), .gl (loaders of GL), and by simulator
#   .mujoco_arm  wheels of mujoco-core and PyOpenGL
#   .libero      libero.tar.xz of tools/pack_libero.py
#   .warp        parts of tools/pack_warp.py; those of an earlier call on the same machine are kept
# Packages are unpacked in SITES (/tmp), and those of the caller's PYTHONPATH are found too.
#
# left                      seconds that are left
# rest [AFTER]              --seconds of a program that measures as long as there is time, if steps after it take AFTER: all that is
#                           left but for the end. Programs keep 4 s of it for themselves (--reserve), in which results are written
# step NAME LIMIT COMMAND   runs a command with a limit of seconds, into OUT/NAME.log; shows its end. At the limit, or 3 s before
#                           time is up, it gets SIGTERM, at which programs write what they have, and SIGKILL before time is up
# machine_ready             packages, variables of rendering, PYTHONPATH
# simulator_ready           unpacks the simulator; code 1 and a line that says so if it is not there
# common_options            sets the arrays `common`, options that all programs of benchmarks.gpu take, and `named`: an MPS daemon
#                           (MPS), and what is added to the names of results (NAME)
# finish                    packs the logs, shows what there is

case $limit_all in *[!0-9]* | '') echo "== SECONDS_IN_ALL=$limit_all: give whole seconds" >&2; exit 2 ;; esac
limit_all=$((10#$limit_all)) # 08 is eight
site=${SITES:-/tmp}/site_$simulator; mkdir -p "$site" # one for each: their versions of MuJoCo differ
shared=${SITES:-/tmp}/site_shared; mkdir -p "$shared" # wheels for all
callers=${PYTHONPATH:-} # the machine's packages may be there alone
left() { echo $((limit_all - SECONDS)); }
rest() { echo $(( $(left) - 6 - ${1:-0} )); } # for the end of simulators and of a daemon, and for the logs
step() { local name=$1 limit=$2 began=$SECONDS code last; shift 2
  if [ "$(left)" -lt 15 ] || [ "$limit" -lt 1 ]; then echo "== $name: LEFT OUT, no time"; return 1; fi # a limit of 0 is none
  last=$(( $(left) - 3 )); [ "$limit" -gt "$last" ] && limit=$last
  last=$(( $(left) - limit )); [ "$last" -gt 10 ] && last=10
  echo "== $name (limit $limit s)"; timeout -k "$last" "$limit" "$@" > "$out/$name.log" 2>&1; code=$?
  tail -n "${LINES_SHOWN:-30}" "$out/$name.log" | cut -c1-700
  echo "== $name: code $code, $((SECONDS - began)) s, $SECONDS s in all"; return $code; }
packages() {
  local folder f target
  for folder in .whl ".$simulator"; do
    ls $folder/*.whl > /dev/null 2>&1 || continue
    target=$site; [ "$folder" = .whl ] && target=$shared
    [ "$(cat "$target/$folder.installed" 2>/dev/null)" = "$(ls -s $folder)" ] && continue # by an earlier call
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$target" $folder/*.whl &&
      ls -s $folder > "$target/$folder.installed"
  done
  ldconfig -p | grep -q libEGL.so.1 || { for f in .gl/*.deb; do [ -e "$f" ] && dpkg -x "$f" /; done; ldconfig; }
  ls $shared $site | tr '\n' ' '; echo
  [ -n "${__EGL_VENDOR_LIBRARY_FILENAMES:-}" ] && ls -l "$__EGL_VENDOR_LIBRARY_FILENAMES"
  ldconfig -p | grep -i -E 'libEGL|libOpenGL'; nvidia-smi -L; free -g | sed -n 2p; nproc
}
machine_ready() {
  local f
  export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
  export -f packages; export site shared simulator
  if [ "$simulator" != mujoco_warp ]; then # rendering on the GPU, without a display
    for f in /usr/local/nvidia/share/glvnd/egl_vendor.d/10_nvidia.json /usr/share/glvnd/egl_vendor.d/10_nvidia.json; do
      [ -e "$f" ] && export __EGL_VENDOR_LIBRARY_FILENAMES=$f && break
    done
  fi
  step packages 60 bash -c packages
  export PYTHONPATH=$here:$site:$shared${callers:+:$callers}
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
  named=(); [ -n "${NAME:-}" ] && named=(--name "$NAME")
  [ -n "${MPS:-}" ] && named=(--mps --name "${NAME:-_mps}")
  return 0
}
finish() {
  rm -rf "$out/activity"
  cd "$out" || exit 1
  tar czf logs.tar.gz ./*.log && rm -f ./*.log; ls -la; echo "== all: $SECONDS s"
}
