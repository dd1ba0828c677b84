"""One test for each trap of trace files that the reader must handle, named after it."""

from __future__ import annotations

import hashlib
import json
import sqlite3

import polars as pl
import pytest

from rlprof.errors import DamagedTraceError
from rlprof.trace.hierarchy import hierarchy
from rlprof.trace.nsys_metrics import metric_key
from rlprof.trace.nsys_sqlite import read_sqlite
from rlprof.unavailable import Unavailable
from tests.trace.nsys_made import HARDWARE_VM, export, kernel, made, push_pop, tid

GPU = 281479271677952  # a typeId as nsys writes it: its last byte is the GPU's number


def paths(trace) -> list[str]:
    return hierarchy(trace).nodes["path"].to_list()


# --- files and opening


def test_text_that_is_not_utf8(tmp_path):
    file = export(tmp_path / "x.sqlite", {"META_DATA_EXPORT": [], "NVTX_EVENTS": [push_pop(0, 10, "a")]})
    con = sqlite3.connect(file)
    con.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', CAST(x'332e3120ff' AS TEXT))")
    con.execute("UPDATE NVTX_EVENTS SET text = CAST(x'61ff62' AS TEXT)")
    con.commit()
    con.close()
    trace = read_sqlite(file)
    assert trace.meta.schema_version == "3.1 �"
    assert paths(trace) == ["a�b"]


def test_file_is_opened_read_only(tmp_path):
    file = export(tmp_path / "x.sqlite", {"META_DATA_EXPORT": [], "NVTX_EVENTS": [push_pop(0, 10, "a")]})
    before = hashlib.sha256(file.read_bytes()).digest()
    read_sqlite(file).windows()
    assert hashlib.sha256(file.read_bytes()).digest() == before
    assert [p.name for p in tmp_path.iterdir()] == ["x.sqlite"]


ALL_TABLES = {
    "NVTX_EVENTS": [push_pop(0, 100, "iteration"), push_pop(10, 50, "policy")],
    "StringIds": [{"id": 1, "value": "gemm"}, {"id": 2, "value": "cudaLaunchKernel"}],
    "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(10, 20)],
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": [
        {"start": 30, "end": 40, "deviceId": 0, "streamId": 7, "correlationId": 2, "globalPid": tid(10, 0)}
    ],
    "CUPTI_ACTIVITY_KIND_MEMCPY": [
        {"start": 5, "end": 8, "deviceId": 0, "streamId": 7, "correlationId": 3, "globalPid": tid(10, 0),
         "bytes": 64, "copyKind": 1}
    ],
    "CUPTI_ACTIVITY_KIND_RUNTIME": [
        {"start": 9, "end": 10, "globalTid": tid(10), "correlationId": 1, "nameId": 2}
    ],
    "GPU_METRICS": [{"timestamp": t, "typeId": GPU, "metricId": 3, "value": 50} for t in range(0, 100, 10)],
    "TARGET_INFO_GPU_METRICS": [{"typeId": GPU, "metricId": 3, "metricName": "SMs Active [Throughput %]"}],
    "TARGET_INFO_GPU": [{"id": 0, "name": "NVIDIA H200", "smCount": 132, "cuDevice": 0, "uuid": "u"}],
    "TARGET_INFO_CUDA_DEVICE": [{"gpuId": 0, "cudaId": 0, "pid": 10}],
    "TARGET_INFO_CUDA_CONTEXT_INFO": [{"processId": 10, "deviceId": 0}],
    "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": 10**18}],
    "ANALYSIS_DETAILS": [{"duration": 100}],
    "META_DATA_CAPTURE": [{"name": "PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE", "value": "Graph"}],
}  # fmt: skip


@pytest.mark.parametrize("absent", [*ALL_TABLES, None])
@pytest.mark.parametrize("how", ["missing", "without_rows"])
def test_any_table_may_be_missing_or_empty(tmp_path, absent, how):
    tables = dict(ALL_TABLES)
    if absent:
        tables[absent] = None if how == "missing" else []
    trace = made(tmp_path, **tables)
    report = trace.windows()
    report.to_dict()
    for name in ("ranges", "kernels", "copies", "api", "samples", "devices", "processes"):
        value = getattr(trace, name)
        assert isinstance(value, (pl.DataFrame, Unavailable))
    if absent == "NVTX_EVENTS":
        assert isinstance(trace.ranges, Unavailable)
        assert report.frame.is_empty()
    else:
        assert report.frame["node"].to_list() == ["iteration", "iteration/policy"]
    source = "kernel_union" if absent in ("GPU_METRICS", "TARGET_INFO_GPU_METRICS") else "sm_counters"
    assert report.activity_source == source


def test_a_needed_column_is_missing(tmp_path):
    with pytest.raises(DamagedTraceError, match="CUPTI_ACTIVITY_KIND_KERNEL has no column deviceId"):
        _ = made(
            tmp_path,
            drop={"CUPTI_ACTIVITY_KIND_KERNEL": ["deviceId"]},
            CUPTI_ACTIVITY_KIND_KERNEL=[{k: v for k, v in kernel(0, 1).items() if k != "deviceId"}],
        ).kernels


def test_personal_data_never_reaches_a_trace(tmp_path):
    secrets = [
        {"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": "TOKEN=hunter2"},
        {"name": "EXPORT_USER", "value": "hunter2"},
        {"name": "EXPORT_HOST", "value": "hunter2"},
        {"name": "REPORT_PATH", "value": "/home/hunter2/run"},
    ]
    trace = made(
        tmp_path,
        NVTX_EVENTS=[push_pop(0, 10, "load /home/hunter2/ckpt"), push_pop(20, 30, r"C:\Users\hunter2\x")],
        META_DATA_CAPTURE=secrets,
        META_DATA_EXPORT=[*secrets, {"name": "EXPORT_SCHEMA_VERSION", "value": "3.20.3"}],
    )
    text = json.dumps(trace.windows(exact_names=True).to_dict()) + repr(trace) + str(trace.meta)
    assert "hunter2" not in text
    assert "load ~/ckpt" in text


# --- versions


def test_metadata_table_of_schemas_up_to_3_1(tmp_path):
    rows = [{"name": "EXPORT_SCHEMA_VERSION", "value": "3.0.0"}]
    trace = made(tmp_path, META_DATA_EXPORT=None, EXPORT_META_DATA=rows, NVTX_EVENTS=[push_pop(0, 1, "a")])
    assert trace.meta.schema_version == "3.0.0"


def test_schema_before_2_9_has_no_metadata(tmp_path):
    trace = made(
        tmp_path,
        META_DATA_EXPORT=None,
        StringIds=[{"id": 1, "value": "gemm"}],
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(5, 9)],
    )
    assert trace.meta.schema_version is None
    assert trace.meta.end_ns == 9
    assert any("schema before 2.9" in n for n in trace.notes)
    assert any("does not state its duration" in n for n in trace.notes)


# --- time


def test_first_samples_are_negative(tmp_path):
    trace = made(
        tmp_path,
        GPU_METRICS=[{"timestamp": t, "typeId": GPU, "metricId": 0, "value": 10} for t in (-200, -100, 0)],
        TARGET_INFO_GPU_METRICS=[{"typeId": GPU, "metricId": 0, "metricName": "SM Active"}],
    )
    assert trace.samples["start_ns"].to_list() == [-200, -100, 0]
    assert trace.samples["end_ns"].to_list() == [-100, 0, 100]


def test_trimmed_file_starts_late(tmp_path):
    """Nothing is known of the time before its first event: it must not count as idle."""
    trace = made(
        tmp_path,
        NVTX_EVENTS=[push_pop(60_000, 60_100, "a")],
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(60_000, 60_090)],
        ANALYSIS_DETAILS=[{"duration": 120_000}],
    )
    low = trace.windows().low_activity.filter(scope="capture", threshold=0.5)
    assert low["fraction"].item() == pytest.approx(0.1)


def test_utc_anchor(tmp_path):
    start = [{"utcEpochNs": 1_795_974_535_569_576_554}]
    assert made(tmp_path, TARGET_INFO_SESSION_START_TIME=start).meta.utc_origin_ns == start[0]["utcEpochNs"]


# --- ids


def test_global_ids_decode_to_pids(shared_traces):
    trace = read_sqlite(shared_traces / "nsys" / "two_gpus_trimmed_kernels_without_calls.sqlite")
    assert trace.processes["pid"].to_list() == [144, 145]
    trace = read_sqlite(shared_traces / "nsys" / "schema_3_25_windows.sqlite")
    assert trace.processes["pid"].to_list() == [44780]


def test_one_pid_in_two_virtual_machines_is_two_processes(tmp_path):
    other = HARDWARE_VM | (1 << 50)
    rows = [push_pop(0, 10, "a", tid(10)), push_pop(0, 10, "a", tid(10, vm=other))]
    trace = made(tmp_path, NVTX_EVENTS=rows)
    assert trace.processes["pid"].to_list() == [10, 10]
    assert len(set(trace.processes["label"])) == 2
    assert trace.ranges["process"].n_unique() == 2


def test_device_number_is_as_the_process_sees_it(tmp_path):
    """With CUDA_VISIBLE_DEVICES, ordinal 0 of two processes is two GPUs."""
    trace = made(
        tmp_path,
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(0, 10, 10), kernel(0, 10, 11)],
        TARGET_INFO_CUDA_DEVICE=[{"gpuId": 3, "cudaId": 0, "pid": 10}, {"gpuId": 1, "cudaId": 0, "pid": 11}],
        TARGET_INFO_CUDA_CONTEXT_INFO=[{"processId": 10, "deviceId": 0}, {"processId": 11, "deviceId": 0}],
    )
    assert trace.kernels["device"].to_list() == [3, 1]
    assert trace.processes["devices"].to_list() == [[3], [1]]


def test_device_number_through_the_cuda_ordinal_of_the_gpu(tmp_path):
    gpus = [
        {"id": 5, "name": "A", "smCount": 10, "cuDevice": 0},
        {"id": 4, "name": "B", "smCount": 10, "cuDevice": 1},
    ]
    rows = [kernel(0, 1), kernel(2, 3, deviceId=1)]
    trace = made(tmp_path, CUPTI_ACTIVITY_KIND_KERNEL=rows, TARGET_INFO_GPU=gpus)
    assert trace.kernels["device"].to_list() == [5, 4]
    assert trace.devices["device"].to_list() == [4, 5]


def test_gpus_of_other_vendors_are_listed(shared_traces):
    trace = read_sqlite(shared_traces / "nsys" / "schema_3_25_windows.sqlite")
    assert trace.devices["name"].to_list() == ["NVIDIA RTX 5000 Ada Generation Laptop GPU"]
    assert trace.kernels["device"].unique().to_list() == [0]


def test_trimmed_file_does_not_describe_its_gpus(tmp_path):
    trace = made(tmp_path, CUPTI_ACTIVITY_KIND_KERNEL=[kernel(0, 1), kernel(0, 1, deviceId=1)])
    assert trace.devices["name"].to_list() == ["GPU 0", "GPU 1"]
    assert trace.devices["sm_count"].to_list() == [None, None]
    assert any("does not describe its GPUs" in n for n in trace.notes)


# --- NVTX


def test_nvtx_rows_without_ranges(tmp_path):
    """Thread names and domains are rows too: their presence is not that of ranges."""
    rows = [
        {"start": 0, "eventType": 39, "text": "thread", "globalTid": tid(10), "domainId": 0},
        {"start": 0, "eventType": 75, "text": "MPI", "globalTid": tid(10), "domainId": 1},
    ]
    trace = made(tmp_path, NVTX_EVENTS=rows)
    assert isinstance(trace.ranges, Unavailable)
    assert "no range" in trace.ranges.reason


def test_marks_and_domain_rows_are_not_ranges(tmp_path):
    rows = [push_pop(0, 10, "a"), {"start": 5, "eventType": 34, "text": "mark", "globalTid": tid(10)}]
    assert made(tmp_path, NVTX_EVENTS=rows).ranges["name"].to_list() == ["a"]


def test_range_text_only_in_textid(tmp_path):
    rows = [push_pop(0, 10, None, textId=7), push_pop(20, 30, "own", textId=7), push_pop(40, 50, None)]
    trace = made(tmp_path, NVTX_EVENTS=rows, StringIds=[{"id": 7, "value": "registered"}])
    assert trace.ranges["name"].to_list() == ["registered", "own", None]
    assert "(unnamed)" in paths(trace)
    assert any("1 of 3 ranges have no name" in n for n in trace.notes)


def test_ranges_without_names(shared_traces):
    trace = read_sqlite(shared_traces / "nsys" / "ranges_without_names.sqlite")
    assert trace.ranges["name"].null_count() == 1998
    assert any("1998 of 21462" in n for n in trace.notes)


def test_domain_names_are_per_process(tmp_path):
    rows = [
        {"start": 0, "eventType": 75, "text": "NCCL", "globalTid": tid(10), "domainId": 1},
        {"start": 0, "eventType": 75, "text": "MPI", "globalTid": tid(11), "domainId": 1},
        push_pop(0, 10, "a", tid(10), domainId=1),
        push_pop(0, 10, "a", tid(11), domainId=1),
        push_pop(0, 10, "a", tid(12), domainId=1),
    ]
    assert sorted(paths(made(tmp_path, NVTX_EVENTS=rows))) == ["MPI:a", "NCCL:a", "domain 1:a"]


def test_range_never_ended(tmp_path):
    rows = [{"start": 40, "end": None, "eventType": 60, "text": "open", "globalTid": tid(10), "domainId": 0}]
    trace = made(tmp_path, NVTX_EVENTS=rows, ANALYSIS_DETAILS=[{"duration": 100}])
    assert trace.ranges.select("start_ns", "end_ns", "cut").rows() == [(40, 100, True)]
    assert any("never ended" in n for n in trace.notes)


def test_ranges_cut_at_the_end_of_the_capture(tmp_path):
    """nsys closes the ranges that are open when it stops at the capture's end: their end is not their own."""
    rows = [push_pop(0, 100, "iteration"), push_pop(10, 20, "x"), push_pop(50, 100, "x")]
    trace = made(tmp_path, NVTX_EVENTS=rows, ANALYSIS_DETAILS=[{"duration": 100}])
    assert trace.ranges["cut"].to_list() == [True, False, True]
    row = trace.windows().frame.filter(node="iteration/x")
    # the mean leaves the cut one out, the total does not
    assert row.select("count", "mean_s", "total_s").row(0) == (2, 10e-9, pytest.approx(60e-9))


def test_start_end_ranges_overlap_and_end_on_another_thread(tmp_path):
    loose = {"eventType": 60, "globalTid": tid(10, 1), "endGlobalTid": tid(10, 2), "domainId": 0}
    rows = [
        push_pop(0, 100, "iteration"),
        {"start": 10, "end": 50, "text": "request", **loose},
        {"start": 30, "end": 70, "text": "request", **loose},
    ]
    trace = made(tmp_path, NVTX_EVENTS=rows)
    tree = hierarchy(trace)
    assert sorted(tree.nodes["path"]) == ["iteration", "request"]
    assert tree.invocations.filter(pl.col("crossing")).height == 2
    assert tree.nodes.filter(path="request")["style"].item() == "start_end"
    row = trace.windows().frame.filter(node="request").row(0, named=True)
    assert (row["count"], row["total_s"]) == (2, pytest.approx(80e-9))


def test_push_pop_nests_per_thread_and_domain(tmp_path):
    rows = [
        push_pop(0, 100, "outer"),
        push_pop(10, 20, "inner"),
        push_pop(10, 20, "other_thread", tid(10, 2)),
        push_pop(10, 20, "other_domain", domainId=1),
    ]
    found = paths(made(tmp_path, NVTX_EVENTS=rows))
    assert sorted(found) == ["domain 1:other_domain", "other_thread", "outer", "outer/inner"]


def test_ids_inside_labels(tmp_path):
    rows = [push_pop(i * 10, i * 10 + 9, f"aten::mul, seq = {i}, op_id = {i + 7}") for i in range(5)]
    trace = made(tmp_path, NVTX_EVENTS=rows)
    assert paths(trace) == ["aten::mul"]
    assert hierarchy(trace, exact_names=True).nodes.height == 5


# --- kernels, copies, calls


def test_kernel_columns_vary(tmp_path):
    """A hand-made file lacks globalPid, a newer one has columns that nobody knows."""
    row = {k: v for k, v in kernel(3, 9).items() if k != "globalPid"} | {"qmdNovelty": 5}
    trace = made(
        tmp_path, drop={"CUPTI_ACTIVITY_KIND_KERNEL": ["globalPid"]}, CUPTI_ACTIVITY_KIND_KERNEL=[row]
    )
    assert trace.kernels.select("start_ns", "end_ns", "device", "process").rows() == [(3, 9, 0, 0)]


def test_copy_kinds_and_uvm_copies_without_a_call(tmp_path):
    base = {"deviceId": 0, "streamId": 1, "globalPid": tid(10, 0), "bytes": 4}
    rows = [
        {"start": i, "end": i + 1, "copyKind": k, **base} for i, k in enumerate((1, 2, 8, 10, 11, 12, 99))
    ]
    kinds = made(tmp_path, CUPTI_ACTIVITY_KIND_MEMCPY=rows).copies["kind"].to_list()
    assert kinds == ["HtoD", "DtoH", "DtoD", "PtoP", "UVM HtoD", "UVM DtoH", "unknown"]


def test_kernels_without_calls(shared_traces):
    trace = read_sqlite(shared_traces / "nsys" / "two_gpus_trimmed_kernels_without_calls.sqlite")
    called = trace.kernels.join(trace.api, on=["process", "correlation_id"], how="semi")
    assert 0 < called.height < trace.kernels.height == 4010


def test_repeated_correlation_ids_belong_to_processes(shared_traces):
    trace = read_sqlite(shared_traces / "nsys" / "four_processes_repeated_correlation_ids.sqlite")
    assert trace.kernels["process"].n_unique() == 4
    own = trace.kernels.join(trace.api, on=["process", "correlation_id"], how="left")
    assert own.height == trace.kernels.height  # one call each; by correlation id alone there would be more
    assert trace.kernels.join(trace.api, on="correlation_id").height > own.height


def test_overlapping_kernels_count_once(tmp_path):
    trace = made(
        tmp_path,
        NVTX_EVENTS=[push_pop(0, 100, "a")],
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(0, 60), kernel(20, 80, streamId=9), kernel(30, 40, streamId=9)],
    )
    assert trace.activity("a").sm_activity == pytest.approx(0.8)


def test_cuda_graphs_recorded_as_a_whole_count_as_busy(tmp_path):
    graph = ALL_TABLES["CUPTI_ACTIVITY_KIND_GRAPH_TRACE"]
    trace = made(
        tmp_path, NVTX_EVENTS=[push_pop(0, 100, "a")], CUPTI_ACTIVITY_KIND_GRAPH_TRACE=graph,
        TARGET_INFO_GPU=ALL_TABLES["TARGET_INFO_GPU"],
    )  # fmt: skip
    assert trace.kernels["kind"].to_list() == ["graph"]
    assert trace.activity("a").sm_activity == pytest.approx(0.1)
    assert any("recorded as a whole" in n for n in trace.notes)


def test_graph_trace_of_a_real_capture(shared_traces):
    trace = read_sqlite(shared_traces / "nsys" / "cuda_graph_trace_only.sqlite")
    graphs = trace.kernels.filter(pl.col("kind") == "graph")
    assert graphs.height == 10
    assert trace.windows().low_activity["fraction"].max() < 0.01


def test_cuda_graph_launches_without_rows_are_unavailable(tmp_path):
    """A launch that left nothing on the device: what it ran is unknown, and not nothing."""
    strings = [{"id": 1, "value": "gemm"}, {"id": 2, "value": "cudaGraphLaunch_v10000"}]
    call = {"end": 62, "globalTid": tid(10), "nameId": 2}
    trace = made(
        tmp_path,
        NVTX_EVENTS=[push_pop(0, 100, "step"), push_pop(10, 30, "eager"), push_pop(50, 90, "graphed")],
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(10, 20)],
        CUPTI_ACTIVITY_KIND_RUNTIME=[{"start": 60, "correlationId": 77, **call}],
        StringIds=strings,
    )
    report = trace.windows()
    known = dict(report.frame.select("node", "sm_activity").iter_rows())
    assert known == {"step": None, "step/eager": pytest.approx(0.5), "step/graphed": None}
    assert any("1 of 1 CUDA-graph launches have no device record" in n for n in report.notes)
    assert isinstance(trace.activity("graphed"), Unavailable)


def test_calls_without_any_kernel_are_unavailable(shared_traces):
    report = read_sqlite(shared_traces / "nsys" / "range_never_ended.sqlite").windows()
    assert report.activity_source is None
    assert report.frame["sm_activity"].to_list() == [None]
    assert report.frame["coverage"].to_list() == [None]
    assert any("SM activity is unavailable" in n for n in report.notes)


# --- GPU metrics


@pytest.mark.parametrize(
    "name", ["SM Active", "SMs Active", "SM Active [Throughput %]", "SMs Active [Throughput %]", "sms active"]
)
def test_names_of_sm_activity(name):
    assert metric_key(name) == "sm active"


@pytest.mark.parametrize("name", ["SM Issue [Throughput %]", "GR Active", "Unallocated Warps in Active SMs"])
def test_names_of_other_metrics(name):
    assert metric_key(name) != "sm active"


def test_metric_ids_are_local_to_a_type(tmp_path):
    """Two GPUs number their metrics differently, and a second type reuses a number for something else."""
    clock = GPU + 2 * 256
    trace = made(
        tmp_path,
        GPU_METRICS=[
            {"timestamp": 0, "typeId": GPU, "metricId": 0, "value": 10},
            {"timestamp": 0, "typeId": GPU, "metricId": 1, "value": 99},
            {"timestamp": 0, "typeId": GPU + 1, "metricId": 0, "value": 99},
            {"timestamp": 0, "typeId": GPU + 1, "metricId": 1, "value": 20},
            {"timestamp": 0, "typeId": clock, "metricId": 0, "value": 123_456},
        ],
        TARGET_INFO_GPU_METRICS=[
            {"typeId": GPU, "metricId": 0, "metricName": "SM Active"},
            {"typeId": GPU, "metricId": 1, "metricName": "SM Issue"},
            {"typeId": GPU + 1, "metricId": 0, "metricName": "SM Issue"},
            {"typeId": GPU + 1, "metricId": 1, "metricName": "SMs Active"},
            {"typeId": clock, "metricId": 0, "metricName": "EndTimestamp"},
        ],
    )
    assert trace.samples.select("device", "active_frac").rows() == [(0, 0.1), (1, 0.2)]


def test_sample_is_stamped_with_the_start_of_its_interval(shared_traces):
    """The kernel of 385.87 to 385.92 ms shows in the sample stamped 385.85, not in the one of 385.95."""
    trace = read_sqlite(shared_traces / "nsys" / "gpu_metrics_without_nvtx.sqlite")
    kernel_ns = trace.kernels.filter(pl.col("start_ns") > 385_000_000).row(0, named=True)
    hit = trace.samples.filter(
        (pl.col("start_ns") <= kernel_ns["start_ns"]) & (pl.col("end_ns") > kernel_ns["start_ns"])
    )
    after = trace.samples.filter(pl.col("start_ns") >= kernel_ns["end_ns"]).head(1)
    assert hit["active_frac"].item() > 0.2
    assert after["active_frac"].item() < 0.05


def test_period_is_the_median_step_and_gaps_are_not_covered(tmp_path):
    times = [0, 100, 195, 300, 900, 1000]
    trace = made(
        tmp_path,
        NVTX_EVENTS=[push_pop(0, 1000, "a"), push_pop(500, 800, "in_the_gap", tid(10, 2))],
        GPU_METRICS=[{"timestamp": t, "typeId": GPU, "metricId": 0, "value": 100} for t in times],
        TARGET_INFO_GPU_METRICS=[{"typeId": GPU, "metricId": 0, "metricName": "SM Active"}],
    )
    report = trace.windows()
    assert report.sample_period_s == pytest.approx(100e-9)
    rows = {r["node"]: r for r in report.frame.to_dicts()}
    assert rows["a"]["coverage"] == pytest.approx(0.55)  # 300 to 450 is held, 450 to 900 is a gap
    assert rows["in_the_gap"]["sm_activity"] is None
    assert any("1 gaps" in n for n in report.notes)


def test_samples_only_in_generic_events(tmp_path):
    rows = [
        {"rawTimestamp": t, "timestamp": None, "typeId": GPU + 1,
         "data": json.dumps({"SM Issue [Throughput %]": "1", "SM Active [Throughput %]": str(v)})}
        for t, v in ((-100, 10), (0, 20), (100, 30))
    ]  # fmt: skip
    trace = made(tmp_path, GENERIC_EVENTS=rows)
    assert trace.samples.select("device", "start_ns", "active_frac").rows() == [
        (1, -100, 0.1), (1, 0, 0.2), (1, 100, 0.3),
    ]  # fmt: skip


def test_metrics_without_cuda_or_nvtx(shared_traces):
    trace = read_sqlite(shared_traces / "nsys" / "gpu_metrics_two_gpus_no_cuda.sqlite")
    report = trace.windows()
    assert report.activity_source == "sm_counters"
    assert trace.samples["device"].unique().sort().to_list() == [0, 1]
    assert isinstance(trace.processes, Unavailable)
    assert report.low_activity["scope"].to_list() == ["capture", "capture"]


def test_counters_show_work_that_was_not_traced(tmp_path):
    trace = made(
        tmp_path,
        NVTX_EVENTS=[push_pop(0, 1000, "a")],
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(0, 50)],
        GPU_METRICS=[
            {"timestamp": t, "typeId": GPU, "metricId": 0, "value": 100} for t in range(0, 1000, 100)
        ],
        TARGET_INFO_GPU_METRICS=[{"typeId": GPU, "metricId": 0, "metricName": "SM Active"}],
    )
    assert any("90.0% of the SM activity of GPU 0" in n for n in trace.windows().notes)
