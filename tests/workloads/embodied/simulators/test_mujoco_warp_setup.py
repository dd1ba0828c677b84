"""The script that makes an environment for `mujoco_warp`: what it refuses, what it leaves; its check."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType

import pytest

from rlprof.workloads.embodied.simulators import mujoco_warp_engine
from tests.conftest import ROOT

TOOLS = ROOT / "tools"


def setup(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """Exit code and lines; nothing is installed: pip finds no index."""
    done = subprocess.run(
        [str(TOOLS / "setup_warp.sh"), *arguments], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}, timeout=60,
    )  # fmt: skip
    return done.returncode, [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("arguments", [(), ("",), ("--help",), ("a", "b", "c")])
def test_without_a_folder_it_says_how_it_is_used(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    code, lines = setup(tmp_path, *arguments)
    assert code == 2
    assert [line.partition(" ")[0] for line in lines] == ["#"] * 3
    assert "setup_warp.sh VENV [PYTHON]" in lines[1]


def test_what_cannot_be_done_is_one_line(tmp_path: Path) -> None:
    old = program(tmp_path / "old", 'if [ "$1" = --version ]; then echo Python 3.9.1; else exit 1; fi')
    (tmp_path / "a_file").write_text("")
    bare = program(tmp_path / "bare", 'if [ "$1" = -m ]; then echo "No module named venv"; exit 1; fi')
    for arguments, said in (
        (("there", "no_such_python"), "no Python called no_such_python; name one of 3.10 or later"),
        (("there", str(old)), "Python 3.9.1 cannot run mujoco-warp 4.0.0; name a Python of 3.10 or later"),
        (("a_file", sys.executable), "a_file is a file; name a folder that is to be made"),
        (("there", str(bare)), "no environment can be made in there: No module named venv"),
    ):
        code, lines = setup(tmp_path, *arguments)
        assert (code, len(lines)) == (1, 1), lines
        assert lines[0].startswith(f"setup_warp: {said}")
    assert not (tmp_path / "there").exists()


def test_an_environment_that_works_is_left_as_it_is(tmp_path: Path) -> None:
    program(tmp_path / "a b" / "bin" / "python", f'echo "$*" >> "{tmp_path}/ran"; echo works')
    code, lines = setup(tmp_path, "a b", sys.executable)
    assert code == 0
    assert lines[-1].endswith(f"already there; export RLPROF_WARP_PYTHON={tmp_path}/a b/bin/python")
    check = f"{TOOLS}/check_warp.py"
    assert (tmp_path / "ran").read_text().splitlines() == [f"{check} --versions", check]


def test_where_nothing_can_be_installed_it_says_so(tmp_path: Path) -> None:
    program(tmp_path / "there" / "bin" / "python", 'case "$*" in *--version) ;; *) exit 1 ;; esac')
    code, lines = setup(tmp_path, "there", sys.executable)
    assert code == 1
    assert "pip could not install what" in lines[-1]


def test_what_is_installed_is_what_the_simulator_names() -> None:
    lines = (TOOLS / "warp-requirements.txt").read_text().splitlines()
    pinned = [line for line in lines if "==" in line and not line.startswith("#")]
    assert pinned == mujoco_warp_engine._PACKAGES.split()


@pytest.fixture
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_warp", TOOLS / "check_warp.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_check_names_other_versions_and_what_is_missing(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = {"mujoco-warp": "4.0.0", "mujoco": "3.3.7"}

    def version(name: str) -> str:
        if name not in there:
            raise PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(check, "version", version)
    monkeypatch.setattr(sys, "argv", ["check_warp.py", "--versions"])
    assert check.main() == 1
    assert (
        capsys.readouterr().out
        == "mujoco is 3.3.7, 4.0.0 is needed; warp-lang is missing, 1.19.0 is needed\n"
    )
    there |= {"mujoco": "4.0.0", "warp-lang": "1.19.0"}
    assert check.main() == 0
    monkeypatch.setattr(sys, "argv", ["check_warp.py"])
    for fallen, code, said in (
        (
            ("cpu", -1.2e-4, -1.2e-4),
            0,
            "mujoco-warp works: mujoco-warp 4.0.0, mujoco 4.0.0, warp-lang 1.19.0;",
        ),
        (("cpu", 0.0, -1.2e-4), 1, "a step on cpu moves a ball by 0 m, MuJoCo by -0.00012 m"),
        (("cpu", float("nan"), -1.2e-4), 1, "a step on cpu moves a ball by nan m"),
    ):
        monkeypatch.setattr(check, "fallen", lambda found=fallen: found)
        assert check.main() == code
        assert capsys.readouterr().out.startswith(said)


def test_a_step_that_fails_is_one_line(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise RuntimeError("no\ndriver")

    monkeypatch.setattr(check, "wrong", lambda _: [])
    monkeypatch.setattr(check, "fallen", fails)
    monkeypatch.setattr(sys, "argv", ["check_warp.py"])
    assert check.main() == 1
    assert capsys.readouterr().out == "a step fails: RuntimeError: no driver\n"
