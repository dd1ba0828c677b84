"""The process of a sampler, started and ended by a session."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Literal

import pytest

import rlprof
from rlprof.capture import sampler_process
from rlprof.capture.options import Options
from rlprof.capture.sampler_process import end_sampler, start_sampler
from rlprof.capture.samplers.base import SamplerError
from rlprof.capture.session import Session
from rlprof.errors import UsageError

HOST = Options(backend="host", rate_hz=20)


def test_a_rate_outside_the_range_leaves_nothing_behind(tmp_path: Path) -> None:
    session = Session(tmp_path / "run.rlprof", Options(backend="host", rate_hz=5000))
    with pytest.raises(UsageError, match="outside the range of the host sampler"):
        session.start()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("backend", ["cupti", "nvml"])
def test_a_sampler_that_cannot_work_says_why(tmp_path: Path, backend: Literal["cupti", "nvml"]) -> None:
    from rlprof.capture.samplers.choose import driver_present

    if driver_present():
        pytest.skip("an NVIDIA driver is installed here")
    with pytest.raises(rlprof.RlprofError, match="no NVIDIA driver"):
        Session(tmp_path / "run.rlprof", Options(backend=backend)).start()


def test_samples_come_once_it_has_started_and_it_ends_by_itself(tmp_path: Path) -> None:
    started = start_sampler(HOST, tmp_path, discard=False)
    assert (started.backend, started.rate_hz, started.notes) == ("host", 20, ())
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob("*-activity.arrows")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    end_sampler(started.process)
    assert started.process.returncode == 0


def test_it_discards_the_folder_if_told_to(tmp_path: Path) -> None:
    folder = tmp_path / "x.parts"
    folder.mkdir()
    end_sampler(start_sampler(HOST, folder, discard=True).process)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("answer", "ready_s", "says"),
    [
        ("exit 3", 30, r"the sampler ended at once \(exit code 3\)"),
        ("""echo 'failed {"what": "no counters"}'; exec sleep 600""", 30, "no counters"),
        ("exec sleep 600", 0.5, r"did not start within 0\.5 s"),
    ],
    ids=["ends", "refuses", "says_nothing"],
)
def test_one_that_works_in_its_trial_and_then_does_not_start_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, ready_s: float, says: str
) -> None:
    pid = tmp_path / "pid"
    python = tmp_path / "python"
    trial = """case "$*" in *--probe*) echo 'ready {}'; exit 0;; esac"""
    python.write_text(f"#!/bin/sh\n{trial}\necho $$ > {pid}\n{answer}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(sampler_process, "READY_S", ready_s)
    monkeypatch.setattr(sampler_process, "END_S", 0.1)
    with pytest.raises(SamplerError, match=says):
        start_sampler(HOST, tmp_path, discard=False)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_one_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped, it cannot see that its input has closed."""
    started = start_sampler(HOST, tmp_path, discard=False)
    started.process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(sampler_process, "END_S", 0.1)
    end_sampler(started.process)
    assert started.process.returncode == -signal.SIGKILL
