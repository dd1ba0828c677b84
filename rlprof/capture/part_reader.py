"""Reading the parts of a session, finished or broken off: every whole batch of every process."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof.capture.parts import part_schema, stem_pid
from rlprof.errors import UnreadableError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

_STEM = re.compile(r"^(?P<pid>\d+)-(?P<start>\d+)$")
_FILE = re.compile(r"^(?P<stem>\d+-\d+)-(?P<table>[a-z_]+)(\.\d+)?\.arrows$")


@dataclass(frozen=True)
class ProcessParts:
    """What one process left in a session's folder.

    Parameters
    ----------
    stem : str
        ``PID-STARTTIME``.
    pid : int
        Its number.
    facts : mapping
        The content of its JSON file; empty if that is missing.
    tables : mapping of table name to pyarrow.Table
        Columns of `part_schema`. ``ranges`` holds the ranges that never ended, too, with ``cut`` set and the
        process's last sign of life as their end; ``loop_counts`` has one row per path. ``open_ranges`` and
        ``alive`` are used up by that.
    notes : tuple of str
        What was damaged, and the process's own notes.
    """

    stem: str
    pid: int
    facts: Mapping[str, Any]
    tables: Mapping[str, pa.Table]
    notes: tuple[str, ...] = ()


def read_parts(folder: Path, only: Collection[str] | None = None) -> tuple[ProcessParts, ...]:
    """Read a session's folder, finished or not.

    Parameters
    ----------
    folder : pathlib.Path
        As the session left it; it may still be written to.
    only : collection of str, optional
        Read these tables of parts and leave the others; all by default.

    Returns
    -------
    tuple of ProcessParts
        By start time of the process. A process that left only its JSON file has no tables.

    Raises
    ------
    UnreadableError
        If there is no such folder, or it cannot be read.
    """
    folder = Path(folder)
    try:
        names = sorted(p.name for p in folder.iterdir())
    except OSError as error:
        raise UnreadableError(
            f"cannot be read: {error.strerror or error}", where=folder, hint="give a session's .parts folder"
        ) from error
    files: dict[str, dict[str, list[Path]]] = {}
    for name in names:
        if name.endswith(".json") and _STEM.match(stem := name.removesuffix(".json")):
            files.setdefault(stem, {})
        elif (m := _FILE.match(name)) and (only is None or m["table"] in only):
            files.setdefault(m["stem"], {}).setdefault(m["table"], []).append(folder / name)
    by_start = sorted(files, key=lambda stem: [int(n) for n in reversed(stem.split("-"))])
    return tuple(_read_process(folder, stem, files[stem]) for stem in by_start)


def _read_process(folder: Path, stem: str, files: Mapping[str, list[Path]]) -> ProcessParts:
    import pyarrow as pa

    pid = stem_pid(stem)
    notes: list[str] = []
    try:
        facts = json.loads((folder / f"{stem}.json").read_text())
        if not isinstance(facts, dict):
            raise ValueError("not an object")
    except (OSError, ValueError):
        facts = {}
        notes.append(f"process {pid}: its description is missing or damaged")
    tables: dict[str, pa.Table] = {}
    for table, paths in files.items():
        read = [_read_stream(path, table, notes, pid) for path in sorted(paths, key=_file_number)]
        found = [t for t in read if t is not None]
        if found and table == "loop_counts":
            tables[table] = _total_counts(found)
        elif found:
            tables[table] = pa.concat_tables(found).unify_dictionaries().combine_chunks()
    if "notes" in tables:
        notes += [str(t) for t in tables.pop("notes")["text"].to_pylist()]
    opened, alive = tables.pop("open_ranges", None), tables.pop("alive", None)
    if opened is not None:
        _add_cut_ranges(tables, opened, alive, notes, pid)
    return ProcessParts(stem, pid, facts, tables, tuple(notes))


def _read_stream(path: Path, table: str, notes: list[str], pid: int) -> pa.Table | None:
    """All whole batches of a stream; None if there is none."""
    import pyarrow as pa

    batches: list[Any] = []
    try:
        schema = part_schema(table)
        with pa.memory_map(str(path)) as mapped:
            # a copy: the mapping may outlive a file that its session removes
            content = pa.py_buffer(mapped.read())
        stream = pa.ipc.open_stream(content)
        while True:
            batches.append(stream.read_next_batch())
    except StopIteration:
        pass
    except UsageError:
        notes.append(f"process {pid}: an unknown table {table} was ignored")
        return None
    except (pa.ArrowException, OSError, ValueError):
        rows = sum(b.num_rows for b in batches)
        notes.append(f"process {pid}: {table} ends within a batch (killed?); {rows} rows were kept")
    if not batches:
        return None
    found = pa.Table.from_batches(batches)
    if found.schema.names != schema.names:
        notes.append(f"process {pid}: {table} has other columns than expected and was ignored")
        return None
    return found


def _file_number(path: Path) -> int:
    return int("0" + path.suffixes[0][1:]) if len(path.suffixes) > 1 else 1


def _add_cut_ranges(
    tables: dict[str, pa.Table], opened: pa.Table, alive: pa.Table | None, notes: list[str], pid: int
) -> None:
    """Add to ``ranges`` those that were once seen open and whose end was never written."""
    import pyarrow as pa
    import pyarrow.compute as pc

    keys = ["thread", "start_ns", "name"]
    flat = opened.set_column(
        opened.schema.get_field_index("name"), "name", opened["name"].cast(pa.string())
    ).append_column("row", pa.array(range(opened.num_rows), pa.int64()))
    last_ns = [pc.max(opened["start_ns"]).as_py()]
    if alive is not None:
        last_ns.append(pc.max(alive["time_ns"]).as_py())
    if (closed := tables.get("ranges")) is not None:
        last_ns.append(pc.max(closed["end_ns"]).as_py())
        closed = closed.filter(pc.is_in(closed["start_ns"], flat["start_ns"]))
        ended = pa.table({k: closed[k].cast(flat.schema.field(k).type) for k in keys})
        flat = flat.join(ended, keys=keys, join_type="left anti")
    if not flat.num_rows:
        return
    kept = opened.take(flat["row"].combine_chunks())
    end = pa.array([max(last_ns)] * kept.num_rows, pa.int64())
    cut = kept.append_column("end_ns", end).append_column("cut", pa.array([True] * kept.num_rows))
    cut = cut.select(part_schema("ranges").names).cast(part_schema("ranges"))
    notes.append(
        f"process {pid}: {kept.num_rows} range(s) were open when it ended: cut at its last sign of life"
    )
    known = [tables["ranges"]] if "ranges" in tables else []
    tables["ranges"] = pa.concat_tables([*known, cut]).unify_dictionaries().combine_chunks()


def _total_counts(files: list[pa.Table]) -> pa.Table:
    """The last count of each path in each file (a recorder counts from 0), added up."""
    import pyarrow as pa

    total: dict[str, int] = {}
    for counts in files:
        last = dict(zip(counts["path"].to_pylist(), counts["count"].to_pylist(), strict=True))
        for path, count in last.items():
            total[path] = total.get(path, 0) + count
    path = pa.array(list(total), pa.string()).dictionary_encode()
    return pa.table([path, pa.array(list(total.values()), pa.int64())], schema=part_schema("loop_counts"))
