"""Values on their way between processes: pickled, large buffers in anonymous shared memory.

A `Packed` value is a pickle (protocol 5) and at most one block of memory without a name (`memfd_create`),
which holds the buffers of large arrays one after another. Handing it on means handing on a file descriptor:
nothing is copied, and the kernel frees the block when the last process that has it lets go or dies, so
nothing can be left behind. A receiver maps the block privately: its arrays may be written, and nobody else
sees that.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import socket
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rlprof.taskgraph.backend import RemoteOutput
from rlprof.taskgraph.errors import TransferError
from rlprof.text import with_article

#: Buffers from this size on, and longer pickles, go into the block, in bytes.
SHARED_FROM_BYTES = 1 << 16
#: Blocks from this size on are compared with the memory that is free, in bytes.
CHECKED_FROM_BYTES = 1 << 26
_ALIGN = 64


class Packed(RemoteOutput):
    """A value that can be sent to other processes.

    Parameters
    ----------
    data : bytes
        The pickle; empty if it lies in the block, as its last span.
    block : int
        File descriptor of the block; -1 if there is none. This object closes it.
    spans : tuple of (int, int)
        Offset and length of each buffer in the block, in bytes.
    """

    def __init__(self, data: bytes, block: int, spans: tuple[tuple[int, int], ...]) -> None:
        self.data, self.block, self.spans = data, block, spans

    def fetch(self) -> Any:
        """Return the value, copied into memory of this process."""
        if self.block < 0:
            return pickle.loads(self.data)
        parts: list[Any] = [_read(self.block, offset, size) for offset, size in self.spans]
        return self._load(parts)

    def map(self) -> Any:
        """Return the value, its arrays over the block: writable, and private to this process."""
        if self.block < 0:
            return pickle.loads(self.data)
        size = sum(self.spans[-1])
        memory = mmap.mmap(self.block, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        view = memoryview(memory)
        return self._load([view[offset : offset + size] for offset, size in self.spans])

    def _load(self, parts: list[Any]) -> Any:
        data = self.data or parts.pop()
        return pickle.loads(data, buffers=parts)

    def release(self) -> None:
        """Close the block; once is enough."""
        block, self.block = self.block, -1
        if block >= 0:
            os.close(block)

    def __del__(self) -> None:
        self.release()


def pack(value: Any) -> Packed:
    """Pickle a value, large buffers into a block.

    Contiguous numpy arrays and torch tensors on the CPU go into it without a copy in between; views that
    share memory come apart, as in any pickle.

    Raises
    ------
    TransferError
        If the value cannot be pickled, or there is not enough memory.
    """
    buffers: list[memoryview] = []

    def take(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < SHARED_FROM_BYTES:
            return True
        buffers.append(raw)
        return False

    stream = io.BytesIO()
    try:
        # the plain pickler is much faster for small objects
        kind = _TensorPickler if "torch" in sys.modules else pickle.Pickler
        kind(stream, protocol=5, buffer_callback=take).dump(value)
    except MemoryError as error:
        raise TransferError(f"no memory to pickle {with_article(type(value).__name__)}") from error
    except Exception as error:  # whatever a __reduce__ raises
        raise TransferError(
            f"{with_article(type(value).__name__)} cannot be pickled: {error}",
            hint="return plain data, arrays or tensors, and keep the rest as state of the worker",
        ) from error
    data = stream.getvalue()
    if not buffers and len(data) < SHARED_FROM_BYTES:
        return Packed(data, -1, ())
    return _in_block(buffers, data)


def _in_block(buffers: Sequence[memoryview], data: bytes) -> Packed:
    inline = len(data) < SHARED_FROM_BYTES
    parts = [*buffers, *(() if inline else (memoryview(data),))]
    spans, end = [], 0
    for part in parts:
        start = -(-end // _ALIGN) * _ALIGN
        spans.append((start, part.nbytes))
        end = start + part.nbytes
    if end >= CHECKED_FROM_BYTES and end > (free := free_memory_bytes()):
        raise TransferError(
            f"an output of {end:,} bytes does not fit into memory, of which {free:,} bytes are free",
            hint="return less, or keep it as state of the worker",
        )
    block = -1
    try:
        block = os.memfd_create("rlprof")
        os.posix_fallocate(block, 0, end)  # now, not as a signal when a page is first written
        for (offset, _), part in zip(spans, parts, strict=True):
            _write(block, offset, part.cast("B"))
    except OSError as error:
        if block >= 0:
            os.close(block)
        raise TransferError(f"no shared memory for {end:,} bytes: {error.strerror}") from error
    return Packed(data if inline else b"", block, tuple(spans))


def _write(block: int, offset: int, part: memoryview) -> None:
    while part.nbytes:
        written = os.pwrite(block, part, offset)  # at most 2 GiB at once
        part, offset = part[written:], offset + written


def _read(block: int, offset: int, size: int) -> bytearray:
    memory = bytearray(size)
    view = memoryview(memory)
    while view.nbytes:
        count = os.preadv(block, [view], offset)
        view, offset = view[count:], offset + count
    return memory


def free_memory_bytes() -> int:
    """Memory that this process can still get, by the machine and by its control group."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    group = Path("/sys/fs/cgroup")
    try:
        most, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return free
    return free if most == "max" else min(free, int(most) - int(used))


class _TensorPickler(pickle.Pickler):
    """Plain torch tensors on the CPU as buffers; torch alone copies them into the stream, twice."""

    def reducer_override(self, value: Any) -> Any:
        """Reduce a tensor to its bytes, type and shape; leave everything else to pickle."""
        torch = _torch()
        if (
            type(value) is not torch.Tensor
            or value.device.type != "cpu"
            or value.layout is not torch.strided
            or value.requires_grad
            or value.is_quantized
            or value.is_conj()
            or value.is_neg()
            or not value.numel()
        ):
            return NotImplemented
        flat = value.contiguous().reshape(-1).view(torch.uint8).numpy()
        return _tensor, (pickle.PickleBuffer(flat), value.dtype, tuple(value.shape))


def _torch() -> Any:
    import torch

    return torch


def _tensor(data: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    torch = _torch()
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(shape)


def send(connection: Connection, message: Any, values: Sequence[Packed] = ()) -> None:
    """Send a small message and packed values over a Unix socket.

    Raises
    ------
    OSError
        If the other side is gone.
    """
    described = [(value.data, value.block >= 0, value.spans) for value in values]
    connection.send_bytes(pickle.dumps((message, described), protocol=5))
    blocks = [value.block for value in values if value.block >= 0]
    if blocks:
        with socket.socket(fileno=os.dup(connection.fileno())) as way:
            for block in blocks:
                socket.send_fds(way, [b"."], [block])


def receive(connection: Connection) -> tuple[Any, list[Packed]]:
    """Receive what `send` sent.

    Raises
    ------
    EOFError, OSError
        If the other side is gone.
    TransferError
        If this process cannot open more files.
    """
    message, described = pickle.loads(connection.recv_bytes())
    values: list[Packed] = []
    if any(has_block for _, has_block, _ in described):
        with socket.socket(fileno=os.dup(connection.fileno())) as way:
            values = [Packed(d, _receive_block(way) if b else -1, spans) for d, b, spans in described]
    else:
        values = [Packed(data, -1, spans) for data, _, spans in described]
    return message, values


def _receive_block(way: socket.socket) -> int:
    data, blocks, _, _ = socket.recv_fds(way, 1, 1)
    if not data:
        raise EOFError
    if not blocks:
        raise TransferError(
            "a block of shared memory could not be opened: too many open files",
            hint="raise the limit (ulimit -n), or pass fewer large values at once",
        )
    os.set_inheritable(blocks[0], False)
    return blocks[0]
