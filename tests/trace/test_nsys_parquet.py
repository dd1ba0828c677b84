"""Parquet and Arrow exports give what the SQLite export gives."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from polars.testing import assert_frame_equal

from rlprof.errors import DamagedTraceError, NotATraceError, UnreadableError
from rlprof.trace.nsys_parquet import ArrowTables, ParquetTables, read_arrowdir, read_parquetdir
from rlprof.trace.nsys_sqlite import SqliteTables, read_sqlite
from rlprof.trace.tables import SCHEMAS, TABLE_NAMES
from rlprof.trace.trace import Trace
from tests.trace.nsys_exports import arrow_tables, write_arrowdir, write_parquetdir
from tests.trace.nsys_made import export, kernel, made, push_pop, tid

KINDS = [(write_parquetdir, read_parquetdir, ParquetTables), (write_arrowdir, read_arrowdir, ArrowTables)]
both = pytest.mark.parametrize(("write", "read", "tables"), KINDS, ids=["parquet", "arrow"])

ROWS = {
    "META_DATA_EXPORT": [{"name": "EXPORT_SCHEMA_VERSION", "value": "3.20.3"}],
    "NVTX_EVENTS": [
        push_pop(0, 100, "iteration"),
        push_pop(10, None, None, textId=1),
        {"start": 5, "eventType": 75, "text": "NCCL", "globalTid": tid(10), "domainId": 1},
    ],
    "StringIds": [{"id": 1, "value": "gemm"}, {"id": 2, "value": "cudaLaunchKernel"}],
    "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(10, 20), kernel(30, 40, pid=(1 << 24) - 1)],
    "ANALYSIS_DETAILS": [{"duration": 1000}],
}


def assert_same(a: Trace, b: Trace) -> None:
    assert {n for n in TABLE_NAMES if a.has(n)} == {n for n in TABLE_NAMES if b.has(n)}
    for name in TABLE_NAMES:
        left, right = a.table(name), b.table(name)
        if name == "processes":
            left, right = left.drop("file"), right.drop("file")
        assert_frame_equal(left, right, categorical_as_str=True, check_exact=True)
    drop = ("format", "files")
    assert {k: v for k, v in vars(a.meta).items() if k not in drop} == {
        k: v for k, v in vars(b.meta).items() if k not in drop
    }
    assert a.notes == b.notes


@both
@pytest.mark.parametrize(
    "name",
    [
        "gpu_metrics_without_nvtx",
        "four_processes_repeated_correlation_ids",
        "range_never_ended",
        "range_text_only_in_textid",
        "schema_3_25_windows",
        "schema_before_2_9",
        "cuda_graph_trace_only",
        "nvtx_rows_without_ranges",
    ],
)
def test_public_captures_read_as_from_sqlite(shared_traces, tmp_path, name, write, read, tables):
    file = shared_traces / "nsys" / f"{name}.sqlite"
    trace = read(write(file, tmp_path / "export"))
    assert_same(trace, read_sqlite(file))
    for table in TABLE_NAMES:
        assert dict(trace.table(table).schema) == SCHEMAS[table]


@both
def test_capture_of_the_repository_reads_as_from_sqlite(data, tmp_path, write, read, tables):
    file = data / "nsys" / "vla_chunk_and_training.sqlite"
    trace = read(write(file, tmp_path / "export"))
    assert len(trace.kernels) > 0
    assert_same(trace, read_sqlite(file))


@both
def test_made_export_reads_as_from_sqlite(tmp_path, write, read, tables):
    file = export(tmp_path / "made.sqlite", ROWS)
    trace = read(write(file, tmp_path / "export"))
    assert trace.meta.files == ("export",)
    assert_same(trace, read_sqlite(file))


@both
def test_ids_are_int64_and_columns_come_in_the_order_asked(tmp_path, write, read, tables):
    file = export(tmp_path / "made.sqlite", ROWS)
    raw = tables(write(file, tmp_path / "export"))
    frame = raw.read("CUPTI_ACTIVITY_KIND_KERNEL", ["globalPid", "gridX", "start"])
    assert frame.schema == {"globalPid": pl.Int64, "gridX": pl.Int64, "start": pl.Int64}
    assert frame["globalPid"].to_list() == [tid(10, 0), tid((1 << 24) - 1, 0)]
    assert raw.columns("StringIds") == ("id", "value")
    assert raw.row_count("NVTX_EVENTS") == 3
    assert raw.tables() == frozenset(ROWS)


@both
@pytest.mark.parametrize(
    "where",
    [
        (),
        (("eventType", (59, 60)),),
        (("end", (None,)),),
        (("end", (100, None)), ("eventType", (59,))),
        (("textId", (1,)),),
        (("globalTid", (-1, tid(10))),),
        (("domainId", (-5,)),),
        (("eventType", ()),),
        (("eventType", (1 << 70, 75)),),
    ],
)
def test_filters_select_what_sqlite_selects(tmp_path, write, read, tables, where):
    file = export(tmp_path / "made.sqlite", ROWS)
    raw, reference = tables(write(file, tmp_path / "export")), SqliteTables(file)
    columns = ["start", "text", "end"]
    if any(v is not None and v >= 1 << 63 for _, values in where for v in values):
        assert raw.read("NVTX_EVENTS", columns, where)["start"].to_list() == [5]
        return
    assert_frame_equal(raw.read("NVTX_EVENTS", columns, where), reference.read("NVTX_EVENTS", columns, where))
    assert raw.exists("NVTX_EVENTS", where) == reference.exists("NVTX_EVENTS", where)


@both
def test_unique_values_are_those_of_sqlite(tmp_path, write, read, tables):
    file = export(tmp_path / "made.sqlite", ROWS)
    raw, reference = tables(write(file, tmp_path / "export")), SqliteTables(file)
    for table, column, shift in [
        ("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid", 24),
        ("NVTX_EVENTS", "textId", 0),
        ("NVTX_EVENTS", "eventType", 1),
    ]:
        assert raw.unique(table, column, shift=shift) == reference.unique(table, column, shift=shift)


@both
def test_text_that_is_not_utf8(tmp_path, write, read, tables):
    file = export(tmp_path / "x.sqlite", {"META_DATA_EXPORT": [], "NVTX_EVENTS": [push_pop(0, 10, "a")]})
    con = sqlite3.connect(file)
    con.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', CAST(x'332e3120ff' AS TEXT))")
    con.execute("UPDATE NVTX_EVENTS SET text = CAST(x'61ff62' AS TEXT)")
    con.commit()
    con.close()
    trace = read(write(file, tmp_path / "export"))
    assert trace.meta.schema_version == "3.1 \ufffd"
    assert trace.ranges["name"].to_list() == ["a\ufffdb"]


@both
def test_table_with_no_rows(tmp_path, write, read, tables):
    folder = write(export(tmp_path / "made.sqlite", ROWS), tmp_path / "export")
    for name, table in arrow_tables(tmp_path / "made.sqlite"):
        if name == "CUPTI_ACTIVITY_KIND_KERNEL":
            empty = table.schema.empty_table()
            if write is write_parquetdir:
                pq.write_table(empty, folder / f"{name}.parquet")
            else:
                with pa.OSFile(str(folder / f"{name}.arrow"), "wb") as sink:
                    pa.ipc.new_stream(sink, empty.schema).close()
    raw = tables(folder)
    assert raw.row_count("CUPTI_ACTIVITY_KIND_KERNEL") == 0
    assert raw.read("CUPTI_ACTIVITY_KIND_KERNEL", ["start"]).schema == {"start": pl.Int64}
    assert not read(folder).has("kernels")


@both
@pytest.mark.parametrize("keep", [0, 0.5, 0.97])
def test_truncated_file(tmp_path, write, read, tables, keep):
    folder = write(export(tmp_path / "made.sqlite", ROWS), tmp_path / "export")
    file = folder / f"NVTX_EVENTS{tables.suffix}"
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * keep)])
    with pytest.raises(DamagedTraceError, match=r"NVTX_EVENTS.*truncated or damaged"):
        _ = read(folder).ranges


def test_arrow_stream_cut_between_batches(tmp_path):
    # what is left of such a file is a valid stream of fewer rows, but for the end mark
    rows = [push_pop(i, i + 1, "x") for i in range(100)]
    folder = write_arrowdir(
        export(tmp_path / "made.sqlite", {**ROWS, "NVTX_EVENTS": rows}), tmp_path / "export", batch_rows=10
    )
    file = folder / "NVTX_EVENTS.arrow"
    with pa.OSFile(str(file), "rb") as source:
        messages = pa.ipc.MessageReader.open_stream(source)
        kept = [next(messages).serialize() for _ in range(4)]  # the schema and three batches
    file.write_bytes(b"".join(bytes(k) for k in kept))
    with pa.OSFile(str(file), "rb") as source:
        assert pa.ipc.open_stream(source).read_all().num_rows == 30
    with pytest.raises(DamagedTraceError, match="end mark"):
        ArrowTables(folder).row_count("NVTX_EVENTS")


@both
def test_folder_that_is_no_export(tmp_path, write, read, tables):
    folder = tmp_path / "export"
    folder.mkdir()
    with pytest.raises(NotATraceError, match="not an export of Nsight Systems"):
        read(folder)
    with pytest.raises(UnreadableError):
        read(tmp_path / "absent")


@both
def test_file_that_has_gone_since(tmp_path, write, read, tables):
    folder = write(export(tmp_path / "made.sqlite", ROWS), tmp_path / "export")
    trace = read(folder)
    (folder / f"CUPTI_ACTIVITY_KIND_KERNEL{tables.suffix}").unlink()
    with pytest.raises(UnreadableError, match="has gone"):
        _ = trace.kernels


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
@both
def test_unreadable_file(tmp_path, write, read, tables):
    folder = write(export(tmp_path / "made.sqlite", ROWS), tmp_path / "export")
    (folder / f"NVTX_EVENTS{tables.suffix}").chmod(0)
    with pytest.raises(UnreadableError, match="no permission"):
        read(folder)


def test_only_the_columns_asked_for_are_read(tmp_path):
    # a column whose bytes are destroyed does not matter to a reader of another
    rows = [push_pop(i, i + 1, f"{i:064x}") for i in range(5000)]
    folder = write_arrowdir(
        export(tmp_path / "made.sqlite", {**ROWS, "NVTX_EVENTS": rows}), tmp_path / "export"
    )
    file = folder / "NVTX_EVENTS.arrow"
    content = bytearray(file.read_bytes())
    at = content.index(f"{1000:064x}".encode())
    content[at : at + 4] = b"\xff" * 4
    file.write_bytes(bytes(content))
    raw = ArrowTables(folder)
    assert raw.read("NVTX_EVENTS", ["start"])["start"].to_list() == list(range(5000))
    assert "\ufffd" in raw.read("NVTX_EVENTS", ["text"])["text"].to_list()[1000]


@pytest.mark.nsys
@pytest.mark.parametrize(("kind", "read"), [("parquetdir", read_parquetdir), ("arrowdir", read_arrowdir)])
def test_exports_by_nsys_itself(shared_traces, tmp_path, kind, read):
    from rlprof.trace.nsys_tables import NEEDED_TABLES
    from rlprof.trace.nsys_tool import find_nsys

    tools = find_nsys()
    if not tools or not tools[0].exports_parquet:
        pytest.skip("no nsys that exports parquet")
    report = shared_traces / "nsys" / "h200_nsys2023_metrics.nsys-rep"
    wanted = [t for t in NEEDED_TABLES if t != "META_DATA_CAPTURE"]  # nsys leaves it out of folders
    tools[0].export(report, tmp_path / "folder", kind=kind, tables=wanted)
    tools[0].export(report, tmp_path / "file.sqlite", kind="sqlite", tables=wanted)
    trace = read(tmp_path / "folder")
    assert len(trace.samples) == 143205
    assert_same(trace, read_sqlite(tmp_path / "file.sqlite"))


def test_made_helper_reads_sqlite(tmp_path):
    # the reference of this file is the SQLite reader: see that it reads the rows at all
    trace = made(tmp_path, **ROWS)
    assert trace.ranges["name"].to_list() == ["iteration", "gemm"]
    assert Path(tmp_path / "made.sqlite").exists()
