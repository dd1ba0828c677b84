"""`rlprof optimize report`: the page of a search that was kept, and what is refused in a line."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.conftest import ROOT

KEPT = ROOT / "benchmarks" / "results" / "searches" / "optimize_mujoco_warp_search.json"


def test_a_search_on_a_gpu_has_its_page_here(cli: Cli, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = cli("optimize", "report", KEPT, "--out", page)
    assert done.code == 0, done.err
    assert done.out.strip() == str(page)
    text = page.read_text()
    assert "NVIDIA H200" in text
    assert "refused: figure 9b" in text
    total = json.loads(KEPT.read_text())["total"]
    assert f"{total['reference']['median_s'] / total['candidate']['median_s']:.3f} ×" in text
    assert text.count('type="application/json" data-chart=') == 2


def test_a_folder_gets_its_page_beside_the_result(cli: Cli, tmp_path: Path) -> None:
    shutil.copyfile(KEPT, tmp_path / "result.json")
    assert cli("optimize", "report", tmp_path).code == 0
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_what_cannot_be_made_is_one_line(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = cli("optimize", "report", tmp_path / "no")
    assert done.code == 2
    assert "cannot be read" in done.err.strip().splitlines()[-1]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = cli("optimize", "report", KEPT, "--out", tmp_path / "page.html")
    assert done.code == 2
    assert "a report needs polars and altair" in done.err.strip().splitlines()[-1]
    assert not (tmp_path / "page.html").exists()


def test_the_documented_option_is_that_of_the_command(cli: Cli) -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    section = text.split("## `rlprof optimize report RESULT`")[1].split("\n## ")[0]
    assert "| `--out FILE` |" in section
    assert "--out" in cli("optimize", "report", "--help").out
