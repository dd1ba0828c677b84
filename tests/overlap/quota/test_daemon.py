"""Life of a daemon, with stand-ins for the control program and the driver (see conftest.py)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rlprof.overlap.quota import daemons as module
from rlprof.overlap.quota import mps_guardian
from rlprof.overlap.quota.clients import probe_levels
from rlprof.overlap.quota.daemon import mps, start
from rlprof.overlap.quota.daemons import Daemon, daemons, foreign_daemons, running
from rlprof.overlap.quota.errors import (
    ClientLimitError,
    ForeignDaemonError,
    MpsAbsentError,
    MpsError,
    QuotaError,
)
from rlprof.overlap.quota.foreign import Foreign

PROGRAM = """
import sys, time
from rlprof.overlap.quota.daemon import mps
def body():
    with mps() as daemon:
        print(daemon.mark, daemon.folder, flush=True)
        HOW
"""


CLIENT = "import ctypes, os; os.environ.update(daemon.environment()); ctypes.CDLL('libcuda.so.1').cuInit(0)"


def gone(mark: str, within_s: float = 40.0) -> bool:
    until = time.monotonic() + within_s
    while mps_guardian.members("", mark):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def no_folder(path: Path, within_s: float = 40.0) -> bool:
    until = time.monotonic() + within_s
    while path.exists() and time.monotonic() < until:
        time.sleep(0.02)
    return not path.exists()


def test_a_daemon_serves_clients_under_quotas_and_leaves_nothing_behind(fake_mps: Path) -> None:
    with mps() as daemon:
        assert [d.mark for d in daemons()] == [daemon.mark]
        assert len(daemon.processes) == 2  # control and the server that the first client made it start
        assert len(daemon.servers()) == 1
        assert daemon.servers()[0] in daemon.processes
        levels = probe_levels(daemon.gpu, daemon.environment(), step=10).levels
        assert [(level.amount, level.setting) for level in levels] == [
            (12, 10), (26, 20), (38, 30), (52, 40), (66, 50),
            (78, 60), (92, 70), (104, 80), (118, 90), (132, 100),
        ]  # fmt: skip
        assert daemon.environment(levels[0])["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "10"
        assert daemon.environment()["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "100"
        assert Daemon.from_dict(daemon.to_dict()) == daemon
    assert daemon.processes == []
    assert not daemon.folder.exists()
    assert daemons() == []


def test_an_exception_ends_the_daemon(fake_mps: Path) -> None:
    with pytest.raises(ZeroDivisionError), mps() as daemon:
        _ = 1 / 0
    assert daemon.processes == []


@pytest.mark.parametrize(
    ("number", "how"),
    [
        (signal.SIGKILL, "time.sleep(60)\nbody()"),
        pytest.param(signal.SIGINT, "time.sleep(60)\nbody()", marks=pytest.mark.slow),
        # without a handler nothing of the body runs any more
        pytest.param(signal.SIGTERM, "time.sleep(60)\nbody()", marks=pytest.mark.slow),
        pytest.param(
            signal.SIGTERM,
            "time.sleep(60)\nimport signal; signal.signal(15, lambda *_: sys.exit(3)); body()",
            marks=pytest.mark.slow,
        ),
        pytest.param(None, "import os; os._exit(1)\nbody()", marks=pytest.mark.slow),
        # a client in a call that neither returns nor lets Python run
        (signal.SIGTERM, f"{CLIENT}; ctypes.PyDLL(None).sleep(60)\nbody()"),
    ],
)
def test_a_process_that_ends_in_any_way_takes_its_daemon_along(
    fake_mps: Path, number: signal.Signals | None, how: str
) -> None:
    code = PROGRAM.replace("HOW", how)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        mark, folder = process.stdout.readline().split()
        if number is not None:
            assert mps_guardian.members("", mark)
            process.send_signal(number)
        process.wait(60)
    assert gone(mark)
    assert no_folder(Path(folder))
    assert mps_guardian.askers(folder) == []


def all_ended(processes: list[int], within_s: float = 40.0) -> bool:
    until = time.monotonic() + within_s
    while left := [p for p in processes if mps_guardian.start_ticks(p) is not None]:
        if time.monotonic() > until:
            break
        time.sleep(0.02)
    return not left


def name_of(process: int) -> bytes:
    return Path(f"/proc/{process}/comm").read_bytes().strip()


def guardians(mark: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if mark.encode() in words and mps_guardian.__file__.encode() in words:
            found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_who_ends_everything_by_name_ends_the_daemon_too(fake_mps: Path, number: signal.Signals) -> None:
    """As `pkill -f rlprof` does: the guardian gets what its owner gets, and is not ended before its work."""
    with subprocess.Popen(["sleep", "60"]) as owner:
        daemon = start(owner=owner.pid)
        (guardian,) = guardians(daemon.mark)
        os.kill(guardian, number)
        assert mps_guardian.start_ticks(guardian) is not None
        owner.send_signal(number)
        owner.kill()  # under nohup it ignores SIGHUP
        owner.wait()
    assert gone(daemon.mark)
    assert no_folder(daemon.folder)


def test_a_guardian_that_has_not_come_up_yet_is_not_ended_either(
    fake_mps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where everything is ended in the moment in which a daemon was started."""
    late, may_go_on = tmp_path / "late.py", tmp_path / "go"
    late.write_text(
        "import os, runpy, time\n"
        f"while not os.path.exists({str(may_go_on)!r}): time.sleep(0.01)\n"
        f"runpy.run_path({mps_guardian.__file__!r}, run_name='__main__')\n"
    )
    monkeypatch.setattr(mps_guardian, "__file__", str(late))
    with subprocess.Popen(["sleep", "60"]) as owner:
        daemon = start(owner=owner.pid)
        (guardian,) = guardians(daemon.mark)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(guardian, number)
        owner.kill()
        owner.wait()
        may_go_on.touch()
    assert gone(daemon.mark)
    assert no_folder(daemon.folder)


def test_a_control_program_that_waits_for_words_does_not_outlive_its_daemon(
    fake_mps: Path, fake_control: Path
) -> None:
    """As where a process was killed that had started one, and another one holds its end of the pipe."""
    daemon = start()
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(daemon.pipe)}
    with subprocess.Popen([fake_control], stdin=subprocess.PIPE, env=environment) as waiting:
        until = time.monotonic() + 40  # it has its name once it has been executed
        while waiting.pid not in mps_guardian.askers(str(daemon.folder)) and time.monotonic() < until:
            time.sleep(0.01)
        assert waiting.pid in mps_guardian.askers(str(daemon.folder))
        assert waiting.pid not in daemon.processes
        daemon.stop()
        assert waiting.wait(40) == -signal.SIGKILL


def test_the_next_daemon_is_not_ended_by_the_guardian_of_the_one_before(fake_mps: Path) -> None:
    """As where a script starts its next step as soon as one was killed."""
    code = PROGRAM.replace("HOW", "time.sleep(60)\nbody()")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        mark = owner.stdout.readline().split()[0]
        (guardian,) = guardians(mark)
        owner.kill()
        owner.wait()
    with mps() as second:
        assert second.mark != mark
        assert all_ended([guardian], 60)
        assert len(second.processes) == 2
        assert (second.folder / "state.json").exists()
        assert mps_guardian.members("", mark) == []


def test_who_ends_a_daemon_late_does_not_end_the_next_one(
    fake_mps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guardian that was held up between looking for processes and telling them to quit."""
    first = start()
    late = first.processes
    first.stop()
    second = start()
    members = mps_guardian.members
    looks = [late]
    monkeypatch.setattr(mps_guardian, "members", lambda *of: looks.pop() if looks else members(*of))
    assert mps_guardian.end(first.binary, str(first.folder), first.mark) == []
    assert looks == []
    assert len(second.processes) == 2
    assert second.folder.is_dir()
    second.stop()
    assert list(fake_mps.iterdir()) == []


def test_a_daemon_whose_owner_is_gone_is_not_used(fake_mps: Path) -> None:
    """Its guardian may be about to end it, or may have been killed."""
    with subprocess.Popen(["sleep", "60"]) as owner:
        first = start(owner=owner.pid)
        for guardian in guardians(first.mark):
            os.kill(guardian, signal.SIGKILL)
        owner.kill()
        owner.wait()
    assert first.alive
    assert first.abandoned
    with mps() as second:
        assert second.mark != first.mark
        assert not second.abandoned
        assert mps_guardian.members("", first.mark) == []


@pytest.mark.slow
def test_an_owner_that_is_killed_while_it_asks_a_daemon_that_hangs_leaves_nothing(
    fake_mps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps_guardian, "ASKED_S", 0.4)
    monkeypatch.setattr(mps_guardian, "CLIENTS_S", 0)
    daemon = start()
    for process in daemon.processes:
        os.kill(process, signal.SIGSTOP)
    code = "import sys\nfrom rlprof.overlap.quota.mps_guardian import tell\ntell(*sys.argv[1:])"
    command = [sys.executable, "-c", code, daemon.binary, str(daemon.pipe), "get_server_list"]
    with subprocess.Popen(command) as owner:
        ticks = mps_guardian.start_ticks(owner.pid)
        assert ticks is not None
        until = time.monotonic() + 40
        # the daemon's own processes are there too
        while len(mps_guardian.askers(str(daemon.folder))) < 1 + len(daemon.processes):
            assert time.monotonic() < until
            time.sleep(0.01)
        owner.kill()
        owner.wait()
    me = (owner.pid, ticks)
    mps_guardian.guard(me, me, daemon.binary, str(daemon.folder), daemon.mark)
    assert not daemon.alive
    assert mps_guardian.askers(str(daemon.folder)) == []
    assert not daemon.folder.exists()


def test_a_daemon_that_is_started_for_good_is_found_used_and_stopped(fake_mps: Path) -> None:
    daemon = start()
    assert running(daemon.gpu) == daemon
    with mps() as used:
        assert used == daemon
    assert daemon.alive  # who only used it does not end it
    with pytest.raises(MpsError, match="already"):
        start()
    daemon.stop()
    assert not daemon.alive
    assert daemons() == []


def test_clients_at_work_are_not_cut_off_unless_that_is_wanted(
    fake_mps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps_guardian, "CLIENTS_S", 0)  # they are given no time to finish
    daemon = start()
    code = "import ctypes, time; ctypes.CDLL('libcuda.so.1').cuInit(0); print(1, flush=True); time.sleep(60)"
    environment = {**os.environ, **daemon.environment()}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        client.stdout.readline()
        assert daemon.clients() == [client.pid]
        with pytest.raises(MpsError, match=f"has clients: processes {client.pid}"):
            daemon.stop()
        assert daemon.alive
        daemon.stop(even_with_clients=True)
        assert not daemon.alive
        assert client.poll() is None  # what is not the daemon's is not ended
        client.kill()


@pytest.mark.slow
def test_a_daemon_that_was_killed_makes_room_for_the_next(fake_mps: Path) -> None:
    first = start()
    for process in first.processes:
        os.kill(process, signal.SIGKILL)
    assert gone(first.mark)
    assert [d.alive for d in daemons()] == [False]
    second = start()
    assert second.alive
    assert second.mark != first.mark
    second.stop()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["deaf", "old"])
def test_a_daemon_that_does_not_quit_is_ended(
    fake_mps: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps_guardian, "ASKED_S", 0.4)
    monkeypatch.setattr(mps_guardian, "CLIENTS_S", 0)
    if fault == "deaf":
        daemon = start()
        # one that no longer does what it is told: stopped, as if it hung
        for process in daemon.processes:
            os.kill(process, signal.SIGSTOP)
    else:
        monkeypatch.setenv("FAKE_MPS", fault)
        daemon = start()
    daemon.stop(even_with_clients=True)
    assert daemon.processes == []
    assert not daemon.folder.exists()


def test_somebody_elses_daemon_is_reported_and_left_alone(fake_mps: Path, fake_control: Path) -> None:
    theirs = fake_mps.parent / "theirs"
    theirs.mkdir()
    environment = {
        **os.environ,
        "CUDA_MPS_PIPE_DIRECTORY": str(theirs),
        "CUDA_MPS_LOG_DIRECTORY": str(theirs),
    }
    subprocess.run([fake_control, "-d"], env=environment, check=True)
    try:
        (found,) = foreign_daemons()
        assert found.pipe == str(theirs)
        assert found.process == int((theirs / "nvidia-cuda-mps-control.pid").read_text())
        with pytest.raises(ForeignDaemonError, match=f"did not start: process {found.process} of user"):
            start()
        assert foreign_daemons() == [found]
        assert daemons() == []
    finally:
        subprocess.run([fake_control], input=b"quit\n", env=environment, check=True)
    assert found.process is not None
    assert all_ended([found.process])  # it answers before it ends
    assert foreign_daemons() == []


def test_a_daemon_of_ours_that_begins_or_ends_while_others_are_looked_for_is_not_foreign(
    fake_mps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where two processes look for daemons, and one starts or stops its own."""
    read = module.process_table
    begun: list[Daemon] = []

    def table_while_one_begins() -> list[Foreign]:
        begun.append(start())
        return read()

    with monkeypatch.context() as patch:
        # `start` looks for others as well
        patch.setattr(module, "process_table", lambda: [] if begun else table_while_one_begins())
        monkeypatch.setattr("rlprof.overlap.quota.daemon.foreign_daemons", lambda _gpu: [])
        assert foreign_daemons() == []
    (daemon,) = begun

    def table_while_one_ends() -> list[Foreign]:
        found = read()
        assert daemon.processes
        daemon.stop()
        return found

    monkeypatch.setattr(module, "process_table", table_while_one_ends)
    assert foreign_daemons() == []
    assert not daemon.alive


def test_who_asks_a_daemon_is_none(fake_mps: Path, fake_control: Path) -> None:
    """As where a guardian still asks one that another process has just ended."""
    theirs = fake_mps.parent / "theirs"
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(theirs)}
    with subprocess.Popen([fake_control], stdin=subprocess.PIPE, env=environment) as asks:
        until = time.monotonic() + 40  # it has its name once it has been executed
        while not (named := name_of(asks.pid) == mps_guardian.NAME) and time.monotonic() < until:
            time.sleep(0.01)
        assert named
        assert foreign_daemons() == []
        assert asks.stdin is not None
        asks.stdin.close()


def test_a_server_that_outlives_its_control_program_is_ended(
    fake_mps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was known as the child of the process that had written itself down."""
    monkeypatch.setenv("FAKE_MPS", "leaves")
    monkeypatch.setattr(mps_guardian, "ASKED_S", 0.4)  # how long the server, which stays, is waited for
    daemon = start()
    processes = daemon.processes
    assert len(processes) == 2
    daemon.stop()
    assert not [p for p in processes if mps_guardian.start_ticks(p) is not None]
    assert not daemon.folder.exists()


@pytest.mark.slow
def test_a_daemon_for_other_gpus_is_in_nobodys_way(fake_mps: Path, fake_control: Path) -> None:
    theirs = fake_mps.parent / "theirs"
    theirs.mkdir()
    environment = {
        **os.environ,
        "CUDA_MPS_PIPE_DIRECTORY": str(theirs),
        "CUDA_MPS_LOG_DIRECTORY": str(theirs),
    }
    environment["CUDA_VISIBLE_DEVICES"] = "GPU-ffffffff"
    subprocess.run([fake_control, "-d"], env=environment, check=True)
    try:
        with mps() as daemon:
            assert foreign_daemons(daemon.gpu) == []
            assert [f.visible for f in foreign_daemons()] == ["GPU-ffffffff"]
    finally:
        subprocess.run([fake_control], input=b"quit\n", env=environment, check=True)


def test_no_control_program_is_said_with_what_to_do(
    fake_mps: Path, fake_control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(MpsAbsentError, match=r"nvidia-cuda-mps-control is not installed.*Next: "):
        start()


def test_no_driver_and_no_gpu_are_told_apart(fake_mps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CUDA", "none")
    with pytest.raises(MpsAbsentError, match=r"CUDA sees no GPU here: cuInit failed .*100"):
        start()
    monkeypatch.delenv("FAKE_CUDA")
    with pytest.raises(MpsAbsentError, match=r"there is no GPU 3.*0 to 0"):
        start(3)


@pytest.mark.slow
def test_a_folder_that_cannot_be_used_is_refused(fake_mps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_mps.write_text("a file")
    with pytest.raises(MpsAbsentError, match="is not a folder of this user"):
        start()
    monkeypatch.setenv("RLPROF_MPS_FOLDER", str(fake_mps.parent / ("long" * 20)))
    with pytest.raises(MpsAbsentError, match="too long for the sockets"):
        start()
    fake_mps.unlink()


@pytest.mark.slow
def test_what_somebody_else_wrote_is_not_believed(fake_mps: Path, tmp_path: Path) -> None:
    daemon = start()
    link = tmp_path / "link"
    link.symlink_to(fake_mps)
    assert daemons(link) == []
    assert daemons(tmp_path / "nothing") == []
    assert daemons(fake_mps) == [daemon]
    (daemon.folder / "state.json").write_text('{"gpu": 1}')
    assert daemons(fake_mps) == []
    mps_guardian.end(daemon.binary, str(daemon.folder), daemon.mark)


def test_a_daemon_is_known_by_what_it_wrote_down_too(fake_mps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should a control program not keep its environment, its daemon is still ours, and is ended."""
    monkeypatch.setenv("FAKE_MPS", "shy")
    daemon = start()
    assert mps_guardian.members("", daemon.mark) == []
    processes = daemon.processes
    assert len(processes) == 2
    assert foreign_daemons() == []
    daemon.stop()
    assert not [p for p in processes if mps_guardian.start_ticks(p) is not None]
    assert not daemon.folder.exists()


@pytest.mark.slow
def test_of_two_starts_at_the_same_time_one_is_refused(fake_mps: Path) -> None:
    code = "from rlprof.overlap.quota.daemon import start\nprint(start().mark)"
    starts = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=60) for process in starts]
    assert sorted(process.returncode for process in starts) == [0, 1]
    assert "has an MPS daemon of rlprof already" in "".join(err for _, err in said)
    (daemon,) = daemons()
    assert daemon.mark == "".join(out for out, _ in said).strip()
    assert len(daemon.processes) == 2


@pytest.mark.slow
def test_a_forked_process_that_leaves_the_body_ends_nothing(fake_mps: Path) -> None:
    code = (
        "import os\nfrom rlprof.overlap.quota.daemon import mps\n"
        "with mps() as daemon:\n"
        "    child = os.fork()\n"
        "    if child:\n"
        "        os.waitpid(child, 0)\n"
        "        print(len(daemon.processes))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "2\n"
    assert daemons() == []


def test_a_daemon_that_does_not_come_up_leaves_nothing(
    fake_mps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MPS", "refuses")
    with pytest.raises(MpsError, match="-d ended with 1: Failed to start MPS control daemon"):
        start()
    assert list(fake_mps.iterdir()) == []


def test_the_client_limit_is_explained_and_the_daemon_ended(
    fake_mps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MPS", "limit")
    with pytest.raises(ClientLimitError, match=r"MAX_CLIENTS_REACHED \(808\).*its log: .*Next: end clients"):
        start()
    assert list(fake_mps.iterdir()) == []


def test_percentages_without_effect_are_no_levels(fake_mps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CUDA", "flat")
    with mps() as daemon, pytest.raises(QuotaError, match="clients are not under MPS"):
        probe_levels(daemon.gpu, daemon.environment(), step=50)


@pytest.mark.slow
def test_a_driver_that_connects_late_is_asked_with_a_context(
    fake_mps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CUDA", "late")
    with mps() as daemon:
        assert len(daemon.servers()) == 1
        assert probe_levels(daemon.gpu, daemon.environment(), step=50).probed == ((50, 66), (100, 132))


def test_an_owner_that_goes_while_its_daemon_starts_leaves_none(
    fake_mps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where somebody kills a script in the very moment in which it starts a daemon."""
    with subprocess.Popen(["sleep", "60"]) as owner:
        ask = mps_guardian.tell

        def tell(*arguments: Any, **more: Any) -> tuple[int, str]:
            owner.kill()
            owner.wait()
            return ask(*arguments, **more)

        monkeypatch.setattr(mps_guardian, "tell", tell)
        with pytest.raises(MpsError):
            start(owner=owner.pid)
    until = time.monotonic() + 40  # its guardian may be removing it at the same time
    while list(fake_mps.iterdir()) and time.monotonic() < until:
        time.sleep(0.01)
    assert list(fake_mps.iterdir()) == []
    assert foreign_daemons() == []


def test_a_daemon_for_a_process_that_is_gone_is_not_started(fake_mps: Path) -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    with pytest.raises(MpsError, match=f"there is no process {process.pid}"):
        start(owner=process.pid)
    assert list(fake_mps.iterdir()) == []
