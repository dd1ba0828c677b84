"""The part of a trace inside a span of time."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from rlprof.errors import UsageError
from rlprof.trace.tables import TABLE_NAMES, TableName
from rlprof.trace.trace import Loaded, Loader, Trace

#: Tables without times: a cut leaves them as they are.
TIMELESS = frozenset({"devices", "processes"})


def cut_loaders(
    trace: Trace, lo_ns: int, hi_ns: int, *, asked_ns: tuple[int, int]
) -> tuple[dict[TableName, Loader], str]:
    """Loaders for the rows of `trace` that touch [lo_ns, hi_ns), clipped to it.

    Kernels, copies, samples and ranges that reach over an edge are clipped; a clipped range is marked as
    cut, since its duration is no longer its own. API calls are kept whole (their correlation matters).
    Stated loop counts hold for the whole capture and are dropped.

    Raises
    ------
    UsageError
        If the span is empty or lies outside the trace.
    """
    first, last = trace.meta.start_ns, trace.meta.end_ns
    if hi_ns <= lo_ns:
        a, b = asked_ns
        raise UsageError(
            f"nothing lies between {a / 1e9:g} s and {b / 1e9:g} s",
            where=" + ".join(trace.meta.files),
            hint=f"the capture covers {first / 1e9:g} s to {last / 1e9:g} s",
        )
    loaders: dict[TableName, Loader] = {}
    for name in TABLE_NAMES:
        if name in TIMELESS and trace.has(name):
            loaders[name] = trace.loaders[name]
        elif trace.has(name) and name != "loop_counts":
            loaders[name] = _cut_loader(trace, name, lo_ns, hi_ns)
    return loaders, f"only the window from {lo_ns / 1e9:g} s to {hi_ns / 1e9:g} s is analysed"


def _cut_loader(trace: Trace, name: TableName, lo_ns: int, hi_ns: int) -> Loader:
    def load(columns: Sequence[str] | None) -> Loaded:
        from rlprof.trace.tables import schema

        want = list(schema(name, columns))
        timed = [*want, "start_ns", "end_ns", *(["cut"] if name == "ranges" else [])]
        rows = trace.table(name, timed)
        # an empty range or an instant at the edge belongs to the side on which it starts
        inside = rows.filter(
            (pl.col("start_ns") < hi_ns)
            & (
                (pl.col("end_ns") > lo_ns)
                | ((pl.col("start_ns") == pl.col("end_ns")) & (pl.col("start_ns") >= lo_ns))
            )
        )
        if name == "api":
            return Loaded(inside.select(want))
        notes: tuple[str, ...] = ()
        over = (pl.col("start_ns") < lo_ns) | (pl.col("end_ns") > hi_ns)
        if name == "ranges":
            clipped = inside.filter(over).height
            inside = inside.with_columns(pl.col("cut") | over)
            if clipped:
                notes = (
                    f"{clipped} ranges reach over an edge of the window: clipped, and left out of means",
                )
        clip = [pl.col("start_ns").clip(lower_bound=lo_ns), pl.col("end_ns").clip(upper_bound=hi_ns)]
        return Loaded(inside.with_columns(clip).select(want), notes)

    return load
