"""Which process has slack: pairs of overlapping branches in a measured run (Rose, section 4.4).

Two branches meet at a *join*, the first task that waits for both, or the end of the run. They overlap if work
of one process was under way while the other's was. The process whose branch is ready first, at F0, waits for
the other one, ready at C0: its *slack* is C0 - F0, and only it is given a lower quota.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from typing import Any

from rlprof.errors import UsageError
from rlprof.taskgraph import RunRecord, TaskGraph
from rlprof.unavailable import Unavailable

#: Name of the join that is no task: the end of the run.
END = "end of the run"


@dataclass(frozen=True)
class WorkerProcess:
    """Where the tasks of a worker run.

    Parameters
    ----------
    process : hashable
        What tells processes apart, such as the process id; equal for workers in one process.
    gpu : hashable or None
        The GPU it works on (under other mechanisms: the cores); None: none.
    client : bool
        A quota can be set for it. Under MPS: its GPU work goes through the MPS server, which an EGL context's
        does not.
    reason : str
        Why it is no client, for a person.
    """

    process: Hashable
    gpu: Hashable | None = 0
    client: bool = True
    reason: str = ""


@dataclass(frozen=True)
class Meeting:
    """Two branches that met once.

    Parameters
    ----------
    join : str
        Id of the task that waited for both, or `END`.
    earlier_ready_s, later_ready_s : float
        When the branches of the two processes were ready, in seconds from the first start of their tasks.
    overlap_s : float
        Time in which both processes worked, in seconds.
    """

    join: str
    earlier_ready_s: float
    later_ready_s: float
    overlap_s: float


@dataclass(frozen=True)
class EligiblePair:
    """Two processes, one of which may be given a lower quota.

    Parameters
    ----------
    earlier, later : str
        Workers: f, which has the slack, and the one that the join waits for.
    join : str
        Name of the tasks at which they meet, or `END`.
    slack_s : float
        sigma: median of C0 - F0 over the meetings, in seconds.
    occurrences : int
        Meetings of a run.
    agreeing : int
        Meetings of all runs in which the earlier process was the earlier one.
    earlier_ready_s, later_ready_s : float
        F0 and C0, medians, in seconds.
    gpu : hashable
        The GPU of both.
    meetings : tuple of Meeting
        In the order of their times; where the earlier process was later the readiness times say so.
    others : tuple of str
        What other pairs there were and why they were not taken, one line each.
    """

    earlier: str
    later: str
    join: str
    slack_s: float
    occurrences: int
    agreeing: int
    earlier_ready_s: float
    later_ready_s: float
    gpu: Hashable
    meetings: tuple[Meeting, ...]
    others: tuple[str, ...] = field(default=())

    @property
    def weight_s(self) -> float:
        """Slack times occurrences, in seconds: what pairs are ranked by."""
        return self.slack_s * self.occurrences

    def join_gain_s(self, later_gains_s: float, earlier_loses_s: float) -> float:
        """How much sooner the join comes: ``min(x, sigma - y)``, in seconds.

        Parameters
        ----------
        later_gains_s : float
            x: the later branch is ready so much sooner.
        earlier_loses_s : float
            y: the earlier branch is ready so much later.
        """
        return min(later_gains_s, self.slack_s - earlier_loses_s)

    def to_dict(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return asdict(self) | {"gpu": str(self.gpu), "weight_s": self.weight_s}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> EligiblePair:
        """Read what `to_dict` wrote; the GPU is a text then."""
        values = {k: v for k, v in document.items() if k != "weight_s"}
        values["meetings"] = tuple(Meeting(**meeting) for meeting in values["meetings"])
        return cls(**values | {"others": tuple(values["others"])})


def find_pair(
    graph: TaskGraph,
    record: RunRecord | Sequence[RunRecord],
    processes: Mapping[str, WorkerProcess | None],
) -> EligiblePair | Unavailable:
    """Find the pair of overlapping branches that has most slack.

    Parameters
    ----------
    graph : TaskGraph
        What ran.
    record : RunRecord or sequence of RunRecord
        One or more complete runs of it under q0.
    processes : mapping of str to WorkerProcess or None
        By worker, as the tasks name it, else as the record does. None: what it does is short, and hands on
        what others made; who waits for it counts as waiting for what it waited for.

    Returns
    -------
    EligiblePair or Unavailable
        Of all pairs of clients of one GPU in distinct processes, that with the largest slack times
        occurrences; otherwise why there is none: keep q0.

    Raises
    ------
    UsageError
        If a record is of another graph, a task did not run or failed, or its worker is in no process.
    """
    records = [record] if isinstance(record, RunRecord) else list(record)
    if not records:
        raise UsageError("no run is given", hint="run the graph under q0 and give its record")
    found: dict[tuple[str, str, str], list[Meeting]] = {}
    for one in records:
        for key, meeting in _meetings(graph, one, processes):
            found.setdefault(key, []).append(meeting)
    refused: list[str] = []
    pairs: list[EligiblePair] = []
    for (join, a, b), meetings in sorted(found.items()):
        made = _pair(join, a, b, meetings, len(records), processes)
        if isinstance(made, EligiblePair):
            pairs.append(made)
        else:
            refused.append(made.reason)
    if not pairs:
        if not found:
            refused = ["no two branches in distinct processes worked at the same time and met"]
        return Unavailable(f"no pair is eligible for a quota, keep q0: {'; '.join(refused)}")
    pairs.sort(key=lambda p: (-p.weight_s, p.join, p.earlier))
    best, rest = pairs[0], pairs[1:]
    lines = [f"{_line(p)}: less slack in all, {p.weight_s:.4g} s" for p in rest] + refused
    return replace(best, others=tuple(lines))


def _pair(
    join: str,
    a: str,
    b: str,
    meetings: Sequence[Meeting],
    runs: int,
    processes: Mapping[str, WorkerProcess | None],
) -> EligiblePair | Unavailable:
    """Judge all meetings of two workers, given with `a` as the earlier one."""
    what = f"{a} and {b} at {join}"
    gpus = []
    for worker in (a, b):
        where = processes[worker]
        assert where is not None  # of one that only hands on there are no meetings
        if not where.client:
            reason = where.reason or "a quota cannot be set for it"
            return Unavailable(f"{what}: {worker} is no client ({reason})")
        gpus.append(where.gpu)
    if None in gpus or gpus[0] != gpus[1]:
        return Unavailable(f"{what}: they do not work on one GPU")
    slack_s = statistics.median(m.later_ready_s - m.earlier_ready_s for m in meetings)
    if slack_s < 0:
        a, b, slack_s = b, a, -slack_s
        meetings = [Meeting(m.join, m.later_ready_s, m.earlier_ready_s, m.overlap_s) for m in meetings]
    if slack_s == 0:
        return Unavailable(f"{what}: they are ready at the same time, neither has slack")
    return EligiblePair(
        earlier=a,
        later=b,
        join=join,
        slack_s=slack_s,
        occurrences=max(1, round(len(meetings) / runs)),
        agreeing=sum(m.later_ready_s > m.earlier_ready_s for m in meetings),
        earlier_ready_s=statistics.median(m.earlier_ready_s for m in meetings),
        later_ready_s=statistics.median(m.later_ready_s for m in meetings),
        gpu=gpus[0],
        meetings=tuple(meetings),
    )


def _line(pair: EligiblePair) -> str:
    return f"{pair.earlier} before {pair.later} at {pair.join}"


class _Run:
    """Times of a run by position of the task, and what each task waited for."""

    def __init__(
        self, graph: TaskGraph, record: RunRecord, processes: Mapping[str, WorkerProcess | None]
    ) -> None:
        if record.graph_hash != graph.hash:
            raise UsageError("the record is of another graph", hint="give the graph that ran")
        runs = {run.task: run for run in record.tasks if not run.failed}
        self.graph = graph
        self.workers, self.spans_s = list[str](), list[tuple[float, float]]()
        for task in graph.tasks:
            run = runs.get(task.id)
            if run is None:
                raise UsageError(
                    f"task {task.id!r} did not run to its end", hint="give the record of a complete run"
                )
            worker = task.worker if task.worker is not None else run.worker
            if task.payload is not None and worker not in processes:
                raise UsageError(
                    f"the process of worker {worker!r} of task {task.id!r} is not given",
                    hint=f"there are {', '.join(sorted(processes)[:10]) or 'none'}",
                )
            self.workers.append(worker)
            self.spans_s.append(
                ((run.start_ns - record.start_ns) / 1e9, (run.end_ns - record.start_ns) / 1e9)
            )
        self.before = self._waited_for(graph)
        self.ancestors = self._ancestors()

    def _waited_for(self, graph: TaskGraph) -> list[set[int]]:
        """Predecessors by the graph's edges, and the task before on the same worker."""
        before = [set(graph.predecessors.of(i)) for i in range(len(graph))]
        last: dict[str, int] = {}
        for i in sorted(range(len(graph)), key=lambda i: (self.spans_s[i][0], self.spans_s[i][1], i)):
            # one worker runs one task at a time: of two that overlapped neither waited for the other
            worker = self.workers[i]
            if worker in last and self.spans_s[last[worker]][1] <= self.spans_s[i][0]:
                before[i].add(last[worker])
            if worker not in last or self.spans_s[i][1] >= self.spans_s[last[worker]][1]:
                last[worker] = i
        return before

    def _ancestors(self) -> list[int]:
        """All that each task waited for and itself, as sets of bits."""
        found = [0] * len(self.before)
        rank = {i: n for n, i in enumerate(self.graph.topological_order)}
        # edges and the order on workers both go forward in time; equal times are told apart by the graph
        for i in sorted(rank, key=lambda i: (self.spans_s[i][0], rank[i])):
            bits = 1 << i
            for j in self.before[i]:
                bits |= found[j]
            found[i] = bits
        return found

    def past(self, tasks: Sequence[int], workers: Collection[str]) -> list[int]:
        """Tasks, and in place of those of some workers what they waited for."""
        found: dict[int, None] = {}
        waiting = list(tasks)
        while waiting:
            i = waiting.pop()
            if i not in found:
                found[i] = None
                waiting += sorted(self.before[i]) if self.workers[i] in workers else ()
        return sorted(i for i in found if self.workers[i] not in workers)

    def joins(self) -> Iterator[tuple[str, str, list[int]]]:
        """Id, name and predecessors of every task that waits for more than one, and of the end."""
        for i, task in enumerate(self.graph.tasks):
            if len(self.before[i]) > 1:
                yield task.id, task.name, sorted(self.before[i])
        waited = set().union(*self.before) if self.before else set()
        yield END, END, [i for i in range(len(self.before)) if i not in waited]


def _meetings(
    graph: TaskGraph, record: RunRecord, processes: Mapping[str, WorkerProcess | None]
) -> Iterator[tuple[tuple[str, str, str], Meeting]]:
    """All meetings of overlapping branches in distinct processes, with (join, worker, worker), sorted."""
    run = _Run(graph, record, processes)
    for join, name, heads in run.joins():
        latest: dict[Hashable, int] = {}  # what the join waited for last, by process
        for i in run.past(heads, {name for name, where in processes.items() if where is None}):
            where = processes.get(run.workers[i])
            if where is None:
                continue  # a task that only takes part in the order
            other = latest.get(where.process)
            if other is None or run.spans_s[i][1] > run.spans_s[other][1]:
                latest[where.process] = i
        for i, j in combinations(sorted(latest.values(), key=lambda i: run.workers[i]), 2):
            meeting = _meeting(run, join, i, j, processes)
            if meeting is not None:
                yield (name, run.workers[i], run.workers[j]), meeting


def _meeting(
    run: _Run, join: str, i: int, j: int, processes: Mapping[str, WorkerProcess | None]
) -> Meeting | None:
    """How the branches that end with tasks `i` and `j` met; None if they did not work at the same time."""
    a, b = run.ancestors[i], run.ancestors[j]
    mine, theirs = _own(run, a & ~b, i, processes), _own(run, b & ~a, j, processes)
    overlap_s = sum(
        max(0.0, min(end, other_end) - max(start, other_start))
        for start, end in _union(mine)
        for other_start, other_end in _union(theirs)
    )
    if overlap_s <= 0:
        return None
    origin_s = min(start for start, _ in (*mine, *theirs))
    return Meeting(join, run.spans_s[i][1] - origin_s, run.spans_s[j][1] - origin_s, overlap_s)


def _own(
    run: _Run, bits: int, last: int, processes: Mapping[str, WorkerProcess | None]
) -> list[tuple[float, float]]:
    """Spans of the tasks of a branch that ran in the process of its last one."""
    own, found = processes[run.workers[last]], []
    while bits:
        i = (bits & -bits).bit_length() - 1
        bits &= bits - 1
        where = processes.get(run.workers[i])
        if where is not None and own is not None and where.process == own.process:
            found.append(run.spans_s[i])
    return found


def _union(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans without what they have in common."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged
