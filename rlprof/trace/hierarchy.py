"""Nodes of the execution hierarchy: paths of range names, and the invocations of each.

Push/pop ranges nest per (process, thread, domain), so a node is a path such as
``iteration/rollout/epoch/chunk/policy/denoise``. Start/end ranges may overlap anything and end on another
thread: each is a node at the root. Nesting is found by a sweep over the sorted ranges of a thread,
O(n log n) in all and vectorised.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from rlprof.trace.names import UNNAMED, normalised
from rlprof.trace.sweep import I64, Bools, dense, nest
from rlprof.trace.trace import Trace

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
        One row per range, by start within each (process, thread, domain): ``node``, ``start_ns``, ``end_ns``,
        ``self_ns`` (duration without that of its children), ``parent_invocation`` (row number or null),
        ``thread``, ``cut`` (its end is not in the capture), ``crossing`` (it overlaps another range without
        nesting, so its place in the hierarchy is a guess).
    """

    nodes: pl.DataFrame
    invocations: pl.DataFrame
    notes: tuple[str, ...] = ()


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
    order, group, split = _without_repeats(ranges, *_sorted_rows(ranges))
    if repeated := len(ranges) - len(order):
        notes.append(f"{repeated} ranges repeat another (same thread, name and times): counted once")
    start_ns, end_ns = ranges["start_ns"].to_numpy()[order], ranges["end_ns"].to_numpy()[order]
    nested = nest(group[:split], start_ns[:split], end_ns[:split])
    loose = nest(group[split:], start_ns[split:], end_ns[split:]).crossing
    notes += _crossing_notes(nested.crossing, loose)
    alone = len(order) - split
    depth = np.append(nested.depth, np.zeros(alone, dtype=np.int64))
    parent = np.append(nested.parent, np.full(alone, -1))
    node, nodes = _intern(ranges, order, depth, parent, exact_names=exact_names)
    self_ns = end_ns - start_ns
    held = np.flatnonzero(parent >= 0)
    children_ns = np.bincount(parent[held], weights=self_ns[held], minlength=len(order))
    invocations = pl.DataFrame(
        {
            "node": node.astype(np.uint32),
            "start_ns": start_ns,
            "end_ns": end_ns,
            "self_ns": self_ns - children_ns.astype(np.int64),
            "parent_invocation": pl.Series(parent).replace(-1, None),
            "thread": ranges["thread"].gather(order),
            "cut": ranges["cut"].gather(order),
            "crossing": np.append(nested.crossing, loose),
        }
    )
    return Hierarchy(nodes, invocations, tuple(notes))


def _integers(column: pl.Series) -> I64:
    """A column as numbers that tell its values apart; null is 0 in text."""
    if isinstance(column.dtype, pl.Categorical | pl.Enum):
        column = (column.to_physical().cast(pl.Int64) + 1).fill_null(0)
    return column.cast(pl.Int64).to_numpy()


def _without_repeats(ranges: pl.DataFrame, order: I64, group: I64, split: int) -> tuple[I64, I64, int]:
    """Leave out of the sorted rows those that repeat another to the nanosecond.

    They are two rows of one range and not one in the other: as ranges they would hold each other, as deep as
    there are repeats. Those of no duration are left: short ranges in a row look alike under a coarse clock.
    So are start/end ranges, which hold nothing.
    """
    nested = order[:split]
    start_ns, end_ns = ranges["start_ns"].to_numpy()[nested], ranges["end_ns"].to_numpy()[nested]
    # rows of one thread and one span are neighbours; as a rule there are none, and this is all there is to do
    own = group[:split]
    same = (own[1:] == own[:-1]) & (start_ns[1:] == start_ns[:-1]) & (end_ns[1:] == end_ns[:-1])
    same &= end_ns[1:] > start_ns[1:]
    if not same.any():
        return order, group, split
    alike = np.append(False, same)
    run = np.cumsum(~alike)  # rows of one span share a number
    few = np.flatnonzero(alike | np.append(same, False))
    names = _integers(ranges["name"])[nested[few]]
    styles = _integers(ranges["style"])[nested[few]]
    _, first = dense(run[few], names, styles)
    again = np.ones(len(few), dtype=bool)
    again[first] = False
    keep = np.ones(len(order), dtype=bool)
    keep[few[again]] = False
    return order[keep], group[keep], split - int(again.sum())


def _sorted_rows(ranges: pl.DataFrame) -> tuple[I64, I64, int]:
    """Rows by (group, start, -end); the group of each sorted row; where the start/end ranges begin.

    A group is a (process, thread, domain). Start/end ranges are not nested and come last.
    """
    flat = (ranges["style"] == "start_end").to_numpy()
    group, _ = dense(*(_integers(ranges[c]) for c in ("process", "thread", "domain")))
    order = np.lexsort((-ranges["end_ns"].to_numpy(), ranges["start_ns"].to_numpy(), group, flat))
    return order, group[order], int(len(flat) - flat.sum())


def _crossing_notes(nested: Bools, loose: Bools) -> list[str]:
    notes = []
    if nested.any():
        notes.append(
            f"{int(nested.sum())} push/pop ranges of one thread cross another without nesting"
            " (popped out of order?): their place in the hierarchy is a guess"
        )
    if loose.any():
        notes.append(f"{int(loose.sum())} start/end ranges overlap others of their thread without nesting")
    return notes


def _labels(names: pl.Series, *, exact: bool) -> tuple[I64, list[str]]:
    """Number of each row's label, and the labels; each distinct name is looked at once."""
    code, rows = dense(_integers(names))
    distinct = names.gather(rows).cast(pl.String)
    text = (distinct if exact else normalised(distinct)).fill_null(UNNAMED)
    labels = text.unique(maintain_order=True)
    number = text.replace_strict(labels, pl.int_range(len(labels), eager=True), return_dtype=pl.Int64)
    return number.to_numpy()[code], labels.to_list()


def _intern(
    ranges: pl.DataFrame, order: I64, depth: I64, parent: I64, *, exact_names: bool
) -> tuple[I64, pl.DataFrame]:
    """Number the distinct paths, level by level: a node is (parent's node, process, domain, style, name).

    Parameters
    ----------
    ranges : polars.DataFrame
        n rows.
    order, depth, parent : ndarray of int64, shape (n,)
        Sorted rows, and the place of each sorted row in the hierarchy.

    Returns
    -------
    node : ndarray of int64, shape (n,)
        Node of each sorted row.
    nodes : polars.DataFrame
        See `Hierarchy`.
    """
    label, texts = _labels(ranges["name"], exact=exact_names)
    kind = dense(*(_integers(ranges[c]) for c in ("process", "domain", "style")), label)[0][order]
    node = np.full(len(order), -1, dtype=np.int64)
    first: list[I64] = []
    known = 0
    for level in range(int(depth.max(initial=-1)) + 1):
        here = np.flatnonzero(depth == level)
        above = parent[here]
        code, rows = dense(np.where(above >= 0, node[above] + 1, 0), kind[here])
        node[here] = known + code
        first.append(here[rows])
        known += len(rows)
    at = np.concatenate(first) if first else np.zeros(0, dtype=np.int64)
    rows = order[at]
    above = parent[at]
    held = np.where(above >= 0, node[above], -1) if known else above
    domain = ranges["domain"].gather(rows).cast(pl.String).fill_null("").to_list()
    paths: list[str] = []
    for i, up in enumerate(held.tolist()):
        text = texts[label[rows[i]]]
        if up >= 0:
            paths.append(f"{paths[up]}{SEPARATOR}{text}")
        else:
            paths.append(text if domain[i] in PLAIN_DOMAINS else f"{domain[i]}:{text}")
    has_child = np.zeros(known, dtype=bool)
    has_child[held[held >= 0]] = True
    nodes = pl.DataFrame(
        {
            "node": np.arange(known, dtype=np.uint32),
            "process": ranges["process"].gather(rows).cast(pl.UInt32),
            "path": pl.Series(paths, dtype=pl.String),
            "parent": pl.Series(held).replace(-1, None).cast(pl.UInt32),
            "depth": depth[at].astype(np.uint32),
            "leaf": ~has_child,
            "style": ranges["style"].gather(rows).cast(pl.String),
            "domain": pl.Series(domain, dtype=pl.String),
        }
    )
    return node, nodes
