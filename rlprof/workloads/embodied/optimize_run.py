"""The whole of `rlprof optimize embodied`: files in a folder, from the first iteration to the report."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import rlprof
from rlprof.analysis.trials import Rule, measure_paired
from rlprof.errors import OutputError
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.memory import beyond_memory
from rlprof.overlap.optimize.algorithm import optimize
from rlprof.overlap.optimize.graph_file import GraphFile, write_json
from rlprof.overlap.optimize.graph_levers import Groups, Priorities, Selected
from rlprof.overlap.optimize.levers import Lever, Measured, measure_levers
from rlprof.overlap.optimize.log import DecisionLog, setting
from rlprof.overlap.optimize.options import Options
from rlprof.overlap.optimize.outcome import Optimization, interrupted
from rlprof.overlap.optimize.result import document
from rlprof.overlap.optimize.store import Store, key_of
from rlprof.overlap.optimize.workload import Measurement
from rlprof.overlap.quota.clients import choose_gpu, list_gpus, probe_levels
from rlprof.unavailable import Unavailable
from rlprof.workloads.embodied import checkpoint
from rlprof.workloads.embodied.config import Config
from rlprof.workloads.embodied.levers import Wanted, changed_by_levers, setting_levers, stream_components
from rlprof.workloads.embodied.optimize import Embodied, embodied, hardware
from rlprof.workloads.embodied.quota_file import QuotaFile
from rlprof.workloads.embodied.quotas import Quotas, processes, tune
from rlprof.workloads.embodied.sharing import CUDA_SIMULATORS, PIPE

GRAPH, QUOTAS, RESULT, REPORT = "graph.json", "quotas.json", "result.json", "report.html"
DECISIONS, DECISIONS_TEXT, MEASUREMENTS = "decisions.jsonl", "decisions.txt", "measurements.jsonl"
FILES = (GRAPH, QUOTAS, RESULT, REPORT, DECISIONS, DECISIONS_TEXT, MEASUREMENTS, checkpoint.NAME)
#: Share of the budget after which no lever of the program is tried any more.
LEVERS_SHARE = 0.5


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


@dataclass(frozen=True)
class Optimized:
    """What was done.

    Parameters
    ----------
    result : Optimization
        Of the algorithm.
    document : dict
        As in ``result.json``.
    summary : str
        A few lines for people.
    """

    result: Optimization
    document: dict[str, Any]
    summary: str


def optimize_embodied(request: Request, *, say: Callable[[str], None] = lambda _: None) -> Optimized:
    """Optimise and write the folder.

    Parameters
    ----------
    request : Request
        What.
    say : callable, optional
        Told what is going on, and every decision.

    Returns
    -------
    Optimized

    Raises
    ------
    OutputError
        If the folder holds an optimisation and neither `resume` nor `force` is set, or cannot be written.
    WorkloadError
        If a part cannot be made.
    OverlapError
        If the program cannot be recorded.
    """
    out = request.out
    options = request.options  # refused, if they are, before anything is started
    _prepare(request)
    with embodied(request.config, out, spares=request.spares, activity=request.activity, say=say,
                  resume=(out / checkpoint.NAME) if request.resume else None) as here:  # fmt: skip
        # only now: the checkpoint of an earlier one may be of another configuration
        write_json(out / "config.json", json.loads(json.dumps(request.config.to_dict())))
        log = DecisionLog(out / DECISIONS, listen=say)
        store = Store(out / MEASUREMENTS)
        search = Search(request, here, log, store, say)
        found = search.run()
        facts = {
            "config": here.config.to_dict(),
            "hardware": hardware(here.config),
            "spares": request.spares,
            "levers": changed_by_levers(request.config, here.config),
            "stream_priorities": search.streams,
            "rlprof": rlprof.__version__,
            "options": options.to_dict(),
        }
        write_json(out / "config.json", json.loads(json.dumps(here.config.to_dict())))
        GraphFile.of(found.native, found.graph, found.steps, **facts).write(out / GRAPH)
        quotas = find_quotas(request, here, found, say)
        QuotaFile(quotas.quotas, quotas.reason).write(out / QUOTAS)
        if found.intact and here.counter.whole:
            checkpoint.save(out / checkpoint.NAME, here.trainer, here.config.to_dict(), here.iterations)
        else:
            say("no checkpoint: it was interrupted inside of an iteration, or a trial")
        trained = here.iterations
    made = document(found, log.entries, {**facts, "iterations": trained})
    write_json(out / RESULT, made)
    (out / DECISIONS_TEXT).write_text(log.text(), encoding="utf-8")
    _report(made, out / REPORT, say)
    return Optimized(found, made, summary(found, out, trained))


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
        workload = self.here.workload
        settings = measure_levers(
            setting_levers(self.here, self.request.levers),
            self._native_iteration,
            key=lambda: self.here.key,
            budget_s=LEVERS_SHARE * self.request.budget_s,
            **self._how,
        )
        workload.key = self.here.key
        if settings.stopped:
            return interrupted(workload.native, settings, intact=self.here.counter.whole)
        options = replace(self.request.options, budget_s=self.left_s)
        if self.here.memory is not None:
            self.say("measuring the memory of calls")
            workload.measure_memory()
            options = replace(options, memory_bytes=self.here.free_bytes)
        found = optimize(workload, options, log=self.log, store=self.store)
        found = found.including(settings)
        return found if found.stopped else self._graph_levers(found, options)

    def _native_iteration(self) -> tuple[str, Measurement]:
        return f"native, trying levers: {self.here.simulator.key}", self.here.workload.iteration(None)

    def _graph_levers(self, found: Optimization, options: Options) -> Optimization:
        here, wanted = self.here, self.request.levers
        selected = Selected(
            here.workload,
            found.graph,
            found.steps,
            lambda graph: beyond_memory(graph, options.memory_bytes, here.workload.call_bytes()),
        )
        levers: list[Lever] = []
        if "groups" in wanted:
            levers.append(Groups(selected, wanted["groups"]))
        if "priorities" in wanted:
            components = stream_components(here, found.graph)
            levers.append(Priorities(selected, here.workload, components, here.forget_captured))
        measured = measure_levers(
            levers, selected.iterate, key=lambda: key_of(here.key, selected.graph.hash),
            budget_s=self.left_s, **self._how,
        )  # fmt: skip
        self.streams = selected.streams
        found = found.including(measured)
        if not measured.kept:
            return found
        found = replace(found, graph=selected.graph, steps=selected.steps)
        return found if measured.stopped else self._in_all(found, selected)

    def _in_all(self, found: Optimization, selected: Selected) -> Optimization:
        """Compare the native order with the graph and its levers."""
        began, done = time.monotonic(), []

        def run(graph: CallGraph | None) -> float:
            one = self.here.workload.iteration(graph)
            done.append(((graph or found.native).hash, one))
            return one.time_s

        rule = replace(self.request.options.validation, budget_s=self.left_s)
        total = measure_paired(lambda: run(None), lambda: run(selected.graph), rule)
        self.log.add(
            "validated",
            round=None,
            steps=[str(s) for s in found.steps],
            graph=found.graph.hash,
            result=total.to_dict(),
            outcome="rounds and levers of the graph together",
        )
        measured = Measured((), tuple(done), time.monotonic() - began)
        return replace(found.including(measured), total=total)


def find_quotas(request: Request, here: Embodied, found: Optimization, say: Callable[[str], None]) -> Quotas:
    """Search the simulator's share of the SMs for the selected graph; without MPS say why there is none."""
    config = here.config
    if not config.device.startswith("cuda"):
        return Quotas(None, "there is no GPU to divide")
    if config.simulator not in CUDA_SIMULATORS:
        reason = f"{config.simulator} is no CUDA client: MPS cannot limit it, so no pair is eligible"
        return Quotas(None, reason)
    if PIPE not in os.environ:
        return Quotas(None, "no MPS daemon: start one with rlprof mps start, and optimise in its environment")
    if found.stopped or not found.steps or not here.counter.whole:
        return Quotas(None, "there is no graph in which branches overlap")
    gpu = int(config.device.partition(":")[2] or 0)
    say("searching the simulator's share of the SMs")
    levels = probe_levels(choose_gpu(list_gpus(), gpu), dict(os.environ)).levels
    workers = processes(here.simulator, gpu, client=True)
    rule = Rule(confidence=0.9, most_pairs=request.pairs)
    left_s = max(0.0, request.budget_s - found.total_s)
    return tune(
        here.workload, found.graph, found.steps, here.simulator, levels, workers,
        rule=rule, budget_s=left_s, say=say,
    )  # fmt: skip


def summary(found: Optimization, out: Path, trained: int) -> str:
    """The result in a few lines."""
    lines = [f"{out}: {found.ended}"]
    for row in found.levers:
        if row.outcome == "kept" and row.result is not None:
            change = f"{setting(row.before)} -> {setting(row.value)}"
            lines.append(f"  lever {row.lever}, {change}: {row.result.gain_frac:+.1%}")
    if not found.steps:
        lines.append("no overlap pays: the native order is kept")
    for one in found.steps:
        lines.append(f"  {one}")
    total = found.total
    if total is not None and found.steps:
        lines.append(
            f"an iteration takes {total.candidate.median_s:.3g} s, natively {total.reference.median_s:.3g} s:"
            f" {total.reference.median_s / total.candidate.median_s:.3f}x by medians; pair by pair"
            f" {total.gain_frac:+.1%} ({len(total.pairs)} pairs: {total.decision})"
        )
    paid = found.paid_back_after
    back = "never paid back" if isinstance(paid, Unavailable) else f"paid back after {paid:.0f} iterations"
    lines.append(
        f"{found.total_s:.0f} s, {found.retained_s:.0f} s of it training that counts ({trained} iterations);"
        f" net {found.net_overhead_s:.0f} s, {back}"
    )
    return "\n".join(lines)


def _prepare(request: Request) -> None:
    out = request.out
    present = [name for name in FILES if (out / name).exists()]
    if present and not (request.resume or request.force):
        raise OutputError(
            "an optimisation is there already", where=out, hint="use --resume, --force or another --out"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not request.resume:
            for name in present:
                (out / name).unlink()
    except OSError as error:
        raise OutputError(f"the folder cannot be written ({error.strerror})", where=out) from error


def _report(made: dict[str, Any], path: Path, say: Callable[[str], None]) -> None:
    from importlib.util import find_spec

    if find_spec("polars") is None or find_spec("altair") is None:
        say(f"no report: it needs polars and altair; {RESULT} has what it shows")
        return
    from rlprof.report.optimize import write_optimization_report

    write_optimization_report(made, path)
