"""Recording in a test, and reading what was recorded as any capture is read."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

import rlprof
from rlprof.capture import recorder
from rlprof.capture.nvtx import Nvtx
from rlprof.capture.part_reader import ProcessParts, read_parts
from rlprof.trace.archive import ARROW_SCHEMAS, archive_meta, write_archive
from rlprof.trace.native import read_rlprof
from rlprof.trace.trace import Trace
from tests.conftest import ROOT


@contextmanager
def recording(folder: Path) -> Iterator[Path]:
    """Record this process into `folder`, and stop in any case."""
    folder.mkdir(parents=True, exist_ok=True)
    recorder.start(folder)
    try:
        yield folder
    finally:
        recorder.stop()


def run(code: str, folder: Path | None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a session whose parts go into `folder`."""
    session = {} if folder is None else {recorder.ENVIRONMENT: str(folder)}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **session, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def ranges(folder: Path) -> pl.DataFrame:
    """Ranges of all processes, with `process` their number, by start."""
    frames = [
        pl.DataFrame(part.tables["ranges"]).with_columns(process=pl.lit(i, pl.UInt32))
        for i, part in enumerate(read_parts(folder))
        if "ranges" in part.tables
    ]
    texts = pl.col("name", "style", "domain").cast(pl.String)
    return pl.concat([f.with_columns(texts) for f in frames]).sort("start_ns", -pl.col("end_ns"))


def names(folder: Path, style: str | None = None) -> list[str]:
    """Names of the ranges, by start."""
    found = ranges(folder)
    return (found if style is None else found.filter(pl.col("style") == style))["name"].to_list()


def loop_counts(folder: Path) -> dict[str, int]:
    """Counts of all processes."""
    found: dict[str, int] = {}
    for part in read_parts(folder):
        if (table := part.tables.get("loop_counts")) is not None:
            found.update(zip(table["path"].to_pylist(), table["count"].to_pylist(), strict=True))
    return found


def trace_of(folder: Path) -> Trace:
    """The parts as a trace, by way of a `.rlprof` file."""
    parts = read_parts(folder)
    tables: dict[str, Any] = {}
    for table in ("ranges", "loop_counts"):
        held = [_with_process(p, table, i) for i, p in enumerate(parts) if table in p.tables]
        tables[table] = pa.concat_tables(held) if held else ARROW_SCHEMAS[table].empty_table()
    rows = [
        {
            "process": i,
            "pid": p.pid,
            "rank": p.facts.get("rank"),
            "label": p.facts.get("label"),
            "file": "made",
        }
        for i, p in enumerate(parts)
    ]
    tables["processes"] = pa.Table.from_pylist(rows, ARROW_SCHEMAS["processes"])
    first, last = tables["ranges"]["start_ns"].to_pylist(), tables["ranges"]["end_ns"].to_pylist()
    meta = archive_meta(start_ns=min(first, default=0), end_ns=max(last, default=0), files=("made",))
    path = folder.with_name(folder.name + ".rlprof")
    write_archive(path, lambda: meta, tables, force=True)
    return read_rlprof(path)


def _with_process(part: ProcessParts, table: str, number: int) -> pa.Table:
    held = part.tables[table]
    held = held.append_column("process", pa.array([number] * held.num_rows, pa.uint32()))
    return held.select(ARROW_SCHEMAS[table].names).cast(ARROW_SCHEMAS[table])


def node_counts(folder: Path) -> dict[str, int]:
    """How often each node ran, as ``Trace.windows()`` says."""
    frame = trace_of(folder).windows().frame.filter(pl.col("device").is_null())
    return dict(frame.group_by("node").agg(pl.col("count").sum()).iter_rows())


class ListeningDomain:
    """An nvtx.Domain that keeps what a tool would: fails on a pop too many, knows what each pop closed."""

    def __init__(self) -> None:
        self.stacks: dict[int, list[str]] = {}
        self.open: dict[int, str] = {}
        self.closed: list[tuple[str, str]] = []  # (kind, name), in order of closing
        self.marks: list[str] = []
        self._handles = 0

    @staticmethod
    def get_event_attributes(message: str) -> str:
        return message

    def _stack(self) -> list[str]:
        import threading

        return self.stacks.setdefault(threading.get_ident(), [])

    def push_range(self, attributes: str) -> None:
        self._stack().append(attributes)

    def pop_range(self) -> None:
        self.closed.append(("push_pop", self._stack().pop()))

    def start_range(self, attributes: str) -> int:
        self._handles += 1
        self.open[self._handles] = attributes
        return self._handles

    def end_range(self, handle: int) -> None:
        self.closed.append(("start_end", self.open.pop(handle)))

    def mark(self, message: str) -> None:
        self.marks.append(message)

    @property
    def all_closed(self) -> bool:
        return not self.open and not any(self.stacks.values())


@contextmanager
def listening() -> Iterator[ListeningDomain]:
    """Annotations emit NVTX to a domain of the test."""
    domain = ListeningDomain()
    recorder.emit_nvtx(Nvtx(domain))
    try:
        yield domain
    finally:
        recorder.emit_nvtx(None)


def nesting_faults(found: pl.DataFrame) -> list[str]:
    """Push/pop ranges of one thread that overlap without nesting, and ranges that end before they start."""
    faults = []
    for _, group in found.filter(pl.col("style") == "push_pop").group_by("process", "thread"):
        stack: list[Mapping[str, Any]] = []
        for row in group.sort("start_ns", -pl.col("end_ns")).iter_rows(named=True):
            while stack and stack[-1]["end_ns"] <= row["start_ns"]:
                stack.pop()
            if stack and row["end_ns"] > stack[-1]["end_ns"]:
                faults.append(f"{stack[-1]['name']} and {row['name']} cross")
            stack.append(row)
    faults += [f"{n} ends first" for n in found.filter(pl.col("end_ns") < pl.col("start_ns"))["name"]]
    return faults


async def leaf(name: str = "leaf", naps: int = 1) -> str:
    """Open a range and let other tasks run inside of it."""
    with rlprof.annotate(name):
        for _ in range(naps):
            await asyncio.sleep(0)
    return name
