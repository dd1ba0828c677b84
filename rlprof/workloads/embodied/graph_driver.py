"""Runs a selected graph: the first iterations are recorded natively, the others run by the graph."""

from __future__ import annotations

import gc
import threading
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from rlprof.errors import RlprofError
from rlprof.overlap.callgraph import Call, CallGraph
from rlprof.overlap.materialise import Arguments
from rlprof.overlap.optimize.graph_file import GraphFile
from rlprof.overlap.replacement import Replacement
from rlprof.workloads.embodied.activity import Span
from rlprof.workloads.embodied.ahead import AheadSimulator, Countdown, ResetsAhead
from rlprof.workloads.embodied.build import make_simulator
from rlprof.workloads.embodied.contracts import NUMBERS, GlobalStep, PolicyOutput, Simulator
from rlprof.workloads.embodied.drivers import PHASES, Iteration, LoopDriver, PhaseHooks
from rlprof.workloads.embodied.graph_check import check_graph
from rlprof.workloads.embodied.rollout_worker import RolloutWorker

if TYPE_CHECKING:
    from rlprof.overlap.optimize.program import ProgramWorkload
    from rlprof.overlap.program import Program
    from rlprof.overlap.recorder import Recorder
    from rlprof.overlap.recording import Recording
    from rlprof.workloads.embodied.config import Config
    from rlprof.workloads.embodied.trainer import Trainer

#: Iterations that are recorded before the graph is there.
RECORDED = 2


class Answers:
    """Sees which samples were answered with which weights, for the semantic record of a trainer.

    Natively the rollout worker tells that of each answer; a graph runs the phases of an answer, not the code
    around them. What begins resets ahead is told of calls too.

    Parameters
    ----------
    trainer : Trainer
        Its rollout worker has the watch that is told.
    graph : CallGraph
        What runs.
    ahead : Countdown, optional
        Begins resets of the next iteration.
    """

    def __init__(self, trainer: Trainer, graph: CallGraph, ahead: Countdown | None = None) -> None:
        self._trainer, self._ahead = trainer, ahead
        self._lock = threading.Lock()
        self._given: dict[tuple[int, int], list[tuple[tuple[int, ...] | None, int]]] = {}
        self._names = {path: path.rpartition("/")[2] for path in graph.nodes}
        self._epoch = 0

    def started(self, call: Call, arguments: Arguments) -> None:
        """An answer is about to be finished, or all of them to be used."""
        name = self._names[call.node]
        if name in ("decode", "answer"):  # phases of an answer are nodes, or all of it is one
            *_, epoch, chunk = (i for loop, i in call.indices if not loop.endswith("/denoise"))
            with self._lock:
                self._given.setdefault((epoch, chunk), []).append(
                    (call.samples, self._trainer.rollout.version)
                )
        elif name == "compute_adv" and (watch := self._trainer.rollout.watch) is not None:
            for trajectory in arguments[0][0]:
                for chunk, output in enumerate(trajectory.outputs):
                    for samples, version in self._given.get((self._epoch, chunk), ()):
                        rows = slice(None) if samples is None else list(samples)
                        part = PolicyOutput(*(getattr(output, name)[rows] for name in NUMBERS))
                        ids = None if samples is None else np.array(samples, dtype=np.int64)
                        watch.predicted(part, self._epoch, chunk, ids, version)
                self._epoch += 1

    def ended(self, call: Call) -> None:
        """A call has returned."""
        if self._ahead is not None:
            self._ahead.ended(call)


def phases_of(program: Program) -> dict[str, Span]:
    """Phases of the iteration that an installed graph has just run: from first start to last end."""
    spans: dict[str, Span] = {}
    for replacement in program.table.values():
        if not isinstance(replacement, Replacement) or replacement.last_record is None:
            continue
        for run in replacement.last_record.tasks:
            node = replacement.graph.by_id[run.task].node
            for name in PHASES:
                if f"/{name}/" in f"{node}/":
                    old = spans.get(name, Span(run.start_ns, run.end_ns))
                    spans[name] = Span(min(old.start_ns, run.start_ns), max(old.end_ns, run.end_ns))
    return spans


class PlacedDriver:
    """Iterations by a graph of a workload of the optimiser, or natively, for a trainer that is wrapped.

    Parameters
    ----------
    workload : ProgramWorkload
        Its program is that of the trainer.
    trainer : Trainer
        What is driven.
    graph : CallGraph or None
        None: natively.
    resets : ResetsAhead
        Of the simulators. Iterations by a graph begin those of the next one, and wait for them at their end:
        what comes after may be another driver's, and what they took is part of the iteration.
    """

    def __init__(
        self,
        workload: ProgramWorkload,
        trainer: Trainer,
        graph: CallGraph | None,
        resets: ResetsAhead,
    ) -> None:
        self.workload, self.trainer, self.graph, self._resets = workload, trainer, graph, resets
        self.placement = "colocated" + ("" if graph is None else f", a graph of {len(graph.streams)} streams")

    def prepare(self, step: GlobalStep) -> None:
        """Leave simulators as an iteration before `step` in the same order does: their resets were ahead."""
        self._resets.drop()
        if self.graph is not None:
            self._resets.begin(self.graph, step)
            self._resets.finish()

    def iteration(self, step: GlobalStep) -> Iteration:
        """One iteration."""
        self.workload.place(self.graph)
        if self.graph is not None:
            before = self._resets.handed_out
            with self._resets.during(step):
                result = self.trainer.iteration(step)
            trained = time.perf_counter()
            self._resets.finish()
            left_s = time.perf_counter() - trained
            further: dict[str, Any] = {"graph": True}
            if self._resets.there:
                further |= {"resets_ahead": self._resets.handed_out - before, "reset_ahead_left_s": left_s}
            return Iteration(result, phases_of(self.workload.program), further)
        hooks = PhaseHooks(self.workload.program, self.workload.native.region)
        try:
            result = self.trainer.iteration(step)
        finally:
            hooks.close()
        return Iteration(result, hooks.take(), {"graph": False})

    def paused(self) -> AbstractContextManager[None]:
        """Nothing runs between iterations."""
        return nullcontext()

    def close(self) -> None:
        """Let the native code run again, with no reset ahead."""
        try:
            self._resets.drop()
        finally:
            self.workload.place(None)


class GraphFileDriver(LoopDriver):
    """See the module; `iteration` is as of `LoopDriver`, and trains the same.

    Parameters
    ----------
    trainer : Trainer
        What is driven.
    config : Config
        Of the run; schedule ``colocated``.
    graph : GraphFile
        What `rlprof optimize` wrote.
    iterations : int, optional
        How many there are in the end: no resets of one after them are begun. None: that is not known.

    Raises
    ------
    ConfigurationError
        As of `check_graph`.
    """

    def __init__(
        self, trainer: Trainer, config: Config, graph: GraphFile, iterations: int | None = None
    ) -> None:
        check_graph(config, graph)
        self._stack = ExitStack()
        try:
            spares: list[Simulator] = []
            for _ in range(graph.facts.get("spares") or 0):
                spares.append(make_simulator(config, trainer.env.cores))
                self._stack.callback(spares[-1].close)
            if config.reset_ahead:
                spares = [AheadSimulator(spare) for spare in spares]
                self._stack.callback(setattr, trainer.env, "simulator", trainer.env.simulator)
                trainer.env.simulator = AheadSimulator(trainer.env.simulator)
            self._resets = ResetsAhead((trainer.env.simulator, *spares))
            self._stack.callback(self._resets.release)
            super().__init__(trainer, f"colocated, a graph of {len(graph.steps)} steps", spares)
        except BaseException:
            self._stack.close()
            raise
        self._graph, self._iterations = graph, iterations
        self._recorder: Recorder | None = None
        self._failure: RlprofError | None = None
        self._done = 0

    def iteration(self, step: GlobalStep) -> Iteration:
        """One iteration.

        Raises
        ------
        OverlapError
            In the one after the recorded iterations, if the graph is none of this program.
        """
        if self._failure is not None:
            raise self._failure
        program, region = self.wrapped.program, self.wrapped.nodes["iteration"]
        if self._done == 0:
            self._recorder = program.record(region, runs=RECORDED)
            self._recorder.__enter__()
        before = self._resets.handed_out
        last = step.index + 1 == self._iterations
        with nullcontext() if last else self._resets.during(step):
            found = super().iteration(step)
        self._done += 1
        if self._done == RECORDED and self._recorder is not None:
            recorder, self._recorder = self._recorder, None
            recorder.__exit__(None, None, None)
            if not last:
                try:
                    self._install(recorder.recording)
                except RlprofError as error:  # of the next iteration: this one is trained
                    self._failure = error
            del recorder
            gc.collect()  # what calls were given and returned is in cycles, and holds memory of the device
        by_graph = self._done > RECORDED
        further: dict[str, Any] = {**found.further, "graph": by_graph}
        if self._resets.there:
            further["resets_ahead"] = self._resets.handed_out - before
        return found._replace(
            further=further, phases=phases_of(self.wrapped.program) if by_graph else found.phases
        )

    def _install(self, recording: Recording) -> None:
        """Let the graph run from now on."""
        program = self.wrapped.program
        graph = self._graph.derive(program.graph(recording))
        streams = self._graph.facts.get("stream_priorities") or {}
        rollout = self.trainer.rollout
        share = rollout.share if isinstance(rollout, RolloutWorker) else None
        if streams and isinstance(rollout, RolloutWorker):
            rollout.forget_captured()
        program.install(
            graph,
            recording=recording,
            watch=lambda: Answers(self.trainer, graph, self._resets.countdown(graph)),
            stream_priorities=streams,
            sm_shares=None if share is None else share.shares,
        )

    def close(self) -> None:
        """Put the trainer back and end the spare simulators."""
        try:
            if self._recorder is not None:
                self._recorder.drop()
                self._recorder.__exit__(None, None, None)
            super().close()
        finally:
            self._stack.close()
