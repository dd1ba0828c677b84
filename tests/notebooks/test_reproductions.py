"""The notebooks of figures: they redraw from stored raw tables, and run small from nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rlprof.reproduce.registry import FIGURES, Figure, figure_named
from rlprof.reproduce.study import shipped_path
from tests.conftest import ROOT, python_path
from tests.notebooks.execute import execute, mime_types, printed
from tests.reproduce.rose import made

QUICK = "rpeg/fig08"
STORED = {f.name for f in FIGURES if f.name != QUICK}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel runs in another folder: it finds this checkout even where rlprof is not installed."""
    monkeypatch.setenv("PYTHONPATH", python_path())


def run(figure: Figure, folder: Path, preset: str, repository: Path = ROOT) -> str:
    """Execute a notebook; what it printed, once it drew and wrote what it should."""
    out = folder / "out"
    done = execute(figure.notebook(ROOT), folder, preset=preset, out_dir=str(out), repository=str(repository))
    text = printed(done)
    written = {p.name for p in out.iterdir()}
    assert f"{figure.short}.comparison.csv" in written
    # what nobody has measured is not drawn, and what would measure it is said
    measured = not any(s.missing for s in figure.make_studies(preset, 0, repository).values())
    assert measured != ("no rows: " in text)
    drawn = measured and "no chart: " not in text  # some of what a figure reads may be of another simulator
    assert drawn == any("image/svg+xml" in kinds for kinds in mime_types(done))
    assert drawn == any(name.endswith(".svg") for name in written)
    return text


def test_a_figure_is_drawn_from_stored_tables_without_computing(tmp_path: Path) -> None:
    text = run(figure_named(QUICK), tmp_path, "full")
    assert "preset full, seed 0: computed 20" in text
    assert "note: not used" not in text
    assert "memory: with 102 GB the best plan lacks" in text
    # nothing was computed, so there is no raw table of our own
    assert not list((tmp_path / "out").glob("*.full.csv"))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(STORED))
def test_every_figure_is_drawn_from_stored_tables(tmp_path: Path, name: str) -> None:
    figure = figure_named(name)
    text = run(figure, tmp_path, figure.presets[-1])
    if figure.paper == "rpeg":  # measurements are read again where there are more than the table has
        assert "note: not used" not in text
        assert not list((tmp_path / "out").glob(f"*.{figure.presets[-1]}.csv"))


@pytest.mark.slow
@pytest.mark.parametrize("figure", [f for f in FIGURES if "smoke" in f.presets], ids=lambda f: f.name)
def test_every_figure_runs_small_from_nothing(tmp_path: Path, figure: Figure) -> None:
    text = run(figure, tmp_path, "smoke")
    assert "its numbers are not to be compared" in text
    studies = figure.make_studies("smoke", 0, ROOT).values()
    stored = all(shipped_path(ROOT, s).is_file() or s.missing for s in studies)
    assert bool(list((tmp_path / "out").glob("*.smoke.csv"))) != stored


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rose/fig12", "rose/fig14a", "rose/fig14b", "rose/overhead"])
def test_a_figure_of_optimisations_is_drawn_once_there_are_some(tmp_path: Path, name: str) -> None:
    quotas = {"quotas": {"simulator": 90}, "reason": "complete runs gain 8 %"}
    variants = (("native", 50.0, 0.4), ("optimised", 60.0, 0.6), ("with quota", 65.0, 0.6))
    there = made.checkout(
        tmp_path / "checkout",
        libero=made.optimised(),
        warp=made.optimised("mujoco_warp"),
        warp_mps=made.optimised("mujoco_warp", mps=True, variants=variants, quotas=quotas),
    )
    (there / "reproductions").mkdir()
    shutil.copytree(ROOT / "datasets" / "papers", there / "datasets" / "papers")
    text = run(figure_named(name), tmp_path, "h200", there)
    assert "no chart" not in text
    assert "measured on NVIDIA H200" in text
