"""The tables of an Nsight Systems export, in whatever container, and the look-ups that they share.

Exports differ by version in which tables and columns exist, so every table and column is tested for and
no version is asked. Tables are made by nsys only when they hold rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import polars as pl

from rlprof.errors import DamagedTraceError
from rlprof.trace.names import scrub_home

NVTX, STRINGS = "NVTX_EVENTS", "StringIds"
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
METRICS, METRIC_NAMES = "GPU_METRICS", "TARGET_INFO_GPU_METRICS"
GPU, CUDA_DEVICE, CONTEXT = "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE", "TARGET_INFO_CUDA_CONTEXT_INFO"
OVERHEAD = "PROFILER_OVERHEAD"
#: Large, and read only where GPU_METRICS is absent; not worth exporting from a report.
GENERIC = "GENERIC_EVENTS"

#: Tables that rlprof reads. The ones that hold environments, command lines and host names are not among them.
NEEDED_TABLES = (
    NVTX,
    STRINGS,
    KERNEL,
    GRAPH,
    MEMCPY,
    MEMSET,
    RUNTIME,
    METRICS,
    METRIC_NAMES,
    GPU,
    CUDA_DEVICE,
    CONTEXT,
    OVERHEAD,
    "TARGET_INFO_SESSION_START_TIME",
    "ANALYSIS_DETAILS",
    "META_DATA_EXPORT",
    "EXPORT_META_DATA",
    "META_DATA_CAPTURE",
)

OTHER_VENDORS = re.compile(r"intel|amd|radeon|microsoft|llvmpipe|aspeed|matrox", re.IGNORECASE)

#: Differences of two times up to this fit into int64.
LARGEST_TIME_NS = 2**62

#: A row filter: column, and the values allowed in it.
Condition = tuple[str, tuple[int | None, ...]]


class RawTables(Protocol):
    """Tables of an nsys export in one container (SQLite file, folder of parquet or Arrow files)."""

    path: Path

    def tables(self) -> frozenset[str]:
        """Names of the tables that exist; a table may have no rows."""

    def columns(self, table: str) -> tuple[str, ...]:
        """Column names of a table."""

    def read(self, table: str, columns: Sequence[str], where: tuple[Condition, ...] = ()) -> pl.DataFrame:
        """Rows in file order; integers as Int64, reals as Float64, text as String with bad bytes replaced."""

    def row_count(self, table: str) -> int:
        """Number of rows."""

    def exists(self, table: str, where: tuple[Condition, ...]) -> bool:
        """Whether any row satisfies `where`."""

    def unique(self, table: str, column: str, *, shift: int = 0) -> list[int]:
        """Distinct values of ``column >> shift``, ascending, nulls left out."""


def has_nsys_tables(names: Iterable[str]) -> bool:
    """Whether a set of table names is that of an nsys export.

    Exports name themselves in META_DATA_EXPORT (schemas up to 3.1: EXPORT_META_DATA); before schema 2.9
    there is neither, but StringIds beside CUPTI or NVTX tables.
    """
    held = set(names)
    if held & {"META_DATA_EXPORT", "EXPORT_META_DATA"}:
        return True
    return STRINGS in held and any(n.startswith("CUPTI_ACTIVITY_KIND_") or n == NVTX for n in held)


@dataclass(frozen=True)
class NsysExport:
    """An export with the look-ups that several tables share."""

    raw: RawTables
    file_name: str

    @cached_property
    def tables(self) -> frozenset[str]:
        """Tables that hold rows."""
        known = (*NEEDED_TABLES, GENERIC)
        return frozenset(t for t in self.raw.tables() if t in known and self.raw.row_count(t) > 0)

    def pick(self, table: str, columns: Sequence[str]) -> list[str]:
        """Those of `columns` that the table has."""
        have = set(self.raw.columns(table))
        return [c for c in columns if c in have]

    def small(self, table: str, columns: Sequence[str]) -> list[dict[str, object]]:
        """Rows of a small table as dictionaries; columns that it lacks are None."""
        if table not in self.tables:
            return []
        have = self.pick(table, columns)
        if not have:
            return []
        rows = self.raw.read(table, have).to_dicts()
        return [{c: r.get(c) for c in columns} for r in rows]

    @cached_property
    def strings(self) -> pl.DataFrame:
        """StringIds as (id, value)."""
        if STRINGS not in self.tables:
            return pl.DataFrame(schema={"id": pl.Int64, "value": pl.Categorical})
        frame = self.raw.read(STRINGS, ["id", "value"])
        frame = frame.unique("id", keep="first", maintain_order=True)
        # names of kernels and calls may hold paths of the program's sources
        return frame.with_columns(scrub_home(frame["value"].cast(pl.Categorical())).alias("value"))

    @cached_property
    def settings(self) -> dict[str, str]:
        """What the capture says of itself. Only keys that rlprof uses are taken: others are personal."""
        wanted = ("EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION")
        capture = re.compile(
            r"^(PROCESS_\d+:)?(COLLECT_(CUDA|NVTX)_TRACE|CUDA_GRAPH_TRACE_OPTIONS:MODE)$"
            r"|^GPU_METRICS_OPTIONS:SAMPLING_FREQUENCY$"
        )
        out: dict[str, str] = {}
        for table in ("META_DATA_EXPORT", "EXPORT_META_DATA", "META_DATA_CAPTURE"):
            for row in self.small(table, ["name", "value"]):
                name = str(row["name"])
                if name in wanted or capture.match(name):
                    key = re.sub(r"^PROCESS_\d+:", "", name)
                    # several processes may differ: "true" for one is what counts
                    if out.get(key) != "true":
                        out[key] = str(row["value"])
        return out

    @cached_property
    def stated_duration_ns(self) -> int | None:
        """Length of the session, if the capture states it."""
        stated = [as_int(r["duration"]) for r in self.small("ANALYSIS_DETAILS", ["duration"])]
        return max((d for d in stated if 0 < d <= LARGEST_TIME_NS), default=None)

    @cached_property
    def process_keys(self) -> list[int]:
        """Hardware, VM and pid bits of every process seen, ascending; its position is the process number."""
        keys: set[int] = set()
        for table, column in (
            (NVTX, "globalTid"),
            (KERNEL, "globalPid"),
            (GRAPH, "globalPid"),
            (MEMCPY, "globalPid"),
            (MEMSET, "globalPid"),
            (RUNTIME, "globalTid"),
        ):
            if table in self.tables and column in self.raw.columns(table):
                keys.update(self.raw.unique(table, column, shift=24))
        return sorted(keys)

    @cached_property
    def gpus(self) -> list[dict[str, object]]:
        """NVIDIA GPUs of TARGET_INFO_GPU (which also lists other vendors' and unused ones)."""
        rows = self.small(GPU, ["id", "name", "smCount", "uuid", "cuDevice"])
        own = [
            r
            for r in rows
            if not OTHER_VENDORS.search(str(r["name"] or ""))
            and not (r["smCount"] == 0 and len(rows) > 1)
            and _is_device(as_int(r["id"]))
        ]
        return sorted(own, key=lambda r: as_int(r["id"]))

    @cached_property
    def device_of(self) -> Callable[[pl.DataFrame], pl.Series]:
        """Map (process number, CUDA ordinal as the process sees it) to the GPU's number in the report.

        Null where the ordinal is missing or no number of a device, unless the capture has one GPU only.
        """
        by_process: dict[tuple[int, int], int] = {}
        number = {k & 0xFFFFFF: i for i, k in enumerate(self.process_keys)}
        for r in self.small(CUDA_DEVICE, ["gpuId", "cudaId", "pid"]):
            if r["pid"] is not None and as_int(r["pid"]) in number:
                by_process[number[as_int(r["pid"])], as_int(r["cudaId"])] = as_int(r["gpuId"])
        by_ordinal = {as_int(g["cuDevice"]): as_int(g["id"]) for g in self.gpus if g["cuDevice"] is not None}
        only = as_int(self.gpus[0]["id"]) if len(self.gpus) == 1 else None

        def apply(frame: pl.DataFrame) -> pl.Series:
            pairs = frame.select("process", "deviceId").unique()
            rows = []
            for p, d in pairs.iter_rows():
                found = only if d is None else by_process.get((p, d), by_ordinal.get(d, d))
                rows.append((p, d, found if found is not None and _is_device(found) else only))
            names = {"process": pl.UInt32, "deviceId": pl.Int64, "device": pl.Int32}
            table = pl.DataFrame(rows, schema=names, orient="row")
            return frame.select("process", "deviceId").join(
                table, on=["process", "deviceId"], how="left", maintain_order="left", nulls_equal=True
            )["device"]

        return apply

    def process_number(self, globals_: pl.Series) -> pl.Series:
        """Process numbers of a column of globalTid or globalPid values."""
        keys = self.process_keys
        if len(keys) <= 1:
            return pl.repeat(0, len(globals_), dtype=pl.UInt32, eager=True)
        return (globals_.fill_null(0) // (1 << 24)).replace_strict(
            keys, list(range(len(keys))), default=0, return_dtype=pl.UInt32
        )

    def named(self, ids: pl.Series) -> pl.Series:
        """Strings of a column of StringIds ids; null where there is none."""
        frame = pl.DataFrame({"id": ids.cast(pl.Int64)})
        return frame.join(self.strings, on="id", how="left", maintain_order="left")["value"]


def as_int(value: object) -> int:
    """The number in a cell, 0 for none."""
    return int(value) if isinstance(value, (int, float)) and math.isfinite(value) else 0


def _is_device(number: int) -> bool:
    return 0 <= number < 2**31


def set_aside_impossible(
    rows: pl.DataFrame, what: str, needed: Sequence[str]
) -> tuple[pl.DataFrame, list[str]]:
    """Rows whose times and ids can be true, and a note on how many cannot.

    Parameters
    ----------
    rows : polars.DataFrame
        Columns `needed`; those of them called ``start`` and ``end`` are times.
    what : str
        What a row is, in the plural, for the note.
    needed : sequence of str
        Columns without which a row means nothing. A row may not end before it starts.
    """
    fine = pl.all_horizontal(pl.col(c).is_not_null() for c in needed)
    for c in ("start", "end"):
        if c in rows.columns:  # a missing end may be allowed, an absurd one is not
            fine &= pl.col(c).is_between(-LARGEST_TIME_NS, LARGEST_TIME_NS).fill_null(True)
    if "start" in needed and "end" in needed:
        fine &= (pl.col("end") >= pl.col("start")).fill_null(False)
    kept = rows.filter(fine)
    lost = len(rows) - len(kept)
    if not lost:
        return rows, []
    return kept, [f"{lost} of {len(rows)} {what} without times or with impossible ones were set aside"]


def require(export: NsysExport, table: str, columns: Sequence[str]) -> None:
    """Raise `DamagedTraceError` if a table lacks a column without which it cannot be read."""
    lacking = [c for c in columns if c not in export.raw.columns(table)]
    if lacking:
        raise DamagedTraceError(
            f"table {table} has no column {', '.join(lacking)}",
            where=export.file_name,
            hint="export the report again with `nsys export`",
        )
