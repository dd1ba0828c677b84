"""A rollout with a share of a real GPU's SMs, in one process with training.

``RLPROF_REHEARSE_ON=cpu`` goes through it without parts and CUDA graphs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlprof.overlap.optimize import derive
from rlprof.workloads.embodied import record
from rlprof.workloads.embodied.contracts import GlobalStep
from rlprof.workloads.embodied.drivers import make_driver
from rlprof.workloads.embodied.graph_driver import PlacedDriver
from rlprof.workloads.embodied.optimize import embodied
from rlprof.workloads.embodied.rollout_share import RolloutShare
from rlprof.workloads.embodied.runner import measured_iteration
from tests.workloads.embodied.test_gpu import REHEARSAL, TEMPORAL, answers_agree, built, gpu, tiny  # noqa: F401
from tests.workloads.embodied.test_rollout_share import RIGHT, Parts

pytestmark = pytest.mark.gpu
CAPTURED: dict[str, Any] = {} if REHEARSAL else {"cuda_graph": True}


def share_of(trainer: Any) -> RolloutShare:
    if REHEARSAL:
        trainer.rollout.share = RolloutShare(Parts(), "cuda:0", look=lambda _: RIGHT)
    share = trainer.rollout.share
    assert isinstance(share, RolloutShare)
    return share


def test_natively_and_by_a_graph_it_trains_with_a_share(tmp_path: Path) -> None:
    config = tiny(**CAPTURED)
    with embodied(config, tmp_path, spares=1, activity="off") as here:
        share = share_of(here.trainer)
        if not REHEARSAL:
            assert here.share is share
            assert here.workload.sm_shares is share.shares
        percent = share.levels()[len(share.levels()) // 2].setting
        graph, seen = derive(here.workload.native, TEMPORAL), record.watch(here.trainer)
        for key in (None, percent, None):
            share.use(key)
            driver = PlacedDriver(here.workload, here.trainer, graph, here.resets)
            driver.prepare(GlobalStep(here.counter.step))
            done = measured_iteration(here.trainer, driver, config, seen, here.counter.step)
            driver.close()
            here.counter.step += 1
            assert done.row["semantic_differences"] == []
            assert done.row.get("cuda_graph_refused") is None
            again = record.replay_answers(
                here.trainer, done.result["trajectories"], GlobalStep(here.counter.step - 1)
            )
            answers_agree(again)
        if not REHEARSAL:
            captured = here.trainer.rollout.policy.captured
            before = captured.graphs
            share.drop(percent)
            assert 0 < captured.graphs < before


@pytest.mark.skipif(bool(REHEARSAL), reason="a processor has no SMs")
def test_a_run_has_the_share_of_its_configuration() -> None:
    config = tiny(**CAPTURED, rollout_sm_percent=50)
    with built(config) as trainer:
        share = trainer.rollout.share
        assert share is not None
        assert share.percent == 50
        seen = record.watch(trainer)
        driver = make_driver(trainer, config)
        for index in range(2):
            done = measured_iteration(trainer, driver, config, seen, index)
            assert done.row["semantic_differences"] == []
        answers_agree(record.replay_answers(trainer, done.result["trajectories"], GlobalStep(1)))
        assert trainer.rollout.policy.captured.graphs > 0
        driver.close()
