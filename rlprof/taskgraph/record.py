"""What a run did: one entry for each task that ran. Times are of `time.monotonic_ns`, in nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import polars as pl

    from rlprof.taskgraph.graph import TaskGraph
    from rlprof.taskgraph.state import CellVersion


class TaskRun(NamedTuple):
    """One execution of a task.

    Parameters
    ----------
    task : str
        Its id.
    worker : str
        Where it ran.
    start_ns : int
        When the call began.
    returned_ns : int
        When the call returned to the host.
    end_ns : int
        When the work was complete: later than `returned_ns` where a device still worked.
    failed : bool
        It raised.
    seen : tuple of CellVersion
        Versions of state cells that were there when it started, of those that it needs.
    made : tuple of CellVersion
        Versions that it left behind; none if it failed.
    """

    task: str
    worker: str
    start_ns: int
    returned_ns: int
    end_ns: int
    failed: bool = False
    seen: tuple[CellVersion, ...] = ()
    made: tuple[CellVersion, ...] = ()


@dataclass(frozen=True)
class RunRecord:
    """A run, whether it ended well or not.

    Parameters
    ----------
    graph_hash : str
        `TaskGraph.hash` of the graph that ran.
    tasks : tuple of TaskRun
        In the order of completion.
    start_ns, end_ns : int
        Of the whole run.
    """

    graph_hash: str
    tasks: tuple[TaskRun, ...]
    start_ns: int
    end_ns: int

    @property
    def wall_s(self) -> float:
        """Time of the whole run, in seconds."""
        return (self.end_ns - self.start_ns) / 1e9

    def to_frame(self, graph: TaskGraph | None = None) -> pl.DataFrame:
        """Return one row for each execution, ready for `rlprof.plots.gantt`.

        Parameters
        ----------
        graph : TaskGraph, optional
            Then there is a row for each resource that a task holds, as in `Schedule.to_frame`; a lane is a
            worker otherwise.

        Returns
        -------
        polars.DataFrame
            ``task``, ``name``, ``lane``, ``start_s``, ``end_s`` (seconds from the start of the run), sorted
            by start.
        """
        import polars as pl

        rows = []
        for run in sorted(self.tasks, key=lambda r: r.start_ns):
            name, lanes = run.task, [run.worker]
            if graph is not None and run.task in graph.index:
                task = graph.tasks[graph.index[run.task]]
                name, lanes = task.name, [use.resource for use in task.uses] or ["no resource"]
            start_s, end_s = (run.start_ns - self.start_ns) / 1e9, (run.end_ns - self.start_ns) / 1e9
            rows += [(run.task, name, lane, start_s, end_s) for lane in lanes]
        schema = {"task": pl.String, "name": pl.String, "lane": pl.String}
        times = {"start_s": pl.Float64, "end_s": pl.Float64}
        return pl.DataFrame(rows, schema={**schema, **times}, orient="row")
