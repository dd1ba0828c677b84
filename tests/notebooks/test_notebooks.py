"""The tutorials: well formed, without outputs, and each runs and says what it should."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from papermill.exceptions import PapermillExecutionError

import rlprof
from tests.conftest import ROOT, python_path
from tests.notebooks.execute import execute, known_parameters, mime_types, printed

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb")) + sorted((ROOT / "reproductions").rglob("*.ipynb"))
IDLE = ROOT / "notebooks" / "01_where_is_my_gpu_idle.ipynb"
CAPTURE = ROOT / "notebooks" / "02_capture.ipynb"
OVERLAP = ROOT / "notebooks" / "03_overlap_by_hand.ipynb"
SHIPPED = ROOT / "datasets" / "vla_h200.rlprof"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel runs in another folder: it finds this checkout even where rlprof is not installed."""
    monkeypatch.setenv("PYTHONPATH", python_path())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_valid_and_stores_no_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert not cell.outputs
            assert cell.execution_count is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_has_one_cell_of_parameters(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    tagged = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    assert len(tagged) == 1
    assert known_parameters(path)


def test_a_misspelt_parameter_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="top_m"):
        execute(IDLE, tmp_path, top_m=3)


def test_links_of_the_tutorials_resolve() -> None:
    for path in NOTEBOOKS:
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "markdown":
                for target in re.findall(r"\]\((?![a-z]+:)([^)#]+)", cell.source):
                    assert (path.parent / target).exists(), target


def test_where_is_my_gpu_idle_on_the_shipped_capture(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = execute(IDLE, tmp_path, trace_path=str(SHIPPED), out_dir=str(out))
    text = printed(done)
    assert "iteration: iteration, 3 of them" in text
    assert "activity: sm_counters, one sample every 0.5 ms" in text
    assert "82.0% of the time lies below 50% activity" in text
    assert re.search(
        r"best-ranked leaf: \S+/policy/denoise \(36 invocations, 2\.8135 s, activity 0\.084\)", text
    )
    # charts and the explorer are pictures: they show without a browser and without a network
    kinds = mime_types(done)
    assert sum("image/svg+xml" in k for k in kinds) == 4
    assert sum({"application/vnd.jupyter.widget-view+json", "image/png"} <= k for k in kinds) == 1
    assert {p.name for p in out.iterdir()} == {
        "windows.csv", "windows.svg", "activity.png", "distribution.svg", "timeline.html",
    }  # fmt: skip
    header = (out / "windows.csv").read_text().splitlines()[0]
    assert header.startswith("node,process,device,")


def test_where_is_my_gpu_idle_writes_nothing_unasked(tmp_path: Path, data: Path) -> None:
    small = data / "nsys" / "vla_chunk_and_training.sqlite"
    done = execute(IDLE, tmp_path, trace_path=str(small), preset="full", top_n=3, static_charts=False)
    assert not any("image/svg+xml" in k for k in mime_types(done))
    shown = [o["data"].get("text/html", "") for c in done.cells for o in c.get("outputs", []) if "data" in o]
    assert sum("vegaEmbed" in html for html in shown) == 4  # charts that zoom
    assert re.search(r"best-ranked leaf: \S+/policy/denoise \(1 invocations", printed(done))
    assert {p.name for p in tmp_path.iterdir()} == {IDLE.name}


def test_capture_makes_reads_and_compares_captures(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = execute(CAPTURE, tmp_path, repository=str(ROOT), out_dir=str(out))
    text = printed(done)
    assert re.search(r"^host   works, 20 Hz", text, re.MULTILINE)
    assert "iteration: iteration, 4 of them" in text
    assert "activity: host_cores, one sample every" in text
    assert "note: activity of the host's cores: no GPU was measured" in text
    # all of 1,200 steps are counted, ten are measured, and the total is that of all
    loop = re.search(r"denoise/step: 1,200 times, of which 10 measured; (\S+) s in all", text)
    assert loop is not None
    assert float(loop[1]) > 1200 * 0.0005
    assert "vla_small_h200_nsys: sm_counters every 500 us" in text
    assert "vla_small_h200: sm_counters every 100 us, clocks within 8.3 us; 3 iterations, 81%" in text
    assert sum("image/svg+xml" in k for k in mime_types(done)) == 3
    # captures and charts, and no folder of parts left
    assert {p.name for p in out.iterdir()} == {
        "toy.rlprof", "loop.rlprof", "toy_activity.svg", "four_numbers.svg",
    }  # fmt: skip
    trace = rlprof.read(out / "toy.rlprof")
    assert dict(trace.ranges.group_by("name").len().iter_rows()) == {
        "iteration": 4, "rollout": 4, "training": 4, "policy": 8, "simulator": 8,
    }  # fmt: skip


def test_capture_refuses_a_preset_that_it_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(PapermillExecutionError, match="preset is 'huge'"):
        execute(CAPTURE, tmp_path, preset="huge")
    assert {p.name for p in tmp_path.iterdir()} == {CAPTURE.name}


def test_overlap_by_hand_keeps_every_bit(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = execute(OVERLAP, tmp_path, repository=str(ROOT), out_dir=str(out))
    text = printed(done)
    assert "5 iterations: rewards, weights and worlds are equal bit for bit" in text
    assert text.count("refused:") == 2
    predicted = re.search(r"predicted: (\S+) s natively, (\S+) s overlapped", text)
    assert predicted is not None
    assert float(predicted[2]) < 0.95 * float(predicted[1])
    assert sum("image/svg+xml" in k for k in mime_types(done)) == 2
    assert {p.name for p in out.iterdir()} == {"before.svg", "after.svg"}
    (wrapping,) = [c.source for c in done.cells if c.cell_type == "code" and "= Program()" in c.source]
    assert len([line for line in wrapping.splitlines() if line.strip()]) < 25


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nsys/gpu_metrics_two_gpus_no_cuda.sqlite", "no leaf has a rank"),
        ("nsys/training_autograd_thread.sqlite", "activity: kernel_union"),
        ("kineto/cpu_only.pt.trace.json.gz", "activity: unavailable"),
    ],
)
def test_where_is_my_gpu_idle_on_captures_that_lack_something(
    tmp_path: Path, shared_traces: Path, name: str, said: str
) -> None:
    assert said in printed(execute(IDLE, tmp_path, trace_path=str(shared_traces / name)))
