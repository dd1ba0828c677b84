"""Read Chrome-trace events given one a line: the tracers of RLinf and AReaL.

RLinf
    One file for the whole run. Every worker and the driver emit ``B``/``E`` pairs; the process id is the
    worker's name (``RolloutGroup:0``, in one version followed by ``@host(address)``, which is dropped); times
    are microseconds since the Unix epoch, put on one clock by the tracer itself.
AReaL
    One file for each rank (``traces-r0.jsonl``). Complete events with ``args.rank``; times are microseconds
    since the start of each process, so the files of several ranks share no clock. Start and duration are
    truncated to microseconds and a duration is at least one, so a range may seem to outlast its parent.

Events of coroutines interleave on one thread: ranges of a name that cross others without nesting are
``start_end`` ranges, all others ``push_pop``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from rlprof.errors import NotATraceError
from rlprof.progress import Progress, silent
from rlprof.trace.chrome_events import (
    EPOCH_NS,
    PUSH_POP,
    RANGE_ROW,
    START_END,
    Names,
    Pairs,
    Rows,
    ThreadIds,
    as_int,
    counted,
    loader,
    ranges_frame,
    us_to_ns,
    worker_label,
)
from rlprof.trace.json_stream import text_of
from rlprof.trace.sweep import nest
from rlprof.trace.tables import TableName, schema
from rlprof.trace.trace import Loader, Trace, TraceMeta

#: A range that outlasts the one around it by no more is cut at the latter's end: both are truncated to 1 us.
SNAP_NS = 2_000
_AREAL_CATEGORIES = frozenset({"compute", "comm", "io", "sync", "scheduler", "instr", "misc"})


def read_chrome_jsonl(path: Path, *, progress: Progress = silent) -> Trace:
    """Read one file of Chrome-trace events, one JSON object a line.

    Parameters
    ----------
    path : pathlib.Path
        Plain or gzipped.
    progress : Progress
        Told the share of the file that has been read.

    Returns
    -------
    Trace
        Ranges and processes. Time 0 is the earliest start; ``meta.utc_origin_ns`` is None for clocks that do
        not count from the Unix epoch.

    Raises
    ------
    UnreadableError
        If the file cannot be opened.
    NotATraceError
        If no line is an event with a duration.
    DamagedTraceError
        If gzip data is cut off or corrupt.
    """
    lines = _Lines()
    events = _Collector()
    for event in lines.events(path, progress):
        events.take(event)
    return _build(path, lines, events)


@dataclass
class _Lines:
    """Splits text into lines and those into events; counts what is not one."""

    bad: int = 0
    #: whether the line seen last was not valid
    last_bad: bool = False

    def events(self, path: Path, progress: Progress) -> Iterator[dict[str, Any]]:
        rest = b""
        for piece in text_of(path, progress):
            head, newline, tail = piece.rpartition(b"\n")
            if not newline:
                rest += piece
                continue
            for line in (rest + head).split(b"\n"):
                yield from self._event(line)
            rest = tail
        yield from self._event(rest)

    def _event(self, line: bytes) -> Iterator[dict[str, Any]]:
        line = line.strip()
        if not line:
            return
        try:
            value = orjson.loads(line.removeprefix(b"\xef\xbb\xbf"))
        except orjson.JSONDecodeError:
            value = None
        self.last_bad = not (isinstance(value, dict) and "ph" in value)
        if self.last_bad:
            self.bad += 1
        else:
            yield value

    def notes(self) -> list[str]:
        out = []
        if self.last_bad:
            out.append("the last line is only half written: left out")
        if other := self.bad - self.last_bad:
            out.append(f"{counted(other, 'line')} left out: no trace events")
        return out


@dataclass
class _Collector:
    complete: Rows = field(default_factory=lambda: Rows(RANGE_ROW))
    pairs: Pairs = field(default_factory=Pairs)
    names: Names = field(default_factory=Names)
    threads: ThreadIds = field(default_factory=ThreadIds)
    #: number of a process by its id as found, and what is known of it
    pids: dict[object, int] = field(default_factory=dict)
    ranks: dict[int, int] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    areal: bool = False
    taken: int = 0

    def take(self, event: dict[str, Any]) -> None:
        phase = event["ph"]
        if phase not in ("X", "B", "E", "b", "e", "M"):
            return
        ts_ns = us_to_ns(event.get("ts"))
        if phase == "M":
            if event.get("name") == "process_name" and ts_ns is not None:
                self.pairs.restart(ts_ns, self._process(event.get("pid")))
            return
        if ts_ns is None:
            self.dropped["without a usable start time"] += 1
            return
        args = event.get("args")
        process = self._process(event.get("pid"))
        if isinstance(args, dict) and (rank := as_int(args.get("rank"))) is not None and rank >= 0:
            self.ranks[process] = rank
            self.areal = self.areal or event.get("cat") in _AREAL_CATEGORIES
        thread = self.threads.number(event.get("tid"))
        name = event.get("name")
        if phase == "X":
            duration_ns = us_to_ns(event.get("dur"))
            if duration_ns is None or duration_ns < 0 or ts_ns + duration_ns >= 2**63:
                self.dropped["without a usable duration"] += 1
                return
            end_ns = ts_ns + duration_ns
            self.complete.add(ts_ns, end_ns, self.names.code(name), PUSH_POP, process, thread, False)
        else:
            code = None if name is None and phase == "E" else self.names.code(name)
            key = (str(event.get("cat")), str(event.get("id"))) if phase in "be" else None
            self.pairs.add(ts_ns, phase, process=process, thread=thread, name=code, key=key)
        self.taken += 1

    def _process(self, pid: object) -> int:
        number = as_int(pid)
        return self.pids.setdefault(str(pid) if number is None else number, len(self.pids))


def _build(path: Path, lines: _Lines, events: _Collector) -> Trace:
    raw = events.complete.frame()
    ends = [*events.pairs.times(), *raw["end_ns"].to_list()] if events.taken else []
    paired = Rows(RANGE_ROW)
    events.pairs.join(paired, max(ends, default=0))
    raw = pl.concat([_snapped(raw), paired.frame()])
    if raw.is_empty():
        raise NotATraceError(
            "no line is a trace event with a duration",
            where=path,
            hint="give the .jsonl file that the tracer of RLinf or AReaL wrote, after a step has run",
        )
    start_ns = int(raw.select(pl.col("start_ns").min()).item())
    end_ns = int(raw.select(pl.col("end_ns").max()).item())
    epoch = EPOCH_NS[0] <= start_ns <= EPOCH_NS[1]
    raw, notes = _untangle(raw)
    notes = [*lines.notes(), *events.pairs.notes(), *notes]
    notes += [f"{counted(n, 'event')} {what} set aside" for what, n in events.dropped.items()]
    if not epoch and len(events.pids) > 1:
        notes.append(
            f"times do not count from the Unix epoch, and the file holds {len(events.pids)} processes (was it"
            " appended to by a second run?): their times relative to each other may be wrong"
        )
    tables: dict[TableName, pl.DataFrame] = {
        "ranges": ranges_frame(raw, events.names, start_ns),
        "processes": _processes(events, path.name),
    }
    named = any(isinstance(pid, str) for pid in events.pids)
    meta = TraceMeta(
        format="chrome-jsonl",
        files=(path.name,),
        start_ns=0,
        end_ns=end_ns - start_ns,
        utc_origin_ns=start_ns if epoch else None,
        product="AReaL perf_tracer" if events.areal else "RLinf tracer" if named and epoch else None,
        traced=frozenset({"nvtx"}),
    )
    loaders: dict[TableName, Loader] = {name: loader(name, frame) for name, frame in tables.items()}
    only = (
        "the file holds timers of the program alone, no record of a GPU; give an nsys or PyTorch capture too"
    )
    missing: dict[TableName, str] = dict.fromkeys(
        ("kernels", "copies", "api", "activity", "counters", "devices"), only
    )
    missing["loop_counts"] = "timers do not state how often an unmarked loop ran"
    return Trace(meta, loaders, missing, tuple(notes))


def _in_nesting_order(raw: pl.DataFrame) -> pl.DataFrame:
    return raw.sort(
        "process", "thread", "start_ns", "end_ns", descending=[False, False, False, True], maintain_order=True
    )


def _untangle(raw: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """Take ranges of interleaved coroutines out of the nesting."""
    raw = _in_nesting_order(raw)
    nested = raw.filter(pl.col("style") == PUSH_POP)
    group = nested.select(pl.struct("process", "thread").rle_id().cast(pl.Int64)).to_series()
    crossing = nest(group.to_numpy(), nested["start_ns"].to_numpy(), nested["end_ns"].to_numpy()).crossing
    if not crossing.any():
        return raw, []
    key = ["process", "thread", "name"]
    crossed = nested.filter(pl.Series(crossing)).select(key).unique().with_columns(crossed=pl.lit(True))
    raw = raw.join(crossed, on=key, how="left", maintain_order="left")
    loose = pl.col("crossed") & (pl.col("style") == PUSH_POP)
    count = int(raw.select(loose.sum()).item())
    raw = raw.with_columns(
        pl.when(loose).then(pl.lit(START_END)).otherwise("style").cast(pl.UInt8).alias("style")
    )
    note = (
        f"{counted(count, 'range')} of {counted(crossed['name'].n_unique(), 'name')} that overlap others of"
        " their thread without nesting (interleaved coroutines) stand beside the hierarchy, not in it"
    )
    return raw.drop("crossed"), [note]


def _snapped(raw: pl.DataFrame) -> pl.DataFrame:
    """Complete events, cut at the end of the one around them where they pass it by what truncation does."""
    raw = _in_nesting_order(raw)
    ends = raw["end_ns"].to_list()
    columns = (raw[c].to_list() for c in ("process", "thread", "start_ns"))
    lane: tuple[int, int] | None = None
    stack: list[int] = []
    for i, (process, thread, start_ns) in enumerate(zip(*columns, strict=True)):
        if (process, thread) != lane:
            lane, stack = (process, thread), []
        while stack and ends[stack[-1]] <= start_ns:
            stack.pop()
        if stack and 0 < ends[i] - ends[stack[-1]] <= SNAP_NS:
            ends[i] = ends[stack[-1]]
        stack.append(i)
    return raw.with_columns(pl.Series("end_ns", ends, dtype=pl.Int64))


def _processes(events: _Collector, file_name: str) -> pl.DataFrame:
    rows = []
    for pid, process in events.pids.items():
        rank = events.ranks.get(process)
        label = f"rank {rank}" if rank is not None else worker_label(pid)
        rows.append((process, pid if isinstance(pid, int) else None, rank, label, file_name, None))
    return pl.DataFrame(rows, schema=schema("processes"), orient="row")
