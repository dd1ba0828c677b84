"""The same iteration again (`benchmarks.gpu.same_iteration`): bits of training, and how others are told."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu.same_iteration import Start, logs_apart, trained, weakest, weights_apart
from rlprof.workloads.embodied.build import make_trainer
from rlprof.workloads.embodied.config import Config, configure
from rlprof.workloads.embodied.contracts import GlobalStep
from rlprof.workloads.embodied.errors import ConfigurationError
from rlprof.workloads.embodied.exchange import Exchangeable
from rlprof.workloads.embodied.record import replay_answers, watch
from tests.workloads.embodied.made import SMALL, small

torch = pytest.importorskip("torch")
#: ``RLPROF_REHEARSE_ON=cpu`` runs what a processor can.
REHEARSAL = os.environ.get("RLPROF_REHEARSE_ON")
pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'rlprof[workloads]'")


class Here:
    """A trainer as `Start` sees it, and iterations of it."""

    def __init__(self, config: Config, iterations: int = 1) -> None:
        self.config, self.trainer = config, make_trainer(config)
        self.simulator = Exchangeable(self.trainer.env.simulator, lambda _: self.trainer.env.simulator)
        self.counter = SimpleNamespace(step=0)
        self.seen = watch(self.trainer)
        for _ in range(iterations):
            self.train()

    def train(self) -> Any:
        step = self.counter.step
        result = self.trainer.iteration(GlobalStep(step))
        self.counter.step += 1
        return SimpleNamespace(result=result, record=self.seen.take(step))

    def bits(self) -> dict[str, Any]:
        return {name: tensor.clone() for name, tensor in trained(self.trainer).items()}


def equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    ("values", "iterations"),
    [
        ({}, 0),  # there are no moments yet
        ({"policy": "openvla_oft", "train": "lora"}, 1),
        ({"auto_reset": True, "staggered": True, "episode_steps": 15}, 2),
    ],
    ids=["from nothing", "adapters", "environments that go on"],
)
def test_an_iteration_that_is_trained_again_has_the_same_bits(values: Any, iterations: int) -> None:
    here = Here(small(**values), iterations)
    start = Start(here)
    before, again = start.digest(), []
    for _ in range(3):
        start.restore()
        assert start.digest() == before
        measured = here.train()
        again.append(here.bits())
        if start.native is None:
            start.native = start.outcome(measured)
        else:
            found = start.against_native(measured)
            assert (found["equality"], found["holds"]) == ("bitwise", True)
            assert found["weights_abs"] == found["losses_abs"] == found["updates_rel"] == 0
        here.train()  # whoever comes between
    assert equal(again[0], again[1])
    assert equal(again[0], again[2])
    assert start.to_dict()["iteration"] == iterations


def test_training_that_goes_on_is_another_iteration() -> None:
    here = Here(small())
    start = Start(here)
    start.native = start.outcome(here.train())
    found = start.against_native(here.train())
    assert (found["equality"], found["holds"]) == ("none", False)
    assert found["semantic_differences"]
    assert found["updates_rel"] > 0.1


def _other_order(here: Here) -> None:
    shuffle = here.trainer.actor.shuffle
    here.trainer.actor.shuffle = lambda *a: shuffle(*a)[::-1].copy()  # type: ignore[method-assign]


def _other_rate(here: Here) -> None:
    here.trainer.actor.optimizer.param_groups[0]["lr"] *= 1.5


def test_what_another_order_trains_is_told() -> None:
    here = Here(small())
    start = Start(here)
    assert "unknown" in start.against_native(None)
    start.native = start.outcome(here.train())
    start.restore()
    _other_rate(here)
    found = start.against_native(here.train())
    # the same samples, but other updates: no difference of the record, and not what `exact` promises
    assert (found["semantic_differences"], found["equality"]) == ([], "semantic record")
    assert not found["holds"]
    assert found["updates_rel"] == pytest.approx(0.5, abs=0.15)
    start.restore()
    assert start.against_native(here.train(), exact=False)["holds"]
    start.restore()
    _other_order(here)
    found = start.against_native(here.train(), exact=False)
    assert (found["equality"], found["holds"]) == ("none", False)


def test_another_process_begins_where_the_first_one_did(tmp_path: Path) -> None:
    first = Here(small(), 2)
    start = Start(first)
    start.save(tmp_path / "start.pt")
    assert [p.name for p in tmp_path.iterdir()] == ["start.pt"]
    first.train()
    wanted = first.bits()
    second = Here(small(), 1)
    later = Start(second)
    assert later.digest() != start.digest()
    later.load(tmp_path / "start.pt")
    start.restore()
    assert (later.to_dict(), later.digest()) == (start.to_dict(), start.digest())
    second.train()
    assert equal(second.bits(), wanted)
    with pytest.raises(ConfigurationError, match="another configuration"):
        Start(Here(small(learning_rate=1e-5))).load(tmp_path / "start.pt")


def test_weights_are_compared_bit_for_bit_and_by_what_training_changed() -> None:
    old, native = [torch.zeros(3), torch.ones(2, 2)], [torch.tensor([0.0, 3.0, 0.0]), torch.full((2, 2), 3.0)]
    same = weights_apart([t.clone() for t in native], native, old)
    assert same["weights_bitwise"]
    assert same["updates_rel"] == same["weights_rel"] == 0
    other = weights_apart([torch.tensor([-0.0, 3.0, 0.5]), native[1]], native, old)
    assert other["weights_differ_frac"] == pytest.approx(2 / 7)  # 0 and -0 too
    assert (other["weights_abs"], other["weights_rel"]) == (0.5, pytest.approx(0.5 / 3))
    assert other["updates_rel"] == pytest.approx(0.5 / 5)  # 3, and 2 four times
    assert other["update_abs"] == 3.0
    assert weights_apart(old, old, old)["updates_rel"] is None
    half = [torch.tensor([1.0, 2.0], dtype=torch.bfloat16)]
    assert weights_apart(half, half, half)["weights_bitwise"]


def test_losses_are_compared_by_name_and_all_that_was_logged_by_bits() -> None:
    native = [{"policy_loss": 0.0, "value_loss": 2.0, "grad_norm": 1.0}] * 2
    assert logs_apart(native, native) == {"logs_bitwise": True, "losses_abs": 0.0, "losses_rel": 0.0}
    found = logs_apart([native[0], {**native[0], "value_loss": 1.5}], native)
    assert found == {"logs_bitwise": False, "losses_abs": 0.5, "losses_rel": 0.25}
    found = logs_apart([native[0], {**native[0], "grad_norm": 1.5}], native)
    assert found == {"logs_bitwise": False, "losses_abs": 0.0, "losses_rel": 0.0}
    assert logs_apart([native[0], {**native[0], "policy_loss": 1.0}], native)["losses_rel"] is None


def test_the_weakest_equality_of_several_iterations_counts() -> None:
    row = {"weights_abs": 0.0, "weights_rel": 0.0, "updates_rel": None, "losses_abs": 0.0, "losses_rel": 0.0}
    same = {**row, "equality": "bitwise", "holds": True}
    other = {**row, "equality": "semantic record", "holds": False, "updates_rel": 0.2}
    assert weakest([]) is None
    found = weakest([same, other, same])
    assert found is not None
    assert (found["iterations"], found["equality"], found["holds"]) == (3, "semantic record", False)
    assert found["updates_rel"] == 0.2
    assert weakest([same])["updates_rel"] is None  # type: ignore[index]


@pytest.mark.gpu
@pytest.mark.parametrize("free_bytes", [1e12, 0.0], ids=["kept on the device", "kept in page-locked memory"])
def test_weights_of_a_gpu_are_put_back_where_captured_steps_find_them(free_bytes: float) -> None:
    if not REHEARSAL and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    device = REHEARSAL or "cuda:0"
    more = {"device": device, "cuda_graph": not REHEARSAL, "train": "expert", "keep_prefix": True}
    here = Here(configure("tiny", **{**SMALL, **more, "timeout_s": 60.0}), 2)
    start = Start(here, free_bytes)
    assert start.on_host is not bool(free_bytes)
    trainer, policy, before = here.trainer, here.trainer.rollout.policy, start.digest()
    start.restore()
    start.native = start.outcome(here.train())
    for k in range(3):
        if k == 2:  # captured steps hold the weights where they were
            trainer.rollout.offload()
            trainer.actor.offload()
            trainer.rollout.reload(device)
            trainer.actor.reload(device)
        start.restore()
        assert start.digest() == before
        captured = policy.captured
        policy.captured = captured if k != 1 else None
        found = start.against_native(here.train())
        policy.captured = captured
        assert found["holds"], found
        assert found["updates_rel"] < 0.3, found
        assert trainer.rollout.refused is None
    answers = trainer.iteration(GlobalStep(5))["trajectories"]
    assert replay_answers(trainer, answers, GlobalStep(5)).passed
