from __future__ import annotations

import errno
import gzip
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import rlprof
from rlprof.errors import (
    DamagedTraceError,
    NotATraceError,
    OutputError,
    RankError,
    UnreadableError,
    UsageError,
)
from rlprof.trace.guard import guarded, typed_error
from rlprof.trace.read import READERS, read
from rlprof.trace.trace import Loaded, Trace, TraceMeta
from tests.trace.nsys_made import export, kernel, push_pop

SMALL = "vla_chunk_and_training.sqlite"


def test_a_capture_is_read_by_its_content(data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "no suffix"
    copy.write_bytes((data / "nsys" / SMALL).read_bytes())
    trace = rlprof.read(copy)
    assert trace.meta.format == "nsys-sqlite"
    assert trace.meta.files == ("no suffix",)


def test_every_format_has_a_reader_that_exists() -> None:
    from importlib import import_module

    for module, function in READERS.values():
        assert callable(getattr(import_module(module), function))


def test_a_pytorch_trace_and_its_decompressed_text_give_the_same_rows(data: Path, tmp_path: Path) -> None:
    packed = data / "kineto" / "two_ranks_rank-0.json.gz"
    plain = tmp_path / "trace"
    plain.write_bytes(gzip.decompress(packed.read_bytes()))
    a, b = read(packed), read(plain)
    assert a.table("kernels").equals(b.table("kernels"))


def test_reading_one_capture_imports_no_reader_of_another_format(data: Path) -> None:
    code = (
        "import sys, rlprof\n"
        f"rlprof.read({str(data / 'nsys' / SMALL)!r})\n"
        "for m in ('kineto', 'chrome_jsonl', 'nsys_parquet', 'native', 'merge'):\n"
        "    assert 'rlprof.trace.' + m not in sys.modules, m\n"
        "assert 'pandas' not in sys.modules and 'altair' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_one_file_given_twice_is_refused_naming_both(data: Path, tmp_path: Path) -> None:
    link = tmp_path / "same.sqlite"
    link.symlink_to(data / "nsys" / SMALL)
    with pytest.raises(RankError) as caught:
        read(data / "nsys" / SMALL, link)
    assert "same.sqlite" in str(caught.value)
    assert SMALL in str(caught.value)


def test_a_copy_of_a_capture_is_refused_naming_both(data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite"
    copy.write_bytes((data / "nsys" / SMALL).read_bytes())
    with pytest.raises(RankError, match=r"same capture session") as caught:
        read(data / "nsys" / SMALL, copy)
    assert "copy.sqlite" in str(caught.value)
    assert SMALL in str(caught.value)


def test_a_table_damaged_behind_the_head_is_an_error_when_it_is_read(tmp_path: Path) -> None:
    ranges = [push_pop(i, i + 1, f"step {i}") for i in range(20_000)]
    path = export(
        tmp_path / "damaged_pages.sqlite",
        {
            "META_DATA_EXPORT": [{"name": "a", "value": "b"}],
            "ANALYSIS_DETAILS": [{"duration": 10**6}],
            "NVTX_EVENTS": ranges,
        },
    )
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2 : len(raw) - 8192] = b"\xff" * (len(raw) - 8192 - len(raw) // 2)
    path.write_bytes(raw)
    with pytest.raises(DamagedTraceError, match="damaged_pages"):
        _ = read(path).ranges


@pytest.mark.parametrize("at", [0.05, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("length", [600, 60_000])
def test_a_block_of_zeros_in_a_pytorch_trace_is_damage_and_not_fewer_events(
    data: Path, tmp_path: Path, at: float, length: int
) -> None:
    raw = bytearray(gzip.decompress((data / "kineto" / "two_ranks_rank-0.json.gz").read_bytes()))
    start = int(at * len(raw))
    raw[start : start + length] = bytes(length)
    (tmp_path / "block_of_zeros.json").write_bytes(raw)
    with pytest.raises(DamagedTraceError, match="block_of_zeros"):
        read(tmp_path / "block_of_zeros.json")


def test_a_wrong_checksum_is_damage(data: Path, tmp_path: Path) -> None:
    raw = bytearray((data / "kineto" / "two_ranks_rank-0.json.gz").read_bytes())
    raw[-8:-4] = bytes(4)
    (tmp_path / "wrong_checksum.json.gz").write_bytes(raw)
    with pytest.raises(DamagedTraceError, match="wrong_checksum"):
        read(tmp_path / "wrong_checksum.json.gz")


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), OutputError, "disk is full"),
        (OSError(errno.EIO, "Input/output error"), UnreadableError, "Input/output"),
        (PermissionError(errno.EACCES, "Permission denied"), UnreadableError, "Permission denied"),
        (MemoryError(), UnreadableError, "not enough memory"),
        (EOFError("Compressed file ended"), DamagedTraceError, "cut short"),
        (__import__("sqlite3").DatabaseError("database disk image is malformed"), DamagedTraceError, "malf"),
        (__import__("sqlite3").OperationalError("database or disk is full"), OutputError, "disk is full"),
        (__import__("sqlite3").OperationalError("unable to open database file"), UnreadableError, "opened"),
        (__import__("pyarrow").ArrowInvalid("Parquet magic bytes not found"), DamagedTraceError, "Parquet"),
        (pl.exceptions.ComputeError("parquet: File out of specification"), DamagedTraceError, "parquet"),
        (__import__("zlib").error("Error -3"), DamagedTraceError, "Error -3"),
    ],
)
def test_what_libraries_raise_becomes_a_typed_error(error: Exception, kind: type, said: str) -> None:
    typed = typed_error(error, Path("x.sqlite"))
    assert type(typed) is kind
    assert said in str(typed)
    assert "\n" not in str(typed)
    assert str(typed).startswith("x.sqlite: ")


def test_a_fault_of_rlprof_is_not_blamed_on_the_file() -> None:
    assert typed_error(KeyError("name"), Path("x")) is None
    assert typed_error(TypeError("unsupported operand"), Path("x")) is None


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), MemoryError(), KeyError("a")])
def test_a_lazy_table_raises_what_the_guard_makes_of_it(error: Exception) -> None:
    def load(columns: object) -> Loaded:
        raise error

    trace = guarded(Trace(TraceMeta("kineto", ("x",), 0, 1), {"ranges": load}), Path("x"))
    with pytest.raises(type(typed_error(error, Path("x")) or error)):
        trace.table("ranges")


def test_progress_runs_from_0_to_1_over_several_files(data: Path) -> None:
    seen: list[float] = []
    folder = data / "kineto"
    read(
        folder / "two_ranks_rank-0.json.gz",
        folder / "two_ranks_rank-1.json.gz",
        progress=lambda stage, part: seen.append(part),
    )
    assert all(0 <= p <= 1 for p in seen)
    assert seen == sorted(seen)


def test_an_anchor_of_a_file_that_was_not_given_is_an_error(data: Path) -> None:
    with pytest.raises(UsageError, match=r"other\.json.*none of the captures"):
        read(data / "nsys" / SMALL, anchors={"other.json": 1})


def test_an_anchor_moves_one_capture_too(tmp_path: Path) -> None:
    tables = {
        "META_DATA_EXPORT": [{"name": "a", "value": "b"}],
        "ANALYSIS_DETAILS": [{"duration": 100}],
        "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(5, 9)],
    }
    path = export(tmp_path / "one.sqlite", tables)
    assert read(path).meta.utc_origin_ns is None
    trace = read(path, anchors={"one.sqlite": 1_700_000_000 * 10**9})
    assert trace.meta.utc_origin_ns == 1_700_000_000 * 10**9
    assert trace.table("kernels")["start_ns"].to_list() == [5]
    assert trace.meta.format == "nsys-sqlite"


@pytest.mark.parametrize("make", [lambda p: p.touch(), os.mkfifo, lambda p: p.mkdir()])
def test_what_is_no_capture_is_an_error(tmp_path: Path, make: Callable[[Path], object]) -> None:
    path = tmp_path / "x.sqlite"
    make(path)
    with pytest.raises((NotATraceError, UnreadableError), match=r"x\.sqlite"):
        read(path)


def test_what_lay_beside_the_traces_of_a_folder_is_said(data: Path, tmp_path: Path) -> None:
    for rank in (0, 1):
        name = f"two_ranks_rank-{rank}.json.gz"
        (tmp_path / name).write_bytes((data / "kineto" / name).read_bytes())
    (tmp_path / "log.txt").write_text("done")
    trace = read(tmp_path)
    assert len(trace.meta.files) == 2
    assert [n for n in trace.notes if "log.txt" in n]
