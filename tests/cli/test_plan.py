from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli

SMALL = [
    "plan", "--algorithm", "ppo", "--actor", "qwen2.5-0.5b", "--critic", "qwen2.5-0.5b",
    "--reward", "qwen2.5-0.5b", "--hardware", "gh200:1x1x4", "--batch", "64", "--prompt", "64",
    "--response", "128",
]  # fmt: skip


@pytest.fixture
def made(cli: Cli, tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    result = cli(*SMALL, "--quantiles", "three", "--evaluations", "600", "--workers", "1", "-o", path)
    assert result.code == 0, result.err
    return path


def test_a_plan_is_made_shown_and_asked(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    result = cli(*SMALL, "--quantiles", "three", "--evaluations", "600", "--workers", "1", "-o", path)
    assert result.code == 0, result.err
    for part in (
        "tokens/s predicted",
        "actor_generation",
        "greedy",
        "concurrent",
        "of usable",
        "nominal",
        "|",
    ):
        assert part in result.out
    assert "written" in result.err
    document = json.loads(path.read_text())
    assert (document["format"], document["version"], len(document["hash"])) == ("rlprof.plan", 1, 64)
    again = cli(*SMALL, "--evaluations", "600", "-o", path)
    assert (again.code, "exists already" in again.err) == (2, True)

    told = cli("plan", "explain", path, "--format", "json")
    rows = json.loads(told.out)
    assert {"time", "memory"} <= {row["quantity"] for row in rows}
    assert "T_gemm" in cli("plan", "explain", path).out

    compared = json.loads(cli("plan", "compare", path, "--format", "json").out)
    assert set(compared["plans"]) == {"this plan", "greedy", "concurrent"}
    best = compared["plans"]["this plan"]["throughput_tokens_per_s"]
    assert best >= compared["plans"]["concurrent"]["throughput_tokens_per_s"]
    assert compared["ladder"][-1]["score"] == best
    assert "greedy" in cli("plan", "compare", path, path).out

    assert "|" in cli("plan", "draw", path).out
    for stage in ("compact", "unrolled", "executable", "schedule"):
        drawn = cli("plan", "draw", path, "--stage", stage, "-o", tmp_path / f"{stage}.json")
        assert drawn.code == 0, drawn.err
        assert json.loads((tmp_path / f"{stage}.json").read_text())["$schema"]
    resumed = cli(*SMALL, "--quantiles", "three", "--evaluations", "60", "--resume", path, "--format", "json")
    assert json.loads(resumed.out)["prediction"]["throughput_tokens_per_s"] >= best


def test_an_interrupted_search_writes_its_best_plan_and_says_so_by_its_code(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlprof.planning import search as searching

    whole = searching.search

    def interrupted(*given: Any, **named: Any) -> Any:
        return replace(whole(*given, **named), interrupted=True)

    monkeypatch.setattr(searching, "search", interrupted)
    result = cli(*SMALL, "--evaluations", "60", "--workers", "1", "-o", tmp_path / "plan.json")
    assert result.code == 130, result.err
    assert "interrupted: this is the best plan so far" in result.err
    assert "tokens/s predicted" in result.out
    assert (tmp_path / "plan.json").exists()


@pytest.mark.parametrize(
    ("evaluations", "seconds", "few"), [(8, 20.1, True), (8, 3.0, False), (900, 20.1, False)]
)
def test_a_search_that_had_hardly_begun_when_its_budget_ended_says_so(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, evaluations: int, seconds: float, few: bool
) -> None:
    from rlprof.planning import search as searching
    from rlprof.planning.search_options import SearchOptions

    whole = searching.search

    def ended(problem: Any, _options: Any, **_named: Any) -> Any:
        result = whole(problem, SearchOptions(evaluations=60), workers=1)
        return replace(result, evaluations=evaluations, seconds=seconds)

    monkeypatch.setattr(searching, "search", ended)
    result = cli(*SMALL, "--budget", "20s")
    assert result.code == 0, result.err
    assert ("only 8 plans were evaluated within the budget of 20 s" in result.err) == few


def test_a_pipeline_of_ones_own(cli: Cli, tmp_path: Path) -> None:
    from rlprof.planning.algorithms import dpo
    from rlprof.planning.pipeline_file import write_pipeline

    write_pipeline(dpo("smollm2-135m"), tmp_path / "mine.toml")
    common = [
        "--hardware",
        "h200:1x1x2",
        "--batch",
        "16",
        "--rollouts",
        "2",
        "--prompt",
        "32",
        "--response",
        "32",
    ]
    result = cli(
        "plan", "--algorithm", tmp_path / "mine.toml", *common, "--evaluations", "200", "--workers", "1"
    )
    assert result.code == 0, result.err
    assert "actor_inference" in result.out


def changed(option: str, value: str) -> list[str]:
    arguments: list[Any] = list(SMALL)
    if option in arguments:
        arguments[arguments.index(option) + 1] = value
    else:
        arguments += [option, value]
    return [*arguments, "--evaluations", "50", "--workers", "1"]


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--actor", "llama9", "unknown model 'llama9'"),
        ("--hardware", "gh200:1x1x8", "at most 4 GPUs, not 8"),
        ("--hardware", "gh200:0x1x4", "racks is 0"),
        ("--hardware", "tpu:1x1x4", "unknown hardware 'tpu'"),
        ("--hardware", "gh200", "is no cluster"),
        ("--algorithm", "reinforce", "unknown algorithm"),
        ("--quantiles", "0.5:100,0.4:128", "do not increase"),
        ("--quantiles", "half", "no list of fractions"),
        ("--quantiles", "0.5:0.5,1:128", "give lengths of at least one token"),
        ("--staleness", "one", "no list of whole numbers"),
        ("--staleness", "-1", "staleness budgets"),
        ("--budget", "soon", "is not a duration"),
        ("--batch", "0", "prompts is 0"),
        ("--batch", "1000000000000000000000", "give a whole number from 1 to"),
        ("--hardware", "gh200:99999999999999999999x1x4", "give racks x nodes x GPUs"),
        ("--hardware", "gh200:100000x1000x4", "400,000,000 GPUs"),
        ("--staleness", "99999999999999999999", "staleness budgets"),
        ("--steps", "1000000000", "a horizon of 1000000000 steps"),
        ("--output", "none/plan.json", "the folder to write into does not exist"),
        ("--resume", "none.json", "none.json"),
        ("--actor", "llama2-70b", "no feasible plan"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(cli: Cli, option: str, value: str, said: str) -> None:
    result = cli(*changed(option, value))
    assert result.code == 2
    assert said in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert result.out == ""


def test_what_cannot_be_shared_is_refused(cli: Cli) -> None:
    result = cli(*changed("--critic", "qwen2.5-1.5b"), "--share-actor-critic")
    assert (result.code, "no actor and critic of one shape" in result.err) == (2, True)


def test_plans_of_another_problem_are_no_start(cli: Cli, made: Path) -> None:
    result = cli(*changed("--hardware", "gh200:1x1x1"), "--resume", made)
    assert (result.code, "none of the plans to start from" in result.err) == (2, True)


def test_a_graph_that_goes_in_a_circle_names_it(cli: Cli, tmp_path: Path) -> None:
    from rlprof.planning.algorithms import dpo
    from rlprof.planning.pipeline_file import pipeline_to_toml

    circle = pipeline_to_toml(dpo("smollm2-135m"))
    circle = circle.replace('inputs = ["actor_weights", "sequences"]', 'inputs = ["actor_weights", "extra"]')
    circle = circle.replace('outputs = ["actor_weights"]', 'outputs = ["actor_weights", "extra"]')
    circle += '\n[[containers]]\nname = "extra"\nelements = "B"\n'
    circle += '\n[[data]]\nsource = "actor_training"\ntarget = "actor_inference"\ncontainer = "extra"\n'
    (tmp_path / "circle.toml").write_text(circle)
    common = ["--hardware", "h200:1x1x1", "--batch", "1", "--prompt", "1", "--response", "1"]
    result = cli("plan", "--algorithm", tmp_path / "circle.toml", *common)
    assert result.code == 2
    assert "data edges form a cycle" in result.err
    assert (
        "actor_inference -> actor_training" in result.err or "actor_training -> actor_inference" in result.err
    )


def test_plans_of_one_name_in_two_folders_are_both_compared(cli: Cli, made: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Path(shutil.copy(made, tmp_path / "other" / "plan.json"))
    compared = json.loads(cli("plan", "compare", made, other, "--format", "json").out)
    assert set(compared["plans"]) == {str(made), str(other), "greedy", "concurrent"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_processes_of_a_search_end_with_it(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / f"ended_by_{number.name}.json"
    command = [sys.executable, "-m", "rlprof", *map(str, SMALL), "--budget", "60s", "--workers", "2"]
    with subprocess.Popen([*command, "-o", str(out)], stderr=subprocess.DEVNULL) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        assert until(lambda: len(children.read_text().split()) == 2, 120)
        pids = children.read_text().split()
        process.send_signal(number)
        began = time.monotonic()
        assert process.wait(120) in (128 + number, -number)
    assert until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 120)
    assert time.monotonic() - began < 240
    assert not list(tmp_path.iterdir())


def until(true: Callable[[], bool], limit_s: float) -> bool:
    """Wait until it is true; False if that takes too long."""
    end = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_what_is_missing_is_named(cli: Cli) -> None:
    result = cli("plan", "--algorithm", "ppo")
    assert (result.code, "--hardware, --batch, --prompt, --response are not given" in result.err) == (2, True)


def test_broken_files(cli: Cli, tmp_path: Path, made: Path) -> None:
    (tmp_path / "hw.toml").write_text("format = 1")
    assert 'is not "rlprof.hardware"' in cli(*changed("--hardware", f"{tmp_path}/hw.toml:1x1x1")).err
    (tmp_path / "p.toml").write_text("x = 1")
    common = ["--hardware", "h200:1x1x1", "--batch", "1", "--prompt", "1", "--response", "1"]
    assert "unknown key 'x'" in cli("plan", "--algorithm", tmp_path / "p.toml", *common).err
    document = json.loads(made.read_text())
    document["configuration"]["plan"]["actor_training"]["microbatches"] = 99
    made.write_text(json.dumps(document))
    for verb in ("explain", "compare", "draw"):
        result = cli("plan", verb, made)
        assert (result.code, "its hash is another" in result.err) == (2, True)
    graph = cli("plan", "draw", made, "--stage", "compact")
    assert graph.code == 2
