"""Nodes of the execution hierarchy: paths of range names, and the invocations of each.

Push/pop ranges nest per (process, thread, domain), so a node is a path such as
``iteration/rollout/epoch/chunk/policy/denoise``. Start/end ranges may overlap anything and end on another
thread: each is a node at the root. Nesting is found by a sweep over the sorted ranges of a thread,
O(n log n) in all and vectorised.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from rlprof.trace.names import UNNAMED, normalised
from rlprof.trace.trace import Trace

I64 = npt.NDArray[np.int64]
#: Domains whose name says nothing to a reader: the default one and rlprof's own.
PLAIN_DOMAINS = ("", "rlprof")
#: Between the names of a path.
SEPARATOR = "/"


@dataclass(frozen=True)
class Hierarchy:
    """Nodes and their invocations.

    Parameters
    ----------
    nodes : polars.DataFrame
        ``node`` (row number), ``process``, ``path``, ``parent`` (node or null), ``depth`` (root 0), ``leaf``,
        ``style``, ``domain``.
    invocations : polars.DataFrame
        One row per range, sorted by (process, thread, domain, start): ``node``, ``start_ns``, ``end_ns``,
        ``self_ns`` (duration without that of its children), ``parent_invocation`` (row number or null),
        ``thread``, ``cut`` (its end is not in the capture), ``crossing`` (it overlaps another range without
        nesting, so its place in the hierarchy is a guess).
    """

    nodes: pl.DataFrame
    invocations: pl.DataFrame
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Nesting:
    """Where each range of a sorted list lies: ``depth``, ``parent`` (position or -1), ``crossing``."""

    depth: I64
    parent: I64
    crossing: npt.NDArray[np.bool_]


def nest(group: I64, start_ns: I64, end_ns: I64) -> Nesting:
    """Nest ranges within their group.

    Parameters
    ----------
    group, start_ns, end_ns : ndarray of int64, shape (n,)
        Sorted by (group, start, -end). Ranges of one group nest if each pair is disjoint or one holds the
        other; touching at an end is disjoint.

    Returns
    -------
    Nesting
        A range that crosses an earlier one is placed under the innermost range that holds it wholly.
    """
    n = len(start_ns)
    if n == 0:
        none = np.zeros(0, dtype=np.int64)
        return Nesting(none, none.copy(), np.zeros(0, dtype=bool))
    depth = _depth_by_counting(group, start_ns, end_ns)
    parent = _parents(depth, group)
    held = parent >= 0
    safe = np.where(held, parent, 0)
    wrong = held & (end_ns > end_ns[safe])
    # counting is exact exactly when every range ends within the parent that counting gives it
    if not wrong.any():
        return Nesting(depth, parent, np.zeros(n, dtype=bool))
    return _nest_by_stack(group, start_ns, end_ns)


def _depth_by_counting(group: I64, start_ns: I64, end_ns: I64) -> I64:
    """How many earlier ranges of the group are still open at each range's start."""
    n = len(start_ns)
    ends = end_ns[np.lexsort((end_ns, group))]
    depth = np.empty(n, dtype=np.int64)
    first = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    for a, b in zip(first, np.append(first[1:], n), strict=True):
        # an end closes its range before a start at the same time opens one
        closed = np.searchsorted(ends[a:b], start_ns[a:b], side="right")
        depth[a:b] = np.arange(b - a) - closed
    if (end_ns == start_ns).any():
        # a range of no duration must not be closed before it opened: these sort last at their start
        depth += _empty_at_or_after(group, start_ns, end_ns)
    return np.maximum(depth, np.int64(0))


def _empty_at_or_after(group: I64, start_ns: I64, end_ns: I64) -> I64:
    """For each range: how many ranges of no duration, of its group and start, stand at or after it."""
    n = len(start_ns)
    empty = (end_ns == start_ns).astype(np.int64)
    new = np.ones(n, dtype=bool)
    new[1:] = (group[1:] != group[:-1]) | (start_ns[1:] != start_ns[:-1])
    block = np.cumsum(new) - 1
    total = np.bincount(block, weights=empty).astype(np.int64)
    before = np.cumsum(empty) - empty
    first = np.flatnonzero(new)
    later: I64 = total[block] - (before - before[first][block])
    return later


def _parents(depth: I64, group: I64) -> I64:
    """Position of the last earlier range that is one level up, -1 at the root."""
    n = len(depth)
    parent = np.full(n, -1, dtype=np.int64)
    level_above = np.flatnonzero(depth == 0)
    for level in range(1, int(depth.max()) + 1):
        here = np.flatnonzero(depth == level)
        if len(here) == 0 or len(level_above) == 0:
            break
        at = np.searchsorted(level_above, here, side="left") - 1
        found = np.where(at >= 0, level_above[np.maximum(at, 0)], -1)
        same = (found >= 0) & (group[np.maximum(found, 0)] == group[here])
        parent[here] = np.where(same, found, -1)
        level_above = here
    return parent


def _nest_by_stack(group: I64, start_ns: I64, end_ns: I64) -> Nesting:
    """Nest with a stack, for groups in which ranges cross: slower, and says which ones do."""
    n = len(start_ns)
    depth = np.zeros(n, dtype=np.int64)
    parent = np.full(n, -1, dtype=np.int64)
    crossing = np.zeros(n, dtype=bool)
    stack: list[int] = []
    last_group: int | None = None
    for i, (g, s, e) in enumerate(zip(group.tolist(), start_ns.tolist(), end_ns.tolist(), strict=True)):
        if g != last_group:
            stack, last_group = [], g
        # not only the top: in a stack with crossings a deeper one may have ended
        stack = [j for j in stack if end_ns[j] > s]
        holders = [j for j in stack if end_ns[j] >= e]
        if len(holders) < len(stack):
            crossing[i] = True
            for j in stack:
                if end_ns[j] < e:
                    crossing[j] = True
        if holders:
            parent[i] = holders[-1]
            depth[i] = depth[holders[-1]] + 1
        stack.append(i)
    return Nesting(depth, parent, crossing)


def hierarchy(trace: Trace, *, exact_names: bool = False) -> Hierarchy:
    """Build the hierarchy of a trace.

    Parameters
    ----------
    trace : Trace
        Its ``ranges``; operators of a framework are left out unless they are the only ranges.
    exact_names : bool
        Keep ids inside labels (``step 17``); by default they are normalised away, see
        `rlprof.trace.names.normalise`.

    Returns
    -------
    Hierarchy
        Empty when the trace has no ranges.
    """
    columns = ["start_ns", "end_ns", "name", "style", "process", "thread", "domain", "cut"]
    ranges = trace.table("ranges", columns)
    notes = []
    operators = ranges["style"] == "operator"
    if operators.any():
        if operators.all():
            notes.append("no annotated range: the framework's operators are shown as the program's structure")
        else:
            ranges = ranges.filter(~operators)
    name = ranges["name"] if exact_names else normalised(ranges["name"])
    flat = (ranges["style"] == "start_end").to_numpy()
    group = _codes(ranges.select("process", "thread", "domain"))
    start_ns, end_ns = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    # start/end ranges come last within their group and are not nested
    order = np.lexsort((-end_ns, start_ns, group, flat))
    split = int(len(order) - flat.sum())
    s, e, g = start_ns[order], end_ns[order], group[order]
    nested = nest(g[:split], s[:split], e[:split])
    loose = len(order) - split
    depth = np.concatenate([nested.depth, np.zeros(loose, dtype=np.int64)])
    parent = np.concatenate([nested.parent, np.full(loose, -1, dtype=np.int64)])
    crossing = np.concatenate([nested.crossing, _crossing_loose(g[split:], s[split:], e[split:])])
    if nested.crossing.any():
        notes.append(
            f"{int(nested.crossing.sum())} push/pop ranges of one thread cross another without nesting"
            " (popped out of order?): their place in the hierarchy is a guess"
        )
    if crossing[split:].any():
        notes.append(
            f"{int(crossing[split:].sum())} start/end ranges overlap others of their thread without nesting"
        )
    process = ranges["process"].to_numpy()[order].astype(np.int64)
    frame = pl.DataFrame(
        {
            "name": name.gather(order),
            "domain": ranges["domain"].gather(order),
            "style": ranges["style"].gather(order),
        }
    )
    node, nodes = _intern(frame, process, depth, parent)
    duration = e - s
    children = np.bincount(parent[parent >= 0], weights=duration[parent >= 0], minlength=len(order))
    invocations = pl.DataFrame(
        {
            "node": node.astype(np.uint32),
            "start_ns": s,
            "end_ns": e,
            "self_ns": duration - children.astype(np.int64),
            "parent_invocation": pl.Series(parent).replace(-1, None),
            "thread": ranges["thread"].gather(order),
            "cut": ranges["cut"].gather(order),
            "crossing": crossing,
        }
    )
    return Hierarchy(nodes, invocations, tuple(notes))


def _codes(frame: pl.DataFrame) -> I64:
    """A number for each distinct row."""
    if frame.is_empty():
        return np.zeros(0, dtype=np.int64)
    distinct = frame.unique(maintain_order=True).with_row_index("code")
    joined = frame.join(distinct, on=frame.columns, how="left", maintain_order="left", nulls_equal=True)
    return joined["code"].cast(pl.Int64).to_numpy()


def _crossing_loose(group: I64, start_ns: I64, end_ns: I64) -> npt.NDArray[np.bool_]:
    """Which start/end ranges overlap another of their group without one holding the other."""
    if len(start_ns) == 0:
        return np.zeros(0, dtype=bool)
    found = nest(group, start_ns, end_ns)
    return found.crossing


def _intern(frame: pl.DataFrame, process: I64, depth: I64, parent: I64) -> tuple[I64, pl.DataFrame]:
    """Number the distinct paths, level by level: a node is (parent's node, process, domain, name)."""
    n = len(depth)
    node = np.full(n, -1, dtype=np.int64)
    tables: list[pl.DataFrame] = []
    known = 0
    paths = pl.Series("path", [], dtype=pl.String)
    for level in range(int(depth.max()) + 1 if n else 0):
        here = np.flatnonzero(depth == level)
        if len(here) == 0:
            continue
        above = parent[here]
        keyed = pl.DataFrame(
            {
                "parent": pl.Series(np.where(above >= 0, node[above], -1)),
                "process": process[here],
                "domain": frame["domain"].gather(here),
                "name": frame["name"].gather(here),
                "style": frame["style"].gather(here),
            }
        )
        distinct = keyed.unique(maintain_order=True)
        label = distinct["name"].cast(pl.String).fill_null(UNNAMED)
        domain = distinct["domain"].cast(pl.String).fill_null("")
        if level == 0:
            named = ~domain.is_in(PLAIN_DOMAINS)
            path = pl.select(pl.when(named).then(domain + ":" + label).otherwise(label)).to_series()
        else:
            path = paths.gather(distinct["parent"]) + SEPARATOR + label
        distinct = distinct.with_columns(
            path.alias("path"),
            pl.Series("node", np.arange(known, known + len(distinct))),
            pl.lit(level, dtype=pl.UInt32).alias("depth"),
        )
        joined = keyed.join(
            distinct,
            on=["parent", "process", "domain", "name", "style"],
            how="left",
            maintain_order="left",
            nulls_equal=True,
        )
        node[here] = joined["node"].to_numpy()
        known += len(distinct)
        paths = pl.concat([paths, path.rename("path")])
        tables.append(distinct)
    columns = {
        "node": pl.UInt32,
        "process": pl.UInt32,
        "path": pl.String,
        "parent": pl.UInt32,
        "depth": pl.UInt32,
        "leaf": pl.Boolean,
        "style": pl.String,
        "domain": pl.String,
    }
    if not tables:
        return node, pl.DataFrame(schema=columns)
    nodes = pl.concat(tables)
    has_child = np.zeros(known, dtype=bool)
    has_child[nodes.filter(pl.col("parent") >= 0)["parent"].to_numpy()] = True
    nodes = nodes.with_columns(
        pl.when(pl.col("parent") >= 0).then(pl.col("parent")).alias("parent"),
        pl.Series("leaf", ~has_child),
    ).select(pl.col(c).cast(t) for c, t in columns.items())
    return node, nodes
