#!/usr/bin/env python3
"""Let a ball fall for one step by mujoco-warp, on a GPU or else the processor, and compare it with MuJoCo.

Run with the Python that is to run the simulator `mujoco_warp`. Exit code 1 and one line that says what is
missing, or wrong, if it does not work. ``--versions`` looks at the versions of the packages alone.
"""

from __future__ import annotations

import sys
import time
from contextlib import redirect_stdout
from importlib.metadata import PackageNotFoundError, version
from io import StringIO
from pathlib import Path
from typing import Any

LIST = Path(__file__).resolve().parent / "warp-requirements.txt"
BALL = '<mujoco><worldbody><body><freejoint/><geom size=".1"/></body></worldbody></mujoco>'
#: Positions are of the size of 1e-4 m; physics on the device is float32.
TOLERANCE = 1e-7


def wrong(lines: list[str]) -> list[str]:
    """Return the packages that are missing, or of another version than these lines of a requirements file."""
    found = []
    for line in lines:
        name, pinned, wanted = line.partition("==")
        if not pinned:
            continue
        try:
            there = version(name)
        except PackageNotFoundError:
            found.append(f"{name} is missing, {wanted} is needed")
            continue
        if there != wanted:
            found.append(f"{name} is {there}, {wanted} is needed")
    return found


def fallen() -> tuple[str, float, float]:
    """Return the device, and how far the ball fell on it and by MuJoCo itself, in metres."""
    import mujoco
    import mujoco_warp
    import warp

    warp.config.quiet = True
    model = mujoco.MjModel.from_xml_string(BALL)
    data = mujoco.MjData(model)
    device = warp.get_device("cuda:0" if warp.is_cuda_available() else "cpu")
    with warp.ScopedDevice(device):
        there: Any = mujoco_warp.put_model(model), mujoco_warp.put_data(model, data, nworld=1)
        mujoco_warp.step(*there)
        ours = float(there[1].qpos.numpy()[0, 2])
    mujoco.mj_step(model, data)
    return str(device), ours, float(data.qpos[2])


def main() -> int:
    """Check; 0 if all is well."""
    lines = [line.strip() for line in LIST.read_text(encoding="utf-8").splitlines()]
    pinned = [line for line in lines if line and not line.startswith("#")]
    if found := wrong(pinned):
        print("; ".join(found))
        return 1
    if "--versions" in sys.argv[1:]:
        return 0
    began = time.perf_counter()
    try:
        with redirect_stdout(StringIO()):  # each module that is loaded says so
            device, ours, theirs = fallen()
    except Exception as error:
        print(f"a step fails: {type(error).__name__}: {' '.join(str(error).split())}")
        return 1
    if not abs(ours - theirs) < TOLERANCE or not theirs < 0:
        print(f"a step on {device} moves a ball by {ours:.3g} m, MuJoCo by {theirs:.3g} m")
        return 1
    names = ", ".join(line.replace("==", " ") for line in pinned if "==" in line)
    print(f"mujoco-warp works: {names}; a first step on {device} took {time.perf_counter() - began:.1f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
