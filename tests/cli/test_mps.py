"""`rlprof mps`, with stand-ins for the control program and the driver (tests/overlap/quota/conftest.py)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rlprof.overlap.quota import mps_guardian
from rlprof.overlap.quota.clients import Gpu
from rlprof.overlap.quota.daemons import Daemon, daemons
from tests.cli.conftest import Cli
from tests.overlap.quota.conftest import fake_control, fake_driver, fake_mps

__all__ = ["fake_control", "fake_driver", "fake_mps"]


def test_a_daemon_is_started_listed_probed_and_stopped(cli: Cli, fake_mps: Path) -> None:
    started = cli("mps", "start")
    assert started.code == 0, started.err
    (daemon,) = daemons()
    assert started.out.splitlines() == [
        f"export CUDA_MPS_PIPE_DIRECTORY={daemon.pipe}",
        f"export CUDA_MPS_LOG_DIRECTORY={daemon.log}",
    ]
    again = cli("mps", "start")
    assert (again.code, "already" in again.err) == (2, True)

    status = cli("mps", "status")
    assert f"GPU 0 (Stand-in): runs, until it is stopped, since {daemon.started}; 0 clients" in status.out
    (listed,) = json.loads(cli("mps", "status", "--format", "json").out)["daemons"]
    assert listed["processes"] == daemon.processes
    assert listed["environment"]["CUDA_MPS_PIPE_DIRECTORY"] == str(daemon.pipe)

    table = cli("mps", "levels", "--step", 10)
    assert table.code == 0, table.err
    assert "Stand-in, GPU 0: 10 levels, probed in steps of 10 %" in table.out
    assert daemons() == [daemon]  # the one that was there was used
    stopped = cli("mps", "stop")
    assert (stopped.code, stopped.out) == (0, "GPU 0: stopped\n")
    assert daemon.processes == []
    assert cli("mps", "status").out == "no MPS daemon runs\n"
    # levels are known now: no daemon is needed
    known = json.loads(cli("mps", "levels", "--step", 10, "--format", "json").out)
    assert known["levels"][0] == {"amount": 12, "setting": 10}


@pytest.mark.skipif(bool(shutil.which("nvidia-smi")), reason="there is a GPU")
def test_what_clients_find_of_products_is_told_by_level(cli: Cli, fake_mps: Path) -> None:
    """The driver is a stand-in, which PyTorch does not take for a GPU: clients cannot tell, and say why."""
    found = cli("mps", "levels", "--step", 50, "--check-products", "--format", "json")
    assert found.code == 0, found.err
    for level in json.loads(found.out)["levels"]:
        assert "finds no CUDA device" in level["products"]["unavailable"]
    assert daemons() == []


@pytest.mark.slow
def test_levels_start_a_daemon_for_as_long_as_they_need_it(cli: Cli, fake_mps: Path) -> None:
    found = cli("mps", "levels", "--step", 50, "--format", "json")
    assert json.loads(found.out)["probed"] == [[50, 66], [100, 132]]
    assert daemons() == []


@pytest.mark.slow
def test_a_daemon_ends_with_the_process_that_it_is_for(cli: Cli, fake_mps: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as shell:
        started = cli("mps", "start", "--while", shell.pid, "--format", "json")
        document = json.loads(started.out)
        assert document["owner"] == shell.pid
        assert f"as long as process {shell.pid}" in cli("mps", "status").out
        shell.kill()
    folder = Path(document["folder"])
    for _ in range(500):
        if not folder.exists():
            break
        subprocess.run(["sleep", "0.02"], check=True)
    assert not folder.exists()
    assert mps_guardian.members("", document["mark"]) == []


def test_what_others_run_is_listed_and_not_stopped(cli: Cli, fake_mps: Path, fake_control: Path) -> None:
    theirs = fake_mps.parent / "theirs"
    theirs.mkdir()
    environment = {
        **os.environ,
        "CUDA_MPS_PIPE_DIRECTORY": str(theirs),
        "CUDA_MPS_LOG_DIRECTORY": str(theirs),
    }
    subprocess.run([fake_control, "-d"], env=environment, check=True)
    try:
        assert f"at {theirs}" in cli("mps", "status").out
        for command in (["mps", "stop"], ["mps", "start"], ["mps", "levels"]):
            refused = cli(*command)
            assert refused.code == 2
            assert "not start" in refused.err or "not started by rlprof, left alone" in refused.err
        assert f"at {theirs}" in cli("mps", "status").out
    finally:
        subprocess.run([fake_control], input=b"quit\n", env=environment, check=True)


@pytest.mark.parametrize(
    "command", [["mps", "start"], ["mps", "levels"], ["quota", "--branch", "A=true", "--branch", "B=true"]]
)
def test_without_a_gpu_it_says_what_is_missing(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: list[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("RLPROF_MPS_FOLDER", str(tmp_path / "mps"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    failed = cli(*command)
    assert failed.code == 2
    assert "Next: " in failed.err
    assert failed.err.count("\n") == 1
    status = cli("mps", "status")
    assert status.code == 0
    assert "MPS cannot be used here: nvidia-cuda-mps-control is not installed" in status.out


@pytest.mark.parametrize(
    "changed",
    [
        {"folder": "ELSEWHERE"},
        {"folder": 5},
        {"mark": 5},
        {"binary": None},
        {"owner": "x"},
        {"owner_ticks": [1]},
        {"visible": 3},
        {"gpu": []},
        {"gpu": {"ordinal": 0}},
        {"started": None},
        {"further": 1},
        None,
    ],
    ids=str,
)
def test_descriptions_that_are_none_are_passed_over_and_nothing_is_removed(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, object] | None
) -> None:
    monkeypatch.setenv("RLPROF_MPS_FOLDER", str(tmp_path / "mps"))
    monkeypatch.setenv("PATH", str(tmp_path))
    elsewhere, own = tmp_path / "elsewhere", tmp_path / "mps" / "one"
    elsewhere.mkdir()
    own.mkdir(parents=True)
    gpu = Gpu(0, "Stand-in", "GPU-1", 10, 0, 12000)
    whole = Daemon(gpu, own, "mark", "control", None, None, None, "2026-01-01").to_dict()
    (own / "state.json").write_text(json.dumps(whole))
    assert len(daemons()) == 1
    if changed == {"folder": "ELSEWHERE"}:
        changed = {"folder": str(elsewhere)}
    text = "[" * 200_000 if changed is None else json.dumps({**whole, **changed})
    (own / "state.json").write_text(text)
    assert daemons() == []
    stopped = cli("mps", "stop", "--force")
    assert (stopped.code, stopped.err.count("\n")) == (2, 1)
    assert "rlprof runs no MPS daemon" in stopped.err
    assert cli("mps", "status").code == 0
    assert elsewhere.is_dir()
