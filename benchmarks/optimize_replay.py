"""What the search for overlap does with durations that were measured on a GPU, without one.

    python -m benchmarks.optimize_replay

Records the training program of `rlprof optimize embodied` at tiny size, with the loops of the preset h200 (12
chunks, 2 epochs, 16 environments), gives its nodes the durations of `results/gpu/embodied_libero.json` and
`embodied_selftest.json`, and lets Algorithm 1 run on simulated time. Calls that overlap slow each other as
much as an answer and a chunk of simulation did when they were measured together, eagerly; a third
one does so again. What two simulators at once do to each other was never measured.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from rlprof.analysis.trials import Rule
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.optimize import Options, optimize
from rlprof.overlap.optimize.bound import bound, sm_resource
from rlprof.overlap.optimize.log import DecisionLog
from rlprof.overlap.optimize.simulated import DeviceModel, NodeModel, SimulatedWorkload

RESULTS = Path(__file__).parent / "results" / "gpu"
EPOCH = "iteration/generate_rollouts/rollout_epoch"
CHUNK = f"{EPOCH}/chunk"
PREDICT = f"{CHUNK}/predict"
BATCH = "iteration/actor_training/update_epoch/part/global_batch"
ENVS, CHUNKS, EPOCHS = 16, 12, 2
#: Activity of the simulator: SMs that images keep busy.
ACTIVE = 0.0032


def record(scope: str, scratch: Path) -> CallGraph:
    """Record two iterations of the real program, with a spare simulator."""
    from rlprof.workloads.embodied.config import configure
    from rlprof.workloads.embodied.optimize import embodied

    config = configure(
        "tiny", policy="pi0", simulator="mujoco_arm", envs=ENVS, rollout_epochs=EPOCHS, chunks=CHUNKS,
        chunk_steps=1, episode_steps=CHUNKS, update_epochs=1, global_batch=ENVS * CHUNKS,
        micro_batch=ENVS * CHUNKS, minibatch_scope=scope, workers=1, cameras=0,
    )  # fmt: skip
    with embodied(config, scratch, spares=1, activity="off") as here:
        return here.workload.native


def durations(graph: CallGraph, *, cuda_graph: bool) -> dict[str, NodeModel]:
    """Durations and activity of every node, from measurements of 16 and of 8 environments."""
    libero = _read("embodied_libero.json")
    steps, selftest = libero["steps"], _read("embodied_selftest.json")["steps"]

    def line(name: str, activity: float) -> NodeModel:
        """Duration by batch size, through two measurements."""
        whole, half = (float(selftest[f"act_{n}"][name]["median_s"]) for n in (16, 8))
        each = max(0.0, (whole - half) / 8)
        return NodeModel(whole - 16 * each, each, activity)

    vision, backbone = line("vision", 0.95), line("backbone", 0.95)
    answer_s = float(steps["solo_captured" if cuda_graph else "solo_inference"]["median_s"])
    points = sum(1 for c in graph.calls if c.node.endswith("/denoise_step")) / (EPOCHS * CHUNKS)
    heads_s = sum(n.fixed_s + 16 * n.per_sample_s for n in (vision, backbone))
    denoise_s = (answer_s - heads_s) / points
    halves = _read("libero_probe.json")["variants"]["egl-one"]
    half = float(halves["chunk_half"]["median_s"]) / float(halves["chunk"]["median_s"])
    step_s = float(steps["solo_simulation"]["median_s"])
    phases = libero["summary"]["colocated"]["phases_s"]
    found = dict.fromkeys((c.node for c in graph.calls), NodeModel(0.0))
    found |= {
        f"{PREDICT}/vision": vision,
        f"{PREDICT}/answer/backbone": backbone,
        f"{PREDICT}/answer/denoise/denoise_step": NodeModel(denoise_s, 0.0, 0.3 if cuda_graph else 0.1),
        f"{EPOCH}/predict_values": NodeModel(answer_s, 0.0, 0.5),
        f"{CHUNK}/env_interact_step/step": NodeModel(
            (2 * half - 1) * step_s, 2 * (1 - half) * step_s / 16, ACTIVE
        ),
        f"{EPOCH}/bootstrap_step/reset": NodeModel(float(steps["solo_reset"]["first_s"]), 0.0, ACTIVE),
        "iteration/sync_weights": NodeModel(float(phases["sync_weights"])),
        f"{BATCH}/training_step": NodeModel(float(phases["actor_training"]) / 2, 0.0, 0.92),
    }
    return found


def friction() -> float:
    """What a further call costs those that run beside it: of inference beside simulation, as measured."""
    steps = _read("embodied_libero.json")["steps"]
    names = ("inference", "simulation", "overlapped")
    alone_s, longer_s, both_s = (float(steps[f"solo_{n}"]["median_s"]) for n in names)
    # both are slowed until the shorter one is over, then the longer one has its rest
    return (both_s - longer_s) / alone_s


def _read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


def replay(graph: CallGraph, model: DeviceModel, options: Options, log: DecisionLog) -> dict[str, Any]:
    """Run the search, and compare with the bound."""
    workload = SimulatedWorkload(graph, model)
    found = optimize(workload, options, log=log)
    native_s = workload.simulated(graph).makespan_s
    windows = workload.profile(graph).windows
    alone = {w.node: w.mean_s for w in windows}
    resources = {"SM time": sm_resource(graph, windows)}
    least = {
        "whole batches": bound(graph, alone, resources, whole_batches=True),
        "any graph": bound(graph, alone, resources),
    }
    return {
        "native_s": native_s,
        "rounds": [native_s / workload.simulated(r.after).makespan_s for r in found.rounds if r.accepted],
        "steps": [str(s) for s in found.steps],
        "bounds": {name: (one.speedup(native_s), one.binding) for name, one in least.items()},
        "measured_s": sum(m.time_s for _, m in found.iterations),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scope", choices=("rollout", "epoch"), default="rollout")
    parser.add_argument("--log", action="store_true", help="show every decision")
    parser.add_argument("--friction", type=float, default=friction(), help="default: %(default).2f, measured")
    args = parser.parse_args()
    options = Options(
        targets=2, alternatives=2, rounds=2, warm_up=False, outer_iterations=1, combinations=2,
        local=Rule(confidence=0.9, most_pairs=1), validation=Rule(confidence=0.9, most_pairs=1),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        graph = record(args.scope, Path(scratch))
    for cuda_graph in (True, False):
        log = DecisionLog(None, listen=print if args.log else None)
        model = DeviceModel(durations(graph, cuda_graph=cuda_graph), friction=args.friction)
        found = replay(graph, model, options, log)
        print(f"{'CUDA graphs' if cuda_graph else 'eager'}: native {found['native_s']:.2f} s")
        print("  speed-up after each round: " + ", ".join(f"{g:.3f}" for g in found["rounds"]))
        print("  " + "; ".join(found["steps"]))
        for name, (most, binding) in found["bounds"].items():
            print(f"  at most {most:.3f} ({name}): {binding}")
        print(f"  complete iterations of the search: {found['measured_s']:.0f} s")


if __name__ == "__main__":
    main()
