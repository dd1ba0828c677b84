"""Candidates for a window: what may run in it, in the order of specification A, section 6, with refusals.

Only legality, memory and estimates are looked at here; what pays is measured later.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

from rlprof.analysis.batch_time import Estimated
from rlprof.overlap.callgraph import Call, CallGraph
from rlprof.overlap.errors import OverlapError
from rlprof.overlap.optimize.refusals import why_ordered
from rlprof.overlap.optimize.steps import Step, derive, step
from rlprof.overlap.transforms.common import GroupKey, Reach, beside, group_key

#: Estimates the duration of a node with a share of its batch: seconds, whether that is a guess, its basis.
Estimate = Callable[[str, float], "Estimated | tuple[float, bool] | None"]

#: What steps make of a graph; a text: why they are refused.
Known = dict[tuple[Step, ...], "CallGraph | str"]


@dataclass(frozen=True)
class Candidate:
    """Something that may run in a window.

    Parameters
    ----------
    target : str
        The node whose window it is (v).
    partner : str
        The node that is to run beside it (w).
    steps : tuple of Step
        How.
    graph : CallGraph
        The complete graph with it.
    delta_s : float or None
        ``|T(v) - That(w)|``; None: a duration is not known.
    partner_s : float or None
        That: duration of the partner after any split.
    guess : bool
        That was not measured at this batch size.
    order : int
        Place in the search.
    basis : str
        What That rests on, if it is of a part of a batch and no guess.
    """

    target: str
    partner: str
    steps: tuple[Step, ...]
    graph: CallGraph
    delta_s: float | None
    partner_s: float | None
    guess: bool
    order: int
    basis: str = ""

    @property
    def name(self) -> str:
        """The steps in words."""
        return "; ".join(map(str, self.steps))


@dataclass(frozen=True)
class Refused:
    """Something that may not, and why.

    Parameters
    ----------
    target : str
        The node whose window it is.
    name : str
        What was tried, in words.
    reason : str
        Rule and dependency, boundary or missing declaration.
    """

    target: str
    name: str
    reason: str


@dataclass(frozen=True)
class Found:
    """Result of a search.

    Parameters
    ----------
    candidates : tuple of Candidate
        In the order of the search.
    refused : tuple of Refused
        Likewise.
    """

    candidates: tuple[Candidate, ...]
    refused: tuple[Refused, ...]

    def best(
        self,
        most: int,
        tried: Container[tuple[Step, ...]] = (),
        dropped: Container[tuple[Step, ...]] = (),
    ) -> tuple[Candidate, ...]:
        """Choose those to try: by delta, ties in the order of the search, those of unknown delta at the end.

        The best of every kind of transformation comes before a second one of a kind: That is a guess until
        parts of a batch were measured, and a guess that is wrong is wrong for all of its kind.

        Parameters
        ----------
        most : int
            L.
        tried : container of tuple of Step
            Left away: they were tried for another window of the round already.
        dropped : container of tuple of Step
            Come last: they were tried in an earlier round and were not faster.
        """
        order = sorted(
            (c for c in self.candidates if c.steps not in tried),
            key=lambda c: (
                c.steps in dropped,
                c.delta_s is None,
                0.0 if c.delta_s is None else round(c.delta_s, 9),
                c.order,
            ),
        )
        first: dict[str, Candidate] = {}
        for candidate in order:
            if candidate.steps not in dropped:
                first.setdefault(candidate.steps[0].kind if candidate.steps else "", candidate)
        rest = [c for c in order if c not in first.values()]
        chosen = [*first.values(), *rest][:most]
        return tuple(c for c in order if c in chosen)


def search(
    graph: CallGraph,
    target: str,
    durations_s: Mapping[str, float],
    *,
    estimate: Estimate | None = None,
    groups: Sequence[int] = (2,),
    check: Callable[[CallGraph], str | None] | None = None,
    known: Known | None = None,
) -> Found:
    """Search candidates for a window.

    Parameters
    ----------
    graph : CallGraph
        The present complete graph.
    target : str
        Node v.
    durations_s : mapping of str to float
        T by node: mean duration of an invocation.
    estimate : callable, optional
        Gives That of a node and the share of its batch that is left; by default T times the share, a guess.
    groups : sequence of int
        Numbers of parts to split into.
    check : callable, optional
        Says why a legal graph cannot be used all the same (memory); None: it can.
    known : dict, optional
        What steps make of this graph, or why they are refused; filled, for searches for other windows of it.

    Returns
    -------
    Found
    """
    known = {} if known is None else known
    return _Search(graph, target, durations_s, estimate, tuple(groups), check, known).run()


class _Search:
    def __init__(
        self,
        graph: CallGraph,
        target: str,
        durations_s: Mapping[str, float],
        estimate: Estimate | None,
        groups: tuple[int, ...],
        check: Callable[[CallGraph], str | None] | None,
        known: Known,
    ) -> None:
        self.graph, self.target, self.durations_s = graph, target, durations_s
        self.estimate, self.groups, self.check, self.known = estimate, groups, check, known
        self.candidates: list[Candidate] = []
        self.refused: list[Refused] = []
        self.seen: set[tuple[Step, ...]] = set()
        self.own = _workers(graph, target)
        self._reach: dict[str, Reach] = {}

    def run(self) -> Found:
        node = self.target
        while (parent := self._parent(node)) is not None and not self.candidates:
            if self.graph.nodes[parent].kind == "loop":
                self._in_loop(node, parent)
            else:
                self._in_plain(node, parent)
            node = parent
        return Found(tuple(self.candidates), tuple(self.refused))

    def _parent(self, node: str) -> str | None:
        """Nearest node around, up to the region."""
        return None if node == self.graph.region else self.graph.nodes[node].parent

    def _in_loop(self, node: str, loop: str) -> None:
        """The parent is a loop: split and interleave, then the graph around the loop."""
        inside = self._partners(self._internal(loop), node)
        marked = loop != self.graph.region
        if inside and marked:
            for around in self._loops_around(loop):
                self._temporal(around, inside)
            self._spatial(loop, inside)
        above = self._parent(loop) if marked else None
        if above is not None:
            self._around(loop, above, inside)
        self._training()
        if not marked:
            self._moves(node, self._internal(loop))

    def _in_plain(self, node: str, parent: str) -> None:
        """Can it move itself? Then the others beside it."""
        self._moves(node, self._internal(parent))

    def _moves(self, node: str, items: list[str]) -> None:
        for partner in self._partners(items, node):
            for moved in (node, partner):
                self._try((step("rewire", moved, stream="own"),), partner, 1)

    def _temporal(self, loop: str, partners: list[str]) -> None:
        for groups in self.groups:
            steps = (step("split_temporal", loop, groups=groups), step("interleave", loop))
            self._try(steps, self._nearest(partners, 1), 1)

    def _spatial(self, loop: str, partners: list[str]) -> None:
        for groups in self.groups:
            steps = (step("split_spatial", loop, groups=groups), step("interleave", loop))
            self._try(steps, self._nearest(partners, groups), groups)

    def _around(self, loop: str, above: str, inside: list[str]) -> None:
        """The graph around the loop: other loops that move, consumers to cut, nodes that can move."""
        for item in self._internal(above):
            if item == loop:
                continue
            spec = self.graph.nodes[item]
            if spec.kind == "loop":
                if _workers(self.graph, item).isdisjoint(self.own):
                    self._try((step("rewire", item, stream="own"),), item, 1)
            elif inside and self._consumes(item, loop) and self._splittable(item):
                for groups in self.groups:
                    self._try(
                        (
                            step("split_spatial", loop, groups=groups, downstream=(item,)),
                            step("interleave", loop),
                        ),
                        self._nearest(inside, groups),
                        groups,
                    )
            elif not self._splittable(item) and _workers(self.graph, item).isdisjoint(self.own):
                self._try((step("rewire", item, stream="own"),), item, 1)
        if inside and above != self.graph.region and len(self._internal(above)) > 1:
            # all of it in parts: no part waits at the loop's ends for the others
            for groups in self.groups:
                steps = (step("split_spatial", above, groups=groups), step("interleave", above))
                self._try(steps, self._nearest(inside, groups), groups)

    def _training(self) -> None:
        """Training on one rollout epoch beside the next (figure 9b), where v is in one of the two."""
        for update in sorted(p for p, n in self.graph.nodes.items() if n.role == "update"):
            if not self.graph.of_node(update):
                continue
            training = self._loops_above(update)
            mine = any(_within(self.target, loop) or _within(loop, self.target) for loop in training)
            around = self._loops_holding_loops() if mine else self._loops_above(self.target)
            epochs = [loop for loop in around if not any(_related(loop, t) for t in training)]
            for epoch in epochs:
                known = len(self.refused)
                for minibatches in training:
                    one = step("train_beside_next_epoch", epoch, training=minibatches)
                    self._try((one,), epoch if mine else minibatches, 1)
                del self.refused[known + 1 :]  # the loops of training are refused for one reason

    def _loops_holding_loops(self) -> list[str]:
        loops = sorted({loop for call in self.graph.calls for loop, _ in call.indices})
        return [loop for loop in loops if any(inner.startswith(loop + "/") for inner in loops)]

    def _loops_above(self, path: str) -> list[str]:
        """Loops around a node that the graph has iterations of, outermost first."""
        calls = self.graph.below(path)
        return [] if not calls else [loop for loop, _ in calls[0].indices if _within(path, loop)]

    def _loops_around(self, loop: str) -> list[str]:
        """A loop and those around it inside of the region, nearest first."""
        return list(reversed(self._loops_above(loop)))

    def _internal(self, path: str) -> list[str]:
        """Nodes directly inside of a node, in order of their first call."""
        depth = path.count("/") + 1
        found: dict[str, None] = {}
        for call in self.graph.below(path):
            steps = call.node.split("/")
            if len(steps) > depth:
                found["/".join(steps[: depth + 1])] = None
        return list(found)

    def _partners(self, items: list[str], node: str) -> list[str]:
        found = []
        for item in items:
            if item == node or _within(node, item):
                continue
            shared = sorted(_workers(self.graph, item) & self.own)
            if shared:
                reason = f"L5: both are of component worker {shared[0]}, which serves one call at a time"
                self._refuse(f"{item} beside it", reason)
            else:
                found.append(item)
        return found

    def _consumes(self, item: str, loop: str) -> bool:
        from rlprof.overlap.bindings import sources

        inside = {call.id for call in self.graph.below(loop)}
        return any(not inside.isdisjoint(sources(call.arguments)) for call in self.graph.below(item))

    def _splittable(self, item: str) -> bool:
        nodes = {call.node for call in self.graph.below(item)}
        return all(self.graph.nodes[n].batch is not None and not self.graph.nodes[n].role for n in nodes)

    def _nearest(self, partners: list[str], groups: int) -> str:
        """The partner whose duration is nearest to the window."""
        window = self.durations_s.get(self.target)

        def distance(partner: str) -> float:
            there = self._that(partner, groups)
            return float("inf") if window is None or there is None else abs(window - there[0])

        return min(partners, key=distance)

    def _that(self, node: str, groups: int) -> Estimated | None:
        if self.estimate is not None and (found := self.estimate(node, 1 / groups)) is not None:
            return Estimated(*found)
        duration = self.durations_s.get(node)
        return None if duration is None else Estimated(duration / groups, groups > 1)

    def _try(self, steps: tuple[Step, ...], partner: str, groups: int) -> None:
        if steps in self.seen:
            return
        self.seen.add(steps)
        name = "; ".join(map(str, steps))
        if steps not in self.known:
            try:
                self.known[steps] = derive(self.graph, steps)
            except OverlapError as error:
                self.known[steps] = error.what
        graph = self.known[steps]
        if isinstance(graph, str):
            self._refuse(name, graph)
            return
        moved = all(one.kind == "rewire" for one in steps)
        reason = self._useless(graph, partner, moved=moved) or (
            self.check(graph) if self.check is not None else None
        )
        if reason is not None:
            self._refuse(name, reason)
            return
        window, that = self.durations_s.get(self.target), self._that(partner, groups)
        self.candidates.append(
            Candidate(
                target=self.target,
                partner=partner,
                steps=steps,
                graph=graph,
                delta_s=None if window is None or that is None else abs(window - that[0]),
                partner_s=None if that is None else that[0],
                guess=that is None or that.guess,
                order=len(self.candidates),
                basis="" if that is None or that.guess or groups == 1 else that.basis,
            )
        )

    def _refuse(self, name: str, reason: str) -> None:
        found = Refused(self.target, name, reason)
        if found not in self.refused:
            self.refused.append(found)

    def _reach_of(self, graph: CallGraph) -> Reach:
        """What leads to what: only refusals need it, several of one graph."""
        if graph.hash not in self._reach:
            self._reach[graph.hash] = Reach(graph)
        return self._reach[graph.hash]

    def _useless(self, graph: CallGraph, partner: str, *, moved: bool) -> str | None:
        mine, theirs = graph.below(self.target), graph.below(partner)
        # calls of another group are in another stream already: what a move changes is the order within one
        pairs = _within_groups(mine, theirs) if moved else [(_few(mine), theirs), (mine, theirs)]
        if any(beside(graph, some, others) is not None for some, others in pairs):
            return None
        reach = self._reach_of(graph)
        return f"no call of {partner} may run beside one of {self.target}: {why_ordered(reach, pairs)}"


def _within_groups(
    mine: tuple[Call, ...], theirs: tuple[Call, ...]
) -> list[tuple[tuple[Call, ...], tuple[Call, ...]]]:
    """Calls of one group of a split, and the others of it; all others, where they are not split so."""
    groups: dict[GroupKey, tuple[list[Call], list[Call]]] = {}
    for side, calls in enumerate((mine, theirs)):
        for call in calls:
            groups.setdefault(group_key(call), ([], []))[side].append(call)
    return [(tuple(some), tuple(others) or theirs) for some, others in groups.values() if some]


def _few(calls: tuple[Call, ...]) -> tuple[Call, ...]:
    """Some in the middle, which tell most of the time."""
    middle = len(calls) // 2
    return calls[middle : middle + 4]


def _workers(graph: CallGraph, path: str) -> frozenset[str]:
    found = (graph.nodes[call.node].component for call in graph.below(path))
    return frozenset(worker for worker in found if worker)


def _within(path: str, around: str) -> bool:
    return path == around or path.startswith(around + "/")


def _related(one: str, other: str) -> bool:
    return _within(one, other) or _within(other, one)
