"""What calls returned in all recorded runs and have to return again: flags, and containers of the same items.

There is one ``False``, so it does not show whether a ``False`` that a call is given is the one that another
returned, or was written there. Nor does it show whether code between calls branches on a flag. A graph
holds the value of the recorded runs; so it may be run only as long as such values stay what they were. The
same goes for containers that code between calls takes apart: a graph knows the items of the recorded runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from rlprof.overlap.batches import not_joined
from rlprof.overlap.bindings import Binding, Gather, Pack, Path, Ref, Slice, leaves
from rlprof.overlap.errors import ReplayError
from rlprof.overlap.known import is_shared, leaves_of, whole_of
from rlprof.overlap.specs import Key
from rlprof.overlap.values import at_path, describe, take_apart
from rlprof.text import counted

if TYPE_CHECKING:
    from rlprof.overlap.call_record import CallRecord
    from rlprof.overlap.callgraph import CallGraph
    from rlprof.overlap.trace import RunTrace


#: Places in one output that are listed.
_LISTED = 256


@dataclass(frozen=True, slots=True)
class Flag:
    """A value that a call returned in every recorded run.

    Parameters
    ----------
    call : str
        Id of the call, as `Invocation.id`.
    path : tuple of (int or str)
        Where in its output.
    value : object
        What was there.
    consumer : str
        A later call that was given the same, or the region, which returned it; empty: none, the value is
        True or False.
    """

    call: str
    path: Path
    value: Any
    consumer: str = ""


@dataclass(frozen=True, slots=True)
class Layout:
    """Items of a container that a call returned in every recorded run.

    Parameters
    ----------
    path : tuple of (int or str)
        Where in its output.
    keys : tuple of (int or str)
        Of its items.
    """

    path: Path
    keys: tuple[Key, ...]


def find_layouts(runs: Sequence[RunTrace]) -> Mapping[str, tuple[Layout, ...]]:
    """Find the containers that calls returned, by call, where they had the same keys in all runs.

    Parameters
    ----------
    runs : sequence of RunTrace
        Ended.
    """
    found = [{(record.id, path): keys for record, path, keys in run.lineage.layouts} for run in runs]
    by_call: dict[str, tuple[Layout, ...]] = {}
    for (call, path), keys in found[0].items():
        if all(other.get((call, path)) == keys for other in found[1:]):
            by_call[call] = (*by_call.get(call, ()), Layout(path, keys))
    return by_call


def find_not_joined(runs: Sequence[RunTrace]) -> Mapping[str, tuple[Path, ...]]:
    """Find what calls on batches returned that could not be joined of parts, by call.

    Parameters
    ----------
    runs : sequence of RunTrace
        Ended; the first is looked at.
    """
    found = {}
    for record in runs[0].records:
        batch, output = record.node.batch, record.output
        if batch is None or not record.batch_size or output is None:
            continue
        paths = tuple(islice(not_joined(whole_of(output), batch, record.batch_size), _LISTED))
        if paths:
            found[record.id] = paths
    return found


def taken_apart(
    graph: CallGraph, layouts: Mapping[str, tuple[Layout, ...]]
) -> Mapping[str, tuple[Layout, ...]]:
    """Choose the containers whose items a graph uses one by one, so that further ones would be left out.

    Parameters
    ----------
    graph : CallGraph
        Native or transformed.
    layouts : mapping of str to tuple of Layout
        By call.

    Notes
    -----
    Of a dict of which only some items are used, code between calls asked for these by their keys. Lists in
    what parts of a batch return are looked at where the parts are joined: one with an item for each sample
    has fewer items there, and is no list of things that are joined one by one.
    """
    used: dict[tuple[str, Path], set[Key]] = {}
    joined: dict[str, set[Path]] = {}
    for binding in (*(call.arguments for call in graph.calls), graph.output):
        for leaf in leaves(binding):
            if isinstance(leaf, Ref):
                origin = graph.by_id[leaf.call].origin
                for depth, key in enumerate(leaf.path):
                    used.setdefault((origin, leaf.path[:depth]), set()).add(key)
        for leaf in gathered(binding):
            joined.setdefault(graph.by_id[leaf.call].origin, set()).add(leaf.path)
    found = {}
    for call, known in layouts.items():
        chosen = tuple(
            layout
            for layout in known
            if (
                (keys := used.get((call, layout.path)))
                and (isinstance(layout.keys[0], int) or keys >= set(layout.keys))
            )
            or (
                isinstance(layout.keys[0], int)
                and any(layout.path[: len(path)] == path for path in joined.get(call, ()))
            )
        )
        if chosen:
            found[call] = chosen
    return found


def check_layouts(call: str, layouts: Sequence[Layout], output: Any, part: bool = False) -> None:
    """Compare containers in what a call returned with the recorded runs.

    Parameters
    ----------
    call : str
        Its id.
    layouts : sequence of Layout
        Of this call.
    output : object
        What it returned.
    part : bool
        It is a part of a batch.

    Raises
    ------
    ReplayError
        If one has other items.
    """
    for layout in layouts:
        parts = take_apart(at_path(output, layout.path))
        if parts is None or parts.keys == layout.keys:
            continue
        at = "".join(f"[{key!r}]" for key in layout.path)
        if part and isinstance(layout.keys[0], int):
            raise ReplayError(
                f"{call} returned {_count(parts.keys)}{f' at {at}' if at else ''} for a part of a batch whose"
                f" whole had {_count(layout.keys)}: a list with one for each sample cannot be joined",
                hint="return an array, or give it to nodes that are split alike, in Batch(sequences=...)",
            )
        raise ReplayError(
            f"{call} returned a container of {_count(parts.keys)}{f' at {at}' if at else ''}, and of"
            f" {_count(layout.keys)} in every recorded run: the graph uses these one by one",
            hint="pass it on as it is, wrap the code that takes it apart, or record runs that differ",
        )


def gathered(binding: Binding) -> Iterator[Ref]:
    """Yield what is put together of parts."""
    if isinstance(binding, Gather):
        for leaf in leaves(binding):
            if isinstance(leaf, Ref):
                yield leaf
    elif isinstance(binding, Slice):
        yield from gathered(binding.of)
    elif isinstance(binding, Pack):
        for item in binding.items:
            yield from gathered(item)


def _count(keys: tuple[Key, ...]) -> str:
    if keys and isinstance(keys[0], str):
        return f"the items {', '.join(map(repr, keys[:8]))}"
    return counted(len(keys), "item")


def find_flags(runs: Sequence[RunTrace]) -> Mapping[str, tuple[Flag, ...]]:
    """Find what has to stay as it was, by call.

    Parameters
    ----------
    runs : sequence of RunTrace
        Ended. What differs between them is no constant, and needs no watching.
    """
    found = [{(flag.call, flag.path): flag for flag in _flags(run)} for run in runs]
    by_call: dict[str, tuple[Flag, ...]] = {}
    for place, flag in found[0].items():
        if all(_same(flag.value, other[place].value) if place in other else False for other in found[1:]):
            by_call[flag.call] = (*by_call.get(flag.call, ()), flag)
    return by_call


def _flags(run: RunTrace) -> Iterator[Flag]:
    last: dict[int, tuple[float, str]] = {}  # last call that was given a value, and when
    for record in run.records:
        for raw in (*record.args, *record.kwargs.values()):
            for known in leaves_of(raw):
                if known.record is None and not known.external and is_shared(known.obj):
                    last[id(known.obj)] = max(
                        last.get(id(known.obj), (0.0, "")), (record.start_ns, record.id)
                    )
    region = run.records[0]
    for known in () if region.output is None else leaves_of(region.output):
        if is_shared(known.obj):
            last[id(known.obj)] = (float("inf"), region.id)
    for record, path, value in run.lineage.shared:
        if record is region:
            continue
        used_ns, consumer = last.get(id(value), (0.0, ""))
        if used_ns >= _end_ns(record):
            yield Flag(record.id, path, value, consumer)
        elif isinstance(value, bool):
            yield Flag(record.id, path, value)


def _end_ns(record: CallRecord) -> int:
    return max(record.end_ns, record.return_ns)


def _same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and bool(a == b))


def check_flags(flags: Sequence[Flag], output: Any, part: bool = False) -> None:
    """Compare what a call returned with the recorded runs.

    Parameters
    ----------
    flags : sequence of Flag
        Of this call.
    output : object
        What it returned.
    part : bool
        It is a part of a batch: positions in a list say nothing.

    Raises
    ------
    ReplayError
        If a flag is another one; it says what may depend on it.
    """
    if part and isinstance(output, list):
        return
    for flag in flags:
        now = at_path(output, flag.path)
        if _same(flag.value, now):
            continue
        at = "".join(f"[{key!r}]" for key in flag.path)
        why = "the code between calls may branch on it"
        if flag.consumer:
            why = f"{flag.consumer} got the same, and may need the new one"
        raise ReplayError(
            f"{flag.call} returned {describe(now)}{f' at {at}' if at else ''}, and {flag.value!r} in every"
            f" recorded run; {why}",
            hint="record runs in which it differs, return it in an array,"
            ' or install with on_flag="ignore" if nothing depends on it',
        )
