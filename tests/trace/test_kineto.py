"""PyTorch profiler traces, from 2021 to today, and what goes wrong with them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlprof.errors import DamagedTraceError, NotATraceError
from rlprof.trace.kineto import rank_in_name, read_kineto
from rlprof.trace.kineto_events import is_label
from rlprof.trace.tables import SCHEMAS, TABLE_NAMES
from rlprof.trace.trace import Trace

US = 1000
T0 = 1_712_195_495_519_000  # us since the epoch


def event(
    cat: str, name: str, ts: Any = T0, dur: Any = 10, *, pid: Any = 7, tid: Any = 7, **args: Any
) -> dict[str, Any]:
    out = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
    return {k: v for k, v in out.items() if v is not ...}


def kernel(ts: Any = T0, dur: Any = 10, name: str = "void ns::k<int>(int)", **args: Any) -> dict[str, Any]:
    args = {"device": 0, "stream": 7, "correlation": 1, "grid": [2, 3, 4], **args}
    return event("kernel", name, ts, dur, pid=0, tid=args["stream"], **args)


def made(folder: Path, events: list[Any], name: str = "trace.json", **document: Any) -> Trace:
    path = folder / name
    path.write_text(json.dumps({**document, "traceEvents": events}))
    return read_kineto(path)


def rows(trace: Trace, table: str, *columns: str) -> list[tuple[Any, ...]]:
    return trace.table(table, columns).select(columns).rows()  # type: ignore[arg-type]


# --- the tables ---------------------------------------------------------------------------------------


def test_tables_have_the_types_and_order_of_the_schema(tmp_path: Path) -> None:
    trace = made(
        tmp_path,
        [
            kernel(),
            event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", bytes=5),
            event("cuda_runtime", "cudaLaunch"),
            event("user_annotation", "step"),
        ],
    )
    assert {t for t in TABLE_NAMES if trace.has(t)} == {
        "kernels",
        "copies",
        "api",
        "ranges",
        "devices",
        "processes",
    }
    for table in trace.loaders:
        assert dict(trace.table(table).schema) == SCHEMAS[table]
        assert trace.table(table, list(SCHEMAS[table])[1:2]).columns == list(SCHEMAS[table])[1:2]
    assert set(trace.missing) == {"activity", "counters", "loop_counts"}


def test_kernels_carry_device_stream_correlation_names_and_blocks(tmp_path: Path) -> None:
    trace = made(tmp_path, [kernel(ts=T0 + 1), kernel(grid=[0, 1, 1]), kernel(ts=T0 + 2, grid=None)])
    (first, second, third) = trace.table("kernels").to_dicts()
    assert (first["start_ns"], first["end_ns"], first["blocks"]) == (0, 10 * US, None)
    assert (second["device"], second["stream"], second["correlation_id"], second["blocks"]) == (0, 7, 1, 24)
    assert (second["name"], second["full_name"], second["kind"]) == ("k", "void ns::k<int>(int)", "kernel")
    assert third["blocks"] is None


def test_copies_are_kinds_and_bytes_and_not_kernels(tmp_path: Path) -> None:
    trace = made(
        tmp_path,
        [
            event(
                "gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", device=1, stream=3, correlation=9, bytes=64
            ),
            event("gpu_memset", "Memset (Device)", device=1, stream=3, bytes=8),
        ],
    )
    assert rows(trace, "copies", "device", "stream", "correlation_id", "kind", "size_bytes") == [
        (1, 3, 9, "DtoH", 64),
        (1, 3, None, "memset", 8),
    ]
    assert not trace.has("kernels")


def test_categories_changed_case_and_names_over_the_years(tmp_path: Path) -> None:
    old = [
        event("Kernel", "k", device=0, stream=7, correlation=3, pid=0, tid="stream 7"),
        event("Memcpy", "Memcpy HtoD (Pageable -> Device)", device=0, stream=7, pid=0, tid="stream 7"),
        event("Memset", "Memset (Device)", device=0, stream=7, pid=0, tid="stream 7"),
        event("Runtime", "cudaLaunchKernel", correlation=3, tid="25738"),
        event("Operator", "aten::add", tid="25738"),
        event("Operator", "ProfilerStep#5", tid="25738"),
    ]
    new = [
        kernel(name="k", correlation=3),
        event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", device=0, stream=7),
        event("gpu_memset", "Memset (Device)", device=0, stream=7),
        event("cuda_runtime", "cudaLaunchKernel", correlation=3, tid=25738),
        event("cpu_op", "aten::add", tid=25738),
        event("user_annotation", "ProfilerStep#5", tid=25738),
    ]
    a, b = made(tmp_path, old, "old.json"), made(tmp_path, new, "new.json")
    for table in ("kernels", "copies", "api", "ranges"):
        columns = [c for c in SCHEMAS[table] if c != "blocks"]
        assert rows(a, table, *columns) == rows(b, table, *columns)
    assert rows(a, "ranges", "name", "style", "thread") == [
        ("aten::add", "operator", 25738),
        ("ProfilerStep#5", "push_pop", 25738),
    ]


def test_driver_calls_are_api_calls(tmp_path: Path) -> None:
    trace = made(tmp_path, [event("cuda_driver", "cuLaunchKernel", correlation=4)])
    assert rows(trace, "api", "name", "correlation_id") == [("cuLaunchKernel", 4)]


@pytest.mark.parametrize(
    ("name", "args", "label"),
    [
        ("ProfilerStep#5", {}, True),
        ("Optimizer.step#SGD.step", {}, True),
        ("Optimizer.zero_grad#SGD.zero_grad", {}, True),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", {}, True),
        ("## forward ##", {"Input Dims": [[]]}, True),
        ("nccl:all_reduce", {"Input Dims": [[3]]}, True),
        ("rollout", {}, True),
        ("my::label", {}, False),
        ("aten::add", {"Input Dims": [[]]}, False),
        ("CudnnBatchNormBackward", {}, False),
        ("ReluBackward1", {"Sequence number": 3}, False),
        ("detach_", {}, False),
        ("forward", {"Input Dims": [[], []]}, False),
    ],
)
def test_labels_among_the_operators_of_2021(name: str, args: dict[str, Any], label: bool) -> None:
    assert is_label(name, args) is label


def test_synchronisation_annotations_of_the_gpu_and_overhead_are_not_work(tmp_path: Path) -> None:
    gpu = {"device": 0, "stream": 7}
    trace = made(
        tmp_path,
        [
            kernel(),
            event("cuda_sync", "Stream Synchronize", dur=500, **gpu),
            event("cuda_sync", "Context Sync", dur=500, device=0, stream=-1),
            event("gpu_user_annotation", "step", dur=500, **gpu),
            event("user_annotation", "step", dur=500, **gpu),
            event("overhead", "Buffer Flush", dur=40),
            event("overhead", "Resource", ts=T0 + 20, dur=40),
            event("python_function", "train.py(3): main", dur=500),
            event("Trace", "PyTorch Profiler (0)", dur=500, pid="Spans", tid="PyTorch Profiler"),
            {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": 7, "tid": 7, "ts": T0},
            {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": T0 + 900},
            {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "python"}},
        ],
    )
    assert set(trace.loaders) == {"kernels", "devices", "processes"}
    assert len(trace.table("kernels")) == 1
    assert trace.meta.end_ns == 10 * US
    assert trace.meta.overhead_ns == 60 * US
    assert trace.notes == ()


def test_kernels_of_a_cuda_graph_are_kept_and_counted_once(tmp_path: Path) -> None:
    nodes = [
        kernel(ts=T0 + i, dur=1, correlation=5, **{"graph id": 1, "graph node id": 100 + i}) for i in range(3)
    ]
    trace = made(tmp_path, [event("cuda_runtime", "cudaGraphLaunch", correlation=5), *nodes])
    assert rows(trace, "kernels", "correlation_id") == [(5,)] * 3
    assert trace.meta.graph_mode == "node"


def test_overlapping_kernels_of_one_stream_are_both_kept(tmp_path: Path) -> None:
    trace = made(tmp_path, [kernel(dur=20), kernel(ts=T0 + 19, dur=5)])
    assert rows(trace, "kernels", "start_ns", "end_ns") == [(0, 20 * US), (19 * US, 24 * US)]


def test_asynchronous_and_begin_end_pairs_are_annotations(tmp_path: Path) -> None:
    def half(ph: str, name: str, ts: int, **more: Any) -> dict[str, Any]:
        return {"ph": ph, "cat": "user_annotation", "name": name, "pid": 7, "tid": 7, "ts": ts, **more}

    trace = made(
        tmp_path,
        [
            half("B", "step", T0),
            half("b", "send", T0 + 1, id=4),
            half("b", "send", T0 + 2, id=5),
            half("e", "send", T0 + 3, id=4),
            half("e", "send", T0 + 4, id=5),
            half("E", "step", T0 + 5),
            half("B", "open", T0 + 6),
            event("cpu_op", "aten::add", T0, 10),
        ],
    )
    assert rows(trace, "ranges", "name", "style", "start_ns", "end_ns", "cut") == [
        ("aten::add", "operator", 0, 10 * US, False),
        ("step", "push_pop", 0, 5 * US, False),
        ("send", "start_end", 1 * US, 3 * US, False),
        ("send", "start_end", 2 * US, 4 * US, False),
        ("open", "push_pop", 6 * US, 10 * US, True),
    ]
    assert any("never ended" in note for note in trace.notes)


def test_events_of_unknown_categories_are_left_out_with_a_note(tmp_path: Path) -> None:
    trace = made(tmp_path, [event("cpu_op", "aten::add"), event("quantum_op", "q"), event("quantum_op", "q")])
    assert rows(trace, "ranges", "name") == [("aten::add",)]
    assert any("2 of quantum_op" in note for note in trace.notes)


def test_chrome_trace_of_another_tool_gives_its_events_as_ranges(tmp_path: Path) -> None:
    trace = made(tmp_path, [event("default", "step", pid="EnvGroup:0@node(10.0.0.1)", tid="main")])
    assert rows(trace, "ranges", "name", "style") == [("step", "push_pop")]
    assert rows(trace, "processes", "label", "pid") == [("EnvGroup:0", None)]
    assert trace.meta.product is None


# --- times --------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    times=st.lists(
        st.tuples(st.integers(0, 10**10), st.integers(1, 10**9)),
        min_size=1,
        max_size=8,
        unique_by=lambda t: t[0],
    ),
    origin_ns=st.sampled_from([1_712_195_495_519_689_047, 1_212_075_548_353_304, 5]),
    spell=st.sampled_from(["{}.{:03d}", '"{}.{:03d}"']),
)
def test_times_are_exact_to_the_nanosecond(
    tmp_path: Path, times: list[tuple[int, int]], origin_ns: int, spell: str
) -> None:
    def us(ns: int) -> str:
        return spell.format(ns // 1000, ns % 1000)

    fixed = '"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1'
    events = [f'{{{fixed}, "ts": {us(origin_ns + s)}, "dur": {us(d)}}}' for s, d in times]
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [' + ",\n".join(events) + "]}")
    trace = read_kineto(path)
    first = min(s for s, _ in times)
    assert rows(trace, "ranges", "start_ns", "end_ns") == sorted((s - first, s - first + d) for s, d in times)
    assert trace.meta.utc_origin_ns in (origin_ns + first, None)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.builds(
            event,
            st.sampled_from(
                ["kernel", "gpu_memcpy", "cpu_op", "user_annotation", "cuda_runtime", "overhead"]
            ),
            st.text(max_size=3),
            st.sampled_from([0, 0.0, "0", None, "x", -5, T0, T0 + 0.5, float(T0) + 3, str(T0), 10**30]),
            st.sampled_from([0, 1, 0.001, "7.5", None, ..., -1, "nan", 10**30, 1e300, 2_000_000]),
            pid=st.sampled_from([0, 1, "2", "Spans", None]),
            tid=st.sampled_from([0, "stream 7", "main", None]),
        ),
        max_size=8,
    )
)
def test_whatever_the_times_no_duration_is_negative(tmp_path: Path, events: list[dict[str, Any]]) -> None:
    try:
        trace = made(tmp_path, events)
    except NotATraceError:
        return
    for table in ("kernels", "copies", "api", "ranges"):
        frame = trace.table(table, ["start_ns", "end_ns"])
        assert (frame["end_ns"] >= frame["start_ns"]).all()
        assert (frame["start_ns"] >= 0).all()
        assert (frame["end_ns"] <= trace.meta.end_ns).all()


def test_base_time_may_be_absent_and_shifts_utc_when_present(tmp_path: Path) -> None:
    absolute = made(tmp_path, [event("cpu_op", "a", T0)])
    relative = made(tmp_path, [event("cpu_op", "a", 14.5)], baseTimeNanoseconds=1_719_853_884_000_000_000)
    unknown = made(tmp_path, [event("cpu_op", "a", 14.5)])
    both = made(tmp_path, [event("cpu_op", "a", T0)], baseTimeNanoseconds=1_719_853_884_000_000_000)
    assert absolute.meta.utc_origin_ns == both.meta.utc_origin_ns == T0 * US
    assert relative.meta.utc_origin_ns == 1_719_853_884_000_014_500
    assert unknown.meta.utc_origin_ns is None
    assert {t.meta.start_ns for t in (absolute, relative, unknown)} == {0}


def test_zero_time_and_duration_are_quarantined_with_counts(tmp_path: Path) -> None:
    trace = made(
        tmp_path, [kernel(), kernel(ts=0, dur=0), kernel(ts=0, dur=5), event("cpu_op", "a", T0 + 0.5)]
    )
    assert len(trace.table("kernels")) == 1
    assert trace.meta.duration_ns == 10_500
    assert any(note.startswith("2 events at time 0") for note in trace.notes)


def test_missing_duration_is_quarantined_with_counts(tmp_path: Path) -> None:
    bad = [kernel(dur=...), kernel(dur=None), kernel(dur=-3), event("cpu_op", "a", ...)]
    trace = made(tmp_path, [kernel(), *bad])
    assert len(trace.table("kernels")) == 1
    assert not trace.has("ranges")
    assert any("3 events without a usable duration" in note for note in trace.notes)
    assert any("1 event without a usable start" in note for note in trace.notes)


def test_kernel_of_0_us_is_real_in_a_microsecond_clock_and_false_in_a_nanosecond_clock(
    tmp_path: Path,
) -> None:
    coarse = made(tmp_path, [kernel(), kernel(ts=T0 + 1, dur=0)])
    assert len(coarse.table("kernels")) == 2
    assert any("shorter than the clock" in note for note in coarse.notes)
    fine = made(tmp_path, [kernel(dur=10.25), kernel(ts=T0 + 1, dur=0)])
    assert len(fine.table("kernels")) == 1
    assert any("of 0 ns set aside" in note for note in fine.notes)


def test_impossibly_long_kernel_is_told_by_its_successor_on_the_stream(tmp_path: Path) -> None:
    host = event("cpu_op", "a", T0, 9_000_000)
    wrong = kernel(ts=T0 + 10, dur=8_000_000)
    trace = made(tmp_path, [host, kernel(), wrong, kernel(ts=T0 + 30)])
    assert rows(trace, "kernels", "start_ns") == [(0,), (30 * US,)]
    assert any("1 kernel or copy event of impossible length" in note for note in trace.notes)


def test_long_kernel_is_kept_where_nothing_contradicts_it(tmp_path: Path) -> None:
    host = event("cpu_op", "a", T0, 9_000_000)
    in_turn = [kernel(dur=2_000_000), kernel(ts=T0 + 2_000_000, dur=5_000_000)]
    on_other_streams = [kernel(ts=T0 + 30, stream=8), kernel(ts=T0 + 30, stream=7, device=1)]
    trace = made(tmp_path, [host, *in_turn, *on_other_streams])
    assert len(trace.table("kernels")) == 4
    assert trace.notes == ()


def test_kernel_longer_than_all_the_host_did_is_impossible(tmp_path: Path) -> None:
    trace = made(tmp_path, [event("cpu_op", "a", T0, 100), kernel(), kernel(ts=T0 + 20, dur=3_600_000_000)])
    assert len(trace.table("kernels")) == 1


# --- what the file says of itself ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("info", "name", "rank", "label"),
    [
        ({"rank": 3}, "trace.json", 3, "rank 3"),
        ({"rank": 3}, "rank-5.json", 3, "rank 3"),
        ({"rank": "3"}, "trace.json", 3, "rank 3"),
        ({}, "run_rank-5.pt.trace.json", 5, "rank 5"),
        ({"rank": -1}, "rank0.json", 0, "rank 0"),
        (None, "r12.json", 12, "rank 12"),
        (None, "trace.json", None, "7"),
        ([], "resnet50_2021.json", None, "7"),
    ],
)
def test_rank_comes_from_the_file_or_its_name(
    tmp_path: Path, info: Any, name: str, rank: int | None, label: str
) -> None:
    trace = made(tmp_path, [event("cpu_op", "a")], name, distributedInfo=info)
    assert rows(trace, "processes", "process", "pid", "rank", "label", "file") == [(0, 7, rank, label, name)]
    assert any("file's name" in note for note in trace.notes) == (rank is not None and rank != 3)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank-0.json", 0),
        ("rank_17.pt", 17),
        ("traces-r3.jsonl", 3),
        ("worker12.json", None),
        ("r2d2.json", None),
    ],
)
def test_rank_in_name(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


def test_document_without_any_key_beside_the_events(tmp_path: Path) -> None:
    trace = made(tmp_path, [kernel(), event("cpu_op", "a")])
    assert rows(trace, "devices", "device", "name", "sm_count", "uuid") == [(0, None, None, None)]
    assert rows(trace, "processes", "rank", "devices") == [(None, [0])]
    assert trace.meta.schema_version is None


def test_device_properties_may_be_empty_or_nameless(tmp_path: Path) -> None:
    empty = made(tmp_path, [event("cpu_op", "a")], deviceProperties=[])
    assert not empty.has("devices")
    listed = [{"id": 0, "name": ""}, {"id": 1, "name": "NVIDIA H200", "numSms": 132}, {"name": "no id"}, None]
    nameless = made(tmp_path, [kernel(device=2)], deviceProperties=listed)
    assert rows(nameless, "devices", "device", "name", "sm_count") == [
        (0, None, None),
        (1, "NVIDIA H200", 132),
        (2, None, None),
    ]


def test_list_at_top_level(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([kernel(), event("cpu_op", "a")]))
    trace = read_kineto(path)
    assert {"kernels", "ranges"} <= set(trace.loaders)


def test_gzip_is_told_by_content_not_by_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": [kernel()]}).encode()))
    assert len(read_kineto(path).table("kernels")) == 1


def test_several_host_processes_own_the_work_they_launched(tmp_path: Path) -> None:
    trace = made(
        tmp_path,
        [
            event("cuda_runtime", "cudaLaunchKernel", pid=7, correlation=1),
            event("cuda_runtime", "cudaLaunchKernel", pid=8, correlation=2),
            event("cuda_runtime", "cudaLaunchKernel", pid=7, correlation=3),
            event("cuda_runtime", "cudaLaunchKernel", pid=8, correlation=3),
            event("cuda_runtime", "cudaMalloc", pid=8),
            kernel(correlation=1),
            kernel(correlation=2, device=1),
            kernel(correlation=3),
            kernel(correlation=99),
        ],
        distributedInfo={"rank": 0},
    )
    assert rows(trace, "kernels", "correlation_id", "process") == [(1, 0), (2, 1), (3, 1), (99, 1)]
    assert rows(trace, "processes", "label", "devices") == [("rank 0, 7", [0]), ("rank 0, 8", [0, 1])]


def test_kernels_without_any_host_event_belong_to_one_unnamed_process(tmp_path: Path) -> None:
    trace = made(tmp_path, [kernel()])
    assert rows(trace, "processes", "process", "pid", "label") == [(0, None, "process")]


def test_user_host_job_and_path_never_reach_the_trace(tmp_path: Path) -> None:
    trace = made(
        tmp_path,
        [
            event("user_annotation", "load /home/jdoe/data"),
            {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "secretjob"}},
        ],
        username="jdoe",
        host_name="secrethost",
        mast_job_name="secretjob",
        traceName="/tmp/jdoe/x.json",
    )
    told = (
        repr(trace)
        + repr(trace.meta)
        + repr(trace.notes)
        + repr([trace.table(t).to_dicts() for t in trace.loaders])
    )
    assert not [word for word in ("jdoe", "secrethost", "secretjob", str(tmp_path)) if word in told]


# --- files that are no trace --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "events", [[], [{"ph": "M", "name": "process_name", "pid": 1}], [event("cpu_op", "a", ...)], [1, 2]]
)
def test_trace_without_data_is_one_line_and_exit_code_2(tmp_path: Path, events: list[Any]) -> None:
    with pytest.raises(NotATraceError, match="without data") as caught:
        made(tmp_path, events, schemaVersion=1)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_file_of_a_killed_job_is_damaged(tmp_path: Path, data: Path) -> None:
    whole = gzip.decompress((data / "kineto" / "two_ranks_rank-0.json.gz").read_bytes())
    path = tmp_path / "killed.json"
    path.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(DamagedTraceError, match=r"after \d{4} whole") as caught:
        read_kineto(path)
    assert caught.value.exit_code == 2
    assert "Next: record" in str(caught.value)


# --- real traces --------------------------------------------------------------------------------------


def plain_counts(path: Path) -> dict[str, int]:
    """Events by table, found with the standard json module."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    cats = [str(e.get("cat")).lower() for e in events if e.get("ph") == "X"]
    of = {
        "kernels": ("kernel",),
        "copies": ("gpu_memcpy", "gpu_memset", "memcpy", "memset"),
        "api": ("cuda_runtime", "runtime"),
        "ranges": ("cpu_op", "operator", "user_annotation"),
    }
    return {table: sum(c in names for c in cats) for table, names in of.items()}


@pytest.mark.parametrize(
    "name",
    [
        "two_ranks_rank-0.json.gz",
        "two_ranks_rank-1.json.gz",
        "cpu_only.pt.trace.json.gz",
        "no_gpu_rank.json.gz",
    ],
)
def test_every_event_of_a_real_trace_is_in_its_table(data: Path, name: str) -> None:
    path = data / "kineto" / name
    trace = read_kineto(path)
    assert {
        t: len(trace.table(t, ["start_ns"])) for t in ("kernels", "copies", "api", "ranges")
    } == plain_counts(path)


def test_two_ranks_are_apart_by_their_epoch_clocks(data: Path) -> None:
    traces = [read_kineto(data / "kineto" / f"two_ranks_rank-{r}.json.gz") for r in (0, 1)]
    assert [rows(t, "processes", "rank", "label", "devices") for t in traces] == [
        [(0, "rank 0", [0])],
        [(1, "rank 1", [1])],
    ]
    origins = [t.meta.utc_origin_ns for t in traces]
    assert origins == [1_682_725_898_079_292_000, 1_682_725_898_079_484_000]


def test_cpu_only_trace_says_that_no_gpu_was_recorded(data: Path) -> None:
    trace = read_kineto(data / "kineto" / "cpu_only.pt.trace.json.gz")
    assert not trace.has("kernels")
    assert "no kernel" in trace.missing["kernels"]
    assert rows(trace, "processes", "rank", "label") == [(34, "rank 34")]
    # 2024-07-15 17:52:39 UTC, from the base time; the trace's own log says 10:52:40 in California
    assert trace.meta.utc_origin_ns == 1_721_065_959_529_876_817


@pytest.mark.parametrize(
    ("name", "busy_ns"),
    [
        # found with traceinsight 0.6.1 (rounding of times switched off)
        ("nanosecond_resolution_rank-0.pt.trace.json.gz", 472_454_441),
        ("resnet50_2021.pt.trace.json.gz", 603_558_000),
        ("two_ranks_rank-0.json.gz", 547_656_000),
    ],
)
def test_busy_union_equals_that_of_an_independent_tool(shared_traces: Path, name: str, busy_ns: int) -> None:
    path = shared_traces / "kineto" / name
    trace = read_kineto(path)
    work = pl.concat([trace.table(t, ["start_ns", "end_ns"]) for t in ("kernels", "copies")]).sort("start_ns")
    reached = busy = 0
    for start, end in work.rows():
        busy += max(0, end - max(start, reached))
        reached = max(reached, end)
    assert busy == busy_ns
    assert {
        t: len(trace.table(t, ["start_ns"])) for t in ("kernels", "copies", "api", "ranges")
    } == plain_counts(path)


def test_ranges_of_a_real_nanosecond_trace_nest_without_crossing(shared_traces: Path) -> None:
    from rlprof.trace.hierarchy import hierarchy

    tree = hierarchy(read_kineto(shared_traces / "kineto" / "nanosecond_resolution_rank-0.pt.trace.json.gz"))
    assert not tree.invocations["crossing"].any()
    assert "ProfilerStep/## optimizer ##/Optimizer.step#SGD.step" in tree.nodes["path"].to_list()
