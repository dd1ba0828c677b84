#!/bin/bash
# `rlprof optimize embodied` itself on a bare GPU machine, within nine minutes: as many pairs as a decision takes, and memory measured.
# Usage: optimize_cli.sh OUT [SIMULATOR]   SIMULATOR: libero (default), mujoco_arm, mujoco_warp
# What the machine lacks lies in the folders that embodied_setup.sh names; the command line needs typer, which transformers brings.
# Environment: SECONDS_IN_ALL (530) ends it; PRESET, POLICY, DEVICE, WORKERS; OPTIONS are those of the command: by default those with which
# the program is fast, of the levers turns on the cores alone (levers.sh measures the others), two windows a round and six local pairs; START and ENDING are the seconds to leave
# for start and recording (60) and for checkpoint and files (90), BUDGET is what is left then. MPS=1 runs under an MPS daemon: quotas are then searched too.
# OUT/optimisation gets what the command writes, less the checkpoint (gigabytes) and the report, which needs polars: make it by
# rlprof optimize report OUT/optimisation, and keep the search by python -m benchmarks.place_rose OUT.
set -u
simulator=${2:-libero}
limit_all=${SECONDS_IN_ALL:-530}
here=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1"; out=$(cd "$1" && pwd)
cd "$here" || exit 1
. benchmarks/gpu/embodied_setup.sh
machine_ready
simulator_ready || exit 1
# 20 seconds that say whether the rest can work: the command and what it imports, without polars
step probe 40 python3 -m rlprof optimize embodied --help || exit 1
options=${OPTIONS:---cuda-graph --whole-answers --keep-prefix --reward dense --simulator-nice 10 --levers core-turns --targets 2 --local-pairs 6}
common=(--preset "${PRESET:-h200}" --policy "${POLICY:-pi0}" --simulator "$simulator")
[ -n "${DEVICE:-}" ] && common+=(--device "$DEVICE")
[ -n "${WORKERS:-}" ] && common+=(--workers "$WORKERS")
if [ -n "${MPS:-}" ]; then
  variables=$(python3 -m rlprof mps start --while $$) && eval "$variables" || { echo "== no MPS daemon"; exit 1; }
fi
budget=${BUDGET:-$(( $(left) - ${START:-60} - ${ENDING:-90} ))}
if [ "$budget" -lt 1 ] || [ "$(rest 5)" -le 40 ]; then
  echo "== optimise_cli: LEFT OUT, $(left) s do not hold START, ENDING and a budget"
  [ -n "${MPS:-}" ] && python3 -m rlprof mps stop
  exit 1
fi
# INT is Ctrl-C, at which the best so far is written, as it is not at TERM; writing a checkpoint takes its time until KILL
# shellcheck disable=SC2086
LINES_SHOWN=${SHOWN:-150} step optimise_cli "$(left)" timeout -s INT -k 40 $(( $(rest 5) - 40 )) \
  python3 -m rlprof optimize embodied "${common[@]}" $options --budget "${budget}s" --out "$out/optimisation"
[ -n "${MPS:-}" ] && python3 -m rlprof mps stop
[ -d "$out/optimisation" ] || { finish; exit 1; } # its log says why
python3 -c 'import json; from benchmarks.gpu.common import machine; print(json.dumps(machine()))' > "$out/optimisation/machine.json"
rm -f "$out"/optimisation/checkpoint.pt "$out"/optimisation/.checkpoint.pt.*
ls -la "$out/optimisation"
[ -e "$out/optimisation/decisions.txt" ] && mv "$out/optimisation/decisions.txt" "$out/decisions.log" # decisions.jsonl for people
finish
