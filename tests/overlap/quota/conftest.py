"""Stand-ins for the MPS control program and the CUDA driver, for tests that need a daemon without a GPU."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlprof.overlap.quota.daemons import BINARY, daemons

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a stand-in for libcuda.so.1."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to make the stand-in for the CUDA driver with")
    folder = tmp_path_factory.mktemp("driver")
    command = [compiler, "-shared", "-fPIC", "-w", "-o", folder / "libcuda.so.1", HERE / "fake_cuda.c"]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture
def fake_control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for nvidia-cuda-mps-control, first on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / BINARY
    program.write_text(f"#!{sys.executable} -IS\n" + (HERE / "fake_control.py").read_text())
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return program


def _end_guardians(folder: Path) -> None:
    """One whose owner was killed would look for its daemon for minutes, while other tests run."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"{folder}{os.sep}".encode() in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)


@pytest.fixture
def fake_mps(fake_control: Path, fake_driver: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Stand-ins for driver and control program; gives the folder of the daemons, which are ended after it."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_driver))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    # daemons of tests that run at the same time would be foreign to each other, whatever their TMPDIR; and
    # sockets need short paths
    lock = Path(f"/tmp/rlprof-fake-mps-{os.getuid()}.lock")
    with lock.open("w") as file, tempfile.TemporaryDirectory(prefix="rlprof-mps-") as short:
        fcntl.flock(file, fcntl.LOCK_EX)
        folder = Path(short) / "d"
        monkeypatch.setenv("RLPROF_MPS_FOLDER", str(folder))
        # where a daemon of others would be looked for
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(Path(short) / "theirs"))
        try:
            yield folder
        finally:
            for daemon in daemons(folder):
                with contextlib.suppress(Exception):
                    daemon.stop(even_with_clients=True)
            _end_guardians(folder)
