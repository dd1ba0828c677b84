"""Processes are found and ended by the mark that they inherit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlprof.taskgraph import guardian
from rlprof.taskgraph.guardian import VARIABLE, end_marked, marked

PROGRAM = """
import os, subprocess, sys, time
inner = {**os.environ, "RLPROF_WORKER": os.environ["RLPROF_WORKER"] + "inner.1;"}
started = [
    subprocess.Popen(["sleep", "60"], start_new_session=True).pid,
    subprocess.Popen(["sleep", "60"], env=inner).pid,
    subprocess.Popen(["sleep", "60"], env={"OTHER": "RLPROF_WORKER"}).pid,
]
if not os.fork():
    os.setsid()
    between = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == between:
        time.sleep(0.01)
    print(*started, os.getpid(), flush=True)
time.sleep(60)
"""


def runs(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_all_descendants_carry_a_mark_wherever_they_have_gone() -> None:
    environment = {**os.environ, VARIABLE: "test.1;"}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        session, inner, clean, daemon = (int(i) for i in process.stdout.readline().split())
        try:
            assert {process.pid, session, inner, daemon} == set(marked("test.1;"))
            assert marked("inner.") == [inner]
            assert marked("test.2;") == []
            process.kill()
            process.wait()
            assert {session, inner, daemon} == set(marked("test.1;"))  # though their parent is gone
            assert end_marked("test.1;") == []
            assert not [i for i in (session, inner, daemon) if runs(i)]
            assert runs(clean)  # whoever clears the environment is not found
        finally:
            os.kill(clean, 9)
            end_marked("test.1;")


def test_a_guardian_that_is_told_so_ends_nothing() -> None:
    with subprocess.Popen(["sleep", "60"], env={**os.environ, VARIABLE: "test.3;"}) as child:
        command = [sys.executable, "-I", "-S", guardian.__file__, str(os.getpid()), "test.3"]
        for last_words, ended in ((f"{child.pid + 10_000_000}\nbye\n", False), ("", True)):
            subprocess.run(command, input=last_words, text=True, check=True, timeout=60)
            assert (child.poll() is not None) == ended


def test_what_a_process_said_last_is_heard_after_it_has_gone() -> None:
    """A group that was named in the moment in which the process ended that had named it."""
    clean = {"OTHER": "nothing"}  # so it is not found by a mark
    with subprocess.Popen(["sleep", "60"], env=clean, start_new_session=True) as child:
        lines, said = os.pipe()
        os.write(said, f"{child.pid}\n".encode())  # and the other end stays open, as in a forked child
        guardian.guard(os.getpid(), "test.4;", lines)
        assert child.wait(40) == -9
        os.write(said, b"1000000000\nbye\n")
        guardian.guard(os.getpid(), "test.4;", lines)
        os.close(lines)
        os.close(said)


def test_what_is_told_to_end_has_ended_or_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is ending has no environment to be known by, and may still hold files and devices."""
    with subprocess.Popen(["sleep", "60"]) as child:
        kill, looks = os.kill, []

        def found(mark: str) -> list[int]:
            looks.append(mark)
            if len(looks) == 4:
                kill(child.pid, 9)
            return [child.pid] if len(looks) == 1 else []

        monkeypatch.setattr(os, "kill", lambda *_: None)  # it takes its time
        monkeypatch.setattr(guardian, "marked", found)
        assert end_marked("test.5;", within_s=60.0) == []
        assert len(looks) >= 4
        assert child.poll() == -9
    with subprocess.Popen(["sleep", "60"]) as child:
        looks.clear()
        assert end_marked("test.5;", within_s=0.0) == [child.pid]
        kill(child.pid, 9)


def test_what_is_just_executing_a_program_is_not_overlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no environment in that moment, which is long where other processes have the core."""
    read, executing = guardian._read, guardian._executing
    with subprocess.Popen(["sleep", "60"], env={**os.environ, VARIABLE: "test.7;"}) as child:
        looks: list[str] = []

        def in_the_middle(path: str) -> bytes | None:
            if path == f"/proc/{child.pid}/environ" and len(looks) < 3:
                looks.append(path)
                return b""
            return read(path)

        monkeypatch.setattr(guardian, "_read", in_the_middle)
        monkeypatch.setattr(guardian, "_executing", lambda p: p == child.pid or executing(p))
        assert marked("test.7;") == [child.pid]
        assert len(looks) == 3
        child.kill()


def test_nobody_waits_for_a_process_that_has_no_environment() -> None:
    with subprocess.Popen(["sleep", "60"], env={}) as child:
        until = time.monotonic() + 40
        while guardian._executing(child.pid):
            assert time.monotonic() < until
        assert guardian._environment(child.pid) == b""
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not guardian._executing(child.pid)  # a zombie
    assert not guardian._executing(child.pid)
    assert not guardian._executing(2)  # a thread of the kernel, where it is seen


def test_a_group_is_ended_with_what_is_marked() -> None:
    with (
        subprocess.Popen(["sleep", "60"], env={"OTHER": "x"}, start_new_session=True) as group,
        subprocess.Popen(["sleep", "60"], env={**os.environ, VARIABLE: "test.6;"}) as child,
    ):
        assert end_marked("test.6;", group=group.pid) == []
        assert (group.poll(), child.poll()) == (-9, -9)
