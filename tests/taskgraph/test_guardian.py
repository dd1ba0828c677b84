"""Processes are found and ended by the mark that they inherit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

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
    if os.fork():
        os._exit(0)
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
            time.sleep(0.01)
            assert (child.poll() is not None) == ended
