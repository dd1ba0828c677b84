"""Exports with values that cannot be true: set aside and counted, never taken for idle time or for a fact."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlprof.analysis.windows import windows
from rlprof.trace.nsys_sqlite import read_sqlite
from tests.trace.nsys_made import export, kernel, made, push_pop, tid

STRINGS = [{"id": 1, "value": "gemm"}]
SPAN = [{"duration": 1_000}]
GPU = {"id": 0, "name": "NVIDIA H200", "smCount": 132, "cuDevice": 0}
INT64 = 2**63
odd_time = st.one_of(
    st.none(),
    st.sampled_from([INT64 - 1, -INT64, 2**62 + 1, float("inf"), 1.5, "soon", b"\0"]),
    st.integers(-INT64, INT64 - 1),
)


def base(**more):
    tables = {
        "NVTX_EVENTS": [push_pop(0, 500, "iteration"), push_pop(500, 900, "iteration")],
        "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(0, 100), kernel(500, 600)],
        "StringIds": STRINGS,
        "ANALYSIS_DETAILS": SPAN,
        "TARGET_INFO_GPU": [GPU],
    }
    return {**tables, **more}


@pytest.mark.parametrize(
    "odd",
    [
        {"start": None}, {"end": None}, {"start": "soon"}, {"end": float("inf")}, {"start": 90, "end": 80},
        {"end": INT64 - 1}, {"start": -INT64},
    ],
    ids=str,
)  # fmt: skip
def test_a_kernel_with_impossible_times_is_set_aside_with_a_count(tmp_path, odd):
    rows = [kernel(0, 100), kernel(500, 600), {**kernel(300, 400), **odd}]
    report = windows(made(tmp_path, **base(CUPTI_ACTIVITY_KIND_KERNEL=rows)))
    assert report.frame["sm_activity"].to_list() == [pytest.approx(200 / 900)]
    assert any("1 of 3 kernels" in n for n in report.notes)


def test_only_impossible_kernels_are_no_idle_gpu(tmp_path):
    rows = [{**kernel(0, 100), "end": None}, {**kernel(500, 600), "start": None}]
    report = windows(made(tmp_path, **base(CUPTI_ACTIVITY_KIND_KERNEL=rows)))
    assert report.activity_source is None
    assert report.frame["sm_activity"].to_list() == [None]


@pytest.mark.parametrize(
    "odd", [{"start": None}, {"globalTid": None}, {"end": INT64 - 1}, {"start": -INT64}], ids=str
)
def test_a_range_that_cannot_be_placed_is_set_aside_with_a_count(tmp_path, odd):
    rows = [*base()["NVTX_EVENTS"], {**push_pop(10, 90, "lost"), **odd}]
    report = windows(made(tmp_path, **base(NVTX_EVENTS=rows)))
    assert report.frame["node"].to_list() == ["iteration"]
    assert any("1 of 3 ranges" in n for n in report.notes)


def test_a_range_without_an_end_is_not_set_aside(tmp_path):
    rows = [push_pop(0, 500, "a"), push_pop(600, None, "b")]
    frame = windows(made(tmp_path, **base(NVTX_EVENTS=rows))).frame
    assert dict(frame.select("node", "total_s").iter_rows()) == pytest.approx({"a": 5e-7, "b": 4e-7})


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=odd_time, end=odd_time, what=st.sampled_from(["kernel", "range", "call"]))
def test_no_time_whatever_breaks_the_answer(tmp_path, start, end, what):
    (tmp_path / "made.sqlite").unlink(missing_ok=True)
    tables = base()
    odd = {"start": start, "end": end}
    if what == "kernel":
        tables["CUPTI_ACTIVITY_KIND_KERNEL"] = [
            *tables["CUPTI_ACTIVITY_KIND_KERNEL"],
            {**kernel(0, 1), **odd},
        ]
    elif what == "range":
        tables["NVTX_EVENTS"] = [*tables["NVTX_EVENTS"], {**push_pop(0, 1, "odd", tid(10, 2)), **odd}]
    else:
        call = {"globalTid": tid(10), "correlationId": 1, "nameId": 1, **odd}
        tables["CUPTI_ACTIVITY_KIND_RUNTIME"] = [call]
    frame = windows(made(tmp_path, **tables)).frame
    assert (frame["total_s"] >= 0).all()
    assert frame["sm_activity"].drop_nulls().is_between(0, 1).all()


@pytest.mark.parametrize("device", [None, -1, 2**40], ids=str)
def test_a_kernel_of_no_gpu_counts_for_the_only_one_or_for_none(tmp_path, device):
    rows = [{**kernel(0, 100), "deviceId": device}, kernel(500, 600)]
    alone = windows(made(tmp_path, **base(CUPTI_ACTIVITY_KIND_KERNEL=rows)))
    assert alone.frame["sm_activity"].to_list() == [pytest.approx(200 / 900)]
    (tmp_path / "made.sqlite").unlink()
    two = [GPU, {**GPU, "id": 1, "cuDevice": 1}]
    several = windows(made(tmp_path, **base(CUPTI_ACTIVITY_KIND_KERNEL=rows, TARGET_INFO_GPU=two)))
    assert several.frame["sm_activity"].to_list() == [pytest.approx(100 / 900)]
    assert any("1 of 2 kernels name no GPU" in n for n in several.notes)


@pytest.mark.parametrize("stated", [None, 0, -5, "long", float("inf")], ids=str)
def test_the_last_iteration_is_whole_where_the_duration_is_not_stated(tmp_path, stated):
    """The capture's end is then that of the last event: what ends there was not cut there."""
    trace = made(tmp_path, **base(ANALYSIS_DETAILS=[{"duration": stated}]))
    report = windows(trace)
    assert trace.meta.duration_ns == 900
    assert report.iteration is not None
    assert report.iteration.count == 2
    assert not trace.ranges["cut"].any()


@pytest.mark.parametrize("digits", [23, 5000])
def test_an_absurd_loop_count_does_not_cost_the_capture(tmp_path, digits):
    mark = {
        "start": 5,
        "eventType": 34,
        "text": f"rlprof.count:iteration={'9' * digits}",
        "globalTid": tid(10),
    }
    report = windows(made(tmp_path, **base(NVTX_EVENTS=[*base()["NVTX_EVENTS"], mark])))
    assert report.frame["count"].to_list() == [2]


def test_samples_outside_0_to_100_percent_are_left_out(tmp_path):
    samples = [
        {"timestamp": t * 100, "typeId": 256, "metricId": 3, "value": v}
        for t, v in enumerate([50, 50, 50, -7, 300, 50, 50, 50, 50])
    ]
    names = [{"typeId": 256, "metricId": 3, "metricName": "SMs Active"}]
    report = windows(made(tmp_path, **base(GPU_METRICS=samples, TARGET_INFO_GPU_METRICS=names)))
    assert report.frame["sm_activity"].to_list() == [0.5]
    assert any("2 of 9 activity samples" in n for n in report.notes)


@pytest.mark.parametrize("sm_count", [-4, "many", float("inf")], ids=str)
def test_an_impossible_sm_count_is_an_unknown_one(tmp_path, sm_count):
    trace = made(tmp_path, **base(TARGET_INFO_GPU=[{**GPU, "smCount": sm_count}]))
    assert trace.devices["sm_count"].to_list() == [None]
    assert windows(trace).frame["sm_activity"].to_list() == [pytest.approx(200 / 900)]


def test_a_grid_of_no_blocks_may_reach_all_sms(tmp_path):
    rows = [{**kernel(0, 100), "gridX": 0}, kernel(500, 600)]
    report = windows(made(tmp_path, **base(CUPTI_ACTIVITY_KIND_KERNEL=rows)))
    assert report.frame["sm_activity"].to_list() == [pytest.approx(200 / 900)]


def test_a_view_in_place_of_a_table(tmp_path):
    path = export(tmp_path / "made.sqlite", base())
    con = sqlite3.connect(path)
    con.executescript("ALTER TABLE NVTX_EVENTS RENAME TO x; CREATE VIEW NVTX_EVENTS AS SELECT * FROM x;")
    con.close()
    assert len(read_sqlite(path).ranges) == 2


def test_no_user_name_in_domains_and_kernels(tmp_path):
    """Paths of sources are not only in labels of ranges."""
    rows = [
        push_pop(0, 500, "step", domainId=3),
        {"start": 0, "eventType": 75, "text": "/home/alice/lib.so", "globalTid": tid(10), "domainId": 3},
    ]
    strings = [{"id": 1, "value": "void k(/home/alice/k.cu:7)"}]
    trace = made(tmp_path, **base(NVTX_EVENTS=rows, StringIds=strings))
    shown = str([trace.table(t).to_dicts() for t in ("ranges", "kernels")])
    assert "alice" not in shown
    assert "~/lib.so" in shown
    assert "~/k.cu" in shown
