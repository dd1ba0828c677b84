"""`rlprof quota` on real processes of this machine's processor."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from rlprof.cores import usable_cores
from tests.cli.conftest import Cli

WAIT = "import time\nfrom rlprof.overlap.quota.rounds import rounds\nfor _ in rounds(): time.sleep({})"


def waits(path: Path, time_s: float) -> str:
    path.write_text(WAIT.format(time_s))
    return f"{sys.executable} {path}"


def test_two_commands_are_measured_alone_and_together(cli: Cli, tmp_path: Path) -> None:
    """Branches that only wait: who has slack is found. No level is tried, since there is no time for it."""
    out = tmp_path / "quota.json"
    a, b = waits(tmp_path / "a.py", 0.15), waits(tmp_path / "b.py", 0.02)
    done = cli(
        "quota", "--branch", f"A={a}", "--branch", f"B={b}", "--join", "all", "--mechanism", "nice",
        "--confidence", 0.9, "--pairs", 5, "--budget", "1ms", "-o", out,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "keep q0: no quota" in done.out
    assert "slack" in done.out
    document = json.loads(out.read_text())
    assert document["mechanism"] == "nice"
    assert document["in_rounds"] == {"A": True, "B": True}
    assert document["alone"]["A"]["median_s"] >= 0.15
    assert document["pair"]["earlier"] == "B"
    assert 0.05 < document["pair"]["slack_s"] < 0.2
    assert document["quotas"] == {}
    again = cli("quota", "--branch", "A=true", "--branch", "B=true", "--mechanism", "nice", "-o", out)
    assert (again.code, "exists already" in again.err) == (2, True)


@pytest.mark.slow
@pytest.mark.skipif(usable_cores() < 2, reason="one core leaves no number of cores to choose")
def test_the_whole_search_runs_on_cores(cli: Cli, tmp_path: Path) -> None:
    """Two busy processes each: what is found depends on the machine, that all of it was measured does not."""
    program = tmp_path / "busy.py"
    program.write_text(
        "import os, sys\n"
        "from rlprof.overlap.quota.rounds import rounds\n"
        "def work():\n"
        "    x = 0\n"
        "    for i in range(int(sys.argv[1])): x += i * i\n"
        "for _ in rounds():\n"
        "    child = os.fork()\n"
        "    work()\n"
        "    if not child: os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
    )
    a, b = (f"{name}={sys.executable} {program} {size}" for name, size in (("A", 1_500_000), ("B", 300_000)))
    done = cli(
        "quota", "--branch", a, "--branch", b, "--mechanism", "cores", "--confidence", 0.9, "--pairs", 5,
        "--final-pairs", 5, "--format", "json",
    )  # fmt: skip
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert document["ready"]["A"]["runs"] == 5
    assert document["reason"]
    if "trials" in document["search"]:
        assert document["search"]["trials"][0]["setting"] == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--branch", "A=true"], "name two or more"),
        (["--branch", "A=true", "--branch", "A=true"], "all different"),
        (["--branch", "true", "--branch", "B=true"], "is not NAME='COMMAND'"),
        (["--branch", "A='true", "--branch", "B=true"], "close the quotes"),
        (["--branch", "A=true", "--branch", "B=true", "--pairs", 3], "six are enough for 0.95"),
        (["--branch", "A=true", "--branch", "B=true", "--least-gain", 2], "--least-gain"),
        (["--branch", "A=false", "--branch", "B=true"], "branch A ended with code 1"),
        (["--branch", "A=no-such-thing", "--branch", "B=true"], "command not found: no-such-thing"),
        (["--branch", "A=true", "--branch", "B=true", "-o", "no/folder/x.json"], "does not exist"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(cli: Cli, arguments: list[object], said: str) -> None:
    failed = cli("quota", "--mechanism", "nice", *arguments)
    assert failed.code == 2
    assert said in failed.err
    assert failed.err.count("\n") == 1
