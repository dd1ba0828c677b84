"""Giving memory back without changing what it holds."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
from pathlib import Path

import pytest

from rlprof.capture.samplers.process_memory import give_back_zeros, give_back_zeros_of, static_data

PAGE = mmap.PAGESIZE

MAPS = """\
7f0000000000-7f0000001000 r--p 00000000 08:01 77 /site/nvidia/lib/libnvperf_host.so
7f0000001000-7f0000002000 rw-p 00001000 08:01 77 /site/nvidia/lib/libnvperf_host.so
7f0000002000-7f0000009000 rw-p 00000000 00:00 0
7f0000009000-7f000000a000 rw-p 00000000 00:00 0
7f0000010000-7f0000011000 rw-p 00001000 08:01 78 /site/nvidia/lib/libother.so
7f0000011000-7f0000012000 rw-p 00000000 00:00 0 [heap]
7f0000012000-7f0000013000 rw-p 00000000 00:00 0
"""


def test_only_what_lies_behind_the_librarys_own_pages_is_its_static_data() -> None:
    host = Path("/site/nvidia/lib/libnvperf_host.so")
    assert list(static_data(host, MAPS)) == [(0x7F0000002000, 0x7F0000009000)]
    assert list(static_data(Path("/site/nvidia/lib/libother.so"), MAPS)) == []
    assert list(static_data(Path("/site/none.so"), MAPS)) == []


def resident_pages(start: int, count: int) -> int:
    with Path("/proc/self/pagemap").open("rb") as file:
        file.seek(start // PAGE * 8)
        entries = file.read(8 * count)
    return sum(entries[8 * i + 7] >> 7 for i in range(count))


def test_zero_pages_go_and_the_content_stays() -> None:
    count = 3000  # more than one block
    with mmap.mmap(-1, count * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        view = (ctypes.c_char * len(memory)).from_buffer(memory)
        start = ctypes.addressof(view)
        for i in range(count):  # written, all of them
            memory[i * PAGE] = 0
        for i in (0, 7, 1500, count - 1):
            memory[i * PAGE + 4095] = i % 251 + 1
        before = bytes(memory)
        assert resident_pages(start, count) == count
        assert give_back_zeros(start, start + count * PAGE) == (count - 4) * PAGE
        assert resident_pages(start, count) == 4
        assert bytes(memory) == before
        memory[8 * PAGE] = 5  # and it can be written again
        assert memory[8 * PAGE] == 5
        del view


def test_of_a_library_that_is_not_loaded_nothing_is_given_back(tmp_path: Path) -> None:
    assert give_back_zeros_of(tmp_path / "libnone.so") == 0


@pytest.mark.skipif(sys.platform != "linux", reason="huge pages are Linux's")
def test_a_sampler_process_asks_for_no_huge_pages() -> None:
    code = (
        "from rlprof.capture.samplers.process_memory import keep_small; keep_small();"
        "import ctypes; print(ctypes.CDLL(None).prctl(42, 0, 0, 0, 0))"  # PR_GET_THP_DISABLE
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"
