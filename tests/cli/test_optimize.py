"""`rlprof optimize`."""

from __future__ import annotations

import re

import pytest

from rlprof.cli.optimize import seconds
from rlprof.errors import UsageError
from tests.conftest import ROOT

pytest.importorskip("torch", reason="torch is not installed: pip install 'rlprof[workloads]'")


@pytest.mark.parametrize(("text", "value"), [("90s", 90.0), ("15m", 900.0), ("1.5h", 5400.0), ("20", 20.0)])
def test_times(text: str, value: float) -> None:
    assert seconds(text, option="--budget") == value


@pytest.mark.parametrize("text", ["", "m", "-3s", "0", "3d", "inf", "nan"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UsageError, match="--budget"):
        seconds(text, option="--budget")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--epsilon", "0"], "epsilon is 0"),
        (["--groups", "two"], "--groups two"),
        (["--groups", "1"], "groups are (1,)"),
        (["--budget", "soon"], "'soon' is no time"),
        (["--activity", "tea"], "no activity is called 'tea'"),
        (["--schedule", "hybrid"], "the schedule hybrid is no program of nodes"),
        (["--rounds", "0"], "--rounds"),
        (["--reset-ahead"], "give it to rlprof run embodied --graph"),
        (["--resume", "--force"], "give one of them"),
        (["--spares", "2"], "at most 1 would have something to do"),
        (["--simulator-sm-percent", "50"], "a share of the SMs cannot be given: there is no GPU"),
        (
            ["--simulator-low-priority"],
            "the simulator cannot have a low priority: mujoco_arm is no",
        ),
        (["--whole-answers", "--rollout-process"], "leave --whole-answers or --rollout-process away"),
        (["--policy", "openvla_oft", "--denoise-steps", "2"], "openvla_oft has no denoise steps"),
        (["--pairs", "1"], "--pairs: 1 pairs cannot give a clear difference"),
        (["--local-pairs", "4"], "--local-pairs: 4 pairs cannot give a clear difference"),
    ],
)
def test_options_that_cannot_be_used_are_one_line(cli, tmp_path, arguments: list[str], says: str) -> None:
    result = cli("optimize", "embodied", "--preset", "exact", *arguments, "--out", tmp_path / "out")
    assert result.code == 2
    assert says in result.err.strip().splitlines()[-1]


def test_the_documented_options_are_those_of_the_command(cli, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    listed = set(re.findall(r"--[a-z][a-z-]+", cli("optimize", "embodied", "--help").out)) - {"--help"}
    text = (ROOT / "docs" / "cli.md").read_text()
    heads = ("`rlprof optimize embodied", "Options of embodied training")
    sections = [re.search(rf"^## {h}.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL) for h in heads]
    assert None not in sections
    documented = "".join(s[0] for s in sections if s is not None)
    assert set(re.findall(r"--[a-z][a-z-]+", documented)) == listed
