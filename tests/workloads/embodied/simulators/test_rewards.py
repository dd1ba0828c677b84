"""Rewards: nothing is gained twice, and parts of a chunk add up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rlprof.overlap.equality import equal_bits
from rlprof.workloads.embodied.config import configure
from rlprof.workloads.embodied.contracts import GlobalStep
from rlprof.workloads.embodied.errors import ConfigurationError
from rlprof.workloads.embodied.simulators.rewards import firsts, gains, is_dense

POTENTIALS = arrays(np.float64, (3, 6), elements=st.floats(0, 1))


@given(POTENTIALS, st.integers(0, 6))
def test_what_is_gained_is_how_far_it_got(potential: np.ndarray, cut: int) -> None:
    nothing = np.zeros(3)
    gained, best = gains(nothing, potential)
    assert (gained >= 0).all()
    assert np.allclose(gained.sum(axis=1), potential.max(axis=1))
    assert np.array_equal(best, potential.max(axis=1))
    first, between = gains(nothing, potential[:, :cut])
    second, last = gains(between, potential[:, cut:])
    assert np.array_equal(np.column_stack([first, second]), gained)
    assert np.array_equal(last, best)


@given(arrays(np.bool_, (3, 6)), arrays(np.bool_, 3))
def test_success_is_rewarded_once(done: np.ndarray, before: np.ndarray) -> None:
    rewards, now = firsts(before, done)
    assert np.array_equal(now, before | done.any(axis=1))
    assert np.array_equal(rewards.sum(axis=1), now & ~before)
    for row in np.flatnonzero(rewards.any(axis=1)):
        assert rewards[row].argmax() == done[row].argmax()


def test_names() -> None:
    assert is_dense("dense")
    assert not is_dense("sparse")
    with pytest.raises(ConfigurationError, match=r"'shaped'.*sparse, dense"):
        is_dense("shaped")
    with pytest.raises(ConfigurationError, match="no reward is called 'shaped'"):
        configure("tiny", reward="shaped")


@pytest.mark.usefixtures("mujoco")
def test_the_arm_without_gains_is_paid_for_success_alone() -> None:
    from rlprof.workloads.embodied.simulators.mujoco_arm import MujocoArm
    from tests.workloads.embodied.simulators.test_mujoco_arm import scripted

    dense, sparse = MujocoArm(8), MujocoArm(8, reward="sparse")
    seen = dense.reset(GlobalStep(0), 0)
    assert equal_bits(sparse.reset(GlobalStep(0), 0), seen)
    sums = np.zeros((2, 8))
    for _ in range(8):
        actions = scripted(seen.state)
        results = dense.step(actions), sparse.step(actions)
        assert equal_bits(*((r.observation, r.dones, r.success) for r in results))
        sums += [r.rewards.sum(axis=1) for r in results]
        seen = results[0].observation
    success = results[1].success
    assert success.any()
    assert np.array_equal(sums[1], success)
    assert (sums[0] > sums[1]).all()
