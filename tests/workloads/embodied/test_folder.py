"""The folder of a run or of an optimisation: one process at a time, one of both kinds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlprof.errors import OutputError
from rlprof.workloads.embodied.config import configure
from rlprof.workloads.embodied.folder import OPTIMISATION, RUN, claimed, refuse_other
from rlprof.workloads.embodied.optimize_run import Request, optimize_embodied
from rlprof.workloads.embodied.runner import run


def test_a_folder_is_held_by_one_and_free_afterwards(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    with claimed(out):
        with pytest.raises(OutputError, match=r"at work in this folder\. Next: wait"), claimed(out):
            pass
        with claimed(tmp_path / "other"):
            pass
    with claimed(out):
        assert list(out.iterdir()) == []


def test_a_killed_process_leaves_the_folder_free(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from rlprof.workloads.embodied.folder import claimed\n"
        "with claimed(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as held:
        assert held.stdout is not None
        assert held.stdout.readline() == b"held\n"
        with pytest.raises(OutputError, match="at work"), claimed(tmp_path):
            pass
        os.kill(held.pid, signal.SIGKILL)
    with claimed(tmp_path):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_told_before_anything_is_started(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(OutputError, match="cannot be written"), claimed(tmp_path):
            raise AssertionError
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.parametrize("force", [False, True])
def test_nobody_begins_where_another_is_at_work(tmp_path: Path, force: bool) -> None:
    measured = tmp_path / "measurements.jsonl"
    measured.write_text("kept\n")
    config = configure("tiny")
    with claimed(tmp_path):
        with pytest.raises(OutputError, match="at work"):
            optimize_embodied(Request(config, tmp_path, force=force, resume=not force))
        with pytest.raises(OutputError, match="at work"):
            run(config, tmp_path, 1, force=force)
    assert measured.read_text() == "kept\n"


def test_a_run_and_an_optimisation_do_not_replace_each_other(tmp_path: Path) -> None:
    for name, other, begin, goes_on in (
        ("optimised", OPTIMISATION, lambda out: run(configure("tiny"), out, 1, force=True), True),
        ("run", RUN, lambda out: optimize_embodied(Request(configure("tiny"), out, force=True)), False),
    ):
        out = tmp_path / name
        out.mkdir()
        (out / "checkpoint.pt").write_bytes(b"weights")
        refuse_other(out, other)
        (out / other).write_text("")
        with pytest.raises(OutputError, match="whose checkpoint is kept") as told:
            begin(out)
        assert ("--resume" in str(told.value)) is goes_on  # a run goes on from an optimisation alone
        assert (out / "checkpoint.pt").read_bytes() == b"weights"
