"""What arrays and objects of a run held when they were last looked at: was something written since?

A small array, and one that is looked at again and again, is compared with a copy, memory with memory: this
is ten times as fast as a checksum, and it cannot be mistaken. Of other arrays a checksum is compared, since
touching new memory for a copy that is used once or twice takes longer. Copies are made until they take as
much memory as is set aside for them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from ctypes import c_char
from typing import Any, TypeAlias

import numpy as np

from rlprof.overlap.snapshots import Snapshot
from rlprof.overlap.structures import is_tensor
from rlprof.overlap.values import (
    SMALL_BYTES,
    SUMMED_BYTES,
    Stamp,
    copy_of,
    is_array,
    stamp,
    torch_module,
)

#: Kinds of numbers that lie in memory as they are.
_PLAIN = "biufc"

#: Arrays up to this size are copied once they have been found unchanged so often, in bytes.
COPIED_BYTES, OFTEN = 16 << 20, 4
#: All copies of a run together, in bytes.
ALL_COPIES_BYTES = 256 << 20


class Checksum:
    """Checksum of an array of numpy.

    Parameters
    ----------
    value : int
        Of the contents.

    Attributes
    ----------
    looks : int
        How often they were found to be the same.
    """

    __slots__ = ("looks", "value")

    def __init__(self, value: int) -> None:
        self.value = value
        self.looks = 0


class TensorLook:
    """Contents of a tensor in the host's memory, and the counter of its writes.

    Parameters
    ----------
    tensor : torch.Tensor
        Contiguous, in the host's memory.
    nbytes : int
        Its size.
    copied : bool
        Compare with a copy even if it is large, not by a checksum.
    """

    __slots__ = ("address", "copy", "looks", "nbytes", "sum", "version", "view")

    def __init__(self, tensor: Any, nbytes: int, copied: bool = False) -> None:
        self.version = None if tensor.is_inference() else tensor._version
        self.address = tensor.data_ptr()
        self.nbytes = nbytes
        self.copy: bytes | bytearray | None = None
        # memory as ctypes sees it: once numpy has, the program could not resize its tensor any more
        self.view: Callable[[int], Any] = (c_char * nbytes).from_address
        if nbytes <= SMALL_BYTES:
            self.copy = self.view(self.address).raw
            return
        self.looks = self.sum = 0
        if copied:
            self.copy = bytearray(self.view(self.address))
        else:
            self.sum = zlib.crc32(self.view(self.address))

    def is_of(self, tensor: Any) -> bool:
        """Whether the tensor holds the same now."""
        if (
            (self.version is not None and tensor._version != self.version)
            or tensor.data_ptr() != self.address  # what was there may be gone
            or tensor.nbytes != self.nbytes
            or not tensor.is_contiguous()
        ):
            return False
        if self.nbytes <= SMALL_BYTES:
            return bool(self.copy == self.view(self.address).raw)
        self.looks += 1
        if self.copy is not None:
            return bool(self.copy == self.view(self.address))
        return zlib.crc32(self.view(self.address)) == self.sum


#: What is kept of a look; None: changes of the thing cannot be told, or nobody has looked yet.
Look: TypeAlias = "bytearray | Checksum | TensorLook | Snapshot | Stamp | None"


class Stamps:
    """The looks of one run.

    Parameters
    ----------
    copies_bytes : int
        Memory for copies.
    """

    def __init__(self, copies_bytes: int = ALL_COPIES_BYTES) -> None:
        self._left_bytes = copies_bytes

    def _may_copy(self, size_bytes: int) -> bool:
        """Whether there is memory for a copy; it counts as made."""
        if size_bytes > COPIED_BYTES or size_bytes > self._left_bytes:
            return False
        self._left_bytes -= size_bytes
        return True

    def take(self, value: Any, often: bool = False) -> Look:
        """Return what `renewed` compares with.

        Parameters
        ----------
        value : object
            Array or object.
        often : bool
            It will be looked at at every call.
        """
        if type(value) is np.ndarray:
            if often and not value.dtype.hasobject and self._may_copy(value.nbytes):
                copy = copy_of(value)
                if copy is not None:
                    return copy
            if value.nbytes <= SMALL_BYTES:
                return stamp(value) if value.dtype.hasobject else value.tobytes()
            plain = value.dtype.kind in _PLAIN and value.flags.c_contiguous
            return Checksum(zlib.crc32(value.data)) if plain else stamp(value)
        if not is_array(value):
            return Snapshot({"": value}, objects=1)
        return self._tensor(value) if is_tensor(value) else stamp(value)

    def _tensor(self, tensor: Any) -> Look:
        torch = torch_module()
        plain = type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter
        return self.of_tensor(tensor) if plain else stamp(tensor)

    def of_tensor(self, tensor: Any) -> Look:
        """Return what `renewed` compares with, for a strided tensor of no class of its own."""
        if (
            not tensor.is_cpu
            or not 0 < (size := tensor.nbytes) <= SUMMED_BYTES
            or not tensor.is_contiguous()
            or tensor.is_neg()
            or (tensor.is_complex() and tensor.is_conj())
        ):
            return stamp(tensor)
        return TensorLook(tensor, size)

    def renewed(self, value: Any, before: Look) -> tuple[bool, Look]:
        """Look again.

        Parameters
        ----------
        value : object
            Array or object.
        before : object
            What the last look returned; None if there was none.

        Returns
        -------
        changed : bool
            It holds something else than at the last look.
        look : object
            What the next is to compare with.
        """
        kind = type(before)
        if kind is bytes:
            now = value.tobytes() if type(value) is np.ndarray else stamp(value)
            return now != before, now
        if kind is bytearray:
            return (False, before) if (before == value) is True else (True, self._again(value, before))
        if kind is Checksum:
            return self._compared(value, before)  # type: ignore[arg-type]
        if kind is TensorLook:
            look: TensorLook = before  # type: ignore[assignment]
            if not look.is_of(value):
                return True, self.take(value)
            if look.nbytes > SMALL_BYTES and look.looks == OFTEN and self._may_copy(look.nbytes):
                return False, TensorLook(value, look.nbytes, copied=True)
            return False, look
        if kind is Snapshot:
            return before.renew(), before  # type: ignore[union-attr]
        found = self.take(value) if before is None else stamp(value)
        return before is not None and found != before, found

    def _compared(self, value: Any, before: Checksum) -> tuple[bool, Look]:
        if not value.flags.c_contiguous or zlib.crc32(value.data) != before.value:
            return True, self.take(value)
        before.looks += 1
        if before.looks == OFTEN and self._may_copy(value.nbytes):
            return False, copy_of(value) or before
        return False, before

    def _again(self, value: Any, before: Any) -> Look:
        """Look at what has changed: what was compared with a copy will be again."""
        self._left_bytes += len(before)
        return (copy_of(value) if self._may_copy(value.nbytes) else None) or self.take(value)
