"""What importing the workloads brings in."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.cli import conftest
from tests.conftest import ROOT, python_path

cli = conftest.cli

HEAVY = {"torch", "mujoco", "polars", "pandas", "transformers", "ray", "pyarrow"}
PACKAGES = [
    "rlprof.workloads",
    "rlprof.workloads.embodied",
    "rlprof.workloads.embodied.contracts",
    "rlprof.workloads.embodied.config",
    "rlprof.workloads.embodied.policies",
    "rlprof.workloads.embodied.simulators.serve",
    "rlprof.workloads.embodied.schedule_graph",
    "rlprof.workloads.embodied.runner",
    "rlprof.cli.run",
]


def modules_after(code: str) -> set[str]:
    code += "\nimport json, sys; print(json.dumps([m for m in sys.modules if '.' not in m]))"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(out.stdout))


def test_importing_the_packages_imports_nothing_heavy() -> None:
    loaded = modules_after("\n".join(f"import {name}" for name in PACKAGES))
    assert not loaded & HEAVY


def test_a_simulator_process_needs_numpy_alone() -> None:
    """An interpreter of another environment has no more than numpy and the simulator."""
    loaded = modules_after("import rlprof.workloads.embodied.simulators.serve")
    assert not loaded & (HEAVY | {"orjson", "typer", "rich", "numba"})


def test_a_training_runs_where_there_is_no_polars(tmp_path) -> None:
    pytest.importorskip("mujoco")
    code = f"""
import sys
sys.modules["polars"] = None
from pathlib import Path
from rlprof.workloads.embodied.runner import run
from tests.workloads.embodied.made import small
assert len(run(small(), Path({str(tmp_path)!r}), 1).rows) == 1
"""
    environment = {**os.environ, "PYTHONPATH": python_path()}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)


#: A training, as options but for its folder.
TRAINING = ["run", "embodied", "--preset", "exact", "--iterations", "1", "--out"]


def says_what_to_install(errors: str, hidden: str, says: str) -> None:
    # where loading takes its time, a line before it says that no iteration is done yet
    (line,) = (x for x in errors.strip().splitlines() if "no iteration is done yet" not in x)
    assert 'pip install "rlprof[workloads]"' in line
    assert hidden in line
    assert says in line


def test_no_pytorch_is_one_line_that_says_what_to_install(tmp_path) -> None:
    code = "import sys; sys.modules['torch'] = None\nfrom rlprof.cli.main import run\nrun()"
    done = subprocess.run(
        [sys.executable, "-c", code, *TRAINING, str(tmp_path / "o")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    says_what_to_install(done.stderr, "torch", "policy")


def test_no_mujoco_is_one_line_that_says_what_to_install(
    cli: conftest.Cli, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mujoco", None)
    done = cli(*TRAINING, tmp_path / "o")
    assert done.code == 2
    says_what_to_install(done.err, "mujoco", "mujoco_arm")
