"""The sampler process: how it starts, writes, and ends; with the host sampler, which runs everywhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlprof.capture import sampler as module
from rlprof.capture.part_reader import read_parts
from rlprof.capture.sampler import make_sampler
from rlprof.errors import UsageError
from tests.conftest import ROOT

COMMAND = [sys.executable, "-m", "rlprof.capture.sampler"]


def start(folder: Path, *more: str, **options: Any) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(
        [*COMMAND, "--backend", "host", "--rate-hz", "50", "--folder", str(folder), *more],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


def first_line(process: subprocess.Popen[str]) -> tuple[str, dict[str, Any]]:
    assert process.stdout is not None
    word, _, rest = process.stdout.readline().partition(" ")
    return word, json.loads(rest)


def parts(folder: Path) -> Any:
    (found,) = read_parts(folder)
    return found


@pytest.mark.parametrize("how", ["stdin", "term"])
def test_it_samples_until_told_to_stop(tmp_path: Path, how: str) -> None:
    process = start(tmp_path)
    word, greeting = first_line(process)
    assert (word, greeting["backend"], greeting["source"]) == ("ready", "host", "host_cores")
    began = time.monotonic_ns()
    time.sleep(1.2)
    until_samples(tmp_path, 21)
    if how == "term":
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    else:
        process.communicate(timeout=60)
        assert process.returncode == 0
    ended = time.monotonic_ns()
    found = parts(tmp_path)
    assert found.notes == ()
    activity = found.tables["activity"]
    assert set(activity["source"].to_pylist()) == {"host_cores"}
    assert set(activity["device"].to_pylist()) == {-1}
    start_ns, end_ns = activity["start_ns"].to_numpy(), activity["end_ns"].to_numpy()
    assert len(start_ns) > 20
    assert start_ns[0] <= began + 10**8
    assert began + 10**9 < end_ns[-1] <= ended
    assert np.array_equal(start_ns[1:], end_ns[:-1])
    said = found.facts["sampler"]
    assert said["finished"]
    assert said["samples"] == len(start_ns)
    assert said["losses"]["lost_samples"] == 0
    assert said["memory_bytes"]["private"] < 300e6
    assert len(found.facts["anchors"]) == 2
    assert "/" not in json.dumps(found.facts)  # no path, no command


def test_it_dies_with_its_parent_and_keeps_what_it_had(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        f"p = subprocess.Popen({COMMAND!r} + ['--backend', 'host', '--folder', {str(tmp_path)!r}],"
        " stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "print(p.stdout.readline().decode().split()[0], p.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    word, pid = parent.stdout.readline().split()
    assert word == "ready"
    until_samples(tmp_path, 6)
    parent.kill()
    parent.wait()
    limit = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and time.monotonic() < limit:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()
    found = parts(tmp_path)
    assert found.facts["sampler"]["finished"]
    assert found.tables["activity"].num_rows > 5


def test_when_it_is_killed_all_but_the_last_moment_is_there(tmp_path: Path) -> None:
    process = start(tmp_path)
    first_line(process)
    began, limit = time.monotonic_ns(), time.monotonic() + 60
    while flushed_ns(tmp_path) < began + 10**9 and time.monotonic() < limit:
        time.sleep(0.05)
    process.kill()
    process.wait()
    found = parts(tmp_path)
    assert not found.facts["sampler"]["finished"]
    assert flushed_ns(tmp_path) >= began + 10**9


def until_samples(folder: Path, count: int) -> None:
    """Wait until so many are on the disk."""
    limit = time.monotonic() + 60
    while samples_on_disk(folder) < count and time.monotonic() < limit:
        time.sleep(0.05)


def samples_on_disk(folder: Path) -> int:
    activity = parts(folder).tables.get("activity")
    return 0 if activity is None else int(activity.num_rows)


def flushed_ns(folder: Path) -> int:
    """Until when there are samples on the disk."""
    activity = parts(folder).tables.get("activity")
    return 0 if activity is None else int(activity["end_ns"].to_numpy().max())


def test_ctrl_c_of_the_group_does_not_end_it(tmp_path: Path) -> None:
    process = start(tmp_path, start_new_session=True)
    first_line(process)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--backend", "host", "--rate-hz", "1000"], "outside the range of the host sampler"),
        (["--backend", "host", "--rate-hz", "0"], "is no rate"),
        (["--backend", "host", "--metrics", "x"], "reads SM activity alone"),
        (["--backend", "cupti", "--devices", "zero"], "names no GPUs"),
        (["--backend", "cupti", "--rate-hz", "1"], "outside the range of the cupti sampler"),
    ],
)
def test_what_cannot_be_is_said_on_one_line(tmp_path: Path, arguments: list[str], says: str) -> None:
    done = subprocess.run(
        [*COMMAND, "--folder", str(tmp_path), *arguments],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    word, _, rest = done.stdout.partition(" ")
    assert word == "failed"
    assert says in json.loads(rest)["what"]
    assert not list(tmp_path.iterdir())


def test_a_machine_without_a_driver_is_told_so(tmp_path: Path) -> None:
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has a driver")
    done = subprocess.run(
        [*COMMAND, "--backend", "cupti", "--probe"],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, "no NVIDIA driver" in done.stdout) == (2, True)


def test_neither_torch_nor_polars_nor_pandas_is_loaded() -> None:
    code = (
        "import json, runpy, sys, threading, os\n"
        "sys.argv = ['sampler', '--backend', 'host', '--folder', sys.argv[1]]\n"
        "try: runpy.run_module('rlprof.capture.sampler', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "print(json.dumps([m for m in sys.modules if '.' not in m]))\n"
    )
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", code, folder],
            cwd=ROOT,
            input="",
            capture_output=True,
            text=True,
            check=True,
        )
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert "pyarrow" in loaded
    assert not loaded & {"torch", "polars", "pandas", "cupti", "pynvml"}


def test_further_metrics_need_cupti() -> None:
    with pytest.raises(UsageError, match="reads SM activity alone"):
        make_sampler("nvml", None, 10**8, ["x"])


def test_devices_are_numbers() -> None:
    assert module._devices("all") is None
    assert module._devices("1,0,1") == [0, 1]
    for wrong in ("", "a", "-1", "0,,1"):
        with pytest.raises(UsageError, match="names no GPUs"):
            module._devices(wrong)


@pytest.mark.parametrize("more", [("--probe",), ("--devices", "none")], ids=["ready", "failed"])
def test_it_ends_quietly_when_nobody_hears_it(tmp_path: Path, more: tuple[str, ...]) -> None:
    """Who started it was interrupted meanwhile."""
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [*COMMAND, "--backend", "host", "--folder", str(tmp_path), *more],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(write)
    assert done.stderr == ""
