"""Recording in processes that fork, end badly, run long, or cannot write."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import rlprof
from rlprof.capture import range_writer, recorder
from rlprof.capture.part_reader import read_parts
from rlprof.errors import UsageError
from tests.capture.made import (
    loop_counts,
    names,
    nesting_faults,
    node_counts,
    ranges,
    recording,
    run,
)
from tests.conftest import ROOT, python_path

PRELUDE = "import os, sys, time, threading, rlprof\nA = rlprof.annotate\n"
#: Waits until what lies more than a flush time after now has been written.
FLUSHED = f"""
from rlprof.capture import recorder
def flushed():
    done, drain = threading.Event(), recorder.current._drain
    after = time.monotonic() + {1.1 * recorder.FLUSH_S}
    def drains():
        late = time.monotonic() > after
        drain()
        if late: done.set()
    recorder.current._drain = drains
    assert done.wait(60)
    recorder.current._drain = drain
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "parts"
    made.mkdir()
    return made


def program(code: str, folder: Path | None, rc: int = 0, **environment: str) -> str:
    """Run a program and give its standard error; nothing may go wrong in it."""
    done = run(PRELUDE + code, folder, **environment)
    assert done.returncode == rc, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr


# --- joining a session


def test_a_process_joins_the_session_that_the_environment_names(folder: Path) -> None:
    assert program("with A('a'):\n    pass", folder, RANK="3", LOCAL_RANK="1") == ""
    [part] = read_parts(folder)
    assert names(folder) == ["a"]
    assert {k: part.facts[k] for k in ("rank", "local_rank", "label", "lost_ranges")} == {
        "rank": 3,
        "local_rank": 1,
        "label": "rank 3",
        "lost_ranges": 0,
    }
    first, last = part.facts["anchors"]
    [row] = ranges(folder).iter_rows(named=True)
    assert first["monotonic_ns"] < row["start_ns"] < row["end_ns"] < last["monotonic_ns"]
    assert abs(first["utc_ns"] - time.time_ns()) < 600 * 10**9


def test_a_process_that_annotates_nothing_leaves_nothing(folder: Path) -> None:
    program("A('a')", folder)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("rank", ["", "x", "-1", "3.5"])
def test_a_rank_that_is_no_number_is_unknown(
    rank: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("LOCAL_RANK", "2")
    facts = recorder.rank_facts()
    assert (facts["rank"], facts["local_rank"], facts["label"]) == (None, 2, "rank 2")


def test_a_session_that_is_over_is_not_joined(tmp_path: Path) -> None:
    program(
        "from rlprof.capture import recorder\nassert recorder.current is None\nwith A('a'): pass",
        tmp_path / "gone",
    )
    assert list(tmp_path.iterdir()) == []


def test_nothing_of_the_machine_or_its_user_is_stored(folder: Path) -> None:
    program(
        "with A('a'): pass\nimport pathlib\n",
        folder,
        SECRET_TOKEN="swordfish-7f3a",
        USER="jane-doe-user",
    )
    content = b"".join(p.read_bytes() for p in folder.iterdir())
    for text in ("swordfish-7f3a", "jane-doe-user", os.uname().nodename, str(ROOT), str(folder)):
        assert text.encode() not in content
    [part] = read_parts(folder)
    assert set(part.facts) == {"pid", "rank", "local_rank", "label", "anchors", "lost_ranges"}


def test_recording_twice_is_refused(folder: Path, tmp_path: Path) -> None:
    with recording(folder), pytest.raises(UsageError, match="being recorded already"):
        recorder.start(folder)
    with pytest.raises(UsageError, match="folder does not exist"):
        recorder.start(tmp_path / "absent")
    assert recorder.current is None
    assert recorder.stop() == ()


# --- ways to end


def test_leaving_with_ranges_open_records_them_as_cut(folder: Path) -> None:
    code = """
inside = threading.Event()
def wait():
    with A('in thread'):
        inside.set()
        time.sleep(60)
threading.Thread(target=wait, daemon=True).start()
A('outer').__enter__()
with A('done'): pass
inside.wait(60)
sys.exit(3)
"""
    assert program(code, folder, rc=3) == ""
    found = ranges(folder)
    assert sorted(zip(found["name"], found["cut"], strict=True)) == [
        ("done", False),
        ("in thread", True),
        ("outer", True),
    ]
    [part] = read_parts(folder)
    assert all(end <= part.facts["anchors"][1]["monotonic_ns"] for end in found["end_ns"])


def test_an_uncaught_exception_loses_nothing(folder: Path) -> None:
    done = run(PRELUDE + "with A('a'):\n    with A('b'):\n        1 / 0", folder)
    assert done.returncode == 1
    assert node_counts(folder) == {"a": 1, "a/b": 1}


ENDINGS = {
    "os._exit": ("os._exit(0)", 0),
    "kill -9": ("os.kill(os.getpid(), 9)", -signal.SIGKILL),
    "kill -15": ("os.kill(os.getpid(), 15)", -signal.SIGTERM),
    "abort": ("os.abort()", -signal.SIGABRT),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_process_that_ends_at_once_loses_what_was_not_flushed(folder: Path, ending: str) -> None:
    end, rc = ENDINGS[ending]
    code = f"""{FLUSHED}
with A('outer'):
    for i in range(1000):
        with A('step'): pass
    flushed()
    for i in range(10):
        with A('late'): pass
    {end}
"""
    program(code, folder, rc=rc)
    found = ranges(folder)
    assert names(folder).count("step") == 1000
    outer = found.filter(found["name"] == "outer").row(0, named=True)
    assert outer["cut"]
    assert outer["end_ns"] >= found["end_ns"].max() - 10**9
    assert outer["end_ns"] - outer["start_ns"] > recorder.FLUSH_S * 10**9
    assert not nesting_faults(found)
    assert any("open when it ended" in n for n in read_parts(folder)[0].notes)


def test_a_program_that_replaces_itself_is_two_processes_of_one_number(folder: Path) -> None:
    code = f"""{FLUSHED}
with A('first'):
    flushed()
    os.execv(sys.executable, [sys.executable, '-c', "import rlprof\\nwith rlprof.annotate('second'): pass"])
"""
    program(code, folder)
    first, second = read_parts(folder)
    assert first.pid == second.pid
    assert first.stem != second.stem
    assert [p.tables["ranges"]["name"].to_pylist() for p in (first, second)] == [["first"], ["second"]]


def test_a_fork_is_a_process_of_its_own(folder: Path) -> None:
    code = """
with A('parent'):
    with A('before'): pass
    pid = os.fork()
    if pid == 0:
        with A('child'): pass
        for _ in rlprof.annotate_loop(9, 'step'): pass
    else:
        os.waitpid(pid, 0)
        with A('after'): pass
"""
    program(code, folder)
    parent, child = read_parts(folder)
    assert sorted(parent.tables["ranges"]["name"].to_pylist()) == ["after", "before", "parent"]
    assert child.tables["ranges"]["name"].to_pylist() == ["child", *["step"] * 4]
    assert child.pid != parent.pid
    assert parent.notes == child.notes == ()
    assert loop_counts(folder) == {"step": 9}


def test_forking_from_a_busy_program_with_threads(folder: Path) -> None:
    code = """
import warnings; warnings.simplefilter('ignore')
stop = False
def busy():
    while not stop:
        with A('busy'): pass
threads = [threading.Thread(target=busy) for _ in range(2)]
for t in threads: t.start()
for _ in range(8):
    time.sleep(0.02)
    pid = os.fork()
    if pid == 0:
        with A('child'): pass
        sys.stdout.flush()
        from rlprof.capture import recorder
        recorder.stop()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
stop = True
for t in threads: t.join()
"""
    program(code, folder)
    assert names(folder).count("child") == 8
    assert len(read_parts(folder)) == 9
    assert not nesting_faults(ranges(folder))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing(folder: Path, tmp_path: Path, method: str) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        f"""
import multiprocessing as mp, rlprof
def work(i):
    with rlprof.annotate('work'): pass
    return i
if __name__ == '__main__':
    with rlprof.annotate('main'):
        context = mp.get_context({method!r})
        children = [context.Process(target=work, args=(i,)) for i in range(2)]
        for c in children: c.start()
        for c in children: c.join()
        assert [c.exitcode for c in children] == [0, 0]
        with context.Pool(1) as pool:
            assert pool.map(work, [1, 2]) == [1, 2]
            pool.close(); pool.join()
"""
    )
    environment = {**os.environ, recorder.ENVIRONMENT: str(folder), "PYTHONPATH": python_path()}
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(names(folder)) == ["main", *["work"] * 4]
    assert not ranges(folder)["cut"].any()


def test_a_child_whose_session_has_ended_stops_recording(folder: Path) -> None:
    code = f"""{FLUSHED}
import shutil
with A('a'): pass
folder = recorder.current.folder
flushed()
shutil.rmtree(folder)
with A('b'): pass
until = time.monotonic() + 60
while not recorder.current._closed and time.monotonic() < until: time.sleep(0.01)
log = recorder.current.log()
for _ in range(100):
    with A('c'): pass
assert len(log.buffer) == 0
"""
    assert program(code, folder) == ""
    assert not folder.exists()


def test_a_signal_handler_may_annotate_and_stop(folder: Path) -> None:
    code = """
import signal
from rlprof.capture import recorder
def handler(*_):
    with A('handler'): pass
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
end = time.monotonic() + 1.0
n = 0
while time.monotonic() < end:
    with A('main'): n += 1
signal.setitimer(signal.ITIMER_REAL, 0)
print(n)
"""
    done = run(PRELUDE + code, folder)
    assert done.returncode == 0, done.stderr
    found = names(folder)
    assert found.count("main") == int(done.stdout)
    assert "handler" in found
    assert not nesting_faults(ranges(folder))


# --- size


def test_thousands_of_threads(folder: Path) -> None:
    def work() -> None:
        with rlprof.annotate("work"):
            pass

    with recording(folder):
        current = recorder.current
        assert current is not None
        for _ in range(40):
            threads = [threading.Thread(target=work) for _ in range(50)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        current.flush()
        assert len(current._each_log()) == 0
    assert names(folder) == ["work"] * 2000


def test_buffers_are_bounded_though_the_draining_thread_sleeps(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "DRAIN_AT", 4000)
    monkeypatch.setattr("rlprof.capture.annotate.WAKE_AT", 2000)
    monkeypatch.setattr(recorder.Recorder, "_run", lambda self: None)
    largest = 0
    with recording(folder):
        for _ in range(5000):
            with rlprof.annotate("a"):
                pass
            assert recorder.current is not None
            largest = max(largest, len(recorder.current.log().buffer))
        assert largest <= 4000
        assert list(folder.glob("*-ranges.arrows"))
    assert names(folder) == ["a"] * 5000


@pytest.mark.slow
def test_a_million_ranges_in_little_memory(folder: Path) -> None:
    code = """
import resource
from rlprof.capture import recorder
with A('warm'): pass
recorder.current.flush()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(10**6):
    with A('step'): pass
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = run(PRELUDE + code, folder)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 150  # MB
    [part] = read_parts(folder)
    assert part.tables["ranges"].num_rows == 10**6 + 1
    assert sum(p.stat().st_size for p in folder.iterdir()) < 30 * 10**6


def test_names_without_end_are_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_writer, "MAX_NAMES", 100)
    with recording(folder):
        current = recorder.current
        assert current is not None
        for i in range(250):
            with rlprof.annotate(f"name {i}"):
                pass
        problems = recorder.stop()
    assert len(problems) == 1
    assert "over 100 distinct names" in problems[0]
    assert names(folder).count(range_writer.FURTHER_NAMES) == 150
    assert read_parts(folder)[0].notes == problems


# --- what cannot be written


class NoRoom:
    """os.write that fails on parts when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self._write = os.write
        monkeypatch.setattr("rlprof.capture.parts.os.write", self)

    def __call__(self, fd: int, data: bytes) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._write(fd, data)


def test_a_disk_that_fills_up_while_flushing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = NoRoom(monkeypatch)
    with recording(folder):
        current = recorder.current
        assert current is not None
        for full, name in ((False, "a"), (True, "b"), (True, "c")):
            disk.full = full
            with rlprof.annotate(name):
                pass
            current.flush()
        problems = recorder.stop()
    assert problems == ("2 ranges were lost: the disk was full",)
    assert names(folder) == ["a"]


def test_a_disk_that_has_room_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = NoRoom(monkeypatch)
    with recording(folder):
        current = recorder.current
        assert current is not None
        for full, name in ((False, "a"), (True, "b"), (True, "c"), (False, "d")):
            disk.full = full
            with rlprof.annotate(name):
                pass
            current.flush()
        problems = recorder.stop()
    # what failed is tried again once; only what came while it was pending is lost
    assert names(folder) == ["a", "b", "d"]
    assert len(problems) == 1
    assert problems[0].startswith("1 ranges were lost")
    assert read_parts(folder)[0].notes == problems


def test_a_real_disk_that_is_full(tmp_path: Path) -> None:
    """A file size limit refuses writes as a full disk does; the program runs on and ends with one line."""
    folder = tmp_path / "parts"
    folder.mkdir()
    code = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
for i in range(20_000):
    with A(f'name {i}'): pass
    if i % 1000 == 0: time.sleep(0.05)
print('went on')
"""
    done = run(PRELUDE + code, folder)
    assert (done.returncode, done.stdout) == (0, "went on\n")
    assert done.stderr.startswith("rlprof: ")
    assert "ranges were lost" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [p.stat().st_size <= 20_000 for p in folder.iterdir()]
    read_parts(folder)


def test_a_folder_that_cannot_be_written_is_said_at_exit(folder: Path) -> None:
    folder.chmod(0o500)
    try:
        (folder / "probe").touch()
    except OSError:
        stderr = program("with A('a'): pass", folder)
        assert stderr.strip() == "rlprof: 1 ranges were lost: they could not be written (Permission denied)"
    else:
        pytest.skip("this user may write anywhere")
    finally:
        folder.chmod(0o700)


def test_a_folder_that_refuses_files_is_said_at_exit(folder: Path) -> None:
    code = """
import rlprof.capture.parts as parts
real = os.open
def refuse(path, *rest, **more):
    if str(path).endswith('.arrows'): raise OSError(30, 'Read-only file system')
    return real(path, *rest, **more)
parts.os.open = refuse
with A('a'): pass
"""
    stderr = program(code, folder)
    assert stderr.strip() == "rlprof: 1 ranges were lost: they could not be written (Read-only file system)"


def test_a_failure_of_the_writer_itself_does_not_reach_the_program(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    with recording(folder):
        monkeypatch.setattr(range_writer.RangeWriter, "write_closed", fail)
        with rlprof.annotate("a"):
            pass
        assert recorder.current is not None
        recorder.current.flush()
        problems = recorder.stop()
    assert problems == ("some ranges were lost: MemoryError while writing them",)


# --- imports


def test_capturing_imports_neither_polars_nor_torch_nor_pandas(folder: Path) -> None:
    code = "with A('a'): pass\nimport json; print(json.dumps([m for m in sys.modules if '.' not in m]))"
    done = run(PRELUDE + code, folder)
    assert not {"polars", "torch", "pandas", "altair", "typer", "scipy"} & set(json.loads(done.stdout))


def test_annotating_without_a_session_imports_no_pyarrow() -> None:
    code = "with A('a'): pass\nprint('pyarrow' in sys.modules)"
    assert run(PRELUDE + code, None).stdout == "False\n"


def test_annotations_work_without_nvtx(folder: Path) -> None:
    assert (
        run("import sys; sys.modules['nvtx'] = None\n" + PRELUDE + "with A('a'): pass", folder).stderr == ""
    )
    assert names(folder) == ["a"]


def test_the_package_is_a_function_that_opens_a_session() -> None:
    import types

    assert isinstance(rlprof.capture, types.ModuleType)
    assert callable(rlprof.capture)
