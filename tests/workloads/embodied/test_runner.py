"""Runs: metrics, checkpoints that survive, resumption bit for bit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rlprof.errors import OutputError
from rlprof.overlap.equality import equal_bits
from rlprof.workloads.embodied import build, checkpoint, metrics, runner
from rlprof.workloads.embodied.errors import CheckpointError, SimulatorDiedError
from tests.workloads.embodied.made import small

pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'rlprof[workloads]'")

SAME = ("return_mean", "success_frac", "policy_loss", "value_loss", "approx_kl", "grad_norm", "updates")


def losses(out: Path) -> list[dict[str, Any]]:
    return [{k: row[k] for k in SAME} for row in metrics.read(out / metrics.NAME)]


def saved(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(out / checkpoint.NAME, weights_only=True)
    return {k: dict(v) if k in ("actor", "rollout") else v for k, v in found.items()}


@pytest.mark.parametrize(
    "options",
    [{}, {"schedule": "hybrid-pipe", "auto_reset": True, "staggered": True, "policy": "openvla_oft"}],
    ids=["colocated", "hybrid-pipe"],
)
def test_a_run_that_was_broken_off_goes_on_bit_for_bit(tmp_path, monkeypatch, options) -> None:
    config = small(**options)
    runner.run(config, tmp_path / "whole", 4, checkpoint_every=2)
    iterate = runner.measured_iteration

    def killed(*args: Any) -> Any:
        if args[-1] == 3:
            raise KeyboardInterrupt
        return iterate(*args)

    monkeypatch.setattr(runner, "measured_iteration", killed)
    with pytest.raises(KeyboardInterrupt):
        runner.run(config, tmp_path / "broken", 4, checkpoint_every=2)
    assert len(losses(tmp_path / "broken")) == 3  # one more than the checkpoint knows
    monkeypatch.setattr(runner, "measured_iteration", iterate)
    summary = runner.run(config, tmp_path / "broken", 4, checkpoint_every=2, resume=True)
    assert [row["iteration"] for row in summary.rows] == [2, 3]
    assert losses(tmp_path / "broken") == losses(tmp_path / "whole")
    assert equal_bits(saved(tmp_path / "broken"), saved(tmp_path / "whole"))


def test_a_row_says_what_was_measured(tmp_path) -> None:
    config = small(schedule="colocated-pipe")
    (row,) = runner.run(config, tmp_path, 1).rows
    assert row["simulator_steps"] == 4 * 2 * 2 * 5
    assert row["simulator_steps_per_s"] == pytest.approx(row["simulator_steps"] / row["wall_s"])
    assert set(row["phases_s"]) == {
        "sync_weights",
        "generate_rollouts",
        "cal_adv_and_returns",
        "actor_training",
    }
    assert 0.5 * row["wall_s"] < sum(row["phases_s"].values()) <= row["wall_s"] * 1.01
    assert json.loads((tmp_path / "config.json").read_text())["schedule"] == "colocated-pipe"


def test_a_run_that_is_there_is_not_replaced_unasked(tmp_path) -> None:
    runner.run(small(), tmp_path, 1)
    before = (tmp_path / metrics.NAME).read_text()
    with pytest.raises(OutputError, match="a run is there already"):
        runner.run(small(), tmp_path, 1)
    assert (tmp_path / metrics.NAME).read_text() == before
    runner.run(small(seed=1), tmp_path, 1, force=True)
    assert (tmp_path / metrics.NAME).read_text() != before


def test_a_simulator_that_dies_leaves_the_last_checkpoint(tmp_path, monkeypatch) -> None:
    import os
    import signal

    config = small(workers=2)
    make = runner.make_trainer
    trainers = []
    monkeypatch.setattr(runner, "make_trainer", lambda c: trainers.append(make(c)) or trainers[-1])
    iterate = runner.measured_iteration

    def dies(*args: Any) -> Any:
        if args[-1] == 2:
            os.kill(trainers[-1].env.simulator.process_ids[1], signal.SIGKILL)
        return iterate(*args)

    monkeypatch.setattr(runner, "measured_iteration", dies)
    with pytest.raises(SimulatorDiedError, match="SIGKILL during"):
        runner.run(config, tmp_path, 3, checkpoint_every=1)
    assert not any(Path(f"/proc/{p}").exists() for p in trainers[-1].env.simulator.process_ids)
    monkeypatch.setattr(runner, "measured_iteration", iterate)
    assert saved(tmp_path)["iteration"] == 2
    assert len(runner.run(config, tmp_path, 3, resume=True).rows) == 1


def test_a_checkpoint_that_knows_fewer_options_is_as_if_they_had_been_left_away(tmp_path) -> None:
    config = small(policy="pi0", train="expert")
    runner.run(config, tmp_path, 1)
    content = saved(tmp_path)
    for name in ("keep_prefix", "painters"):  # of an earlier version
        del content["configuration"][name]
    torch.save(content, tmp_path / checkpoint.NAME)
    with pytest.raises(CheckpointError, match="keep_prefix False -> True"):
        runner.run(replace(config, keep_prefix=True), tmp_path, 2, resume=True)
    assert len(runner.run(config, tmp_path, 2, resume=True).rows) == 1


def test_a_full_disk_leaves_the_earlier_checkpoint(tmp_path, monkeypatch) -> None:
    runner.run(small(), tmp_path, 1)
    before = (tmp_path / checkpoint.NAME).read_bytes()

    def full(_content: Any, file: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    trainer = build.make_trainer(small())
    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(CheckpointError, match="No space left"):
        checkpoint.save(tmp_path / checkpoint.NAME, trainer, {}, 5)
    assert (tmp_path / checkpoint.NAME).read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "checkpoint.pt",
        "config.json",
        "metrics.jsonl",
        "semantic_record.jsonl",
    ]


def test_what_torch_advises_about_a_damaged_checkpoint_is_not_passed_on(tmp_path) -> None:
    for content in (b"\0" * 5000, b"PK\x03\x04 no longer whole", b""):
        (tmp_path / checkpoint.NAME).write_bytes(content)
        with pytest.raises(CheckpointError, match="cannot be read") as raised:
            checkpoint.load(tmp_path / checkpoint.NAME, None, {})  # type: ignore[arg-type]
        said = str(raised.value)
        assert "arbitrary code" not in said
        assert "Re-running" not in said
        assert said.endswith("Next: begin anew, with --force in place of --resume")


def test_checkpoints_that_do_not_fit_are_refused_before_anything_starts(tmp_path, monkeypatch) -> None:
    runner.run(small(), tmp_path, 1)

    def started(*_: Any) -> None:
        raise AssertionError("simulator and policy were made")

    monkeypatch.setattr(runner, "make_trainer", started)
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        runner.run(small(), tmp_path / "new", 1, resume=True)
    assert not (tmp_path / "new").exists()
    with pytest.raises(CheckpointError, match="seed 0 -> 1"):
        runner.run(small(seed=1), tmp_path, 2, resume=True)
    (tmp_path / checkpoint.NAME).write_bytes(b"PK\x03\x04 no longer whole")
    with pytest.raises(CheckpointError, match="cannot be read"):
        runner.run(small(), tmp_path, 2, resume=True)


def test_a_line_that_was_broken_off_is_left_out(tmp_path) -> None:
    path = tmp_path / metrics.NAME
    for i in range(3):
        metrics.append(path, {"iteration": i, "loss": float("nan")})
    with path.open("a") as file:
        file.write('{"iteration": 3, "lo')
    assert [r["iteration"] for r in metrics.read(path)] == [0, 1, 2]
    assert metrics.read(path)[0]["loss"] is None
    metrics.cut(path, 2)
    assert [r["iteration"] for r in metrics.read(path)] == [0, 1]


def test_a_run_can_be_captured(tmp_path) -> None:
    import rlprof

    runner.run(small(), tmp_path / "run", 1, capture=tmp_path / "run.rlprof")
    trace = rlprof.read(tmp_path / "run.rlprof")
    names = (
        set(trace.ranges.collect()["name"].to_list())
        if hasattr(trace.ranges, "collect")
        else set(trace.ranges["name"])
    )
    assert {"iteration", "predict", "env_interact_step", "training_step"} <= names


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_it_learns(tmp_path, algorithm: str) -> None:
    from rlprof.workloads.embodied.config import configure

    rows = runner.run(configure("tiny", algorithm=algorithm), tmp_path, 12).rows
    first, last = (sum(r["return_mean"] for r in part) / 3 for part in (rows[:3], rows[-3:]))
    assert last > first + 0.1
