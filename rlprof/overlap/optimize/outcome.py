"""What comes out of an optimisation."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlprof.analysis.batch_time import BatchTimes
from rlprof.analysis.interference import Ran
from rlprof.analysis.trials import PairedComparison
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.optimize.cost import LEVERS, NOTHING, SEARCH, Cost, Trained
from rlprof.overlap.optimize.levers import Measured, Row
from rlprof.overlap.optimize.steps import Step
from rlprof.overlap.optimize.store import Store
from rlprof.overlap.optimize.workload import Measurement, Profile
from rlprof.unavailable import Unavailable


@dataclass(frozen=True)
class Round:
    """One round.

    Parameters
    ----------
    profile : Profile
        Of the graph at its start.
    before, after : CallGraph
        The graph at its start and at its end; equal if nothing was accepted.
    validation : PairedComparison or None
        Of complete iterations; None: there was nothing to validate.
    """

    profile: Profile
    before: CallGraph
    after: CallGraph
    validation: PairedComparison | None

    @property
    def accepted(self) -> bool:
        """A graph was accepted."""
        return self.after is not self.before


@dataclass(frozen=True)
class Optimization:
    """What came out.

    Parameters
    ----------
    native, graph : CallGraph
        Before and after.
    steps : tuple of Step
        From one to the other.
    rounds : tuple of Round
        Those that were finished, and one that ended after a combination of it was not accepted.
    iterations : tuple of (str, Measurement)
        All complete iterations that were trained in this call, with the hash of their graph.
    ended : str
        Why it ended; where it was stopped, also what was measured of a last round that was not accepted.
    stopped : bool
        It was interrupted or its budget was spent: another call with the same store goes on.
    batch_times : BatchTimes
        Estimates of durations by batch size.
    total : PairedComparison or None
        Complete iterations, natively and by the graph; None: nothing was accepted, or it was not measured.
    intact : bool
        The program is as training left it; otherwise go on from a checkpoint.
    together : tuple of tuple of Ran
        Runs of trials in which calls overlapped, for factors of interference.
    levers : tuple of Row
        Settings that were tried alone; both sides of `total` have those that were kept, unless one is kept
        for what overlaps alone.
    cost : Cost
        What it took, over all sessions.
    trained : tuple of Trained
        All complete iterations, those of earlier sessions under the same conditions too.
    not_in_all : str
        Why the graph and its levers together were not compared with the native program; empty: nothing is
        left to compare.
    """

    native: CallGraph
    graph: CallGraph
    steps: tuple[Step, ...]
    rounds: tuple[Round, ...]
    iterations: tuple[tuple[str, Measurement], ...]
    ended: str
    stopped: bool
    batch_times: BatchTimes
    total: PairedComparison | None = None
    intact: bool = True
    levers: tuple[Row, ...] = ()
    together: tuple[tuple[Ran, ...], ...] = ()
    cost: Cost = NOTHING
    trained: tuple[Trained, ...] = ()
    not_in_all: str = ""

    def including(self, measured: Measured) -> Optimization:
        """Return it with levers that were tried, and what all took until the later of the two."""
        later = len(measured.trained) > len(self.trained) or measured.cost.all_s > self.cost.all_s
        return replace(
            self,
            levers=(*self.levers, *measured.rows),
            iterations=(*self.iterations, *measured.iterations),
            stopped=self.stopped or measured.stopped,
            ended="interrupted" if measured.stopped else self.ended,
            cost=measured.cost if later else self.cost,
            trained=measured.trained if later else self.trained,
        )

    @property
    def unfinished(self) -> tuple[str, ...]:
        """What another call with the same store goes on with; none: all of it is done.

        A graph that was searched to its end is found, whatever levers the budget left undecided.
        """
        levers = ", ".join(dict.fromkeys(row.lever for row in self.levers if row.undecided))
        undecided = f"the budget ended before it was decided whether levers pay: {levers}" if levers else ""
        parts = (self.ended if self.stopped else "", undecided, self.not_in_all)
        return tuple(part for part in parts if part)

    def up_to(self, store: Store) -> Optimization:
        """Return it with all that was spent and trained until now."""
        return replace(self, cost=store.cost(), trained=store.trained())

    @property
    def total_s(self) -> float:
        """Wall time of all sessions; parts that are reported apart are not in it."""
        return self.cost.total_s

    @property
    def retained_s(self) -> float:
        """What of it was training that goes on."""
        return self.cost.retained_s

    @property
    def searched_s(self) -> float:
        """Wall time of levers and search in the latest session: what its budget was for."""
        return self.cost.session_s(LEVERS, SEARCH)

    @property
    def net_overhead_s(self) -> float:
        """What the optimisation cost beside training."""
        return self.cost.net_s

    @property
    def gain_s(self) -> float:
        """Gain in an iteration, in seconds; where it was not measured, the accepted rounds' together."""
        if self.total is not None:
            return self.total.gain_s
        return sum(r.validation.gain_s for r in self.rounds if r.accepted and r.validation is not None)

    @property
    def paid_back_after(self) -> float | Unavailable:
        """Iterations after which the net overhead has been gained."""
        if self.gain_s <= 0:
            return Unavailable("nothing was gained")
        return self.net_overhead_s / self.gain_s


def interrupted(native: CallGraph, levers: Measured, *, intact: bool) -> Optimization:
    """Return what there is after an interrupt before the first round."""
    nothing = Optimization(
        native=native,
        graph=native,
        steps=(),
        rounds=(),
        iterations=(),
        ended="interrupted",
        stopped=True,
        batch_times=BatchTimes(),
        intact=intact,
    )
    return nothing.including(levers)
