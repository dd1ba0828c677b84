"""Levers of embodied training that count where something overlaps: they are tried on the selected graph."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlprof.cores import usable_cores
from rlprof.overlap.optimize.levers import Lever, Value
from rlprof.unavailable import Unavailable
from rlprof.workloads.embodied.levers import Exchanged, Rendering, Wanted
from rlprof.workloads.embodied.nodes import ENV, HOST
from rlprof.workloads.embodied.sharing import no_client_priority

if TYPE_CHECKING:
    from rlprof.overlap.callgraph import CallGraph
    from rlprof.workloads.embodied.optimize import Embodied
    from rlprof.workloads.embodied.simulators.core_turns import CoreTurns

#: A nice value to try: a thread of value 0 has nine times the weight then.
NICE = 10


def overlap_levers(here: Embodied, graph: CallGraph, wanted: Wanted) -> list[Lever]:
    """Levers of what runs beside the simulator in a graph, in the order in which they are tried.

    Who asks for `rendering` asks for both: before the graph, and on it.
    """
    if Rendering.name in wanted:
        wanted = {OverlapRendering.name: wanted[Rendering.name], **wanted}
    levers: list[Lever] = []
    for lever in (OverlapRendering, ClientPriority, Nice, CoreLimit):
        if lever.name in wanted:
            values = wanted[lever.name]
            if len(graph.streams) < 2 and not isinstance(values, Unavailable):
                values = Unavailable("nothing overlaps in the selected graph")
            levers.append(lever(here, values))
    return levers


def stream_components(here: Embodied, graph: CallGraph) -> tuple[str, ...] | Unavailable:
    """Components whose CUDA work is launched from this process and may be waited for by another's here.

    Priorities hold within a process: a simulator in processes of its own is in none of its streams.
    """
    config = here.config
    if not config.device.startswith("cuda"):
        return Unavailable(f"{config.device} has no streams")
    # the host's copies wait for no SM
    components = {spec.component for spec in graph.nodes.values() if spec.component} - {HOST}
    if here.simulator.process_ids:
        components.discard(ENV)
    if not _at_once(graph, components):
        return Unavailable(
            "no two components that compute in this process overlap in the selected graph;"
            " streams of other processes have priorities of their own"
        )
    return tuple(sorted(components))


def _at_once(graph: CallGraph, components: Collection[str]) -> bool:
    """Whether some stream of the graph has calls of one component alone, and another one of another."""
    streams = [
        {graph.nodes[graph.by_id[call].node].component for call in stream} & set(components)
        for stream in graph.streams
    ]
    return len(set().union(*streams)) > 1 and sum(bool(s) for s in streams) > 1


class OverlapRendering(Rendering):
    """Where images are drawn, beside a policy that computes; see `Rendering`.

    Natively everything waits for a chunk, and the shortest one is best. Where simulation hides behind
    answers, drawing is best where it takes least of the GPU from them, however long the chunk is then.
    """

    name = "overlap-rendering"
    beside = True

    def settings(self) -> tuple[tuple[str, Any], ...]:
        """All values of the configuration that say how images are drawn: key of such a simulator."""
        return tuple(
            (name, getattr(self._here.config, name)) for name in ("rendering", "painters", "shadows")
        )


class ClientPriority(Exchanged):
    """Whether the simulator yields to other clients of MPS; see `rlprof.overlap.optimize.levers.Lever`.

    Priorities of streams hold within a process, this one between processes. It can only be lower than normal,
    so that the other way round is a matter of how the driver was started.
    """

    name = "client-priority"
    beside = True

    @property
    def present(self) -> Value:
        """Whether it does."""
        return self._here.config.simulator_low_priority

    def others(self) -> Sequence[Value] | Unavailable:
        """Say the other one of yes and no."""
        if isinstance(self._wanted, Unavailable):
            return self._wanted
        why = no_client_priority(self._here.config)
        return (not self.present,) if why is None else Unavailable(why)

    def changes(self, value: Value) -> dict[str, Any]:
        """Values of the configuration."""
        return {"simulator_low_priority": bool(value)}


class Nice(Exchanged):
    """Nice value of the simulator's processes; see `rlprof.overlap.optimize.levers.Lever`.

    What launches kernels and waits for them needs a core at once: beside as many busy simulators as there are
    cores it waits for one, unless they are nicer.
    """

    name = "nice"
    beside = True

    @property
    def present(self) -> Value:
        """How much nicer they are."""
        return self._here.config.simulator_nice

    def others(self) -> Sequence[Value] | Unavailable:
        """Say other values."""
        if isinstance(self._wanted, Unavailable):
            return self._wanted
        if not self._here.config.own_processes:
            return Unavailable("the simulator is in this process")
        if os.getpriority(os.PRIO_PROCESS, 0) >= 19:
            return Unavailable("this process has the nice value 19 already, and nothing is nicer")
        return tuple(n for n in self._wanted or (NICE, 0) if n != self.present)

    def changes(self, value: Value) -> dict[str, Any]:
        """Values of the configuration."""
        return {"simulator_nice": value}


class CoreLimit:
    """How many processes of all simulators do physics at a time; see `rlprof.overlap.optimize.levers.Lever`.

    Beside each other two simulators of a process for each core both take longer and are ready at about the
    same time. In turns the first one is ready earlier, and what it saw is answered while the other one
    computes. All processes go on: nothing is exchanged.

    Parameters
    ----------
    here : Embodied
        What is optimised.
    wanted : tuple of value, Unavailable or None
        As of `Wanted`.
    """

    name = "core-turns"

    def __init__(self, here: Embodied, wanted: Sequence[Value] | Unavailable | None = None) -> None:
        self._here, self._wanted = here, wanted
        self._turns: CoreTurns | None = here.trainer.env.cores

    @property
    def present(self) -> Value:
        """How many; 0: all."""
        return self._here.config.simulator_cores

    def others(self) -> Sequence[Value] | Unavailable:
        """Say other numbers: that of the cores, and no limit."""
        if isinstance(self._wanted, Unavailable):
            return self._wanted
        if self._turns is None:
            return Unavailable("no processes of the simulator do physics on the cores")
        config, cores = self._here.config, usable_cores()
        processes = min(max(config.workers, 1), config.envs) * (1 + len(self._here.simulator.beside))
        if not self._wanted and processes <= cores:
            return Unavailable(f"the {processes} processes of all simulators have a core each, of {cores}")
        return tuple(n for n in self._wanted or (cores, 0) if n != self.present)

    def use(self, value: Value) -> None:
        """Let so many do physics at a time from the next chunk on."""
        assert self._turns is not None
        self._turns.places = int(value or 0)

    def refused(self) -> str | None:
        """Processes that are there take turns."""
        return None

    def keep(self, value: Value) -> None:
        """Let it be so."""
        self.use(value)
        self._here.config = replace(self._here.config, simulator_cores=int(value or 0))
