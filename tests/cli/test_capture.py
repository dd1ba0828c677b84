"""Options of `rlprof capture` (what it does is tested in tests/capture/test_session.py)."""

from __future__ import annotations

import subprocess
import sys

OPTIONS = (
    *("--backend", "--rate", "--devices", "--kernels", "--metrics", "--start-on", "--stop-after"),
    *("--output", "--force", "--check", "--assemble"),
)


def rlprof(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rlprof", "capture", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_every_option_is_offered():
    """One release of the argument parser lost an option whose placeholder was its own name."""
    shown = rlprof("--help").stdout
    assert [o for o in OPTIONS if o not in shown] == []


def test_check_says_what_works_here_and_records_nothing(tmp_path):
    done = rlprof("--check", "-o", str(tmp_path / "run.rlprof"))
    assert done.returncode == 0
    for name in ("cupti", "dcgm", "nvml", "host", "nsys", "NVTX", "output"):
        assert any(line.startswith(name) for line in done.stdout.splitlines())
    assert "--backend auto takes" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_check_of_a_rate_that_no_sampler_keeps(tmp_path):
    done = rlprof("--check", "--rate", "1MHz", "-o", str(tmp_path / "run.rlprof"))
    assert done.returncode == 0
    assert "outside the range" in done.stdout
    assert "--backend auto takes" not in done.stdout
