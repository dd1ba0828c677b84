"""The training iteration: which node it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from rlprof.analysis.intervals import I64, union
from rlprof.errors import UsageError
from rlprof.trace.aliases import spellings
from rlprof.trace.hierarchy import Hierarchy

#: Names by which programs call their training iteration, the most telling first.
ITERATION_NAMES = (
    r"(rl[ _-]?)?iteration",
    r"(train(ing)?|global|rl|learner)[ _-]?(step|iteration|iter|loop[ _-]?body)",
    r"profilerstep",
    r"step",
    r"iter",
)
#: A repeated root node that is not named like one counts if it fills this much of its thread's ranges.
MIN_FILL_FRAC = 0.5


@dataclass(frozen=True)
class Iteration:
    """The training iteration.

    Parameters
    ----------
    name : str
        Path of its node.
    process : int
        The process whose marks are the reference: for its own ranges, and for those of processes that do
        not mark the iteration (a simulator, say).
    start_ns, end_ns : ndarray of int64, shape (count,)
        The reference's invocations, sorted.
    by_process : mapping of int to (start_ns, end_ns)
        Invocations of every process that marks the iteration, the reference included.
    cut_count : int
        Iterations of the reference that an edge of the capture (or of the window of it) cuts. They are left
        out of the above, unless all of them are cut.
    whole : bool
        False: all of them are cut, so that durations are those of parts.
    """

    name: str
    process: int
    start_ns: I64
    end_ns: I64
    by_process: Mapping[int, tuple[I64, I64]]
    cut_count: int = 0
    whole: bool = True

    @property
    def count(self) -> int:
        """Number of iterations."""
        return len(self.start_ns)

    @property
    def total_s(self) -> float:
        """Time inside iterations, seconds."""
        return float((self.end_ns - self.start_ns).sum()) / 1e9

    def of(self, process: int) -> tuple[I64, I64]:
        """Iterations to which the ranges of `process` belong: (start_ns, end_ns)."""
        return self.by_process.get(process, (self.start_ns, self.end_ns))


def find_iteration(tree: Hierarchy, name: str | None = None) -> Iteration | None:
    """Find the iteration node.

    Without a name: the shallowest node called like an iteration (`ITERATION_NAMES`, in that order); else a
    root node with children that repeats without overlap and
    fills at least half of the time that its thread spends in ranges, the one with the largest total.

    Parameters
    ----------
    tree : Hierarchy
        Nodes and invocations.
    name : str, optional
        Path of a node, or the last part of one.

    Returns
    -------
    Iteration or None
        None when no node looks like an iteration; analyses then take the whole capture.

    Raises
    ------
    UsageError
        If `name` is given and no node has it.
    """
    nodes = tree.nodes.join(
        tree.invocations.group_by("node").agg(
            pl.len().alias("count"), (pl.col("end_ns") - pl.col("start_ns")).sum().alias("total_ns")
        ),
        on="node",
    )
    nodes = nodes.filter(pl.col("total_ns") > 0).sort("node")
    if name is not None:
        return _invocations(tree, _named(nodes, name))
    for pattern in ITERATION_NAMES:
        last = pl.col("path").str.split("/").list.last()
        found = nodes.filter(last.str.contains(rf"(?i)^(.*:)?({pattern})$"))
        if not found.is_empty():
            depth = int(found["depth"].min())  # type: ignore[arg-type]
            best = found.filter(pl.col("depth") == depth).sort("total_ns", descending=True)
            return _invocations(tree, best.head(1))
    return _by_shape(tree, nodes)


def _named(nodes: pl.DataFrame, name: str) -> pl.DataFrame:
    exact = nodes.filter(pl.col("path") == name)
    # a framework's documentation may call a phase otherwise than its code
    for spelling in spellings(name) if exact.is_empty() else ():
        tail = rf"(^|[:/]){re.escape(spelling)}$"
        exact = nodes.filter(pl.col("path").str.contains(tail))
        if not exact.is_empty():
            break
    if exact.is_empty():
        longest = nodes.sort("total_ns", descending=True)["path"]  # two processes may have nodes of one path
        known = ", ".join(longest.unique(maintain_order=True).head(8))
        raise UsageError(
            f"no node is called {name!r}; the longest ones are: {known}"
            if known
            else "the capture has no ranges",
            hint="give a path from `rlprof analyze --format csv`",
        )
    return exact.sort(["depth", "total_ns"], descending=[False, True]).head(1)


def _invocations(tree: Hierarchy, node: pl.DataFrame) -> Iteration:
    row = node.row(0, named=True)
    twins = tree.nodes.filter(pl.col("path") == row["path"])
    process = int(row["process"])
    by_process: dict[int, tuple[I64, I64]] = {}
    cut_count, whole = 0, True
    for twin in twins.iter_rows(named=True):
        rows = tree.invocations.filter(pl.col("node") == twin["node"]).sort("start_ns")
        start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
        full, cut = end > start, rows["cut"].to_numpy()
        # a piece of an iteration at the capture's edge is none: times per iteration would shrink by it
        taken = full & ~cut if (full & ~cut).any() else full
        if taken.any():
            by_process[int(twin["process"])] = start[taken], end[taken]
        if twin["process"] == process:
            cut_count, whole = int((full & cut).sum()), not bool((taken & cut).any())
    start, end = by_process[process]
    return Iteration(str(row["path"]), process, start, end, by_process, cut_count, whole)


def _by_shape(tree: Hierarchy, nodes: pl.DataFrame) -> Iteration | None:
    # a function of a framework (aten::to) repeats too, but is not what is trained by; nor is a leaf
    shaped = ~pl.col("path").str.contains("::") & ~pl.col("leaf") & (pl.col("style") == "push_pop")
    roots = nodes.filter((pl.col("depth") == 0) & (pl.col("count") >= 2) & shaped)
    rooted = tree.nodes.filter(pl.col("depth") == 0)["node"]
    top = tree.invocations.filter(pl.col("node").is_in(rooted.implode()))
    for row in roots.sort("total_ns", descending=True).iter_rows(named=True):
        own = tree.invocations.filter(pl.col("node") == row["node"])
        threads = own["thread"].unique()
        if len(threads) != 1:
            continue
        peers = top.filter(pl.col("thread") == threads[0])
        start, end = union(peers["start_ns"].to_numpy(), peers["end_ns"].to_numpy())
        span = int(end[-1] - start[0]) if len(start) else 0
        ordered = own.sort("start_ns")
        apart = bool(np.all(ordered["start_ns"].to_numpy()[1:] >= ordered["end_ns"].to_numpy()[:-1]))
        if span and apart and row["total_ns"] >= MIN_FILL_FRAC * span:
            return _invocations(tree, nodes.filter(pl.col("node") == row["node"]))
    return None
