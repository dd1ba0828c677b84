"""A wrapped program as a workload of the optimiser: runs iterations, installs graphs, prepares trials."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rlprof.overlap.bindings import sources
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.errors import OverlapError, ReplayError
from rlprof.overlap.execute import Executor, Watcher
from rlprof.overlap.green import SmShares
from rlprof.overlap.lower import component_worker
from rlprof.overlap.optimize.activity import ActivitySource, NoActivity
from rlprof.overlap.optimize.comparison import Comparison, before, restrict
from rlprof.overlap.optimize.machine import Machine
from rlprof.overlap.optimize.over_time import kept
from rlprof.overlap.optimize.trials import Spans, alone
from rlprof.overlap.optimize.windows import CallTime, rank
from rlprof.overlap.optimize.workload import Measurement, Profile, Trial
from rlprof.overlap.program import Program, entries
from rlprof.overlap.recording import Recording
from rlprof.overlap.replay import cut_output
from rlprof.taskgraph import RunRecord, SerialBackend, TaskGraph
from rlprof.taskgraph.trial import Restorable, restored

#: Arguments of the region.
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class ProgramWorkload:
    """See `rlprof.overlap.optimize.workload.Workload`.

    Parameters
    ----------
    program : Program
        Wrapped, with nothing installed.
    recording : Recording
        Of the training iteration.
    train : callable
        Trains one iteration: calls the recorded region once.
    key : str
        Program version and hardware.
    states : mapping of str to Restorable
        By name of a state: takes and restores what a trial may change. A trial on calls that write another
        state is refused.
    arguments : callable, optional
        Arguments of the region for a trial.
    activity : ActivitySource, optional
        Of the device.
    activity_from : str, optional
        What it is asked of, whether there is some or not.
    synchronise : callable, optional
        Waits until the device has done all its work.
    facts : callable, optional
        State of the machine, for measurements.
    call_bytes : callable, optional
        Estimates of memory.
    watch : callable, optional
        Makes what sees the calls of a complete iteration by a graph.
    machine : Machine, optional
        Looked at beside every iteration (its facts) and, by the optimiser, beside every trial.
    meter : callable, optional
        Makes what measures the memory of calls, in a further iteration in which nothing overlaps.
    sm_shares : SmShares, optional
        Shares of the SMs of components of this process; changes hold for all that runs from then on.
    """

    def __init__(
        self,
        program: Program,
        recording: Recording,
        train: Callable[[], object],
        *,
        key: str,
        states: Mapping[str, Restorable],
        arguments: Callable[[], Arguments] = lambda: ((), {}),
        activity: ActivitySource | None = None,
        activity_from: str = "",
        synchronise: Callable[[], None] = lambda: None,
        facts: Callable[[], Mapping[str, Any]] = dict,
        call_bytes: Callable[[], Mapping[str, float] | None] = lambda: None,
        watch: Callable[[CallGraph], Watcher] | None = None,
        meter: Callable[[CallGraph], Watcher] | None = None,
        machine: Machine | None = None,
        sm_shares: SmShares | None = None,
    ) -> None:
        self.program, self.recording, self._train = program, recording, train
        self.native = program.graph(recording)
        self.key = key
        self.states, self._arguments = states, arguments
        self.activity, self.activity_from = activity or NoActivity("nobody samples"), activity_from
        self._synchronise, self._facts, self._call_bytes = synchronise, facts, call_bytes
        self._watch, self._meter = watch, meter
        self.machine = machine
        self.sm_shares = sm_shares
        self._replacements: dict[str, Any] = {}
        self._streams: dict[str, int] = {}
        #: Task graph and record of the latest iteration by a graph.
        self.last_run: tuple[TaskGraph, RunRecord] | None = None

    # complete iterations -----------------------------------------------------------------------------------

    def iteration(self, graph: CallGraph | None) -> Measurement:
        """Train one iteration natively (None) or by a graph."""
        return self._iteration(graph)[0]

    def _iteration(self, graph: CallGraph | None) -> tuple[Measurement, RunRecord | None, int, int]:
        self.place(graph)
        facts = dict(self._facts())
        self._synchronise()
        look = None if self.machine is None else self.machine.look()
        start_ns = time.monotonic_ns()
        self._train()
        self._synchronise()
        end_ns = time.monotonic_ns()
        if self.machine is not None and look is not None:
            facts["machine"] = self.machine.since(look).to_dict()
        record: RunRecord | None = None
        if graph is not None:
            ran = self._replacements[graph.hash]
            record = ran.last_record
            self.last_run = None if record is None else (ran.executor.tasks, record)
        found = self.activity.between(start_ns, end_ns)
        tasks = () if graph is None or record is None else _tasks(graph, record, start_ns)
        mean = None if found is None else found.mean(start_ns, end_ns)
        over = kept(found, start_ns, end_ns, self.native.region, tasks)
        measured = Measurement((end_ns - start_ns) / 1e9, mean, tasks, facts, over)
        return measured, record, start_ns, end_ns

    def set_stream_priorities(self, priorities: Mapping[str, int]) -> None:
        """Priorities of CUDA streams by component, for all that runs from now on."""
        if dict(priorities) != self._streams:
            self._streams = dict(priorities)
            self.program.uninstall(self.native.region)
            self._replacements.clear()

    def place(self, graph: CallGraph | None) -> None:
        """Let a graph, or the native code, run in the region's place."""
        region = self.native.region
        if graph is None:
            self.program.uninstall(region)
            return
        kept = self._replacements.get(graph.hash)
        if kept is None:
            watch = self._watch
            how: dict[str, Any] = {} if watch is None else {"watch": lambda: watch(graph)}
            how |= {"stream_priorities": self._streams, "sm_shares": self.sm_shares}
            self.program.install(graph, recording=self.recording, **how)
            self._replacements[graph.hash] = self.program.table[region]
        else:
            self.program.install(region, kept)

    def measure_memory(self) -> Measurement:
        """Train one iteration in the native order, call by call, under the meter of memory."""
        self.program.uninstall(self.native.region)
        meter = self._meter
        how = {} if meter is None else {"watch": lambda: meter(self.native)}
        self.program.install(self.native, recording=self.recording, **how)
        start = time.perf_counter()
        self._train()
        self._synchronise()
        taken = time.perf_counter() - start
        self.program.uninstall(self.native.region)
        return Measurement(taken)

    def profile(self, graph: CallGraph) -> Profile:
        """Train one iteration by a graph, with the time of every call."""
        measured, record, start_ns, end_ns = self._iteration(graph)
        assert record is not None
        found = self.activity.between(start_ns, end_ns)
        times = [CallTime(run.task, run.start_ns, run.end_ns) for run in record.tasks]
        source = found.source if found is not None else getattr(self.activity, "reason", "none was sampled")
        lonely = alone(graph, _spans(record)) if len(graph.streams) == 1 else ()
        return Profile(rank(graph, times, found), measured, source, lonely)

    # trials ------------------------------------------------------------------------------------------------

    @contextmanager
    def prepared(self, comparison: Comparison, graphs: Sequence[CallGraph]) -> Iterator[list[Trial]]:
        """Bring state to the start of a comparison; see `Workload.prepared`.

        Raises
        ------
        OverlapError
            If the calls cannot be run by themselves, or write state that cannot be restored.
        """
        cut = [restrict(graph, comparison.origins) for graph in graphs]
        needed = {
            self._origin(graph, name) for graph, c in zip(graphs, cut, strict=True) for name in c.outside
        }
        prefix = before(self.native, comparison.origins, needed)
        touched, changing = self._touched(comparison.origins | prefix), self._touched(comparison.origins)
        self.program.uninstall(self.native.region)
        arguments = self._arguments()
        with restored(touched):
            outputs = self._run_prefix(prefix, needed, arguments)
            self._synchronise()
            made: list[Trial] = []
            for graph, part in zip(graphs, cut, strict=True):
                outside = {name: self._output(graph, name, outputs) for name in part.outside}
                executor = Executor(
                    part.graph,
                    entries(self.program),
                    self.recording.constants,
                    stream_priorities=self._streams,
                    threads=self.program.threads,
                    sm_shares=self.sm_shares,
                )
                made.append(_Trial(executor, ((*arguments, outside), {}), changing, self._synchronise))
            yield made

    def _origin(self, graph: CallGraph, call: str) -> str:
        return graph.by_id[call].origin

    def _touched(self, origins: frozenset[str]) -> list[Restorable]:
        names: dict[str, None] = {}
        for call in self.native.calls:
            if call.origin in origins:
                names.update((a.cell.state, None) for a in call.accesses if a.mode != "read")
        found = []
        for name in names:
            if name in self.states:
                found.append(self.states[name])
            elif not self.native.states[name].memory:
                raise OverlapError(
                    f"a trial would change {name}, which cannot be put back",
                    hint="give the workload something with snapshot() and restore(snapshot) for it",
                )
        return found

    def _run_prefix(self, prefix: frozenset[str], needed: set[str], arguments: Arguments) -> dict[str, Any]:
        """Run what comes before natively, in order; outputs that are needed, by origin."""
        if not prefix:
            return {}
        part = restrict(self.native, prefix)
        if part.outside:
            raise ReplayError(f"{part.outside[0]} is needed before it has run")
        kept: dict[str, Any] = {}
        executor = Executor(_returning(part.graph, needed), entries(self.program), self.recording.constants)
        output, _ = executor.run(((*arguments, {}), {}))
        kept.update(zip(sorted(needed & prefix), output, strict=True))
        return kept

    def _output(self, graph: CallGraph, call: str, outputs: Mapping[str, Any]) -> Any:
        """Output of a call outside, cut from the native one if it is a part."""
        found = graph.by_id[call]
        whole, batch = outputs[found.origin], graph.nodes[found.node].batch
        if found.samples is None or batch is None:
            return whole
        return cut_output(whole, found.samples, batch.axis, batch.shared_outputs)

    # limits ------------------------------------------------------------------------------------------------

    def call_bytes(self) -> Mapping[str, float] | None:
        """Estimates of the memory that calls hold."""
        return self._call_bytes()

    def check(self, graph: CallGraph) -> str | None:
        """Say why a graph cannot be installed here; None if it can."""
        try:
            Executor(graph, entries(self.program), self.recording.constants)
        except OverlapError as error:
            return error.what
        return None


class _Trial:
    """One restricted graph on prepared state."""

    def __init__(
        self,
        executor: Executor,
        external: Arguments,
        states: Sequence[Restorable],
        synchronise: Callable[[], None],
    ) -> None:
        self._executor, self._external, self._states = executor, external, states
        self._synchronise = synchronise
        self.record: RunRecord | None = None

    def run(self) -> float:
        """Run once; seconds. State is as before afterwards."""
        with restored(self._states):
            self._synchronise()
            start = time.perf_counter()
            _, self.record = self._executor.run(self._external)
            self._synchronise()
            taken = time.perf_counter() - start
        self._synchronise()
        return taken

    def spans(self) -> Spans:
        """Start and end of the calls of the latest run, in seconds."""
        return {} if self.record is None else _spans(self.record)

    def serially(self) -> None:
        """Run once, one call after the other. State is as before afterwards."""
        with restored(self._states):
            self._synchronise()
            _, self.record = self._executor.run(self._external, backend=SerialBackend)
            self._synchronise()
        self._synchronise()


def _spans(record: RunRecord) -> dict[str, tuple[float, float]]:
    return {run.task: (run.start_ns / 1e9, run.end_ns / 1e9) for run in record.tasks}


def _returning(graph: CallGraph, wanted: set[str]) -> CallGraph:
    """The graph with the outputs of some calls, sorted, as its result."""
    from dataclasses import replace

    from rlprof.overlap.bindings import Pack, Ref

    there = sorted(wanted & {call.origin for call in graph.calls})
    output = Pack("tuple", tuple(range(len(there))), tuple(Ref(name) for name in there))
    assert set(sources(output)) == set(there)
    return replace(graph, output=output)


def _tasks(
    graph: CallGraph, record: RunRecord, start_ns: int
) -> tuple[tuple[str, str, str, float, float], ...]:
    found = []
    for run in sorted(record.tasks, key=lambda r: r.start_ns):
        call = graph.by_id[run.task]
        lane = component_worker(graph, call) or "no component"
        span = (run.start_ns - start_ns) / 1e9, (run.end_ns - start_ns) / 1e9
        found.append((call.id, call.node, lane, *span))
    return tuple(found)
