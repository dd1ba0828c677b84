"""A trace as Chrome trace JSON, for Perfetto and chrome://tracing, in the categories of PyTorch's profiler.

Layout: one process row per GPU (its lanes are streams; work that overlaps on a stream gets further lanes),
one per process of the program (its lanes are threads), and the samples of activity and of further hardware
counters as counters.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal, cast

import numpy as np
import orjson
import polars as pl

from rlprof import __version__
from rlprof.progress import Progress, silent
from rlprof.trace.lanes import assign_lanes
from rlprof.trace.output import atomic_path
from rlprof.trace.tables import TableName
from rlprof.trace.trace import Trace

CHUNK_ROWS = 100_000
#: Chrome process numbers of GPUs are their numbers, as PyTorch's profiler has it; what is no GPU comes after.
UNKNOWN_GPU, HOST, UNKNOWN_PROCESS, FIRST_UNKNOWN_PID = 99_997, 99_998, 99_999, 100_000
_COUNTERS = {"sm_counters": "SM activity [%]", "host_cores": "host core activity [%]"}


def write_chrome(trace: Trace, path: Path, *, force: bool = False, progress: Progress = silent) -> Path:
    """Write a trace as Chrome trace JSON.

    Times are microseconds with exact nanosecond decimals, in the trace's clock; a trace that has negative
    times is shifted to start at 0 and says by how much (``otherData.shift_ns``).

    Parameters
    ----------
    trace : Trace
        Any trace.
    path : pathlib.Path
        File to make; compressed if its name ends in ``.gz``.
    force : bool
        Replace an existing file.
    progress : Progress
        Told the table being written.

    Returns
    -------
    pathlib.Path
        `path`.

    Raises
    ------
    OutputError
        If `path` exists and `force` is not set, or cannot be written.
    """
    with atomic_path(path, force=force) as temporary, temporary.open("xb") as raw:
        if path.name.endswith(".gz"):
            with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=6, filename="", mtime=0) as packed:
                _write(trace, cast(IO[bytes], packed), progress)
        else:
            _write(trace, raw, progress)
    return path


def _write(trace: Trace, out: IO[bytes], progress: Progress) -> None:
    layout = _Layout.of(trace)
    head = {
        "schemaVersion": 1,
        "displayTimeUnit": "ns",
        "deviceProperties": [
            {"id": r["device"], "name": r["name"] or "", "numSms": r["sm_count"]}
            for r in trace.table("devices").iter_rows(named=True)
        ],
        "otherData": {"producer": f"rlprof {__version__}", "shift_ns": layout.shift_ns},
    }
    if trace.meta.utc_origin_ns is not None:
        head["baseTimeNanoseconds"] = trace.meta.utc_origin_ns - layout.shift_ns
    out.write(orjson.dumps(head)[:-1] + b',"traceEvents":[\n')
    parts: tuple[tuple[str, Callable[[], Iterator[pl.Series]]], ...] = (
        ("device work", lambda: _device_events(trace, layout)),
        ("ranges and calls", lambda: _host_events(trace, layout)),
        ("activity", lambda: _counter_events(trace, layout)),
    )
    first = True
    for i, (stage, events) in enumerate(parts):
        progress(f"writing {stage}", i / len(parts))
        for series in events():
            out.write(b"" if first else b",\n")
            out.write(",\n".join(series.to_list()).encode())
            first = False
    # names come last, when every lane is known; viewers take them in any order
    names = [orjson.dumps(e) for e in layout.metadata_events()]
    out.write((b"" if first or not names else b",\n") + b",\n".join(names) + b"\n]}\n")
    progress("writing", 1.0)


@dataclass
class _Layout:
    """Chrome's process and thread numbers for the devices, streams, processes and threads of a trace."""

    shift_ns: int
    process_pid: dict[int, int]
    process_names: dict[int, str]  # by Chrome pid
    lane_names: dict[tuple[int, int], str] = field(default_factory=dict)  # by Chrome pid and tid

    @classmethod
    def of(cls, trace: Trace) -> _Layout:
        timed: tuple[TableName, ...] = ("ranges", "kernels", "copies", "api", "activity", "counters")
        starts = [trace.table(n, ["start_ns"])["start_ns"].min() for n in timed if trace.has(n)]
        first_ns = min((s for s in starts if isinstance(s, int)), default=0)
        devices = {
            r["device"]: f"GPU {r['device']}"
            + (f" ({r['name']})" if r["name"] and r["name"] != f"GPU {r['device']}" else "")
            for r in trace.table("devices").iter_rows(named=True)
        }
        with_device: tuple[TableName, ...] = ("kernels", "copies", "activity", "counters")
        for name in with_device:
            for device in trace.table(name, ["device"])["device"].unique().drop_nulls():
                if device >= 0:
                    devices.setdefault(device, f"GPU {device}")
        rows = list(trace.table("processes").iter_rows(named=True))
        pids = [r["pid"] for r in rows]
        taken = {*devices, UNKNOWN_GPU, HOST, UNKNOWN_PROCESS}
        pid_of = {
            r["process"]: r["pid"]
            if r["pid"] is not None and r["pid"] not in taken and pids.count(r["pid"]) == 1
            else FIRST_UNKNOWN_PID + r["process"]
            for r in rows
        }
        names = {
            pid_of[r["process"]]: f"process {r['label']}" if str(r["label"]).isdecimal() else str(r["label"])
            for r in rows
        }
        return cls(max(0, -first_ns), pid_of, {**devices, **names})

    def pid(self, process: int | None) -> int:
        """Chrome process of a process of the program."""
        number = UNKNOWN_PROCESS
        if process is not None:
            number = self.process_pid.get(process, FIRST_UNKNOWN_PID + process)
        self.process_names.setdefault(
            number, "process not known" if process is None else f"process {process}"
        )
        return number

    def gpu(self, device: int | None) -> int:
        """Chrome process of a GPU."""
        number = UNKNOWN_GPU if device is None or device < 0 else device
        self.process_names.setdefault(number, "GPU not known")
        return number

    def lanes(self, pid: int, name: str, count: int) -> list[int]:
        """Numbers of new lanes of a Chrome process."""
        first = 1 + sum(1 for p, _ in self.lane_names if p == pid)
        for i in range(count):
            self.lane_names[pid, first + i] = name if i == 0 else f"{name} ({i + 1})"
        return list(range(first, first + count))

    def metadata_events(self) -> Iterator[dict[str, object]]:
        """Names and order of processes and lanes."""
        for i, (pid, name) in enumerate(self.process_names.items()):
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
            yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": i}}
        for (pid, tid), name in self.lane_names.items():
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
            yield {
                "ph": "M",
                "name": "thread_sort_index",
                "pid": pid,
                "tid": tid,
                "args": {"sort_index": tid},
            }


# ---- events as text, made by polars: one JSON object per row --------------------------------------------


def _line(*parts: str | pl.Expr) -> pl.Expr:
    """Text put together from literal pieces and columns."""
    return pl.concat_str([pl.lit(p) if isinstance(p, str) else p for p in parts])


def _json(column: str) -> pl.Expr:
    """A column of names as JSON strings (each name is encoded once)."""

    def encode(names: pl.Series) -> pl.Series:
        known = names.unique()
        texts = pl.Series([orjson.dumps(n if n is not None else "").decode() for n in known], dtype=pl.String)
        return names.replace_strict(known, texts, return_dtype=pl.String)

    return pl.col(column).cast(pl.String).map_batches(encode, return_dtype=pl.String)


def _us(ns: pl.Expr) -> pl.Expr:
    """Nanoseconds, none negative, as exact decimal microseconds."""
    return _line(ns // 1000, ".", (ns % 1000).cast(pl.String).str.zfill(3))


def _number(column: str) -> pl.Expr:
    return pl.col(column).cast(pl.String).fill_null("null")


def _complete(frame: pl.DataFrame, layout: _Layout, args: pl.Expr) -> Iterator[pl.Series]:
    """Complete events of rows with start_ns, end_ns, cat, name, pid, tid."""
    for rows in frame.iter_slices(CHUNK_ROWS):
        yield rows.select(
            _line(
                *('{"ph":"X","cat":"', pl.col("cat"), '","name":', _json("name")),
                *(',"pid":', pl.col("pid"), ',"tid":', pl.col("tid")),
                *(',"ts":', _us(pl.col("start_ns") + layout.shift_ns)),
                *(',"dur":', _us(pl.col("end_ns") - pl.col("start_ns"))),
                *(',"args":', args, "}"),
            )
        ).to_series()


def _on_lanes(
    frame: pl.DataFrame, rule: Literal["disjoint", "nested"], lanes: Callable[[int], list[int]]
) -> pl.DataFrame:
    """Add column tid to the rows of one stream or thread."""
    keys = ["start_ns", "end_ns", *(["rank"] if "rank" in frame.columns else [])]
    frame = frame.sort(keys, descending=[k == "end_ns" for k in keys], maintain_order=True)
    place = assign_lanes(frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy(), rule)
    numbers = np.array(lanes(int(place.max()) + 1), dtype=np.int64)
    return frame.with_columns(tid=pl.Series(numbers[place]))


def _device_events(trace: Trace, layout: _Layout) -> Iterator[pl.Series]:
    common = ["start_ns", "end_ns", "device", "stream", "process", "correlation_id"]
    kernels = trace.table("kernels", [*common, "name", "full_name", "blocks", "kind"])
    graph = pl.col("kind").cast(pl.String) == "graph"
    text = pl.coalesce(pl.col("full_name").cast(pl.String), pl.col("name").cast(pl.String))
    kernels = kernels.select(
        *common,
        name=pl.when(graph).then(pl.coalesce(text, pl.lit("CUDA graph"))).otherwise(text),
        cat=pl.lit("kernel"),
        args=_line(',"blocks":', _number("blocks")),
    )
    copies = trace.table("copies", [*common, "kind", "size_bytes"])
    memset = pl.col("kind").cast(pl.String) == "memset"
    copies = copies.select(
        *common,
        name=pl.when(memset)
        .then(pl.lit("Memset"))
        .otherwise(pl.format("Memcpy {}", pl.col("kind").cast(pl.String))),
        cat=pl.when(memset).then(pl.lit("gpu_memset")).otherwise(pl.lit("gpu_memcpy")),
        args=_line(',"bytes":', _number("size_bytes")),
    )
    work = pl.concat([kernels, copies])
    several = work["process"].n_unique() > 1
    # one lane for each stream of each process: streams of two processes have nothing in common but a number
    for rows in work.partition_by("device", "process", "stream", maintain_order=True):
        device, process, stream = rows.select("device", "process", "stream").row(0)
        pid = layout.gpu(device)
        name = f"stream {stream}" if stream is not None else "stream not known"
        if several:
            name += f", {layout.process_names[layout.pid(process)]}"
        placed = _on_lanes(rows, "disjoint", lambda n, pid=pid, name=name: layout.lanes(pid, name, n))  # type: ignore[misc]
        args = _line(
            *('{"device":', _number("device"), ',"stream":', _number("stream")),
            *(',"correlation":', _number("correlation_id"), pl.col("args"), "}"),
        )
        yield from _complete(placed.with_columns(pid=pl.lit(pid)), layout, args)


def _host_events(trace: Trace, layout: _Layout) -> Iterator[pl.Series]:
    ranges = trace.table("ranges")
    style = pl.col("style").cast(pl.String)
    events = [
        ranges.select(
            "start_ns",
            "end_ns",
            "process",
            "thread",
            pl.col("name").cast(pl.String),
            own_lane=style == "start_end",
            cat=pl.when(style == "operator").then(pl.lit("cpu_op")).otherwise(pl.lit("user_annotation")),
            rank=(style == "operator").cast(pl.Int8),
            args=_line('{"domain":', _json("domain"), ',"cut":', _number("cut"), "}"),
        )
    ]
    if trace.has("api"):
        events.append(
            trace.table("api").select(
                "start_ns",
                "end_ns",
                "process",
                "thread",
                pl.col("name").cast(pl.String),
                own_lane=pl.lit(False),
                cat=pl.lit("cuda_runtime"),
                rank=pl.lit(2, dtype=pl.Int8),
                args=_line('{"correlation":', _number("correlation_id"), "}"),
            )
        )
    work = pl.concat(events)
    for rows in work.partition_by("process", "thread", "own_lane", maintain_order=True):
        process, thread, own_lane = rows.select("process", "thread", "own_lane").row(0)
        pid = layout.pid(process)
        # nsys puts machine, VM and process into the upper bits of a thread's number
        name = (
            f"thread {thread & 0xFFFFFF if thread >> 32 else thread}"
            if thread is not None
            else "thread not known"
        )
        if own_lane:
            name += ", start/end ranges"
        placed = _on_lanes(rows, "nested", lambda n, pid=pid, name=name: layout.lanes(pid, name, n))  # type: ignore[misc]
        yield from _complete(placed.with_columns(pid=pl.lit(pid)), layout, pl.col("args"))


def _counter_events(trace: Trace, layout: _Layout) -> Iterator[pl.Series]:
    percent = (pl.col("active_frac") * 100).round(4)
    for rows in trace.table("activity").partition_by("source", "device", maintain_order=True):
        source, device = rows.select(pl.col("source").cast(pl.String), "device").row(0)
        if source == "host_cores":
            pid = HOST
            layout.process_names.setdefault(HOST, "host")
        else:
            pid = layout.gpu(device)
        yield from _counter(rows.with_columns(shown=percent), layout, pid, _COUNTERS[source], "%")
    for rows in trace.table("counters").partition_by("metric", "device", maintain_order=True):
        metric, device = rows.select(pl.col("metric").cast(pl.String), "device").row(0)
        shown = rows.with_columns(shown=pl.col("value"))
        yield from _counter(shown, layout, layout.gpu(device), metric or "", "value")


def _counter(rows: pl.DataFrame, layout: _Layout, pid: int, name: str, series: str) -> Iterator[pl.Series]:
    """Counter events of the samples of one device, column `shown`, and where there are none."""
    head = f'{{"ph":"C","name":{orjson.dumps(name).decode()},"pid":{pid},"ts":'
    for part in rows.iter_slices(CHUNK_ROWS):
        yield part.select(
            _line(
                head,
                _us(pl.col("start_ns") + layout.shift_ns),
                f',"args":{{"{series}":',
                pl.col("shown").fill_nan(None).cast(pl.String).fill_null("null"),
                "}}",
            )
        ).to_series()
    # a viewer holds the last value until the next: say where that is not known
    gaps = rows.with_columns(next_ns=pl.col("start_ns").shift(-1)).filter(
        pl.col("next_ns") > pl.col("end_ns")
    )
    if len(gaps):
        lane = layout.lanes(pid, f"{name}: no samples", 1)[0]
        frame = gaps.select(
            start_ns="end_ns",
            end_ns="next_ns",
            cat=pl.lit("trace"),
            name=pl.lit("no samples"),
            pid=pl.lit(pid),
            tid=pl.lit(lane),
        )
        yield from _complete(frame, layout, pl.lit("{}"))
