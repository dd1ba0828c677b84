"""Quotas on embodied training: without MPS a share has no effect, but everything else is real."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'rlprof[workloads]'")
pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'rlprof[workloads]'")

from rlprof.analysis.trials import Rule
from rlprof.overlap.equality import equal_bits
from rlprof.overlap.optimize import derive
from rlprof.overlap.quota.levels import Level
from rlprof.workloads.embodied.build import make_simulator
from rlprof.workloads.embodied.contracts import GlobalStep
from rlprof.workloads.embodied.exchange import Exchangeable
from rlprof.workloads.embodied.optimize import embodied
from rlprof.workloads.embodied.quotas import processes, tune
from tests.workloads.embodied.test_optimize import WHOLE, small

LEVELS = tuple(Level(sms, percent) for sms, percent in ((8, 6), (32, 25), (66, 50), (98, 75), (132, 100)))


def test_an_exchanged_simulator_goes_on_where_the_other_was() -> None:
    config = small()
    made: list[object] = []

    def make(key: object):
        made.append(key)
        return make_simulator(config)

    one, other = Exchangeable(make_simulator(config), make), make_simulator(config)
    step = GlobalStep(0)
    seen, wanted = one.reset(step, 0), other.reset(step, 0)
    for key in (50, None, 75, 50):
        one.use(key)
        actions = np.tile(np.array([0.3, -0.2, 0.1, 1.0], np.float32), (config.envs, config.chunk_steps, 1))
        seen, wanted = one.step(actions).observation, other.step(actions).observation
        assert equal_bits(tuple(seen), tuple(wanted))
    assert made == [50, 75]
    one.use(75, only=True)
    assert equal_bits(one.state_dict(), other.state_dict())
    one.close()
    other.close()


def test_spare_simulators_are_the_simulator_too() -> None:
    config = small()

    def made() -> Exchangeable:
        return Exchangeable(make_simulator(config), lambda _: make_simulator(config), beside)

    beside: tuple[Exchangeable, ...] = ()
    spare = made()
    beside = (spare,)
    with closing(made()) as simulator, closing(spare):
        workers = processes(simulator, 0, client=True)
    assert set(workers) == {"env", "env#1", "rollout", "actor", "host", "vision"}
    assert workers["env"] == workers["env#1"]  # they are no pair, and have one share


@pytest.mark.slow
def test_the_search_goes_through_and_training_stays_the_same(tmp_path: Path) -> None:
    said: list[str] = []
    config = replace(small(), workers=1)
    with embodied(config, tmp_path, activity="off") as here:
        graph = derive(here.workload.native, WHOLE)
        here.simulator._make = lambda percent: make_simulator(config)
        found = tune(
            here.workload,
            graph,
            WHOLE,
            here.simulator,
            LEVELS,
            processes(here.simulator, 0, client=True),
            trials=1,
            rule=Rule(confidence=0.9, most_pairs=1),
            sweep_every=2,
            say=said.append,
        )
        if found.search is not None:  # the simulator had the slack: the whole range, nothing measured twice
            assert [t.k for t in found.sweep] == [5, 3, 1]
            levels = [line for line in said if line.startswith("level ")]
            assert len(levels) == len({t.k for t in (*found.search.trials, *found.sweep)})
        # whoever has the slack here: it is said, and no share is kept that does not clearly pay
        assert found.level is None
        assert found.reason
        trained = here.trainer.actor.policy.state_dict()
        iterations = here.iterations
        egl = tune(
            here.workload, graph, WHOLE, here.simulator, LEVELS,
            processes(here.simulator, 0, client=False, reason="it draws through EGL"),
        )  # fmt: skip
        assert "it draws through EGL" in egl.reason
        assert here.iterations == iterations + 1
        trained = {k: v.clone() for k, v in here.trainer.actor.policy.state_dict().items()}
    with embodied(config, tmp_path, activity="off") as here:
        while here.iterations < iterations + 1:
            here.workload.iteration(None)
        assert equal_bits(dict(here.trainer.actor.policy.state_dict()), trained)
    assert any("is ready" in line for line in said)
