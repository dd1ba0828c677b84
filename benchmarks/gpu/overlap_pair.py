"""Two simulators of a kind for the overlap probe, and the names of kinds."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Variant:
    """What a name says.

    Parameters
    ----------
    name : str
        The name.
    kind : str
        The name without the nice value: processes that are started alike.
    nice : int
        How much nicer the processes are.
    changes : dict of str to value
        Of the configuration.
    """

    name: str
    kind: str
    nice: int
    changes: dict[str, Any]


def variant_of(name: str, simulator: str) -> Variant:
    """Read the name of a variant.

    Raises
    ------
    ValueError
        If it says nothing that is known.
    """
    drawn, *options = name.split("+")
    changes: dict[str, Any] = {"cameras": 0} if drawn == "none" else {}
    nice = 0
    if drawn != "none" and simulator == "libero":
        changes |= {"rendering": drawn, "shadows": "plain" not in options}
    elif drawn not in ("none", "here"):
        raise ValueError(f"{name}: {simulator} draws where it does; use none or here")
    for option in options:
        number = option.lstrip("nicew")
        if option.startswith("nice") and number.isdigit():
            nice = int(number)
        elif option.startswith("w") and number.isdigit():
            changes["workers"] = int(number)
        elif option != "plain":
            raise ValueError(f"{name}: no option is called {option}")
    kind = "+".join([drawn, *(o for o in options if not o.startswith("nice"))])
    return Variant(name, kind, nice, changes)


def make_nicer(processes: Sequence[int], by: int) -> None:
    """Lower the priority of processes that run, as `--simulator-nice` does when they start."""
    for process in processes:
        for task in Path(f"/proc/{process}/task").iterdir():
            with suppress(ProcessLookupError):  # a thread that has just ended
                number = int(task.name)
                os.setpriority(os.PRIO_PROCESS, number, os.getpriority(os.PRIO_PROCESS, number) + by)


class Pair:
    """Two simulators of a kind."""

    def __init__(self, config: Any, variant: Variant) -> None:
        from rlprof.workloads.embodied.build import make_simulator

        # episodes that do not end while they are measured
        changed = replace(
            config, **variant.changes, simulator_nice=variant.nice, episode_steps=400 * config.chunk_steps
        )
        self.kind, self.nice = variant.kind, variant.nice
        self.simulators: list[Any] = []
        with ThreadPoolExecutor(3) as pool:
            made = [pool.submit(make_simulator, changed) for _ in range(2)]
            pool.submit(_import_policies)
        failed = [error for m in made if (error := m.exception()) is not None]
        self.simulators = [m.result() for m in made if m.exception() is None]
        if failed:
            self.close()
            raise failed[0]
        self.spec = self.simulators[0].spec
        self.process_ids = tuple(p for s in self.simulators for p in getattr(s, "process_ids", ()))

    def close(self) -> None:
        """End the processes of both."""
        with ThreadPoolExecutor(2) as pool:
            ended: list[Future[None]] = [pool.submit(s.close) for s in self.simulators]
        for one in ended:
            one.result()


def _import_policies() -> None:
    """While simulators start: it takes seconds."""
    with suppress(Exception):
        importlib.import_module("rlprof.workloads.embodied.policies.flow")
        importlib.import_module("transformers.models.pi0.modeling_pi0")
