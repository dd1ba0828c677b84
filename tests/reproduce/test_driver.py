from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from rlprof.reproduce import driver
from rlprof.reproduce.errors import NotebookError
from tests.conftest import ROOT


def made(folder: Path, code: str) -> Path:
    cells = [new_code_cell("x = 1", metadata={"tags": ["parameters"]}), new_code_cell(code)]
    kernel = {"name": "python3", "display_name": "Python", "language": "python"}
    notebook = new_notebook(cells=cells, metadata={"kernelspec": kernel})
    path = folder / "made.ipynb"
    nbformat.write(notebook, path)
    return path


def test_a_notebook_runs_with_its_parameters_and_a_failure_is_kept_beside(tmp_path: Path) -> None:
    path = made(tmp_path, "import rlprof\nassert x != 3, 'x is three'\nprint('x is', x)")
    target = tmp_path / "out" / "made.ipynb"
    driver.run_notebook(path, target, {"x": 2}, ROOT)
    assert "x is 2" in target.read_text()
    with pytest.raises(NotebookError, match="AssertionError: x is three") as caught:
        driver.run_notebook(path, target, {"x": 3}, ROOT)
    failed = tmp_path / "out" / "made.failed.ipynb"
    assert str(failed) in str(caught.value)
    assert {p.name for p in target.parent.iterdir()} == {target.name, failed.name}
    assert "x is 2" in target.read_text()  # the earlier result is as it was


def test_what_cannot_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path, "")
    with pytest.raises(NotebookError, match="no parameter 'y'"):
        driver.run_notebook(path, tmp_path / "out.ipynb", {"y": 2}, ROOT)
    with pytest.raises(NotebookError, match="no such notebook"):
        driver.run_notebook(tmp_path / "absent.ipynb", tmp_path / "out.ipynb", {}, ROOT)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(NotebookError, match=r"rlprof\[notebook\]"):
        driver.run_notebook(path, tmp_path / "out.ipynb", {}, ROOT)
