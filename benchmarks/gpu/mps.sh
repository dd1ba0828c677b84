#!/bin/bash
# MPS on a bare GPU machine, within four minutes: the life of a daemon, what works beside one, `rlprof quota`.
# Usage: mps.sh OUT [STEP,...]   steps: life foreign killed graphs counters egl tests quota (all by default)
# Packages that the machine lacks lie in the folder of the repository: .whl (orjson, typer, shellingham, annotated-doc;
# cupti-python, nvidia-cuda-cupti and pyelftools for counters), .gl (GL loaders, for egl).
# SECONDS_IN_ALL (default 235) ends it. Writes OUT/mps.json after every step; a daemon never outlives it.
set -u
mkdir -p "$1"; out=$(cd "$1" && pwd); steps=${2:-}
limit=${SECONDS_IN_ALL:-235}
here=$(cd "$(dirname "$0")/../.." && pwd)
cd "$here" || exit 1
site=${SITE:-/tmp/site}; mkdir -p "$site"
# one by one: a wheel that does not fit here keeps no other out
for f in .whl/*.whl; do
  # a pytest of its own would not fit the plugins that the machine's has
  case $f in *pytest*|*pluggy*|*iniconfig*) python3 -c 'import pytest' 2> /dev/null && continue;; esac
  [ -e "$f" ] && python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" "$f"
done
if ls .gl/*.deb > /dev/null 2>&1; then for f in .gl/*.deb; do dpkg -x "$f" /; done; ldconfig; fi
for f in /usr/local/nvidia/share/glvnd/egl_vendor.d/10_nvidia.json /usr/share/glvnd/egl_vendor.d/10_nvidia.json; do
  [ -e "$f" ] && export __EGL_VENDOR_LIBRARY_FILENAMES=$f && break
done
export PYTHONPATH=$here:$site${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 RLPROF_CACHE=/tmp/rlprof-cache
trap 'timeout -k 5 30 python3 -m benchmarks.gpu.mps stop' EXIT
timeout -k 10 $((limit - SECONDS)) python3 -m benchmarks.gpu.mps run --out "$out" --seconds $((limit - SECONDS - 15)) \
  ${steps:+--steps "$steps"} 2>&1 | tee "$out/mps.log" | cut -c1-900
echo "== all: $SECONDS s"; ls -la "$out"
