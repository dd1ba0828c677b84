"""Running the command line: inside the test's process, or as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from rlprof.cli import main


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


Cli = Callable[..., Result]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """Run a command line in this process."""
    monkeypatch.setenv("RLPROF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RLPROF_DEBUG", raising=False)

    def call(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["rlprof", *map(str, arguments)])
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
        try:
            with pytest.raises(SystemExit) as ended:
                main.run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        out, err = capfd.readouterr()
        return Result(int(ended.value.code or 0), out, err)

    return call


@pytest.fixture
def process(tmp_path: Path) -> Cli:
    """Run a command line as a process of its own; `env` adds to its environment."""

    def call(*arguments: object, env: Mapping[str, str] | None = None, before: str = "") -> Result:
        code = f"{before}\nfrom rlprof.cli.main import run\nrun()"
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=tmp_path,
            env={**os.environ, "RLPROF_CACHE": str(tmp_path / "cache"), "RLPROF_DEBUG": "", **(env or {})},
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture
def capture(data: Path) -> Path:
    """A small capture with ranges of two processes, kernels and SM counters."""
    return data / "nsys" / "vla_chunk_and_training.sqlite"
