"""`rlprof reproduce`."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlprof.reproduce.rpeg import stability
from tests.cli.conftest import Cli
from tests.conftest import ROOT


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest preset, smaller still."""
    monkeypatch.setitem(stability.PRESETS, "smoke", (60, 2, 1))


def test_what_can_be_reproduced(cli: Cli) -> None:
    shown = cli("reproduce", "list")
    assert shown.code == 0, shown.err
    for part in ("rpeg/fig06", "rpeg/table04", "smoke, full", "arXiv 2611.09207"):
        assert part in shown.out
    rows = json.loads(cli("reproduce", "list", "--format", "json").out)
    assert all("full" in r["stored"] for r in rows if r["figure"] == "rpeg/fig06")


def test_a_table_is_computed_compared_and_kept(cli: Cli, tmp_path: Path, little: None) -> None:
    out = tmp_path / "out"
    arguments = ("reproduce", "run", "rpeg/table10", "--preset", "smoke", "--no-notebook", "--out", out)
    made = cli(*arguments, "--seed", "5", "--repository", ROOT)
    assert made.code == 0, made.err
    assert "2 rows, preset smoke, seed 5" in made.out
    assert "coefficient of variation over seeds, least" in made.out
    assert "its numbers are not to be compared" in made.out
    assert {p.name for p in out.iterdir()} == {
        "stability.smoke.csv", "stability.smoke.json", "table10.comparison.csv",
    }  # fmt: skip
    before = (out / "stability.smoke.csv").stat().st_mtime_ns
    again = cli(*arguments, "--seed", "5", "--format", "json")
    assert again.code == 0, again.err
    assert (out / "stability.smoke.csv").stat().st_mtime_ns == before
    assert again.err.rstrip().endswith(": table10.comparison.csv")  # what was there is not called written
    document = json.loads(again.out)
    assert document["tables"]["stability"]["seed"] == 5
    assert {"quantity", "unit", "ours", "paper", "difference", "cause"} == set(document["compared"][0])
    other = cli(*arguments, "--seed", "6")
    assert "was computed with other cases, seed" in other.out


def test_stored_tables_are_shown_without_computing(cli: Cli) -> None:
    shown = cli("reproduce", "show", "rpeg/fig06")
    assert shown.code == 0, shown.err
    assert "cases with a plan that fits" in shown.out
    assert "seed 0: computed 20" in shown.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "rpeg/fig6"), "no reproduction is called 'rpeg/fig6'. Next: did you mean rpeg/fig0"),
        (("run", "rpeg/fig06", "--preset", "huge"), "rpeg/fig06 has no preset 'huge'"),
        (("show", "rpeg/fig06", "--seed", "77"), "nothing to show with preset full and seed 77"),
        (("show",), "--help"),
    ],
)
def test_errors_are_one_line_and_code_2(cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    result = cli("reproduce", *arguments)
    assert (result.code, result.out) == (2, "")
    assert said in result.err
    assert len(result.err.strip().splitlines()) == 1


def test_without_papermill_the_error_says_what_to_install(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = cli("reproduce", "run", "rpeg/fig06", "--out", tmp_path / "out")
    assert result.code == 2
    assert "pip install 'rlprof[notebook]'" in result.err
    assert not (tmp_path / "out").exists()


def test_without_scipy_what_was_fitted_is_shown_and_a_fit_says_what_to_install(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "scipy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "scipy", None)  # as if it were not there
    shown = cli("reproduce", "show", "rpeg/fig04")
    assert shown.code == 0, shown.err
    assert "Spearman" in shown.out
    result = cli("reproduce", "run", "rpeg/fig04", "--fresh", "--no-notebook", "--out", tmp_path / "out")
    assert result.code == 2
    assert re.search(r"fits need scipy .*Next: pip install 'rlprof\[calibrate\]'", result.err)
    measured = cli("calibrate", "-o", tmp_path / "hw.toml")
    assert measured.code == 2
    assert "fits need scipy" in measured.err
    assert not list(tmp_path.glob("hw*"))  # said before anything was measured


def test_ctrl_c_keeps_what_was_computed(
    cli: Cli, tmp_path: Path, little: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlprof.reproduce.rpeg import plans

    real, calls = plans.search, []

    def search(*given: Any, **more: Any) -> Any:
        calls.append(given)
        found = real(*given, **more)
        return replace(found, interrupted=len(calls) == 2)  # as after Ctrl-C: the best so far

    monkeypatch.setattr(plans, "search", search)
    out = tmp_path / "out"
    arguments = ("reproduce", "run", "rpeg/table10", "--no-notebook", "--out", out)
    stopped = cli(*arguments)
    assert stopped.code == 130
    assert "the same command goes on from there" in stopped.err
    assert [p.name.partition(".partial")[1] for p in out.iterdir()] == [".partial"]
    assert cli(*arguments).code == 0
    assert len(calls) == 3  # the first case was kept, the second is computed again


def test_a_folder_that_cannot_be_written(cli: Cli, tmp_path: Path, little: None) -> None:
    (tmp_path / "file").write_text("")
    result = cli("reproduce", "run", "rpeg/table10", "--no-notebook", "--out", tmp_path / "file" / "out")
    assert result.code == 2
    assert "file" in result.err


def test_the_documented_options_are_those_of_the_commands(cli: Cli) -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    section = re.search(r"^## `rlprof reproduce .*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None
    shown = "".join(cli("reproduce", verb, "--help").out for verb in ("list", "run", "show"))
    options = set(re.findall(r"--[a-z][a-z-]+", shown)) - {"--help"}
    assert set(re.findall(r"--[a-z][a-z-]+", section[0])) == options
