"""Work on a device: stand-ins for torch here, a real GPU where there is one."""

from __future__ import annotations

import sys
import threading
import time
import types
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rlprof.taskgraph import Edge, Pending, RunResult, Task, TaskFailedError, TaskGraph, run, verify
from rlprof.taskgraph.cuda import Launched, on_device
from rlprof.taskgraph.processes import ProcessBackend

NAP_S = 0.2


class FakeStream:
    """A stream whose work is complete when somebody says so."""

    def __init__(self) -> None:
        self.done = threading.Event()

    def synchronize(self) -> None:
        self.done.wait(5)


class FakeEvent:
    def __init__(self, *, blocking: bool) -> None:
        assert blocking

    def record(self, stream: FakeStream) -> None:
        self.stream = stream

    def synchronize(self) -> None:
        self.stream.synchronize()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeStream:
    """A torch with streams alone; the default one is returned."""
    current = [FakeStream()]

    @contextmanager
    def stream(chosen: FakeStream) -> Any:
        current.append(chosen)
        yield
        current.pop()

    module: Any = types.ModuleType("torch")
    module.cuda = types.SimpleNamespace(Event=FakeEvent, stream=stream, current_stream=lambda: current[-1])
    monkeypatch.setitem(sys.modules, "torch", module)
    return current[0]


TASK = Task("a")


def test_the_current_stream_and_the_calls_own_streams_are_waited_for(fake: FakeStream) -> None:
    own, waited = FakeStream(), threading.Event()
    pending = on_device(lambda task, inputs: Launched("output", (own,)))(TASK, {})  # type: ignore[arg-type]
    assert isinstance(pending, Pending)
    assert pending.output == "output"
    thread = threading.Thread(target=lambda: (pending.wait(), waited.set()))
    thread.start()
    fake.done.set()
    assert not waited.wait(0.05)
    own.done.set()
    assert waited.wait(5)
    thread.join()


def test_a_call_runs_on_the_stream_that_it_is_given(fake: FakeStream) -> None:
    mine = FakeStream()
    seen = []

    def call(task: Task, inputs: Mapping[str, Any]) -> str:
        seen.append(sys.modules["torch"].cuda.current_stream())
        return "output"

    pending = on_device(call, mine)(TASK, {})  # type: ignore[arg-type]
    assert seen == [mine]
    mine.done.set()
    pending.wait()
    assert not fake.done.is_set()


def test_a_call_that_raises_leaves_no_work_behind(fake: FakeStream) -> None:
    threading.Timer(0.05, fake.done.set).start()

    def call(task: Task, inputs: Mapping[str, Any]) -> None:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        on_device(call)(TASK, {})
    assert fake.done.is_set()


# ---- on a GPU


def cuda() -> Any:
    if not list(Path("/dev").glob("nvidia*")):
        pytest.skip("no NVIDIA GPU here")  # without importing torch
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU here")
    return torch


def nap_cycles(torch: Any) -> int:
    """Cycles for which a kernel of one thread spins to take `NAP_S`."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(200_000_000)  # until the clock is as fast as it gets
    begin.record()
    torch.cuda._sleep(20_000_000)
    end.record()
    end.synchronize()
    return int(20_000_000 * NAP_S * 1e3 / begin.elapsed_time(end))


class Device:
    """Calls on a GPU: a nap, then a write that shows that it is over."""

    def __init__(self, streams: int = 1) -> None:
        import torch

        self.torch = torch
        self.cycles = nap_cycles(torch)
        self.streams = [torch.cuda.Stream() for _ in range(streams)]
        self.own = torch.cuda.Stream()
        self.x = torch.zeros(1, device="cuda")
        torch.cuda.synchronize()

    def nap_here(self, task: Task, inputs: Mapping[str, Any]) -> Any:
        self.torch.cuda._sleep(self.cycles)
        self.x.add_(1)
        return self.x

    def nap_on_own(self, task: Task, inputs: Mapping[str, Any]) -> Launched:
        with self.torch.cuda.stream(self.own):
            return Launched(self.nap_here(task, inputs), (self.own,))

    def read(self, task: Task, inputs: Mapping[str, Any]) -> float:
        """Read on a stream that waits for no other."""
        (x,) = inputs.values()
        with self.torch.cuda.stream(self.torch.cuda.Stream()):
            host = x.to("cpu", non_blocking=True)
            self.torch.cuda.current_stream().synchronize()
        return float(host)

    def calls(self) -> dict[str, Any]:
        calls = {"read": self.read, "own": on_device(self.nap_on_own)}
        for number, stream in enumerate(self.streams):
            calls[f"nap {number}"] = on_device(self.nap_here, stream)
        return calls


def then_read(payload: str, worker: str | None = None) -> TaskGraph:
    tasks = (Task("nap", payload=payload, worker=worker), Task("read", payload="read", worker=worker))
    return TaskGraph(tasks, (Edge("nap", "read"),))


def check_nap(graph: TaskGraph, result: RunResult) -> None:
    """The call returned at once, and its consumer started when the device was done."""
    nap, read = result.record.tasks
    assert nap.returned_ns - nap.start_ns < 0.25 * NAP_S * 1e9
    assert nap.end_ns - nap.start_ns > 0.6 * NAP_S * 1e9
    assert read.start_ns >= nap.end_ns
    assert verify(graph, result.record) == ()


@pytest.mark.gpu
@pytest.mark.parametrize("payload", ["nap 0", "own"])
def test_a_launch_returns_at_once_and_its_consumer_waits_for_the_device(payload: str) -> None:
    cuda()
    device, graph = Device(), then_read(payload)
    run(graph, device.calls())  # first launches load code
    device.x.zero_()
    device.torch.cuda.synchronize()
    result = run(graph, device.calls())
    check_nap(graph, result)
    assert result.outputs["read"] == 1.0


@pytest.mark.gpu
def test_two_streams_overlap() -> None:
    cuda()
    device = Device(streams=2)
    graph = TaskGraph((Task("a", payload="nap 0"), Task("b", payload="nap 1")))
    run(graph, device.calls())
    began = time.monotonic()
    record = run(graph, device.calls()).record
    assert time.monotonic() - began < 1.6 * NAP_S
    a, b = record.tasks
    assert min(a.end_ns, b.end_ns) - max(a.start_ns, b.start_ns) > 0.5 * NAP_S * 1e9
    assert verify(graph, record) == ()


def device_worker() -> dict[str, Any]:
    """Calls of a worker process on the GPU."""

    def on_host(task: Task, inputs: Mapping[str, Any]) -> Any:
        (x,) = inputs.values()
        return x.cpu() + 1

    def out_of_range(task: Task, inputs: Mapping[str, Any]) -> Any:
        x = device.torch.zeros(4, device="cuda")
        return x[device.torch.tensor([1000], device="cuda")]

    device = Device()
    return {**device.calls(), "host": on_host, "bad": on_device(out_of_range)}


@pytest.mark.gpu
def test_workers_on_a_gpu() -> None:
    torch = cuda()
    with ProcessBackend({"left": device_worker, "right": device_worker}, setup_timeout_s=120) as backend:
        graph = then_read("nap 0", "left")
        run(graph, backend)
        result = run(graph, backend)
        check_nap(graph, result)
        assert result.outputs["read"] == 2.0  # one nap in each run
        # a tensor of the device goes to another process, and back as one of the host
        chain = TaskGraph(
            (Task("a", payload="own", worker="left"), Task("b", payload="host", worker="right")),
            (Edge("a", "b"),),
        )
        assert torch.equal(run(chain, backend).outputs["b"], torch.tensor([4.0]))
        # work that fails on the device is an error of its task, and this process is as it was
        with pytest.raises(TaskFailedError, match=r"task a failed on right: .*CUDA error"):
            run(TaskGraph((Task("a", payload="bad", worker="right"),)), backend)
        assert run(graph, backend).outputs["read"] == 4.0
    assert float(torch.ones(1, device="cuda")) == 1.0
