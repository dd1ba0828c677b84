"""Folders of sessions that nobody assembles: they go with their process, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlprof.capture.options import Backend, Options
from rlprof.capture.scratch import LOCK, MAKING_S, claim, scratch_name, sweep
from rlprof.capture.session import Session
from rlprof.errors import OutputError

HOLDER = """
import pathlib, sys, time
from rlprof.capture.options import Options
from rlprof.capture.session import Session
rate_hz = None if sys.argv[2] == "none" else 20.0
session = Session.scratch(pathlib.Path(sys.argv[1]), Options(sys.argv[2], rate_hz))
session.start()
print(session._sampler.pid if session._sampler else 0, flush=True)
time.sleep(600)
"""
Start = Callable[[Backend], tuple["subprocess.Popen[str]", int]]


def within(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    return condition()


def folders(beside: Path) -> list[str]:
    return sorted(path.name for path in beside.iterdir())


def dead_pid() -> int:
    ended = subprocess.Popen(["true"])
    ended.wait()
    return ended.pid


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a process with a session, and give the pid of its sampler."""
    running: list[subprocess.Popen[str]] = []

    def begin(backend: Backend) -> tuple[subprocess.Popen[str], int]:
        command = [sys.executable, "-c", HOLDER, str(tmp_path), backend]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert running[-1].stdout is not None
        return running[-1], int(running[-1].stdout.readline())

    yield begin
    for process in running:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def scratch(beside: Path) -> Session:
    return Session.scratch(beside, Options("none"))


def test_the_sampler_removes_the_folder_of_a_killed_process(tmp_path: Path, start: Start) -> None:
    process, _ = start("host")
    assert folders(tmp_path) == [f".activity-{process.pid}.parts"]
    process.kill()
    assert within(lambda: folders(tmp_path) == [])


def test_a_sampler_that_is_told_to_end_alone_leaves_the_samples(tmp_path: Path, start: Start) -> None:
    process, sampler = start("host")
    os.kill(sampler, signal.SIGTERM)
    state = Path(f"/proc/{sampler}/stat")
    assert within(lambda: not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z")
    left = tmp_path / f".activity-{process.pid}.parts"
    assert list(left.glob("*-activity.arrows"))


@pytest.mark.parametrize("keep", [True, False])
def test_the_next_session_removes_what_a_killed_one_left(tmp_path: Path, start: Start, keep: bool) -> None:
    process, _ = start("none")
    process.kill()
    process.wait()
    assert folders(tmp_path) == [f".activity-{process.pid}.parts"]
    session = Session(tmp_path / "run.rlprof", Options("none")) if keep else scratch(tmp_path)
    session.start()
    assert folders(tmp_path) == [session.folder.name]
    session.drop()
    assert folders(tmp_path) == []


def test_the_folder_of_a_living_process_stays(tmp_path: Path, start: Start) -> None:
    process, _ = start("none")
    with_it = scratch(tmp_path)
    with_it.start()
    sweep(tmp_path)  # its own is no nobody's either
    assert folders(tmp_path) == sorted([f".activity-{process.pid}.parts", with_it.folder.name])
    with_it.drop()
    assert folders(tmp_path) == [f".activity-{process.pid}.parts"]


def test_a_pid_that_came_around_again_does_not_keep_a_folder(tmp_path: Path) -> None:
    left = tmp_path / f".activity-{os.getpid()}.parts"
    left.mkdir()
    os.close(claim(left))
    assert left.name == f"{scratch_name()}.parts"
    session = scratch(tmp_path)
    session.start()  # not refused for the parts of an earlier session
    session.drop()
    assert folders(tmp_path) == []


@pytest.mark.parametrize(
    ("pid", "age_s", "goes"),
    [(None, 2 * MAKING_S, True), (None, 0.0, False), (os.getpid(), 2 * MAKING_S, False)],
    ids=["killed_long_ago", "being_made", "alive"],
)
def test_a_folder_without_a_lock(tmp_path: Path, pid: int | None, age_s: float, goes: bool) -> None:
    left = tmp_path / f".activity-{pid or dead_pid()}.parts"
    left.mkdir()
    os.utime(left, (time.time() - age_s,) * 2)
    sweep(tmp_path)
    assert left.exists() != goes


def test_what_was_not_made_here_stays(tmp_path: Path) -> None:
    target = tmp_path / "data"
    (tmp_path / "run.rlprof.parts").mkdir()  # to be assembled
    (tmp_path / ".activity-mine.parts").mkdir()
    target.mkdir()
    (target / LOCK).touch()
    (tmp_path / f".activity-{dead_pid()}.parts").symlink_to(target)
    before = folders(tmp_path)
    sweep(tmp_path)
    sweep(tmp_path / "no such folder")
    assert folders(tmp_path) == before


def test_a_session_that_cannot_start_leaves_nothing(tmp_path: Path) -> None:
    session = Session.scratch(tmp_path / "none", Options("none"))
    with pytest.raises(OutputError):
        session.start()
    assert folders(tmp_path) == []
