"""Images read back together, without what cannot be seen, have the bits of those drawn one by one and whole.

With LIBERO's Python, and whichever GL it has: MuJoCo of other versions is not what `Painter` draws with.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from rlprof.workloads.embodied.simulators.libero_start import PYTHON_VARIABLE
from tests.conftest import ROOT

#: Two tasks, with what an image can be made of: shadows, a mirror, things one can see through, haze, a sky,
#: a light at a camera that moves.
MODEL = """
<mujoco>
  <visual>
    <headlight diffuse="0.5 0.5 0.5"/><map haze="0.5"/><quality offsamples="4" shadowsize="256"/>
  </visual>
  <asset>
    <texture name="sky" type="skybox" builtin="gradient" rgb1="0.3 0.5 0.7" rgb2="0 0 0.2"
             width="64" height="64"/>
    <texture name="squares" type="2d" builtin="checker" rgb1="0.9 0.2 0.1" rgb2="0.1 0.3 0.2"
             width="64" height="64"/>
    <material name="floor" texture="squares" texrepeat="7 7" reflectance="0.4"/>
  </asset>
  <worldbody>
    <light pos="0 1 3" dir="0 -0.3 -1" directional="true" castshadow="CAST"/>
    <camera name="agentview" pos="0 -2 1.2" xyaxes="1 0 0 0 0.5 1" fovy="50"/>
    <geom type="box" size="3 3 0.01" material="floor" group="1"/>
    <geom type="box" size="0.1 0.1 0.3" pos="-0.5 0.2 0.3" rgba="0.2 0.4 0.9 1" group="0"/>
    BALLS
    <body pos="0 0 0.6">
      <joint axis="0 0 1"/><joint axis="1 0 0"/>
      <geom type="SHAPE" size="0.2 0.15 0.1" rgba="0.9 0.8 0.1 1" group="1"/>
      <geom type="sphere" size="0.1" pos="0.35 0 0.1" rgba="0.1 0.8 0.3 0.4" group="1"/>
      <site name="mark" pos="-0.3 0 0" size="0.06" rgba="1 0 1 0.7"/>
      <light pos="0 0 0.5" dir="0 0.5 -1" mode="track" castshadow="CAST"/>
      <camera name="robot0_eye_in_hand" pos="0.1 -0.9 0.4" xyaxes="1 0 0 0 0.4 1" fovy="75"/>
    </body>
  </worldbody>
</mujoco>
"""
#: Both ways for many options; the last line says what came out.
CODE = """
import json, sys
import numpy as np
from rlprof.workloads.embodied.errors import RenderError
from rlprof.workloads.embodied.simulators.libero_render import Painter, Picture, choose_gl
backend, source, image = sys.argv[1], sys.argv[2], int(sys.argv[3])
choose_gl(backend)
try:
    import mujoco
    mujoco.gl_context.GLContext(8, 8).free()
except Exception as error:
    print(json.dumps(f"{type(error).__name__}: {error}"))
    raise SystemExit
if source == "libero":
    from rlprof.workloads.embodied.simulators.libero_env import TaskEnv
    def make():
        return {task: env.model for task, env in envs.items()}
    envs = {task: TaskEnv(task) for task in range(3)}
    views, draw = {}, np.random.default_rng(0)
    for task, env in envs.items():
        record = env.start(0)
        _, _, seen, _ = env.advance(record, draw.uniform(-1, 1, (5, 7)))
        views[task] = [env.view(record), *seen]
else:
    def built(k):
        # balls everywhere: behind the cameras, at the edges of images, seen in the mirror alone
        ball = '<geom type="sphere" size="%.2f" pos="%.2f %.2f %.2f" rgba="%.1f %.1f %.1f 1" group="1"/>'
        d = np.random.default_rng(k)
        places = ((d.uniform(0.05, 0.3), *d.uniform(-3, 3, 2), d.uniform(0, 3)) for _ in range(40))
        balls = "".join(ball % (*place, *d.random(3)) for place in places)
        if k == 1:  # more than a scene of MuJoCo holds if it is not told, and all out of sight
            balls += '<geom type="box" size="0.01 0.01 0.01" pos="0 -9 1" group="1"/>' * 1000
        text = source.replace("SHAPE", shapes[k]).replace("BALLS", balls)
        return mujoco.MjModel.from_xml_string(text.replace("CAST", "true" if k == 0 else "false"))
    def make():
        return {k: built(k) for k in range(3)}
    shapes, draw = ("box", "ellipsoid", "capsule"), np.random.default_rng(0)
    views = {k: [(*draw.uniform(-1, 1, 2), draw.uniform(0, 1)) for _ in range(6)] for k in range(3)}
    views = {k: [np.array(v) for v in each] for k, each in views.items()}
found = []
for options in json.loads(sys.argv[4]):
    tasks = options.get("contexts") or [k % 3 for k in range(18)]
    # more than a buffer holds; what goes to the same place is drawn over
    rows = [k for k in range(len(tasks)) for _ in range(1 + k % 2)]
    images, hidden = [], 0
    for changed in ({"at_once": False, "sparing": False}, {"sparing": False}, {}):
        painter = Painter(make(), image=image, **changed, **options)
        outs = np.zeros((len(tasks), options["cameras"], image, image, 3), np.uint8)
        each = [Picture(row, tasks[row], views[tasks[row]][k % 6], outs[row]) for k, row in enumerate(rows)]
        for part in (each, [], each):  # twice: MuJoCo's first image of all is another one
            painter.paint(part)
        for task, data in painter._data.items():
            camera = painter._models[task].camera("agentview").id
            hidden += len(painter._visible[task].hidden(data, camera))
        painter.close()
        images.append(outs)
    some = {picture.out.tobytes() for picture in each}
    wanted = {(p.task, p.view.tobytes()) for p in {p.row: p for p in each}.values()}
    found.append([all(np.array_equal(images[0], i) for i in images), len(some), len(wanted), hidden])
print(json.dumps(found))
"""
OPTIONS: list[dict[str, Any]] = [
    {"cameras": 2, "shadows": True, "contexts": []},
    {"cameras": 2, "shadows": False, "contexts": [1, 0, 1]},
    {"cameras": 1, "shadows": True, "contexts": [1, 0, 1]},
    {"cameras": 1, "shadows": False, "contexts": []},
]


def told(code: str, *arguments: str) -> Any:
    """What code says in its last line, in LIBERO's Python."""
    python = os.environ.get(PYTHON_VARIABLE)
    if not python:
        pytest.skip(f"{PYTHON_VARIABLE} names no Python with LIBERO: tools/setup_libero.sh makes one")
    done = subprocess.run(
        [python, "-c", code, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0", "LP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    if isinstance(answer, str):
        pytest.skip(answer)
    return answer


@pytest.mark.parametrize("backend", ["egl", "osmesa"])
def test_neither_reading_back_together_nor_leaving_out_changes_a_bit(backend: str) -> None:
    found = told(CODE, backend, MODEL, "48", json.dumps(OPTIONS))
    assert [equal for equal, *_ in found] == [True] * len(OPTIONS)
    for _, images, wanted, hidden in found:
        assert images == wanted
        assert hidden > 20
    assert {wanted for _, _, wanted, _ in found} == {3, 12}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["egl", "osmesa"])
def test_nor_does_it_with_tasks_of_libero(backend: str) -> None:
    some = [{**o, "shadows": shadows} for o in OPTIONS[:2] for shadows in (True, False)]
    found = told(CODE, backend, "libero", "64", json.dumps(some))
    assert [equal for equal, *_ in found] == [True] * len(some)
    assert all(images == wanted for _, images, wanted, _ in found)


#: Two painters take turns, and every call of GL and MuJoCo fails once; the last line: what came out.
FAILING = """
import json, sys
import numpy as np
from rlprof.workloads.embodied.simulators import libero_render
from rlprof.workloads.embodied.simulators.libero_render import Painter, Picture, choose_gl
choose_gl("egl")
try:
    import mujoco
    mujoco.gl_context.GLContext(8, 8).free()
except Exception as error:
    print(json.dumps(f"{type(error).__name__}: {error}"))
    raise SystemExit
text = sys.argv[1].replace("SHAPE", "box").replace("CAST", "false")
balls = '<geom size="0.2" pos="%d 0.5 0.5" group="1"/><geom size="0.2" pos="%d -3 1" group="1"/>'
models = [mujoco.MjModel.from_xml_string(text.replace("BALLS", balls % (k, k))) for k in range(2)]
before = [model.geom_group.copy() for model in models]
painters = [Painter({0: model}, cameras=2, image=33, shadows=False) for model in models]
views = np.random.default_rng(0).uniform(0, 1, (9, 3))
def draw(which):
    out = np.zeros((9, 2, 33, 33, 3), np.uint8)
    painters[which].paint([Picture(k, 0, views[k], out[k]) for k in range(9)])
    return out
class Failing:
    def __init__(self, inner, call):
        self.inner, self.call, self.left = inner, call, 4
    def __getattr__(self, name):
        found = getattr(self.inner, name)
        if name != self.call:
            return found
        def fails(*values):
            self.left -= 1
            if not self.left:
                raise RuntimeError("the device was lost")
            return found(*values)
        return fails
draw(0), draw(1)  # MuJoCo's first image of all is another one
first = [draw(0), draw(1)]
found = {"both": not np.array_equal(*first), "turns": np.array_equal(draw(0), first[0])}
for call in ("mj_kinematics", "mjv_updateScene", "mjr_setBuffer", "mjr_render", "glBlitFramebuffer"):
    painter = painters[0]
    owner, name = (painter._places[-1, 0].sheet, "_gl") if call[0] == "g" else (painter, "_mujoco")
    whole = getattr(owner, name)
    setattr(owner, name, Failing(whole, call))
    try:
        draw(0)
    except RuntimeError:
        setattr(owner, name, whole)
        groups = all(np.array_equal(m.geom_group, b) for m, b in zip(models, before))
        found[call] = groups and np.array_equal(draw(0), first[0]) and np.array_equal(draw(1), first[1])
for painter in painters * 2:
    painter.close()
print(json.dumps(found))
"""


def test_painters_of_one_thread_take_turns_and_what_failed_leaves_nothing_behind() -> None:
    found = told(FAILING, MODEL)
    assert len(found) == 7
    assert [name for name, fine in found.items() if not fine] == []


def test_a_buffer_is_no_larger_than_gl_can_make() -> None:
    code = """
import json
from rlprof.workloads.embodied.simulators.libero_render import choose_gl
choose_gl("egl")
try:
    import mujoco
    gl = mujoco.gl_context.GLContext(8, 8)
except Exception as error:
    print(json.dumps(f"{type(error).__name__}: {error}"))
    raise SystemExit
from OpenGL import GL
from rlprof.workloads.embodied.simulators.libero_sheet import Sheet
gl.make_current()
model = mujoco.MjModel.from_xml_string("<mujoco/>")
context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_50)
sheet = Sheet(context, rows=10**6, cameras=1, size=16)
shape = sheet.read(sheet.rows).shape
print(json.dumps([sheet.rows, list(shape), int(GL.glGetIntegerv(GL.GL_MAX_RENDERBUFFER_SIZE))]))
sheet.close()
context.free()
gl.free()
"""
    rows, shape, most = told(code)
    assert rows == most // 16
    assert shape == [rows, 1, 16, 16, 3]
