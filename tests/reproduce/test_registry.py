"""Every figure has its notebook, its studies and a comparison; every notebook is a figure's."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from rlprof.reproduce.checkout import find_checkout
from rlprof.reproduce.errors import CheckoutError, UnknownFigureError
from rlprof.reproduce.papers import read_paper
from rlprof.reproduce.registry import FIGURES, PAPERS, Figure, figure_named
from rlprof.reproduce.study import shipped_path
from tests.conftest import ROOT
from tests.notebooks.execute import known_parameters

#: Notebooks that are no figure's: they explain.
OTHERS = {"rpeg/calibration"}
PARAMETERS = {"preset", "seed", "out_dir", "repository", "fresh"}


@pytest.mark.parametrize("figure", FIGURES, ids=lambda f: f.name)
def test_a_figure_has_a_notebook_that_takes_what_the_driver_gives(figure: Figure) -> None:
    path = figure.notebook(ROOT)
    assert known_parameters(path) == PARAMETERS
    code = "\n".join(c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code")
    assert f'begin("{figure.name}"' in code
    assert "session.comparison()" in code
    assert figure.paper in PAPERS


def test_every_notebook_is_a_figures() -> None:
    found = {str(p.relative_to(ROOT / "reproductions")) for p in (ROOT / "reproductions").rglob("*.ipynb")}
    assert found == {f"{name}.ipynb" for name in {f.name for f in FIGURES} | OTHERS}


@pytest.mark.parametrize("figure", FIGURES, ids=lambda f: f.name)
def test_the_paper_has_numbers_for_every_figure(figure: Figure) -> None:
    assert read_paper(ROOT / "datasets" / "papers" / f"{figure.paper}.csv").of(figure.short)


@pytest.mark.parametrize("figure", FIGURES, ids=lambda f: f.name)
def test_studies_are_made_without_computing_and_are_the_same_each_time(figure: Figure) -> None:
    for preset in figure.presets:
        first, again = (figure.make_studies(preset, 3, ROOT) for _ in range(2))
        assert [s.key for s in first.values()] == [s.key for s in again.values()]
        assert all(s.preset == preset and s.seed == 3 for s in first.values())
        # there are cases, or it says what makes them
        assert all(bool(s.cases) != bool(s.missing) for s in first.values())
    other = figure.make_studies(figure.presets[0], 4, ROOT)
    assert {s.key for s in other.values()}.isdisjoint(
        s.key for s in figure.make_studies(figure.presets[0], 3, ROOT).values()
    )
    with pytest.raises(UnknownFigureError, match="no preset 'huge'"):
        figure.make_studies("huge", 0, ROOT)


def test_the_largest_preset_of_every_figure_is_shipped() -> None:
    studies = {s.name: s for f in FIGURES for s in f.make_studies(f.presets[-1], 0, ROOT).values()}
    there = {name for name, s in studies.items() if shipped_path(ROOT, s).is_file()}
    assert there == {name for name, s in studies.items() if not s.missing}


def test_names_that_are_near() -> None:
    assert figure_named("RPEG/fig06").name == "rpeg/fig06"
    with pytest.raises(UnknownFigureError, match=r"did you mean rpeg/fig0"):
        figure_named("rpeg/fig6")
    with pytest.raises(UnknownFigureError, match="rlprof reproduce list"):
        figure_named("unheard of")


def test_a_checkout_is_found_from_a_folder_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_checkout(ROOT / "rlprof" / "reproduce") == ROOT
    with pytest.raises(CheckoutError, match="no checkout"):
        find_checkout(tmp_path)  # named, and none: never another in its place
    monkeypatch.chdir(tmp_path)
    assert find_checkout() == ROOT  # the one that the package comes from
    monkeypatch.setattr("rlprof.reproduce.checkout.MARKS", ("absent",))
    with pytest.raises(CheckoutError, match="--repository"):
        find_checkout(tmp_path)
