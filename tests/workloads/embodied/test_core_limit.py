"""The lever `core-turns`: where it is tried, and that nothing but time changes."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'rlprof[workloads]'")
pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'rlprof[workloads]'")

import torch

from rlprof import cores
from rlprof.overlap.equality import equal_bits
from rlprof.overlap.optimize import activity, derive
from rlprof.overlap.optimize.graph_file import GraphFile
from rlprof.reproduce.raw import machine
from rlprof.unavailable import Unavailable
from rlprof.workloads.embodied import build, graph_driver, overlap_levers
from rlprof.workloads.embodied.build import make_simulator
from rlprof.workloads.embodied.conditions import hardware
from rlprof.workloads.embodied.config import Config, configure
from rlprof.workloads.embodied.errors import ConfigurationError, SimulatorError
from rlprof.workloads.embodied.levers import Workers, kept_levers, wanted_levers
from rlprof.workloads.embodied.optimize import embodied
from rlprof.workloads.embodied.overlap_levers import CoreLimit
from rlprof.workloads.embodied.runner import run
from rlprof.workloads.embodied.simulators.core_turns import CoreTurns
from tests.workloads.embodied.made import small
from tests.workloads.embodied.test_levers import here
from tests.workloads.embodied.test_optimize import WHOLE


def test_turns_on_the_cores_are_tried_where_simulators_have_more_processes_than_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overlap_levers, "usable_cores", lambda: 4)

    def beside(spares: int, cores: CoreTurns | None, **values: Any) -> Any:
        made = here(configure("tiny", **values), trainer=SimpleNamespace(env=SimpleNamespace(cores=cores)))
        made.simulator = SimpleNamespace(beside=[None] * spares)
        return made

    turns = CoreTurns()
    assert CoreLimit(beside(1, turns, workers=4)).others() == (4,)
    assert CoreLimit(beside(1, turns, workers=4, simulator_cores=4)).others() == (0,)
    assert CoreLimit(beside(1, turns, workers=4, simulator_cores=3)).others() == (4, 0)
    wanted = wanted_levers("core-turns=2/3/0", {})["core-turns"]
    assert CoreLimit(beside(1, turns, workers=2), wanted).others() == (2, 3)
    why = "the 4 processes of all simulators have a core each, of 4"
    assert CoreLimit(beside(1, turns, workers=2)).others() == Unavailable(why)
    assert CoreLimit(beside(0, turns, workers=4)).others() == Unavailable(why)
    assert "on the cores" in str(CoreLimit(beside(1, None, simulator="mujoco_warp", workers=1)).others())
    fixed = wanted_levers(None, {"simulator_cores": 0})["core-turns"]
    said = CoreLimit(beside(1, turns, workers=4), fixed).others()
    assert said == Unavailable("--simulator-cores is given, which fixes it")
    for wrong in ("few", "9" * 20, "9" * 5000):
        for name in ("core-turns", "nice"):
            with pytest.raises(ConfigurationError, match=f"{name}={wrong[:20]}"):
                wanted_levers(f"{name}={wrong}", {})


def test_a_quota_of_the_container_counts_wherever_cores_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cores, activity):
        monkeypatch.setattr(module, "granted_cores", lambda *_: 1.5)
    assert hardware(configure("tiny"))["cores"] == machine()["cores"] == 2
    assert Workers(here(configure("tiny", workers=3))).others() == (1, 2)
    made = here(configure("tiny", workers=3), trainer=SimpleNamespace(env=SimpleNamespace(cores=CoreTurns())))
    made.simulator = SimpleNamespace(beside=[None])
    assert CoreLimit(made).others() == (2,)
    program = activity.ProgramCores(period_s=0.001)
    try:
        found = program.between(time.monotonic_ns(), time.monotonic_ns() + 1_000_000)
    finally:
        program.close()
    assert found is not None
    assert found.source == "the program's share of 1.5 cores"


def test_processes_take_turns_on_the_cores_with_the_same_bits(tmp_path: Path) -> None:
    with embodied(small(workers=2), tmp_path, activity="off", spares=1) as found:
        lever, turns = CoreLimit(found), found.trainer.env.cores
        assert turns is not None
        processes = (*found.simulator.process_ids, *found.simulator.beside[0].process_ids)
        graph = derive(found.workload.native, WHOLE)
        lever.use(1)
        assert turns.places == 1
        found.workload.iteration(graph)
        lever.use(0)
        assert turns.places == lever.present == 0
        lever.keep(1)
        assert turns.places == lever.present == found.config.simulator_cores == 1
        assert (*found.simulator.process_ids, *found.simulator.beside[0].process_ids) == processes
        found.workload.iteration(graph)
        after = {k: v.clone() for k, v in found.trainer.actor.policy.state_dict().items()}
        trained = found.iterations
    run(small(), tmp_path / "plain", trained)
    saved = torch.load(tmp_path / "plain" / "checkpoint.pt", weights_only=True)
    assert equal_bits(dict(saved["actor"]), after)


def test_spare_simulators_of_a_run_by_a_graph_have_the_same_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    had: list[CoreTurns | None] = []

    def made(config: Config, cores: CoreTurns | None = None) -> Any:
        had.append(cores)
        assert config.simulator_cores == 1
        if len(had) == 2:
            raise SimulatorError("enough is known")
        return make_simulator(config, cores)

    for module in (build, graph_driver):
        monkeypatch.setattr(module, "make_simulator", made)
    facts = {"spares": 1, "levers": {"simulator_cores": 1}}
    GraphFile("iteration", (), "native", "graph", facts).write(tmp_path / "graph.json")
    config = small(workers=2, **kept_levers(tmp_path / "graph.json"))
    with pytest.raises(SimulatorError, match="enough is known"):
        run(config, tmp_path / "run", 3, graph=tmp_path / "graph.json")
    of_first, of_spare = had
    assert of_first is not None
    assert of_first is of_spare
    assert of_first.places == 1


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"workers": 2, "simulator_cores": -1}, "-1 cores"),
        ({"workers": 2, "simulator_cores": 10**20}, f"{10**20} cores"),
        ({"workers": 0, "simulator_cores": 2}, "no processes of the simulator mujoco_arm"),
        ({"workers": 1, "simulator": "mujoco_warp", "simulator_cores": 2}, "no processes of the simulator"),
    ],
)
def test_a_limit_that_nothing_can_keep_is_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        configure("tiny", **values)
