from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlprof
from rlprof.errors import ClockError, RankError, UsageError
from rlprof.trace.clock import ASSUMED_HOST_SKEW_NS
from rlprof.trace.merge import merge, short_labels
from rlprof.trace.tables import SCHEMAS, TABLE_NAMES
from tests.trace.nsys_made import export, kernel, push_pop, tid

EPOCH = 1_700_000_000 * 10**9
SECOND = 10**9
ALL_REDUCE = [{"id": 1, "value": "ncclDevKernel_AllReduce_Sum_f32_RING_LL"}]


def capture(
    folder: Path,
    name: str,
    *,
    utc: int | None = EPOCH,
    duration: int = 10 * SECOND,
    pid: int = 10,
    uuid: str | None = "GPU-0",
    kernels: list[dict[str, Any]] | None = None,
    **tables: list[dict[str, Any]],
) -> Path:
    """An export with one range, kernels, one GPU."""
    rows: dict[str, list[dict[str, Any]]] = {
        "META_DATA_EXPORT": [{"name": "EXPORT_SCHEMA_VERSION", "value": "3.20.3"}],
        "ANALYSIS_DETAILS": [{"duration": duration}],
        "NVTX_EVENTS": [push_pop(SECOND, 2 * SECOND, "step", tid(pid))],
        "CUPTI_ACTIVITY_KIND_KERNEL": kernels if kernels is not None else [kernel(SECOND, SECOND + 5, pid)],
        "StringIds": [{"id": 1, "value": "gemm"}],
        "TARGET_INFO_GPU": [{"id": 0, "name": "H200", "smCount": 132, "cuDevice": 0, "uuid": uuid}],
        **tables,
    }
    if utc is not None:
        rows["TARGET_INFO_SESSION_START_TIME"] = [{"utcEpochNs": utc}]
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    return export(folder / name, rows)


# --- clocks --------------------------------------------------------------------------------------------


def test_times_are_shifted_by_what_each_file_says_of_unix_time(tmp_path: Path) -> None:
    a = capture(tmp_path, "a.sqlite", utc=EPOCH + 3 * SECOND)
    b = capture(tmp_path, "b.sqlite", utc=EPOCH, pid=11)
    trace = rlprof.read(a, b)
    starts = dict(trace.table("ranges").select("process", "start_ns").iter_rows())
    assert starts == {0: 4 * SECOND, 1: SECOND}
    assert (trace.meta.start_ns, trace.meta.end_ns) == (0, 13 * SECOND)
    assert trace.meta.utc_origin_ns == EPOCH
    assert trace.meta.format == "merged"
    assert trace.meta.files == ("a.sqlite", "b.sqlite")


def test_a_file_without_an_epoch_is_an_error_naming_both(tmp_path: Path) -> None:
    a = capture(tmp_path, "a.sqlite")
    b = capture(tmp_path, "b.sqlite", utc=None, pid=11)
    with pytest.raises(ClockError) as caught:
        rlprof.read(a, b)
    assert str(a) in str(caught.value)
    assert str(b) in str(caught.value)
    assert "--anchor" in str(caught.value)


def test_an_anchor_stands_in_for_a_missing_epoch(tmp_path: Path) -> None:
    a = capture(tmp_path, "a.sqlite")
    b = capture(tmp_path, "b.sqlite", utc=None, pid=11)
    trace = rlprof.read(a, b, anchors={"b.sqlite": EPOCH + SECOND})
    assert trace.table("ranges")["start_ns"].to_list() == [SECOND, 2 * SECOND]
    assert any("stated anchors" in n for n in trace.notes)


def test_anchors_need_not_be_unix_times(tmp_path: Path) -> None:
    a = capture(tmp_path, "a.sqlite", utc=None)
    b = capture(tmp_path, "b.sqlite", utc=None, pid=11)
    trace = rlprof.read(a, b, anchors={str(a): 0, str(b): -500})
    assert trace.meta.utc_origin_ns is None
    assert trace.table("ranges")["start_ns"].to_list() == [SECOND + 500, SECOND]


def test_an_anchor_that_fits_two_files_is_an_error(tmp_path: Path) -> None:
    a = capture(tmp_path, "x/t.sqlite")
    b = capture(tmp_path, "y/t.sqlite", pid=11)
    with pytest.raises(UsageError, match="names 2 of the captures"):
        rlprof.read(a, b, anchors={"t.sqlite": 0})


def test_clocks_that_never_overlap_are_an_error_naming_both(tmp_path: Path) -> None:
    a = capture(tmp_path, "a.sqlite")
    b = capture(tmp_path, "b.sqlite", utc=EPOCH + 10 * SECOND + 1, pid=11)
    with pytest.raises(ClockError) as caught:
        rlprof.read(a, b)
    assert str(a) in str(caught.value)
    assert str(b) in str(caught.value)
    # whoever states the anchor vouches for it, but not for captures years apart
    with pytest.raises(ClockError, match=r"a\.sqlite.*b\.sqlite"):
        rlprof.read(a, b, anchors={"b.sqlite": EPOCH + 10**6 * SECOND})
    trace = rlprof.read(a, b, anchors={"b.sqlite": EPOCH + 10 * SECOND + 1})
    assert trace.meta.end_ns == 20 * SECOND + 1


def test_files_that_touch_through_a_third_one_are_one_run(tmp_path: Path) -> None:
    files = [
        capture(tmp_path, f"{n}.sqlite", utc=EPOCH + i * 8 * SECOND, pid=10 + i) for i, n in enumerate("abc")
    ]
    assert rlprof.read(files[2], files[0], files[1]).meta.end_ns == 26 * SECOND


def test_one_host_bounds_the_error_by_how_far_a_clock_is_slewed(tmp_path: Path) -> None:
    a = capture(tmp_path, "a.sqlite", uuid="GPU-7")
    b = capture(tmp_path, "b.sqlite", uuid="GPU-7", utc=EPOCH + 2 * SECOND, pid=11)
    trace = rlprof.read(a, b)
    assert trace.meta.clock_uncertainty_ns == 1_000_000 + 1_000  # 500 ppm of 2 s, and a microsecond
    assert any("one host" in n for n in trace.notes)


def test_between_hosts_the_wall_clock_bounds_nothing_and_the_note_says_so(tmp_path: Path) -> None:
    a = capture(tmp_path, "a.sqlite", uuid="GPU-1")
    b = capture(tmp_path, "b.sqlite", uuid="GPU-2", pid=11)
    trace = rlprof.read(a, b)
    assert trace.meta.clock_uncertainty_ns >= ASSUMED_HOST_SKEW_NS
    assert any("assumed" in n for n in trace.notes)


@pytest.mark.parametrize("skew_ns", [0, 1_600_000, -1_600_000, 11_560_000_000 // 10])
def test_common_collectives_show_and_bound_the_skew(tmp_path: Path, skew_ns: int) -> None:
    def reduces(pid: int, late: int) -> list[dict[str, Any]]:
        return [
            kernel(SECOND + i * 10**7 + late, SECOND + i * 10**7 + 2_000_000, pid, correlationId=i)
            for i in range(8)
        ]

    a = capture(tmp_path, "a.sqlite", kernels=reduces(10, 0), StringIds=ALL_REDUCE, uuid="GPU-1")
    b = capture(
        tmp_path,
        "b.sqlite",
        utc=EPOCH + skew_ns,
        pid=11,
        kernels=reduces(11, 500_000),
        StringIds=ALL_REDUCE,
        uuid="GPU-2",
    )
    trace = rlprof.read(a, b)
    assert abs(skew_ns) <= trace.meta.clock_uncertainty_ns <= abs(skew_ns) + 2_000_000
    (note,) = [n for n in trace.notes if n.startswith("clock check")]
    assert "8 common collectives" in note
    # b enters 0.5 ms after a, both leave after 2 ms: the offset is known to between -1.5 and +2 ms
    assert ("wall clocks are wrong" in note) == (not skew_ns - 1_500_000 <= 0 <= skew_ns + 2_000_000)


# --- ranks and processes -------------------------------------------------------------------------------


def kineto(folder: Path, name: str, rank: int | None, ts: int = 1_700_000_000_000_000, pid: int = 7) -> Path:
    document: dict[str, Any] = {
        "traceEvents": [
            {
                "ph": "X",
                "cat": "user_annotation",
                "name": "step",
                "pid": pid,
                "tid": 1,
                "ts": ts,
                "dur": 1000,
            },
            {
                "ph": "X",
                "cat": "kernel",
                "name": "gemm",
                "pid": 0,
                "tid": 7,
                "ts": ts + 10,
                "dur": 100,
                "args": {"device": 0, "stream": 7, "correlation": 1},
            },
        ]
    }
    if rank is not None:
        document["distributedInfo"] = {"rank": rank, "world_size": 4}
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(document))
    return folder / name


def test_two_files_that_claim_one_rank_are_an_error_naming_both(tmp_path: Path) -> None:
    a, b = kineto(tmp_path, "a.json", 0), kineto(tmp_path, "b.json", 0, pid=8)
    with pytest.raises(RankError) as caught:
        rlprof.read(a, b)
    assert str(a) in str(caught.value)
    assert str(b) in str(caught.value)
    assert "--rank-from" in str(caught.value)


@pytest.mark.parametrize(("rank_from", "ranks"), [("file", [0, 1]), ("none", [None, None])])
def test_ranks_can_be_taken_from_the_files_or_not_at_all(
    tmp_path: Path, rank_from: str, ranks: list[int | None]
) -> None:
    a, b = kineto(tmp_path, "a.json", 0), kineto(tmp_path, "b.json", 0, pid=8)
    processes = rlprof.read(a, b, rank_from=rank_from).table("processes")
    assert processes["rank"].to_list() == ranks
    assert processes["label"].n_unique() == 2
    assert processes["file"].to_list() == ["a.json", "b.json"]


def test_ranks_in_file_names_are_used_where_the_files_do_not_say(tmp_path: Path) -> None:
    files = [kineto(tmp_path, f"t-rank{r}.json", None, pid=r + 5) for r in (2, 0)]
    trace = rlprof.read(*files)
    assert trace.table("processes")["rank"].to_list() == [2, 0]
    assert trace.table("processes")["label"].to_list() == ["rank 2", "rank 0"]
    assert any("taken from" in n and "name" in n for n in trace.notes)


def test_one_rank_of_two_roles_is_no_conflict(tmp_path: Path) -> None:
    files = [kineto(tmp_path, f"{g}_rank0.json", None, pid=p) for p, g in ((5, "actor"), (6, "rollout"))]
    assert rlprof.read(*files).table("processes")["rank"].to_list() == [0, 0]
    again = kineto(tmp_path, "again/actor_rank0.json", None, pid=9)
    with pytest.raises(RankError, match="both claim rank 0"):
        rlprof.read(*files, again)


def test_an_unknown_way_to_find_ranks_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="rank_from"):
        rlprof.read(kineto(tmp_path, "a.json", 0), kineto(tmp_path, "b.json", 1), rank_from="guess")


def test_one_pid_in_two_files_is_two_processes(tmp_path: Path) -> None:
    a, b = kineto(tmp_path, "a.json", 0, pid=7), kineto(tmp_path, "b.json", 1, pid=7)
    trace = rlprof.read(a, b)
    assert trace.table("processes")["process"].n_unique() == trace.table("processes").height
    assert trace.table("ranges")["process"].n_unique() == 2
    numbers = set(trace.table("processes")["process"])
    assert set(trace.table("kernels")["process"]) <= numbers


def test_a_report_and_its_export_are_refused(tmp_path: Path) -> None:
    a = capture(tmp_path, "run.sqlite")
    b = capture(tmp_path, "other/run.sqlite", uuid=None)
    with pytest.raises(RankError, match="same capture session"):
        rlprof.read(a, b)


def test_two_sessions_that_started_in_one_nanosecond_are_two_if_their_processes_differ(
    tmp_path: Path,
) -> None:
    trace = rlprof.read(capture(tmp_path, "a.sqlite"), capture(tmp_path, "b.sqlite", pid=11))
    assert trace.table("processes").height == 2


# --- devices -------------------------------------------------------------------------------------------


def test_a_gpu_is_known_again_by_its_uuid(tmp_path: Path) -> None:
    trace = rlprof.read(capture(tmp_path, "a.sqlite"), capture(tmp_path, "b.sqlite", pid=11))
    assert trace.table("devices")["device"].to_list() == [0]
    assert trace.table("kernels")["device"].to_list() == [0, 0]


@pytest.mark.parametrize("uuids", [("GPU-1", "GPU-2"), (None, None), ("GPU-1", None)])
def test_gpus_that_are_not_known_to_be_one_are_kept_apart(
    tmp_path: Path, uuids: tuple[str | None, ...]
) -> None:
    a = capture(tmp_path, "a.sqlite", uuid=uuids[0])
    b = capture(tmp_path, "b.sqlite", uuid=uuids[1], pid=11)
    trace = rlprof.read(a, b)
    assert trace.table("devices")["device"].to_list() == [0, 1]
    assert dict(trace.table("kernels").select("process", "device").iter_rows()) == {0: 0, 1: 1}
    assert any("GPU 0 of b.sqlite is GPU 1 here" in n for n in trace.notes)


def test_a_device_number_that_is_free_is_kept(tmp_path: Path) -> None:
    gpu = [{"id": 3, "name": "H200", "smCount": 132, "cuDevice": 3, "uuid": None}]
    a = capture(tmp_path, "a.sqlite", uuid=None)
    b = capture(
        tmp_path,
        "b.sqlite",
        pid=11,
        TARGET_INFO_GPU=gpu,
        kernels=[kernel(SECOND, SECOND + 5, 11, deviceId=3)],
    )
    trace = rlprof.read(a, b)
    assert trace.table("kernels")["device"].to_list() == [0, 3]
    assert not any("is GPU" in n for n in trace.notes)


def samples(start: int, count: int, value: int) -> dict[str, list[dict[str, Any]]]:
    return {
        "TARGET_INFO_GPU_METRICS": [{"typeId": 0, "metricId": 1, "metricName": "SMs Active [Throughput %]"}],
        "GPU_METRICS": [
            {"timestamp": start + i * 1000, "typeId": 0, "metricId": 1, "value": value} for i in range(count)
        ],
    }


def test_a_gpu_sampled_twice_at_one_time_counts_once(tmp_path: Path) -> None:
    a = capture(tmp_path, "a.sqlite", **samples(0, 10, 40))
    b = capture(tmp_path, "b.sqlite", pid=11, **samples(5_000, 20, 80))
    trace = rlprof.read(a, b)
    rows = trace.table("activity").sort("start_ns")
    assert (rows["start_ns"][1:] >= rows["end_ns"][:-1]).all()
    assert rows["active_frac"].to_list()[:10] == [0.4] * 10
    assert any("samples dropped" in n for n in trace.notes)
    assert rows["start_ns"].is_sorted()


# --- tables --------------------------------------------------------------------------------------------


def test_the_merged_tables_are_those_of_the_files(data: Path) -> None:
    files = [data / "kineto" / f"two_ranks_rank-{r}.json.gz" for r in (0, 1)]
    parts, trace = [rlprof.read(f) for f in files], rlprof.read(*files)
    zero = min(p.meta.utc_origin_ns or 0 for p in parts)
    for name in TABLE_NAMES:
        if not any(p.has(name) for p in parts):
            assert not trace.has(name)
            assert name in trace.missing
            continue
        table = trace.table(name)
        assert dict(table.schema) == SCHEMAS[name], name
        if name == "devices":
            continue
        assert table.height == sum(p.table(name).height for p in parts)
        if "start_ns" in table.columns:
            expected = [p.table(name)["start_ns"] + ((p.meta.utc_origin_ns or 0) - zero) for p in parts]
            assert table["start_ns"].to_list() == pl.concat(expected).to_list()
    assert trace.table("processes")["rank"].drop_nulls().unique().sort().to_list() == [0, 1]


@pytest.mark.parametrize("name", ["ranges", "kernels", "activity", "processes", "devices"])
def test_columns_do_not_change_the_rows(tmp_path: Path, name: str) -> None:
    a = capture(tmp_path, "a.sqlite", **samples(0, 10, 40))
    b = capture(tmp_path, "b.sqlite", pid=11, uuid="GPU-9", **samples(5_000, 20, 80))
    whole = rlprof.read(a, b).table(name)  # type: ignore[arg-type]
    for column in whole.columns:
        assert rlprof.read(a, b).table(name, [column])[column].equals(whole[column]), column  # type: ignore[arg-type]


def test_a_table_that_one_file_lacks_is_said(tmp_path: Path) -> None:
    a = capture(tmp_path, "a.sqlite", **samples(0, 10, 40))
    b = capture(tmp_path, "b.sqlite", pid=11)
    trace = rlprof.read(a, b)
    assert trace.has("activity")
    assert "no activity in b.sqlite" in trace.notes


def test_a_note_that_files_share_is_given_once(tmp_path: Path) -> None:
    ranges = [push_pop(SECOND, None, "step", tid(pid)) for pid in (10, 11)]
    a = capture(tmp_path, "a.sqlite", NVTX_EVENTS=[ranges[0]])
    b = capture(tmp_path, "b.sqlite", pid=11, NVTX_EVENTS=[ranges[1]])
    trace = rlprof.read(a, b)
    trace.table("ranges")
    assert len([n for n in trace.notes if "never ended" in n]) == 1
    assert any(n.startswith("a.sqlite, b.sqlite: ") for n in trace.notes)


def test_two_ranks_are_ranked_together(data: Path) -> None:
    report = rlprof.read(*sorted((data / "kineto").glob("two_ranks*"))).windows()
    assert set(report.frame["process"]) == {"rank 0", "rank 1"}
    assert report.frame["device"].drop_nulls().n_unique() == 2


def test_merging_nothing_is_an_error() -> None:
    with pytest.raises(UsageError):
        merge([])


@given(
    st.lists(st.lists(st.sampled_from(["a", "b", "c.json"]), min_size=1, max_size=4), min_size=1, max_size=6)
)
def test_short_labels_are_distinct_ends_of_the_paths(paths: list[list[str]]) -> None:
    names = ["/".join(p) for p in paths]
    labels = short_labels(names)
    assert len(set(labels)) == len(names)
    for name, label in zip(names, labels, strict=True):
        assert name.endswith(label.split(" #")[0])


def test_short_labels_never_show_a_whole_absolute_path(tmp_path: Path) -> None:
    assert short_labels(["/home/me/x/t.json"]) == ["t.json"]
    assert short_labels(["/home/me/x/t.json", "/home/me/y/t.json"]) == ["x/t.json", "y/t.json"]
