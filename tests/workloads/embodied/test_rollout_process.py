"""A rollout worker in a process of its own: the same bits, and nothing hangs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlprof.overlap.equality import equal_bits
from rlprof.workloads.embodied import checkpoint, record, rollout_serve, runner
from rlprof.workloads.embodied.build import make_rollout_worker, make_trainer
from rlprof.workloads.embodied.config import Config
from rlprof.workloads.embodied.contracts import GlobalStep
from rlprof.workloads.embodied.drivers import make_driver
from rlprof.workloads.embodied.errors import (
    ConfigurationError,
    RolloutDiedError,
    RolloutError,
    RolloutTimeoutError,
)
from rlprof.workloads.embodied.nodes import wrap_trainer
from rlprof.workloads.embodied.offload import tensors_of
from rlprof.workloads.embodied.rollout_process import RolloutProcess
from rlprof.workloads.embodied.trainer import Trainer
from tests.workloads.embodied.made import small
from tests.workloads.embodied.simulators.test_processes import interrupted_after_sending
from tests.workloads.embodied.test_failures import served

torch = pytest.importorskip("torch")
pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'rlprof[workloads]'")


CONFIG = small(rollout_process=True, train="expert", policy="gr00t")


def made() -> Iterator[Trainer]:
    trainer = make_trainer(CONFIG)
    yield trainer
    trainer.rollout.close()
    trainer.env.simulator.close()


#: One process for the tests that leave it as it was.
trainer = pytest.fixture(made, scope="module")
own = pytest.fixture(made)


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_training_is_the_same_bit_for_bit_and_goes_on_after_a_checkpoint(tmp_path) -> None:
    def losses(out: Path) -> list[Any]:
        return [[r[k] for k in ("policy_loss", "value_loss", "grad_norm")] for r in runner.metrics.read(out)]

    runner.run(small(schedule="hybrid-pipe"), tmp_path / "one", 3)
    config = small(schedule="hybrid-pipe", rollout_process=True)
    runner.run(config, tmp_path / "own", 2)
    rows = runner.run(config, tmp_path / "own", 3, resume=True).rows
    assert [r["iteration"] for r in rows] == [2]
    assert rows[0]["semantic_differences"] == []
    found = [losses(tmp_path / name / runner.metrics.NAME) for name in ("one", "own")]
    assert found[0] == found[1]
    one, own = ((tmp_path / name / record.NAME).read_text() for name in ("one", "own"))
    assert one == own


def test_weights_go_to_it_and_come_back(trainer: Trainer) -> None:
    driver = make_driver(trainer, CONFIG)  # colocated, as a task graph
    done = runner.measured_iteration(trainer, driver, CONFIG, record.watch(trainer), 0)
    assert done.row["semantic_differences"] == []
    again = record.replay_answers(trainer, done.result["trajectories"], GlobalStep(0))
    assert again.bitwise
    assert again.passed
    trainer.rollout.sync_model_from_actor(trainer.actor)
    mine = trainer.rollout.policy.state_dict()
    other = dict(trainer.actor.policy.named_parameters())
    assert set(mine) == {n for n, p in other.items() if p.requires_grad} < set(other)
    assert equal_bits(mine, {n: other[n].detach() for n in mine})
    changed = record.replay_answers(trainer, done.result["trajectories"], GlobalStep(0))
    assert not changed.bitwise  # it answers with the new ones
    assert changed.evaluated > 10 * again.evaluated  # and evaluates with them


def test_bits_of_half_precision_survive_the_way() -> None:
    tensors = [torch.randn(5).bfloat16(), torch.randn(3, 2), torch.randn(()), torch.randn(7).half()]
    memory = np.zeros(rollout_serve.size_bytes(tensors), np.uint8)
    rollout_serve.put(tensors, memory)
    copies = [torch.empty_like(t) for t in tensors]
    rollout_serve.take(copies, memory)
    assert equal_bits(copies, tensors)
    assert rollout_serve.digest(copies) == rollout_serve.digest(tensors)
    copies[0][3] += 1
    assert rollout_serve.digest(copies) != rollout_serve.digest(tensors)


def test_a_process_that_hangs_or_dies_is_an_error_that_says_how(own: Trainer) -> None:
    other = RolloutProcess(CONFIG, own.env.spec, own.actor)
    os.kill(other.process_id, signal.SIGKILL)
    with pytest.raises(RolloutDiedError, match="was ended by SIGKILL during take_weights"):
        other.sync_model_from_actor(own.actor)
    assert gone(other.process_id)
    with pytest.raises(RolloutError, match="is no more"):
        other.sync_model_from_actor(own.actor)
    own.rollout.timeout_s = 0.5
    os.kill(own.rollout.process_id, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(RolloutTimeoutError, match=r"take_weights within .* it was stopped \(process"):
        own.rollout.sync_model_from_actor(own.actor)
    assert time.monotonic() - began < 40
    assert gone(own.rollout.process_id)


def test_what_fails_in_it_is_the_error_here_and_it_goes_on(trainer: Trainer) -> None:
    seen = trainer.env.bootstrap_step(GlobalStep(0), 0)
    with pytest.raises(RolloutError, match="the rollout's process: "):
        trainer.rollout._call("somersault")
    assert len(trainer.rollout.predict(seen, GlobalStep(0), 0, 0).actions) == 4


def changed(actor: Any) -> Iterator[Any]:
    """An actor whose weights are not those that its seed makes, as on a device of another kind."""
    before = {name: value.clone() for name, value in actor.policy.state_dict().items()}
    with torch.no_grad():
        for parameter in actor.policy.parameters():
            parameter.mul_(1.5).add_(0.01)
    yield actor
    actor.policy.load_state_dict(before)


@pytest.fixture
def other_actor(trainer: Trainer) -> Iterator[Any]:
    """The actor of a device of another kind."""
    yield from changed(trainer.actor)


def answers(config: Config, trainer: Trainer, rollout: Any) -> tuple[Any, Any]:
    """Of a worker, and of one in this process that has the weights of the actor."""
    here = make_rollout_worker(replace(config, rollout_process=False), trainer.env.simulator, trainer.actor)
    seen = trainer.env.bootstrap_step(GlobalStep(0), 0)
    one, other = (worker.predict(seen, GlobalStep(0), 0, 1) for worker in (rollout, here))
    return one._replace(prefix=None), other._replace(prefix=None)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_process_that_made_other_weights_is_given_the_actors(
    trainer: Trainer, other_actor: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """In pieces that are smaller than a parameter."""
    config, loads = replace(CONFIG, seed=seed), []
    native = RolloutProcess._call

    def call(self: RolloutProcess, name: str, **values: Any) -> Any:
        loads.append((name, values))
        return native(self, name, **values)

    monkeypatch.setattr(RolloutProcess, "_call", call)
    rollout = RolloutProcess(config, trainer.env.spec, other_actor, piece_bytes=16_008)
    try:
        handed = [values["pieces"] for name, values in loads if name == "take_pieces"]
        largest = max(p.numel() * p.element_size() for p in other_actor.policy.parameters())
        assert largest > 2 * 16_008
        assert len(handed) > 10
        assert all(sum(4 * count for *_, count in load) <= 16_008 for load in handed)
        every = sum(t.numel() * t.element_size() for t in tensors_of(other_actor.policy))
        assert rollout.handed_over_bytes == every
        one, other = answers(config, trainer, rollout)
        assert equal_bits(one, other)
        # it has them also where training goes on from weights of elsewhere
        with torch.no_grad():
            next(p for p in other_actor.policy.parameters() if not p.requires_grad)[0] += 1
        assert not equal_bits(*answers(config, trainer, rollout))
        rollout.take_all(other_actor)
        one, other = answers(config, trainer, rollout)
        assert equal_bits(one, other)
    finally:
        rollout.close()


def test_a_process_that_made_the_same_weights_is_given_none(trainer: Any) -> None:
    assert trainer.rollout.handed_over_bytes == 0


@pytest.mark.parametrize(
    "what",
    ["hangs", pytest.param("dies", marks=pytest.mark.slow), "interrupted", "changes", "other sizes"],
)
def test_a_process_that_does_not_get_the_weights_is_ended(
    trainer: Trainer, other_actor: Any, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    native, made, calls = RolloutProcess._call, [], []

    def call(self: RolloutProcess, name: str, **values: Any) -> Any:
        made.append(self.process_id)
        calls.append(name)
        if calls.count("take_pieces") == 2 and what in ("hangs", "dies"):
            self.timeout_s = 0.5 if what == "hangs" else 60.0
            os.kill(self.process_id, signal.SIGSTOP if what == "hangs" else signal.SIGKILL)
        elif calls.count("take_pieces") == 2 and what == "interrupted":
            raise KeyboardInterrupt
        elif len(calls) == 1 and what == "changes":  # of a parameter that goes later
            with torch.no_grad():
                list(other_actor.policy.parameters())[-1].add_(1)
        return native(self, name, **values)

    kinds: dict[str, tuple[type[BaseException], str]] = {
        "hangs": (RolloutTimeoutError, "did not answer to take_pieces within 0.5 s"),
        "dies": (RolloutDiedError, "was ended by SIGKILL during take_pieces"),
        "interrupted": (KeyboardInterrupt, "^$"),
        "changes": (RolloutError, "other weights than the actor, also after .* Next: let nothing train"),
        "other sizes": (RolloutError, "of other sizes than the actor's. Next: start it with"),
    }
    kind, says = kinds[what]
    config = CONFIG
    if what == "other sizes":
        config = replace(config, policy="pi0")
    monkeypatch.setattr(RolloutProcess, "_call", call)
    before = served()
    with pytest.raises(kind, match=says):
        RolloutProcess(config, trainer.env.spec, other_actor, piece_bytes=100_000)
    assert served() <= before
    assert all(map(gone, made))
    assert bool(made) == (what != "other sizes")


def test_a_run_goes_on_with_the_weights_of_its_checkpoint_wherever_they_were_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that are not trained, too: those of another GPU, which this one does not make."""
    made = []

    def elsewhere(config: Config) -> Trainer:
        """As `make_trainer` on a device that makes other weights."""
        made.append(make_trainer(config))
        for _ in changed(made[-1].actor):
            made[-1].rollout.take_all(made[-1].actor)
            return made[-1]
        raise AssertionError

    monkeypatch.setattr(runner, "make_trainer", elsewhere)
    runner.run(CONFIG, tmp_path, 1)
    monkeypatch.undo()
    trainer: Any = make_trainer(CONFIG)
    try:
        checkpoint.load(tmp_path / checkpoint.NAME, trainer, CONFIG.to_dict())
        assert trainer.rollout.handed_over_bytes > 0
        trainer.rollout.sync_model_from_actor(trainer.actor)
        one, other = answers(CONFIG, trainer, trainer.rollout)
        assert equal_bits(one, other)
    finally:
        trainer.rollout.close()
        trainer.env.simulator.close()


@given(
    sizes=st.lists(st.tuples(st.integers(0, 70), st.sampled_from([1, 2, 4, 8])), max_size=8),
    room=st.integers(16, 200),
)
def test_pieces_hold_every_number_once_and_no_block_more_than_it_can(
    sizes: list[tuple[int, int]], room: int
) -> None:
    loads = rollout_serve.pieces(sizes, room)
    found: dict[int, list[int]] = {k: [] for k in range(len(sizes))}
    for load in loads:
        assert load
        assert sum(-(-count * sizes[k][1] // 16) * 16 for k, _, count in load) <= room
        for k, first, count in load:
            assert count > 0
            found[k] += range(first, first + count)
    assert found == {k: list(range(count)) for k, (count, _) in enumerate(sizes)}
    assert len(loads) <= 1 + sum(-(-count * size // 16) * 16 for count, size in sizes) // (
        room // 16 * 16 - 15
    )


@given(st.data())
def test_what_is_changed_or_swapped_has_another_digest(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([torch.int16, torch.bfloat16, torch.float32, torch.int64, torch.bool]))
    count = data.draw(st.sampled_from([2, 4095, 4096, 4097, 70_000]))
    tensor = (torch.arange(count) % 2).to(kind)
    first, second = data.draw(st.integers(0, count - 1)), data.draw(st.integers(0, count - 1))
    swapped, changed = tensor.clone(), tensor.clone()
    swapped[first], swapped[second] = tensor[second], tensor[first]
    changed[first] = 1 - tensor[first].to(torch.int64)
    same = bool(tensor[first] == tensor[second])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollout_serve, "_ROWS", data.draw(st.sampled_from([3, 2048])))
        ((one, shaped), (other,), (another,)) = map(
            rollout_serve.digest, ([tensor, tensor.view(1, -1)], [swapped], [changed])
        )
    assert one == shaped
    assert (one == other) == same
    assert one != another


def test_its_phases_cannot_be_wrapped(trainer: Trainer) -> None:
    with pytest.raises(ConfigurationError, match="a process of its own"):
        wrap_trainer(trainer)


def test_an_interruption_between_an_order_and_its_answer_does_not_part_them(own: Trainer) -> None:
    """Another answer than the one asked for would go unnoticed: both have the same shape."""
    rollout: Any = own.rollout
    seen = own.env.bootstrap_step(GlobalStep(0), 0)
    first, second = (rollout.predict(seen, GlobalStep(0), 0, chunk).actions for chunk in (0, 1))
    assert not equal_bits(first, second)
    with pytest.MonkeyPatch.context() as patch:
        interrupted_after_sending(patch, 1)
        with pytest.raises(KeyboardInterrupt):
            rollout.predict(seen, GlobalStep(0), 0, 0)
    for _ in range(2):
        assert equal_bits(rollout.predict(seen, GlobalStep(0), 0, 1).actions, second)
        assert equal_bits(rollout.predict(seen, GlobalStep(0), 0, 0).actions, first)
    with pytest.MonkeyPatch.context() as patch:
        interrupted_after_sending(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            rollout.predict(seen, GlobalStep(0), 0, 0)
    with pytest.raises(RolloutError, match="predict was interrupted"):
        rollout.predict(seen, GlobalStep(0), 0, 0)
    assert gone(rollout.process_id)
