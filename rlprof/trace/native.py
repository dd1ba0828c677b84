"""rlprof's own capture file, `.rlprof`: from a trace and back, exactly.

The layout is described in docs/rlprof_format.md; `rlprof.trace.archive` writes it.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from rlprof import __version__
from rlprof.errors import DamagedTraceError, NotATraceError, UnreadableError
from rlprof.progress import Progress, silent
from rlprof.trace.archive import (
    ARROW_SCHEMAS,
    FORMAT_NAME,
    FORMAT_VERSION,
    META_MEMBER,
    archive_meta,
    footer_crc32,
    write_archive,
)
from rlprof.trace.tables import TABLE_NAMES, TableName, conform, schema
from rlprof.trace.trace import Loaded, Loader, Trace, TraceMeta


def write_rlprof(trace: Trace, path: Path, *, force: bool = False, progress: Progress = silent) -> Path:
    """Write a trace as one `.rlprof` file.

    Parameters
    ----------
    trace : Trace
        Any trace; every table it holds is read, one at a time.
    path : pathlib.Path
        File to make.
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
    notes: dict[str, None] = {}

    def one(name: TableName) -> Callable[[], pa.Table]:
        def load() -> pa.Table:
            # not trace.table, which would keep every table in memory
            loaded = trace.loaders[name](None)
            notes.update(dict.fromkeys(loaded.notes))
            return arrow_table(loaded.frame, name)

        return load

    return write_archive(
        path,
        lambda: trace_document(trace, notes=tuple(notes)),
        {name: one(name) for name in TABLE_NAMES if trace.has(name)},
        force=force,
        progress=progress,
    )


def trace_document(trace: Trace, *, notes: tuple[str, ...] = ()) -> dict[str, Any]:
    """The `meta.json` of a trace (see `archive_meta`), with its notes so far and further ones."""
    meta = trace.meta
    return archive_meta(
        start_ns=meta.start_ns,
        end_ns=meta.end_ns,
        files=meta.files,
        source_format=meta.format,
        utc_origin_ns=meta.utc_origin_ns,
        clock_uncertainty_ns=meta.clock_uncertainty_ns,
        graph_mode=meta.graph_mode,
        sampling_hz=meta.sampling_hz,
        product=meta.product,
        schema_version=meta.schema_version,
        traced=None if meta.traced is None else sorted(meta.traced),
        overhead_ns=meta.overhead_ns,
        missing={name: trace.missing[name] for name in TABLE_NAMES if name in trace.missing},
        notes=tuple(dict.fromkeys((*trace.notes, *notes))),
    )


def arrow_table(frame: pl.DataFrame, name: TableName) -> pa.Table:
    """A table of a trace in the types of `ARROW_SCHEMAS`.

    Parameters
    ----------
    frame : polars.DataFrame
        All columns of the table.
    name : str
        Table name.

    Returns
    -------
    pyarrow.Table
        Same rows; dictionaries hold the values used and no other.
    """
    columns = []
    for field in ARROW_SCHEMAS[name]:
        series = frame[field.name]
        if isinstance(series.dtype, pl.Categorical | pl.Enum):
            columns.append(_dictionary(series))
        else:
            columns.append(series.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(field.type))
    return pa.Table.from_arrays(columns, schema=ARROW_SCHEMAS[name])


def _dictionary(series: pl.Series) -> pa.DictionaryArray:
    # polars keeps one pool of categories for the whole process; its own conversion would store them all
    values = series.unique(maintain_order=True).drop_nulls()
    places = pl.int_range(len(values), dtype=pl.Int32, eager=True)
    indices = series.to_physical().replace_strict(values.to_physical(), places, return_dtype=pl.Int32)
    oldest = pl.CompatLevel.oldest()
    return pa.DictionaryArray.from_arrays(
        indices.to_arrow(compat_level=oldest),
        values.cast(pl.String).to_arrow(compat_level=oldest).cast(pa.string()),
    )


def read_rlprof(path: Path, *, progress: Progress = silent) -> Trace:
    """Open a `.rlprof` file.

    Tables are read when first asked for and only the columns asked for, through a memory map: memory grows
    with the columns used, not with the file.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    progress : Progress
        Told the stage.

    Returns
    -------
    Trace
        With `meta.format` ``rlprof`` and this file's name in `meta.files`; everything else is what was
        written, exactly.

    Raises
    ------
    UnreadableError
        If the file cannot be opened.
    NotATraceError
        If it is no `.rlprof` file, or of a newer format version.
    DamagedTraceError
        If it is truncated or inconsistent.
    """
    progress("opening", 0.0)
    archive = Archive(Path(path))
    loaders = {name: archive.loader(name) for name in TABLE_NAMES if name in archive.tables}
    progress("opening", 1.0)
    return Trace(
        meta=replace(archive.trace_meta(), files=(Path(path).name,)),
        loaders=loaders,
        missing={name: archive.missing[name] for name in TABLE_NAMES if name in archive.missing},
        base_notes=(*archive.document["notes"], *archive.notes),
    )


class Archive:
    """An open `.rlprof` file: its checked `meta.json` and its parquet members.

    Parameters
    ----------
    path : pathlib.Path
        The file.

    Raises
    ------
    UnreadableError, NotATraceError, DamagedTraceError
        As `read_rlprof`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        members = self._open()
        self.document = _checked_document(path, members.pop(META_MEMBER)())
        self.missing: dict[str, str] = self.document["missing"]
        self.notes: tuple[str, ...] = ()
        self.tables: dict[str, pq.ParquetFile] = {}
        for name, facts in self.document["tables"].items():
            content = members.pop(f"{name}.parquet", None)
            if name not in ARROW_SCHEMAS:
                self._note(f"table {name} is not known to this version of rlprof and was ignored")
            elif content is None:
                raise DamagedTraceError(f"the member {name}.parquet is missing", where=path, hint=_AGAIN)
            else:
                self.tables[name] = self._parquet(name, content(), facts)
        if members:
            self._note(f"{len(members)} unknown member(s) of the file were ignored")

    def _note(self, text: str) -> None:
        self.notes = (*self.notes, f"{self.path.name}: {text}")

    def _open(self) -> dict[str, Callable[[], pa.Buffer]]:
        """The members, each as a function giving its bytes (mapped where it is stored, else unpacked)."""
        path = self.path
        try:
            with path.open("rb") as file:
                head = file.read(4)
            if not head:
                raise NotATraceError("the file is empty", where=path, hint="give a finished capture")
            archive = zipfile.ZipFile(path)
            mapped = pa.memory_map(str(path))
        except (zipfile.BadZipFile, NotImplementedError) as error:
            if head.startswith(b"PK"):
                raise DamagedTraceError(
                    "the file is truncated or damaged", where=path, hint=_AGAIN
                ) from error
            raise NotATraceError("not an .rlprof file", where=path, hint="see rlprof doctor FILE") from error
        except OSError as error:
            raise UnreadableError(
                f"cannot be opened: {error.strerror or error}",
                where=path,
                hint="check the name and permissions",
            ) from error
        names = {info.filename: info for info in archive.infolist()}
        if META_MEMBER not in names:
            raise NotATraceError("a zip without meta.json is no .rlprof file", where=path)

        def content(info: zipfile.ZipInfo) -> Callable[[], pa.Buffer]:
            def give() -> pa.Buffer:
                try:
                    # checks the local header, and leaves the file at the first byte of the member
                    with archive.open(info) as member:
                        if info.compress_type != zipfile.ZIP_STORED:
                            return pa.py_buffer(member.read())
                        at = cast(Any, member)._orig_compress_start
                    if at + info.file_size > mapped.size():
                        raise zipfile.BadZipFile("member beyond the end of the file")
                    mapped.seek(at)
                    return mapped.read_buffer(info.file_size)
                except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, OSError) as error:
                    raise DamagedTraceError(
                        f"the member {info.filename} cannot be read ({error})", where=path, hint=_AGAIN
                    ) from error

            return give

        return {name: content(info) for name, info in names.items()}

    def _parquet(self, name: str, content: pa.Buffer, said: dict[str, int]) -> pq.ParquetFile:
        want = ARROW_SCHEMAS[name]
        # pages have checksums of their own; this one covers what says where they are
        end = content.slice(max(0, content.size - FOOTER_BYTES)).to_pybytes()
        if int.from_bytes(end[-8:-4], "little") + 8 > len(end):
            end = content.to_pybytes()
        if said.get("footer_crc32") not in (None, footer_crc32(end)):
            raise DamagedTraceError(f"table {name} is damaged (checksum)", where=self.path, hint=_AGAIN)
        try:
            facts = pq.read_metadata(pa.BufferReader(content))
            have = {f.name: f.type for f in facts.schema.to_arrow_schema()}
        except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: a name that is not UTF-8
            raise self._damaged(name, error) from error
        for field in want:
            if field.name not in have:
                raise DamagedTraceError(
                    f"table {name} has no column {field.name}", where=self.path, hint=_AGAIN
                )
            if _kind(have[field.name]) != _kind(field.type):
                raise DamagedTraceError(
                    f"column {name}.{field.name} is {have[field.name]}, not {field.type}",
                    where=self.path,
                    hint=_AGAIN,
                )
        if facts.num_rows != said["rows"]:
            raise DamagedTraceError(
                f"table {name} has {facts.num_rows} rows, meta.json says {said['rows']}",
                where=self.path,
                hint=_AGAIN,
            )
        extra = sorted(set(have) - set(want.names))
        if extra:
            self._note(f"table {name}: unknown column(s) {', '.join(extra)} were ignored")
        text = [f.name for f in want if pa.types.is_dictionary(f.type)]
        try:
            return pq.ParquetFile(
                pa.BufferReader(content),
                metadata=facts,
                read_dictionary=text,
                page_checksum_verification=True,
            )
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(name, error) from error

    def _damaged(self, name: str, error: Exception) -> DamagedTraceError:
        return DamagedTraceError(f"table {name} cannot be read ({error})", where=self.path, hint=_AGAIN)

    def loader(self, name: TableName) -> Loader:
        """A `rlprof.trace.trace.Loader` of one table."""

        def load(columns: Sequence[str] | None) -> Loaded:
            names = list(schema(name, columns))
            try:
                table = self.tables[name].read(columns=names).unify_dictionaries()
                table.validate(full=True)  # a file of another writer may lack the checksums
                frame = conform(cast(pl.DataFrame, pl.from_arrow(table)), name, names)
            except (pa.ArrowException, OSError, pl.exceptions.PolarsError) as error:
                raise self._damaged(name, error) from error
            return Loaded(frame)

        return load

    def trace_meta(self) -> TraceMeta:
        """The facts of `meta.json` as a `TraceMeta`."""
        d = self.document
        return TraceMeta(
            format=FORMAT_NAME,
            files=tuple(d["files"]),
            start_ns=d["start_ns"],
            end_ns=d["end_ns"],
            utc_origin_ns=d["utc_origin_ns"],
            clock_uncertainty_ns=d["clock_uncertainty_ns"],
            graph_mode=d["graph_mode"],
            sampling_hz=d["sampling_hz"],
            product=d["product"],
            schema_version=d["schema_version"],
            traced=None if d["traced"] is None else frozenset(d["traced"]),
            overhead_ns=d["overhead_ns"],
        )


_AGAIN = "write or copy the file again"
#: Bytes at the end of a parquet member that hold its footer, but for very many row groups.
FOOTER_BYTES = 1 << 20


def _checked_document(path: Path, content: pa.Buffer) -> dict[str, Any]:
    try:
        document = json.loads(content.to_pybytes())
    except ValueError as error:
        raise DamagedTraceError("meta.json is not JSON", where=path, hint=_AGAIN) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT_NAME:
        raise NotATraceError("meta.json does not say format rlprof", where=path)
    version = document.get("format_version")
    if not isinstance(version, int) or version < 1:
        raise DamagedTraceError(f"meta.json has format_version {version!r}", where=path, hint=_AGAIN)
    if version > FORMAT_VERSION:
        raise NotATraceError(
            f"written in version {version} of the .rlprof format ({document.get('producer')}); "
            f"rlprof {__version__} reads up to version {FORMAT_VERSION}",
            where=path,
            hint="pip install --upgrade rlprof",
        )
    for key, good in _DOCUMENT.items():
        # what may be null may be left out
        if not good(document.setdefault(key, None)):
            raise DamagedTraceError(f"meta.json: {key} is {document[key]!r}", where=path, hint=_AGAIN)
    return document


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _text_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) for v in value)


def _text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


#: What `meta.json` must hold: key -> whether a value will do.
_DOCUMENT: dict[str, Callable[[Any], bool]] = {
    "files": _text_list,
    "start_ns": _whole,
    "end_ns": _whole,
    "utc_origin_ns": lambda v: v is None or _whole(v),
    "clock_uncertainty_ns": _whole,
    "graph_mode": _text_or_none,
    "sampling_hz": lambda v: v is None or isinstance(v, float) or _whole(v),
    "product": _text_or_none,
    "schema_version": _text_or_none,
    "overhead_ns": lambda v: v is None or _whole(v),
    "traced": lambda v: v is None or _text_list(v),
    "missing": lambda v: isinstance(v, dict) and _text_list(list(v.values())),
    "notes": _text_list,
    "tables": lambda v: (
        isinstance(v, dict) and all(isinstance(t, dict) and _whole(t.get("rows")) for t in v.values())
    ),
}


def _kind(type_: pa.DataType) -> str:
    """What a column type can be read as: widths and encodings may differ between writers."""
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    if pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return "text"
    if pa.types.is_integer(type_):
        return "integer"
    if pa.types.is_floating(type_):
        return "float"
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return f"list of {_kind(type_.value_type)}"
    return str(type_)
