"""The search for the best plan: all structures, all cores, within a budget (specification B, section 7)."""

from __future__ import annotations

import itertools
import math
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from threading import Event, Thread, current_thread, main_thread
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from rlprof.cores import usable_cores
from rlprof.errors import UsageError
from rlprof.planning.algorithms import can_share, share_actor_critic
from rlprof.planning.annealing import Found, Record
from rlprof.planning.baselines import concurrent_plan
from rlprof.planning.candidates import Directory, directories
from rlprof.planning.compiled import judge_of
from rlprof.planning.errors import InfeasibleError
from rlprof.planning.evaluate import Evaluation, Problem, evaluate
from rlprof.planning.part import Part, Stop, Task, anneal_all, best_of, polished
from rlprof.planning.plan import Plan
from rlprof.planning.search_options import SearchOptions
from rlprof.planning.space import Space
from rlprof.progress import Progress, silent

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event as SharedEvent

#: With a budget of evaluations the search is divided into parts of at least so many, whatever the number of
#: workers, so that its result does not depend on that.
LEAST_PART, MOST_PARTS = 5_000, 8
#: After Ctrl-C the best plan so far is still polished, for at most so long; a second Ctrl-C ends that too.
POLISH_STOPPED_S = 1.0
#: That the evaluator is being compiled is told so often; to load a compiled one is mostly done sooner.
TELL_S = 1.0


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Parameters
    ----------
    evaluation : Evaluation
        Of the best plan; its problem has the staleness and sharing that were chosen.
    by_structure : tuple of (str, float or None)
        Most throughput found for each staleness and sharing, in tokens per second; None if nothing fits.
    evaluations : int
        Plans evaluated, cached ones not counted.
    seconds : float
        Time taken, without compiling the evaluator.
    history : tuple of (float, int, float)
        Seconds, evaluations and best objective at each improvement, of the part that found the best plan.
    elites : tuple of Plan
        The best plans of each part, to resume from.
    interrupted : bool
        It was stopped before its budget was spent.
    parts, workers : int
        Into how many parts the budget was divided, and how many processes worked on them.
    """

    evaluation: Evaluation
    by_structure: tuple[tuple[str, float | None], ...]
    evaluations: int
    seconds: float
    history: tuple[tuple[float, int, float], ...]
    elites: tuple[Plan, ...]
    interrupted: bool
    parts: int
    workers: int

    @property
    def plan(self) -> Plan:
        """The best plan."""
        return self.evaluation.plan


def structures(problem: Problem, options: SearchOptions) -> list[Problem]:
    """Return the problem with every staleness, and with actor and critic shared if that is asked for.

    A model whose staleness is tried keeps nothing of the staleness in the problem.
    """
    bases = [problem.pipeline]
    if options.share_actor_critic and can_share(problem.pipeline):
        bases.append(share_actor_critic(problem.pipeline))
    found = []
    for base in bases:
        for steps in itertools.product(sorted(set(options.staleness)), repeat=len(base.tau)):
            pipeline = base.with_staleness(dict(zip(base.tau, steps, strict=True)))
            found.append(replace(problem, pipeline=pipeline))
    return found


def structure_name(problem: Problem) -> str:
    """Return what tells a structure from the others: "actor 1, critic 0"."""
    return ", ".join(f"{model} {steps}" for model, steps in problem.pipeline.tau.items()) or "nothing trained"


def search(
    problem: Problem,
    options: SearchOptions,
    *,
    start: Sequence[Plan] = (),
    workers: int | None = None,
    progress: Progress = silent,
) -> SearchResult:
    """Search for the best plan.

    Parameters
    ----------
    problem : Problem
        What is planned for.
    options : SearchOptions
        Budget, objective, mechanisms.
    start : sequence of Plan
        Plans to start from besides the baseline, such as those of an earlier search.
    workers : int, optional
        Processes; all cores by default. With a budget of evaluations alone the result does not depend on it.
    progress : callable
        Told how far the search is.

    Returns
    -------
    SearchResult
        The best plan that fits into memory; also if it is interrupted (Ctrl-C), which leaves a second for
        polishing that plan.

    Raises
    ------
    InfeasibleError
        If no plan that was tried fits; says which GPU lacks how much in the one that misses by least.
    UsageError
        If plans to start from are given, and none of them is a plan of this problem.
    """
    problems = structures(problem, options)
    spaces = _spaces(problems, options)
    if start and not any(space.state(plan) is not None for space in spaces for plan in start):
        raise UsageError(
            "none of the plans to start from is a plan of this problem",
            hint="resume with pipeline, workload and cluster that they were found for",
        )
    _compile(spaces[0], progress)
    began = monotonic()
    cores = workers or usable_cores()
    parts = cores
    if options.evaluations is not None:
        parts = max(1, min(MOST_PARTS, options.evaluations // LEAST_PART))
    workers = min(parts, cores)
    deadline = began + options.seconds if options.seconds is not None else math.inf
    tasks = [Task(spaces, options, tuple(start), part, parts, deadline) for part in range(parts)]
    if workers == 1:
        done = []
        for task in tasks:
            done.append(_run_here(task, options, progress, began))
            if done[-1].interrupted:
                break
    else:
        done = _run_in_processes(tasks, workers, options, progress, began)
    interrupted = any(part.interrupted for part in done)
    if options.polish and (interrupted or options.evaluations is not None):
        end = min(deadline, monotonic() + POLISH_STOPPED_S) if interrupted else deadline
        try:
            done += polished(replace(tasks[0], deadline_s=end), done, began)
        except KeyboardInterrupt:  # before it had begun: what was found counts
            interrupted = True
    found = _combine(spaces, options, done, monotonic() - began, len(tasks), workers)
    return replace(found, interrupted=interrupted or found.interrupted)


def _spaces(problems: Sequence[Problem], options: SearchOptions) -> list[Space]:
    """Spaces of all structures; those with the same invocations share their directories."""
    known: dict[tuple[Any, ...], tuple[tuple[Directory, ...], dict[str, Any]]] = {}
    spaces = []
    for problem in problems:
        key = problem.pipeline.invocations
        if key not in known:
            known[key] = directories(problem, search_microbatches=options.search_microbatches), {}
        spaces.append(Space(problem, *known[key]))
    return spaces


def _compile(space: Space, progress: Progress) -> None:
    """Compile the evaluator, or load what was compiled, by judging a plan whose verdict is not used.

    It is not of the budget, and processes that are forked afterwards need not do it again.
    """
    baseline = space.state(concurrent_plan(space.problem, space.directories))
    if baseline is None:
        return
    done = Event()

    def tell() -> None:
        while not done.wait(TELL_S):
            progress("compiling the evaluator, once", 0.0)

    teller = Thread(target=tell, daemon=True)
    teller.start()
    try:
        judge_of(space).judge([baseline])
    finally:
        done.set()
        teller.join()


def _run_here(task: Task, options: SearchOptions, progress: Progress, began: float) -> Part:
    done = task.part / task.parts

    def tell(record: Record) -> None:
        progress("searching", done + _spent(options, record.evaluations * task.parts, began) / task.parts)

    return anneal_all(task, Stop(), tell)


def _spent(options: SearchOptions, evaluations: int, began: float) -> float:
    """Share of the budget that is spent, 0..1."""
    by_time = (monotonic() - began) / options.seconds if options.seconds else 0.0
    by_count = evaluations / options.evaluations if options.evaluations else 0.0
    return min(1.0, max(by_time, by_count))


_STOP: Stop = Stop()


#: Signals that end a search. They are held back while it forks: what their handlers raise inside a fork's
#: callbacks, such as that of `logging`, is lost.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _set_up_worker(event: SharedEvent, parent: int) -> None:
    """In a worker: Ctrl-C is the parent's, which passes it on; it ends with its parent, however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    _STOP.event = event
    Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process once its parent is gone: killed, it could not say so."""
    while os.getppid() == parent:
        sleep(0.5)
    os._exit(1)


def _work(task: Task) -> Part:
    return anneal_all(task, _STOP, lambda _: None)


def _run_in_processes(
    tasks: Sequence[Task], workers: int, options: SearchOptions, progress: Progress, began: float
) -> list[Part]:
    context = get_context("fork" if hasattr(os, "fork") and current_thread() is main_thread() else "spawn")
    event = context.Event()
    ties = (event, os.getpid())
    pool = ProcessPoolExecutor(workers, context, initializer=_set_up_worker, initargs=ties)
    try:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            futures: list[Future[Part]] = [pool.submit(_work, task) for task in tasks]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        left = set(futures)
        while left:
            try:
                _, left = wait(left, timeout=0.2)
                done = 1 - len(left) / len(futures)
                progress("searching", max(done, _spent(options, 0, began)))
            except KeyboardInterrupt:
                _ask(event)
        found = [future.result() for future in futures]
    except BaseException:
        _ask(event)
        with _deferred():
            pool.shutdown()  # its processes are done by then
        raise
    with _deferred() as came:
        pool.shutdown()
    for number in came:
        if number != signal.SIGINT:
            signal.raise_signal(number)
    return [replace(part, interrupted=True) for part in found] if came else found


def _ask(event: SharedEvent) -> None:
    """Ask the workers to stop."""
    with _deferred():
        event.set()


@contextmanager
def _deferred() -> Iterator[list[int]]:
    """Note signals that end a search, in place of raising what their handlers raise.

    Who waits for a lock that an exception left, or for processes that were not told to end, waits for ever.
    """
    came: list[int] = []
    handlers: list[tuple[signal.Signals, Any]] = []
    try:
        if current_thread() is main_thread():  # handlers run in it alone
            for number in _ENDING:
                if callable(handler := signal.getsignal(number)):
                    handlers.append((number, handler))
                    signal.signal(number, lambda got, _: came.append(got))
        yield came
    finally:
        for ending, handler in handlers:
            signal.signal(ending, handler)


def _combine(
    spaces: Sequence[Space],
    options: SearchOptions,
    parts: Sequence[Part],
    seconds: float,
    divided: int,
    workers: int,
) -> SearchResult:
    """The best of all parts, judged by the best throughput of all; of equal ones that of the first part."""
    record = Record(options)
    record.best_score = max((f.verdict.score for part in parts for f in part.front), default=0.0)
    found = best_of(record, parts)
    if found is None:
        missed = [part.least_infeasible for part in parts if part.least_infeasible is not None]
        if not missed:
            raise KeyboardInterrupt  # before anything was evaluated
        raise infeasible(spaces, min(missed, key=lambda f: f.verdict.memory_ratio))
    n, best = found
    space = spaces[best.structure]
    names = []
    several = len({len(s.directories) for s in spaces}) > 1
    for i, s in enumerate(spaces):
        scores = [p.by_structure[i].verdict.score for p in parts if i in p.by_structure]
        shared = f"{s.problem.pipeline.name}: " if several else ""
        names.append((shared + structure_name(s.problem), max(scores, default=None)))
    elites = dict.fromkeys(
        [space.plan(best.state)] + [spaces[i].plan(state) for part in parts for i, state in part.elites]
    )
    return SearchResult(
        evaluate(space.problem, space.plan(best.state)),
        tuple(names),
        sum(part.evaluations for part in parts),
        seconds,
        parts[n].history,
        tuple(elites),
        any(part.interrupted for part in parts),
        divided,
        workers,
    )


def infeasible(spaces: Sequence[Space], found: Found) -> InfeasibleError:
    """Return the error that says which GPU lacks how much in a plan that does not fit."""
    space = spaces[found.structure]
    e = evaluate(space.problem, space.plan(found.state))
    worst = max(e.memory, key=lambda g: g.peak_bytes)
    gpu = space.problem.cluster.gpu_name((worst.mask & -worst.mask).bit_length() - 1)
    usable = space.problem.cluster.usable_bytes
    lacking = math.ceil(worst.peak_bytes - usable)
    return InfeasibleError(
        f"no feasible plan was found: in the best infeasible one GPU {gpu} needs"
        f" {worst.peak_bytes:,.0f} bytes of {usable:,.0f} usable ones: {lacking:,} bytes are lacking",
        gpu=gpu,
        lacking_bytes=lacking,
        hint="use more GPUs, a longer budget, or fewer or shorter sequences",
    )
