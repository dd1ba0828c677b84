"""How long the simulator mujoco_warp takes: start, physics and rendering, over worlds, substeps and objects.

Run it with the Python that has mujoco-warp: ``$RLPROF_WARP_PYTHON -m benchmarks.gpu.warp_probe --out OUT``.
The first case is a small one that also compares physics with MuJoCo's own engine. After each case
OUT/warp_probe.json is written whole; a case that fails is noted and the next one begins; none begins when the
time is up.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.common import machine, save
from rlprof.workloads.embodied.contracts import GlobalStep
from rlprof.workloads.embodied.simulators import arm_model
from rlprof.workloads.embodied.simulators.mujoco_warp import MujocoWarp
from rlprof.workloads.embodied.simulators.mujoco_warp_model import make_model

CHUNK = 5
#: Worlds, substeps, objects, pixels; what matters most comes first.
CASES = (
    (80, 20, 4, 224),
    (80, 100, 4, 224),
    (80, 100, 8, 224),
    (16, 100, 8, 224),
    (256, 100, 8, 224),
    (80, 100, 16, 224),
    (40, 100, 8, 224),
    (16, 20, 4, 224),
    (256, 20, 4, 224),
    (80, 20, 4, 128),
    (80, 250, 8, 224),
)
#: For a machine without a GPU: that it runs, not how fast.
SMALL_CASES = ((4, 5, 4, 32), (2, 10, 4, 32))


def disagreement(substeps: int, objects: int, device: str) -> dict[str, float]:
    """Largest difference from MuJoCo's C engine after a chunk of random actions, in radians and metres."""
    import mujoco

    simulator = MujocoWarp(2, substeps=substeps, objects=objects, device=device, cameras=2, image=32)
    simulator.reset(GlobalStep(0), 0)
    before = simulator.state_dict()["state"]
    actions = np.random.default_rng(0).uniform(-1, 1, (2, CHUNK, 4)).astype(np.float32)
    simulator.step(actions)
    after = simulator.state_dict()["state"]
    model = make_model(mujoco, substeps=substeps, objects=objects)
    data, nq = mujoco.MjData(model), model.nq
    low, high = np.array(arm_model.WORKSPACE_M).T
    found = {"arm_rad": 0.0, "cube_m": 0.0, "objects": 0.0}
    for row in range(2):
        mujoco.mj_resetData(model, data)
        data.qpos[:], target = before[row, :nq], np.array(arm_model.HOME_M)
        for action in actions[row]:
            target = np.clip(target + 0.03 * action[:3], low, high)
            data.ctrl[:4], data.ctrl[4] = arm_model.joint_targets(target), action[3] > 0
            mujoco.mj_step(model, data, substeps)
        apart = np.abs(after[row, :nq] - data.qpos)
        for name, part in (("arm_rad", apart[:4]), ("cube_m", apart[4:7]), ("objects", apart[11:])):
            found[name] = max(found[name], float(part.max(initial=0)))
    return found


def measured(
    worlds: int, substeps: int, objects: int, image: int, device: str, repeats: int
) -> dict[str, Any]:
    """Seconds of a case: start, and medians of physics, reward, reset and rendering of a chunk."""
    began = time.perf_counter()
    simulator = MujocoWarp(
        worlds, substeps=substeps, objects=objects, cameras=2, image=image, device=device, episode_steps=1000
    )
    start_s = time.perf_counter() - began
    draw = np.random.default_rng(0)
    began = time.perf_counter()
    simulator.reset(GlobalStep(0), 0)
    reset_s = time.perf_counter() - began
    times: dict[str, list[float]] = {"physics": [], "reward": [], "render": []}
    for repeat in range(repeats + 1):
        actions = draw.uniform(-1, 1, (worlds, CHUNK, 4)).astype(np.float32)
        for name, call in (
            ("physics", lambda a=actions: simulator.physics(a)),
            ("reward", simulator.reward),
            ("render", simulator.render),
        ):
            began = time.perf_counter()
            call()
            if repeat:  # the first is a warm-up
                times[name].append(time.perf_counter() - began)
    medians = {f"{name}_s": statistics.median(values) for name, values in times.items()}
    return {
        "start_s": start_s,
        "reset_s": reset_s,
        **medians,
        "chunk_s": sum(medians.values()),
        "all_s": {k: [round(x, 6) for x in v] for k, v in times.items()},
    }


def advice(cases: list[dict[str, Any]], target_s: float) -> list[dict[str, Any]]:
    """Substeps with which a chunk takes `target_s`, for each number of worlds and objects that was measured.

    A physics step costs what the case with most substeps says; rendering does not depend on them.
    """
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for case in cases:
        if "physics_s" not in case:
            continue
        key = case["worlds"], case["objects"]
        if key in found and found[key]["measured_substeps"] > case["substeps"]:
            continue
        step_s = case["physics_s"] / (CHUNK * case["substeps"])
        substeps = max(5, round((target_s - case["render_s"] - case["reward_s"]) / (CHUNK * step_s)))
        found[key] = {
            "worlds": case["worlds"],
            "objects": case["objects"],
            "image": case["image"],
            "measured_substeps": case["substeps"],
            "step_s": step_s,
            "target_s": target_s,
            "substeps": substeps,
        }
    return list(found.values())


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=110.0)
    parser.add_argument("--target-s", type=float, default=1.3, help="a chunk that substeps are found for")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    began = time.monotonic()
    document: dict[str, Any] = {"machine": machine() | _versions(), "chunk_steps": CHUNK, "cases": []}

    def note(**entry: Any) -> None:
        document["kernels_in_cache"] = _kernels()
        document["cases"].append(entry)
        document["advice"] = advice(document["cases"], given.target_s)
        document["seconds"] = round(time.monotonic() - began, 1)
        save(given.out / "warp_probe.json", document)

    document["kernels_at_start"] = _kernels()
    print(f"warp_probe: {document['kernels_at_start']} compiled kernel modules in the cache", flush=True)
    try:
        document["disagreement"] = disagreement(20, 4, given.device)
        note(what="first start and comparison", seconds=time.monotonic() - began)
        took = time.monotonic() - began
        print(f"warp_probe: start {took:.1f} s, off by {document['disagreement']}", flush=True)
    except Exception as error:
        traceback.print_exc()
        note(what="first start and comparison", error=f"{type(error).__name__}: {error}")
    print(
        "worlds substeps objects pixels  start   reset physics  reward  render   chunk  steps/s", flush=True
    )
    for case in SMALL_CASES if given.device == "cpu" else CASES:
        worlds, substeps, objects, image = case
        sizes = {"worlds": worlds, "substeps": substeps, "objects": objects, "image": image}
        if time.monotonic() - began > given.seconds:
            note(**sizes, left_out="no time")
            print(*case, "left out: no time", flush=True)
            continue
        try:
            found = measured(*case, given.device, given.repeats)
        except Exception as error:
            traceback.print_exc()
            note(**sizes, error=f"{type(error).__name__}: {error}")
            continue
        note(**sizes, **found)
        columns = ("start_s", "reset_s", "physics_s", "reward_s", "render_s", "chunk_s")
        shown = " ".join(f"{found[k]:7.3f}" for k in columns)
        rate = worlds * CHUNK / found["chunk_s"]
        print(f"{worlds:6} {substeps:8} {objects:7} {image:6} {shown} {rate:8,.0f}", flush=True)
    print(
        f"warp_probe: {time.monotonic() - began:.1f} s, {_kernels()} kernel modules in the cache", flush=True
    )


def _versions() -> dict[str, str]:
    import mujoco
    import mujoco_warp
    import warp

    return {
        "warp-lang": warp.__version__,
        "mujoco": mujoco.__version__,
        "mujoco-warp": mujoco_warp.__version__,
    }


def _kernels() -> int:
    cache = os.environ.get("WARP_CACHE_PATH")
    return sum(1 for _ in Path(cache).rglob("*.cubin")) if cache else -1


if __name__ == "__main__":
    main()
