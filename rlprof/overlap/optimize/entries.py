"""Entries of the decision log that the algorithm makes: what it saw and what it decided, as documents."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from rlprof.analysis.trials import PairedComparison
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.optimize.combine import Combination, Item
from rlprof.overlap.optimize.comparison import Comparison
from rlprof.overlap.optimize.log import DecisionLog
from rlprof.overlap.optimize.machine import Sides
from rlprof.overlap.optimize.options import Options
from rlprof.overlap.optimize.search import Candidate, Found
from rlprof.overlap.optimize.steps import Step
from rlprof.overlap.optimize.windows import Window
from rlprof.overlap.optimize.workload import Profile


class Entries:
    """Adds entries to a log.

    Parameters
    ----------
    log : DecisionLog
        Told of everything.
    """

    def __init__(self, log: DecisionLog) -> None:
        self.log = log

    def started(self, native: CallGraph, options: Options) -> None:
        """The search begins."""
        self.log.add(
            "started",
            region=native.region,
            calls=len(native),
            graph=native.hash,
            options=options.to_dict(),
        )

    def ended(self, reason: str, graph: CallGraph, steps: Iterable[Step], *, stopped: bool) -> None:
        """It ends with a graph."""
        self.log.add("ended", reason=reason, stopped=stopped, graph=graph.hash, steps=[str(s) for s in steps])

    def ranking(
        self, number: int, profile: Profile, windows: Iterable[Window], chosen: Iterable[Window]
    ) -> None:
        """A round ranks the windows of a profile."""
        self.log.add(
            "ranking",
            round=number,
            time_s=profile.measurement.time_s,
            source=profile.source,
            windows=[w.to_dict() for w in windows],
            targets=[w.node for w in chosen],
        )

    def candidates(
        self,
        number: int,
        target: str,
        found: Found,
        kept: Sequence[Candidate],
        tried: Container[tuple[Step, ...]],
    ) -> None:
        """What may run in a window: what of it is tried, and what is refused."""
        shown = [
            {
                "steps": c.name,
                "partner": c.partner,
                "delta_s": c.delta_s,
                "partner_s": c.partner_s,
                "guess": c.guess,
                "basis": c.basis,
                "graph": c.graph.hash,
                "kept": c in kept,
                "tried": c.steps in tried,
            }
            for c in found.candidates
        ]
        refused = [{"steps": r.name, "reason": r.reason} for r in found.refused]
        self.log.add("candidates", round=number, target=target, candidates=shown, refused=refused)

    def not_measured(self, number: int, target: str, steps: str, reason: str | Exception) -> None:
        """A candidate cannot be tried; an exception is what a program raised in a trial."""
        if isinstance(reason, Exception):
            reason = f"{type(reason).__name__}: {reason}"
        self.log.add("not measured", round=number, target=target, steps=steps, reason=reason)

    def compared(
        self,
        number: int,
        target: str,
        work: Comparison,
        steps: str,
        result: PairedComparison,
        sides: Sides,
        *,
        kept: bool,
        reused: bool,
    ) -> None:
        """A candidate was compared with the present graph by local trials."""
        self.log.add(
            "compared",
            round=number,
            target=target,
            steps=steps,
            comparison=str(work),
            windows=work.windows,
            result=result.to_dict(),
            outcome="kept" if kept else "dropped",
            reused=reused,
            machine=sides.summary(),
        )

    def combined(
        self,
        number: int,
        made: Iterable[tuple[Combination, str | None]],
        refused: Iterable[tuple[Item, Sequence[Item], str]],
    ) -> None:
        """Candidates in one graph, each with why it cannot be used, and those that cannot join others."""
        combinations = [
            {
                "steps": "; ".join(map(str, one.steps)),
                "gain_s": one.gain_s,
                "graph": one.graph.hash,
                "reason": reason,
            }
            for one, reason in made
        ]
        apart = [
            {
                "steps": "; ".join(map(str, item.steps)),
                "others": " and ".join("; ".join(map(str, o.steps)) for o in others) or "the graph",
                "reason": reason,
            }
            for item, others, reason in refused
        ]
        self.log.add("combined", round=number, combinations=combinations, refused=apart)

    def validated(
        self,
        number: int | None,
        steps: Iterable[Step],
        graph: CallGraph,
        result: PairedComparison,
        outcome: str,
        *,
        reused: bool,
    ) -> None:
        """Complete iterations were compared; a number of None: all rounds together."""
        self.log.add(
            "validated",
            round=number,
            steps=[str(s) for s in steps],
            graph=graph.hash,
            result=result.to_dict(),
            outcome=outcome,
            reused=reused,
        )
