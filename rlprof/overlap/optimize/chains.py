"""What must come before and after each call of a native graph, in every legal graph of the same work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rlprof.overlap.bindings import Ref, leaves, sources
from rlprof.overlap.callgraph import Call, CallGraph
from rlprof.overlap.dependencies import waits_of
from rlprof.overlap.errors import NotBySampleError
from rlprof.overlap.parts import as_pack, part_arguments
from rlprof.overlap.sample_views import row_size, rows_in
from rlprof.overlap.specs import Cell


@dataclass(frozen=True)
class Chains:
    """Longest chains of calls, each of which needs a value or state of the one before.

    Parameters
    ----------
    head_s : mapping of str to float
        By call: seconds of the longest chain that ends before it; where batches may be split, before any
        part of it.
    tail_s : mapping of str to float
        By call: of the longest one that begins when it is complete, or any part of it.
    longest_s : float
        Of all.
    """

    head_s: Mapping[str, float]
    tail_s: Mapping[str, float]
    longest_s: float

    def around(self, calls: Iterable[str]) -> tuple[float, float]:
        """Head and tail of work that some of these calls do, it is not known which: the least of each."""
        known = list(calls)
        if not known:
            return 0.0, 0.0
        return min(self.head_s[c] for c in known), min(self.tail_s[c] for c in known)


def chains(native: CallGraph, durations_s: Mapping[str, float], *, whole_batches: bool) -> Chains:
    """Find the longest chains around every call.

    Parameters
    ----------
    native : CallGraph
        The native graph.
    durations_s : mapping of str to float
        By node: what one of its calls, or the smallest part of one, adds to a chain, seconds.
    whole_batches : bool
        No call is split. Else a dependency counts before a call only if each part of it needs some part of
        the other, and after a call only if each part of it is needed: one that takes only sample 3 does not
        wait for the other parts.

    Notes
    -----
    Storage that is written again could be copied, and the order of streams can be changed: neither counts.
    """
    links = list(_links(native, whole_batches=whole_batches))
    takes = [durations_s[call.node] for call in native.calls]
    head_s, tail_s = [0.0] * len(takes), [0.0] * len(takes)
    for link in links:
        if link.every_target:
            head_s[link.target] = max(head_s[link.target], head_s[link.source] + takes[link.source])
    for link in reversed(links):
        if link.every_source:
            tail_s[link.source] = max(tail_s[link.source], tail_s[link.target] + takes[link.target])
    ids = [call.id for call in native.calls]
    longest_s = max((sum(three) for three in zip(head_s, takes, tail_s, strict=True)), default=0.0)
    return Chains(dict(zip(ids, head_s, strict=True)), dict(zip(ids, tail_s, strict=True)), longest_s)


@dataclass(frozen=True, slots=True)
class _Link:
    """The target needs the source, by place; whether each part does, and whether each part is needed."""

    source: int
    target: int
    every_target: bool
    every_source: bool


def _links(native: CallGraph, *, whole_batches: bool) -> Iterator[_Link]:
    """Yield what needs what, by the place of the target."""
    cells = {str(access.cell): access.cell for call in native.calls for access in call.accesses}
    for here, (call, waits) in enumerate(zip(native.calls, waits_of(native), strict=True)):
        data: set[int] = set()
        state: dict[int, list[Cell]] = {}
        for source, kind, item in waits:
            if kind == "data":
                data.add(source)
            elif kind == "state":
                state.setdefault(source, []).append(cells[item])
        cut = not whole_batches and _may_be_cut(native, call)
        by_all = _needed_by_every_part(native, call) if cut and data else frozenset()
        for source in sorted(data | set(state)):
            other = native.calls[source]
            seen = state.get(source, [])
            every_target = not cut or other.id in by_all or _all_samples(native, call, seen)
            every_source = (
                whole_batches
                or not _may_be_cut(native, other)
                or _all_samples(native, other, seen)
                or (source in data and _whole_is_bound(native, other, call))
            )
            yield _Link(source, here, every_target, every_source)


def _may_be_cut(native: CallGraph, call: Call) -> bool:
    return native.nodes[call.node].batch is not None and call.batch_size is not None


def _needed_by_every_part(native: CallGraph, call: Call) -> frozenset[str]:
    """Calls of which each part of a call is given something; of a list of samples a part gets its own."""
    node = native.nodes[call.node]
    needed = frozenset(sources(call.arguments))
    if node.batch is None or not node.batch.sequences:
        return needed
    try:
        for sample in range(call.batch_size or 0):
            needed &= set(sources(part_arguments(as_pack(call.arguments), node, (sample,))))
    except NotBySampleError:
        return frozenset()
    return needed


def _all_samples(native: CallGraph, call: Call, cells: Iterable[Cell]) -> bool:
    """Whether some of these cells belong to each part of a call, however it is cut."""
    if any(not native.states[cell.state].by_sample for cell in cells):
        return True
    return {cell.key for cell in cells} >= set(range(call.batch_size or 0)) and call.batch_size is not None


def _whole_is_bound(native: CallGraph, source: Call, target: Call) -> bool:
    """Whether an argument of the target shows all samples of what the source returns."""
    batch, size = native.nodes[source.node].batch, source.batch_size or 0
    assert batch is not None
    for leaf in leaves(target.arguments):
        if not isinstance(leaf, Ref) or leaf.call != source.id:
            continue
        if leaf.path and leaf.path[0] in batch.shared_outputs:
            continue  # one part has it
        if leaf.view is None:
            return True
        try:
            shown = rows_in(leaf.view, row_size(leaf.view, batch.axis, size, source.id), source.id)
        except NotBySampleError:
            continue
        if {sample for _, sample in shown} == set(range(size)):
            return True
    return False
