"""A judge that evaluates plans with compiled code: the verdicts of `PlainJudge`, a hundred times faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rlprof.planning.cluster import LINK_KINDS, TIERS
from rlprof.planning.cost_memory import operator_memory
from rlprof.planning.cost_time import operator_time
from rlprof.planning.errors import PlanningError
from rlprof.planning.plan import Parallelism
from rlprof.planning.space import Judge, PlainJudge, Space, State, Verdict
from rlprof.planning.times import phase_shares

if TYPE_CHECKING:
    from rlprof.planning.kernel.tables import Floats, Tables

#: Most invocations of a pipeline: the memory of every set of them is looked at.
MOST_INVOCATIONS = 12


def judge_of(space: Space) -> Judge:
    """Return the fastest judge that can judge a space."""
    return CompiledJudge(space) if can_compile(space) else PlainJudge(space)


def can_compile(space: Space) -> bool:
    """Whether the compiled evaluator covers a space: not too many invocations, and stage fusion only of
    training invocations that nothing in the step waits for.
    """
    pipeline = space.problem.pipeline
    if len(pipeline.invocations) > MOST_INVOCATIONS:
        return False
    leads = {pipeline.index[e.source] for e in pipeline.data} | {u for u, _, _ in pipeline.weight_pairs}
    return not space.problem.options.fuse_training or not leads & set(pipeline.training.values())


class CompiledJudge:
    """Judges with `rlprof.planning.kernel`.

    Parameters
    ----------
    space : Space
        One that `can_compile`.

    Raises
    ------
    PlanningError
        If numba has no folder to keep what it compiles.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        try:
            self._tables = tables(space)
            from rlprof.planning.kernel.judge import judge_states
        except RuntimeError as error:  # numba: no folder for what it compiles
            raise PlanningError(
                f"the evaluator cannot be compiled: {error}",
                hint="set NUMBA_CACHE_DIR to a folder that can be written",
            ) from error
        self._judge_states = judge_states

    def judge(self, states: Sequence[State]) -> list[Verdict]:
        """Return a verdict on each state."""
        return [Verdict(*row) for row in self._judge(states)[:, :3].tolist()]

    def critical_s(self, state: State) -> list[float]:
        """Return for each invocation its time on the critical path of the schedule, in seconds."""
        times: list[float] = self._judge([state])[0, 3:].tolist()
        return times

    def _judge(self, states: Sequence[State]) -> Floats:
        out = np.empty((len(states), 3 + len(self.space.directories)))
        self._judge_states(self._tables, np.array(states, dtype=np.int64), out)
        return out


@dataclass(frozen=True)
class _Columns:
    """What the tables hold of each candidate; the same for every staleness."""

    first: list[int]
    extents: list[tuple[int, int, int]]
    layouts: list[int]
    microbatches: list[int]
    time_s: list[float]
    bubble_s: list[float]
    phase_s: list[list[float]]
    weights: list[float]
    optimizer: list[float]
    transient: list[float]


def _columns(space: Space, phases: int) -> _Columns:
    problem = space.problem
    pipeline, work, cluster, options = problem.pipeline, problem.workload, problem.cluster, problem.options
    numbers: dict[Parallelism, int] = {}
    c = _Columns([0], [], [], [], [], [], [], [], [], [])
    for i, d in enumerate(space.directories):
        role, model = pipeline.invocations[i].role, pipeline.model_of(i)
        for candidate in d.candidates:
            at = candidate.at((0, 0, 0))
            whole = operator_time(role, model, work, at, cluster, options)
            need = operator_memory(role, model, work, at, options)
            row = [0.0] * phases
            for q in range(phases if phases > 1 and role != "training" else 0):
                decode_frac, sequence_frac = phase_shares(work, q)
                if role == "generation":
                    row[q] = decode_frac * whole.decode_s + (whole.prefill_s if q == 0 else 0.0)
                else:
                    part = operator_time(role, model, work, at, cluster, options, sequence_frac=sequence_frac)
                    row[q] = part.total_s
            c.extents.append(candidate.extent)
            c.layouts.append(numbers.setdefault(candidate.parallelism, len(numbers)))
            c.microbatches.append(candidate.microbatches)
            c.time_s.append(whole.total_s)
            c.bubble_s.append(whole.bubble_s)
            c.phase_s.append(row)
            c.weights.append(need.weights_bytes)
            c.optimizer.append(need.optimizer_bytes)
            c.transient.append(need.transient_bytes(resident=True))
        c.first.append(len(c.extents))
    return c


def tables(space: Space) -> Tables:
    """Return the arrays that the compiled evaluator works on."""
    from rlprof.planning.kernel.tables import Tables

    problem = space.problem
    pipeline, work, cluster, options = problem.pipeline, problem.workload, problem.cluster, problem.options
    invocations = pipeline.invocations
    phases = len(work.quantiles) if options.split_generation and len(work.quantiles) > 1 else 1
    if "columns" not in space.memo:
        space.memo["columns"] = _columns(space, phases)
    c: _Columns = space.memo["columns"]
    index = pipeline.index
    roles = [v.role for v in invocations]
    data = [
        (u, v, int(phases > 1 and (roles[u], roles[v]) == ("generation", "inference")))
        for e in pipeline.data
        for u, v in ((index[e.source], index[e.target]),)
    ]
    model_number = {name: n for n, name in enumerate(sorted(pipeline.model_by_name))}
    place = {v: n for n, v in enumerate(pipeline.topological_order)}
    leads = {u for u, _, _ in data} | {u for u, _, _ in pipeline.weight_pairs}
    training = set(pipeline.training.values())
    order = sorted(place, key=lambda v: (v in training and v not in leads, place[v]))
    fusable = np.zeros((len(invocations), len(invocations)), np.int64)
    if options.fuse_training:
        for a in training:
            for b in training:
                fusable[a, b] = a < b
    hardware = cluster.hardware
    links = np.zeros((2, len(TIERS), 2))
    for k, kind in enumerate(LINK_KINDS):
        for n, tier in enumerate(TIERS):
            if f"{kind}.{tier}.bandwidth" in hardware.constants:
                rate = hardware.link(kind, tier)  # type: ignore[arg-type]
                links[k, n] = rate.alpha_s, rate.beta_s

    def ints(values: object, *shape: int) -> np.ndarray:
        return np.array(values, dtype=np.int64).reshape(shape)

    def floats(values: object, *shape: int) -> np.ndarray:
        return np.array(values, dtype=np.float64).reshape(shape)

    fractions = [q.completed_frac for q in work.quantiles] if phases > 1 else [1.0]
    return Tables(
        limits=ints(space.directories[0].limits, 3),
        order=ints(order, -1),
        rank=ints([place[v] for v in range(len(invocations))], -1),
        first=ints(c.first[:-1], -1),
        extent=ints(c.extents, -1, 3),
        layout=ints(c.layouts, -1),
        microbatches=ints(c.microbatches, -1),
        time_s=floats(c.time_s, -1),
        bubble_s=floats(c.bubble_s, -1),
        phase_s=floats(c.phase_s, -1, phases),
        weights=floats(c.weights, -1),
        optimizer=floats(c.optimizer, -1),
        transient=floats(c.transient, -1),
        model=ints([model_number[v.model] for v in invocations], -1),
        tau=ints([pipeline.tau.get(v.model, 0) for v in invocations], -1),
        trains=ints([v.role == "training" for v in invocations], -1),
        trained=ints([pipeline.training.get(v.model, -1) for v in invocations], -1),
        data=ints(data, -1, 3),
        volume=floats([pipeline.volume_bytes(e.container, work) for e in pipeline.data], -1),
        fractions=floats(fractions, -1),
        pairs=ints([(u, v) for u, v, _ in pipeline.weight_pairs], -1, 2),
        publications=ints([(index[e.source], index[e.target]) for e in pipeline.publications], -1, 2),
        weight_bytes=floats(
            [float(pipeline.model_of(i).parameters * work.scalar_bytes) for i in range(len(roles))], -1
        ),
        fusable=fusable,
        p2p=links[1],
        collective=links[0],
        steps=options.steps,
        reserve_source=int(options.reserve_source),
        usable_bytes=float(cluster.usable_bytes),
        step_tokens=float(work.step_tokens),
        gpus=float(cluster.size),
    )
