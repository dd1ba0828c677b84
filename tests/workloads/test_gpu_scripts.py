"""Scripts of `benchmarks/gpu`: who finds which packages, and what of a call's time its end takes."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT, python_path

SCRIPTS = ROOT / "benchmarks" / "gpu"


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """Surroundings in which Python says what it is told, and the machine is not touched."""
    folder = tmp_path / "bin"
    folder.mkdir()
    says = '#!/bin/sh\necho "python3 PYTHONPATH=$PYTHONPATH $*"\n'
    for name in ("ldconfig", "nvidia-smi", "free", "nproc", "dpkg"):
        (folder / name).write_text("#!/bin/sh\n")
    (folder / "python3").write_text(says)
    for program in folder.iterdir():
        program.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {
        **os.environ,
        "PATH": path,
        "SITES": str(tmp_path),
        "WARP_DEST": str(tmp_path / "warp"),
        "PYTHONPATH": "/callers",
    }


def bash(code: str, surroundings: dict[str, str], cwd: Path = ROOT) -> str:
    done = subprocess.run(
        ["bash", "-uc", code],
        cwd=cwd,
        env=surroundings,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SOURCED = f"here={ROOT} simulator=mujoco_arm limit_all=100; . {SCRIPTS}/embodied_setup.sh; SECONDS=0; "


def test_packages_of_the_caller_and_wheels_for_all_are_found(bare: dict[str, str], tmp_path: Path) -> None:
    for folder in (".whl", ".mujoco_arm"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "one.whl").touch()
    said = bash(f'out={tmp_path}; {SOURCED} machine_ready; echo "$PYTHONPATH"', bare, cwd=tmp_path)
    own, shared = tmp_path / "site_mujoco_arm", tmp_path / "site_shared"
    assert said.splitlines()[-1] == f"{ROOT}:{own}:{shared}:/callers"
    assert re.search(rf"--target {shared} \.whl/one\.whl", said)
    assert re.search(rf"--target {own} \.mujoco_arm/one\.whl", said)


def test_processes_of_the_tests_find_wheels_for_all(bare: dict[str, str], tmp_path: Path) -> None:
    """Those of one simulator are of the tests' own process alone."""
    file = "tests/overlap/quota/test_gpu.py"
    said = bash(f"{SCRIPTS}/workload_tests.sh {tmp_path}/out {file}", bare)
    (line,) = [line for line in said.splitlines() if line.endswith(file)]
    assert line.startswith(f"python3 PYTHONPATH={ROOT}:{tmp_path}/site_shared:/callers -c")
    assert f" {tmp_path}/site_mujoco_arm -q" in line


def test_the_end_of_a_call_takes_ten_seconds_of_it(bare: dict[str, str], tmp_path: Path) -> None:
    code = 'timeout() { echo "timeout $*"; }; rest; rest 30; step last "$(left)" work; step short 20 work'
    said = bash(f"out={tmp_path}; {SOURCED} {code}", bare).splitlines()
    assert said[:2] == ["94", "64"]
    # SIGTERM with time for what is written then, SIGKILL before time is up
    assert [x for x in said if x.startswith("timeout")] == ["timeout -k 3 97 work", "timeout -k 10 20 work"]
    for script in ("optimize", "levers", "rollout_quota", "embodied"):
        text = (SCRIPTS / f"{script}.sh").read_text()
        assert '--seconds "$(rest' in text
        program = (SCRIPTS / f"{script}.py").read_text()
        assert re.search(r'"--reserve", type=float, default=4\.0', program)


def test_nobody_takes_the_packages_of_the_caller_from_a_child() -> None:
    """They may lie in a folder that is on PYTHONPATH alone; another Python has packages of its own."""
    lost = re.compile(r"""PYTHONPATH(": |", )str\(|export PYTHONPATH=(?!.*\$\{(PYTHONPATH|callers):\+)""")
    others = ("simulators", "test_gpu_drawing.py", Path(__file__).name)
    files = [*(ROOT / "tests").rglob("*.py"), *SCRIPTS.glob("*.py"), *SCRIPTS.glob("*.sh")]
    found = [
        str(f.relative_to(ROOT))
        for f in files
        if lost.search(f.read_text(encoding="utf-8", errors="replace"))
    ]
    assert [f for f in found if not any(other in f for other in others)] == []


def test_the_path_of_a_child_has_what_the_caller_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"/a{os.pathsep}/b")
    assert python_path(Path("/mine")).split(os.pathsep) == ["/mine", str(ROOT), "/a", "/b"]
    monkeypatch.delenv("PYTHONPATH")
    assert python_path() == str(ROOT)


@pytest.mark.parametrize("limit", ["0", "-20"])
def test_a_step_without_time_is_left_out(bare: dict[str, str], tmp_path: Path, limit: str) -> None:
    said = bash(f"out={tmp_path}; {SOURCED} step one {limit} echo ran || true; ls {tmp_path}", bare)
    assert "== one: LEFT OUT, no time" in said  # a limit of 0 would be none
    assert "one.log" not in said


@pytest.mark.parametrize("seconds", ["abc", "5m", "-1", "1.5"])
def test_seconds_that_are_none_are_refused(bare: dict[str, str], tmp_path: Path, seconds: str) -> None:
    done = subprocess.run(
        ["bash", SCRIPTS / "optimize_cli.sh", tmp_path / "out", "mujoco_arm"],
        env={**bare, "SECONDS_IN_ALL": seconds}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == f"== SECONDS_IN_ALL={seconds}: give whole seconds\n"


@pytest.mark.parametrize("seconds", ["030", "140"])
def test_a_search_that_has_no_time_is_left_out(bare: dict[str, str], tmp_path: Path, seconds: str) -> None:
    done = subprocess.run(
        ["bash", SCRIPTS / "optimize_cli.sh", tmp_path / "out", "mujoco_arm"],
        env={**bare, "SECONDS_IN_ALL": seconds}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "== optimise_cli: LEFT OUT" in done.stdout
    assert "timeout" not in done.stdout + done.stderr
