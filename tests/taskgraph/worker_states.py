"""States of worker processes, importable there."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlprof.taskgraph import Call, Pending, Task


class Counter:
    """Counts, makes arrays, and misbehaves on request."""

    def __init__(self, start: int = 0) -> None:
        self.count = start
        self.kept: Any = None
        self.weights = np.zeros(50_000)

    def call(self, task: Task, inputs: Mapping[str, Any]) -> str:
        return task.id

    def add(self, task: Task, inputs: Mapping[str, Any]) -> int:
        self.count += 1
        self.weights += 1
        return self.count

    def look(self, task: Task, inputs: Mapping[str, Any]) -> tuple[int, float, int]:
        return self.count, float(self.weights.sum()), os.getpid()

    def large(self, task: Task, inputs: Mapping[str, Any]) -> dict[str, Any]:
        self.count += 1
        return {"array": np.full(100_000, float(self.count)), "count": self.count}

    def total(self, task: Task, inputs: Mapping[str, Any]) -> float:
        total = sum(float(value["array"].sum()) for value in inputs.values())
        for value in inputs.values():
            value["array"][:] = -1  # seen by nobody else
        return total

    def keep(self, task: Task, inputs: Mapping[str, Any]) -> None:
        (self.kept,) = inputs.values()

    def kept_sum(self, task: Task, inputs: Mapping[str, Any]) -> float:
        return float(self.kept["array"].sum())

    def device(self, task: Task, inputs: Mapping[str, Any]) -> Pending:
        return Pending("result", lambda: time.sleep(0.05))

    def meet(self, task: Task, inputs: Mapping[str, Any]) -> Pending:
        """Like `device`, once two tasks have begun; they tell by files in a folder."""
        self._come(task)
        return Pending("result", lambda: (self._await_other(task), time.sleep(0.05)))

    def meet_and_die(self, task: Task, inputs: Mapping[str, Any]) -> None:
        self._come(task)
        self._await_other(task)
        os._exit(7)

    def _come(self, task: Task) -> None:
        (Path(_named(task, "folder")) / task.id).touch()

    def _await_other(self, task: Task) -> None:
        until = time.monotonic() + 60
        while len(list(Path(_named(task, "folder")).iterdir())) < 2:
            if time.monotonic() > until:
                raise TimeoutError("the other one did not begin")
            time.sleep(0.005)

    def fail(self, task: Task, inputs: Mapping[str, Any]) -> None:
        self.count += 1
        raise ValueError("boom")

    def fail_oddly(self, task: Task, inputs: Mapping[str, Any]) -> None:
        raise Odd("odd", 3)

    def quit(self, task: Task, inputs: Mapping[str, Any]) -> None:
        sys.exit(3)

    def unpicklable(self, task: Task, inputs: Mapping[str, Any]) -> Any:
        return threading.Lock()

    def only_there(self, task: Task, inputs: Mapping[str, Any]) -> Any:
        return OnlyThere()

    def die(self, task: Task, inputs: Mapping[str, Any]) -> None:
        self.count += 100
        os._exit(7)

    def hang(self, task: Task, inputs: Mapping[str, Any]) -> None:
        self.count += 100
        if task.provenance:
            self._tell(task, [os.getpid()])
        time.sleep(60)

    def hang_with_programs(self, task: Task, inputs: Mapping[str, Any]) -> None:
        """Start a program, and one in a session of its own."""
        sleep = ["sleep", "60"]
        children = [subprocess.Popen(sleep), subprocess.Popen(sleep, start_new_session=True)]
        self._tell(task, [os.getpid(), *(child.pid for child in children)])

    def hang_with_children(self, task: Task, inputs: Mapping[str, Any]) -> None:
        """Fork a child as well, in a session of its own and with our sockets."""
        forked = os.fork()
        if not forked:
            os.setsid()
            time.sleep(60)
            os._exit(0)
        sleep = ["sleep", "60"]
        children = [subprocess.Popen(sleep), subprocess.Popen(sleep, start_new_session=True)]
        self._tell(task, [os.getpid(), forked, *(child.pid for child in children)])

    def _tell(self, task: Task, processes: list[int]) -> None:
        path = _named(task, "path")
        Path(f"{path}.new").write_text(" ".join(map(str, processes)))
        Path(f"{path}.new").rename(path)
        time.sleep(60)

    def snapshot(self) -> dict[str, Any]:
        return {"count": self.count, "weights": self.weights}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self.count = snapshot["count"]
        self.weights[:] = snapshot["weights"]

    def _private(self, task: Task, inputs: Mapping[str, Any]) -> None:
        """Cannot be named by a payload."""


def _named(task: Task, key: str) -> str:
    return str(dict(task.provenance)[key])


class Odd(Exception):
    """An exception that cannot be made from its arguments."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(f"{what} {number}")


class OnlyThere:
    """Can be made in the process that made it alone."""

    def __reduce__(self) -> Any:
        return _only_there, (os.getpid(),)


def _only_there(process: int) -> OnlyThere:
    if os.getpid() != process:
        raise ImportError("no such class here")
    return OnlyThere()


def no_restore() -> Mapping[str, Call]:
    """A worker whose state cannot be saved."""
    return {"call": lambda task, inputs: task.id}


def restorable_mapping() -> Mapping[str, Any]:
    """A worker that is a mapping of calls, one of state as well."""
    state = {"count": 0}

    def add(task: Task, inputs: Mapping[str, Any]) -> int:
        state["count"] += 1
        return state["count"]

    return {"add": add, "snapshot": lambda: dict(state), "restore": state.update}


def missing_checkpoint() -> object:
    """A factory that fails with an error of the operating system."""
    return Path("/nowhere/checkpoint.pt").read_bytes()


def dies_early() -> object:
    """A factory whose process ends."""
    os._exit(9)


def too_slow() -> object:
    """A factory that takes longer than anybody waits."""
    time.sleep(60)
    return object()
