"""Algorithm 2 on embodied training: what was found of the shares of the SMs, and what it took.

A simulator can be given less by MPS if it computes with CUDA: graphics contexts are outside MPS. Rollout and
training are the driver's process, which MPS gives one share; the rollout alone is given less by green
contexts. All of it needs MPS: without, processes take turns on the GPU.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rlprof.analysis.trials import Rule
from rlprof.errors import RlprofError
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.optimize.cost import QUOTAS, Part
from rlprof.overlap.optimize.log import DecisionLog
from rlprof.overlap.optimize.outcome import Optimization
from rlprof.overlap.optimize.steps import Step
from rlprof.overlap.optimize.store import Store, key_of
from rlprof.overlap.quota.clients import choose_gpu, list_gpus, probe_levels
from rlprof.overlap.quota.levels import Level
from rlprof.overlap.quota.pair import EligiblePair, WorkerProcess
from rlprof.overlap.quota.search import QuotaSearch, Trial
from rlprof.overlap.quota.validation import Validation
from rlprof.taskgraph.errors import RestoreError
from rlprof.workloads.embodied.config import Config
from rlprof.workloads.embodied.nodes import ACTOR, ENV, HOST, ROLLOUT, VISION
from rlprof.workloads.embodied.sharing import CUDA_SIMULATORS, PIPE

if TYPE_CHECKING:
    from rlprof.overlap.optimize.program import ProgramWorkload
    from rlprof.workloads.embodied.exchange import Exchangeable
    from rlprof.workloads.embodied.optimize_search import Search
    from rlprof.workloads.embodied.rollout_share import RolloutShare

#: Names in a quota file.
SIMULATOR, OF_ROLLOUT = "simulator", "rollout"
INTERRUPTED = "q0 is kept: interrupted; --resume goes on"


@dataclass(frozen=True)
class Quotas:
    """What was found.

    Parameters
    ----------
    level : Level or None
        Of the component; None: q0, all SMs.
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
    component : str
        Whose share was searched, as a quota file names it.
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
    component: str = SIMULATOR

    @property
    def quotas(self) -> dict[str, int]:
        """As in a quota file."""
        return {} if self.level is None else {self.component: self.level.setting}

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
    share: RolloutShare | None = None,
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
    """Search the quota of who has slack in a graph that is fixed (specification A, section 9).

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
        Of the simulator, probed, weakest first; the last one is q0.
    workers : mapping of str to WorkerProcess
        As of `processes`.
    share : RolloutShare, optional
        Of the rollout, which has levels of its own; without it, it keeps q0.
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
        Told every decision, where there is no log.

    Returns
    -------
    Quotas
        q0 with the reason where no pair is eligible, the one with slack can have no share, or no level pays.
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
        share=share,
        rule=rule or Rule(),
        local=local or Rule(confidence=0.9, most_pairs=trials),
        budget_s=budget_s,
        sweep_every=sweep_every,
        key=workload.key if key is None else key,
        log=DecisionLog(listen=say) if log is None else log,
        store=Store() if store is None else store,  # an empty one is false
    ).run()


def find_quotas(search: Search, found: Optimization) -> Quotas:
    """Search the share of the SMs of who has slack in the selected graph, or say why there is none.

    Parameters
    ----------
    search : Search
        That has found it: its trainer, log and store, and what is left of its budget.
    found : Optimization
        The graph.

    Raises
    ------
    QuotaError
        If levels cannot be probed.
    RlprofError
        As `tune`.
    """
    try:
        quotas = _found_quotas(search, found)
    except RlprofError as error:
        _log_end(search.log, failed(error))
        raise
    _log_end(search.log, quotas)
    return quotas


def failed(error: RlprofError) -> Quotas:
    """What there is after a failure of the search: q0; after a trial's, state that is not as it was."""
    intact = not isinstance(error, RestoreError)
    return Quotas(None, f"the search for quotas failed: {error.what}", stopped=True, intact=intact)


def _log_end(log: DecisionLog, quotas: Quotas) -> None:
    made = quotas.to_dict()
    log.add("quotas", **{name: made[name] for name in ("quotas", "reason", "stopped", "cost")})


def _found_quotas(search: Search, found: Optimization) -> Quotas:
    request, here, store = search.request, search.here, search.store
    config = here.config
    if (why := why_no_quotas(config)) is not None:
        return Quotas(None, why)
    early = unreached(found, whole=here.counter.whole, left_s=search.left_s, budget_s=request.budget_s)
    if early is not None:
        return early
    gpu = int(config.device.partition(":")[2] or 0)
    search.say("searching shares of the SMs")
    rule = request.options.validation
    key = key_of(here.key, json.dumps(search.streams, sort_keys=True))
    try:
        with store.spending(QUOTAS):
            levels = known_levels(store, here.key, gpu)
        return tune(
            here.workload, found.graph, found.steps, here.simulator, levels,
            processes(here.simulator, gpu, client=True), share=here.share,
            rule=replace(rule, least_gain_frac=request.epsilon), local=local_rule(request.options.local),
            budget_s=search.left_s, key=key, log=search.log, store=store,
        )  # fmt: skip
    except KeyboardInterrupt:
        return Quotas(None, INTERRUPTED, cost=store.spent(QUOTAS), stopped=True)


def why_no_quotas(config: Config, environ: Mapping[str, str] = os.environ) -> str | None:
    """Say why nobody can have a share of the SMs here; None if somebody can."""
    if not config.device.startswith("cuda"):
        return "there is no GPU to divide"
    if config.simulator not in CUDA_SIMULATORS:
        return f"{config.simulator} is no CUDA client: MPS cannot limit it, so no pair is eligible"
    if PIPE not in environ:
        return "no MPS daemon: start one with rlprof mps start, and optimise in its environment"
    return None


def unreached(found: Optimization, *, whole: bool, left_s: float, budget_s: float) -> Quotas | None:
    """Say why quotas of what was found are not searched; None if they are.

    Parameters
    ----------
    found : Optimization
        The graph.
    whole : bool
        No iteration was begun and not finished.
    left_s, budget_s : float
        What is left of the budget of the search of graph and quotas, and the budget, in seconds.
    """
    if not whole or not found.intact:
        return Quotas(None, "q0 is kept: it was interrupted inside of an iteration, or a trial", stopped=True)
    if not found.stopped and not found.steps:
        return Quotas(None, "there is no graph in which branches overlap")
    if not found.stopped and left_s > 0:
        return None
    interrupted = found.ended.startswith("interrupted")
    why = "it was interrupted" if interrupted else f"the budget of {budget_s:g} s was spent"
    of = "the graph that was found" if found.steps else "a graph"
    reason = f"q0 is kept: {why} before quotas of {of} were searched; --resume goes on"
    return Quotas(None, reason, stopped=True)


def local_rule(rule: Rule) -> Rule:
    """Rule of the trials of a level: that of other local trials, with as few pairs as a decision needs.

    There are many levels, and the search goes by their times; whether one pays is decided by complete
    iterations.
    """
    return replace(rule, most_pairs=rule.least_pairs or rule.most_pairs)


def known_levels(store: Store, key: str, gpu: int) -> tuple[Level, ...]:
    """Levels of a GPU, of an earlier call or probed by fresh clients; errors as of `probe_levels`."""
    key = key_of(key, "quota levels")
    known = store.get(key)
    if known is None:
        probed = probe_levels(choose_gpu(list_gpus(), gpu), dict(os.environ)).levels
        known = [level.to_dict() for level in probed]
        store.put(key, "quota levels", known)
    return tuple(Level.from_dict(level) for level in known)
