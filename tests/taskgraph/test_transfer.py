"""Values arrive as they were, blocks of memory are shared and let go of."""

from __future__ import annotations

import errno
import os
import resource
import threading
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.taskgraph import TransferError, transfer
from rlprof.taskgraph.transfer import SHARED_FROM_BYTES, Packed, free_memory_bytes, pack, receive, send


def open_blocks(process: int | str = "self") -> int:
    """How many blocks a process has open or mapped."""
    found = 0
    for link in Path(f"/proc/{process}/fd").iterdir():
        try:
            found += "memfd:rlprof" in str(link.readlink())
        except OSError:
            continue
    return found + Path(f"/proc/{process}/maps").read_text().count("memfd:rlprof")


def through_a_socket(*values: Packed) -> list[Packed]:
    here, there = Pipe()
    sender = threading.Thread(target=send, args=(here, "message", values))
    sender.start()
    message, received = receive(there)
    sender.join()
    here.close()
    there.close()
    assert message == "message"
    return received


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    return bool(a == b)


def arrays() -> st.SearchStrategy[np.ndarray[Any, Any]]:
    """Small and large, of all kinds, contiguous in one order or the other, or not at all."""
    sizes = st.sampled_from([0, 1, 100, SHARED_FROM_BYTES // 8 - 1, SHARED_FROM_BYTES // 8 + 1, 20_000])
    return st.builds(
        lambda kind, size, layout: layout(
            (np.arange(size * 2) % 251).astype(kind)[: size // 2 * 2].reshape(2, -1)
        ),
        st.sampled_from(["?", "i1", "u2", "i4", "f2", "f4", "f8", "c8", "M8[s]", "U3", "S2"]),
        sizes,
        st.sampled_from([np.ascontiguousarray, np.asfortranarray, lambda a: a[:, ::2], lambda a: a.T]),
    )


LONG = st.binary(min_size=1, max_size=3).map(lambda b: b * 40_000)
LEAVES = st.none() | st.integers() | st.text(max_size=5) | arrays() | LONG
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


@given(NESTED)
@settings(deadline=None, max_examples=60)
def test_any_nested_value_arrives_as_it_was(value: Any) -> None:
    before = open_blocks()
    packed = pack(value)
    (received,) = through_a_socket(packed)
    packed.release()  # the receiver has its own
    for got in (received.fetch(), received.map()):
        assert same(value, got)
    received.release()
    received.release()
    del got, received
    assert open_blocks() == before


def test_large_buffers_go_into_one_block_and_small_ones_do_not() -> None:
    small, large = np.zeros(SHARED_FROM_BYTES // 2, np.uint8), np.zeros(SHARED_FROM_BYTES, np.uint8)
    assert pack(small).block < 0
    packed = pack({"a": large, "b": [large + 1, small], "text": "x" * SHARED_FROM_BYTES})
    assert packed.block >= 0
    assert len(packed.spans) == 3
    assert packed.data == b""  # the pickle itself is large
    assert all(offset % 64 == 0 for offset, _ in packed.spans)


def test_receivers_write_their_own_copy_and_the_block_lives_as_long_as_its_arrays() -> None:
    before = open_blocks()
    packed = pack(np.zeros(100_000))
    first, second = packed.map(), packed.map()
    fetched = packed.fetch()
    packed.release()
    assert open_blocks() > before
    first[:] = 1
    assert not second.any()
    assert not fetched.any()
    second[0] = fetched[0] = 2
    del first, second
    assert open_blocks() == before


def test_what_is_not_released_is_released_with_its_object() -> None:
    before = open_blocks()
    packed = pack(np.zeros(100_000))
    assert open_blocks() == before + 1
    del packed
    assert open_blocks() == before


def test_many_values_in_one_message() -> None:
    values = [pack(np.full(10_000, i)) if i % 3 else pack(i) for i in range(400)]
    received = through_a_socket(*values)
    assert [int(np.max(r.map())) for r in received] == list(range(400))


def test_when_no_more_files_can_be_opened_it_is_said() -> None:
    here, there = Pipe()
    packed = pack(np.zeros(100_000))
    send(here, "message", [packed])
    packed.release()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)  # the next two: for the socket, and for the block
    os.close(free)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))
        with pytest.raises(TransferError, match=r"too many open files.*ulimit -n"):
            receive(there)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    here.close()
    there.close()


@pytest.mark.parametrize("value", [lambda: 1, threading.Lock(), (i for i in "ab"), [open]])
def test_what_cannot_be_pickled_is_named(value: Any) -> None:
    if value == [open]:
        assert pack(value).fetch() == value
        return
    with pytest.raises(TransferError, match=f"a {type(value).__name__} cannot be pickled"):
        pack(value)


def test_more_than_fits_into_memory_is_refused_before_anything_is_taken(monkeypatch: Any) -> None:
    monkeypatch.setattr(transfer, "CHECKED_FROM_BYTES", SHARED_FROM_BYTES)
    monkeypatch.setattr(transfer, "free_memory_bytes", lambda: 1_000_000)
    before = open_blocks()
    with pytest.raises(TransferError, match="1,600,000 bytes does not fit into memory, of which 1,000,000"):
        pack(np.zeros(200_000))
    assert open_blocks() == before
    assert pack(np.zeros(100_000)).block >= 0


def test_when_memory_runs_out_all_the_same_nothing_is_left(monkeypatch: Any) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = open_blocks()
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(TransferError, match="no shared memory for 800,000 bytes: No space"):
        pack(np.zeros(100_000))
    assert open_blocks() == before


def test_free_memory_is_that_of_this_machine() -> None:
    import psutil

    assert 0 < free_memory_bytes() <= psutil.virtual_memory().total


@pytest.mark.slow
def test_plain_tensors_go_through_the_block_and_others_as_torch_pickles_them() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    plain = [
        torch.arange(40_000, dtype=torch.float32).reshape(200, 200),
        torch.arange(100_000).to(torch.bfloat16),
        torch.arange(40_000).reshape(200, 200).T[:, 3:],
        torch.zeros(100_000, dtype=torch.complex64),
        torch.zeros(100_000, dtype=torch.bool),
    ]
    for tensor in plain:
        packed = pack({"x": tensor})
        assert packed.block >= 0
        assert len(packed.data) < 1000
        for got in (packed.fetch()["x"], packed.map()["x"]):
            assert got.dtype == tensor.dtype
            assert torch.equal(got, tensor)
            got.zero_()
    others = [torch.tensor(3.5), torch.zeros(0, 4), torch.ones(3, requires_grad=True)]
    others += [torch.ones(2, 2).to_sparse(), plain[3].conj(), torch.nn.Parameter(torch.ones(100_000))]
    for tensor in others:
        got = pack(tensor).fetch()
        assert (type(got), got.requires_grad) == (type(tensor), tensor.requires_grad)
        assert torch.equal(got.to_dense(), tensor.to_dense())
