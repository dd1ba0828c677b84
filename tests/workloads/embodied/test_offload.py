"""Tensors leave a device and come back with the same bits, as the same objects."""

from __future__ import annotations

import pytest

from rlprof.workloads.embodied.offload import HostCopies, tensors_of

torch = pytest.importorskip("torch")


def test_nothing_moves_that_is_where_it_should_be() -> None:
    layer = torch.nn.BatchNorm1d(3)
    places = [t.data_ptr() for t in tensors_of(layer)]
    assert len(places) == 5  # parameters and buffers
    copies = HostCopies()
    copies.offload(tensors_of(layer))
    copies.reload(tensors_of(layer), "cpu")
    assert [t.data_ptr() for t in tensors_of(layer)] == places


@pytest.mark.gpu
def test_there_and_back_through_page_locked_memory() -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    layer = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.BatchNorm1d(512)).to("cuda:0")
    wanted = [t.cpu().clone() for t in tensors_of(layer)]
    objects = [id(t) for t in tensors_of(layer)]
    copies = HostCopies()
    before = torch.cuda.memory_allocated(0)
    for _ in range(3):
        copies.offload(tensors_of(layer))
        assert all(t.device.type == "cpu" and t.is_pinned() for t in tensors_of(layer))
        assert torch.cuda.memory_allocated(0) < before
        copies.reload(tensors_of(layer), "cuda:0")
        assert [id(t) for t in tensors_of(layer)] == objects
        for now, then in zip(tensors_of(layer), wanted, strict=True):
            assert torch.equal(now.cpu(), then)
    assert layer(torch.ones(4, 512, device="cuda:0")).isfinite().all()
