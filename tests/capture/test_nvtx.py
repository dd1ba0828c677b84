"""NVTX as a tool sees it: a small tool of our own, compiled here, listens to the real package nvtx."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from rlprof.capture import recorder
from tests.capture.made import names, run

pytest.importorskip("nvtx")

PROGRAM = """
import asyncio, rlprof
A = rlprof.annotate
async def worker():
    with A('worker'):
        await asyncio.sleep(0.001)
async def main():
    with A('iteration'):
        await asyncio.gather(worker(), worker())
with A('train'):
    asyncio.run(main())
    for _ in rlprof.annotate_loop(50, 'step'):
        pass
"""
EVENTS = [
    ("push", "train"),
    ("push", "iteration"),
    ("start", "worker"),
    ("start", "worker"),
    ("end", ""),
    ("end", ""),
    ("pop", ""),
    *[("push", "step"), ("pop", "")] * 4,
    ("mark", "rlprof.count:train/step=50"),
    ("pop", ""),
]


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("tool") / "tool.so"
    source = Path(__file__).with_name("nvtx_tool.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True)
    return library


def heard(log: Path) -> list[tuple[str, str]]:
    """(what, name) of each event; all are in rlprof's domain."""
    rows = [line.split("\t") for line in log.read_text().splitlines()]
    assert {domain for _, _, domain, _, _ in rows} == {"rlprof"}
    return [(what, name) for what, _, _, name, _ in rows]


@pytest.mark.parametrize("session", [False, True])
def test_a_tool_hears_ranges_with_and_without_a_session(tool: Path, tmp_path: Path, session: bool) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    log = tmp_path / "log"
    environment = {"NVTX_INJECTION64_PATH": str(tool), "NVTX_TOOL_LOG": str(log)}
    done = run(PROGRAM, folder if session else None, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert heard(log) == EVENTS
    if session:
        assert sorted(names(folder)) == ["iteration", *["step"] * 4, "train", "worker", "worker"]
    else:
        assert list(folder.iterdir()) == []


def test_without_a_tool_nothing_listens() -> None:
    done = run(
        "import rlprof; rlprof.annotate; from rlprof.capture import recorder; print(recorder.current)", None
    )
    assert done.stdout == "None\n"
    assert recorder.current is None
