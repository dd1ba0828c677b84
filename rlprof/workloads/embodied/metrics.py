"""What is measured in an iteration, and the file of it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlprof.errors import OutputError
from rlprof.workloads.embodied.contracts import Trajectory

NAME = "metrics.jsonl"


def of_trajectories(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Mean sum of rewards, and fraction of environments in which the task was done, per rollout epoch.

    Parameters
    ----------
    trajectories : sequence of Trajectory
        Of one iteration.
    """
    returns = [np.sum([r.sum(axis=1) for r in t.rewards], axis=0) for t in trajectories]
    done = [np.any(t.success, axis=0) for t in trajectories]
    return {"return_mean": float(np.mean(returns)), "success_frac": float(np.mean(done))}


def of_training(logs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean over the optimiser steps of an iteration."""
    return {name: float(np.mean([log[name] for log in logs])) for name in logs[0]} if logs else {}


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Add a line to the file of metrics; numbers that are not finite become null.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(clean) + "\n")
    except OSError as error:
        raise OutputError(f"metrics cannot be written ({error.strerror})", where=path) from error


def cut(path: Path, iterations: int) -> None:
    """Keep the lines of the first iterations: those after the checkpoint are run again."""
    if not path.exists():
        return
    kept = [r for r in read(path) if r["iteration"] < iterations]
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    beside.replace(path)


def read(path: Path) -> list[dict[str, Any]]:
    """Lines of a file of metrics; one that was broken off by a kill is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows
