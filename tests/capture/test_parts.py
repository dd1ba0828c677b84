"""The files of a running session: whole batches, whatever happens to the process or the disk."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.capture import parts
from rlprof.capture.part_reader import read_parts
from rlprof.capture.parts import PartWriter, part_schema, process_stem, write_process
from rlprof.errors import UnreadableError, UsageError
from rlprof.trace.archive import ARROW_SCHEMAS


def rows(first: int, count: int) -> dict[str, Any]:
    """`count` ranges whose start is their number."""
    numbers = list(range(first, first + count))
    return {
        "start_ns": numbers,
        "end_ns": [n + 1 for n in numbers],
        "name": [f"name {n % 7}" for n in numbers],
        "style": ["push_pop"] * count,
        "thread": [1] * count,
        "domain": ["rlprof"] * count,
        "cut": [False] * count,
    }


def starts(folder: Path) -> list[int]:
    [part] = read_parts(folder)
    return part.tables["ranges"]["start_ns"].to_pylist() if "ranges" in part.tables else []


def test_batches_come_back_as_written(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path, "ranges")
    assert writer.write(rows(0, 3))
    assert writer.write({})
    assert writer.write(rows(3, 500))
    write_process(tmp_path, {"rank": 3})
    [part] = read_parts(tmp_path)  # the writer is still open
    assert (part.pid, part.facts["rank"], part.notes) == (os.getpid(), 3, ())
    table = part.tables["ranges"]
    assert table.schema.names == part_schema("ranges").names
    want = rows(0, 503)
    assert table.to_pydict() == {name: want[name] for name in table.schema.names}
    size = writer.path.stat().st_size
    writer.close()
    writer.close()
    assert writer.path.stat().st_size > size
    assert starts(tmp_path) == list(range(503))


def test_only_the_wanted_tables_are_read(tmp_path: Path) -> None:
    PartWriter(tmp_path, "ranges").write(rows(0, 3))
    PartWriter(tmp_path, "alive").write({"time_ns": [7]})
    PartWriter(tmp_path, "activity").path.write_bytes(b"not read")
    write_process(tmp_path, {})
    [part] = read_parts(tmp_path, only=("ranges",))
    assert (list(part.tables), part.notes) == (["ranges"], ())
    assert "activity" in "".join(read_parts(tmp_path)[0].notes)


def test_a_name_is_written_once(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path, "notes")
    ranges = PartWriter(tmp_path, "ranges")
    dictionary: list[str] = []
    for i in range(50):
        dictionary.append(f"a very long and special name {i}")
        name = pa.DictionaryArray.from_arrays(pa.array([i], pa.int32()), pa.array(dictionary))
        ranges.write({**rows(i, 1), "name": name})
    writer.close()
    ranges.close()
    content = ranges.path.read_bytes()
    # batches are compressed one by one, so the text of a name may not be found as such: size tells
    assert len(content) < 50 * 1200
    [part] = read_parts(tmp_path)
    assert part.tables["ranges"]["name"].to_pylist() == dictionary


def test_columns_that_are_not_given_are_null(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path, "kernels")
    writer.write({"start_ns": [1], "end_ns": [2], "name": ["k"]})
    [part] = read_parts(tmp_path)
    row = part.tables["kernels"].to_pylist()[0]
    assert (row["name"], row["stream"], row["full_name"]) == ("k", None, None)


@pytest.mark.parametrize("table", sorted({*ARROW_SCHEMAS, *parts.PART_TABLES} - {"processes"}))
def test_every_table_can_be_written_and_has_no_process(tmp_path: Path, table: str) -> None:
    schema = part_schema(table)
    assert "process" not in schema.names
    texts = (pa.types.is_dictionary, pa.types.is_string)
    row = {f.name: ["x"] if any(t(f.type) for t in texts) else [0] for f in schema}
    assert PartWriter(tmp_path, table).write({k: [False] if k == "cut" else v for k, v in row.items()})
    assert len(read_parts(tmp_path)) == 1


def test_wrong_tables_and_columns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no part is called 'processes'"):
        PartWriter(tmp_path, "processes")
    writer = PartWriter(tmp_path, "alive")
    with pytest.raises(UsageError, match=r"unknown column\(s\) nope. Next: columns are time_ns"):
        writer.write({"nope": [1]})
    with pytest.raises(UsageError, match="columns of lengths"):
        PartWriter(tmp_path, "loop_counts").write({"path": ["a"], "count": []})
    assert not list(tmp_path.iterdir())


@settings(max_examples=40, deadline=None)
@given(counts=st.lists(st.integers(1, 50), min_size=1, max_size=6), cut_frac=st.floats(0, 1))
def test_a_file_cut_anywhere_gives_its_whole_batches(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], cut_frac: float
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    writer = PartWriter(folder, "ranges")
    ends, total = [], 0
    for count in counts:
        writer.write(rows(total, count))
        total += count
        ends.append((writer.path.stat().st_size, total))
    writer.close()
    content = writer.path.read_bytes()
    size = round(cut_frac * len(content))
    writer.path.write_bytes(content[:size])
    assert starts(folder) == list(range(max((n for end, n in ends if end <= size), default=0)))


def test_a_truncated_file_is_noted(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path, "ranges", stem="77-1")
    for i in range(3):
        writer.write(rows(10 * i, 10))
    write_process(tmp_path, {}, stem="77-1")
    content = writer.path.read_bytes()
    writer.path.write_bytes(content[:-1])
    [part] = read_parts(tmp_path)
    assert part.notes == ("process 77: ranges ends within a batch (killed?); 20 rows were kept",)
    writer.path.write_bytes(b"")
    [part] = read_parts(tmp_path)
    assert (part.tables, part.notes) == (
        {},
        ("process 77: ranges ends within a batch (killed?); 0 rows were kept",),
    )


def test_strangers_in_the_folder_are_ignored_and_damage_is_noted(tmp_path: Path) -> None:
    for name in ("README", "session.json", "1-2.json.tmp", "x-y-ranges.arrows"):
        (tmp_path / name).write_text("hello")
    assert read_parts(tmp_path) == ()
    (tmp_path / "5-6.json").write_text("[1]")
    (tmp_path / "5-6-widgets.arrows").write_text("hello")
    (tmp_path / "5-6-ranges.arrows").write_text("hello, this is no stream at all")
    [part] = read_parts(tmp_path)
    assert (part.pid, part.facts, part.tables) == (5, {}, {})
    assert [n.split(": ")[1].split(" (")[0] for n in part.notes] == [
        "its description is missing or damaged",
        "ranges ends within a batch",
        "an unknown table widgets was ignored",
    ]


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="cannot be read"):
        read_parts(tmp_path / "absent")
    (tmp_path / "file").touch()
    with pytest.raises(UnreadableError):
        read_parts(tmp_path / "file")


def test_processes_come_by_their_start(tmp_path: Path) -> None:
    for stem in ("9-100", "10-99", "7-1000"):
        write_process(tmp_path, {}, stem=stem)
    assert [p.stem for p in read_parts(tmp_path)] == ["10-99", "9-100", "7-1000"]


def test_the_stem_is_the_same_all_through_a_process_and_holds_no_name() -> None:
    assert process_stem() == process_stem()
    assert [part.isdigit() for part in process_stem().split("-")] == [True, True]


def test_a_second_writer_of_a_table_does_not_spoil_the_first(tmp_path: Path) -> None:
    a, b = PartWriter(tmp_path, "ranges"), PartWriter(tmp_path, "ranges")
    a.write(rows(0, 5))
    b.write(rows(5, 5))
    a.write(rows(10, 5))
    a.close()
    b.close()
    assert sorted(starts(tmp_path)) == list(range(15))
    one, two = PartWriter(tmp_path, "loop_counts"), PartWriter(tmp_path, "loop_counts")
    one.write({"path": ["p", "q"], "count": [1, 1]})
    one.write({"path": ["p"], "count": [7]})
    two.write({"path": ["p"], "count": [100]})
    [part] = read_parts(tmp_path)
    assert part.tables["loop_counts"].to_pydict() == {"path": ["p", "q"], "count": [107, 1]}


def opened(first: int, count: int) -> dict[str, Any]:
    return {k: v for k, v in rows(first, count).items() if k not in ("end_ns", "cut")}


def test_ranges_that_never_ended_are_cut_at_the_last_sign_of_life(tmp_path: Path) -> None:
    PartWriter(tmp_path, "open_ranges").write(opened(0, 4))
    PartWriter(tmp_path, "alive").write({"time_ns": [50, 90]})
    closed = rows(2, 2)
    PartWriter(tmp_path, "ranges").write(closed)
    write_process(tmp_path, {})
    [part] = read_parts(tmp_path)
    found = part.tables["ranges"].select(["start_ns", "end_ns", "cut"]).to_pylist()
    assert [tuple(r.values()) for r in found] == [(2, 3, False), (3, 4, False), (0, 90, True), (1, 90, True)]
    assert set(part.tables) == {"ranges"}
    assert [n.split(": ", 1)[1] for n in part.notes] == [
        "2 range(s) were open when it ended: cut at its last sign of life"
    ]


def test_without_any_closed_range_the_open_ones_are_kept(tmp_path: Path) -> None:
    PartWriter(tmp_path, "open_ranges").write(opened(5, 2))
    [part] = read_parts(tmp_path)
    assert part.tables["ranges"]["end_ns"].to_pylist() == [6, 6]
    assert part.tables["ranges"]["cut"].to_pylist() == [True, True]


# --- a disk that is full, a folder that cannot be written


class FullDisk:
    """os.write that runs out of space after some bytes, until there is room again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
        self.room = room
        self._write = os.write
        monkeypatch.setattr(parts.os, "write", self)

    def __call__(self, fd: int, data: bytes) -> int:
        if self.room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = self._write(fd, data[: self.room])
        self.room -= done
        return done


def test_a_full_disk_loses_rows_and_counts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FullDisk(monkeypatch, room=10**6)
    writer = PartWriter(tmp_path, "ranges")
    assert writer.write(rows(0, 10))
    disk.room = 100
    assert not writer.write(rows(10, 10))
    assert writer.error is not None
    assert writer.error.errno == errno.ENOSPC
    assert starts(tmp_path) == list(range(10))
    assert not writer.write(rows(20, 10))
    assert writer.lost_rows == 20
    disk.room = 10**6
    assert writer.write(rows(30, 10))  # the batch that failed is written first
    assert (writer.lost_rows, writer.error) == (10, None)
    writer.close()
    assert starts(tmp_path) == [*range(20), *range(30, 40)]


def test_closing_on_a_full_disk_counts_what_was_pending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FullDisk(monkeypatch, room=0)
    writer = PartWriter(tmp_path, "ranges")
    assert not writer.write(rows(0, 10))
    writer.close()
    assert writer.lost_rows == 10
    assert starts(tmp_path) == []


def test_a_folder_that_is_gone_or_cannot_be_written_loses_rows(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path / "absent", "ranges")
    assert not writer.write(rows(0, 3))
    assert (writer.lost_rows, type(writer.error)) == (3, FileNotFoundError)
    writer.close()


def test_abandoning_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path, "ranges")
    writer.write(rows(0, 3))
    content = writer.path.read_bytes()
    writer.abandon()
    writer.write(rows(3, 3))
    writer.close()
    assert writer.path.read_bytes() == content


def test_the_description_is_whole_or_absent(tmp_path: Path) -> None:
    path = write_process(tmp_path, {"label": "rank 1"})
    assert json.loads(path.read_text()) == {"pid": os.getpid(), "label": "rank 1"}
    write_process(tmp_path, {"label": "rank 2"})
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    with pytest.raises(OSError, match="No such file"):
        write_process(tmp_path / "absent", {})
