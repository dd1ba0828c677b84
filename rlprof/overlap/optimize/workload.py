"""What the optimiser needs of a program: the only place where it meets the world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.optimize.comparison import Comparison
from rlprof.overlap.optimize.windows import Window


@dataclass(frozen=True)
class Measurement:
    """One complete iteration of training.

    Parameters
    ----------
    time_s : float
        From its start to its completion, device work included.
    sm_activity : float or None
        Mean over the iteration, 0..1; None: not measured.
    tasks : tuple of (str, str, str, float, float)
        Call, node, lane, start and end in seconds from the start of the iteration; empty: not recorded.
    facts : mapping of str to value
        State of the machine, such as clocks and temperature, and what the workload measures besides.
    over_time : mapping or None
        Course of the activity, as of `rlprof.overlap.optimize.over_time.kept`; None: not measured.
    """

    time_s: float
    sm_activity: float | None = None
    tasks: tuple[tuple[str, str, str, float, float], ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    over_time: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the measurement as a JSON document."""
        return {
            "time_s": self.time_s,
            "sm_activity": self.sm_activity,
            "tasks": [list(t) for t in self.tasks],
            "facts": dict(self.facts),
            "over_time": None if self.over_time is None else dict(self.over_time),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Measurement:
        """Make a measurement of its JSON document."""
        tasks = tuple((str(a), str(b), str(c), float(s), float(e)) for a, b, c, s, e in document["tasks"])
        activity, over_time = document["sm_activity"], document.get("over_time")  # of earlier versions: none
        return cls(
            float(document["time_s"]),
            None if activity is None else float(activity),
            tasks,
            dict(document["facts"]),
            None if over_time is None else dict(over_time),
        )


@dataclass(frozen=True)
class Profile:
    """A profiled iteration under one graph.

    Parameters
    ----------
    windows : tuple of Window
        All nodes that ran, by rank; those without a rank last.
    measurement : Measurement
        The iteration; its time is that of a profiled one.
    source : str
        Where the activity comes from.
    alone : tuple of (str, int, float)
        Node, samples and seconds of calls that ran with nothing beside them; for estimates.
    """

    windows: tuple[Window, ...]
    measurement: Measurement
    source: str
    alone: tuple[tuple[str, int, float], ...] = ()

    @property
    def active(self) -> bool:
        """The activity of some window is known; otherwise none has a rank."""
        return any(w.sm_activity is not None for w in self.windows)

    def to_dict(self) -> dict[str, Any]:
        """Return the profile as a JSON document."""
        return {
            "windows": [w.to_dict() for w in self.windows],
            "measurement": self.measurement.to_dict(),
            "source": self.source,
            "alone": [list(a) for a in self.alone],
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Profile:
        """Make a profile of its JSON document."""
        return cls(
            tuple(Window.from_dict(w) for w in document["windows"]),
            Measurement.from_dict(document["measurement"]),
            document["source"],
            tuple((str(n), int(b), float(s)) for n, b, s in document["alone"]),
        )


class Trial(Protocol):
    """One form of a comparison graph, ready to be run again and again on the same work."""

    def run(self) -> float:
        """Run once from the prepared state; seconds from start to completion. State is restored untimed."""
        ...


class Workload(Protocol):
    """A program that trains, as the optimiser sees it.

    Attributes
    ----------
    native : CallGraph
        Its native graph.
    key : str
        Program version and hardware: measurements of another key are not reused.
    activity_from : str
        What activity is asked of: profiles of another source are not reused.
    """

    native: CallGraph
    key: str
    activity_from: str

    def iteration(self, graph: CallGraph | None) -> Measurement:
        """Train one iteration natively (None) or by a graph; weights advance."""
        ...

    def profile(self, graph: CallGraph) -> Profile:
        """Train one iteration by a graph with everything recorded; weights advance."""
        ...

    def prepared(
        self, comparison: Comparison, graphs: Sequence[CallGraph]
    ) -> AbstractContextManager[Sequence[Trial]]:
        """Bring state to the start of a comparison; one trial for each graph, restricted to its calls.

        At the end of the block everything is as it was before: what trials did never reaches training.
        """
        ...

    def call_bytes(self) -> Mapping[str, float] | None:
        """Estimates for rule L7 as `rlprof.overlap.memory.peak_memory_bytes` takes them; None: not known."""
        ...

    def check(self, graph: CallGraph) -> str | None:
        """Say why a graph cannot be installed here; None if it can."""
        ...
