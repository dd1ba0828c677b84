"""Sessions: everything on a real host sampler, without a GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

import rlprof
from rlprof.capture.assemble import SESSION_FILE, SessionFacts, assemble
from rlprof.capture.clock import Anchor
from rlprof.capture.options import Options
from rlprof.capture.part_reader import read_parts
from rlprof.capture.parts import PartWriter, write_process
from rlprof.capture.recorder import ENVIRONMENT
from rlprof.capture.session import Session, run_command, span_of
from rlprof.errors import DamagedTraceError, OutputError, UsageError
from rlprof.trace.export import export

PROGRAM = """
import os, sys, time
import rlprof
if os.environ.get("ATTACH_CHILD"):
    import multiprocessing
def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
def child():
    with rlprof.annotate("simulator"):
        spin(0.15)
if __name__ == "__main__":
    print("go", flush=True)
    for i in range(int(sys.argv[1])):
        with rlprof.annotate("iteration"):
            with rlprof.annotate("policy"):
                spin(0.1)
            time.sleep(0.1)
            if os.environ.get("ATTACH_CHILD"):
                p = multiprocessing.get_context("spawn").Process(target=child)
                p.start()
                p.join()
    sys.exit(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
"""


@pytest.fixture
def program(tmp_path) -> list[str]:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return [sys.executable, str(path)]


def host(out: Path, **more) -> Session:
    return Session(out, Options(backend="host", rate_hz=20), **more)


def nodes(path: Path) -> dict[str, int]:
    frame = rlprof.read(path).windows().frame
    return dict(frame.group_by("node").agg(pl.col("count").sum()).iter_rows())


def test_a_block_is_captured(tmp_path):
    out = tmp_path / "run.rlprof"
    with rlprof.capture(out, backend="host", rate_hz=20) as session:
        assert os.environ[ENVIRONMENT] == str(session.folder)
        for _ in range(3):
            with rlprof.annotate("iteration"), rlprof.annotate("policy"):
                time.sleep(0.2)
    trace = rlprof.read(out)
    report = trace.windows()
    assert report.activity_source == "host_cores"
    assert report.iteration.count == 3
    assert nodes(out) == {"iteration": 3, "iteration/policy": 3}
    assert 0.6 <= report.iteration.total_s < 6
    # ranges and samples are on one clock: the samples cover the ranges
    assert report.frame["coverage"].min() > 0.9
    assert trace.meta.utc_origin_ns == pytest.approx(time.time_ns(), abs=60e9)
    assert trace.processes["pid"].to_list() == [os.getpid()]
    assert ENVIRONMENT not in os.environ
    assert [p.name for p in tmp_path.iterdir()] == ["run.rlprof"]


def test_an_exception_still_leaves_a_capture(tmp_path):
    with (
        pytest.raises(ZeroDivisionError),
        rlprof.capture(tmp_path / "run.rlprof", backend="none"),
        rlprof.annotate("iteration"),
    ):
        1 / 0  # noqa: B018
    assert nodes(tmp_path / "run.rlprof") == {"iteration": 1}


def test_sessions_do_not_nest(tmp_path):
    with (
        rlprof.capture(tmp_path / "a.rlprof", backend="none"),
        pytest.raises(UsageError, match="running already"),
    ):
        rlprof.capture(tmp_path / "b.rlprof", backend="none")


def test_output_that_exists_is_kept_without_force(tmp_path):
    out = tmp_path / "run.rlprof"
    out.write_text("precious")
    with pytest.raises(OutputError, match=r"exists already.*--force.*force=True"):
        host(out).start()
    assert out.read_text() == "precious"
    with rlprof.capture(out, backend="none", force=True), rlprof.annotate("a"):
        pass
    assert nodes(out) == {"a": 1}


def test_parts_of_an_earlier_session_are_kept_without_force(tmp_path):
    (tmp_path / "run.rlprof.parts").mkdir()
    with pytest.raises(OutputError, match="earlier session"):
        host(tmp_path / "run.rlprof").start()


def test_a_program_and_its_child_processes(tmp_path, program, monkeypatch):
    monkeypatch.setenv("ATTACH_CHILD", "1")
    code, made = run_command([*program, "2"], host(tmp_path / "run.rlprof"))
    assert code == 0
    assert nodes(made) == {"iteration": 2, "iteration/policy": 2, "simulator": 2}
    trace = rlprof.read(made)
    assert trace.processes.height == 3
    assert trace.windows().activity_source == "host_cores"


def test_the_exit_code_is_the_programs(tmp_path, program):
    code, made = run_command([*program, "1", "7"], host(tmp_path / "run.rlprof"))
    assert code == 7
    assert nodes(made)["iteration"] == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_as_the_program_starts_is_passed_on(tmp_path, monkeypatch, number):
    popen = subprocess.Popen

    def interrupted(*arguments, **more):
        made = popen(*arguments, **more)
        signal.raise_signal(number)
        return made

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    monkeypatch.setattr(sys, "stdin", None)  # no terminal, which would tell the program itself
    code, made = run_command(["sleep", "60"], Session(tmp_path / "run.rlprof", Options(backend="none")))
    assert code == 128 + number
    assert made.is_file()


def test_a_program_at_a_terminal_is_not_started_with_ctrl_c_ignored(tmp_path):
    """It gets Ctrl-C from the terminal itself, and what is ignored stays so in what is started."""
    out = tmp_path / "handler"
    captured = f"import signal; open({str(out)!r}, 'w').write(str(signal.getsignal(signal.SIGINT)))"
    code = (
        "import sys\nfrom rlprof.capture.options import Options\n"
        "from rlprof.capture.session import Session, run_command\n"
        f"session = Session({str(tmp_path / 'run.rlprof')!r}, Options(backend='none'))\n"
        f"assert sys.stdin.isatty()\nrun_command([sys.executable, '-c', {captured!r}], session)"
    )
    master, terminal = os.openpty()
    try:
        subprocess.run([sys.executable, "-c", code], stdin=terminal, check=True)
    finally:
        os.close(master)
        os.close(terminal)
    assert "default_int_handler" in out.read_text()


def test_a_command_that_does_not_exist(tmp_path):
    with pytest.raises(UsageError, match="command not found: nonesuch"):
        run_command(["nonesuch"], host(tmp_path / "run.rlprof"))
    assert list(tmp_path.iterdir()) == []


def test_a_span_of_ranges_is_kept(tmp_path, program):
    code, made = run_command(
        [*program, "6"], host(tmp_path / "run.rlprof"), start_on="iteration", stop_after=2
    )
    assert code == 0
    trace = rlprof.read(made)
    whole = trace.ranges.filter(~pl.col("cut") & (pl.col("name") == "iteration"))
    assert whole.height == 2
    assert trace.samples["start_ns"].max() < trace.meta.end_ns
    # however long they took: from the start of the first to the end of the second
    assert trace.meta.duration_ns == whole["end_ns"].max() - whole["start_ns"].min()


def flushed(out: Path, count: int) -> None:
    """Wait until so many iterations are in the parts of a running session."""
    deadline = time.monotonic() + 60
    while span_of(out.with_name(out.name + ".parts"), "iteration", count)[1] is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_cli_captures_and_passes_the_exit_code_on(tmp_path, program):
    out = tmp_path / "run.rlprof"
    done = cli("--backend", "host", "--rate", "20Hz", "-o", out, "--", *program, "1", "3")
    assert (done.returncode, "written:" in done.stderr) == (3, True)
    assert nodes(out) == {"iteration": 1, "iteration/policy": 1}


def cli(*arguments, **more) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rlprof", "capture", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **more)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--", "true"], "no output is named"),
        (["-o", "run.rlprof"], "no program is named"),
        (["-o", "run.rlprof", "--", "nonesuch"], "command not found"),
        (["-o", "run.rlprof", "--rate", "fast", "--", "true"], "is not a rate"),
        (["-o", "run.rlprof", "--devices", "a", "--", "true"], "is not a list of GPUs"),
        (["-o", "run.rlprof", "--stop-after", "2", "--", "true"], "--start-on"),
        (["-o", "run.rlprof", "--backend", "magic", "--", "true"], "magic"),
        (
            ["-o", "run.rlprof", "--backend", "host", "--metrics", "a", "--", "true"],
            "reads SM activity alone",
        ),
        (["-o", "run.rlprof", "--backend", "nsys", "--metrics", "a", "--", "true"], "counters of its own"),
        (["-o", "no/such/folder/run.rlprof", "--", "true"], "cannot be made"),
        (["--assemble", "nothing.parts", "-o", "run.rlprof"], "not the folder of a capture session"),
    ],
)
def test_wrong_use_is_one_line_and_code_2(tmp_path, arguments, says):
    done = cli(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_program_and_leaves_a_readable_capture(tmp_path, program, number):
    out = tmp_path / "run.rlprof"
    command = [sys.executable, "-m", "rlprof", "capture", "--backend", "host", "-o", str(out), "--", *program]
    running = subprocess.Popen([*command, "200"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    assert running.stdout.readline() == "go\n"
    flushed(out, 1)  # SIGTERM ends it at once, with what it had flushed
    running.send_signal(number)
    assert running.wait(60) not in (0, None)
    assert nodes(out)["iteration"] >= 1


def test_kill_9_of_the_program_leaves_what_was_drained(tmp_path, program):
    """The sampler belongs to the session and goes on; the ranges are those of the last flush."""
    pid = tmp_path / "pid"
    wrapped = ["sh", "-c", f"echo $$ > {pid}; exec {program[0]} {program[1]} 200"]
    out = tmp_path / "run.rlprof"
    command = [sys.executable, "-m", "rlprof", "capture", "--backend", "host", "-o", str(out), "--", *wrapped]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert running.stdout.readline() == "go\n"
    flushed(out, 2)
    os.kill(int(pid.read_text()), signal.SIGKILL)
    assert running.wait(60) == 128 + 9
    trace = rlprof.read(out)
    assert nodes(out)["iteration"] >= 2
    assert trace.samples["end_ns"].max() > trace.ranges["end_ns"].max() - 300_000_000


def test_kill_9_of_a_child_leaves_the_others_whole(tmp_path, program):
    session = host(tmp_path / "run.rlprof")
    session.start()
    environment = {**os.environ, **session.environment()}
    killed, other = (
        subprocess.Popen([*program, n], env=environment, stdout=subprocess.PIPE) for n in ("200", "4")
    )
    other.wait(60)
    flushed(session.out, 6)  # of both: some of the one that is killed
    killed.kill()
    killed.wait()
    trace = rlprof.read(session.stop())
    pids = dict(trace.processes.select("pid", "process").iter_rows())
    iterations = trace.ranges.filter(pl.col("name") == "iteration")
    assert iterations.filter((pl.col("process") == pids[other.pid]) & ~pl.col("cut")).height == 4
    assert iterations.filter((pl.col("process") == pids[killed.pid]) & ~pl.col("cut")).height >= 2


def test_kill_9_of_the_sampler_is_noted(tmp_path):
    session = host(tmp_path / "run.rlprof")
    session.start()
    deadline = time.monotonic() + 60
    while not any("activity" in part.tables for part in read_parts(session.folder)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    session._sampler.kill()
    time.sleep(0.7)
    trace = rlprof.read(session.stop())
    assert trace.samples["end_ns"].max() < trace.meta.end_ns - 600_000_000
    assert any("sampler was killed: the last" in n for n in trace.notes)


def test_kill_9_of_the_session_leaves_parts_to_assemble(tmp_path, program):
    out = tmp_path / "run.rlprof"
    command = [sys.executable, "-m", "rlprof", "capture", "--backend", "host", "-o", str(out), "--", *program]
    running = subprocess.Popen([*command, "8"], stdout=subprocess.PIPE, text=True)
    assert running.stdout.readline() == "go\n"
    flushed(out, 3)
    running.kill()
    running.wait()
    running.stdout.read()  # until the program, which goes on, has ended
    time.sleep(0.5)
    folder = tmp_path / "run.rlprof.parts"
    assert (folder / SESSION_FILE).is_file()
    done = cli("--assemble", folder, "-o", out)
    assert done.returncode == 0, done.stderr
    assert nodes(out)["iteration"] >= 3
    assert any("broken off" in n for n in rlprof.read(out).notes)


def test_nothing_personal_is_stored(tmp_path, program, monkeypatch):
    """Variables, user, host, command line and paths of the program stay out of parts and capture."""
    import getpass
    import socket

    monkeypatch.setenv("SECRET_TOKEN", "hunter2-token")
    session = host(tmp_path / "run.rlprof")
    session.start()
    environment = {**os.environ, **session.environment()}
    subprocess.run([*program, "1"], env=environment, check=True, stdout=subprocess.DEVNULL)
    session.end_sampler()
    held = b"".join(p.read_bytes() for p in session.folder.iterdir())
    made = session.stop()
    for secret in (
        "hunter2-token",
        socket.gethostname(),
        str(tmp_path),
        "program.py",
        f"{Path.home()}/",
    ):
        assert secret.encode() not in held
        assert secret.encode() not in made.read_bytes()
    assert getpass.getuser() in ("root",) or getpass.getuser().encode() not in held


def test_disk_full_at_the_end_keeps_the_parts(tmp_path):
    session = Session(tmp_path / "run.rlprof", Options(backend="none"))
    session.start()
    session.out = tmp_path / "gone" / "run.rlprof"
    with pytest.raises(OutputError, match="--assemble"):
        session.stop()
    assert session.folder.is_dir()
    assert SessionFacts.read(session.folder).end_ns is not None
    assert assemble(session.folder, tmp_path / "again.rlprof").is_file()


METRIC = "sm__warps_active.avg.pct_of_peak_sustained_active"


def test_further_metrics_are_kept_and_shown(tmp_path):
    """What a sampler read beside the activity is a table of the capture and a counter in a trace viewer."""
    session = Session(tmp_path / "run.rlprof", Options(backend="none"))
    session.start()
    at = session.facts.start_ns
    times = {"device": [1, 0], "start_ns": [at + 1000, at + 1000], "end_ns": [at + 2000, at + 2000]}
    for table, own in (
        ("activity", {"source": ["sm_counters"] * 2, "active_frac": [0.5, 0.25]}),
        ("counters", {"metric": [METRIC] * 2, "value": [20.0, 10.0]}),
    ):
        writer = PartWriter(session.folder, table)
        writer.write({**times, **own})
        writer.close()
    write_process(session.folder, {"label": "sampler", "sampler": {"backend": "cupti"}})
    time.sleep(0.01)
    trace = rlprof.read(session.stop())
    rows = trace.counters.with_columns(pl.col("metric").cast(pl.String)).rows()
    assert rows == [(METRIC, 0, 1000, 2000, 10.0), (METRIC, 1, 1000, 2000, 20.0)]
    made = tmp_path / "trace.json"
    export(trace, "chrome", made)
    events = [e for e in json.loads(made.read_text())["traceEvents"] if e["ph"] == "C"]
    shown = [(e["pid"], e["args"]["value"]) for e in events if e["name"] == METRIC]
    assert shown == [(0, 10.0), (1, 20.0)]
    # a window of it has them too, and other formats carry them on
    assert trace.between(0, 1500).counters["end_ns"].to_list() == [1500, 1500]


def test_a_capture_without_further_metrics_says_how_to_get_them(tmp_path):
    session = Session(tmp_path / "run.rlprof", Options(backend="none"))
    session.start()
    assert "--metrics" in str(rlprof.read(session.stop()).counters)


def test_a_folder_that_is_none_of_a_session(tmp_path):
    with pytest.raises(DamagedTraceError, match="not the folder of a capture session"):
        assemble(tmp_path, tmp_path / "x.rlprof")


def test_session_facts_round_trip(tmp_path):
    facts = SessionFacts(
        5, Anchor(5, 10**18, 7), 9, Anchor(9, 10**18 + 4, 7), "host", 20.0, ("nvtx",), (6, None)
    )
    facts.write(tmp_path)
    assert SessionFacts.read(tmp_path) == facts


def test_span_of_a_session_without_such_ranges(tmp_path):
    assert span_of(tmp_path, "iteration", 2) == (None, None)
    assert read_parts(tmp_path) == ()


def test_capture_needs_no_polars(tmp_path):
    """Lean GPU machines have numpy and pyarrow; a whole session must work there."""
    script = f"""
import sys
class Hide:
    def find_spec(self, name, *_):
        if name in ("polars", "torch", "altair"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hide())
import rlprof
with rlprof.capture({str(tmp_path / "run.rlprof")!r}, backend="host"):
    with rlprof.annotate("iteration"):
        pass
assert "polars" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    assert nodes(tmp_path / "run.rlprof") == {"iteration": 1}
