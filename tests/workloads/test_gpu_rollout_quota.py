"""`benchmarks/gpu/rollout_quota` on the processor: what a GPU machine runs for the first time must work."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import place_rose
from benchmarks.gpu.green_quota import GreenRun
from rlprof.overlap.green import SmParts, SmShares
from rlprof.reproduce.rose.quota import trial_rows
from rlprof.workloads.embodied.rollout_share import RolloutShare
from tests.conftest import ROOT, python_path

pytest.importorskip("torch")
pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'rlprof[workloads]'")
SIZES = (
    *(
        "--preset",
        "exact",
        "--device",
        "cpu",
        "--workers",
        "1",
        "--simulator",
        "mujoco_arm",
        "--set",
        "envs=4",
    ),
    *("chunks=2", "episode_steps=10", "denoise_steps=2", "global_batch=8", "micro_batch=4", "timeout_s=30"),
    *("--turn-seconds", "1", "--reserve", "1", "--seconds", "60", "--rounds", "3", "--anyway"),
)
#: Processes with a quota make other weights, as on a GPU; those with some do not start.
IN_A_PROCESS = """
import os, sys
share = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
if share and any("rollout_serve" in word for word in sys.orig_argv):
    class Lost:  # at once: loading PyTorch takes seconds
        def find_spec(self, name, *_):
            if name == "torch":
                raise RuntimeError("the device was lost")
    if share in os.environ["FAILING"].split(","):
        sys.meta_path.insert(0, Lost())
    import rlprof.workloads.embodied.policies as policies
    native = policies.make
    def make(size, simulator, *, seed, device):
        made = native(size, simulator, seed=seed + int(share), device=device)
        made.seed = seed
        return made
    policies.make = make
"""

#: Parts of SMs that are none; by one of them a product is wrong.
IN_ONE_PROCESS = """
import os
from contextlib import contextmanager
from rlprof.overlap.green import SmParts, SmShares
from rlprof.overlap.quota.products import Products, WrongProduct
from rlprof.workloads.embodied import rollout_share

class Parts(SmShares):
    asked = None
    def parts(self, device):
        return SmParts(tuple(range(20, 101, 20)))
    @contextmanager
    def current(self, lane, device, percent):
        self.asked = percent
        yield

def of(cls, policy, device, percent):
    shares = Parts()
    def look(_):
        wrong = shares.asked == int(os.environ["FAILING"])
        return Products(100, 1, (WrongProduct(1, 2, 3, "forward", 8, 3, None),) if wrong else ())
    return cls(shares, "cuda:0", percent, look=look)

rollout_share.RolloutShare.of = classmethod(of)
"""


def run(out: Path, failing: str, *more: str, changes: str = IN_A_PROCESS) -> tuple[dict[str, Any], str]:
    """What the script wrote, and what it said."""
    (out / "more").mkdir(parents=True)
    (out / "more" / "sitecustomize.py").write_text(changes)
    surroundings = {**os.environ, "FAILING": failing, "PYTHONPATH": python_path(out / "more")}
    command = [sys.executable, "-m", "benchmarks.gpu.rollout_quota", "--out", str(out), *SIZES, *more]
    done = subprocess.run(
        command, env=surroundings, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads((out / "rollout_quota_mujoco_arm.json").read_text()), done.stdout


def as_on_a_gpu(document: dict[str, Any]) -> dict[str, Any]:
    """The document of a run that was on a GPU."""
    document["config"]["device"] = "cuda:0"
    document["machine"]["gpu"] = "NVIDIA H200, 580.1, 345 MHz"
    return document


def checkout(there: Path) -> Path:
    """The papers' numbers, and no results."""
    (there / "benchmarks" / "results" / "gpu").mkdir(parents=True)
    shutil.copytree(ROOT / "datasets" / "papers", there / "datasets" / "papers")
    return there


@pytest.mark.slow
def test_the_range_and_what_is_around_its_best_become_rows(tmp_path: Path) -> None:
    out = tmp_path / "out"
    document, said = run(out, "60", "--levels", "80,60,40,20", "--coarse", "2")
    steps = document["steps"]
    assert list(steps)[:-1] == ["build", "levels", "alone", "pair", "sweep_60_20"]
    assert list(steps)[-1] in ("fine_80", "fine_20_40")  # the best of 100 and 20
    assert all(step["ok"] for step in steps.values())
    sweep = steps["sweep_60_20"]
    ((reason, lost),) = sweep["failed"].items()
    assert "the device was lost" in reason
    assert lost == [60]
    assert said.count("not started: 60 %: ") == said.count("the device was lost") == 1
    assert set(sweep["started_s"]) == {"20"}
    assert sweep["handed_over_bytes"]["20"] > 1e5
    summary = document["summary"]
    assert {"100 %", "20 %"} < set(summary)
    assert "60 %" not in summary
    assert summary["100 %"]["rounds"] >= 3 + 2
    assert all(
        row["rounds"] >= 1 and row["time_s"] >= max(row["rollout_ready_s"], row["simulator_ready_s"]) * 0.9
        for row in summary.values()
    )
    counted = [r for r in document["rounds"] if not r["warm_up"]]
    assert {r["percent"] for r in counted} == {int(name.split()[0]) for name in summary}

    assert trial_rows("f", document) == []  # not on a GPU
    rows = trial_rows("f", as_on_a_gpu(document))
    trials = {r["percent"]: r for r in rows if r["kind"] == "trial"}
    assert set(trials) == {float(name.split()[0]) for name in summary}
    assert {r["kind"] for r in rows} == {"ready", "together", "trial"}
    assert all(r["simulator"] == "mujoco_arm" and r["seconds"] > 0 for r in rows)
    for name, row in summary.items():
        assert trials[float(name.split()[0])]["seconds"] == pytest.approx(row["time_s"], abs=1e-4)
        assert trials[float(name.split()[0])]["runs"] == row["rounds"]
    (out / "rollout_quota_mujoco_arm.json").write_text(json.dumps(document))
    there = checkout(tmp_path / "checkout")
    (file,) = place_rose.place([out], there).files
    assert file.parent == there / "benchmarks" / "results" / "gpu"
    assert len(trial_rows("f", json.loads(file.read_text()))) == len(rows)


@pytest.mark.parametrize(
    ("chosen", "pair_only", "levels"),
    [
        ([], False, [(20, 20), (40, 40), (60, 60), (80, 80), (100, 100)]),
        ([41, 60, 97], False, [(60, 60), (100, 100)]),  # as parts of the SMs are: 97 % is all of them
        ([75], False, [(80, 75), (100, 100)]),
        ([75], True, [(100, 100)]),
    ],
)
def test_chosen_percentages_are_parts_of_the_sms(
    chosen: list[int], pair_only: bool, levels: list[tuple[int, int]]
) -> None:
    share = RolloutShare(Fifths(), "cuda:0", look=lambda _: pytest.fail("looked"))
    made = object.__new__(GreenRun)
    made.args = argparse.Namespace(levels=chosen, pair_only=pair_only)
    made.trainer = SimpleNamespace(rollout=SimpleNamespace(share=share))
    assert [(level.amount, level.setting) for level in made.probed()] == levels


class Fifths(SmShares):
    def parts(self, device: int) -> SmParts:
        return SmParts(tuple(range(20, 101, 20)))


@pytest.mark.slow
def test_quotas_of_a_rollout_in_this_process(tmp_path: Path) -> None:
    document, said = run(tmp_path / "out", "60", "--by", "green", "--coarse", "1", changes=IN_ONE_PROCESS)
    steps = document["steps"]
    assert list(steps) == ["build", "levels", "alone", "pair", "sweep_80_60_40_20"]
    assert all(step["ok"] for step in steps.values())
    assert document["config"]["rollout_process"] is False
    ((reason, left_out),) = steps["sweep_80_60_40_20"]["failed"].items()
    assert "with 60 SMs 1 of 1 kinds of matrix products are wrong" in reason
    assert left_out == [60]
    assert said.count("not started: 60 %") == 1
    assert {"100 %", "80 %", "40 %", "20 %"} == set(document["summary"])
    assert document["quotas"]["mechanism"] == "green contexts"
    rows = trial_rows("f", as_on_a_gpu(document))
    assert {row["mechanism"] for row in rows} == {"green contexts"}
    assert {row["percent"] for row in rows if row["kind"] == "trial"} == {100.0, 80.0, 40.0, 20.0}


def test_where_no_process_starts_the_reason_is_said_once_and_nothing_is_placed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    document, said = run(out, "60,40", "--levels", "60,40")
    (name,) = [k for k, step in document["steps"].items() if not step["ok"]]
    assert name == "sweep_60_40"
    error = document["steps"][name]["error"]
    assert "none of 2 processes started: " in error
    assert error.count("the device was lost") == 1
    assert said.count("the device was lost") == said.count("nothing else is tried") == 1
    assert list(document["steps"])[-1] == name
    assert "quotas" not in document
    assert "keep q0" not in said
    assert trial_rows("f", as_on_a_gpu(document)) == []
    (out / "rollout_quota_mujoco_arm.json").write_text(json.dumps(document))
    done = place_rose.place([out], checkout(tmp_path / "checkout"))
    assert not done.files
    assert "the device was lost" in next(iter(done.refused.values()))


QUOTAS: dict[str, Any] = {
    "pair": {"earlier": "rollout", "later": "simulator", "earlier_ready_s": 0.1, "later_ready_s": 0.3},
    "search": {"trials": [{"setting": 100, "amount": 132, "time_s": 0.3}]},
    "sweep": [{"setting": 52, "amount": 68, "time_s": 0.2}],
}


@pytest.mark.parametrize(
    ("damage", "wrong"),
    [
        (None, ""),
        (lambda q: q["pair"].pop("later"), "KeyError"),
        (lambda q: q["pair"].update(later_ready_s=None), "TypeError"),
        (lambda q: q["search"]["trials"][0].pop("setting"), "KeyError"),
        (lambda q: q["search"].update(trials=None), "TypeError"),
        (lambda q: q["sweep"].append("sixty"), "TypeError"),
        (lambda q: q["sweep"][0].update(time_s=-1), "ValueError: trial of all took -1 s"),
    ],
)
def test_a_damaged_result_is_not_placed_where_all_tables_would_fail(
    tmp_path: Path, damage: Callable[[Any], Any] | None, wrong: str
) -> None:
    quotas = json.loads(json.dumps(QUOTAS))
    if damage is not None:
        damage(quotas)
    document = {
        "command": "rollout_quota",
        "config": {"simulator": "mujoco_warp", "policy": "pi0", "envs": 4},
        "machine": {},
        "steps": {},
        "quotas": quotas,
    }
    out = tmp_path / "out"
    out.mkdir()
    (out / "rollout_quota_mujoco_warp.json").write_text(json.dumps(as_on_a_gpu(document)))
    done = place_rose.place([out], tmp_path / "checkout")
    if wrong:
        assert not done.files
        assert f"it is not complete: {wrong}" in next(iter(done.refused.values()))
    else:
        assert len(done.files) == 1


@pytest.mark.parametrize("levels", ["abc", "0", "101", "50,,", "-5", ""])
def test_levels_that_are_none_are_refused_before_anything_starts(tmp_path: Path, levels: str) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu.rollout_quota", "--out", str(tmp_path / "o"), *SIZES]
    done = subprocess.run(
        [*command, f"--levels={levels}"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "argument --levels: percentages of 1 to 100, with commas between" in done.stderr
    assert not (tmp_path / "o").exists()
