"""Bounds by what native iterations took of the GPU: worked by hand, and those of a run on an H200."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.embodied_tables import _decided
from benchmarks.gpu import stored_bound
from benchmarks.gpu.bounds import IN_TURN, SLICES, Profiled, Spread, median_use, spreads
from benchmarks.gpu.embodied_report import said_in_a_line
from benchmarks.gpu.solo import Reading, Solo, Use, busy_shares
from benchmarks.gpu.stored_bound import again, main, record, stored_uses
from rlprof.errors import UsageError
from rlprof.overlap.optimize.bound import Bound, Resource
from rlprof.overlap.optimize.windows import Window
from rlprof.unavailable import Unavailable
from tests.overlap.graphs import Node, graph_of

ROOT = Path(__file__).parents[2]
#: Of a search on an H200: the profiled native iteration, and its windows.
STORED = ROOT / "tests/data/bound_libero.json"


def window(node: str, total_s: float, activity: float | None) -> Window:
    return Window(f"it/{node}", 1, total_s, total_s, activity, 1.0, (), True)


def two_answers(slices: bool = True) -> Profiled:
    """Draws for a second, then answers twice, half of the SMs at work in each; nothing waits for anything."""
    body = [Node("draw", "env", mixes=True), Node("a", "rollout", (), mixes=True)]
    native = graph_of([*body, Node("b", "vision", (), mixes=True)], ())
    windows = [window("draw", 1.5, 0.1), window("a", 1.0, 0.5), window("b", 1.0, 0.5)]
    return Profiled(native, windows, slices=slices, cores=4)


def use(busy_s: float | None, core_s: float = 1.0) -> Use:
    return Use(0.0, 3.5, core_s, busy_s, "" if busy_s is not None else "nobody read it")


def limits(found: Bound) -> dict[str, float]:
    return {one.name: one.least_s for one in (*found.limits, *found.assumed)}


def test_kernels_of_one_process_may_run_side_by_side_and_graphics_may_not() -> None:
    profiled = two_answers()
    # busy for 3 s: a second of drawing, which the 0.15 s of SM time in it are part of, and two answers
    assert profiled.graphics_s(3.0) == pytest.approx(1.0)
    found = profiled.bounds(use(3.0))["any graph"]
    assert found.binding == SLICES
    assert found.least_s == pytest.approx(2.0)
    # both answers at once take a second beside no drawing: there is a graph of 2 s, which this forbids
    assert limits(found)[IN_TURN] == pytest.approx(3.0)
    assert IN_TURN not in {one.name for one in found.limits}
    assert Bound.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_calls_that_were_busy_for_less_than_they_took_hide_graphics() -> None:
    profiled = two_answers()
    assert profiled.graphics_s(2.4) == pytest.approx(0.4)
    assert profiled.graphics_s(1.9) == 0.0
    assert limits(profiled.bounds(use(1.9))["any graph"])[SLICES] == pytest.approx(1.0)


def test_graphics_lie_before_what_follows_every_call_that_draws() -> None:
    body = [Node(f"draw{i}", "env", (), mixes=True) for i in (0, 1)]
    body += [Node(f"a{i}", "rollout", (f"draw{i}",), mixes=True) for i in (0, 1)]
    native = graph_of([*body, Node("train", "actor", ("a0+a1",), mixes=True)], ())
    windows = [window(f"draw{i}", 2.0, 0.0) for i in (0, 1)] + [window(f"a{i}", 1.0, 0.6) for i in (0, 1)]
    found = Profiled(native, [*windows, window("train", 1.0, 0.25)]).bounds(use(6.8))
    (least,) = (one for one in found["graphs of whole batches"].limits if one.name == SLICES)
    # 3.8 s of drawing and 1.2 s of answers before training, which takes a second with a quarter of the SMs
    assert (least.head_s, least.work_s, least.tail_s) == pytest.approx((0.0, 5.0, 1.0))


def test_clients_of_mps_share_the_gpu_and_not_its_time() -> None:
    sound, assumed = two_answers(slices=False).resources(use(3.0))
    assert (set(sound), assumed) == ({"SM time", "cores"}, {})


def test_what_was_not_read_is_unknown() -> None:
    found = two_answers().bounds(use(None))["any graph"]
    assert dict(found.unknown) == {SLICES: "nobody read it", IN_TURN: "nobody read it"}
    profiled = two_answers()
    windows = [*profiled.windows[:2], window("b", 1.0, None)]
    blind = Profiled(profiled.native, windows).resources(use(3.0))
    assert blind[0][SLICES] == Unavailable("the activity of it/b is not known")
    assert blind[1][IN_TURN] == Resource(3.0)


def test_the_bound_is_that_of_the_median_iteration_and_says_how_far_others_are() -> None:
    uses = [use(3.0, 2.0), use(2.4, 3.0), use(2.8, 2.5), use(None, 2.5)]
    assert (median_use(uses).busy_s, median_use(uses).core_s) == (2.8, 2.5)
    told = spreads(two_answers(), uses)["any graph"].to_dict()
    assert told["least_s"] == pytest.approx(1.8)
    over = told["over_iterations"]
    assert over["iterations"] == 4
    known = [over["least_s"], over["median_s"], over["most_s"]]
    assert known == pytest.approx([1.5, 1.8, 2.0])  # not read: drawing alone, 1.5 s in its worker
    assert list(over["assumed"][IN_TURN].values()) == pytest.approx([2.4, 2.8, 3.0])
    assert isinstance(Bound.from_dict(told), Bound)


def test_work_before_and_after_an_iteration_is_not_of_it() -> None:
    # renewed every 0.2 s, read every 0.1 s: busy from 0 to 0.4 s and from 2.4 s on, half busy in between
    of_period = [1.0, 1.0, *[0.4, 0.6] * 5, 0.9, 1.0, 0.9, 1.0]
    readings = [
        Reading(0.2 * (i + 1) + 0.05 + 0.1 * k, busy) for i, busy in enumerate(of_period) for k in (0, 1)
    ]
    shares = busy_shares(readings, 0.4, 2.4)
    assert sum(s for _, s in shares) == pytest.approx(2.0)
    assert sum(r.busy_frac * s for r, s in shares) == pytest.approx(1.0, abs=0.03)
    assert busy_shares([], 0.0, 1.0) == []
    # what was read too late or not at all does not count as idle or busy
    assert sum(s for _, s in busy_shares(readings[:10], 0.4, 2.4)) < 1.0


class Gauge:
    """Stands in for NVML, which answers so many times."""

    def __init__(self, answers: int) -> None:
        self.answers = answers

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUtilizationRates(self, _handle: int) -> Any:
        self.answers -= 1
        if self.answers < 0:
            raise RuntimeError("the GPU is lost")
        return SimpleNamespace(gpu=40 + 20 * (self.answers % 2))


@pytest.mark.parametrize("answers", [1000, 2])
def test_a_gpu_that_stops_telling_leaves_the_cores(monkeypatch: pytest.MonkeyPatch, answers: int) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Gauge(answers))
    with Solo("cuda:0", SimpleNamespace()) as solo:
        began_ns = time.monotonic_ns()
        while time.monotonic_ns() < began_ns + 600_000_000:
            pass
        ended_ns = time.monotonic_ns()
        solo.wait()
    found = solo.use(began_ns, ended_ns)
    assert 0.1 < found.core_s <= 0.65  # without the time in which it waits
    if answers == 2:
        assert found.busy_s is None
        assert "the GPU is lost" in found.reason
    else:
        assert found.busy_s == pytest.approx(0.5 * (ended_ns - began_ns) / 1e9, abs=0.05)
        assert solo.to_dict()["gpu_utilization_samples"] == len(solo.readings)


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(STORED.read_text())
    return document


@pytest.fixture(scope="module")
def bounds(stored: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Spread]:
    """Bounds of the run, by the graph of its program."""
    pytest.importorskip("torch")
    pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'rlprof[workloads]'")
    native = record(stored["config"], tmp_path_factory.mktemp("recorded"))
    with pytest.raises(UsageError, match="is not that of the result"):
        again(stored, [], two_answers().native)
    return again(stored, [Window.from_dict(w) for w in stored["windows"]], native)


def test_the_bound_of_a_stored_run_is_found_again(stored: dict[str, Any], bounds: dict[str, Spread]) -> None:
    takes = {w["node"].rpartition("/")[2]: w["total_s"] for w in stored["windows"]}
    active_s = {n: takes[n] * w["sm_activity"] for n, w in zip(takes, stored["windows"], strict=True)}
    drawing = ("step", "reset")
    readings = stored["steps"]["native_profile"]["gpu_utilization_readings"]
    busy_s = sum(busy for at_s, busy in readings if 0.2 < at_s < 6.3) * 0.1
    graphics_s = busy_s - sum(s for n, s in takes.items() if n not in drawing)
    # drawing 32 images takes the GPU for 39 ms, 26 times
    assert graphics_s == pytest.approx(26 * 0.039, abs=0.05)
    assert active_s["training_step"] < takes["training_step"]
    rollouts_s = sum(
        active_s[n] for n in ("answer", "vision", "predict_values", "upload", "noise", "sync_weights")
    )
    after_s = sum(takes[n] for n in ("training_step", "compute_adv", "shuffle"))
    for spread in bounds.values():
        found = spread.median
        assert (found.binding, len(spread.each)) == (SLICES, 1)
        assert found.least_s == pytest.approx(graphics_s + rollouts_s + after_s, abs=0.05)
        assert found.least_s == pytest.approx(3.64, abs=0.01)
        (in_turn,) = found.assumed
        assert in_turn.least_s == pytest.approx(busy_s, abs=0.05)
        # the run itself counted all that was read, and called it a bound
        assert in_turn.least_s < stored["bound"]["any graph"]["least_s"]
        assert found.least_s < in_turn.least_s


def test_uses_that_are_stored_are_those_that_count(stored: dict[str, Any]) -> None:
    (alone,) = stored_uses(stored)
    assert (alone.start_s, alone.end_s) == pytest.approx((0.037, 6.085))
    uses = [alone, use(None), use(2.0)]
    newer = stored | {"native_use": {str(i): one.to_dict() for i, one in enumerate(uses)}}
    for one, read in zip(uses, stored_uses(json.loads(json.dumps(newer))), strict=True):
        assert asdict(read) == pytest.approx(asdict(one), abs=1e-4)
    older = {k: v for k, v in stored["steps"]["native_profile"].items() if not k.endswith("_readings")}
    (mean,) = stored_uses(stored | {"steps": {"native_profile": older}})
    assert mean.busy_s == pytest.approx(older["gpu_utilization"] * older["seconds"])
    (none,) = stored_uses(stored | {"steps": {"native_profile": older | {"gpu_utilization": None}}})
    assert none.busy_s is None


def test_programs_with_newer_options_are_recorded_with_them(
    stored: dict[str, Any], bounds: dict[str, Spread], tmp_path: Path
) -> None:
    del bounds  # skips where nothing can be recorded
    config = stored["config"] | {"envs": 4, "chunks": 2, "global_batch": 8}
    hashes = set()
    each: tuple[dict[str, Any], ...] = ({}, {"prefix_worker": True}, {"whole_answers": None})
    for number, changes in enumerate(each):
        (tmp_path / str(number)).mkdir()
        wanted = {k: v for k, v in {**config, **changes}.items() if v is not None}  # older: not there
        hashes.add(record(wanted, tmp_path / str(number)).hash)
    assert len(hashes) == 3


@pytest.mark.parametrize(
    ("result", "measurements", "said"),
    [
        ("{}", '{"kind": "other"}', "m.jsonl has no profile"),
        ("{}", "half a li", "m.jsonl: is damaged"),
        ("half", "PROFILE", "r.json: is damaged"),
        ("[]", "PROFILE", "r.json: is damaged"),
        ("{}", "PROFILE", "r.json: has no 'config'"),
        (None, "PROFILE", "r.json: cannot be read"),
    ],
)
def test_a_result_that_is_damaged_is_one_line(
    stored: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    result: str | None,
    measurements: str,
    said: str,
) -> None:
    del stored
    if measurements == "PROFILE":
        monkeypatch.setattr(stored_bound, "windows_of", lambda path: ())
    if result is not None:
        (tmp_path / "r.json").write_text(result)
    (tmp_path / "m.jsonl").write_text(measurements)
    monkeypatch.setattr(sys, "argv", ["stored_bound", str(tmp_path / "r.json"), str(tmp_path / "m.jsonl")])
    with pytest.raises(SystemExit) as ended, said_in_a_line():
        main()
    assert ended.value.code == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert said in line


def test_an_iteration_of_no_length_and_a_gpu_that_tells_of_nothing() -> None:
    profiled = two_answers()
    told = spreads(profiled, [use(0.0)])["any graph"].to_dict()
    (one,) = told["assumed"]
    assert (one["least_s"], told["over_iterations"]["iterations"]) == (0.0, 1)
    summary = {"optimised": {"most_speedup": {"any graph": 1.5}}}
    lines = _decided({"steps": {}, "bound": {"any graph": told}, "summary": summary})
    assert any("1.50 times as fast" in line for line in lines)
    assert any("beside it" in line and "times as fast" not in line for line in lines)
    solo = Solo("cpu", SimpleNamespace())
    with solo:
        pass
    now_ns = time.monotonic_ns()
    found = solo.use(now_ns, now_ns)
    assert (found.core_s, found.busy_s, found.reason) == (0.0, None, "there is no GPU")
