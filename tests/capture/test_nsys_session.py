"""Sessions by Nsight Systems: signals, the report, cutting; by a stand-in for nsys, and on a GPU for real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rlprof
from rlprof.capture.nsys_session import _ending, first_ranges
from tests.conftest import DATA, ROOT

EXPORT = DATA / "nsys" / "vla_chunk_and_training.sqlite"

#: Runs the command; at SIGINT it ends the program by SIGTERM and writes its report all the same, as nsys
#: does. The export beside the report is what rlprof then reads.
STAND_IN = f"""#!{sys.executable}
import os, shutil, signal, subprocess, sys, time
if sys.argv[1] == "--version":
    print("NVIDIA Nsight Systems version 2999.1.1.1-0")
    sys.exit()
out = next(a.partition("=")[2] for a in sys.argv if a.startswith("--output="))
at = next(i for i, a in enumerate(sys.argv) if i > 1 and not a.startswith("--"))
told = []
signal.signal(signal.SIGINT, lambda *_: (told.append(1), child.terminate()))
signal.signal(signal.SIGTERM, lambda *_: os._exit(99))  # nsys that is ended by force leaves no report
child = subprocess.Popen(sys.argv[at:])
child.wait()
if told:
    time.sleep(1.0)  # a report takes time to write: what is sent meanwhile comes before it is there
if len(told) < 2:
    open(out, "wb").write(b"NVIDIA Tegra Profiler Report " + bytes(4096))
    shutil.copy({str(EXPORT)!r}, out.replace(".nsys-rep", ".sqlite"))
sys.exit(child.returncode if child.returncode >= 0 else 128 - child.returncode)
"""

WAITS = "import time; print('go', flush=True); time.sleep(60)"


@pytest.fixture
def stand_in(tmp_path: Path) -> dict[str, str]:
    """Environment in which `nsys` is the stand-in."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "nsys").write_text(STAND_IN)
    (folder / "nsys").chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def capture(
    out: Path, *command: str, options: tuple[str, ...] = (), env: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    whole = [*(sys.executable, "-m", "rlprof", "capture", "--backend", "nsys"), *options]
    return subprocess.Popen(
        [*whole, "-o", str(out), "--", *command],
        cwd=ROOT, env=env, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("times", [1, 2])
def test_a_signal_makes_nsys_write_its_report(
    tmp_path: Path, stand_in: dict[str, str], number: int, times: int
) -> None:
    out = tmp_path / "run.rlprof"
    running = capture(out, sys.executable, "-c", WAITS, env=stand_in)
    assert running.stdout is not None
    assert running.stdout.readline() == "go\n"
    for _ in range(times):
        running.send_signal(number)
    _, err = running.communicate(timeout=120)
    assert running.returncode == 143, err
    assert rlprof.read(out).ranges.height > 0


def test_a_second_signal_amid_the_first_is_not_passed_on() -> None:
    sent: list[int] = []

    class Nsys:
        def send_signal(self, number: int) -> None:
            sent.append(number)
            if len(sent) < 5:
                signal.raise_signal(signal.SIGTERM)  # its handler runs before the first has returned

    with _ending(Nsys):  # type: ignore[arg-type]
        signal.raise_signal(signal.SIGTERM)
    assert sent == [signal.SIGINT]


def test_a_signal_that_comes_as_nsys_starts_is_passed_on() -> None:
    sent: list[int] = []

    class Nsys:
        def __init__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

        def send_signal(self, number: int) -> None:
            sent.append(number)

    with _ending(Nsys):  # type: ignore[arg-type]
        signal.raise_signal(signal.SIGTERM)
    assert sent == [signal.SIGINT]


def test_the_exit_code_is_the_programs(tmp_path: Path, stand_in: dict[str, str]) -> None:
    out = tmp_path / "run.rlprof"
    running = capture(out, sys.executable, "-c", "raise SystemExit(3)", env=stand_in)
    running.communicate(timeout=120)
    assert running.returncode == 3
    assert out.is_file()


def test_stop_after_cuts_the_capture(tmp_path: Path, stand_in: dict[str, str]) -> None:
    out = tmp_path / "run.rlprof"
    running = capture(out, "true", env=stand_in, options=("--start-on", "minibatch", "--stop-after", "2"))
    _, err = running.communicate(timeout=120)
    assert running.returncode == 0, err
    whole = rlprof.read(EXPORT).ranges.sort("start_ns")
    mine = whole.filter(whole["name"].cast(str) == "minibatch").sort("end_ns")
    kept = rlprof.read(out)
    assert kept.meta.end_ns - kept.meta.start_ns == mine["end_ns"][1] - mine["start_ns"].min()
    counted = kept.ranges.filter(kept.ranges["name"].cast(str) == "minibatch")
    assert counted.filter(~counted["cut"]).height == 2


def test_fewer_ranges_than_asked_for_keep_the_rest() -> None:
    trace = rlprof.read(EXPORT)
    kept = first_ranges(trace, "minibatch", 10_000)
    assert kept.meta.end_ns == trace.meta.end_ns
    assert first_ranges(trace, "nonesuch", 1) is trace


LOAD = """
import time, rlprof, torch
x = torch.zeros(1 << 20, device="cuda")
print("go", flush=True)
for i in range({steps}):
    with rlprof.annotate("step"):
        for _ in range(100):
            x.add_(1)
        torch.cuda.synchronize()
        time.sleep(0.01)
"""


@pytest.fixture
def real_nsys() -> None:
    from rlprof.trace.nsys_tool import find_nsys

    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU here")
    if not find_nsys():
        pytest.skip("nsys is not installed")


def ranges_of(report: Path) -> int:
    """Ranges named `step` in a report, counted by nsys itself and sqlite3."""
    import sqlite3

    from rlprof.trace.nsys_tool import find_nsys

    made = report.with_suffix(".counted.sqlite")
    find_nsys()[0].export(report, made, kind="sqlite")
    with sqlite3.connect(made) as db:
        names = "LEFT JOIN StringIds s ON s.id = e.textId"
        query = f"SELECT count(*) FROM NVTX_EVENTS e {names} WHERE coalesce(e.text, s.value) = 'step'"
        return int(db.execute(query).fetchone()[0])


@pytest.mark.gpu
@pytest.mark.usefixtures("real_nsys")
def test_real_nsys_writes_its_report_at_sigterm(tmp_path: Path) -> None:
    running = capture(tmp_path / "run.rlprof", sys.executable, "-c", LOAD.format(steps=5000))
    assert running.stdout is not None
    while (line := running.stdout.readline()) != "go\n":
        assert line, running.communicate()[1]
    time.sleep(2)
    running.send_signal(signal.SIGTERM)
    said = running.communicate(timeout=100)
    assert "written:" in "".join(said), said
    assert 10 < ranges_of(tmp_path / "run.nsys-rep") < 5000


@pytest.mark.gpu
@pytest.mark.usefixtures("real_nsys")
def test_real_nsys_starts_on_a_range(tmp_path: Path) -> None:
    before = "with rlprof.annotate('before'): time.sleep(0.2)\n"
    code = LOAD.format(steps=30).replace("for i in", f"{before}for i in")
    running = capture(
        tmp_path / "run.rlprof", sys.executable, "-c", code,
        options=("--start-on", "step", "--stop-after", "3"),
    )  # fmt: skip
    said = running.communicate(timeout=100)
    assert running.returncode == 0, said
    assert "written:" in "".join(said), said
    assert 25 <= ranges_of(tmp_path / "run.nsys-rep") <= 30
    if (tmp_path / "run.rlprof").exists():  # where polars is
        kept = rlprof.read(tmp_path / "run.rlprof")
        assert kept.ranges.filter(~kept.ranges["cut"]).height >= 3
