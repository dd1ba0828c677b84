"""Measuring, for real, on this machine's processor: rounds, interruption, limits, processes that end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rlprof.errors import UsageError
from rlprof.planning.calibration import kernels, links, measure, sweeps
from rlprof.planning.calibration.device import Clock, Devices, parse_devices, settled
from rlprof.planning.calibration.device import machine as facts
from rlprof.planning.calibration.errors import CalibrationError
from rlprof.planning.calibration.raw import Measurement, Point, read_raw
from rlprof.planning.calibration.sweeps import Effort
from rlprof.planning.shapes import ModelShape
from tests.conftest import ROOT, python_path
from tests.planning.calibration.made import as_dict

torch = pytest.importorskip("torch")

CPU = Devices("cpu", (0,))
EFFORT = Effort(rounds=2, repeats=2, section_s=1e-4, operator_repeats=2)
SHAPE = as_dict(ModelShape("tiny", 2, 16, 24, 2, 1, 20))
OPERATOR = {"shape": SHAPE, "sequences": 2, "prompt_tokens": 4, "response_tokens": 3}
POINTS = {
    "kernels": [
        Point("copy", {"bytes": 4096}),
        Point("gemm", {"rows": 2, "inner": 8, "columns": 16}),
        Point("nongemm", {"shape": SHAPE, "sequences": 2, "tokens": 4}),
        Point("optimizer", {"parameters": 8192}),
    ],
    "forward": [Point("forward", OPERATOR | {"response_tokens": 0}), Point("decode_step", OPERATOR)],
    **{kind: [Point(kind, OPERATOR)] for kind in ("inference", "generation", "training")},
    "links": [],
    "parallel": [],
}


@pytest.fixture(autouse=True)
def _few_small_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "points_of", lambda part, *_: POINTS[part])
    monkeypatch.setattr(sweeps, "effort_of", lambda *_: EFFORT)
    monkeypatch.setattr(links, "GRACE_S", 0.3)
    monkeypatch.setattr(kernels, "BEYOND_CACHES_BYTES", {"cpu": 4096, "cuda": 4096})


def test_every_point_is_visited_in_every_round_and_round_by_round(tmp_path: Path) -> None:
    path = tmp_path / "raw.jsonl"
    fractions: list[float] = []
    outcome = measure.measure(path, CPU, progress=lambda _, frac: fractions.append(frac))
    found = read_raw(path).measurements
    everything = [p for there in POINTS.values() for p in there]
    assert (outcome.measured, outcome.left, outcome.notes) == (2 * len(everything), 0, ())
    assert Counter(m.point for m in found) == dict.fromkeys(everything, 2)
    assert [m.round for m in found] == sorted(m.round for m in found)
    assert all(len(m.seconds) == 2 and min(m.seconds) > 0 and m.date for m in found)
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    parts = {m.kind: set(m.parts) for m in found if m.parts}
    assert parts == {"generation": {"prefill_s", "decode_s"}, "training": {"passes_s", "optimizer_s"}}
    for m in found:
        for total, *of in zip(m.seconds, *m.parts.values(), strict=True):
            assert not of or total == pytest.approx(sum(of))
    # nothing is left to do
    assert measure.measure(path, CPU).measured == 0


def test_an_interrupted_run_is_continued_where_it_ended(tmp_path: Path) -> None:
    path, seen = tmp_path / "raw.jsonl", []

    def third(what: str, _: float) -> None:
        seen.append(what)
        if len(seen) == 3:
            raise KeyboardInterrupt

    parts = ["kernels"]
    first = measure.measure(path, CPU, parts=parts, progress=third)
    assert (first.interrupted, first.measured, first.left) == (True, 3, 5)
    before = path.read_bytes()
    second = measure.measure(path, CPU, parts=parts)
    assert (second.interrupted, second.measured, second.left) == (False, 5, 0)
    assert path.read_bytes().startswith(before)
    visits = [(m.point, m.round) for m in read_raw(path).measurements]
    assert len(visits) == len(set(visits)) == 8


def test_a_limit_leaves_the_rest_out_and_says_so(tmp_path: Path) -> None:
    outcome = measure.measure(tmp_path / "raw.jsonl", CPU, seconds=0.0)
    assert outcome.measured == 0
    assert outcome.left == 2 * sum(map(len, POINTS.values()))
    assert "no time" in outcome.notes[-1]


def test_what_cannot_be_measured_is_noted_once_and_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(*_: Any) -> list[float]:
        raise MemoryError("1 TiB asked for")

    monkeypatch.setattr(measure, "gemm_s", too_large)
    path = tmp_path / "raw.jsonl"
    outcome = measure.measure(path, CPU, parts=["kernels"])
    failed = [m for m in read_raw(path).measurements if m.failed]
    assert [m.failed for m in failed] == ["MemoryError: 1 TiB asked for"]
    assert read_raw(path).of("gemm") == ()
    assert any("1 TiB" in note for note in outcome.notes)
    assert measure.measure(path, CPU, parts=["kernels"]).measured == 0


def test_what_failed_otherwise_is_tried_again_in_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real, calls = tmp_path / "raw.jsonl", measure.gemm_s, []

    def missing(*_: Any) -> list[float]:
        calls.append(1)
        raise ImportError("no such library")

    monkeypatch.setattr(measure, "gemm_s", missing)
    outcome = measure.measure(path, CPU, parts=["kernels"])
    assert (len(calls), outcome.measured) == (1, 6)
    assert any("no such library" in note for note in outcome.notes)
    monkeypatch.setattr(measure, "gemm_s", real)
    outcome = measure.measure(path, CPU, parts=["kernels"])
    assert (outcome.measured, outcome.left, outcome.notes) == (2, 0, ())


def test_a_lost_device_ends_the_process_and_the_next_leaves_that_point_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path, real = tmp_path / "raw.jsonl", measure.copy_s

    def lost(*_: Any) -> list[float]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nand more")

    monkeypatch.setattr(measure, "copy_s", lost)
    with pytest.raises(CalibrationError, match="device was lost while copy"):
        measure.measure(path, CPU, parts=["kernels"])
    monkeypatch.setattr(measure, "copy_s", real)
    outcome = measure.measure(path, CPU, parts=["kernels"])
    assert (outcome.measured, outcome.left) == (6, 0)
    assert "illegal" in outcome.notes[0]


def test_unknown_parts_and_devices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="colours"):
        measure.measure(tmp_path / "raw.jsonl", CPU, parts=["colours"])
    assert parse_devices("cpu:3") == Devices("cpu", (0, 1, 2))
    for text in ("cpu:0", "cpu:x", "gpu", "0,", "999", "-1", "cpu:65"):
        with pytest.raises(UsageError, match="--devices"):
            parse_devices(text)


def test_the_facts_name_no_host() -> None:
    m = facts(Devices("cpu", (0, 1)))
    assert (m.device, m.dtype, m.scalar_bytes, m.backend, m.count) == ("cpu", "float32", 4, "gloo", 2)
    assert os.uname().nodename not in str(m).replace(m.name, "")


def test_settings_of_pytorch_are_as_before_afterwards() -> None:
    before = (torch.get_num_threads(), torch.backends.cuda.cudnn_sdp_enabled())
    with settled("cpu"):
        assert (torch.get_num_threads(), torch.backends.cuda.cudnn_sdp_enabled()) == (1, False)
    assert (torch.get_num_threads(), torch.backends.cuda.cudnn_sdp_enabled()) == before


def test_the_clock_tells_how_long_a_call_takes() -> None:
    clock = Clock("cpu")
    assert 0.02 <= clock.once(lambda: time.sleep(0.02)) < 2
    times = clock.repeated(lambda: time.sleep(0.002), repeats=3, section_s=0.01)
    assert len(times) == 3
    assert all(0.002 <= t < 0.5 for t in times)


#: In a process that does nothing else: in a large one other pages may leave memory meanwhile.
PEAKS = """
from rlprof.planning.calibration.device import PeakMemory
memory = PeakMemory("cpu")
memory.reset()
peaks = [memory.peak_bytes()]
block = b"x" * (64 * 2**20)
del block
peaks.append(memory.peak_bytes())
memory.reset()
peaks.append(memory.peak_bytes())
print(*peaks)
"""


def test_peak_memory_sees_what_was_held_and_forgets_it() -> None:
    done = subprocess.run([sys.executable, "-c", PEAKS], cwd=ROOT, capture_output=True, text=True, check=True)
    if "None" in done.stdout:
        pytest.skip("this system does not tell")
    _, held, forgotten = map(int, done.stdout.split())
    assert held > 60 * 2**20
    assert forgotten < 40 * 2**20


LINKS = [Point(kind, {"bytes": 4096, "ranks": 2, "tier": "intra_node"}) for kind in sweeps.LINKS]


TOGETHER = [
    Point("inference", {**OPERATOR, "tensor": 2}),
    Point("generation", {**OPERATOR, "tensor": 2}),
    Point("training", {**OPERATOR, "tensor": 2}),
    Point("training", {**OPERATOR, "data": 2}),
]
TWICE = {**SHAPE, "kv_heads": 2}


def test_two_processes_measure_every_collective_and_operators_together_and_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one run of both, since starting the processes takes longer than all that they measure."""
    monkeypatch.setenv("PYTHONPATH", python_path())
    everything: list[Measurement] = []
    visits = [(p, n) for n in range(2) for p in LINKS]
    points = [Point(p.kind, {**p.key, "shape": TWICE}) for p in TOGETHER]
    points.append(Point("inference", {**OPERATOR, "tensor": 2}))  # one KV head cannot be divided
    note = links.measure_links(
        [*visits, *((p, 0) for p in points)],
        Devices("cpu", (0, 1)),
        EFFORT,
        everything.append,
        limit_s=300,
    )
    assert note == ""
    collectives, kept = everything[: len(visits)], everything[len(visits) :]
    assert [(m.point, m.round) for m in collectives] == visits
    assert all(len(m.seconds) == 2 and 0 < min(m.seconds) < 5 for m in collectives)
    assert [m.point for m in kept] == points
    assert all(len(m.seconds) == 2 and min(m.seconds) > 0 and not m.failed for m in kept[:-1])
    assert {m.kind: set(m.parts) for m in kept if m.parts} == {
        "generation": {"prefill_s", "decode_s"},
        "training": {"passes_s", "optimizer_s"},
    }
    assert "not divisible by 2" in kept[-1].failed


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("import sys; sys.exit('no such backend')", "no such backend"),
        (
            'print(\'{"failed_to_start": "port taken"}\', flush=True); import time; time.sleep(60)',
            "port taken",
        ),
    ],
)
def test_processes_that_cannot_begin_are_an_error_with_the_reason(
    body: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_worker(monkeypatch, body)
    with pytest.raises(CalibrationError, match=said):
        links.measure_links([(LINKS[0], 0)], Devices("cpu", (0, 1)), EFFORT, lambda _: None, limit_s=120)


@pytest.mark.parametrize(("limit_s", "quiet_s", "said"), [(0.1, 60, "limit"), (60, 0.1, "nothing was heard")])
def test_processes_that_hang_are_ended(
    limit_s: float, quiet_s: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = replace_worker(monkeypatch, "import sys, time; sys.stdin.close(); time.sleep(600)")
    began = time.monotonic()
    note = links.measure_links(
        [(LINKS[0], 0)], Devices("cpu", (0,)), EFFORT, lambda _: None, limit_s=limit_s, quiet_s=quiet_s
    )
    assert said in note
    assert time.monotonic() - began < 120
    assert all(p.poll() is not None for p in started)


def replace_worker(monkeypatch: pytest.MonkeyPatch, body: str) -> list[subprocess.Popen[bytes]]:
    real, started = subprocess.Popen, []

    def popen(command: list[str], **more: Any) -> Any:
        started.append(real([sys.executable, "-c", body], **more))
        return started[-1]

    monkeypatch.setattr(links.subprocess, "Popen", popen)
    return started


@pytest.mark.slow
def test_no_process_outlives_a_measurement_that_is_killed(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "rlprof.planning.calibration.measure",
        "--raw",
        str(tmp_path / "raw.jsonl"),
    ]
    process = subprocess.Popen([*command, "--devices", "cpu:2", "--parts", "links"], cwd=ROOT)
    children: set[int] = set()
    for _ in range(600):
        children = {
            int(c) for c in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        }
        if len(children) == 2:
            break
        time.sleep(0.1)
    assert len(children) == 2
    process.send_signal(signal.SIGKILL)
    process.wait()
    limit = time.monotonic() + 60
    while time.monotonic() < limit and any(Path(f"/proc/{c}").exists() for c in children):
        time.sleep(0.1)
    assert not any(Path(f"/proc/{c}").exists() for c in children)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "raw.jsonl"
    outcome = measure.measure(path, Devices("cuda", (0,)))
    assert (outcome.left, outcome.notes) == (0, ())
    assert all(m.peak_bytes for m in read_raw(path).of("inference", "generation", "training"))
