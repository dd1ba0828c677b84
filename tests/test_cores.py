"""Cores that this process may use, on machines whose files lie in a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlprof.cores import granted_cores, limiting_group, usable_cores


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


def second(root: Path, own: str, quotas: dict[str, str]) -> Path:
    """A machine with control groups of version 2; quotas by folder."""
    return machine(root, f"0::{own}\n", {f"{k}/cpu.max": v for k, v in quotas.items()})


def first(root: Path, own: str, quotas: dict[str, tuple[str, str]], mount: str = "cpu") -> Path:
    """A machine with control groups of version 1; quota and period by folder."""
    files = {}
    for folder, (quota, period) in quotas.items():
        files[f"{mount}/{folder}/cpu.cfs_quota_us"] = quota
        files[f"{mount}/{folder}/cpu.cfs_period_us"] = period
    return machine(root, f"5:memory:{own}\n4:cpu,cpuacct:{own}\n1:name=systemd:/\n", files)


def machine(root: Path, groups: str, files: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("quota", "granted", "usable"),
    [
        ("200000 100000", 2.0, 2),
        ("250000 100000", 2.5, 3),
        ("50000 100000", 0.5, 1),
        ("300001 100000", 3.00001, 4),
        ("1600000 100000", 8.0, 8),
        ("200000", 8.0, 8),
        ("max 100000", 8.0, 8),
        ("garbage", 8.0, 8),
        ("", 8.0, 8),
        ("-1 100000", 8.0, 8),
        ("0 100000", 8.0, 8),
        ("100000 0", 8.0, 8),
    ],
)
def test_a_quota_is_told_in_cores_rounded_up(tmp_path: Path, quota: str, granted: float, usable: int) -> None:
    root = second(tmp_path, "/job", {"job": quota})
    assert granted_cores(root) == pytest.approx(granted)
    assert usable_cores(root) == usable


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize(("quota", "usable"), [("150000", 2), ("-1", 8), ("10000", 1), ("x", 8)])
def test_so_is_one_of_version_1(tmp_path: Path, mount: str, quota: str, usable: int) -> None:
    root = first(tmp_path, "/docker/abc", {"docker/abc": (quota, "100000")}, mount)
    assert usable_cores(root) == usable


def test_the_least_of_the_groups_above_counts_too(tmp_path: Path) -> None:
    quotas = {"slice/job": "700000 100000", "slice": "300000 100000", "other": "100000 100000"}
    assert usable_cores(second(tmp_path / "two", "/slice/job", quotas)) == 3
    split = {k: (v.split()[0], v.split()[1]) for k, v in quotas.items()}
    assert usable_cores(first(tmp_path / "one", "/slice/job", split)) == 3


def test_in_a_container_the_mount_itself_may_be_the_group(tmp_path: Path) -> None:
    # without a namespace of its own the path is that of the host, which is not there
    assert usable_cores(second(tmp_path / "two", "/kubepods/pod1", {".": "400000 100000"})) == 4
    assert usable_cores(first(tmp_path / "one", "/docker/abc", {".": ("200000", "100000")})) == 2


def test_where_nothing_is_told_the_affinity_alone_counts(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == 8
    assert usable_cores(machine(tmp_path, "nonsense\n", {})) == 8


def test_a_group_without_accounts_limits_and_is_none_to_read_from(tmp_path: Path) -> None:
    root = second(tmp_path, "/job", {"job": "200000 100000"})
    assert usable_cores(root) == 2
    assert limiting_group(root, 8) is None
