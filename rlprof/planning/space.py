"""The plans that are searched, as small integers; and who judges them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from rlprof.planning.candidates import Directory
from rlprof.planning.evaluate import Evaluation, Problem, evaluate
from rlprof.planning.plan import Plan

#: For each invocation the position of its candidate and the number of its origin.
State = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is kept of an evaluation: enough for the objective, whatever the best score is by then.

    Parameters
    ----------
    score : float
        Tokens per second, without a penalty.
    utilisation_frac : float
        Mean over GPUs of the share of time held.
    memory_ratio : float
        Peak over usable memory.
    """

    score: float
    utilisation_frac: float
    memory_ratio: float

    @property
    def feasible(self) -> bool:
        """Whether the peak fits on every GPU."""
        return self.memory_ratio <= 1.0


@dataclass(frozen=True, eq=False)
class Space:
    """All plans of one problem.

    Parameters
    ----------
    problem : Problem
        With the staleness that is searched.
    directories : tuple of Directory
        Of each invocation, in the order of the pipeline.
    memo : dict
        What judges keep of the directories; spaces that differ in staleness alone may share it.
    """

    problem: Problem
    directories: tuple[Directory, ...]
    memo: dict[str, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def origins(self) -> tuple[tuple[int, ...], ...]:
        """Number of origins of each candidate of each invocation."""
        return tuple(tuple(d.origins(c) for c in d.candidates) for d in self.directories)

    @cached_property
    def size(self) -> int:
        """Number of plans."""
        total = 1
        for counts in self.origins:
            total *= sum(counts)
        return total

    def plan(self, state: State) -> Plan:
        """Return the plan of a state."""
        return Plan(
            {
                d.invocation: d.candidates[c].at(d.origin(d.candidates[c], o))
                for d, (c, o) in zip(self.directories, state, strict=True)
            }
        )

    def state(self, plan: Plan) -> State | None:
        """Return the state of a plan; None if it is not in the space."""
        found = [d.find(plan[d.invocation]) for d in self.directories if d.invocation in plan.assignments]
        inside = [f for f in found if f is not None]
        return tuple(inside) if len(inside) == len(self.directories) else None


class Judge(Protocol):
    """Anything that evaluates states of one space."""

    def judge(self, states: Sequence[State]) -> list[Verdict]:
        """Return a verdict on each state."""
        ...

    def critical_s(self, state: State) -> list[float]:
        """Return for each invocation its time on the critical path of the schedule, in seconds."""
        ...


@dataclass
class PlainJudge:
    """Judges with `evaluate`: slow, and the reference.

    Parameters
    ----------
    space : Space
        What is judged.
    """

    space: Space

    def evaluate(self, state: State) -> Evaluation:
        """Return the full evaluation of a state."""
        return evaluate(self.space.problem, self.space.plan(state))

    def judge(self, states: Sequence[State]) -> list[Verdict]:
        """Return a verdict on each state."""
        made = (self.evaluate(state) for state in states)
        return [Verdict(e.score, e.utilisation_frac, e.memory_ratio) for e in made]

    def critical_s(self, state: State) -> list[float]:
        """Return for each invocation its time on the critical path of the schedule, in seconds."""
        timeline = self.evaluate(state).timeline
        total = [0.0] * len(state)
        for i in timeline.critical_path():
            node = timeline.graph.nodes[i]
            if node.kind == "op":
                total[node.vertex] += timeline.finish_s[i] - timeline.start_s[i]
        return total
