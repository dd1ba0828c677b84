"""One pass of MuJoCo for each physics step has the bits of three: plain MuJoCo, a loop like robosuite's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlprof.workloads.embodied.simulators.libero_passes import one_pass

mujoco = pytest.importorskip("mujoco")

#: An arm that hits a loose ball, which rolls against a wall.
MODEL = """
<mujoco>
  <option timestep="0.002" integrator="{integrator}" cone="elliptic"/>
  <worldbody>
    <geom type="plane" size="2 2 .1"/>
    <geom type="box" size=".02 .5 .1" pos=".55 0 .1"/>
    <body pos="0 0 .1">
      <joint name="turn" axis="0 0 1" damping=".1"/>
      <geom type="capsule" fromto="0 0 0 .3 0 0" size=".03" mass="1"/>
      <body pos=".3 0 0">
        <joint axis="0 0 1" damping=".1"/>
        <geom type="capsule" fromto="0 0 0 .2 0 0" size=".03" mass=".5"/>
        <site name="tip" pos=".2 0 0"/>
      </body>
    </body>
    <body pos=".42 .15 .05"><freejoint/><geom type="sphere" size=".05" mass=".2"/></body>
  </worldbody>
  <actuator><motor joint="turn" ctrlrange="-9 9"/></actuator>
  <sensor><force site="tip"/></sensor>
</mujoco>
"""


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MuJoCo writes its warnings into a file of the current folder."""
    monkeypatch.chdir(tmp_path)


class Sim:
    """What robosuite's MjSim is here: the bindings' objects, wrapped, and two methods."""

    def __init__(self, integrator: str = "Euler", api: Any = mujoco) -> None:
        self.api = api
        model = mujoco.MjModel.from_xml_string(MODEL.format(integrator=integrator))
        self.model = SimpleNamespace(_model=model)
        self.data = SimpleNamespace(_data=mujoco.MjData(model))

    def forward(self) -> None:
        self.api.mj_forward(self.model._model, self.data._data)

    def step(self) -> None:
        self.api.mj_step(self.model._model, self.data._data)

    def bits(self) -> bytes:
        """All that the next step begins from."""
        out = np.zeros(mujoco.mj_stateSize(self.model._model, mujoco.mjtState.mjSTATE_INTEGRATION))
        mujoco.mj_getState(self.model._model, self.data._data, out, mujoco.mjtState.mjSTATE_INTEGRATION)
        return out.tobytes()


class Counted:
    """MuJoCo, with the passes in the order that they were called."""

    def __init__(self, version: str | None = None) -> None:
        self.__version__ = version or mujoco.__version__
        self.called: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name in ("mj_forward", "mj_step", "mj_step1", "mj_step2"):
            self.called.append(name)
        return getattr(mujoco, name)


def substep(sim: Sim) -> bytes:
    """As robosuite's: forward, a controller that does so again and reads, the step; what is seen after it."""
    model, data = sim.model._model, sim.data._data
    sim.forward()
    sim.forward()
    tip = data.site("tip").xpos
    jacobian = np.zeros((3, model.nv))
    mujoco.mj_jacSite(model, data, jacobian, None, 0)
    mass = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, mass, data.qM) if hasattr(data, "qM") else mujoco.mj_fullM(model, data, mass)
    data.ctrl[0] = 40 * (0.4 - tip[1]) + data.qfrc_bias[0] - jacobian[1] @ data.qvel + mass[0, 0]
    sim.step()
    seen = [data.xpos, data.xquat, data.site_xpos, data.qacc, data.sensordata, data.contact.geom]
    return sim.bits() + b"".join(np.ascontiguousarray(part).tobytes() for part in seen)


@pytest.mark.parametrize("integrator", ["Euler", "implicit", "implicitfast", "RK4"])
def test_the_bits_are_those_of_three_passes(integrator: str) -> None:
    ours, theirs = Sim(integrator), Sim(integrator)
    hits = 0
    for _ in range(30):
        with one_pass(mujoco, ours):
            for _ in range(10):
                assert substep(ours) == substep(theirs)
                hits += ours.data._data.ncon > 1
    assert hits > 10  # with contacts of more than the ball on the floor


def test_it_is_one_pass() -> None:
    api = Counted()
    sim = Sim(api=api)
    with one_pass(api, sim):
        for _ in range(3):
            substep(sim)
    assert api.called == ["mj_step1", "mj_step2"] * 3
    substep(sim)
    assert api.called[6:] == ["mj_forward", "mj_forward", "mj_step"]


@pytest.mark.parametrize(("integrator", "version"), [("RK4", None), ("Euler", "3.3.5"), ("Euler", "2.3.7")])
def test_where_bits_would_change_it_is_three(integrator: str, version: str | None) -> None:
    """Runge-Kutta has no two parts; older MuJoCo moves the warm start of the solver with every pass."""
    api = Counted(version)
    sim = Sim(integrator, api)
    with one_pass(api, sim):
        substep(sim)
    assert api.called == ["mj_forward", "mj_forward", "mj_step"]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -2e10, 1e200])
@pytest.mark.parametrize("field", ["qpos", "qvel"])
def test_a_state_that_blew_up_begins_anew_as_it_would(field: str, wrong: float) -> None:
    ours, theirs = Sim(), Sim()
    for sim in (ours, theirs):
        for _ in range(10):
            substep(sim)
        getattr(sim.data._data, field)[1] = wrong
    with one_pass(mujoco, ours):
        for _ in range(10):
            assert substep(ours) == substep(theirs)
    assert ours.data._data.time == pytest.approx(0.02)  # it did begin anew


def test_an_acceleration_that_blew_up_too() -> None:
    ours, theirs = Sim(), Sim()
    for sim in (ours, theirs):
        sim.data._data.qfrc_applied[0] = 1e12
    with one_pass(mujoco, ours):
        for _ in range(5):
            assert substep(ours) == substep(theirs)
    assert ours.data._data.warning[mujoco.mjtWarning.mjWARN_BADQACC].number


def test_forward_after_the_step_is_a_new_one() -> None:
    """Positions that were set between two steps are seen."""
    ours, theirs = Sim(), Sim()
    for sim in (ours, theirs):
        with one_pass(mujoco, sim) if sim is ours else one_pass(Counted("2.3.7"), sim):
            substep(sim)
            sim.data._data.qpos[0] = 0.3
            sim.forward()
            assert sim.data._data.site("tip").xpos[1] > 0.1
            sim.step()
            sim.step()  # and one without forward before it
    assert ours.bits() == theirs.bits()


def interrupted(sim: Sim) -> None:
    sim.forward()
    raise ValueError("in the middle")


def test_the_methods_are_back_afterwards() -> None:
    sim = Sim()
    with one_pass(mujoco, sim):
        assert {"forward", "step"} <= vars(sim).keys()
    assert not {"forward", "step"} & vars(sim).keys()
    with pytest.raises(ValueError, match="in the middle"), one_pass(mujoco, sim):
        interrupted(sim)
    assert not {"forward", "step"} & vars(sim).keys()
    assert sim.step.__func__ is Sim.step  # type: ignore[attr-defined]
