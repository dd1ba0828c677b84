"""The notebooks of figures: they redraw from stored raw tables, and run small from nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlprof.reproduce.registry import FIGURES, Figure, figure_named
from tests.conftest import ROOT
from tests.notebooks.execute import execute, mime_types, printed

QUICK = "rpeg/fig08"
STORED = {f.name for f in FIGURES if f.name != QUICK}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel runs in another folder: it finds this checkout even where rlprof is not installed."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def run(figure: Figure, folder: Path, preset: str) -> str:
    """Execute a notebook; what it printed, once it drew and wrote what it should."""
    out = folder / "out"
    done = execute(figure.notebook(ROOT), folder, preset=preset, out_dir=str(out), repository=str(ROOT))
    assert any("image/svg+xml" in kinds for kinds in mime_types(done))
    written = {p.name for p in out.iterdir()}
    assert f"{figure.short}.comparison.csv" in written
    assert any(name.endswith(".svg") for name in written)
    return printed(done)


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
    assert list((tmp_path / "out").glob("*.smoke.csv"))
