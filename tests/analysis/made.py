"""Traces made of given rows."""

from __future__ import annotations

import polars as pl

from rlprof.trace.tables import TableName, conform
from rlprof.trace.trace import Loaded, Loader, Trace, TraceMeta


def _loader(name: TableName, rows: pl.DataFrame) -> Loader:
    return lambda columns: Loaded(conform(rows, name, columns))


def trace_of(**tables: pl.DataFrame) -> Trace:
    """A trace of given tables; columns that a test leaves out are null."""
    loaders = {name: _loader(name, rows) for name, rows in tables.items()}  # type: ignore[arg-type]
    return Trace(TraceMeta("nsys-sqlite", ("made.sqlite",), 0, 1_000), loaders)  # type: ignore[arg-type]
