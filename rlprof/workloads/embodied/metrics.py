"""What is measured in an iteration, and the file of it."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlprof.errors import OutputError
from rlprof.unavailable import Unavailable
from rlprof.workloads.embodied.activity import WRITES_S, Activity, Span
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


def of_activity(means: Mapping[str, float] | Unavailable, source: str) -> dict[str, Any]:
    """Activity of an iteration and of its phases, and where it is from (or why there is none).

    Parameters
    ----------
    means : mapping of str to float, or Unavailable
        Of spans by name; ``"iteration"`` is the whole.
    source : str
        The sampler's back end.
    """
    if isinstance(means, Unavailable):
        return {"activity_frac": None, "phases_activity_frac": {}, "activity_source": str(means)}
    phases = {name: mean for name, mean in means.items() if name != "iteration"}
    return {
        "activity_frac": means.get("iteration"),
        "phases_activity_frac": phases,
        "activity_source": source,
    }


class Rows:
    """Rows of the file of metrics, each written once samples of activity reach its end.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    activity : Activity
        Of the run.
    """

    def __init__(self, path: Path, activity: Activity) -> None:
        self._path, self._activity = path, activity
        self._waiting: list[tuple[dict[str, Any], dict[str, Span]]] = []
        self.written: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any], spans: dict[str, Span]) -> None:
        """Take a row and the spans of its iteration; write those that can be."""
        self._waiting.append((row, spans))
        self.flush(wait=False)

    def flush(self, *, wait: bool = True) -> None:
        """Write the rows that wait; with `wait` all of them, with what is known by then."""
        until = time.monotonic() + (WRITES_S if wait else 0.0)
        while self._waiting:
            row, spans = self._waiting[0]
            means = self._activity.means(spans, wait_s=until - time.monotonic())
            if means is None:
                if not wait:
                    return
                means = Unavailable("the sampler is behind, or has ended")
            self._waiting.pop(0)
            self.written.append({**row, **of_activity(means, self._activity.source)})
            append(self._path, self.written[-1])


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
