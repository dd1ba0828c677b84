"""The search of `rlprof optimize embodied`: levers of the program, the graph, levers of the graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlprof.analysis.trials import Rule, measure_paired
from rlprof.errors import RlprofError
from rlprof.interrupts import noted
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.memory import beyond_memory
from rlprof.overlap.optimize.algorithm import optimize
from rlprof.overlap.optimize.cost import MEMORY, SEARCH
from rlprof.overlap.optimize.decisions import log_session
from rlprof.overlap.optimize.graph_levers import Groups, InTurn, Priorities, Selected
from rlprof.overlap.optimize.levers import Lever, Measured, measure_levers
from rlprof.overlap.optimize.log import DecisionLog
from rlprof.overlap.optimize.machine import Sides
from rlprof.overlap.optimize.options import Options, exhausted, known_comparison
from rlprof.overlap.optimize.outcome import Optimization, interrupted
from rlprof.overlap.optimize.store import Store, key_of
from rlprof.overlap.optimize.workload import Measurement
from rlprof.workloads.embodied.config import Config
from rlprof.workloads.embodied.levers import Wanted, setting_levers
from rlprof.workloads.embodied.optimize import Embodied
from rlprof.workloads.embodied.overlap_levers import OverlapRendering, overlap_levers, stream_components

#: Share of the budget after which no lever of the program is tried any more.
LEVERS_SHARE = 0.5
#: What is compared at last.
TOGETHER = "rounds and levers of the graph together"


@dataclass(frozen=True)
class Request:
    """What is to be optimised, and how hard.

    Parameters
    ----------
    config : Config
        The training.
    out : pathlib.Path
        Folder.
    spares : int
        Spare simulators.
    activity : str
        As of `rlprof.workloads.embodied.optimize.embodied`.
    resume, force : bool
        Go on with what is in the folder; replace it.
    rounds, targets, alternatives, epsilon, groups
        As of `rlprof.overlap.optimize.Options`.
    budget_s : float
        No measurement is begun after so long, seconds.
    pairs, local_pairs : int
        Most pairs of complete iterations and of local trials.
    levers : mapping of str to value
        Levers to be tried, as of `rlprof.workloads.embodied.levers.wanted_levers`.
    chosen : mapping of str to value
        Values of `config` that no option gave: a run by the graph has them unless it is told otherwise.
    """

    config: Config
    out: Path
    spares: int = 0
    activity: str = "auto"
    resume: bool = False
    force: bool = False
    rounds: int = 2
    targets: int = 3
    alternatives: int = 2
    epsilon: float = 0.01
    budget_s: float = 900.0
    groups: tuple[int, ...] = (2,)
    pairs: int = 8
    local_pairs: int = 9
    levers: Wanted = field(default_factory=dict)
    chosen: Mapping[str, Any] = field(default_factory=dict)

    @property
    def options(self) -> Options:
        """Inputs of the algorithm."""
        return Options(
            targets=self.targets,
            alternatives=self.alternatives,
            rounds=self.rounds,
            epsilon=self.epsilon,
            groups=self.groups,
            local=Rule(confidence=0.9, most_pairs=self.local_pairs),
            validation=Rule(confidence=0.9, most_pairs=self.pairs),
            budget_s=self.budget_s,
        )


def graph_levers(here: Embodied, selected: Selected, wanted: Wanted) -> list[Lever]:
    """Levers of the selected graph, in the order in which they are tried."""
    levers: list[Lever] = []
    if "groups" in wanted:
        levers.append(Groups(selected, wanted["groups"]))
    if "in-turn" in wanted:
        levers.append(InTurn(selected, wanted["in-turn"]))
    if "priorities" in wanted:
        components = stream_components(here, selected.graph)
        levers.append(Priorities(selected, here.workload, components))
    return [*levers, *overlap_levers(here, selected.graph, wanted)]


class Search:
    """Levers of the program, the graph, and levers of the graph, within one budget.

    Parameters
    ----------
    request : Request
        What.
    here : Embodied
        What trains.
    log : DecisionLog
        Told of every decision.
    store : Store
        Measurements of earlier calls.
    say : callable
        Told what is going on.

    Attributes
    ----------
    streams : dict of str to int
        Priorities of CUDA streams by component that were kept.
    """

    def __init__(
        self, request: Request, here: Embodied, log: DecisionLog, store: Store, say: Callable[[str], None]
    ) -> None:
        self.request, self.here, self.log, self.store, self.say = request, here, log, store, say
        self.began = time.monotonic()
        self.streams: dict[str, int] = {}
        self._how: dict[str, Any] = {
            "rule": request.options.validation,
            "least_gain_frac": request.epsilon,
            "log": log,
            "store": store,
        }

    @property
    def left_s(self) -> float:
        """What is left of the budget."""
        return max(0.0, self.request.budget_s - (time.monotonic() - self.began))

    def run(self) -> Optimization:
        """Do all of it."""
        log_session(self.store, self.log)
        workload = self.here.workload
        settings = measure_levers(
            setting_levers(self.here, self.request.levers),
            self.native_iteration,
            key=lambda: self.here.key,
            budget_s=LEVERS_SHARE * self.request.budget_s,
            **self._how,
        )
        with noted() as asked:  # what has begun to end is ended
            self.here.simulator.drop_all_but(None)
            workload.key = self.here.key
        if settings.stopped or asked():
            return interrupted(workload.native, settings, intact=self.here.counter.whole)
        options = replace(self.request.options, budget_s=self.left_s, given_budget_s=self.request.budget_s)
        if self.here.memory is not None:
            self.say("measuring the memory of calls")
            try:
                with self.store.spending(MEMORY):
                    self.store.train("native, memory of calls", workload.measure_memory())
            except KeyboardInterrupt:  # the levers are found
                return interrupted(workload.native, settings, intact=self.here.counter.whole)
            options = replace(options, memory_bytes=self.here.free_bytes)
        try:
            found = optimize(workload, options, log=self.log, store=self.store)
        except KeyboardInterrupt:  # before its first round: it keeps later ones itself
            return interrupted(workload.native, settings, intact=self.here.counter.whole)
        found = found.including(settings)
        return found if found.stopped else self._graph_levers(found, options)

    def native_iteration(self) -> tuple[str, Measurement]:
        """Train one iteration natively, as the program is set."""
        return f"native, trying levers: {self.here.simulator.key}", self.here.workload.iteration(None)

    def _graph_levers(self, found: Optimization, options: Options) -> Optimization:
        here = self.here
        with noted() as asked:
            drawn = OverlapRendering(here).settings()
            selected = Selected(
                here.workload,
                found.graph,
                found.steps,
                lambda graph: beyond_memory(graph, options.memory_bytes, here.workload.call_bytes()),
            )
            levers = graph_levers(here, selected, self.request.levers)
        if asked():
            return found.including(Measured((), (), stopped=True))
        measured = measure_levers(
            levers, selected.iterate, key=lambda: key_of(here.key, selected.graph.hash),
            budget_s=self.left_s, **self._how,
        )  # fmt: skip
        with noted() as asked:
            here.simulator.drop_all_but(None)
        if asked():
            measured = replace(measured, stopped=True)
        self.streams = selected.streams
        found = found.including(measured)
        if not measured.kept:
            return found
        found = replace(found, graph=selected.graph, steps=selected.steps)
        if measured.stopped:
            return found
        return self._in_all(found, selected, drawn if OverlapRendering.name in measured.kept else None)

    def _in_all(
        self, found: Optimization, selected: Selected, drawn: tuple[tuple[str, Any], ...] | None
    ) -> Optimization:
        """Compare the native order with the graph and its levers.

        What is drawn otherwise because of the graph could be slower natively: the native order then has the
        rendering that was best for it (`drawn`), or the graph would seem to gain more than it does.
        """
        with self.store.spending(SEARCH):
            return self._compared(found, selected, drawn).up_to(self.store)

    def _compared(
        self, found: Optimization, selected: Selected, drawn: tuple[tuple[str, Any], ...] | None
    ) -> Optimization:
        simulator, done = self.here.simulator, []

        def run(graph: CallGraph | None) -> float:
            simulator.use(drawn if graph is None else None, beside=False)
            one = self.here.workload.iteration(graph)
            ran = (graph or found.native).hash
            done.append((ran, one))
            self.store.train(ran, one)
            return one.time_s

        rule = replace(self.request.options.validation, budget_s=self.left_s)
        settings = sorted(f"{name}={value}" for name, value in (*(drawn or ()), *selected.streams.items()))
        key = key_of(self.here.key, "in all", selected.graph.hash, settings)
        known = known_comparison(self.store.get(key), rule)
        spent = self.request.options.budget_spent
        if known is None and rule.budget_s == 0.0:
            self.say(f"{spent}: {TOGETHER} are not compared")
            return replace(found, not_in_all=f"{spent}: {TOGETHER} are not compared")
        stopped = False
        try:
            if known is not None:
                total = known
            else:
                if drawn is not None:
                    try:
                        simulator.use(drawn, beside=False)
                    except RlprofError as error:
                        self.say(
                            f"the native order as it was drawn is not compared with the graph: {error.what}"
                        )
                        return found
                    run(None)  # the first one is slower, and not counted
                sides = Sides.beside(self.here.workload)
                watched = sides.reference(lambda: run(None)), sides.candidate(lambda: run(selected.graph))
                total = sides.judged(measure_paired(*watched, rule, watch=self.log.measuring))
                if exhausted(total, rule):
                    self.store.put(key, "in all", {**total.to_dict(), "machine": sides.to_dict()})
        except KeyboardInterrupt:  # the graph and its levers are found, whatever they gain together
            stopped = True
        finally:
            simulator.use(None, beside=False)
            simulator.drop_all_but(None)
        found = found.including(Measured((), tuple(done), stopped=stopped))
        if stopped:
            self.say(f"interrupted: {TOGETHER} are not compared")
            return found
        self.log.add(
            "validated",
            round=None,
            steps=[str(s) for s in found.steps],
            graph=found.graph.hash,
            result=total.to_dict(),
            outcome=TOGETHER,
            reused=known is not None,
        )
        if not exhausted(total, rule):  # --resume makes it again
            found = replace(found, not_in_all=f"{spent} before {TOGETHER} were compared to the end")
        return replace(found, total=total)
