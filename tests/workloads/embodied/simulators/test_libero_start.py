"""Starting LIBERO without LIBERO: what is missing is said; drawing by another process, with stand-ins."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlprof.workloads.embodied.config import configure
from rlprof.workloads.embodied.contracts import GlobalStep
from rlprof.workloads.embodied.errors import (
    ConfigurationError,
    MissingPackageError,
    RenderError,
    SimulatorDiedError,
    SimulatorError,
    SimulatorTimeoutError,
)
from rlprof.workloads.embodied.simulators import libero_start
from rlprof.workloads.embodied.simulators.processes import SimulatorProcesses
from tests.cli import conftest
from tests.conftest import ROOT

cli = conftest.cli

MODULE = "tests.workloads.embodied.simulators.viewed"
SURROUNDINGS = {"PYTHONPATH": str(ROOT)}


@pytest.fixture
def no_libero(monkeypatch) -> None:
    """Rlprof's own Python is tried, and has no LIBERO, or an MuJoCo that is too new for it."""
    monkeypatch.delenv(libero_start.PYTHON_VARIABLE, raising=False)


def gone(processes: tuple[int, ...]) -> bool:
    return not any(Path(f"/proc/{p}").exists() for p in processes)


@pytest.mark.usefixtures("no_libero")
@pytest.mark.parametrize("rendering", ["egl", "egl-one"])
def test_without_libero_the_error_says_how_to_get_it(rendering: str) -> None:
    with pytest.raises(
        (MissingPackageError, RenderError), match=r"LIBERO does not|makes no images here"
    ) as caught:
        libero_start.start(2, workers=1, rendering=rendering)
    if isinstance(caught.value, MissingPackageError):
        assert "tools/setup_libero.sh" in str(caught.value)
        assert "RLPROF_LIBERO_PYTHON" in str(caught.value)
    assert str(caught.value).count("\n") == 0


@pytest.mark.usefixtures("no_libero")
def test_the_command_line_says_it_in_one_line(cli: conftest.Cli, tmp_path) -> None:
    done = cli("run", "embodied", "--simulator", "libero", "--preset", "exact", "--out", tmp_path / "o")
    assert done.code == 2
    # where loading takes its time, a line before it says that no iteration is done yet
    (line,) = (x for x in done.err.strip().splitlines() if "no iteration is done yet" not in x)
    assert "tools/setup_libero.sh" in line
    assert not (tmp_path / "o").exists()


def test_a_python_that_is_not_there(monkeypatch) -> None:
    monkeypatch.setenv(libero_start.PYTHON_VARIABLE, "/nowhere/python")
    with pytest.raises(SimulatorError, match="/nowhere/python"):
        libero_start.start(1, workers=1)


def test_sizes_and_names_that_do_not_fit() -> None:
    with pytest.raises(ConfigurationError, match=r"'glfw'.*egl, egl-one, osmesa"):
        libero_start.start(2, rendering="glfw")
    with pytest.raises(ConfigurationError, match="3 environments do not make groups of 2"):
        libero_start.start(3, group=2)
    with pytest.raises(ConfigurationError, match="chunks of 7"):
        libero_start.start(2, chunk_steps=7)
    with pytest.raises(ConfigurationError, match="11 tasks"):
        libero_start.start(2, tasks=11)
    with pytest.raises(ConfigurationError, match="mujoco_arm has no rendering"):
        configure("tiny", rendering="egl")
    for rendering, painters in (("egl", 2), ("egl-one", 0), ("egl-one", 3)):
        with pytest.raises(ConfigurationError, match=f"{painters} painters for 2 .* drawn by {rendering}"):
            libero_start.start(2, rendering=rendering, painters=painters)
    for rendering, number in ((None, 1), ("osmesa", 1), ("egl-one", 0), ("egl-one", 65)):
        with pytest.raises(ConfigurationError, match=rf"{number} painters for 64 .*--rendering egl-one"):
            configure("tiny", simulator="libero", rendering=rendering, painters=number)
    with pytest.raises(ConfigurationError, match="1 painters"):
        configure("tiny", painters=1)
    assert configure("tiny", simulator="libero", rendering="egl-one", painters=64).painters == 64
    assert configure("tiny", simulator="libero", rendering="egl-one", tasks=10).tasks == 10


def drawn_apart(dies_of: int = -1, timeout_s: float = 60.0, painters: int = 1) -> libero_start.DrawnApart:
    around: dict[str, Any] = {"environment": SURROUNDINGS, "timeout_s": timeout_s}
    physics = SimulatorProcesses(f"{MODULE}:Viewed", 5, workers=2, **around)
    drawer = SimulatorProcesses(f"{MODULE}:Drawer", 5, workers=painters, **around, dies_of=dies_of)
    return libero_start.DrawnApart(physics, drawer)


@pytest.mark.parametrize("painters", [1, 2, 5])
def test_what_some_processes_draw_is_what_the_others_simulate(painters: int) -> None:
    with drawn_apart(painters=painters) as simulator:
        assert (simulator.spec.cameras, simulator.spec.view_dim, simulator.spec.envs) == (1, 0, 5)
        first = simulator.reset(GlobalStep(0), 0)
        assert first.images is not None
        assert first.images.reshape(5, 3).tolist() == [[k, 0, k // painters] for k in range(5)]
        some = np.array([4, 1, 2])
        seen = simulator.step(np.zeros((3, 2, 3), np.float32), some).observation
        assert seen.images.reshape(3, 3).tolist() == [[k, 1, k // painters] for k in some]
        state = simulator.state_dict()
        assert state["count"].tolist() == [0, 1, 1, 0, 1]
        simulator.load_state_dict({"count": state["count"] + 1})
        assert simulator.render().images.reshape(5, 3)[:, 1].tolist() == [1, 2, 2, 1, 2]
        processes = simulator.process_ids
    assert gone(processes)
    assert len(processes) == 2 + painters


@pytest.mark.parametrize("painters", [1, 2])
def test_when_one_that_draws_dies_all_end(painters: int) -> None:
    simulator = drawn_apart(dies_of=1, painters=painters)
    simulator.reset(GlobalStep(0), 0)
    with pytest.raises(SimulatorDiedError, match="code 3 during paint"):
        simulator.step(np.zeros((5, 2, 3), np.float32))
    assert gone(simulator.process_ids)
    with pytest.raises(SimulatorError, match="is no more"):
        simulator.reset(GlobalStep(0), 0)
    simulator.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_when_one_that_simulates_dies_or_hangs_all_end(how: signal.Signals) -> None:
    simulator = drawn_apart(timeout_s=1.0)
    simulator.reset(GlobalStep(0), 0)
    os.kill(simulator.process_ids[0], how)
    with pytest.raises((SimulatorDiedError, SimulatorTimeoutError), match="process 0"):
        simulator.step(np.zeros((5, 2, 3), np.float32))
    assert gone(simulator.process_ids)
    simulator.close()


def archive(folder: Path, python: str) -> Path:
    (folder / "in").mkdir()
    (folder / "in/site").mkdir()
    (folder / "in/site/found_here.py").write_text("VALUE = 5\n")
    (folder / "in/licences").mkdir()
    (folder / "in/gl").mkdir()
    (folder / "in/gl/libNoSuchLoader.so.1").write_bytes(b"")
    (folder / "in/content.json").write_text(json.dumps({"python": python}))
    with tarfile.open(folder / "a.tar.xz", "w:xz") as tar:
        for path in sorted((folder / "in").iterdir()):
            tar.add(path, path.name)
    return folder / "a.tar.xz"


def unpack(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "tools/unpack_libero.sh"), *map(str, arguments)],
        env={**os.environ, "LIBERO_CHECK": "0"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_archive_is_unpacked_and_its_python_named(tmp_path) -> None:
    made = archive(tmp_path, f"{sys.version_info.major}.{sys.version_info.minor}")
    for _ in range(2):  # again changes nothing
        done = unpack(made, tmp_path / "there", sys.executable)
        assert done.returncode == 0, done.stderr
        name, _, python = done.stdout.splitlines()[-1].partition("=")
        assert name == libero_start.PYTHON_VARIABLE
        code = "import found_here, os; print(found_here.VALUE, os.environ['LD_LIBRARY_PATH'])"
        shown = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
        assert shown.startswith("5 ")
        assert f"{tmp_path}/there/gl" in shown
        assert (tmp_path / "there/gl/libNoSuchLoader.so.1").exists()
    assert sorted(p.name for p in (tmp_path / "there").iterdir() if p.name.startswith(".")) == []


def test_archives_that_cannot_be_used(tmp_path) -> None:
    assert "no archive" in unpack(tmp_path / "none", tmp_path / "there").stderr
    (tmp_path / "half").write_bytes(b"\xfd7zXZ\0 half of it")
    done = unpack(tmp_path / "half", tmp_path / "there", sys.executable)
    assert done.returncode == 1
    assert "is damaged" in done.stderr
    done = unpack(archive(tmp_path, "2.7"), tmp_path / "there", sys.executable)
    assert done.returncode == 1
    assert "is for Python 2.7" in done.stderr


@pytest.mark.parametrize(("slow", "times"), [("Libero", 1), ("LiberoPainter", 1), ("LiberoPainter", 2)])
def test_an_interruption_while_either_starts_leaves_neither(slow: str, times: int) -> None:
    """Ctrl-C, and again: in a program of its own, since signals are for the main thread."""
    code = f"""
import os, signal, threading, time
from rlprof.workloads.embodied.simulators import libero_start
made = []
class Started:
    def __init__(self, what, *_, **__):
        time.sleep(0.8 if what.endswith(":{slow}") else 0)
        self.closed = False
        made.append(self)
    def close(self):
        self.closed = True
libero_start.SimulatorProcesses = Started
for k in range({times}):
    threading.Timer(0.2 + 0.1 * k, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    libero_start.start(1, chunk_steps=1, episode_steps=1, rendering="egl-one")
except KeyboardInterrupt:
    time.sleep(1)
    print(all(one.closed for one in made))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("True\n", "")
