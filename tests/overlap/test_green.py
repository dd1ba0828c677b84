"""Shares of the SMs within a process, as far as they can be seen without a GPU: what the driver is asked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlprof.overlap import green
from rlprof.overlap.device import CudaStreams
from rlprof.overlap.execute import Executor
from rlprof.overlap.green import GreenContextError, SmParts, SmShares, sm_parts
from rlprof.overlap.replacement import Replacement
from tests.overlap.handmade import rollout_graph

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'rlprof[workloads]'")

OK = SimpleNamespace(name="CUDA_SUCCESS")


def sms_of(count: int) -> Any:
    return SimpleNamespace(sm=SimpleNamespace(smCount=count))


class Driver:
    """A driver of a GPU whose parts are multiples of 8 SMs; `calls` are the contexts and streams made."""

    CUdevResourceType = SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM=1)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUgreenCtxCreate_flags = SimpleNamespace(CU_GREEN_CTX_DEFAULT_STREAM=1)

    def __init__(self, sms: int = 132, refuses: str = "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION") -> None:
        self.sms, self.refuses = sms, refuses
        self.seen = SimpleNamespace(multi_processor_count=sms)
        self.calls: list[tuple[Any, ...]] = []

    def cuDeviceGet(self, number: int) -> tuple[Any, ...]:
        return OK, f"device {number}"

    def cuDeviceGetDevResource(self, device: str, _kind: int) -> tuple[Any, ...]:
        return OK, sms_of(self.sms)

    def cuDevSmResourceSplitByCount(self, _groups: int, _of: Any, _flags: int, least: int) -> tuple[Any, ...]:
        part = -(-least // 8) * 8
        if part > self.sms:
            return SimpleNamespace(name=self.refuses), None, None, None
        return OK, [sms_of(part)], 1, sms_of(self.sms - part)

    def cuDevResourceGenerateDesc(self, parts: list[Any], _count: int) -> tuple[Any, ...]:
        return OK, parts[0].sm.smCount

    def cuGreenCtxCreate(self, sms: int, device: str, _flags: int) -> tuple[Any, ...]:
        self.calls.append(("context", device, sms))
        return OK, sms

    def cuGreenCtxStreamCreate(self, sms: int, _flags: int, priority: int) -> tuple[Any, ...]:
        self.calls.append(("stream", sms, priority))
        return OK, 1000 + len(self.calls)


class Stream:
    """What torch makes of a handle."""

    def __init__(self, handle: int, device: int) -> None:
        self.cuda_stream, self.device, self.priority = handle, device, 0
        self.waits = 0

    def synchronize(self) -> None:
        self.waits += 1


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(green, "_driver", lambda: made)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.delenv(green.PERCENTAGE, raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: made.seen)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "ExternalStream", Stream)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    return made


def test_the_driver_says_which_parts_there_are(driver: Driver) -> None:
    parts = sm_parts(0)
    assert parts.parts == (*range(8, 129, 8), 132)
    assert (parts.amount(100), parts.amount(98), parts.amount(97), parts.amount(50)) == (132, 132, 132, 72)
    assert dict(parts.percents)[90] == 120
    driver.sms = driver.seen.multi_processor_count = 8  # one part only
    assert sm_parts(0).parts == (8,)
    driver.sms = driver.seen.multi_processor_count = 132
    driver.refuses = "CUDA_ERROR_INVALID_VALUE"
    assert sm_parts(0).parts[-1] == 132


def test_a_process_with_a_share_by_mps_gives_none_of_its_own(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(green.PERCENTAGE, "100")
    assert sm_parts(0).sms == 132
    monkeypatch.setenv(green.PERCENTAGE, "92")
    with pytest.raises(GreenContextError, match=r"by MPS already .*=92"):
        sm_parts(0)
    monkeypatch.delenv(green.PERCENTAGE)
    driver.seen.multi_processor_count = 100  # by the daemon's default
    with pytest.raises(GreenContextError, match="100 of 132 SMs"):
        sm_parts(0)


@given(st.sets(st.integers(1, 300), min_size=1).map(sorted))
def test_a_share_is_the_smallest_part_that_is_no_smaller(found: list[int]) -> None:
    parts = SmParts(tuple(found))
    for percent in range(1, 101):
        amount = parts.amount(percent)
        assert 100 * amount >= percent * parts.sms
        assert all(100 * smaller < percent * parts.sms for smaller in found if smaller < amount)
    assert [parts.amount(percent) for percent, _ in parts.percents] == [part for _, part in parts.percents]
    assert parts.percents[-1] == (100, parts.sms)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"cuDevSmResourceSplitByCount": lambda *_: (SimpleNamespace(name="CUDA_ERROR_NOT_PERMITTED"),)},
         "cuDevSmResourceSplitByCount says CUDA_ERROR_NOT_PERMITTED"),
        ({"cuDeviceGetDevResource": None}, "has no cuDeviceGetDevResource"),
    ],
)  # fmt: skip
def test_a_driver_that_cannot_is_told(driver: Driver, fault: dict[str, Any], said: str) -> None:
    for name, value in fault.items():
        setattr(driver, name, value)
    with pytest.raises(GreenContextError, match=said):
        sm_parts(0)


def test_a_function_that_an_older_driver_lacks_is_told(driver: Driver) -> None:
    def missing(*_: Any) -> Any:
        raise RuntimeError('Function "cuDeviceGetDevResource" not found')

    driver.cuDeviceGetDevResource = missing  # type: ignore[method-assign]
    with pytest.raises(GreenContextError, match="not found") as raised:
        sm_parts(0)
    assert "CUDA 12.4" in (raised.value.hint or "")


def test_without_the_package_it_says_which_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(green, "PACKAGE", "rlprof.no_such_module")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    with pytest.raises(GreenContextError, match="no_such_module") as raised:
        sm_parts(0)
    assert "cuda-bindings" in (raised.value.hint or "")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(GreenContextError, match="no CUDA device"):
        sm_parts(0)


def test_a_component_has_streams_of_its_share(driver: Driver) -> None:
    shares = SmShares({"policy": 50})
    one = shares.stream("policy", 0)
    assert driver.calls == [("context", "device 0", 72), ("stream", 72, 0)]
    assert shares.context_of(one) == (0, 72)
    assert shares.stream("policy", 0) is one
    other = shares.stream("policy#1", 0, -1)  # a copy: the same part, a stream of its own
    assert driver.calls[2:] == [("stream", 72, -1)]
    assert shares.stream("simulator", 0) is None
    shares.percents = {"policy": 25}
    assert shares.context_of(shares.stream("policy", 0)) == (0, 40)
    shares.percents = {"policy": 100}
    assert shares.stream("policy", 0) is None  # all SMs: any stream will do
    shares.percents = {"policy": 48}  # the same part by another percentage
    assert shares.stream("policy", 0) is not None
    shares.percents = {"policy": 50}
    assert (shares.stream("policy", 0), shares.stream("policy#1", 0, -1)) == (one, other)
    beside = shares.beside(one)
    assert beside is not one
    assert shares.context_of(beside) == (0, 72)
    assert shares.beside(one) is beside
    assert shares.beside(Stream(7, 0)) is None


def test_lanes_that_begin_at_the_same_time_are_in_one_part(driver: Driver) -> None:
    shares = SmShares({"policy": 50})
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda n: shares.stream(f"policy#{n % 4}", 0), range(64)))
    assert len(set(made)) == 4
    assert [call[0] for call in driver.calls].count("context") == 1


def test_a_graph_is_installed_with_shares(driver: Driver) -> None:
    shares = SmShares({"policy": 50})
    graph = rollout_graph()
    entries = dict.fromkeys(graph.nodes, lambda *_: None)
    executor = Executor(graph, entries, {}, sm_shares=shares)
    replacement = Replacement(graph, entries, {}, native=lambda: None, sm_shares=shares)
    for streams in (executor._streams, replacement.executor._streams):
        assert streams.stream(torch, "policy", 0) is shares.stream("policy", 0)


def test_streams_follow_a_share_that_changes(driver: Driver) -> None:
    shares, own = SmShares(), Stream(1, 0)
    fake: Any = SimpleNamespace(cuda=SimpleNamespace(Stream=lambda **_: own))
    streams = CudaStreams({"policy": -1}, shares)
    assert streams.stream(fake, "policy", 0) is own
    shares.percents = {"policy": 50}
    part = streams.stream(fake, "policy", 0)
    assert driver.calls[-1] == ("stream", 72, -1)
    shares.percents = {}
    assert streams.stream(fake, "policy", 0) is own
    streams.synchronize()
    assert (own.waits, part.waits) == (1, 1)
