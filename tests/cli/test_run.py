"""`rlprof run embodied`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlprof.workloads.embodied.quota_file import QuotaFile
from tests.conftest import ROOT

pytest.importorskip("torch", reason="torch is not installed: pip install 'rlprof[workloads]'")
pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'rlprof[workloads]'")

SIZES = {"envs": 4, "chunks": 2, "episode-steps": 10, "global-batch": 8, "micro-batch": 4}
SMALL = ["--preset", "exact", "--policy", "openvla_oft", *(f"--{k}={v}" for k, v in SIZES.items())]


def test_a_run_and_its_continuation(cli, tmp_path) -> None:
    out = tmp_path / "run"
    first = cli("run", "embodied", *SMALL, "--iterations", "1", "--out", out)
    assert first.code == 0, first.err
    assert re.fullmatch(r"(starting: .*\n|training: .*\n)?iteration 1 of 1: [^\x00-\x1f]+\n", first.err)
    assert re.fullmatch(
        rf"{re.escape(str(out))}: 1 iterations, return [\d.-]+, success [\d.]+%, [\d,]+ simulator steps/s\n",
        first.out,
    )
    again = cli("run", "embodied", *SMALL, "--iterations", "1", "--out", out)
    assert (again.code, again.out) == (2, "")
    assert "a run is there already. Next: use --resume, --force" in again.err
    more = cli("run", "embodied", *SMALL, "--iterations", "2", "--out", out, "--resume")
    assert more.code == 0
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [0, 1]
    done = cli("run", "embodied", *SMALL, "--iterations", "2", "--out", out, "--resume")
    assert "2 iterations are done already" in done.out


def test_shares_of_a_file_and_of_options_are_not_mixed(cli, tmp_path) -> None:
    for quotas, said in (({"simulator": 40}, "give one"), ({}, "")):
        QuotaFile(quotas, "no level pays").write(tmp_path / "quotas.json")
        options = ["--simulator", "mujoco_warp", "--quotas", tmp_path / "quotas.json", "--device", "cuda:99"]
        if said:
            options += ["--simulator-sm-percent", "50"]
        result = cli("run", "embodied", *SMALL, *options, "--out", tmp_path / "run")
        assert result.code == 2
        assert ("--simulator-sm-percent 50 would do nothing: --quotas gives 40" in result.err) == bool(quotas)
        assert ("quotas.json has no quotas: no level pays" in result.err) != bool(quotas)


@pytest.mark.slow
def test_iterations_are_told_as_they_end_where_there_is_no_terminal(tmp_path) -> None:
    out = tmp_path / "run"
    arguments = ["run", "embodied", *SMALL, "--iterations", "1000000", "--out", str(out)]
    code = "from rlprof.cli.main import run; run()"
    driver = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert driver.stderr is not None
    try:
        lines = [line for _ in range(2) if b"no iteration" not in (line := driver.stderr.readline())]
        driver.send_signal(signal.SIGINT)
        printed, errors = driver.communicate(timeout=30)
    finally:
        driver.kill()
        driver.wait()
    assert driver.returncode == 130
    assert printed == b""
    assert lines
    for line in lines:
        assert re.fullmatch(
            rb"iteration \d+ of 1000000: [\d.]+ s, [\d,]+ simulator steps/s, return [\d.-]+, success [\d.]+%,"
            rb" policy loss [\d.e+-]+, value loss [\d.e+-]+\n",
            line,
        )
    assert b"\r" not in errors
    assert b"\x1b" not in errors


def command_of(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


def test_a_group_of_processes_that_is_told_to_end_was_interrupted(tmp_path) -> None:
    out = tmp_path / "run"
    arguments = ["run", "embodied", *SMALL, "--workers", "2", "--schedule", "hybrid-pipe"]
    arguments += ["--global-batch", "8", "--iterations", "1000000", "--out", str(out)]
    driver = subprocess.Popen(
        [sys.executable, "-c", "from rlprof.cli.main import run; run()", *arguments],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert driver.stderr is not None
        assert any(line.startswith("iteration") for line in driver.stderr)
        tasks = Path(f"/proc/{driver.pid}/task").glob("*/children")
        processes = [int(process) for task in tasks for process in task.read_text().split()]
        served = [process for process in processes if b"simulators.serve" in command_of(process)]
        assert len(served) == 2
        for simulator in served:  # as a manager of jobs that goes through a job's processes
            os.kill(simulator, signal.SIGTERM)
        time.sleep(0.1)
        os.kill(driver.pid, signal.SIGTERM)  # as `timeout`: its child, and then the whole group
        os.killpg(driver.pid, signal.SIGTERM)
        errors = driver.communicate(timeout=60)[1]
    finally:
        driver.kill()
        driver.wait()
    assert driver.returncode == 143, errors
    assert errors.splitlines()[-1] == "rlprof: error: interrupted by SIGTERM"
    assert "error" not in "".join(errors.splitlines()[:-1])
    assert not [process for process in processes if Path(f"/proc/{process}").exists()]
    config = json.loads((out / "config.json").read_text())
    assert config["workers"] == 2
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == list(range(len(rows)))
    assert rows


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--global-batch", "7"], "16 samples"),
        (["--algorithm", "grpo", "--group", "3"], "groups of 3"),
        (["--policy", "pi9"], "pi9"),
        (["--staggered"], "use --auto-reset too"),
        (["--timeout", "0"], "--timeout"),
        (["--workers", "2", "--reset-ahead"], "give --graph FILE, use --env-prefetch"),
        (["--workers", "2", "--reset-ahead", "--schedule", "async"], "and none is given"),
        (["--prefix-worker", "--rollout-process"], "leave --prefix-worker or --rollout-process away"),
        (["--whole-answers", "--rollout-process"], "leave --whole-answers or --rollout-process away"),
        (["--whole-answers", "--schedule", "hybrid"], "--whole-answers would do nothing: with the schedule"),
        (["--denoise-steps", "2"], "--denoise-steps would do nothing: openvla_oft has no denoise steps"),
        (["--timeout", "5"], "--timeout would do nothing: the simulator is in this process"),
        (["--workers", "5"], "--workers would do nothing: 4 environments make no 5 processes"),
        (["--workers", "2", "--simulator-cores", "2"], "--simulator-cores would do nothing: without a graph"),
        (["--resume", "--force"], "give one of them"),
        (["--graph", "graph.json", "--iterations", "2"], "use --iterations 3 or more"),
    ],
)
def test_options_that_do_not_fit_are_one_line(cli, tmp_path, arguments: list[str], says: str) -> None:
    result = cli("run", "embodied", *SMALL, *arguments, "--out", tmp_path / "run")
    assert result.code == 2
    (line,) = result.err.strip().splitlines()
    assert says in line
    assert not (tmp_path / "run").exists()


def test_the_documented_options_are_those_of_the_command(cli, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    listed = set(re.findall(r"--[a-z][a-z-]+", cli("run", "embodied", "--help").out)) - {"--help"}
    text = (ROOT / "docs" / "cli.md").read_text()
    heads = ("`rlprof run embodied", "Options of embodied training")
    sections = [re.search(rf"^## {h}.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL) for h in heads]
    assert None not in sections
    documented = "".join(s[0] for s in sections if s is not None)
    assert set(re.findall(r"--[a-z][a-z-]+", documented)) == listed
