"""Memory of the sampler's process: what libraries fill with zeros, heap arenas, huge pages.

NVIDIA's performance libraries write tables for every chip when they are loaded: 105 MB in each of two, of
which 67 MB are zeros that were written all the same. Such pages go back to the kernel, which gives zeros
again to whoever looks: nothing changes but the memory that is used.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Iterator
from pathlib import Path

_LINE = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ (\d+)\s*(.*)$")
#: Bytes looked at in one go: the comparison makes a temporary array of a byte for each page's word.
_BLOCK = 4 << 20
_MADV_DONTNEED = 4
_M_ARENA_MAX = -8  # of mallopt (glibc)
_PR_SET_THP_DISABLE = 41


def keep_small() -> None:
    """One heap for all threads and no huge pages in this process; call before much is loaded."""
    libc = ctypes.CDLL(None)
    # where the C library or the kernel knows neither, nothing is lost but memory
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_ARENA_MAX, 1)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)


def static_data(library: Path, maps: str) -> Iterator[tuple[int, int]]:
    """Where a library keeps the variables that are zero when it is loaded (its bss).

    Parameters
    ----------
    library : pathlib.Path
        As loaded.
    maps : str
        Content of ``/proc/self/maps``.

    Yields
    ------
    start, end : int
        Addresses of private anonymous memory right behind the library's own writable pages.
    """
    name, end_of_file_part = str(library.resolve()), None
    for line in maps.splitlines():
        if (found := _LINE.match(line)) is None:
            continue
        start, end, rights, inode, path = found.groups()
        if path == name:
            end_of_file_part = end if rights.startswith("rw") else None
        elif start == end_of_file_part and inode == "0" and not path and rights == "rw-p":
            yield int(start, 16), int(end, 16)
            end_of_file_part = None
        else:
            end_of_file_part = None


def give_back_zeros(start: int, end: int) -> int:
    """Give pages of private anonymous memory that hold only zeros back to the kernel.

    Nobody may write to them meanwhile: call it right after a library was loaded, before it is used.

    Parameters
    ----------
    start, end : int
        Addresses, whole pages.

    Returns
    -------
    int
        Bytes given back.
    """
    import numpy as np

    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    page, given = mmap.PAGESIZE, 0
    for at in range(start, end, _BLOCK):
        size = min(_BLOCK, end - at)
        words = np.frombuffer(memoryview((ctypes.c_char * size).from_address(at)), np.uint64)
        zero = ~words.reshape(-1, page // 8).any(axis=1)
        # runs of zero pages: where the flag changes
        edges = np.flatnonzero(np.diff(np.concatenate(([False], zero, [False]))))
        for first, last in edges.reshape(-1, 2).tolist():
            if libc.madvise(at + first * page, (last - first) * page, _MADV_DONTNEED) == 0:
                given += (last - first) * page
    return given


def give_back_zeros_of(library: Path) -> int:
    """`give_back_zeros` of a library that was just loaded.

    Returns
    -------
    int
        Bytes given back; 0 where there is no ``/proc/self/maps``.
    """
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return 0
    return sum(give_back_zeros(start, end) for start, end in static_data(library, maps))
