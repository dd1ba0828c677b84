"""`rlprof optimize`."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rlprof.cli.optimize import seconds
from rlprof.errors import UsageError
from rlprof.overlap.optimize.graph_file import GraphFile
from tests.cli.conftest import Cli
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
def test_options_that_cannot_be_used_are_one_line(
    cli: Cli, tmp_path: Path, arguments: list[str], says: str
) -> None:
    result = cli("optimize", "embodied", "--preset", "exact", *arguments, "--out", tmp_path / "out")
    assert result.code == 2
    assert says in result.err.strip().splitlines()[-1]


def test_the_documented_options_are_those_of_the_command(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    listed = set(re.findall(r"--[a-z][a-z-]+", cli("optimize", "embodied", "--help").out)) - {"--help"}
    text = (ROOT / "docs" / "cli.md").read_text()
    heads = ("`rlprof optimize embodied", "Options of embodied training")
    sections = [re.search(rf"^## {h}.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL) for h in heads]
    assert None not in sections
    documented = "".join(s[0] for s in sections if s is not None)
    assert set(re.findall(r"--[a-z][a-z-]+", documented)) == listed


#: A training of 0.1 s an iteration, as options.
SMALL = [
    *("--preset", "exact", "--envs", "4", "--chunks", "2", "--episode-steps", "10", "--update-epochs", "1"),
    *("--global-batch", "16", "--micro-batch", "8", "--denoise-steps", "2"),
]


def optimise(cli: Cli, out: Path, *further: str) -> Any:
    """Optimise within no time."""
    command = ["optimize", "embodied", *SMALL, *further, "--activity", "off", "--budget", "0.001"]
    return cli(*command, "--out", out)


def optimised(cli: Cli, out: Path, *further: str) -> Path:
    """Optimise within no time; the file of the graph."""
    result = optimise(cli, out, *further)
    assert result.code == 0, result.err
    return out / "graph.json"


@pytest.fixture
def selected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is measured, epochs side by side are selected: what needs the spare simulator."""
    from rlprof.analysis.batch_time import BatchTimes
    from rlprof.overlap.errors import OverlapError
    from rlprof.overlap.optimize import derive
    from rlprof.overlap.optimize.outcome import Optimization
    from tests.workloads.embodied.test_optimize import TEMPORAL, WHOLE

    def given(workload: Any, *_: Any, **__: Any) -> Optimization:
        native = workload.native
        try:
            graph, steps = derive(native, TEMPORAL), TEMPORAL
        except OverlapError:  # there is no spare simulator
            graph, steps = derive(native, WHOLE), WHOLE
        return Optimization(
            native=native, graph=graph, steps=steps, rounds=(), iterations=(),
            ended="the graph is given", stopped=False, batch_times=BatchTimes(),
        )  # fmt: skip

    monkeypatch.setattr("rlprof.workloads.embodied.optimize_search.optimize", given)


@pytest.fixture
def one_core() -> Iterator[None]:
    """This process, and what it starts, has one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


def by_graph(cli: Cli, graph: Path, out: Path, *further: str) -> Any:
    return cli("run", "embodied", *SMALL, *further, "--graph", graph, "--iterations", "3", "--out", out)


@pytest.mark.usefixtures("selected")
@pytest.mark.parametrize(
    "further",
    [
        ["--levers", "none"],
        ["--levers", "workers=2"],
        pytest.param(["--levers", "groups,in-turn"], marks=pytest.mark.slow),
        pytest.param([], marks=pytest.mark.slow),
        pytest.param(["--workers", "2"], marks=pytest.mark.slow),
        pytest.param(["--workers", "0", "--spares", "0", "--levers", "none"], marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_a_run_by_a_graph_takes_the_options_it_was_optimised_with(
    cli: Cli, tmp_path: Path, further: list[str]
) -> None:
    graph = optimised(cli, tmp_path / "found", *further)
    given = further[:2] if further[:1] == ["--workers"] else []
    result = by_graph(cli, graph, tmp_path / "run", *given)
    assert result.code == 0, result.err
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["graph"] for row in rows] == [False, False, True]


@pytest.mark.usefixtures("selected")
def test_a_graph_is_found_whatever_levers_the_budget_left_undecided(cli: Cli, tmp_path: Path) -> None:
    done = optimise(cli, tmp_path, "--levers", "workers=2,groups=4,in-turn")
    assert done.code == 0
    left = "the budget ended before it was decided whether levers pay: workers, groups"
    assert done.out.startswith(f"{tmp_path}: the graph is given\n")
    assert done.out.splitlines()[-1].startswith(f"not finished: {left}")
    assert done.out.splitlines()[-1].endswith("; --resume goes on")
    result = json.loads((tmp_path / "result.json").read_text())
    assert not result["stopped"]
    assert result["unfinished"][0].startswith(left)
    assert len(result["unfinished"]) == 1  # there is no GPU, so no quotas are left
    assert f"{left}" in (tmp_path / "report.html").read_text()


@pytest.mark.usefixtures("selected")
def test_a_graph_whose_comparison_in_all_the_budget_left_is_found(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlprof.workloads.embodied import optimize_search

    measure = optimize_search.measure_levers

    def kept(levers: Any, *given: Any, **named: Any) -> Any:
        found = measure(levers, *given, **named)
        rows = tuple(replace(row, outcome="kept", undecided=False) for row in found.rows)
        return replace(found, rows=rows)

    monkeypatch.setattr(optimize_search, "measure_levers", kept)
    done = optimise(cli, tmp_path, "--levers", "in-turn")
    assert done.code == 0, done.err
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["stopped"], result["ended"]) == (False, "the graph is given")
    assert result["unfinished"] == [
        "the budget of 0 s is spent: rounds and levers of the graph together are not compared"
    ]


@pytest.mark.usefixtures("selected", "one_core")
def test_so_it_does_on_one_core(cli: Cli, tmp_path: Path) -> None:
    graph = optimised(cli, tmp_path / "found")
    assert "workers" not in GraphFile.read(graph).facts["levers"]  # there is no other number to try
    result = by_graph(cli, graph, tmp_path / "run")
    assert result.code == 0, result.err


def test_so_it_does_where_the_search_was_interrupted(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("rlprof.overlap.optimize.algorithm._Run._profile", interrupted)
    done = optimise(cli, tmp_path / "found", "--levers", "none")
    assert done.code == 130
    assert done.err.splitlines()[-1] == "interrupted: this is the best so far; --resume goes on"
    assert done.out.startswith(f"{tmp_path / 'found'}: interrupted\n")
    assert json.loads((tmp_path / "found" / "result.json").read_text())["ended"] == "interrupted"
    result = by_graph(cli, tmp_path / "found" / "graph.json", tmp_path / "run")
    assert result.code == 0, result.err


def test_an_interrupt_of_the_measurement_of_memory_keeps_what_was_found(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlprof.overlap.optimize.program import ProgramWorkload
    from rlprof.workloads.embodied.optimize import Embodied

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    meter = property(lambda _: "one, as where there is a GPU", lambda *_: None)
    monkeypatch.setattr(Embodied, "memory", meter)
    monkeypatch.setattr(ProgramWorkload, "measure_memory", interrupted)
    done = optimise(cli, tmp_path / "found", "--levers", "none")
    assert done.code == 130, done.err
    assert {"graph.json", "result.json", "report.html"} <= {p.name for p in (tmp_path / "found").iterdir()}


@pytest.mark.parametrize(
    "where",
    ["rlprof.overlap.optimize.graph_file.GraphFile", "rlprof.workloads.embodied.quota_file.QuotaFile"],
)
def test_an_interrupt_while_files_are_written_writes_all_of_them(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    module, _, name = where.rpartition(".")
    of = getattr(import_module(module), name)
    write = of.write

    def interrupted(self: Any, path: Path) -> None:
        signal.raise_signal(signal.SIGINT)
        write(self, path)

    monkeypatch.setattr(of, "write", interrupted)
    done = optimise(cli, tmp_path / "found", "--levers", "none")
    assert done.code == 130, done.err
    assert done.err.splitlines()[-1] == "interrupted: this is the best so far; --resume goes on"
    files = {"graph.json", "quotas.json", "result.json", "report.html", "checkpoint.pt"}
    assert files <= {p.name for p in (tmp_path / "found").iterdir()}


@pytest.mark.usefixtures("selected")
@pytest.mark.parametrize("part", ["optimize", "graph_levers"])
def test_an_interrupt_between_parts_of_the_search_keeps_what_was_found(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    from rlprof.workloads.embodied import optimize_search

    do = getattr(optimize_search, part)

    def interrupted(*given: Any, **named: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return do(*given, **named)

    monkeypatch.setattr(optimize_search, part, interrupted)
    done = optimise(cli, tmp_path / "found", "--levers", "none")
    assert done.code == 130, done.err
    assert {"graph.json", "result.json", "report.html"} <= {p.name for p in (tmp_path / "found").iterdir()}


@pytest.mark.usefixtures("selected")
def test_who_says_otherwise_is_heard_or_told_at_once_what_does_not_fit(cli: Cli, tmp_path: Path) -> None:
    graph, out = optimised(cli, tmp_path / "found", "--levers", "none"), tmp_path / "run"
    for further, says in {
        ("--workers", "0"): r"workers 1, not 0\. Next: run with .*--workers 1",
        ("--preset", "tiny"): r"preset exact, not tiny\. Next: run with .*--preset exact",
        ("--chunks", "4", "--episode-steps", "20"): r"chunks 2, not 4\. Next: run with .*--chunks 2",
        ("--rollout-process",): "a rollout process cannot be told apart",
    }.items():
        result = by_graph(cli, graph, out, *further)
        assert result.code == 2
        assert re.search(says, result.err.strip().splitlines()[-1]), result.err
        assert not out.exists()
    result = by_graph(cli, graph, out, "--workers", "2")
    assert result.code == 0, result.err
    assert json.loads((out / "config.json").read_text())["workers"] == 2
