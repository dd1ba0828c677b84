"""Nsight Systems exports made row by row, so that a test holds the one oddity that it is about."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlprof.trace.nsys_sqlite import read_sqlite
from rlprof.trace.trace import Trace

HARDWARE_VM = 1 << 48


def tid(pid: int, thread: int = 1, *, vm: int = HARDWARE_VM) -> int:
    """A globalTid: hardware and VM bits, pid, tid."""
    return vm | (pid << 24) | thread


COLUMNS: dict[str, Sequence[str]] = {
    "NVTX_EVENTS": ("start", "end", "eventType", "text", "globalTid", "endGlobalTid", "textId", "domainId"),
    "StringIds": ("id", "value"),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "shortName", "demangledName",
        "gridX", "gridY", "gridZ",
    ),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (
        "start", "end", "deviceId", "streamId", "correlationId", "globalPid",
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes", "copyKind",
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "globalTid", "correlationId", "nameId"),
    "GPU_METRICS": ("timestamp", "typeId", "metricId", "value"),
    "TARGET_INFO_GPU_METRICS": ("typeId", "metricId", "metricName"),
    "TARGET_INFO_GPU": ("id", "name", "smCount", "cuDevice", "uuid"),
    "TARGET_INFO_CUDA_DEVICE": ("gpuId", "cudaId", "pid"),
    "TARGET_INFO_CUDA_CONTEXT_INFO": ("processId", "deviceId"),
    "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs",),
    "ANALYSIS_DETAILS": ("duration",),
    "META_DATA_EXPORT": ("name", "value"),
    "EXPORT_META_DATA": ("name", "value"),
    "META_DATA_CAPTURE": ("name", "value"),
    "GENERIC_EVENTS": ("rawTimestamp", "timestamp", "typeId", "data"),
}  # fmt: skip
TEXT = {"text", "value", "name", "metricName", "data", "uuid"}
Rows = Mapping[str, Sequence[Mapping[str, object]]]


def export(path: Path, tables: Rows, *, drop: Mapping[str, Sequence[str]] | None = None) -> Path:
    """Write an export that holds these tables; `drop` leaves columns out of a table."""
    con = sqlite3.connect(path)
    for table, rows in tables.items():
        names = [c for c in COLUMNS[table] if c not in (drop or {}).get(table, ())]
        extra = sorted({c for r in rows for c in r} - set(names))
        names += extra
        kind = {c: "TEXT" if c in TEXT and table != "GPU_METRICS" else "INTEGER" for c in names}
        con.execute(f"CREATE TABLE {table} ({', '.join(f'{c} {kind[c]}' for c in names)})")
        marks = ", ".join("?" * len(names))
        con.executemany(f"INSERT INTO {table} VALUES ({marks})", [[r.get(c) for c in names] for r in rows])
    con.commit()
    con.close()
    return path


def made(tmp_path: Path, drop: Mapping[str, Sequence[str]] | None = None, **tables: object) -> Trace:
    """Read an export of these tables; META_DATA_EXPORT is added unless given."""
    given = dict(tables)
    given.setdefault("META_DATA_EXPORT", [{"name": "EXPORT_SCHEMA_VERSION", "value": "3.20.3"}])
    held = {t: rows for t, rows in given.items() if rows is not None}
    return read_sqlite(export(tmp_path / "made.sqlite", held, drop=drop))  # type: ignore[arg-type]


def push_pop(
    start: int, end: int | None, text: str | None, thread: int = tid(10), **more: object
) -> dict[str, object]:
    """A push/pop range."""
    return {
        "start": start,
        "end": end,
        "eventType": 59,
        "text": text,
        "globalTid": thread,
        "domainId": 0,
        **more,
    }


def kernel(start: int, end: int, pid: int = 10, **more: object) -> dict[str, object]:
    """A kernel of 132 blocks on device 0."""
    base = {
        "start": start, "end": end, "deviceId": 0, "streamId": 7, "correlationId": 1,
        "globalPid": tid(pid, 0), "shortName": 1, "demangledName": 1, "gridX": 132, "gridY": 1, "gridZ": 1,
    }  # fmt: skip
    return {**base, **more}
