"""Levels of a processor; what is found of matrix products under a level of the GPU is of that level."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlprof.errors import UsageError
from rlprof.overlap.quota import mechanism
from rlprof.overlap.quota.clients import Gpu
from rlprof.overlap.quota.daemons import Daemon
from rlprof.overlap.quota.levels import Level
from rlprof.overlap.quota.mechanism import Cores, Mps, processor
from rlprof.overlap.quota.products import Products
from rlprof.progress import silent
from rlprof.unavailable import Unavailable


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


def granted(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr("rlprof.overlap.quota.mechanism.usable_cores", lambda: cores)


def test_levels_are_all_numbers_of_cores_where_no_quota_limits_them(monkeypatch: pytest.MonkeyPatch) -> None:
    granted(monkeypatch, 8)
    assert processor("cores").levels(silent) == tuple(Level(n, n) for n in range(1, 9))


def test_no_level_gives_more_cores_than_the_cpu_quota_keeps_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    granted(monkeypatch, 3)
    found = processor("cores")
    levels = found.levels(silent)
    assert levels == (Level(1, 1), Level(2, 2), Level(3, 8))
    # the last one is no quota: the command may run on all cores, as without one
    assert found.prefix(levels[-1]) == found.prefix(None)
    assert found.prefix(levels[1])[-1] == "6,7"


def test_one_core_leaves_nothing_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    granted(monkeypatch, 1)
    with pytest.raises(UsageError, match=r"the CPU quota is one core's time at most.*Next: --mechanism nice"):
        processor("cores")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    with pytest.raises(UsageError, match="there is one core only"):
        processor("cores")


def test_cores_that_nobody_counted_are_all_usable() -> None:
    assert Cores((0, 1)).levels(silent) == (Level(1, 1), Level(2, 2))


def found(monkeypatch: pytest.MonkeyPatch, sms: int | None) -> Products | Unavailable:
    """What is said of a level of 66 SMs whose client had so many."""
    gpu = Gpu(0, "Stand-in", "GPU-0", 132, 0, 13000)
    daemon = Daemon(gpu, Path("/nowhere"), "mark", "control", None, None, None, "2026-11-30")
    monkeypatch.setattr(mechanism, "ask_client", lambda _environment, limit_s: Products(sms, 36, ()))
    return Mps(daemon).products(Level(66, 50))


def test_products_of_a_client_of_the_level_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, 66) == Products(66, 36, ())


@pytest.mark.parametrize("sms", [132, 64, None])
def test_a_client_that_had_other_sms_tells_nothing_of_a_level(
    monkeypatch: pytest.MonkeyPatch, sms: int | None
) -> None:
    """Where the daemon has died CUDA gives a process all SMs, without a word."""
    told = found(monkeypatch, sms)
    assert isinstance(told, Unavailable)
    assert told.reason.startswith(f"a client of 50 % had {sms} SMs in place of 66")
