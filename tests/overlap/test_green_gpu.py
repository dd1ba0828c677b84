"""Parts of the SMs of a real GPU: what they compute, and that there are no more than were asked for."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import pytest

from rlprof.overlap.green import SmShares, sm_parts
from rlprof.overlap.quota.products import check_products

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'rlprof[workloads]'")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def time_ms(work: Callable[[], Any]) -> float:
    """Median time of work in the current stream."""
    work()
    times = []
    for _ in range(5):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        work()
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended))
    return statistics.median(times)


@pytest.fixture
def square() -> Any:
    return torch.randn(4096, 4096, device="cuda:0", dtype=torch.bfloat16)


def test_the_driver_says_which_parts_there_are() -> None:
    parts = sm_parts(0)
    assert parts.sms == torch.cuda.get_device_properties(0).multi_processor_count
    assert len(parts.parts) > 4
    assert [parts.amount(percent) for percent, _ in parts.percents] == [sms for _, sms in parts.percents]


def test_a_small_part_takes_longer_and_all_of_it_is_right(square: Any) -> None:
    shares = SmShares()
    percents = [percent for percent, _ in shares.parts(0).percents]
    wanted = square @ square
    all_ms = time_ms(lambda: square @ square)
    for percent, least in ((percents[0], 4.0), (percents[len(percents) // 2], 1.2)):
        with shares.current("a", 0, percent):
            got = square @ square
            assert time_ms(lambda: square @ square) > least * all_ms
        assert torch.allclose(got.float(), wanted.float(), rtol=0.02, atol=0.5)
    assert time_ms(lambda: square @ square) < 1.5 * all_ms  # and behind the block it is over


@pytest.mark.parametrize("which", [0.25, 0.5, 0.75, 0.9])
def test_products_are_right(which: float) -> None:
    shares = SmShares()
    percents = shares.parts(0).percents
    percent, _ = percents[int(which * len(percents))]
    with shares.current("a", 0, percent):
        assert check_products().wrong == ()


def test_a_graph_keeps_the_part_that_it_was_captured_with(square: Any) -> None:
    shares = SmShares()
    percent, _ = shares.parts(0).percents[0]
    out = torch.empty_like(square)
    all_ms = time_ms(lambda: torch.mm(square, square, out=out))
    wanted = out.clone()
    with shares.current("a", 0, percent):
        torch.mm(square, square, out=out)
        aside = shares.beside(torch.cuda.current_stream())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=aside):
        torch.mm(square, square, out=out)
    out.zero_()
    graph.replay()  # from a stream with all SMs
    torch.cuda.synchronize()
    assert torch.allclose(out.float(), wanted.float(), rtol=0.02, atol=0.5)
    assert time_ms(graph.replay) > 4 * all_ms
