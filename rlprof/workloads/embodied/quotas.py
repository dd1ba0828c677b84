"""Algorithm 2 on embodied training: what was found of the simulator's share of the SMs, and what it took.

Rollout and training are the driver's process, which has one share, so only the simulator can be given less;
and only one that computes with CUDA: graphics contexts are outside MPS.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlprof.analysis.trials import Rule
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.optimize.cost import Part
from rlprof.overlap.optimize.log import DecisionLog
from rlprof.overlap.optimize.steps import Step
from rlprof.overlap.optimize.store import Store
from rlprof.overlap.quota.levels import Level
from rlprof.overlap.quota.pair import EligiblePair, WorkerProcess
from rlprof.overlap.quota.search import QuotaSearch, Trial
from rlprof.overlap.quota.validation import Validation
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
    cost : Part or None
        What it took, over all sessions; None: nothing was begun.
    stopped : bool
        It was interrupted, or its budget was spent: another call with the same store goes on.
    intact : bool
        The program is as training left it; otherwise go on from a checkpoint.
    """

    level: Level | None
    reason: str
    pair: EligiblePair | None = None
    search: QuotaSearch | None = None
    validation: Validation | None = None
    sweep: tuple[Trial, ...] = ()
    cost: Part | None = None
    stopped: bool = False
    intact: bool = True

    @property
    def quotas(self) -> dict[str, int]:
        """As in a quota file."""
        return {} if self.level is None else {"simulator": self.level.setting}

    def to_dict(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return {
            "quotas": self.quotas,
            "reason": self.reason,
            "stopped": self.stopped,
            "pair": None if self.pair is None else self.pair.to_dict(),
            "search": None if self.search is None else self.search.to_dict(),
            "validation": None if self.validation is None else self.validation.to_dict(),
            "sweep": [trial.to_dict() for trial in self.sweep],
            "cost": None if self.cost is None else self.cost.to_dict(),
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
    local: Rule | None = None,
    key: str | None = None,
    log: DecisionLog | None = None,
    store: Store | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Quotas:
    """Search the simulator's quota for a graph that is fixed (specification A, section 9).

    Every trial of a level is one of a pair with q0, on the same prepared state; complete iterations, each of
    which is training, decide. What the store has is not measured again.

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
        Pairs of the comparison under each level at most, where no `local` rule says it.
    rule : Rule, optional
        Of the validation.
    budget_s : float, optional
        No trial is begun that would leave too little of so long for the validation.
    sweep_every : int, optional
        In what is left of the budget then also measure every so many levels, from the last one down: the
        curve along which the search goes.
    local : Rule, optional
        Of the trials of a level.
    key : str, optional
        Program, settings and hardware as they are now; by default the workload's.
    log : DecisionLog, optional
        Told of every decision.
    store : Store, optional
        Measurements of earlier calls, and what making them takes.
    say : callable, optional
        Told every trial.

    Returns
    -------
    Quotas
        q0 with the reason where no pair is eligible, the one with slack is no simulator, or no level pays.
        Also after Ctrl-C: with what was measured so far.

    Raises
    ------
    RestoreError
        If what a trial changed cannot be put back, and it was not interrupted.
    """
    from rlprof.workloads.embodied.quota_search import Tuner

    return Tuner(
        workload=workload,
        graph=graph,
        steps=steps,
        simulator=simulator,
        levels=tuple(levels),
        workers=workers,
        rule=rule or Rule(),
        local=local or Rule(confidence=0.9, most_pairs=trials),
        budget_s=budget_s,
        sweep_every=sweep_every,
        key=workload.key if key is None else key,
        log=DecisionLog() if log is None else log,
        store=Store() if store is None else store,  # an empty one is false
        say=say,
    ).run()
