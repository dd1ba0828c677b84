#!/bin/bash
# Embodied RL on a bare GPU machine, within nine minutes: the policy by itself, then complete iterations under each schedule.
# Usage: embodied.sh OUT [SIMULATOR]   SIMULATOR: mujoco_arm (default), libero, mujoco_warp
# Packages that the machine lacks lie in the folder of the repository: .whl (wheels; .deb for nsys), .gl (GL loaders),
# and what the simulator's own script unpacks. SECONDS_IN_ALL (default 530) ends it; ROUNDS, PARTS, PRESET, POLICY,
# WORKERS and SET (NAME=VALUE ...) are handed on.
set -u
out=$1; simulator=${2:-mujoco_arm}
limit_all=${SECONDS_IN_ALL:-530}
here=$(cd "$(dirname "$0")/../.." && pwd)
cd "$here" || exit 1
mkdir -p "$out"; out=$(cd "$out" && pwd)
site=/tmp/site; mkdir -p $site
left() { echo $((limit_all - SECONDS)); }
step() { name=$1; limit=$2; shift 2; [ "$(left)" -lt 15 ] && { echo "== $name: LEFT OUT, no time"; return 1; }
  [ "$limit" -gt "$(left)" ] && limit=$(left)
  echo "== $name (limit $limit s)"; began=$SECONDS; timeout -k 10 "$limit" "$@" > "$out/$name.log" 2>&1; code=$?
  tail -n "${LINES_SHOWN:-30}" "$out/$name.log" | cut -c1-700
  echo "== $name: code $code, $((SECONDS - began)) s, $SECONDS s in all"; return $code; }
packages() {
  for folder in .whl ".$simulator"; do
    ls $folder/*.whl > /dev/null 2>&1 && python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target $site $folder/*.whl
  done
  for f in .gl/*.deb; do [ -e "$f" ] && dpkg -x "$f" /; done; ldconfig
  ls -d $site/* | head -40
  [ -n "${__EGL_VENDOR_LIBRARY_FILENAMES:-}" ] && ls -l "$__EGL_VENDOR_LIBRARY_FILENAMES"
  ldconfig -p | grep -c -i -E 'libEGL|libOpenGL'; nvidia-smi -L; free -g | head -2; nproc
}
# rendering on the GPU, without a display
for f in /usr/local/nvidia/share/glvnd/egl_vendor.d/10_nvidia.json /usr/share/glvnd/egl_vendor.d/10_nvidia.json; do
  [ -e "$f" ] && export __EGL_VENDOR_LIBRARY_FILENAMES=$f && break
done
export PYTHONPATH=$here:$site PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
[ "$simulator" = mujoco_warp ] || export MUJOCO_GL=${MUJOCO_GL:-egl} PYOPENGL_PLATFORM=${PYOPENGL_PLATFORM:-egl}
export -f packages; export site simulator
step packages 60 bash -c packages
common=(--preset "${PRESET:-h200}" --policy "${POLICY:-pi0}" --simulator "$simulator")
[ -n "${DEVICE:-}" ] && common+=(--device "$DEVICE")
[ -n "${WORKERS:-}" ] && common+=(--workers "$WORKERS")
# shellcheck disable=SC2086
[ -n "${SET:-}" ] && common+=(--set $SET)
case " ${STEPS:-selftest run} " in *" selftest "*)
  step selftest "${SELFTEST_SECONDS:-90}" python3 -m benchmarks.gpu.embodied selftest --out "$out" "${common[@]}";; esac
case " ${STEPS:-selftest run} " in *" run "*)
  seconds=$(( $(left) - 25 ))
  LINES_SHOWN=70 step run $(( seconds + 15 )) python3 -m benchmarks.gpu.embodied run --out "$out" "${common[@]}" \
    --seconds "$seconds" --rounds "${ROUNDS:-5}" --parts "${PARTS:-solo,schedules}";; esac
rm -rf "$out/activity"
cd "$out" || exit 1
tar czf logs.tar.gz ./*.log && rm -f ./*.log; ls -la; echo "== all: $SECONDS s"
