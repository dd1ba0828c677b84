"""Quotas of the rollout by the same chunks: rounds of a made simulator, and stored results computed again."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu import quota_rounds
from benchmarks.gpu.embodied_report import Report
from benchmarks.gpu.rollout_quota import Run
from rlprof.errors import UsageError
from rlprof.overlap.quota.levels import Level
from rlprof.workloads.embodied.errors import RolloutError
from tests.conftest import ROOT

#: As measured on a GPU: the first chunk of an episode is faster.
CHUNKS_S = (1.23, 1.38, 1.39)
LEVELS = (100, 88, 76, 64, 52, 40, 28, 16)


#: What a run on a GPU left.
STORED = ROOT / "benchmarks/results/gpu/rollout_quota_mujoco_warp.json"


def least_at_76(percent: int) -> float:
    """Of the time with all SMs."""
    return 0.84 + 0.16 * abs(percent - 76) / 24


class Made(Run):
    """The whole program, but for its clock: a chunk takes what it is told to, whatever else happens."""

    def __init__(
        self,
        out: Path,
        factor: Callable[[int], float],
        chunks_s: Sequence[float] = CHUNKS_S,
        *,
        failing: int | None = None,
        **more: Any,
    ) -> None:
        given = {"rounds": 5, "level_rounds": 4, "at_once": 8, "least": 8, "coarse": 2, "levels": []}
        self.args = Namespace(
            **{
                "reserve": 0.0,
                "turn_seconds": 0.0,
                "anyway": False,
                "pair_only": False,
                "out": out,
                **given,
                **more,
            }
        )
        facts = {"command": "rollout_quota", "config": {"chunks": len(chunks_s), "device": "cuda:0"}}
        self.report = Report(out / "rollout_quota_made.json", facts)
        self.gpu: Any = SimpleNamespace(cuda=False, memory=dict)
        self.rollouts, self.rounds, self.levels = {100: None}, [], {}
        self.answer, self.chunk, self.waiting = SimpleNamespace(actions=None), 0, {}
        self.start_s = self.each_bytes = 0.0
        self.ends = time.monotonic() + 60
        self.factor, self.chunks_s, self.failing = factor, chunks_s, failing

    def build(self) -> None:
        env = SimpleNamespace(bootstrap_step=lambda *_: None, simulator=SimpleNamespace(close=lambda: None))
        self.trainer = SimpleNamespace(chunks=len(self.chunks_s), env=env)
        with self.report.step("levels") as found:
            self.levels = {p: Level(132 * p // 100, p) for p in sorted(LEVELS)}
            found["levels"] = str([(v.amount, v.setting) for v in self.levels.values()])

    def predict(self, percent: int) -> None:
        pass

    def simulate(self) -> None:
        pass

    def both(self, percent: int) -> dict[str, float]:
        if percent == self.failing and self.times(percent):
            raise RolloutError("the device was lost")
        chunk = (self.chunk - 1) % len(self.chunks_s)
        return {"rollout": 0.4, "simulator": self.chunks_s[chunk] * self.factor(percent)}

    def start(self, percents: Sequence[int], found: dict[str, Any]) -> dict[str, list[int]]:
        self.rollouts |= dict.fromkeys(percents)
        found["started_s"] = dict.fromkeys(percents, 0.0)
        return {}

    def end(self, percents: Sequence[int]) -> None:
        for percent in percents:
            self.rollouts.pop(percent, None)


def run(*args: Any, **more: Any) -> dict[str, Any]:
    """What the program wrote."""
    made = Made(*args, **more)
    made.all()
    document: dict[str, Any] = json.loads(made.report.path.read_text())
    assert all(step["ok"] for step in document["steps"].values())
    return document


@pytest.mark.parametrize("chunks_s", [CHUNKS_S, (1.0,), (1.0, 2.0), (0.5, 0.9, 1.1, 1.0, 0.7)])
def test_equal_quotas_keep_all_sms_whatever_chunks_they_had(
    tmp_path: Path, chunks_s: Sequence[float]
) -> None:
    document = run(tmp_path, lambda percent: 1.0, chunks_s)
    assert document["quotas"]["quotas"] == {}
    assert document["quotas"]["reason"] == "keep q0"
    mean = sum(chunks_s) / len(chunks_s)
    for row in document["summary"].values():
        assert row["time_s"] == pytest.approx(mean, abs=1e-4)
        assert row["over_all_sms"] == row["median_round_over_all_sms"] == 1


@pytest.mark.parametrize("chunks_s", [CHUNKS_S, (1.0, 3.0), (0.5, 0.9, 1.1, 1.0, 0.7)])
def test_a_gain_is_found_in_spite_of_chunks_that_differ_by_more(
    tmp_path: Path, chunks_s: Sequence[float]
) -> None:
    document = run(tmp_path, least_at_76, chunks_s)
    assert document["quotas"]["quotas"] == {"rollout": 76}
    assert document["quotas"]["reason"] == "76 % takes 16.0 % less than all SMs for the same chunks"
    for name, row in document["summary"].items():
        less = least_at_76(int(name.split()[0]))
        assert row["over_all_sms"] == pytest.approx(less, abs=1e-4)
        assert row["median_round_over_all_sms"] == pytest.approx(less, abs=1e-4)
    assert any(name.startswith("fine_76") for name in document["steps"])


@pytest.mark.parametrize("turns", [3, 4, 6])
@pytest.mark.parametrize("fewest", [16, 28, 40])
def test_every_quota_has_each_chunk_about_equally_often(tmp_path: Path, turns: int, fewest: int) -> None:
    document = run(tmp_path, least_at_76, level_rounds=turns, coarse=1, least=fewest)
    had = Counter((r["percent"], r["chunk"]) for r in document["rounds"] if not r["warm_up"])
    for percent in (p for p in LEVELS if p >= fewest):
        counts = [had[percent, chunk] for chunk in range(3)]
        assert max(counts) - min(counts) <= (turns % 3 > 0), (percent, counts)
        told = document["summary"][f"{percent} %"]["chunks"]
        assert [told[str(chunk)]["rounds"] for chunk in range(3)] == counts
    start = [r["chunk"] for r in document["rounds"] if r["phase"] == "start"]
    assert start == [1, 2, 0, 1, 2, 0, 1]  # a warm-up round, and two whole episodes for 5 rounds


def rounds(*rows: tuple[int, int, float]) -> list[dict[str, Any]]:
    return [
        {"percent": percent, "chunk": chunk, "phase": "sweep", "warm_up": False}
        | dict.fromkeys(quota_rounds.TIMES, taken)
        for percent, chunk, taken in rows
    ]


def test_the_time_is_that_of_the_mean_chunk_of_an_episode() -> None:
    base = [(100, 0, 1.0), (100, 1, 2.0), (100, 1, 2.2), (100, 1, 1.8)]
    measured = rounds(*base, (50, 1, 1.0), (50, 0, 1.0), (50, 0, 0.8), (30, 1, 1.0), (20, 7, 0.1))
    assert quota_rounds.time_s(measured, 100) == 1.5
    assert quota_rounds.time_s(measured, 50) == pytest.approx((0.9 + 1.0) / 2)
    assert quota_rounds.time_s(measured, 30) == pytest.approx((0.5 + 1.0) / 2)  # chunk 0 by the ratio
    found = quota_rounds.algorithm_2(measured, [Level(p, p) for p in (20, 30, 50, 100)], {})
    assert found is not None
    assert set(found["summary"]) == {"100 %", "50 %", "30 %"}  # nothing tells how long chunk 7 takes
    assert found["quotas"]["quotas"] == {"rollout": 30}


def test_a_median_over_unequal_chunks_would_find_a_gain_that_is_none() -> None:
    """As in a run on a GPU: one quota mostly had the fast chunk."""
    mix = {100: (0, 1, 1, 2, 2), 76: (0, 0, 0, 1), 52: (2, 2, 1, 0)}
    measured = rounds(*((p, chunk, CHUNKS_S[chunk]) for p, chunks in mix.items() for chunk in chunks))
    found = quota_rounds.algorithm_2(measured, [Level(p, p) for p in sorted(mix)], {"earlier": "rollout"})
    assert found is not None
    assert (found["quotas"]["quotas"], found["quotas"]["pair"]) == ({}, {"earlier": "rollout"})


# stored results -------------------------------------------------------------------------------------------


def old_form(document: dict[str, Any]) -> dict[str, Any]:
    """As earlier versions wrote it: rounds tell no chunk, and quotas are compared otherwise."""
    old: dict[str, Any] = json.loads(json.dumps(document))
    for row in old["rounds"]:
        del row["chunk"]
    old["summary"] = {}
    old["quotas"] = {"pair": old["quotas"]["pair"], "quotas": {"rollout": 16}, "reason": "by other chunks"}
    return old


@pytest.mark.parametrize("chunks_s", [CHUNKS_S, (0.5, 0.9, 1.1, 1.0, 0.7)])
def test_a_result_of_the_old_form_is_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], chunks_s: Any
) -> None:
    document = run(tmp_path, least_at_76, chunks_s)
    (tmp_path / "old.json").write_text(json.dumps(old_form(document)))
    out = tmp_path / "new" / "again.json"
    monkeypatch.setattr(sys, "argv", ["quota_rounds", str(tmp_path / "old.json"), "--out", str(out)])
    capsys.readouterr()
    quota_rounds.main()
    found = json.loads(out.read_text())
    assert "quotas and summary were computed again" in found["computed_again"]["rule"]
    assert all(len(set(times)) == 1 for times in found["computed_again"]["all_sms_s"].values())
    assert {name: found[name] for name in document} == document
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("quota")
    assert len(said) == 1 + len(document["summary"]) + 1
    assert quota_rounds.again(found) == found


def test_where_a_round_is_missing_its_chunks_are_not_guessed(tmp_path: Path) -> None:
    document = run(tmp_path, least_at_76, failing=52)
    assert document["summary"]["52 %"]["rounds"] == 1
    assert quota_rounds.again(document)["summary"] == document["summary"]  # it tells its chunks
    document["quotas"]["mechanism"] = "green contexts"
    assert quota_rounds.again(document)["quotas"]["mechanism"] == "green contexts"
    with pytest.raises(UsageError, match=r"which chunk a round was is not known: rounds of 52 % failed"):
        quota_rounds.again(old_form(document))


@pytest.mark.parametrize(
    ("damage", "wrong"),
    [
        (lambda d: d.update(command="run"), "this is no result of rollout quotas"),
        (lambda d: d["steps"]["alone"].pop("simulator_each_s"), "not complete: KeyError"),
        (lambda d: d["steps"]["pair"].update(ok=False), "not known: the step failed"),
        (lambda d: d["quotas"].pop("pair"), "not complete: KeyError"),
        (lambda d: d.update(rounds=d["rounds"][:7]), "no quota was measured"),
        (lambda d: d["steps"]["alone"].update(simulator_each_s=7), "not complete: TypeError"),
        (lambda d: d["config"].update(chunks=0), "not complete: ZeroDivisionError"),
        (lambda d: d["rounds"][-1].update(time_s=10**400), "not complete: OverflowError"),
        (lambda d: d["rounds"][-1].update(time_s=float("nan")), "a round took nan"),
        (lambda d: d["rounds"][-1].update(time_s=0.0), "a round took 0.0"),
    ],
)
def test_what_tells_too_little_is_refused(tmp_path: Path, damage: Callable[[Any], Any], wrong: str) -> None:
    document = old_form(run(tmp_path, least_at_76))
    damage(document)
    with pytest.raises(UsageError, match=wrong):
        quota_rounds.again(document)


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_what_is_no_result_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    path = tmp_path / "there.json"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(sys, "argv", ["quota_rounds", str(path), "--out", str(tmp_path / "new.json")])
    with pytest.raises(SystemExit) as ended:
        quota_rounds.main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {path}: ")
    assert said.count("\n") == 1
    assert not (tmp_path / "new.json").exists()


def test_both_at_once_without_a_daemon_are_told_for_the_same_chunks(tmp_path: Path) -> None:
    from rlprof.reproduce.rose.quota import trial_rows

    document = run(tmp_path, least_at_76)
    alone = Made(tmp_path / "alone", lambda _: 1.25, pair_only=True)
    alone.all()
    other = json.loads(alone.report.path.read_text()) | {"argv": {"mps": "False"}}
    other["machine"] = {"date": "2026-12-01"}
    assert "quotas" not in other
    assert {r["percent"] for r in other["rounds"]} == {100}
    found = quota_rounds.with_unmanaged(document, other)["quotas"]["unmanaged"]
    assert found["time_s"] == pytest.approx(1.25 * document["summary"]["100 %"]["time_s"], abs=1e-4)
    assert found["rounds"] == 6
    assert found["date"] == "2026-12-01"
    shown = quota_rounds.with_unmanaged(document, other) | {"command": "rollout_quota"}
    shown["machine"] = json.loads(STORED.read_text())["machine"]
    shown["config"] = json.loads(STORED.read_text())["config"]
    (row,) = (r for r in trial_rows("a", shown) if r["kind"] == "unmanaged")
    assert row["seconds"] == found["time_s"]
    for damage, wrong in (
        ({"argv": {"mps": "True"}}, "under an MPS daemon"),
        ({"config": {**other["config"], "device": "cpu"}}, "another device"),
        ({"rounds": other["rounds"][:2]}, "no round of some chunk"),
        ({"argv": {}}, "not complete"),
    ):
        with pytest.raises(UsageError, match=wrong):
            quota_rounds.with_unmanaged(document, other | damage)
