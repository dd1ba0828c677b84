#!/bin/bash
# Embodied RL on a bare GPU machine, within nine minutes: the policy by itself, inference and simulation alone and
# together, complete iterations under each schedule.
# Usage: embodied.sh OUT [SIMULATOR]   SIMULATOR: mujoco_arm (default), libero, mujoco_warp
# What the machine lacks lies in the folders that embodied_setup.sh names.
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
. benchmarks/gpu/embodied_setup.sh
machine_ready
if ! simulator_ready; then # what needs no simulator
  echo "== nothing with $simulator is run"; STEPS=${STEPS-selftest}
  for word in mps_solo solo run; do STEPS=${STEPS//$word/}; done
fi
common_options
steps=${STEPS-selftest run}
case " $steps " in *" selftest "*)
  step selftest "${SELFTEST_SECONDS:-100}" python3 -m benchmarks.gpu.embodied selftest --out "$out" "${common[@]}";; esac
case " $steps " in *" solo "*)
  LINES_SHOWN=40 step solo "${SOLO_SECONDS:-90}" python3 -m benchmarks.gpu.embodied run --out "$out" "${common[@]}" \
    --seconds "${SOLO_SECONDS:-90}" --parts solo --name _solo;; esac
case " $steps " in *" run "*)
  after=0; case " $steps " in *" mps_solo "*) after=${MPS_SECONDS:-100};; esac
  more=(--parts "${PARTS:-solo,schedules}" --rounds "${ROUNDS:-5}" --schedules "${SCHEDULES:-colocated,colocated-pipe,hybrid,hybrid-pipe}")
  LINES_SHOWN=90 step run $(( $(left) - after )) python3 -m benchmarks.gpu.embodied run --out "$out" "${common[@]}" "${named[@]}" \
    --seconds "$(rest "$after")" "${more[@]}";; esac
case " $steps " in *" mps_solo "*)
  LINES_SHOWN=40 step mps_solo "${MPS_SECONDS:-100}" python3 -m benchmarks.gpu.embodied run --out "$out" "${common[@]}" \
    --seconds "${MPS_SECONDS:-100}" --parts solo --mps --name _mps_solo;; esac
finish
