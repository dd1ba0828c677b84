"""`rlprof optimize report`: the page of a search that was kept, and what is refused in a line."""

from __future__ import annotations

import importlib.util
import json
import re
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
    assert "no: no such file or folder. Next: " in done.err.strip().splitlines()[-1]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = cli("optimize", "report", KEPT, "--out", tmp_path / "page.html")
    assert done.code == 2
    assert "a report needs polars and altair" in done.err.strip().splitlines()[-1]
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("decisions", [None]),
        ("rounds", 3),
        ("timelines", {"before": 1}),
        ("timelines", {"before": [[[None], 0, 1, "a"]]}),
        ("overhead", []),
        ("total", "<b>"),
        ("facts", 3),
        ("sm_activity", "much"),
        ("iterations", True),
    ],
)
def test_a_result_of_another_form_is_one_line_that_names_the_file(
    cli: Cli, tmp_path: Path, where: str, value: object
) -> None:
    damaged = tmp_path / "damaged.json"
    damaged.write_text(json.dumps({**json.loads(KEPT.read_text()), where: value}))
    done = cli("optimize", "report", damaged, "--out", tmp_path / "page.html")
    assert done.code == 2
    assert len(done.err.strip().splitlines()) == 1
    assert "damaged.json: holds what no result of this version does" in done.err
    assert not (tmp_path / "page.html").exists()


def test_numbers_beyond_all_are_not_shown_as_numbers(cli: Cli, tmp_path: Path) -> None:
    document = json.loads(KEPT.read_text())
    document["overhead"]["total_s"] = 123456789.0
    kept = tmp_path / "result.json"
    for number in ("1e999", "-Infinity", "NaN"):
        kept.write_text(json.dumps(document).replace("123456789.0", number))
        assert cli("optimize", "report", tmp_path).code == 0
        page = (tmp_path / "report.html").read_text()
        assert not re.search(r">[^<]*\b(inf|nan) ?(s|%)<", page)


def test_the_documented_option_is_that_of_the_command(cli: Cli) -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    section = text.split("## `rlprof optimize report RESULT`")[1].split("\n## ")[0]
    assert "| `--out FILE` |" in section
    assert "--out" in cli("optimize", "report", "--help").out
