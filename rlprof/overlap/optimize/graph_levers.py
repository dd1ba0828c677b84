"""Levers of a selected graph: parts of its splits, copies that take turns, whose stream goes first."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.errors import IllegalTransformationError, OverlapError
from rlprof.overlap.legality import check
from rlprof.overlap.optimize.levers import Value
from rlprof.overlap.optimize.steps import Step, derive
from rlprof.overlap.optimize.workload import Measurement, Workload
from rlprof.unavailable import Unavailable

#: Numbers of parts that are tried beside that of the selected graph.
PARTS = (2, 3, 4)
#: Priority of a CUDA stream that goes first; others have 0.
HIGH = -1


@dataclass
class Selected:
    """The graph that runs, while its levers are tried.

    Parameters
    ----------
    workload : Workload
        What it runs in.
    graph : CallGraph
        The graph.
    steps : tuple of Step
        From the native one to it.
    refuse : callable
        Says why a graph cannot be run here; None if it can.
    streams : dict of str to int
        Priorities of CUDA streams by component.
    """

    workload: Workload
    graph: CallGraph
    steps: tuple[Step, ...]
    refuse: Callable[[CallGraph], str | None] = lambda _: None
    streams: dict[str, int] = field(default_factory=dict)

    def iterate(self) -> tuple[str, Measurement]:
        """Train one iteration by the graph, as it is set."""
        told = "".join(f", {name} first" for name in self.streams)
        return f"{self.graph.hash}{told}", self.workload.iteration(self.graph)


def regrouped(steps: Sequence[Step], parts: int) -> tuple[Step, ...]:
    """Return steps that split into another number of parts; splits at chosen places stay as they are."""
    found = []
    for one in steps:
        options = dict(one.options)
        if "groups" in options and "cuts" not in options:
            options["groups"] = parts
        found.append(replace(one, options=tuple(options.items())))
    return tuple(found)


def taking_turns(steps: Sequence[Step], component: str | None) -> tuple[Step, ...]:
    """Return steps after which the spare copies of a component take turns; None: all work side by side."""
    found = []
    for one in steps:
        options = dict(one.options)
        if one.kind == "interleave":
            options.pop("in_turn", None)
            options |= {} if component is None else {"in_turn": (component,)}
        found.append(replace(one, options=tuple(options.items())))
    return tuple(found)


class _Remade(ABC):
    """A lever for which the selected graph is made again by other steps; see `Groups`."""

    def __init__(
        self, selected: Selected, wanted: Sequence[Value] | Unavailable | None, present: Value
    ) -> None:
        self._selected, self._wanted, self._present = selected, wanted, present
        self._made: dict[Value, tuple[CallGraph, tuple[Step, ...]]] = {}

    @property
    def present(self) -> Value:
        """The value that is kept so far."""
        return self._present

    def use(self, value: Value) -> None:
        """Run the graph of a value.

        Raises
        ------
        OverlapError
            If it is not legal, cannot be run here, or is the one that runs already.
        """
        selected = self._selected
        if selected.steps not in [steps for _, steps in self._made.values()]:
            # at first, and after another lever has changed it
            self._made = {self._present: (selected.graph, selected.steps)}
        if value not in self._made:
            self._made[value] = self._derived(self._changed(selected.steps, value))
        selected.graph, selected.steps = self._made[value]

    @abstractmethod
    def _changed(self, steps: tuple[Step, ...], value: Value) -> tuple[Step, ...]:
        """Steps of a value."""

    def _derived(self, steps: tuple[Step, ...]) -> tuple[CallGraph, tuple[Step, ...]]:
        selected = self._selected
        native = selected.workload.native
        graph = derive(native, steps)
        if graph.hash == self._made[self._present][0].hash:
            raise OverlapError("it is the same graph")
        if refusals := check(native, graph):
            first = refusals[0]
            raise IllegalTransformationError(first.reason, rule=first.rule, calls=first.calls)
        if (why := selected.refuse(graph) or selected.workload.check(graph)) is not None:
            raise OverlapError(why)
        return graph, steps

    def refused(self) -> str | None:
        """It is one graph or another."""
        return None

    def keep(self, value: Value) -> None:
        """Make a value the present one."""
        self._present = value


class Groups(_Remade):
    """Number of parts of all splits; see `rlprof.overlap.optimize.levers.Lever`.

    Parameters
    ----------
    selected : Selected
        The graph.
    wanted : tuple of int, Unavailable or None
        Numbers to try, or why none is; None: `PARTS`.
    """

    name = "groups"

    def __init__(self, selected: Selected, wanted: Sequence[Value] | Unavailable | None = None) -> None:
        parts = [dict(s.options).get("groups") for s in selected.steps]
        super().__init__(selected, wanted, next((n for n in parts if isinstance(n, int)), None))

    def others(self) -> Sequence[Value] | Unavailable:
        """Say other numbers."""
        if isinstance(self._wanted, Unavailable):
            return self._wanted
        if self._present is None:
            return Unavailable("the selected graph splits nothing")
        return tuple(n for n in self._wanted or PARTS if n != self._present)

    def _changed(self, steps: tuple[Step, ...], value: Value) -> tuple[Step, ...]:
        return regrouped(steps, int(value or 0))


class InTurn(_Remade):
    """The component whose spare copies take turns, in place of working side by side; see `Groups`.

    Parameters
    ----------
    selected : Selected
        The graph.
    wanted : tuple of str, Unavailable or None
        Components to try, or why none is; None: each whose copies are workers of their own in the graph.
    """

    name = "in-turn"

    def __init__(self, selected: Selected, wanted: Sequence[Value] | Unavailable | None = None) -> None:
        named = [dict(s.options).get("in_turn") for s in selected.steps]
        super().__init__(selected, wanted, next((n[0] for n in named if isinstance(n, tuple) and n), None))

    def others(self) -> Sequence[Value] | Unavailable:
        """Say the other components, and none."""
        if isinstance(self._wanted, Unavailable):
            return self._wanted
        graph = self._selected.graph
        copied = {a.cell.state for call in graph.calls for a in call.accesses if a.copy}
        found = {s.component for s in graph.states.values() if s.separate and s.name in copied}
        if not found:
            return Unavailable("no spare copies work side by side in the selected graph")
        return tuple(c for c in (*(self._wanted or sorted(found)), None) if c != self._present)

    def _changed(self, steps: tuple[Step, ...], value: Value) -> tuple[Step, ...]:
        return taking_turns(steps, None if value is None else str(value))


class Prioritised(Protocol):
    """A workload whose streams have priorities."""

    def set_stream_priorities(self, priorities: Mapping[str, int]) -> None:
        """Priorities by component of what runs from now on."""
        ...


class Priorities:
    """Whose CUDA stream goes first; see `Groups`. A value is a component, or None.

    Parameters
    ----------
    selected : Selected
        The graph.
    workload : Prioritised
        What runs it.
    components : tuple of str or Unavailable
        Components whose CUDA work is launched from this process; why it makes no difference.
    changed : callable, optional
        Told that priorities have changed: what was captured from a stream has its old one.
    """

    name = "priorities"

    def __init__(
        self,
        selected: Selected,
        workload: Prioritised,
        components: Sequence[str] | Unavailable,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._selected, self._workload = selected, workload
        self._components, self._changed = components, changed
        self._present: Value = next(iter(selected.streams), None)

    @property
    def present(self) -> Value:
        """The component that goes first."""
        return self._present

    def others(self) -> Sequence[Value] | Unavailable:
        """Say the components."""
        if isinstance(self._components, Unavailable):
            return self._components
        if len(self._selected.graph.streams) < 2:
            return Unavailable("nothing overlaps in the selected graph")
        return tuple(c for c in self._components if c != self._present)

    def use(self, value: Value) -> None:
        """Let a component's streams go first, or nobody's."""
        priorities = {} if value is None else {str(value): HIGH}
        if priorities != self._selected.streams:
            self._selected.streams = priorities
            self._workload.set_stream_priorities(priorities)
            self._changed()

    def refused(self) -> str | None:
        """Streams take what they are given."""
        return None

    def keep(self, value: Value) -> None:
        """Make a component the present one."""
        self._present = value
