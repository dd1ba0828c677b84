"""A write between two looks is seen, whatever the look compares with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlprof.overlap.stamps import OFTEN, Checksum, Stamps
from rlprof.overlap.values import SMALL_BYTES

LARGE = 4 * SMALL_BYTES


def looked(stamps: Stamps, array: Any, look: Any, times: int) -> Any:
    for _ in range(times):
        changed, look = stamps.renewed(array, look)
        assert not changed
    return look


ARRAYS = {
    "small": lambda: np.zeros(8),
    "empty": lambda: np.zeros((0, 3)),
    "no axis": lambda: np.array(1.0),
    "large": lambda: np.zeros(LARGE // 8),
    "large, in another order": lambda: np.zeros((LARGE // 80, 10), order="F"),
    "every other": lambda: np.zeros(LARGE // 4)[::2],
    "dates": lambda: np.zeros(LARGE // 8, "M8[s]"),
    "texts": lambda: np.full(LARGE // 8, "ab"),
    "records": lambda: np.zeros(LARGE // 8, [("a", "i4"), ("b", "f8")]),
    "half": lambda: np.zeros(LARGE, np.float16),
    "objects": lambda: np.array([object()] * 9),
    "read only": lambda: np.broadcast_to(np.zeros(1), (LARGE // 8,)),
    "a class of its own": lambda: np.zeros(LARGE // 8).view(np.recarray),
}


@pytest.mark.parametrize("often", [False, True])
@pytest.mark.parametrize("name", ARRAYS)
def test_what_is_not_written_is_the_same_at_every_look(name: str, often: bool) -> None:
    stamps, array = Stamps(), ARRAYS[name]()
    looked(stamps, array, stamps.take(array, often=often), 2 * OFTEN)


@pytest.mark.parametrize("often", [False, True])
@pytest.mark.parametrize("looks", [0, 1, OFTEN, 2 * OFTEN])
@pytest.mark.parametrize("copies_bytes", [0, 1 << 20])
@pytest.mark.parametrize("name", [n for n in ARRAYS if n not in ("empty", "read only", "texts", "objects")])
def test_a_write_is_seen_once(name: str, looks: int, often: bool, copies_bytes: int) -> None:
    stamps, array = Stamps(copies_bytes), ARRAYS[name]()
    look = looked(stamps, array, stamps.take(array, often=often), looks)
    for _ in range(2):
        numbers = array["a"] if array.dtype.names else array
        numbers += 1
        changed, look = stamps.renewed(array, look)
        assert changed
        look = looked(stamps, array, look, 1)


def test_an_array_that_is_looked_at_often_is_compared_with_a_copy_while_there_is_memory() -> None:
    array = np.zeros(LARGE // 8)
    stamps = Stamps(array.nbytes)
    assert isinstance(stamps.take(array), Checksum)
    look = looked(stamps, array, stamps.take(array), OFTEN)
    assert isinstance(look, bytearray)
    other = looked(stamps, np.ones(LARGE // 8), stamps.take(np.ones(LARGE // 8)), 2 * OFTEN)
    assert isinstance(other, Checksum), "there is no memory left for a second copy"


@pytest.mark.parametrize("size", [4, LARGE // 4])
@pytest.mark.parametrize("looks", [0, 1, OFTEN + 1])
@pytest.mark.parametrize("inference", [False, True])
def test_a_write_to_a_tensor_is_seen_past_its_counter_too(size: int, looks: int, inference: bool) -> None:
    torch = pytest.importorskip("torch")
    stamps = Stamps()
    with torch.inference_mode(inference):
        tensor = torch.zeros(size)
        look = looked(stamps, tensor, stamps.take(tensor), looks)
        tensor.data[-1] = 3.0
        changed, look = stamps.renewed(tensor, look)
        assert changed
        look = looked(stamps, tensor, look, looks)
        tensor.add_(0.0)
        assert stamps.renewed(tensor, look)[0] == (not inference), "by its counter, if it has one"


def test_a_tensor_with_other_memory_is_another() -> None:
    torch = pytest.importorskip("torch")
    stamps, tensor = Stamps(), torch.zeros(4, 4)
    look = stamps.take(tensor)
    tensor.data = torch.zeros(4, 4)
    assert stamps.renewed(tensor, look)[0]
    square = torch.arange(16.0).reshape(4, 4)
    look = stamps.take(square)
    square.t_()
    assert stamps.renewed(square, look)[0]
    tensor.resize_(0)
    assert stamps.renewed(tensor, stamps.take(torch.zeros(4, 4)))[0]
    tensor.resize_(8, 8)  # it still can
