from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import rlprof
from rlprof.capture.samplers.base import check_period, period_of
from rlprof.doctor import Diagnosis, Finding, diagnose
from rlprof.remedies import remedies
from rlprof.trace.trace import Trace
from tests.trace.nsys_made import kernel, made, push_pop, tid

DURATION = 100_000_000
GPU = [{"id": 0, "name": "H200", "smCount": 132, "cuDevice": 0, "uuid": "GPU-0"}]


def steps(count: int = 3, pid: int = 10) -> list[dict[str, object]]:
    return [
        push_pop(i * 30_000_000, i * 30_000_000 + 25_000_000, "iteration", tid(pid)) for i in range(count)
    ]


def samples(period: int = 500_000) -> dict[str, list[dict[str, object]]]:
    times = range(0, DURATION, period)
    return {
        "TARGET_INFO_GPU_METRICS": [{"typeId": 0, "metricId": 1, "metricName": "SMs Active [Throughput %]"}],
        "GPU_METRICS": [{"timestamp": t, "typeId": 0, "metricId": 1, "value": 40} for t in times],
    }


def sound(**changes: Any) -> dict[str, Any]:
    """Tables of a capture that lacks nothing, with changes; None leaves a table out."""
    tables: dict[str, Any] = {
        "ANALYSIS_DETAILS": [{"duration": DURATION}],
        "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": 1_700_000_000 * 10**9}],
        "TARGET_INFO_GPU": GPU,
        "NVTX_EVENTS": steps(),
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            kernel(i * 10**6, i * 10**6 + 10**5, correlationId=i) for i in range(80)
        ],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            {"start": i * 10**6, "end": i * 10**6 + 5, "globalTid": tid(10), "correlationId": i, "nameId": 2}
            for i in range(80)
        ],
        "StringIds": [{"id": 1, "value": "gemm"}, {"id": 2, "value": "cudaLaunchKernel"}],
        **samples(),
    }
    return {k: v for k, v in (tables | changes).items() if v is not None}


def of(tmp_path: Path, **changes: Any) -> Diagnosis:
    return diagnose(made(tmp_path, **sound(**changes)))


def finding(diagnosis: Diagnosis, topic: str) -> Finding:
    (one,) = [f for f in diagnosis.findings if f.topic == topic]
    return one


def test_a_sound_capture_has_nothing_to_complain_of(tmp_path: Path) -> None:
    diagnosis = of(tmp_path)
    assert {f.status for f in diagnosis.findings} == {"ok"}, diagnosis.findings
    assert diagnosis.verdict == "Windows can be ranked by measured SM activity."


NO_METRICS: dict[str, Any] = {"GPU_METRICS": None, "TARGET_INFO_GPU_METRICS": None}
NO_KERNELS: dict[str, Any] = {"CUPTI_ACTIVITY_KIND_KERNEL": None}

ILL: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "nvtx_absent": ({"NVTX_EVENTS": None}, "ranges", "missing", "--trace=cuda,nvtx"),
    "nvtx_rows_without_ranges": (
        {"NVTX_EVENTS": [{"start": 1, "eventType": 75, "text": "NCCL", "globalTid": tid(10), "domainId": 1}]},
        "ranges",
        "missing",
        "torch.cuda.nvtx.range",
    ),
    "no_iteration": (
        {"NVTX_EVENTS": [push_pop(0, 10**6, "load"), push_pop(5 * 10**7, 9 * 10**7, "work")]},
        "iteration",
        "missing",
        "--iteration",
    ),
    "one_iteration": ({"NVTX_EVENTS": steps(1)}, "iteration", "suspect", "three iterations"),
    "range_never_ended": (
        {"NVTX_EVENTS": [*steps(), push_pop(95_000_000, None, "late")]},
        "ranges cut at the capture's end",
        "suspect",
        "torch.cuda.profiler.stop()",
    ),
    "crossing_ranges": (
        {"NVTX_EVENTS": [*steps(), push_pop(10**6, 5 * 10**6, "a"), push_pop(3 * 10**6, 9 * 10**6, "b")]},
        "crossing ranges",
        "suspect",
        "start_range",
    ),
    "inner_process_without_ranges": (
        {"CUPTI_ACTIVITY_KIND_KERNEL": [kernel(5, 9), kernel(10**6, 9 * 10**7, 77)]},
        "processes with kernels but no ranges",
        "suspect",
        "vLLM",
    ),
    "no_cuda": (
        {**NO_KERNELS, "CUPTI_ACTIVITY_KIND_RUNTIME": None},
        "kernels",
        "missing",
        "ProfilerActivity.CUDA",
    ),
    "calls_without_kernels": (NO_KERNELS, "kernels", "missing", "let the program end by itself"),
    "graphs_recorded_whole": (
        {
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": [
                {
                    "start": 5,
                    "end": 10**7,
                    "deviceId": 0,
                    "streamId": 7,
                    "correlationId": 3,
                    "globalPid": tid(10, 0),
                }
            ]
        },
        "CUDA graphs",
        "suspect",
        "--cuda-graph-trace=node",
    ),
    "graph_launches_without_rows": (
        {
            "CUPTI_ACTIVITY_KIND_RUNTIME": [
                {"start": 5, "end": 6, "globalTid": tid(10), "correlationId": 999, "nameId": 3}
            ],
            "StringIds": [{"id": 1, "value": "gemm"}, {"id": 3, "value": "cudaGraphLaunch_v10000"}],
        },
        "CUDA-graph launches without GPU records",
        "missing",
        "--cuda-graph-trace=node",
    ),
    "kernels_without_calls": (
        {
            "CUPTI_ACTIVITY_KIND_RUNTIME": [
                {"start": 5, "end": 6, "globalTid": tid(10), "correlationId": 999, "nameId": 2}
            ]
        },
        "kernels without the call that launched them",
        "suspect",
        "do not trim",
    ),
    "no_sm_counters": (NO_METRICS, "SM-activity counters", "missing", "--gpu-metrics-devices=all"),
    "gpu_not_sampled": (
        {
            "CUPTI_ACTIVITY_KIND_KERNEL": [
                *(kernel(i * 10**6, i * 10**6 + 10**5, correlationId=i) for i in range(79)),
                kernel(8 * 10**7, 9 * 10**7, deviceId=1, correlationId=79),
            ]
        },
        "GPUs without counters",
        "missing",
        "--gpu-metrics-devices=all",
    ),
    "sampling_too_coarse": (
        {"NVTX_EVENTS": [*steps(), push_pop(10**6, 2 * 10**6, "short")], **samples(2_000_000)},
        "sampling period",
        "suspect",
        "--gpu-metrics-frequency=5000",
    ),
    "trimmed_to_a_part": (
        {"ANALYSIS_DETAILS": [{"duration": 1000 * DURATION}]},
        "span of the events",
        "suspect",
        "export the whole report",
    ),
    "gpu_without_description": ({"TARGET_INFO_GPU": None}, "GPU description", "missing", "trim"),
    "no_epoch": ({"TARGET_INFO_SESSION_START_TIME": None}, "wall clock", "missing", "--anchor"),
}


@pytest.mark.parametrize("name", ILL)
def test_what_is_wrong_is_found_with_consequence_and_remedy(tmp_path: Path, name: str) -> None:
    changes, topic, status, remedy = ILL[name]
    found = finding(of(tmp_path, **changes), topic)
    assert found.status == status
    assert remedy in found.remedy
    assert found.consequence


def test_captures_of_rlprof_are_told_what_rlprof_can_record(tmp_path: Path) -> None:
    """Whoever ran `rlprof capture` need not learn another tool to get what is missing."""
    short = {"NVTX_EVENTS": [*steps(), push_pop(10**6, 2 * 10**6, "short")]}
    lacking = (NO_KERNELS | {"CUPTI_ACTIVITY_KIND_RUNTIME": None}, NO_METRICS, {"NVTX_EVENTS": None}, short)
    for n, changes in enumerate(lacking):
        (tmp_path / str(n)).mkdir()
        period = {} if changes is NO_METRICS else samples(2_000_000)
        trace = made(tmp_path / str(n), **sound(**changes | period))
        own = dataclasses.replace(trace, meta=dataclasses.replace(trace.meta, product="rlprof 1.2"))
        for one, foreign in ((trace, True), (own, False)):
            told = diagnose(one)
            wrong = [f for f in told.findings if f.status != "ok"]
            assert wrong
            texts = (told.command, *(f.remedy for f in wrong))
            others = ("nsys profile", "torch.cuda.nvtx", "--gpu-metrics", "ProfilerActivity")
            assert any(other in text for other in others for text in texts) == foreign, texts


@pytest.mark.parametrize(
    ("hertz", "option"),
    [(10, "--backend cupti --rate 100Hz"), (10_000, "--backend nsys --rate 100000Hz")],
)
def test_the_rate_that_is_advised_is_one_that_the_back_end_keeps(hertz: int, option: str) -> None:
    told = remedies("rlprof 1.2").faster(hertz)
    assert told == option
    if "cupti" in option:
        check_period("cupti", period_of(10 * hertz))


def test_the_verdict_says_what_windows_rest_on(tmp_path: Path) -> None:
    assert "busy time only" in of(tmp_path, **NO_METRICS).verdict
    (tmp_path / "made.sqlite").unlink()
    assert "without ranges" in of(tmp_path, NVTX_EVENTS=None).verdict
    (tmp_path / "made.sqlite").unlink()
    blind = of(tmp_path, **NO_METRICS, **NO_KERNELS).verdict
    assert blind.startswith("Windows cannot be ranked")


def overhead(spans: list[tuple[int, int]]) -> list[dict[str, object]]:
    return [{"start": s, "end": e, "globalTid": tid(10)} for s, e in spans]


@pytest.mark.parametrize(
    ("spans", "status", "share"),
    [
        ([(0, DURATION // 100)], "ok", "1.0%"),
        ([(0, DURATION // 10), (DURATION // 20, DURATION // 5)], "suspect", "20.0%"),  # counted once
    ],
)
def test_the_share_of_the_profiler(
    tmp_path: Path, spans: list[tuple[int, int]], status: str, share: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.trace import nsys_made

    columns = ("start", "end", "globalTid")
    monkeypatch.setitem(nsys_made.COLUMNS, "PROFILER_OVERHEAD", columns)
    found = finding(of(tmp_path, PROFILER_OVERHEAD=overhead(spans)), "profiler overhead")
    assert found.status == status
    assert share in found.detail


def test_several_files_say_how_well_their_clocks_agree(data: Path) -> None:
    trace = rlprof.read(*sorted((data / "kineto").glob("two_ranks*")))
    found = finding(diagnose(trace), "wall clock")
    assert found.status == "suspect"
    assert "100" in found.detail


def test_operators_alone_are_no_phases(data: Path) -> None:
    found = finding(diagnose(rlprof.read(data / "kineto" / "no_gpu_rank.json.gz")), "ranges")
    trace = rlprof.read(data / "kineto" / "no_gpu_rank.json.gz")
    only_operators = set(trace.table("ranges")["style"]) == {"operator"}
    assert found.status == ("suspect" if only_operators else "ok")


def test_a_large_capture_is_told_to_be_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlprof import checks

    monkeypatch.setattr(checks, "MANY_ROWS", 50)
    assert "capture-range" in finding(of(tmp_path), "size").remedy


def test_every_public_capture_is_diagnosed(shared_traces: Path) -> None:
    for path in sorted((shared_traces / "nsys").glob("*.sqlite")):
        diagnosis = diagnose(rlprof.read(path))
        assert diagnosis.findings, path
        for found in diagnosis.findings:
            assert found.status == "ok" or (found.consequence and found.remedy), (path, found)


def test_progress_ends_at_1(tmp_path: Path) -> None:
    seen: list[float] = []
    trace: Trace = made(tmp_path, **sound())
    diagnose(trace, progress=lambda stage, part: seen.append(part))
    assert seen == sorted(seen)
    assert seen[-1] == 1
