"""Small runs on this processor by the scripts of the GPU machine, for the preset `smoke`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlprof.reproduce.errors import ReproduceError

#: What `benchmarks.gpu.embodied` runs: what the GPU runs, small.
MEASURED = (
    *("--preset", "exact", "--simulator", "mujoco_arm", "--device", "cpu", "--workers", "1"),
    *("--rounds", "1", "--times", "3", "--seconds", "60"),
    *("--schedules", "colocated,colocated-pipe"),
    *("--set", "envs=4", "chunks=2", "episode_steps=10", "denoise_steps=2", "global_batch=8"),
    *("micro_batch=4", "update_epochs=1"),
)
#: What `benchmarks.gpu.optimize` runs: the native order and, in place of a search, the graph by hand.
OPTIMISED = (
    *("--preset", "tiny", "--simulator", "mujoco_arm", "--device", "cpu", "--workers", "1"),
    *("--parts", "variants", "--variants", "native,by hand"),
    *("--counted", "1", "--counted-others", "1", "--seconds", "40"),
    *("--set", "envs=16", "update_epochs=1", "global_batch=64", "micro_batch=64"),
)
RESULT = "{}_mujoco_arm.json"
LIMIT_S = 180


def settings(parts: str) -> list[str]:
    """Return the arguments of `measured_here`."""
    return [*MEASURED, parts]


def measured_here(checkout: Path, parts: str) -> dict[str, Any]:
    """Measure parts ("solo") or schedules ("schedules") of a small program; `ReproduceError` as `script`."""
    return script(checkout, "embodied", ["run"], [*MEASURED, "--parts", parts])


def optimised_here(checkout: Path) -> dict[str, Any]:
    """Run iterations of a small program, natively and by a graph; `ReproduceError` as `script`."""
    return script(checkout, "optimize", [], OPTIMISED)


def script(checkout: Path, name: str, first: Sequence[str], arguments: Sequence[str]) -> dict[str, Any]:
    """Run a script of the GPU machine on this processor and return its document.

    Parameters
    ----------
    checkout : pathlib.Path
        Holds the script.
    name : str
        Of the module in `benchmarks.gpu`, and of its result.
    first, arguments : sequence of str
        What it is given before the folder of results, and after it.

    Raises
    ------
    ReproduceError
        If it fails or takes too long.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", f"benchmarks.gpu.{name}", *first, "--out", folder, *arguments]
        try:
            done = subprocess.run(
                command, cwd=checkout, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise ReproduceError(
                f"measuring took longer than {LIMIT_S} s",
                hint="try again on a machine that is less busy",
            ) from error
        path = Path(folder) / RESULT.format(name)
        if not path.is_file():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise ReproduceError(
                f"measuring failed: {last}", hint="pip install 'rlprof[workloads]', and see the message"
            )
        return dict(json.loads(path.read_text(encoding="utf-8")))
