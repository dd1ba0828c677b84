"""Commands as branches, in real processes whose work is to wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlprof.overlap.quota import launch
from rlprof.overlap.quota.branches import Bench, Branch
from rlprof.overlap.quota.errors import BranchError
from rlprof.overlap.quota.levels import Level
from rlprof.overlap.quota.mechanism import Cores, Nice
from rlprof.overlap.quota.rounds import VARIABLE, rounds
from rlprof.taskgraph import guardian

ALL = Cores(tuple(sorted(os.sched_getaffinity(0))))
# what it is told and says, without anything of rlprof: any program can take part
SPEAKS = """
import os, socket, sys, time
way = socket.socket(fileno=int(os.environ["RLPROF_ROUNDS"]))
time.sleep(0.3)  # set-up, in no time
SET_UP
way.sendall(b"ready\\n")
for order in way.makefile("rb"):
    if order != b"go\\n":
        break
    start = time.monotonic_ns()
    HOW
    end = time.monotonic_ns()
    THEN
    way.sendall(b"done %d %d\\n" % (start, end))
"""


def speaks(name: str, how: str, *, set_up: str = "pass", then: str = "pass") -> Branch:
    code = SPEAKS.replace("HOW", how).replace("SET_UP", set_up).replace("THEN", then)
    return Branch(name, (sys.executable, "-IS", "-c", code))


def plain(name: str, code: str) -> Branch:
    return Branch(name, (sys.executable, "-IS", "-c", code))


def test_rounds_of_branches_begin_together_and_leave_set_up_out(tmp_path: Path) -> None:
    """Both are at work at once, and B is done after A: opening a pipe waits for the other side."""
    begun, done = str(tmp_path / "begun"), str(tmp_path / "done")
    stamps = [tmp_path / name for name in "AB"]
    stamp = "open({!r}, 'w').write(str(time.monotonic_ns()))"
    meet = f"os.path.exists({begun!r}) and open({begun!r}, 'MODE').close()"
    ahead = f"os.path.exists({done!r}) and open({done!r}, 'w').close()"
    for path in (begun, done):
        os.mkfifo(path)
    with Bench(ALL) as bench:
        how_a = f"{meet.replace('MODE', 'w')}; time.sleep(0.05)"
        how_b = f"{meet.replace('MODE', 'r')}; time.sleep(0.15); open({done!r}).close()"
        a = bench.worker(speaks("A", how_a, set_up=stamp.format(str(stamps[0])), then=ahead))
        b = bench.worker(speaks("B", how_b, set_up=stamp.format(str(stamps[1]))))
        assert (a.in_rounds, b.in_rounds) == (True, True)
        first, second = bench.together([a, b]), bench.together([a, b])
        for path in (begun, done):
            Path(path).unlink()
        alone = bench.together([a])
        processes = [*a.processes, *b.processes]
        assert len(processes) == 2  # one process for all rounds
    for found in (first, second):
        assert 0.05 <= found.ready_s[0] < found.ready_s[1]
        assert found.join_s == found.ready_s[1] >= 0.15
        assert max(s.start_ns for s in found.spans) < min(s.end_ns for s in found.spans)
        assert found.start_ns > max(int(path.read_text()) for path in stamps)
    assert len(alone.spans) == 1
    assert not [p for p in processes if Path(f"/proc/{p}").exists()]


def test_a_command_that_knows_no_rounds_is_run_for_each() -> None:
    with Bench(ALL) as bench:
        a, b = bench.worker(plain("A", "pass")), bench.worker(speaks("B", "pass"))
        assert (a.in_rounds, b.in_rounds) == (False, True)
        found = bench.together([a, b])
        again = bench.together([a, b])
    assert found.spans[0].end_ns > found.spans[0].start_ns
    assert again.spans[0].start_ns > found.spans[0].end_ns


def test_cores_and_nice_values_reach_the_command() -> None:
    show = "import os; os.write(2, b'%d %d' % (len(os.sched_getaffinity(0)), os.nice(0))); os._exit(1)"
    said = []
    for mechanism, level in ((ALL, Level(1, 1)), (ALL, None), (Nice(os.nice(0)), Level(1, 19))):
        with Bench(mechanism) as bench, pytest.raises(BranchError) as error:
            bench.worker(plain("A", show), level)
        said.append(str(error.value).partition("with code 1: ")[2].partition(". Next")[0])
    assert said == [f"1 {os.nice(0)}", f"{len(ALL.cores)} {os.nice(0)}", f"{len(ALL.cores)} 19"]


@pytest.mark.skipif(not Path(launch.AUTOGROUP).exists(), reason="this kernel has no autogroups")
def test_nice_values_count_between_sessions() -> None:
    """With autogroups the nice value of a process does nothing against processes of other sessions."""
    show = "print(open('/proc/self/autogroup').read()); raise SystemExit(1)"
    with Bench(Nice(os.nice(0))) as bench, pytest.raises(BranchError, match=r"autogroup-\d+ nice 19"):
        bench.worker(plain("A", show), Level(1, 19))


@pytest.mark.parametrize(
    ("branch", "said"),
    [
        (plain("A", "print('no luck'); raise SystemExit(3)"), "branch A ended with code 3: no luck"),
        (plain("A", "import os; os.kill(os.getpid(), 9)"), "branch A was ended by signal 9"),
        (Branch("A", ("no-such-command",)), "branch A: command not found: no-such-command"),
        (plain("A", "import time; time.sleep(60)"), "branch A is not ready after 1 s"),
    ],
)
def test_a_branch_that_does_not_start_is_named(branch: Branch, said: str) -> None:
    limit_s = 1.0 if "not ready" in said else 60.0
    with Bench(ALL, timeout_s=limit_s) as bench, pytest.raises(BranchError, match=said):
        bench.worker(branch)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("sys.exit('broken')", "branch A ended with code 1: broken"),
        ("sys.exit(0)", "branch A ended with code 0"),
        ("time.sleep(60)", "branch A is not done after 1 s"),
        ("way.sendall(b'what\\n'); time.sleep(60)", "branch A said 'what', which is no answer"),
    ],
)
def test_a_branch_that_fails_in_a_round_is_named(how: str, said: str) -> None:
    with Bench(ALL, timeout_s=60.0) as bench:
        workers = [bench.worker(speaks("A", how)), bench.worker(speaks("B", "pass"))]
        if "not done" in said:
            bench._timeout_s = 1.0  # of rounds alone: setting up takes as long as the machine lets it
        with pytest.raises(BranchError, match=said):
            bench.together(workers)
        left = workers[1].processes
    assert left
    assert not [p for p in left if Path(f"/proc/{p}").exists()]


def test_what_a_branch_starts_ends_with_it() -> None:
    start = "import subprocess; subprocess.Popen(['sleep', '60'], start_new_session=True)"
    with Bench(ALL) as bench:
        worker = bench.worker(speaks("A", "pass", set_up=start))
        until = time.monotonic() + 10  # a process that has just been started has no variables for a moment
        while len(worker.processes) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        assert len(worker.processes) == 2
        mark = worker.mark
        bench.release(worker)
        assert guardian.marked(mark) == []


@pytest.mark.slow
def test_branches_end_with_the_process_that_measures_them(tmp_path: Path) -> None:
    code = """
import os, time
from rlprof.overlap.quota import launch
from rlprof.overlap.quota.branches import Bench
from tests.overlap.quota.test_branches import ALL, speaks
with Bench(ALL) as bench:
    print(bench.worker(speaks("A", "pass")).mark, flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        mark = process.stdout.readline().strip()
        assert len(guardian.marked(mark)) == 1
        process.send_signal(signal.SIGKILL)
        process.wait()
    until = time.monotonic() + 40
    while guardian.marked(mark) and time.monotonic() < until:
        time.sleep(0.05)
    assert guardian.marked(mark) == []


def test_without_anybody_who_asks_there_is_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert list(rounds()) == [0]
    for number in ("987654", "no number", "0"):  # a descriptor that this process did not get, or another file
        monkeypatch.setenv(VARIABLE, number)
        assert list(rounds()) == [0]


def test_a_program_takes_part_by_a_loop() -> None:
    code = "import time\nfrom rlprof.overlap.quota.rounds import rounds\nfor _ in rounds(): time.sleep(0.02)"
    with Bench(ALL) as bench:
        worker = bench.worker(Branch("A", (sys.executable, "-c", code)))
        assert worker.in_rounds
        begun_ns = time.monotonic_ns()
        found = [bench.together([worker]) for _ in range(3)]
        ended_ns = time.monotonic_ns()
    stamps = [stamp for r in found for stamp in (r.start_ns, r.spans[0].start_ns, r.spans[0].end_ns)]
    assert [begun_ns, *stamps, ended_ns] == sorted([begun_ns, *stamps, ended_ns])
    assert all(r.join_s >= 0.02 for r in found)
