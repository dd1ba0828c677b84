"""The search of quotas where the rollout has the slack, in one process with training; times were given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'rlprof[workloads]'")
pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'rlprof[workloads]'")

from rlprof.overlap.green import GreenContextError, SmParts, SmShares
from rlprof.overlap.optimize.log import DecisionLog
from rlprof.overlap.optimize.store import Store
from rlprof.overlap.quota.products import Products, WrongProduct
from rlprof.unavailable import Unavailable
from rlprof.workloads.embodied.errors import DeviceError
from rlprof.workloads.embodied.quota_file import QuotaFile
from rlprof.workloads.embodied.rollout_share import RolloutShare
from tests.workloads.embodied.test_quota_search import (  # noqa: F401 - fixtures
    CONFIG,
    LEVELS,
    LOCAL_S,
    SLACK,
    WHOLE_S,
    Ran,
    interrupting,
    native,
    ran,
)

RIGHT = Products(132, 36, ())
#: The rollout has it, as beside a simulator on the GPU.
OTHER_SLACK = replace(SLACK, earlier="rollout", later="env")


class Parts(SmShares):
    """Shares of a GPU whose parts are `LEVELS`; there are no streams."""

    def parts(self, device: int) -> SmParts:
        return SmParts(tuple(level.amount for level in LEVELS))

    @contextmanager
    def current(self, lane: str, device: int, percent: int | None) -> Iterator[None]:
        yield


@pytest.fixture
def shared(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> Ran:  # noqa: F811
    """A training whose rollout has the slack and may have a share."""
    monkeypatch.setattr("rlprof.workloads.embodied.quota_search.find_pair", lambda *_: OTHER_SLACK)
    ran.tuned = RolloutShare(Parts(), "cuda:0", look=lambda _: RIGHT)
    # parts of the GPU are told by the largest percentage that gives them
    for times in (LOCAL_S, WHOLE_S):
        monkeypatch.setitem(times, 24, times[25])
        monkeypatch.setitem(times, 74, times[75])
    return ran


def test_the_share_of_a_rollout_with_the_slack_is_searched(shared: Ran, tmp_path: Path) -> None:
    log, path = DecisionLog(), tmp_path / "measurements.jsonl"
    found = shared.tune(Store(path), log, share=shared.tuned)
    assert found.quotas == {"rollout": 50}
    assert found.level == LEVELS[2]
    assert shared.tuned.key == 50
    assert shared.tuned.shares.percents == {"rollout": 50, "vision": 50}
    assert shared.simulator.key is None
    assert list(shared.simulator._all) == [None]  # no other one was made
    assert "rollout is ready 200 ms before env" in log.text()
    assert QuotaFile(found.quotas).apply(replace(CONFIG, device="cuda:0")).rollout_sm_percent == 50
    shared.tuned, shared.ran = RolloutShare(Parts(), "cuda:0", look=lambda _: pytest.fail("looked")), []
    assert shared.tune(Store(path), share=shared.tuned).quotas == {"rollout": 50}
    assert not shared.ran


def test_shares_of_who_has_them_are_not_taken_for_each_others(
    shared: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A level of the simulator and one of the rollout have the same SMs."""
    path = tmp_path / "measurements.jsonl"
    shared.tune(Store(path), share=shared.tuned)
    lines = [line for line in path.read_text().splitlines() if "quota pair" not in line]
    path.write_text("".join(f"{line}\n" for line in lines))
    monkeypatch.setattr("rlprof.workloads.embodied.quota_search.find_pair", lambda *_: SLACK)
    shared.tuned.use(None)
    shared.ran = []
    assert shared.tune(Store(path), share=shared.tuned).quotas == {"simulator": 50}
    assert {key for kind, key in shared.ran if kind == "local"} == {None, 6, 25, 50, 75}


def test_a_share_by_which_products_are_wrong_is_slower_than_all(shared: Ran) -> None:
    wrong = Products(132, 36, (WrongProduct(176, 1024, 256, "forward", 8, 768, None),))
    shared.tuned._look = lambda _: wrong
    found = shared.tune(share=shared.tuned)
    assert found.level is None
    assert found.search is not None
    trial = found.search.trial(3)
    assert isinstance(trial.measurement, Unavailable)
    assert "with 66 SMs 1 of 36 kinds of matrix products are wrong" in trial.measurement.reason
    assert {key for _, key in shared.ran} == {None}
    assert shared.tuned.shares.percents == {}


def test_a_share_by_which_products_cannot_be_computed_is_slower_than_all(shared: Ran) -> None:
    def failing(_device: str) -> Products:
        raise RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED\nand much more")

    shared.tuned._look = failing
    found = shared.tune(share=shared.tuned)
    assert found.level is None
    assert found.search is not None
    trial = found.search.trial(3)
    assert isinstance(trial.measurement, Unavailable)
    assert "cannot be computed (CUDA error: CUBLAS_STATUS_EXECUTION_FAILED)" in trial.measurement.reason
    assert shared.tuned.shares.percents == {}


def test_a_device_that_is_lost_is_told_where_its_streams_are_lost_too() -> None:
    class Lost(Parts):
        @contextmanager
        def current(self, lane: str, device: int, percent: int | None) -> Iterator[None]:
            try:
                yield
            finally:
                raise RuntimeError("CUDA error: an illegal memory access was encountered\nand much more")

    def failing(_device: str) -> Products:
        raise RuntimeError("CUDA error: unspecified launch failure")

    share = RolloutShare(Lost(), "cuda:0", look=failing)
    with pytest.raises(DeviceError, match=r"cannot be computed \(CUDA error: an illegal memory access was"):
        share.use(50)
    assert share.key is None


@pytest.mark.parametrize("kind", ["local", "whole"])
def test_an_interruption_gives_the_rollout_all_sms_again(shared: Ran, kind: str) -> None:
    shared.before = interrupting(kind, 9 if kind == "local" else 3)
    found = shared.tune(share=shared.tuned)
    assert (found.level, found.stopped, found.intact) == (None, True, True)
    assert shared.tuned.shares.percents == {}


@pytest.mark.parametrize(
    ("earlier", "share", "said"),
    [
        ("actor", None, "actor has the slack, and is one process with the rollout"),
        ("rollout", None, "rollout has the slack, and has no SMs: keep q0"),
        ("rollout", 90, "rollout has the slack, and has a share already, 90 %: keep q0"),
    ],
)
def test_who_has_the_slack_and_can_have_no_share(
    ran: Ran,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    earlier: str,
    share: int | None,
    said: str,
) -> None:
    pair = replace(OTHER_SLACK, earlier=earlier)
    monkeypatch.setattr("rlprof.workloads.embodied.quota_search.find_pair", lambda *_: pair)
    has = None if share is None else RolloutShare(Parts(), "cuda:0", share, look=lambda _: RIGHT)
    found = ran.tune(share=has)
    assert found.level is None
    assert said in found.reason


def test_a_driver_that_makes_no_parts_is_told(shared: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> SmParts:
        raise GreenContextError("cuDeviceGetDevResource says CUDA_ERROR_NOT_SUPPORTED", hint="another driver")

    monkeypatch.setattr(Parts, "parts", none)
    found = shared.tune(share=shared.tuned)
    assert found.reason == (
        "rollout has the slack, and can have no share (cuDeviceGetDevResource says CUDA_ERROR_NOT_SUPPORTED):"
        " keep q0"
    )


def test_natively_answers_keep_the_share_of_the_configuration() -> None:
    made: list[tuple[str, int | None]] = []

    class Seen(Parts):
        @contextmanager
        def current(self, lane: str, device: int, percent: int | None) -> Iterator[None]:
            made.append((lane, percent))
            yield

    share = RolloutShare(Seen(), "cuda:1", 90, look=lambda _: RIGHT)
    assert share.shares.percents == {"rollout": 90, "vision": 90}
    share.use(50)
    assert share.shares.percents == {"rollout": 50, "vision": 50}
    made.clear()
    with share.current():
        pass
    assert made == [("rollout", 90)]
    share.use(None)
    assert share.shares.percents == {"rollout": 90, "vision": 90}


def test_what_was_captured_with_a_share_that_is_dropped_is_forgotten() -> None:
    forgotten: list[tuple[int, int]] = []
    share = RolloutShare(Parts(), "cuda:1", forget=lambda *of: forgotten.append(of), look=lambda _: RIGHT)
    share.use(50)
    share.drop(50)  # in use
    assert forgotten == []
    share.use(74)
    share.drop(50)
    share.use(None, only=True)
    assert forgotten == [(1, 66), (1, 98)]
    share.use(50)
    share.abandon(50)
    assert share.key is None
    assert forgotten[2:] == [(1, 66)]
    share.drop(None)
    assert len(forgotten) == 3


def test_a_share_of_the_configuration_by_which_products_are_wrong_is_refused() -> None:
    wrong = Products(132, 36, (WrongProduct(176, 1024, 256, "forward", 8, 768, None),))
    with pytest.raises(DeviceError, match="with 66 SMs 1 of 36 kinds"):
        RolloutShare(Parts(), "cuda:0", 50, look=lambda _: wrong)


def test_on_a_processor_there_is_none() -> None:
    assert RolloutShare.of(None, "cpu", None) is None  # type: ignore[arg-type]
