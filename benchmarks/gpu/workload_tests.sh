#!/bin/bash
# The tests of the workloads that are marked `gpu`, on a bare GPU machine with one GPU or two.
# Usage: workload_tests.sh OUT [FILE...]   FILE: tests; all of tests/workloads by default
# What the machine lacks lies in the folders that embodied_setup.sh names: .mujoco_arm (MuJoCo), and .warp for the
# simulator mujoco_warp, whose tests are skipped without it; pytest is taken from the machine.
# Environment: SECONDS_IN_ALL (300) ends it; TEST_SECONDS (60) ends a test, with the stacks of all threads.
# Writes OUT/FOLDERS_FILE.xml for each file: a run of its own, and one that fails stops nothing.
set -u
simulator=mujoco_arm
limit_all=${SECONDS_IN_ALL:-300}
here=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1"; out=$(cd "$1" && pwd); shift
cd "$here" || exit 1
. benchmarks/gpu/embodied_setup.sh
machine_ready
simulator_ready
warp=${WARP_DEST:-/tmp/warp} # beside: its packages are seen by its own Python alone
if ls .warp/*.tar.xz.* > /dev/null 2>&1; then step warp 120 tools/unpack_warp.sh .warp/*.tar.xz.* "$warp"; fi
[ -e "$warp/env.sh" ] && . "$warp/env.sh"
probe() { python3 - <<'PYTHON'
import importlib
for name in ("pytest", "torch", "numpy", "mujoco", "mujoco.rollout", "transformers", "orjson"):
    try:
        found = importlib.import_module(name)
        print(name, getattr(found, "__version__", "there"))
    except Exception as error:
        print(name, "DOES NOT LOAD:", type(error).__name__, error)
import torch
for k in range(torch.cuda.device_count()):
    torch.ones(1, device=f"cuda:{k}")
    print(k, torch.cuda.get_device_name(k), [round(b / 1e9, 1) for b in torch.cuda.mem_get_info(k)], "GB")
    for other in range(torch.cuda.device_count()):
        if other != k:
            print("  peer access to", other, torch.cuda.can_device_access_peer(k, other))
PYTHON
}
export -f probe
step probe 60 bash -c probe
# from here on packages of mujoco_arm are of the tests' own process alone: mujoco_warp wants another MuJoCo. Those for all
# are of the processes that tests start too
export PYTHONPATH=$here:$shared${callers:+:$callers}
run='import sys; sys.path.insert(1, sys.argv.pop(1)); import pytest; sys.exit(pytest.main(sys.argv[1:]))'
python3 -c 'import pytest_timeout' 2> /dev/null && timeouts=(--timeout "${TEST_SECONDS:-60}") || timeouts=()
files=("$@")
# shellcheck disable=SC2207
[ "${#files[@]}" -gt 0 ] || files=($(grep -rl --include='test_*.py' 'mark\.gpu' tests/workloads | sort))
failed=0
for file in "${files[@]}"; do
  name=${file#tests/}; name=${name%.py}; name=${name//\//_} # files of one name lie in several folders
  LINES_SHOWN=${LINES_SHOWN:-40} step "$name" 150 python3 -c "$run" "$site" -q -p no:cacheprovider -m gpu -rs --durations=5 \
    --tb=short "${timeouts[@]}" --junitxml "$out/$name.xml" "$file" || failed=1
done
nvidia-smi --query-gpu=index,memory.used --format=csv,noheader
cd "$out" || exit 1
tar czf logs.tar.gz ./*.log && rm -f ./*.log; ls -la; echo "== all: $SECONDS s, $([ $failed = 0 ] && echo passed || echo SOMETHING FAILED)"
exit $failed
