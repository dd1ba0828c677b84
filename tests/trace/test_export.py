"""Exports that other tools, and rlprof itself, read back."""

from __future__ import annotations

import gzip
import json
import sqlite3
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from rlprof.errors import OutputError, UsageError
from rlprof.trace.export import export
from rlprof.trace.kineto import read_kineto
from rlprof.trace.lanes import assign_lanes
from rlprof.trace.native import read_rlprof
from rlprof.trace.nsys_sqlite import read_sqlite
from rlprof.trace.tables import TABLE_NAMES, conform
from rlprof.trace.trace import Trace, TraceMeta
from tests.trace.test_native import RANGES, trace_of

CAPTURES = [
    "two_gpus_trimmed_kernels_without_calls",
    "gpu_metrics_without_nvtx",
    "cuda_graph_trace_only",
    "four_processes_repeated_correlation_ids",
    "range_text_only_in_textid",
]


@pytest.fixture(params=["vla_chunk_and_training", *CAPTURES])
def capture(request: pytest.FixtureRequest) -> Trace:
    if request.param == "vla_chunk_and_training":
        return read_sqlite(request.getfixturevalue("data") / "nsys" / f"{request.param}.sqlite")
    return read_sqlite(request.getfixturevalue("shared_traces") / "nsys" / f"{request.param}.sqlite")


def small(**tables: list[dict[str, Any]]) -> Trace:
    frames = {n: conform(pl.DataFrame(rows), n) for n, rows in tables.items()}  # type: ignore[arg-type]
    return trace_of(frames, TraceMeta("kineto", ("a.json",), 0, 10_000))  # type: ignore[arg-type]


def chrome(trace: Trace, folder: Path) -> dict[str, Any]:
    return json.loads(export(trace, "chrome", folder / "t.json", force=True).read_bytes())


def events(document: dict[str, Any], phase: str = "X") -> list[dict[str, Any]]:
    return [e for e in document["traceEvents"] if e["ph"] == phase]


def union_ns(frame: pl.DataFrame) -> int:
    total, reach = 0, None
    for start, end in frame.select("start_ns", "end_ns").sort("start_ns").iter_rows():
        if reach is None or start > reach:
            total, reach = total + end - start, end
        elif end > reach:
            total, reach = total + end - reach, end
    return total


# ---- Chrome ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_chrome_is_read_back_with_the_same_kernels(capture, tmp_path, name):
    path = export(capture, "chrome", tmp_path / name)
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")
    back = read_kineto(path)
    columns = ["start_ns", "end_ns", "device", "stream", "correlation_id"]
    for table in ("kernels", "copies"):
        mine, theirs = capture.table(table, columns), back.table(table, columns)
        if len(mine):
            origin = capture.table("kernels")["start_ns"].min() - back.table("kernels")["start_ns"].min()
            theirs = theirs.with_columns(pl.col("start_ns", "end_ns") + origin)
            assert_frame_equal(mine.sort(columns), theirs.sort(columns), check_exact=True)
    for (device,), part in capture.table("kernels").group_by("device"):
        same = back.table("kernels").filter(pl.col("device") == device)
        assert union_ns(part) == union_ns(same) > 0


def test_chrome_ranges_are_read_back(data, tmp_path):
    trace = read_sqlite(data / "nsys" / "vla_chunk_and_training.sqlite")
    back = read_kineto(export(trace, "chrome", tmp_path / "t.json"))
    assert len(trace.ranges) > 10
    for frame in (trace.ranges, back.ranges):
        assert frame["style"].unique().to_list() == ["push_pop"]
    lengths = [
        sorted(f.select(pl.col("name").cast(pl.String), pl.col("end_ns") - pl.col("start_ns")).rows())
        for f in (trace.ranges, back.ranges)
    ]
    assert lengths[0] == lengths[1]


def test_chrome_slices_of_a_lane_nest_and_device_lanes_do_not_overlap(capture, tmp_path):
    document = chrome(capture, tmp_path)
    lanes: dict[tuple[int, int], list[tuple[int, int, str]]] = defaultdict(list)
    for e in events(document):
        start = round(e["ts"] * 1000)
        lanes[e["pid"], e["tid"]].append((start, start + round(e["dur"] * 1000), e["cat"]))
    assert lanes
    for lane in lanes.values():
        device = lane[0][2] in ("kernel", "gpu_memcpy", "gpu_memset")
        stack: list[int] = []
        for start, end, _ in sorted(lane, key=lambda e: (e[0], -e[1])):
            while stack and stack[-1] <= start:
                stack.pop()
            assert not stack or (not device and end <= stack[-1])
            stack.append(end)


def test_chrome_lanes_processes_and_gpus_have_names(capture, tmp_path):
    document = chrome(capture, tmp_path)
    named = {(e["pid"], e["tid"]) for e in events(document, "M") if e["name"] == "thread_name"}
    processes = {e["pid"]: e["args"]["name"] for e in events(document, "M") if e["name"] == "process_name"}
    for e in events(document):
        assert (e["pid"], e["tid"]) in named
        assert processes[e["pid"]]
    for device in capture.table("kernels")["device"].unique():
        assert processes[device].startswith(f"GPU {device}")
    assert len(processes) == len(set(processes))


def test_chrome_times_are_exact_to_the_nanosecond(tmp_path):
    late = 86_400_000_000_000  # a day
    trace = small(
        kernels=[
            {
                "start_ns": late + 1,
                "end_ns": late + 1_000_003,
                "device": 0,
                "stream": 7,
                "kind": "kernel",
                "name": "k",
            }
        ]
    )
    text = export(trace, "chrome", tmp_path / "t.json").read_text()
    assert '"ts":86400000000.001,"dur":1000.002' in text


def test_chrome_negative_times_are_shifted_and_it_is_said(tmp_path):
    trace = small(
        activity=[
            {"source": "sm_counters", "device": 0, "start_ns": -1500, "end_ns": -500, "active_frac": 0.5}
        ],
        kernels=[{"start_ns": 100, "end_ns": 200, "device": 0, "stream": 7, "kind": "kernel", "name": "k"}],
    )
    document = chrome(trace, tmp_path)
    assert document["otherData"]["shift_ns"] == 1500
    assert [e["ts"] for e in events(document, "C")] == [0]
    assert [e["ts"] for e in events(document)] == [1.6]


def test_chrome_counters_and_gaps_between_samples(tmp_path):
    sample = {"source": "sm_counters", "device": 1}
    trace = small(
        activity=[
            {**sample, "start_ns": 0, "end_ns": 100, "active_frac": 0.125},
            {**sample, "start_ns": 100, "end_ns": 200, "active_frac": 1.0},
            {**sample, "start_ns": 900, "end_ns": 1000, "active_frac": 0.0},
            {"source": "host_cores", "device": -1, "start_ns": 0, "end_ns": 500, "active_frac": 0.5},
        ]
    )
    document = chrome(trace, tmp_path)
    counters = [(e["pid"], e["name"], e["ts"], e["args"]["%"]) for e in events(document, "C")]
    assert counters[:3] == [
        (1, "SM activity [%]", 0, 12.5),
        (1, "SM activity [%]", 0.1, 100),
        (1, "SM activity [%]", 0.9, 0),
    ]
    assert counters[3][1:] == ("host core activity [%]", 0, 50)
    assert [(e["name"], e["ts"], e["dur"]) for e in events(document)] == [("no samples", 0.2, 0.7)]


def test_chrome_counters_of_a_capture(shared_traces, tmp_path):
    trace = read_sqlite(shared_traces / "nsys" / "gpu_metrics_two_gpus_no_cuda.sqlite")
    document = chrome(trace, tmp_path)
    counters = pl.DataFrame(
        [(e["pid"], round(e["ts"] * 1000), e["args"]["%"]) for e in events(document, "C")], orient="row"
    )
    shift = document["otherData"]["shift_ns"]
    assert shift > 0
    assert counters.rows() == [
        (d, s + shift, round(a * 100, 4))
        for d, s, a in trace.samples.select("device", "start_ns", "active_frac").rows()
    ]


def test_chrome_names_with_quotes_and_control_characters(tmp_path):
    odd = 'a "quoted" \\ name\n\twith \u2603 {braces} {}'
    trace = small(
        ranges=[
            {
                "start_ns": 0,
                "end_ns": 10,
                "name": odd,
                "style": "push_pop",
                "process": 0,
                "thread": 1,
                "domain": odd,
                "cut": False,
            }
        ],
        kernels=[{"start_ns": 0, "end_ns": 10, "name": odd, "kind": "kernel"}],
    )
    found = events(chrome(trace, tmp_path))
    assert [e["name"] for e in found] == [odd, odd]
    assert found[1]["args"]["domain"] == odd


def test_chrome_crossing_start_end_ranges_get_lanes_of_their_own(tmp_path):
    row = {"name": "r", "process": 0, "thread": 1, "domain": "", "cut": False}
    trace = small(
        ranges=[
            {**row, "start_ns": 0, "end_ns": 100, "style": "push_pop"},
            {**row, "start_ns": 50, "end_ns": 150, "style": "start_end"},
            {**row, "start_ns": 120, "end_ns": 220, "style": "start_end"},
        ]
    )
    found = events(chrome(trace, tmp_path))
    assert len({e["tid"] for e in found}) == 3


def test_chrome_of_a_trace_without_events(tmp_path):
    assert chrome(trace_of({}), tmp_path)["traceEvents"] == []


def test_chrome_graph_launches_say_so(shared_traces, tmp_path):
    trace = read_sqlite(shared_traces / "nsys" / "cuda_graph_trace_only.sqlite")
    names = [e["name"] for e in events(chrome(trace, tmp_path)) if e["cat"] == "kernel"]
    assert names.count("CUDA graph") == trace.kernels.filter(pl.col("kind") == "graph").height == 10


# ---- lanes ----------------------------------------------------------------------------------------------

INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=30).map(
    lambda rows: sorted(((s, s + d) for s, d in rows), key=lambda r: (r[0], -r[1]))
)


@given(INTERVALS, st.sampled_from(["disjoint", "nested"]))
def test_lanes_keep_their_rule_and_are_few(rows, rule):
    start = np.array([s for s, _ in rows], dtype=np.int64)
    end = np.array([e for _, e in rows], dtype=np.int64)
    lanes = assign_lanes(start, end, rule)
    for i in range(len(rows)):
        for j in range(i):
            if lanes[i] == lanes[j] and start[i] < end[j] and start[j] < end[i]:
                assert rule == "nested"
                assert end[i] <= end[j]
    if rule == "disjoint" and len(rows) and (end > start).all():
        # greedy by start is optimal: as many lanes as intervals that are open at once
        open_at_once = max(int(((start <= s) & (end > s)).sum()) for s in start)
        assert int(lanes.max()) + 1 == max(1, open_at_once)


# ---- parquet and SQLite ---------------------------------------------------------------------------------


def test_parquet_folder_is_read_by_pandas(capture, tmp_path):
    folder = export(capture, "parquet", tmp_path / "out")
    held = [n for n in TABLE_NAMES if capture.has(n)]
    assert sorted(p.name for p in folder.iterdir()) == sorted(["meta.json", *(f"{n}.parquet" for n in held)])
    for name in held:
        frame = pd.read_parquet(folder / f"{name}.parquet")
        assert list(frame.columns) == capture.table(name).columns
        assert len(frame) == len(capture.table(name))
    kernels = pd.read_parquet(folder / "kernels.parquet")
    assert (kernels["end_ns"] - kernels["start_ns"]).sum() == capture.kernels.select(
        (pl.col("end_ns") - pl.col("start_ns")).sum()
    ).item()
    document = json.loads((folder / "meta.json").read_text())
    assert document["end_ns"] == capture.meta.end_ns


def test_sqlite_is_read_by_sqlite3(capture, tmp_path):
    con = sqlite3.connect(export(capture, "sqlite", tmp_path / "out.sqlite"))
    for name in TABLE_NAMES:
        if capture.has(name):
            frame = capture.table(name)
            rows = con.execute(f"SELECT * FROM {name}").fetchall()
            text = [c for c, t in frame.schema.items() if isinstance(t, pl.Categorical | pl.Enum)]
            want = frame.with_columns(pl.col(text).cast(pl.String)).rows()
            if name == "processes":
                want = [(*r[:-1], None if r[-1] is None else json.dumps(r[-1])) for r in want]
            assert rows == want
    meta = {k: json.loads(v) for k, v in con.execute("SELECT * FROM meta")}
    assert meta["start_ns"] == capture.meta.start_ns
    assert meta["source_format"] == "nsys-sqlite"
    con.close()


def test_rlprof_is_read_back_exactly(capture, tmp_path):
    back = read_rlprof(export(capture, "rlprof", tmp_path / "out.rlprof"))
    for name in TABLE_NAMES:
        assert back.has(name) == capture.has(name)
        assert_frame_equal(back.table(name), capture.table(name), categorical_as_str=True, check_exact=True)


# ---- windows and refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["chrome", "parquet", "sqlite", "rlprof"])
def test_window(data, tmp_path, to):
    trace = read_sqlite(data / "nsys" / "vla_chunk_and_training.sqlite")
    starts = trace.kernels["start_ns"]
    window = (int(starts.quantile(0.3)), int(starts.quantile(0.6)))
    inside = trace.between(*window).kernels
    assert 0 < len(inside) < len(trace.kernels)
    out = export(trace, to, tmp_path / "out", window_ns=window)
    if to == "chrome":
        count = len(read_kineto(out).kernels)
    elif to == "parquet":
        count = len(pd.read_parquet(out / "kernels.parquet"))
    elif to == "sqlite":
        count = sqlite3.connect(out).execute("SELECT count(*) FROM kernels").fetchone()[0]
    else:
        count = len(read_rlprof(out).kernels)
    assert count == len(inside)


def test_window_outside_the_trace(tmp_path):
    with pytest.raises(UsageError, match="nothing lies between"):
        export(trace_of({"ranges": RANGES}), "chrome", tmp_path / "t.json", window_ns=(10**12, 10**13))


def test_unknown_target(tmp_path):
    with pytest.raises(UsageError, match="choose one of chrome, parquet, sqlite, rlprof"):
        export(trace_of({}), "excel", tmp_path / "t")  # type: ignore[arg-type]


@pytest.mark.parametrize("to", ["chrome", "parquet", "sqlite", "rlprof"])
def test_existing_output_is_kept_unless_forced(tmp_path, to):
    trace = trace_of({"ranges": RANGES})
    out = export(trace, to, tmp_path / "out")
    with pytest.raises(OutputError, match="exists already"):
        export(trace, to, out)
    export(trace_of({}), to, out, force=True)
    if to == "parquet":
        assert [p.name for p in out.iterdir()] == ["meta.json"]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("to", ["chrome", "parquet", "sqlite", "rlprof"])
@pytest.mark.parametrize("error", [RuntimeError("half way"), KeyboardInterrupt()])
def test_failure_half_way_leaves_nothing(tmp_path, to, error):
    def fails(columns: Any) -> Any:
        raise error

    trace = trace_of({"ranges": RANGES})
    broken = Trace(trace.meta, {**trace.loaders, "activity": fails})
    with pytest.raises(type(error)):
        export(broken, to, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("to", ["chrome", "parquet", "sqlite", "rlprof"])
def test_folder_without_permission_or_absent(tmp_path, to):
    with pytest.raises(OutputError, match="does not exist"):
        export(trace_of({"ranges": RANGES}), to, tmp_path / "absent" / "out")


@pytest.mark.parametrize(("to", "other"), [("parquet", "file"), ("chrome", "folder"), ("sqlite", "folder")])
def test_file_in_place_of_a_folder_and_the_reverse(tmp_path, to, other):
    out = tmp_path / "out"
    out.mkdir() if other == "folder" else out.write_text("precious")
    with pytest.raises(OutputError, match=f"is a {other}"):
        export(trace_of({"ranges": RANGES}), to, out, force=True)
    assert out.is_dir() or out.read_text() == "precious"


@pytest.mark.parametrize("to", ["chrome", "parquet", "sqlite", "rlprof"])
def test_disk_full(to, tmp_path):
    # a limit on the size of files stands for the disk: it stops the real writers in the same calls
    script = f"""
import resource, signal, sys
from pathlib import Path
import polars as pl
from rlprof.errors import OutputError
from rlprof.trace.export import export
from tests.trace.test_native import RANGES, trace_of
noise = pl.int_range(60000, dtype=pl.Int64).hash().cast(pl.Int64, wrap_numerical=True) // 4
rows = pl.concat([RANGES] * 20000).with_columns(start_ns=noise)
rows = rows.with_columns(end_ns=pl.col("start_ns") + 5)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    export(trace_of({{"ranges": rows}}), {to!r}, Path(sys.argv[1]))
except OutputError as error:
    print(error)
    sys.exit(2)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "out")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "out" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_gzip_output_is_the_same_each_time(tmp_path):
    trace = trace_of({"ranges": RANGES})
    a = export(trace, "chrome", tmp_path / "a.json.gz").read_bytes()
    b = export(trace, "chrome", tmp_path / "b.json.gz").read_bytes()
    assert a == b
    assert json.loads(gzip.decompress(a))["traceEvents"]
