"""What can be wrong with the record of a run; each prints as one line."""

from __future__ import annotations

from dataclasses import dataclass

from rlprof.taskgraph.errors import storage_named, version_named
from rlprof.taskgraph.record import TaskRun
from rlprof.taskgraph.task import Edge
from rlprof.text import counted


@dataclass(frozen=True)
class WrongGraph:
    """The record is of another graph."""

    recorded_hash: str
    graph_hash: str

    def __str__(self) -> str:
        return f"the record is of graph {self.recorded_hash[:12]}, not of {self.graph_hash[:12]}"


@dataclass(frozen=True)
class NotRun:
    """A task of the graph is not in the record."""

    task: str

    def __str__(self) -> str:
        return f"task {self.task} did not run"


@dataclass(frozen=True)
class RunRepeatedly:
    """A task ran more than once."""

    task: str
    count: int

    def __str__(self) -> str:
        return f"task {self.task} ran {counted(self.count, 'time')}"


@dataclass(frozen=True)
class NotInGraph:
    """A task ran that the graph does not have."""

    task: str

    def __str__(self) -> str:
        return f"task {self.task} ran and is not in the graph"


@dataclass(frozen=True)
class Failed:
    """A task raised."""

    task: str
    worker: str

    def __str__(self) -> str:
        return f"task {self.task} failed on {self.worker}"


@dataclass(frozen=True)
class BadTimes:
    """A task returned before it started, or was complete before it returned."""

    run: TaskRun

    def __str__(self) -> str:
        r = self.run
        return (
            f"task {r.task} starts at {r.start_ns} ns, returns at {r.returned_ns} ns, ends at {r.end_ns} ns"
        )


@dataclass(frozen=True)
class EdgeBroken:
    """A task started before another that it waits for had completed.

    Parameters
    ----------
    edge : Edge
        Data, state, publication or order.
    early_ns : int
        By how much.
    """

    edge: Edge
    early_ns: int

    def __str__(self) -> str:
        e = self.edge
        item = f" ({e.item})" if e.item else ""
        return f"task {e.target} started {self.early_ns} ns before {e.source} ended; {e.kind} edge{item}"


@dataclass(frozen=True)
class OverCapacity:
    """More of a resource was held at once than there is.

    Parameters
    ----------
    resource : str
        Which.
    at_ns : int
        When the last of `tasks` started.
    tasks : tuple of str
        Who held it.
    held, capacity : int
        Units.
    """

    resource: str
    at_ns: int
    tasks: tuple[str, ...]
    held: int
    capacity: int

    def __str__(self) -> str:
        return (
            f"{self.held} of {self.capacity} units of {self.resource} were held at {self.at_ns} ns by"
            f" {', '.join(self.tasks)}"
        )


@dataclass(frozen=True)
class WrongWorker:
    """A task ran elsewhere than on the worker that the graph names."""

    task: str
    worker: str
    expected: str

    def __str__(self) -> str:
        return f"task {self.task} ran on {self.worker}, not on {self.expected}"


@dataclass(frozen=True)
class WrongVersionSeen:
    """A task started while a state cell held another version than the one that it needs.

    Parameters
    ----------
    task, cell : str
        Which task, and the cell.
    copy : int
        Storage copy.
    expected : str
        Version that the graph names; "" is the initial one.
    found : str or None
        What was there by the times of the run, or what was recorded as seen; None: nothing was recorded.
    """

    task: str
    cell: str
    copy: int
    expected: str
    found: str | None

    def __str__(self) -> str:
        found = "an unknown version" if self.found is None else version_named(self.found)
        expected = version_named(self.expected)
        return f"task {self.task} saw {found} of {storage_named(self.cell, self.copy)}, not {expected}"


@dataclass(frozen=True)
class WrongVersionMade:
    """A task did not leave the version behind that the graph says, or one that it does not say.

    Parameters
    ----------
    task, cell : str
        Which task, and the cell.
    copy : int
        Storage copy.
    expected, found : str or None
        Version by the graph and by the record; None: none.
    """

    task: str
    cell: str
    copy: int
    expected: str | None
    found: str | None

    def __str__(self) -> str:
        found, expected = (
            "no version" if v is None else version_named(v) for v in (self.found, self.expected)
        )
        return f"task {self.task} made {found} of {storage_named(self.cell, self.copy)}, not {expected}"


@dataclass(frozen=True)
class WrittenWhileUsed:
    """A task wrote a state cell while another read or wrote it.

    Parameters
    ----------
    cell : str
        Which.
    copy : int
        Storage copy.
    at_ns : int
        When the later of them started.
    tasks : tuple of str
        Who used it then, the one that started last at the end.
    """

    cell: str
    copy: int
    at_ns: int
    tasks: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{storage_named(self.cell, self.copy)} was written while used, at {self.at_ns} ns by"
            f" {', '.join(self.tasks)}"
        )


@dataclass(frozen=True)
class VersionsReordered:
    """Versions of a state cell were made in another order than program order.

    Parameters
    ----------
    cell : str
        Which.
    copy : int
        Storage copy.
    earlier, later : str
        Tasks by program order: `earlier` wrote after `later`.
    """

    cell: str
    copy: int
    earlier: str
    later: str

    def __str__(self) -> str:
        return (
            f"task {self.earlier} wrote {storage_named(self.cell, self.copy)} after {self.later},"
            " which follows it in program order"
        )


Violation = (
    WrongGraph
    | NotRun
    | RunRepeatedly
    | NotInGraph
    | Failed
    | BadTimes
    | EdgeBroken
    | OverCapacity
    | WrongWorker
    | WrongVersionSeen
    | WrongVersionMade
    | WrittenWhileUsed
    | VersionsReordered
)
