"""The notebook in the folder of an optimisation: made from the template, only reads the result."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import nbformat
import pytest

from rlprof.report.optimize_notebook import parameters, show, write_optimization_notebook
from rlprof.report.optimize_sections import section, sections
from rlprof.report.optimize_stored import read_result, whole
from tests.conftest import ROOT, python_path
from tests.report.test_optimize import EARLIER, result_of

STORED = ROOT / "benchmarks" / "results" / "optimize" / "cpu.json"


def test_the_template_shows_every_section_and_stores_no_outputs() -> None:
    text = files("rlprof.report").joinpath("optimize.ipynb").read_text()
    notebook = nbformat.reads(text, as_version=4)  # type: ignore[no-untyped-call]
    nbformat.validate(notebook)
    code = [c for c in notebook.cells if c.cell_type == "code"]
    assert all(not c.outputs and c.execution_count is None for c in code)
    assert [c for c in code if "parameters" in c.metadata.get("tags", [])] == [parameters(notebook)]
    shown = "\n".join(c.source for c in code)
    assert [f'show(shown["{name}"])' in shown for name in sections(read_result(STORED))].count(False) == 0


@pytest.mark.parametrize("name", ["found", 'it\'s "quoted"', "new\nline", "é\\n"])
def test_its_parameter_is_the_path_whatever_it_is_called(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    write_optimization_notebook(folder / "result.json", folder / "report.ipynb")
    notebook = json.loads((folder / "report.ipynb").read_text())
    found: dict[str, object] = {}
    exec("".join(parameters(notebook)["source"]), found)
    assert found["result_path"] == str(folder / "result.json")
    assert found["static_charts"] is True
    assert [p.name for p in folder.iterdir()] == ["report.ipynb"]


def test_it_runs_and_only_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.notebooks.execute import execute, mime_types, printed

    monkeypatch.setenv("PYTHONPATH", python_path())
    made, moved, at = tmp_path / "made", tmp_path / "moved", tmp_path / "at"
    at.mkdir()
    made.mkdir()
    (made / "result.json").write_text(json.dumps(result_of(1) | {"earlier_graph": EARLIER}))
    write_optimization_notebook(made / "result.json", made / "report.ipynb")
    made.rename(moved)  # as a folder is that somebody copies: the result is beside the notebook
    (at / "result.json").write_bytes((moved / "result.json").read_bytes())
    done = execute(moved / "report.ipynb", at)
    text = printed(done)
    assert "iterations until it is paid back" in text
    assert "split_spatial iteration/rollout/epoch groups=2" in text
    assert "graph.json: it stays: what is shown here found less" in text
    assert sum("image/svg+xml" in kinds for kinds in mime_types(done)) == 6
    assert {p.name for p in moved.iterdir()} == {"result.json", "report.ipynb"}
    assert {p.name for p in at.iterdir()} == {"result.json", "report.ipynb"}


def test_what_is_missing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    result = whole(json.loads(STORED.read_text()))
    show(section(result, "timelines"))
    assert "The calls of the iterations are not stored in this result." in capsys.readouterr().out
