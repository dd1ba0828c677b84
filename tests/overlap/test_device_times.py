"""When device work of recorded calls was complete."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rlprof.overlap import ExecutionNode
from rlprof.overlap.device_times import DeviceTimes


def test_without_cuda_nothing_is_looked_at() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_initialized():
        pytest.skip("CUDA is initialised in this process")
    assert not DeviceTimes().present


@pytest.mark.gpu
def test_the_end_of_a_call_is_that_of_its_kernels() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    a = torch.randn(4096, 4096, device="cuda")

    def heavy(x: Any) -> Any:
        for _ in range(40):
            x = x @ a * 1e-2
        return x

    def main() -> None:
        out = [work(a)]
        host(out)
        torch.cuda.synchronize()
        host(out)
        out.append(work(a))
        host([float(out[-1][0, 0])])

    root = ExecutionNode(None, main, name="main")
    work = ExecutionNode(root, heavy, name="work", stateless=True)
    host = ExecutionNode(root, lambda out: None, name="host", stateless=True)
    root()  # kernels are loaded
    began = time.monotonic_ns()
    recording = root.program.record(root, run=lambda: [root(), root()])
    ended = time.monotonic_ns()
    for run in recording.runs:
        by_id = {i.id: i for i in run}
        for name in ("main/work", "main/work#1"):
            call = by_id[name]
            assert call.end_ns - call.return_ns > 1_000_000  # it returned long before
            assert began < call.start_ns < call.return_ns < call.end_ns < ended
        # behind others' work in the stream, and without any of its own
        assert by_id["main/host"].end_ns == by_id["main/host"].return_ns
        for name in ("main/host#1", "main/host#2"):  # an idle device answers when it likes
            assert by_id[name].end_ns - by_id[name].return_ns < 500_000
        assert by_id["main/work"].end_ns < by_id["main/host#1"].start_ns + 1_000_000
        assert by_id["main"].end_ns >= by_id["main/work#1"].end_ns
        busy = [by_id[name].duration_s for name in ("main/work", "main/work#1")]
        assert max(busy) < 3 * min(busy)


@pytest.mark.gpu
def test_recording_does_not_make_the_program_wait() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    a = torch.randn(4096, 4096, device="cuda")

    def heavy() -> None:
        for _ in range(40):
            a @ a

    root = ExecutionNode(None, lambda: [work() for _ in range(5)], name="main")
    work = ExecutionNode(root, heavy, name="work", stateless=True)
    root()
    torch.cuda.synchronize()
    with root.program.record(root) as recorder:
        root()
        torch.cuda.synchronize()
        began = time.monotonic_ns()
        # the second run waits for its events when it ends, not before
        seen: list[int] = []
        root.program.add_hook(node=work, after=lambda *_: seen.append(time.monotonic_ns()))
        root()
    launched_s = (seen[-1] - began) / 1e9
    calls = [i for i in recorder.recording.runs[1] if i.node == "main/work"]
    device_s = (calls[-1].end_ns - calls[0].start_ns) / 1e9
    assert launched_s < device_s / 2
