"""Writing rlprof's own capture file, `.rlprof`: a stored zip of `meta.json` and one parquet per table.

The layout is described in docs/rlprof_format.md. This module needs pyarrow and no polars, so that a capture
session on a lean GPU machine can use it; `rlprof.trace.native` goes between these files and a `Trace`.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from rlprof import __version__
from rlprof.progress import Progress, silent
from rlprof.trace.output import atomic_path

if TYPE_CHECKING:
    pass

FORMAT_NAME = "rlprof"
FORMAT_VERSION = 1
META_MEMBER = "meta.json"

_TEXT = pa.dictionary(pa.int32(), pa.string())

#: The columns of each table as stored. Same names and order as `rlprof.trace.tables.SCHEMAS`, said in
#: Arrow's types so that a writer needs no polars; a test holds the two together.
ARROW_SCHEMAS: dict[str, pa.Schema] = {
    "ranges": pa.schema(
        [
            ("start_ns", pa.int64()),
            ("end_ns", pa.int64()),
            ("name", _TEXT),
            ("style", _TEXT),
            ("process", pa.uint32()),
            ("thread", pa.int64()),
            ("domain", _TEXT),
            ("cut", pa.bool_()),
        ]
    ),
    "kernels": pa.schema(
        [
            ("start_ns", pa.int64()),
            ("end_ns", pa.int64()),
            ("device", pa.int32()),
            ("stream", pa.int64()),
            ("process", pa.uint32()),
            ("correlation_id", pa.int64()),
            ("name", _TEXT),
            ("full_name", _TEXT),
            ("blocks", pa.int64()),
            ("kind", _TEXT),
        ]
    ),
    "copies": pa.schema(
        [
            ("start_ns", pa.int64()),
            ("end_ns", pa.int64()),
            ("device", pa.int32()),
            ("stream", pa.int64()),
            ("process", pa.uint32()),
            ("correlation_id", pa.int64()),
            ("kind", _TEXT),
            ("size_bytes", pa.int64()),
        ]
    ),
    "api": pa.schema(
        [
            ("start_ns", pa.int64()),
            ("end_ns", pa.int64()),
            ("process", pa.uint32()),
            ("thread", pa.int64()),
            ("correlation_id", pa.int64()),
            ("name", _TEXT),
        ]
    ),
    "activity": pa.schema(
        [
            ("source", _TEXT),
            ("device", pa.int32()),
            ("start_ns", pa.int64()),
            ("end_ns", pa.int64()),
            ("active_frac", pa.float64()),
        ]
    ),
    "counters": pa.schema(
        [
            ("metric", _TEXT),
            ("device", pa.int32()),
            ("start_ns", pa.int64()),
            ("end_ns", pa.int64()),
            ("value", pa.float64()),
        ]
    ),
    "devices": pa.schema(
        [
            ("device", pa.int32()),
            ("name", pa.string()),
            ("sm_count", pa.int64()),
            ("uuid", pa.string()),
        ]
    ),
    "processes": pa.schema(
        [
            ("process", pa.uint32()),
            ("pid", pa.int64()),
            ("rank", pa.int64()),
            ("label", pa.string()),
            ("file", pa.string()),
            ("devices", pa.list_(pa.int32())),
        ]
    ),
    "loop_counts": pa.schema(
        [
            ("process", pa.uint32()),
            ("path", pa.string()),
            ("count", pa.int64()),
        ]
    ),
}


def archive_meta(
    *,
    start_ns: int,
    end_ns: int,
    files: Sequence[str] = (),
    source_format: str | None = None,
    utc_origin_ns: int | None = None,
    clock_uncertainty_ns: int = 0,
    graph_mode: str | None = None,
    sampling_hz: float | None = None,
    product: str | None = None,
    schema_version: str | None = None,
    traced: Sequence[str] | None = None,
    overhead_ns: int | None = None,
    missing: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Make the content of `meta.json`; the fields are those of `rlprof.trace.trace.TraceMeta`.

    Parameters
    ----------
    start_ns, end_ns : int
        The span that the capture covers, in its own clock.
    files : sequence of str
        Names of the captures it was made from; any folder part is dropped.
    source_format : str, optional
        Format it was converted from.
    utc_origin_ns : int, optional
        Nanoseconds since the Unix epoch at time 0 of the clock.
    clock_uncertainty_ns : int
        Bound of the error of that clock over several captures.
    graph_mode, sampling_hz, product, schema_version, traced, overhead_ns
        As in `TraceMeta`.
    missing : mapping of table name to str, optional
        Why a table is absent.
    notes : sequence of str
        Notes that hold for the whole capture.

    Returns
    -------
    dict
        A JSON document.
    """
    return {
        "format": FORMAT_NAME,
        "format_version": FORMAT_VERSION,
        "producer": f"rlprof {__version__}",
        "source_format": source_format,
        "files": [_base_name(f) for f in files],
        "start_ns": start_ns,
        "end_ns": end_ns,
        "utc_origin_ns": utc_origin_ns,
        "clock_uncertainty_ns": clock_uncertainty_ns,
        "graph_mode": graph_mode,
        "sampling_hz": sampling_hz,
        "product": product,
        "schema_version": schema_version,
        "traced": None if traced is None else sorted(traced),
        "overhead_ns": overhead_ns,
        "missing": dict(missing or {}),
        "notes": list(notes),
    }


def write_archive(
    path: Path,
    meta: Callable[[], Mapping[str, Any]],
    tables: Mapping[str, pa.Table | Callable[[], pa.Table]],
    *,
    force: bool = False,
    progress: Progress = silent,
) -> Path:
    """Write a `.rlprof` file: all of it or nothing.

    Parameters
    ----------
    path : pathlib.Path
        File to make.
    meta : function giving a mapping
        From `archive_meta`; called after the tables, because notes arise while tables are read.
    tables : mapping of table name to pyarrow.Table, or to a function giving one
        The tables the capture holds, with the columns of `ARROW_SCHEMAS`. Functions are called one after
        the other, so that one table is in memory at a time.
    force : bool
        Replace an existing file.
    progress : Progress
        Told the table being written.

    Returns
    -------
    pathlib.Path
        `path`.

    Raises
    ------
    OutputError
        If `path` exists and `force` is not set, or cannot be written.
    """
    with atomic_path(path, force=force) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        facts: dict[str, dict[str, int]] = {}
        for i, (name, given) in enumerate(tables.items()):
            progress(f"writing {name}", i / max(1, len(tables)))
            table = given() if callable(given) else given
            table = table.select(ARROW_SCHEMAS[name].names).cast(ARROW_SCHEMAS[name])
            with archive.open(f"{name}.parquet", "w", force_zip64=True) as member:
                sink = _Sink(member)
                write_parquet(table, sink)
            facts[name] = {"rows": table.num_rows, "footer_crc32": footer_crc32(sink.end)}
        document = {**meta(), "tables": facts}
        # a ZipInfo of our own holds no time of day: one trace makes the same bytes each time
        archive.writestr(zipfile.ZipInfo(META_MEMBER), json.dumps(document, indent=1, ensure_ascii=False))
    progress("writing", 1.0)
    return path


def write_parquet(table: pa.Table, sink: Any) -> None:
    """Write one table as compact parquet (zstd, page checksums, deltas for integers)."""
    text, whole = [], []
    for column in table.schema:
        if pa.types.is_dictionary(column.type) or pa.types.is_string(column.type):
            text.append(column.name)
        elif column.type in (pa.int64(), pa.int32()):
            whole.append(column.name)
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        compression_level=9,
        use_dictionary=text,
        column_encoding=dict.fromkeys(whole, "DELTA_BINARY_PACKED"),
        write_page_checksum=True,
    ) as writer:
        writer.write_table(table, row_group_size=1 << 20)
        if isinstance(sink, _Sink):
            sink.keep_end()


def footer_crc32(end: bytes) -> int:
    """Checksum of a parquet file's footer, which the checksums of its pages leave out.

    Parameters
    ----------
    end : bytes
        The file's end, at least the footer.

    Returns
    -------
    int
        CRC-32 of the footer, its length and the closing magic.
    """
    size = int.from_bytes(end[-8:-4], "little") + 8
    return zlib.crc32(end[-size:])


class _Sink:
    """A zip member that is being written, with the `tell` that pyarrow asks for."""

    def __init__(self, member: Any) -> None:
        self._member = member
        self._at = 0
        self._kept: list[bytes] | None = None
        self.closed = False

    def keep_end(self) -> None:
        """Remember what is written from now on."""
        self._kept = []

    @property
    def end(self) -> bytes:
        """What was written since `keep_end`."""
        return b"".join(self._kept or [])

    def write(self, data: Any) -> int:
        content = bytes(data) if self._kept is not None else data
        self._member.write(content)
        if self._kept is not None:
            self._kept.append(content)
        self._at += len(content)
        return len(content)

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def _base_name(name: str) -> str:
    """The last part of a path of any system: a capture file never tells where it lay."""
    return PureWindowsPath(PurePosixPath(name).name).name or "capture"
