"""Algorithm 2 on embodied training: the simulator's share of the SMs, by trials and complete iterations.

Rollout and training are the driver's process, which has one share, so only the simulator can be given less;
and only one that computes with CUDA: graphics contexts are outside MPS.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlprof.analysis.trials import Rule
from rlprof.errors import RlprofError
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.optimize.comparison import affected, comparison
from rlprof.overlap.optimize.steps import Step
from rlprof.overlap.quota.levels import Level
from rlprof.overlap.quota.pair import EligiblePair, WorkerProcess, find_pair
from rlprof.overlap.quota.search import Measurement, QuotaSearch, Trial, quota_search, sweep
from rlprof.overlap.quota.validation import Validation, validate
from rlprof.unavailable import Unavailable
from rlprof.workloads.embodied.nodes import ACTOR, ENV, HOST, ROLLOUT, VISION

if TYPE_CHECKING:
    from rlprof.overlap.optimize.program import ProgramWorkload
    from rlprof.workloads.embodied.exchange import Exchangeable


@dataclass(frozen=True)
class Quotas:
    """What was found.

    Parameters
    ----------
    level : Level or None
        Of the simulator; None: q0, all SMs.
    reason : str
        Why.
    pair : EligiblePair or None
        Who has slack.
    search : QuotaSearch or None
        Local times by level.
    validation : Validation or None
        By complete iterations.
    sweep : tuple of Trial
        Local times over the whole range, as far as they were asked for.
    """

    level: Level | None
    reason: str
    pair: EligiblePair | None = None
    search: QuotaSearch | None = None
    validation: Validation | None = None
    sweep: tuple[Trial, ...] = ()

    @property
    def quotas(self) -> dict[str, int]:
        """As in a quota file."""
        return {} if self.level is None else {"simulator": self.level.setting}

    def to_dict(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return {
            "quotas": self.quotas,
            "reason": self.reason,
            "pair": None if self.pair is None else self.pair.to_dict(),
            "search": None if self.search is None else self.search.to_dict(),
            "validation": None if self.validation is None else self.validation.to_dict(),
            "sweep": [trial.to_dict() for trial in self.sweep],
        }


def processes(
    simulator: Exchangeable, gpu: int, *, client: bool, reason: str = ""
) -> Mapping[str, WorkerProcess | None]:
    """Which process each component worker is; spare simulators count as the first one.

    The host, and the worker of the vision tower and of a prefix that is made apart, hand on what others made:
    who waits for them waits for those.
    """
    driver = WorkerProcess(os.getpid(), gpu)
    ids = simulator.process_ids
    world = WorkerProcess(ids[0] if ids else os.getpid(), gpu, client, reason)
    copies = {f"{ENV}#{n}": world for n in range(1, len(simulator.beside) + 1)}
    return {ENV: world, **copies, ROLLOUT: driver, ACTOR: driver, HOST: None, VISION: None}


def tune(
    workload: ProgramWorkload,
    graph: CallGraph,
    steps: Sequence[Step],
    simulator: Exchangeable,
    levels: Sequence[Level],
    workers: Mapping[str, WorkerProcess | None],
    *,
    trials: int = 2,
    rule: Rule | None = None,
    budget_s: float | None = None,
    sweep_every: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Quotas:
    """Search the simulator's quota for a graph that is fixed (specification A, section 9).

    Parameters
    ----------
    workload : ProgramWorkload
        The training, wrapped around `simulator`.
    graph : CallGraph
        What runs.
    steps : sequence of Step
        From the native graph to it: they say which work is compared.
    simulator : Exchangeable
        Keys are percentages; None is q0.
    levels : sequence of Level
        Probed, weakest first; the last one is q0.
    workers : mapping of str to WorkerProcess
        As of `processes`.
    trials : int
        Runs of the comparison under each level; their median counts.
    rule : Rule, optional
        Of the validation.
    budget_s : float, optional
        No trial is begun after so long.
    sweep_every : int, optional
        In what is left of the budget then also measure every so many levels, from the last one down: the
        curve along which the search goes.
    say : callable, optional
        Told every trial.

    Returns
    -------
    Quotas
        q0 with the reason where no pair is eligible, the one with slack is no simulator, or no level pays.
    """
    started = time.monotonic()
    workload.iteration(graph)
    ran = workload.last_run
    assert ran is not None
    pair = find_pair(*ran, workers)
    if isinstance(pair, Unavailable):
        return Quotas(None, pair.reason)
    say(f"{pair.earlier} is ready {pair.slack_s:.3g} s before {pair.later}, {pair.occurrences} times")
    if pair.earlier.partition("#")[0] != ENV:
        return Quotas(None, f"{pair.earlier} has the slack, and is one process with training: keep q0", pair)
    native = workload.native
    work = comparison(native, [native, graph], [*affected(steps)], outer_iterations=1)
    top = levels[-1]

    def key(level: Level) -> int | None:
        return None if level == top else level.setting

    known: dict[Level, Measurement | Unavailable] = {}

    def measure(level: Level) -> Measurement | Unavailable:
        if level not in known:
            known[level] = fresh(level)
        return known[level]

    def fresh(level: Level) -> Measurement | Unavailable:
        try:
            simulator.use(key(level))
            with workload.prepared(work, [graph]) as (trial,):
                trial.run()
                taken = [trial.run() for _ in range(trials)]
        except RlprofError as error:
            return Unavailable(error.what)
        finally:
            simulator.use(None)
            if key(level) is not None:
                simulator.drop(key(level))
        say(f"level {level.amount} SMs ({level.setting} %): {statistics.median(taken):.4g} s on {work}")
        return Measurement(statistics.median(taken), max(taken) - min(taken), len(taken))

    def spent() -> bool:
        return budget_s is not None and time.monotonic() - started > budget_s

    search = quota_search(tuple(levels), measure, spent=spent)

    def run(level: Level) -> float:
        simulator.use(key(level))
        return workload.iteration(graph).time_s

    checked = validate(search, run, rule)
    found = None if checked.chosen == top else checked.chosen
    curve: tuple[Trial, ...] = ()
    if sweep_every is not None:
        simulator.use(None, only=True)
        curve = sweep(tuple(levels), measure, sweep_every, spent=spent)
    simulator.use(None if found is None else found.setting, only=True)
    return Quotas(found, checked.reason, pair, search, checked, curve)
