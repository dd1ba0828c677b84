"""A workload whose time is simulated: durations by batch size, demands for one device, interference.

For tests of the optimiser's decisions on recorded durations, and for programs whose optimum can be found by
trying everything.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.lower import component_worker, lower, priorities
from rlprof.overlap.optimize.comparison import Comparison, restrict
from rlprof.overlap.optimize.over_time import kept
from rlprof.overlap.optimize.trials import Spans, alone
from rlprof.overlap.optimize.windows import Activity, CallTime, rank
from rlprof.overlap.optimize.workload import Measurement, Profile, Trial


@dataclass(frozen=True)
class NodeModel:
    """How a node behaves.

    Parameters
    ----------
    fixed_s, per_sample_s : float
        Duration alone on b samples: ``fixed_s + per_sample_s b``; a call without a batch takes `fixed_s`.
    demand : float
        Activity of the device while it runs alone, 0..1.
    """

    fixed_s: float
    per_sample_s: float = 0.0
    demand: float = 0.0


@dataclass(frozen=True)
class DeviceModel:
    """How calls that run at once share the device.

    Parameters
    ----------
    nodes : mapping of str to NodeModel
        By path.
    friction : float
        What each further call with a demand costs the others, as a share of their rate.
    dispatch_s : float
        Time before each call.
    """

    nodes: Mapping[str, NodeModel]
    friction: float = 0.0
    dispatch_s: float = 0.0


@dataclass(frozen=True)
class Simulated:
    """A simulated run.

    Parameters
    ----------
    times : tuple of CallTime
        Of every call, from 0 on.
    activity : Activity
        Of the device.
    makespan_s : float
        Seconds.
    """

    times: tuple[CallTime, ...]
    activity: Activity
    makespan_s: float


def simulate(graph: CallGraph, model: DeviceModel) -> Simulated:
    """Run a graph on a simulated clock.

    A call that can start does so at once, by the dispatcher's priorities where several want one worker. With
    demands that add up to more than the device has, all that have one get on more slowly, in proportion.
    """
    timed = _with_durations(graph, model)
    tasks = lower(timed)
    order = priorities(tasks)
    count = len(tasks.tasks)
    waiting = [0] * count
    links = tasks.successors
    for i in range(count):
        for j in links.of(i):
            waiting[j] += 1
    ready = [(-order[i], i) for i in range(count) if not waiting[i]]
    heapq.heapify(ready)
    work = [task.duration_s or 0.0 for task in tasks.tasks]
    demand = [model.nodes[task.name].demand for task in tasks.tasks]
    uses = [tuple(use.resource for use in task.uses) for task in tasks.tasks]
    free = dict.fromkeys(tasks.resources, True)
    start, end = np.zeros(count), np.zeros(count)
    running: dict[int, float] = {}
    steps: list[tuple[float, float, float]] = []
    now, done = 0.0, 0
    while done < count:
        held = []
        while ready:
            item = heapq.heappop(ready)
            i = item[1]
            if all(free[name] for name in uses[i]):
                free.update(dict.fromkeys(uses[i], False))
                running[i], start[i] = work[i], now
            else:
                held.append(item)
        for item in held:
            heapq.heappush(ready, item)
        wanted = sum(demand[i] for i in running)
        with_demand = sum(1 for i in running if demand[i])
        shared = max(1.0, wanted) * (1 + model.friction * max(0, with_demand - 1))
        rate = {i: 1 / shared if demand[i] else 1.0 for i in running}
        step = min(left / rate[i] for i, left in running.items())
        if step > 0:
            steps.append((now, now + step, min(1.0, wanted)))
        now += step
        for i in [i for i, left in running.items() if left / rate[i] <= step * (1 + 1e-12)]:
            del running[i]
            end[i] = now
            done += 1
            free.update(dict.fromkeys(uses[i], True))
            for j in links.of(i):
                waiting[j] -= 1
                if not waiting[j]:
                    heapq.heappush(ready, (-order[j], j))
        for i in running:
            running[i] -= step * rate[i]
    times = tuple(
        CallTime(task.id, round(start[i] * 1e9), round(end[i] * 1e9)) for i, task in enumerate(tasks.tasks)
    )
    return Simulated(times, _activity(steps), float(now))


def _activity(steps: Sequence[tuple[float, float, float]]) -> Activity:
    edges = np.array([(round(a * 1e9), round(b * 1e9)) for a, b, _ in steps], dtype=np.int64).reshape(-1, 2)
    active = np.array([value for *_, value in steps], dtype=np.float64)
    full = edges[:, 1] > edges[:, 0]
    return Activity(edges[full, 0], edges[full, 1], active[full], "simulated")


def _with_durations(graph: CallGraph, model: DeviceModel) -> CallGraph:
    from dataclasses import replace

    calls = []
    for call in graph.calls:
        node = model.nodes[call.node]
        size = (len(call.samples) if call.samples is not None else call.batch_size) or 0
        calls.append(replace(call, duration_s=model.dispatch_s + node.fixed_s + node.per_sample_s * size))
    return replace(graph, calls=tuple(calls))


@dataclass
class SimulatedWorkload:
    """See `rlprof.overlap.optimize.workload.Workload`.

    Parameters
    ----------
    native : CallGraph
        The program.
    model : DeviceModel
        Its durations.
    key : str
        As of a workload.
    noise_frac : float
        Standard deviation of measured times, as a share of them.
    seed : int
        Of the noise.
    activity_from : str
        As of a workload.
    """

    native: CallGraph
    model: DeviceModel
    key: str = "simulated"
    noise_frac: float = 0.0
    seed: int = 0
    trained: list[str] = field(default_factory=list)
    bytes_by_call: Mapping[str, float] | None = None
    activity_from: str = "simulated"

    def __post_init__(self) -> None:
        self._known: dict[str, Simulated] = {}
        self._random = np.random.default_rng(self.seed)
        self._of_calls = np.random.default_rng((self.seed, 1))

    def simulated(self, graph: CallGraph) -> Simulated:
        """A run of a graph; made once for each."""
        found = self._known.get(graph.hash)
        if found is None:
            found = self._known[graph.hash] = simulate(graph, self.model)
        return found

    def _measured(self, seconds: float) -> float:
        return seconds * float(1 + self.noise_frac * self._random.standard_normal())

    def iteration(self, graph: CallGraph | None) -> Measurement:
        """Simulate a complete iteration."""
        graph = graph or self.native
        self.trained.append(graph.hash)
        found = self.simulated(graph)
        end_ns = max(t.end_ns for t in found.times)
        tasks = tuple(
            (
                t.call,
                graph.by_id[t.call].node,
                component_worker(graph, graph.by_id[t.call]),
                t.start_ns / 1e9,
                t.end_ns / 1e9,
            )
            for t in found.times
        )
        over = kept(found.activity, 0, end_ns, graph.region, tasks)
        mean = found.activity.mean(0, end_ns)
        return Measurement(self._measured(found.makespan_s), mean, tasks, over_time=over)

    def profile(self, graph: CallGraph) -> Profile:
        """Simulate one and rank its windows."""
        measured = self.iteration(graph)
        found = self.simulated(graph)
        lonely = alone(graph, _spans(found.times)) if len(graph.streams) == 1 else ()
        return Profile(rank(graph, found.times, found.activity), measured, "simulated", lonely)

    @contextmanager
    def prepared(self, comparison: Comparison, graphs: Sequence[CallGraph]) -> Iterator[list[Trial]]:
        """Nothing has to be prepared."""
        yield [_Trial(self, restrict(graph, comparison.origins).graph) for graph in graphs]

    def call_bytes(self) -> Mapping[str, float] | None:
        """Estimates of memory, if given."""
        return self.bytes_by_call

    def check(self, graph: CallGraph) -> str | None:  # noqa: ARG002
        """Every legal graph can be simulated."""
        return None


class _Trial:
    def __init__(self, workload: SimulatedWorkload, graph: CallGraph) -> None:
        self._workload, self._graph = workload, graph
        self._latest: Spans = {}

    def run(self) -> float:
        """Simulate."""
        found = self._workload.simulated(self._graph)
        self._latest = _spans(found.times)
        return self._workload._measured(found.makespan_s)

    def spans(self) -> Spans:
        """Start and end of the calls of the latest run."""
        return self._latest

    def serially(self) -> None:
        """Simulate one call after the other."""
        workload, now, made = self._workload, 0.0, {}
        for call in _with_durations(self._graph, workload.model).calls:
            noise = 1 + workload.noise_frac * float(workload._of_calls.standard_normal())
            start, now = now, now + (call.duration_s or 0.0) * max(noise, 0.0)
            made[call.id] = (start, now)
        self._latest = made


def _spans(times: Sequence[CallTime]) -> dict[str, tuple[float, float]]:
    return {t.call: (t.start_ns / 1e9, t.end_ns / 1e9) for t in times}
