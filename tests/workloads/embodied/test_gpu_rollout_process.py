"""A rollout worker in a process of its own with half of a real GPU's SMs, which makes other random numbers.

``RLPROF_REHEARSE_ON=cpu`` goes through it without a GPU and a daemon, with an actor of other weights.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from rlprof.overlap.quota.daemon import mps
from rlprof.overlap.quota.daemons import BINARY, foreign_daemons
from rlprof.workloads.embodied.actor import Actor
from rlprof.workloads.embodied.build import make_algorithm
from rlprof.workloads.embodied.contracts import GlobalStep
from rlprof.workloads.embodied.offload import tensors_of
from rlprof.workloads.embodied.policies import make
from rlprof.workloads.embodied.rollout_process import RolloutProcess
from rlprof.workloads.embodied.rollout_serve import digest
from rlprof.workloads.embodied.rollout_worker import RolloutWorker
from rlprof.workloads.embodied.sharing import PERCENTAGE
from tests.workloads.embodied.made import observation, spec
from tests.workloads.embodied.test_gpu import DEVICE, REHEARSAL, TOLERANCE, tiny

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

#: Images of so many patches that their positions are more numbers than half of an H200 makes in one go.
IMAGE = 1280


@pytest.fixture
def half(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mapping[str, str]]:
    """Variables of a process that has half of the SMs."""
    if REHEARSAL:
        yield {}
        return
    if not torch.cuda.is_available() or shutil.which(BINARY) is None:
        pytest.skip(f"there is no CUDA device, or no {BINARY}")
    if foreign_daemons():
        pytest.skip("somebody else's MPS daemon runs here")
    with tempfile.TemporaryDirectory(prefix="rlprof-mps-") as short:
        monkeypatch.setenv("RLPROF_MPS_FOLDER", str(Path(short) / "d"))
        with mps(0) as daemon:
            yield {**daemon.environment(), PERCENTAGE: "50"}


def test_with_half_of_the_sms_it_has_the_actors_weights_and_answers(half: Mapping[str, str]) -> None:
    config = tiny(rollout_process=True, train="expert", cameras=1, image=IMAGE)
    simulator = spec(2, cameras=1, image=IMAGE)
    actor = Actor(
        make(config.policy_size, simulator, seed=config.seed, device=DEVICE),
        make_algorithm(config),
        learning_rate=config.learning_rate,
        global_batch=config.global_batch,
        micro_batch=config.micro_batch,
    )
    wanted = tensors_of(actor.policy)
    if REHEARSAL:
        with torch.no_grad():
            wanted[0].add_(1)
    here = RolloutWorker(make(config.policy_size, simulator, seed=config.seed + 1, device=DEVICE))
    here.policy.seed = config.seed
    here.take_all(actor)
    rollout = RolloutProcess(config, simulator, actor, environment=half, piece_bytes=100_000)
    try:
        assert rollout.handed_over_bytes > 0, "half of the SMs make the same weights: this tests nothing"
        rollout.take_all(actor)
        assert rollout._call("digest")["digest"] == digest(wanted)
        seen = observation(2, cameras=1, image=IMAGE)
        answers = [w.predict(seen, GlobalStep(0), 0, 0) for w in (rollout, here)]
        for name, most in TOLERANCE.items():
            one, other = (getattr(answer, name) for answer in answers)
            assert np.abs(one - other).max() <= most, name
    finally:
        rollout.close()
