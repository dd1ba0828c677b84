"""What is found of matrix products under a level is of that level."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlprof.overlap.quota import mechanism
from rlprof.overlap.quota.clients import Gpu
from rlprof.overlap.quota.daemons import Daemon
from rlprof.overlap.quota.levels import Level
from rlprof.overlap.quota.mechanism import Mps
from rlprof.overlap.quota.products import Products
from rlprof.unavailable import Unavailable


def found(monkeypatch: pytest.MonkeyPatch, sms: int | None) -> Products | Unavailable:
    """What is said of a level of 66 SMs whose client had so many."""
    gpu = Gpu(0, "Stand-in", "GPU-0", 132, 0, 13000)
    daemon = Daemon(gpu, Path("/nowhere"), "mark", "control", None, None, None, "2026-11-30")
    monkeypatch.setattr(mechanism, "ask_client", lambda _environment: Products(sms, 36, ()))
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
