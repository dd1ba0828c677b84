"""Parquet and Arrow directory exports made from SQLite ones, with the column types that nsys gives them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

# what nsys 2023.4 and later store in these widths; all other whole numbers are int64
UNSIGNED = {
    "globalTid", "endGlobalTid", "globalPid", "streamId", "contextId", "greenContextId", "shortName",
    "demangledName", "mangledName", "nameId", "typeId", "sourceId", "rangeId", "domainId", "category",
    "graphNodeId", "globalVid", "duration", "startTime", "stopTime", "utcEpochNs", "uint64Value", "bytes",
}  # fmt: skip
NARROW = {("StringIds", "id"), *(("CUPTI_ACTIVITY_KIND_KERNEL", f"grid{a}") for a in "XYZ")}


def arrow_tables(sqlite_file: Path) -> Iterator[tuple[str, pa.Table]]:
    """The tables of a SQLite export with the types of a parquet export."""
    con = sqlite3.connect(f"{sqlite_file.resolve().as_uri()}?mode=ro", uri=True)
    con.text_factory = bytes
    for (raw_name,) in con.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        name = raw_name.decode()
        columns = con.execute(f'PRAGMA table_info("{name}")').fetchall()
        rows = con.execute(f'SELECT * FROM "{name}"').fetchall()
        arrays, names = [], []
        for i, (_, raw_column, declared, *_rest) in enumerate(columns):
            column, values = raw_column.decode(), [r[i] for r in rows]
            names.append(column)
            if b"TEXT" in declared.upper():
                # without a check, as the C++ writer of nsys does it
                texts = [v if v is None or isinstance(v, bytes) else str(v).encode() for v in values]
                arrays.append(pa.array(texts, pa.binary()).view(pa.string()))
            elif b"REAL" in declared.upper():
                arrays.append(pa.array(values, pa.float64()))
            elif column in UNSIGNED and not any(v is not None and v < 0 for v in values):
                arrays.append(pa.array(values, pa.uint64()))
            elif (name, column) in NARROW:
                arrays.append(pa.array(values, pa.int32()))
            else:
                arrays.append(pa.array(values, pa.int64()))
        yield name, pa.table(arrays, names=names)
    con.close()


def write_parquetdir(sqlite_file: Path, folder: Path, *, row_group_size: int = 2000) -> Path:
    """What ``nsys export -t parquetdir`` makes of the report behind a SQLite export."""
    folder.mkdir()
    for name, table in arrow_tables(sqlite_file):
        if table.num_rows:
            pq.write_table(table, folder / f"{name}.parquet", row_group_size=row_group_size)
    return folder


def write_arrowdir(sqlite_file: Path, folder: Path, *, batch_rows: int = 2000) -> Path:
    """What ``nsys export -t arrowdir`` makes of the report behind a SQLite export."""
    folder.mkdir()
    for name, table in arrow_tables(sqlite_file):
        if table.num_rows:
            with (
                pa.OSFile(str(folder / f"{name}.arrow"), "wb") as sink,
                pa.ipc.new_stream(sink, table.schema) as out,
            ):
                out.write_table(table, max_chunksize=batch_rows)
                out.close()
    return folder
