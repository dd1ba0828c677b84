"""MPS for real: a daemon on a GPU, clients under quotas, its end however its process ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlprof.errors import RlprofError
from rlprof.overlap.quota import mps_guardian
from rlprof.overlap.quota.clients import list_gpus, probe_levels
from rlprof.overlap.quota.daemon import mps, start
from rlprof.overlap.quota.daemons import BINARY, Daemon, daemons, foreign_daemons
from rlprof.overlap.quota.errors import ForeignDaemonError

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for daemons, in a machine that has a GPU, the control program and no daemon."""
    if shutil.which(BINARY) is None:
        pytest.skip(f"{BINARY} is not installed")
    try:
        list_gpus()
    except RlprofError as error:
        pytest.skip(str(error))
    with tempfile.TemporaryDirectory(prefix="rlprof-mps-") as short:
        monkeypatch.setenv("RLPROF_MPS_FOLDER", str(Path(short) / "d"))
        if foreign_daemons():
            pytest.skip("somebody else's MPS daemon runs here")
        yield Path(short)
        for daemon in daemons():
            daemon.stop(even_with_clients=True)


def sms_of_a_client(daemon: Daemon, percentage: int) -> int:
    """SMs that a fresh client sees under a percentage."""
    found = probe_levels(daemon.gpu, daemon.environment(), step=percentage)
    return dict(found.probed)[percentage]


def test_quotas_take_effect_and_nothing_is_left() -> None:
    with mps() as daemon:
        half, all_of_them = sms_of_a_client(daemon, 50), daemon.gpu.sm_count
        assert 0.4 * all_of_them <= half <= 0.6 * all_of_them
        assert len(daemon.servers()) == 1
        assert set(daemon.servers()) < set(daemon.processes)
    assert daemon.processes == []
    assert not daemon.folder.exists()
    assert foreign_daemons() == []


def test_levels_rise_with_the_percentage() -> None:
    with mps() as daemon:
        levels = probe_levels(daemon.gpu, daemon.environment(), step=10).levels
    assert levels[-1].amount == daemon.gpu.sm_count
    assert [x.setting for x in levels] == sorted(x.setting for x in levels)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_process_that_is_ended_takes_its_daemon_along(number: signal.Signals) -> None:
    code = (
        "import time\nfrom rlprof.overlap.quota.daemon import mps\n"
        "with mps() as daemon:\n    print(daemon.mark, flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        mark = process.stdout.readline().strip()
        assert mps_guardian.members("", mark)
        process.send_signal(number)
        process.wait(20)
    until = time.monotonic() + 40
    while mps_guardian.members("", mark) and time.monotonic() < until:
        time.sleep(0.05)
    assert mps_guardian.members("", mark) == []
    assert foreign_daemons() == []


def test_somebody_elses_daemon_is_left_alone(folder: Path) -> None:
    theirs = folder / "theirs"
    theirs.mkdir()
    environment = {
        **os.environ,
        "CUDA_MPS_PIPE_DIRECTORY": str(theirs),
        "CUDA_MPS_LOG_DIRECTORY": str(theirs),
    }
    subprocess.run([BINARY, "-d"], env=environment, check=True, timeout=20)
    try:
        with pytest.raises(ForeignDaemonError):
            start()
        assert [f.pipe for f in foreign_daemons()] == [str(theirs)]
    finally:
        subprocess.run([BINARY], input="quit\n", text=True, env=environment, check=True, timeout=20)
