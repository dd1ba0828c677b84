"""The host sampler: the kernel's own accounts, on this machine and on recorded ones."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlprof.capture.samplers.base import MS, SamplerError
from rlprof.capture.samplers.host import (
    HOST,
    Accounts,
    HostSampler,
    busy_share,
    parse_stat,
)
from rlprof.cores import limiting_group
from rlprof.errors import UsageError

CORES = sorted(os.sched_getaffinity(0))
# a 4-core machine; the columns are user nice system idle iowait irq softirq steal guest guest_nice
STAT = """cpu  100 10 40 1000 20 3 7 50 0 0
cpu0 30 5 10 250 5 1 2 20 0 0
cpu1 30 5 10 250 5 1 2 20 0 0
cpu2 20 0 10 250 5 1 2 5 0 0
cpu3 20 0 10 250 5 0 1 5 0 0
intr 12345 0 0
ctxt 99
"""


def machine(tmp_path: Path, *, quota: str | None = None, own: str = "/job") -> Path:
    """A root folder with the files of a machine that has a control group `own`."""
    (tmp_path / "proc/self").mkdir(parents=True)
    rows = "".join(f"cpu{c} 100 0 0 100 0 0 0 0 0 0\n" for c in CORES)
    (tmp_path / "proc/stat").write_text("cpu  0 0 0 0 0 0 0 0 0 0\n" + rows)
    (tmp_path / "proc/self/cgroup").write_text(f"0::{own}\n")
    group = tmp_path / "sys/fs/cgroup" / own.strip("/")
    group.mkdir(parents=True)
    if quota is not None:
        (group / "cpu.max").write_text(quota + "\n")
        (group / "cpu.stat").write_text("usage_usec 1000000\nuser_usec 1\nsystem_usec 1\n")
    return tmp_path


def test_only_the_cores_of_the_process_are_read() -> None:
    accounts = parse_stat(STAT, frozenset({1, 3}))
    assert accounts.busy == {1: 48, 3: 31}
    assert accounts.idle == {1: 255, 3: 255}


def test_share_is_busy_over_busy_and_idle_without_stolen_time() -> None:
    before = parse_stat(STAT, frozenset({0}))
    after = parse_stat(STAT.replace("cpu0 30 5 10 250 5 1 2 20", "cpu0 37 5 11 252 5 1 2 90"), frozenset({0}))
    assert busy_share(before, after) == pytest.approx(8 / 10)


def test_no_accounting_in_between_gives_no_sample() -> None:
    accounts = parse_stat(STAT, frozenset({0}))
    assert busy_share(accounts, accounts) is None


@given(st.lists(st.tuples(*[st.integers(0, 50)] * 4), min_size=1, max_size=8))
def test_the_share_lies_between_none_and_all(steps: list[tuple[int, int, int, int]]) -> None:
    before = Accounts({i: s[0] for i, s in enumerate(steps)}, {i: s[1] for i, s in enumerate(steps)})
    after = Accounts({i: s[2] for i, s in enumerate(steps)}, {i: s[3] for i, s in enumerate(steps)})
    share = busy_share(before, after)
    assert share is None or 0.0 <= share <= 1.0


def test_a_group_that_grants_less_is_found_also_above(tmp_path: Path) -> None:
    root = machine(tmp_path, quota="150000 100000", own="/slice/job")
    assert limiting_group(root, 8).cores == 1.5
    assert limiting_group(root, 1) is None
    above = root / "sys/fs/cgroup/slice"
    (above / "cpu.max").write_text("50000 100000\n")
    (above / "cpu.stat").write_text("usage_usec 5\n")
    assert limiting_group(root, 8).folder == above


@pytest.mark.parametrize("quota", ["max 100000", "garbage", None])
def test_a_group_without_a_limit_is_none(tmp_path: Path, quota: str | None) -> None:
    assert limiting_group(machine(tmp_path, quota=quota), 8) is None


def test_under_a_quota_the_share_is_that_of_the_granted_time(tmp_path: Path) -> None:
    root = machine(tmp_path, quota=f"{len(CORES) * 50_000} 100000")
    now = [0]
    sampler = HostSampler(50 * MS, root, lambda: now[0])
    (device,) = sampler.start()
    assert device.facts == {"cores": len(CORES) / 2, "scope": "control group"}
    now[0] += 100 * MS
    used = 1_000_000 + int(100_000 * len(CORES) / 2 * 0.25)
    (root / "sys/fs/cgroup/job/cpu.stat").write_text(f"usage_usec {used}\n")
    (sample,) = sampler.drain()
    assert sample.active_frac[0] == pytest.approx(0.25, abs=0.01)


def test_a_machine_without_accounting_says_so(tmp_path: Path) -> None:
    with pytest.raises(SamplerError, match="accounting cannot be read"):
        HostSampler(50 * MS, tmp_path).start()


@pytest.mark.parametrize("period", [19 * MS, 11_000 * MS])
def test_periods_out_of_range_are_refused_with_the_reason(period: int) -> None:
    with pytest.raises(UsageError, match=r"outside the range of the host sampler \(0.1 Hz to 50 Hz\)"):
        HostSampler(period)


def test_on_this_machine_work_is_seen() -> None:
    sampler = HostSampler(50 * MS)
    (device,) = sampler.start()
    assert device.device == HOST
    limit = time.monotonic() + 0.6
    while time.monotonic() < limit:
        sum(range(1000))
    (sample,) = sampler.stop()
    # one core was busy for the whole time, others may have been too
    assert sample.active_frac[0] > 0.8 / len(CORES)
    assert sample.end_ns[0] - sample.start_ns[0] > 500 * MS
    assert sampler.clock()["host"]["uncertainty_ns"] < 500 * MS


def test_samples_follow_each_other_without_gaps() -> None:
    sampler = HostSampler(20 * MS)
    sampler.start()
    got = []
    for _ in range(10):
        time.sleep(0.03)
        got += sampler.drain()
    starts, ends = (np.concatenate([getattr(s, c) for s in got]) for c in ("start_ns", "end_ns"))
    assert len(got) > 3
    assert np.array_equal(starts[1:], ends[:-1])
