"""The .rlprof format: exact round trip, pruning, and every kind of damage."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from rlprof.errors import DamagedTraceError, NotATraceError, OutputError, UnreadableError
from rlprof.trace.archive import ARROW_SCHEMAS, archive_meta, write_archive
from rlprof.trace.native import arrow_table, read_rlprof, write_rlprof
from rlprof.trace.tables import SCHEMAS, TABLE_NAMES, TableName, empty
from rlprof.trace.trace import Loaded, Trace, TraceMeta

# ---- random traces --------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def values(dtype: pl.DataType) -> st.SearchStrategy[Any]:
    if isinstance(dtype, pl.Enum):
        return st.sampled_from(dtype.categories.to_list())
    if isinstance(dtype, (pl.String, pl.Categorical)):
        return TEXTS
    if isinstance(dtype, pl.Float64):
        return st.floats(allow_nan=False)
    if isinstance(dtype, pl.Boolean):
        return st.booleans()
    if isinstance(dtype, pl.List):
        return st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3)
    bits, low = {pl.Int64: (63, -(2**63)), pl.Int32: (31, -(2**31)), pl.UInt32: (32, 0)}[type(dtype)]
    return st.integers(low, 2**bits - 1)


@st.composite
def frames(draw: Any, name: TableName) -> pl.DataFrame:
    height = draw(st.integers(0, 8))
    columns = {
        c: pl.Series(
            c, draw(st.lists(st.none() | values(t), min_size=height, max_size=height)), dtype=t, strict=False
        )
        for c, t in SCHEMAS[name].items()
    }
    return pl.DataFrame(columns)


def trace_of(tables: Mapping[TableName, pl.DataFrame], meta: TraceMeta | None = None, **more: Any) -> Trace:
    def loader(frame: pl.DataFrame) -> Callable[..., Loaded]:
        return lambda columns: Loaded(frame if columns is None else frame.select(list(columns)))

    meta = meta or TraceMeta("kineto", ("a.json",), 0, 100)
    return Trace(meta, {n: loader(f) for n, f in tables.items()}, **more)


metas = st.builds(
    TraceMeta,
    format=st.just("rlprof"),
    files=st.lists(st.from_regex(r"\A[a-z]{1,8}\.sqlite\Z"), max_size=3).map(tuple),
    start_ns=st.integers(-(2**62), 2**62),
    end_ns=st.integers(-(2**62), 2**62),
    utc_origin_ns=st.none() | st.integers(0, 2**62),
    clock_uncertainty_ns=st.integers(0, 10**9),
    graph_mode=st.none() | st.sampled_from(["graph", "node"]),
    sampling_hz=st.none() | st.floats(1, 1e6),
    product=st.none() | TEXTS,
    schema_version=st.none() | TEXTS,
    traced=st.none() | st.frozensets(st.sampled_from(["cuda", "nvtx", "gpu_metrics"])),
    overhead_ns=st.none() | st.integers(0, 2**62),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.data(), held=st.sets(st.sampled_from(TABLE_NAMES)), meta=metas, notes=st.lists(TEXTS, max_size=2)
)
def test_round_trip_is_exact(tmp_path, data, held, meta, notes):
    tables = {name: data.draw(frames(name), label=name) for name in TABLE_NAMES if name in held}
    missing = {name: f"no {name}" for name in TABLE_NAMES if name not in held}
    given_trace = trace_of(tables, meta, missing=missing, base_notes=tuple(dict.fromkeys(notes)))
    path = write_rlprof(given_trace, tmp_path / "t.rlprof", force=True)
    back = read_rlprof(path)
    assert back.meta == replace(meta, files=(back.meta.files[0],))
    assert back.meta.files[0].endswith(".rlprof")
    assert back.notes == given_trace.notes
    assert back.missing == missing
    assert set(back.loaders) == held
    for name, frame in tables.items():
        got = back.table(name)
        assert got.schema == frame.schema
        assert_frame_equal(got, frame, categorical_as_str=True, check_exact=True)


def test_stored_types_are_those_of_the_tables():
    assert set(ARROW_SCHEMAS) == set(TABLE_NAMES)
    for name in TABLE_NAMES:
        assert ARROW_SCHEMAS[name].names == list(SCHEMAS[name])
        assert arrow_table(empty(name), name).schema == ARROW_SCHEMAS[name]


RANGES = pl.DataFrame(
    {
        "start_ns": [0, 10, 20],
        "end_ns": [100, 20, 30],
        "name": ["iteration", "policy", "policy"],
        "style": ["push_pop"] * 3,
        "process": [0] * 3,
        "thread": [1] * 3,
        "domain": [""] * 3,
        "cut": [False, False, True],
    },
    schema_overrides=SCHEMAS["ranges"],
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_rlprof(trace_of({"ranges": RANGES}), tmp_path / "t.rlprof")


def rewrite(
    path: Path,
    *,
    meta: Callable[[dict[str, Any]], Any] = lambda m: m,
    ranges: Callable[[pa.Table], pa.Table] | None = None,
    compress: bool = False,
    extra: Mapping[str, bytes] | None = None,
    leave_out: tuple[str, ...] = (),
) -> None:
    """Write an archive again with something changed, through zipfile alone."""
    with zipfile.ZipFile(path) as old:
        members = {n: old.read(n) for n in old.namelist() if n not in leave_out}
    if "meta.json" in members:
        document = json.loads(members["meta.json"])
        for facts in document["tables"].values():
            if ranges is not None or extra:
                del facts["footer_crc32"]  # other writers need not give it
        members["meta.json"] = json.dumps(meta(document) or document).encode()
    if ranges is not None:
        sink = pa.BufferOutputStream()
        pq.write_table(ranges(pq.read_table(pa.BufferReader(members["ranges.parquet"]))), sink)
        members["ranges.parquet"] = sink.getvalue().to_pybytes()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED) as new:
        for name, content in {**members, **(extra or {})}.items():
            new.writestr(name, content)


# ---- writing --------------------------------------------------------------------------------------------


def test_notes_that_arise_while_writing_are_kept(tmp_path):
    loaders = {"ranges": lambda columns: Loaded(RANGES, ("1 range was open at the end",))}
    trace = Trace(TraceMeta("kineto", ("a",), 0, 1), loaders, base_notes=("first",))
    back = read_rlprof(write_rlprof(trace, tmp_path / "t.rlprof"))
    assert back.notes == ("first", "1 range was open at the end")


def test_members_are_stored_and_can_be_read_by_other_tools(path):
    with zipfile.ZipFile(path) as archive:
        assert {i.compress_type for i in archive.infolist()} == {zipfile.ZIP_STORED}
        assert archive.testzip() is None
        frame = pq.read_table(pa.BufferReader(archive.read("ranges.parquet"))).to_pandas()
    assert frame["name"].tolist() == ["iteration", "policy", "policy"]
    assert frame["end_ns"].tolist() == [100, 20, 30]


def test_no_folder_of_the_capture_is_stored(tmp_path):
    files = ("/home/alice/run/a.json", r"C:\Users\alice\b.json", "c.json")
    trace = trace_of({"ranges": RANGES}, TraceMeta("kineto", files, 0, 1))
    path = write_rlprof(trace, tmp_path / "t.rlprof")
    assert b"alice" not in path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        assert json.loads(archive.read("meta.json"))["files"] == ["a.json", "b.json", "c.json"]
    assert read_rlprof(path).meta.files == ("t.rlprof",)


def test_one_trace_makes_the_same_bytes_each_time(path, tmp_path):
    again = write_rlprof(trace_of({"ranges": RANGES}), tmp_path / "again.rlprof")
    assert again.read_bytes() == path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        assert {i.date_time[0] for i in archive.infolist()} == {1980}


def test_dictionary_holds_used_values_only(tmp_path):
    many = pl.Series(
        [f"other {i}" for i in range(1000)], dtype=pl.Categorical
    )  # fills the pool of categories
    table = arrow_table(RANGES, "ranges")
    assert len(many) == 1000
    assert table.column("name").chunk(0).dictionary.to_pylist() == ["iteration", "policy"]


def test_existing_file_is_kept_unless_forced(path):
    before = path.read_bytes()
    with pytest.raises(OutputError, match="exists already"):
        write_rlprof(trace_of({}), path)
    assert path.read_bytes() == before
    write_rlprof(trace_of({}), path, force=True)
    assert not read_rlprof(path).loaders


@pytest.mark.parametrize("error", [RuntimeError("half way"), KeyboardInterrupt()])
def test_failure_half_way_leaves_nothing_and_keeps_the_old_file(path, error):
    def fails(columns: Any) -> Loaded:
        raise error

    before = path.read_bytes()
    with pytest.raises(type(error)):
        write_rlprof(Trace(TraceMeta("kineto", ("a",), 0, 1), {"ranges": fails}), path, force=True)
    assert [p.name for p in path.parent.iterdir()] == ["t.rlprof"]
    assert path.read_bytes() == before


def test_disk_full(tmp_path, monkeypatch):
    def full(self: Any, data: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rlprof.trace.archive._Sink.write", full)
    with pytest.raises(OutputError, match="the disk is full; nothing was written"):
        write_rlprof(trace_of({"ranges": RANGES}), tmp_path / "t.rlprof")
    assert list(tmp_path.iterdir()) == []


def test_folder_that_does_not_exist(tmp_path):
    with pytest.raises(OutputError, match=r"does not exist.*mkdir -p"):
        write_rlprof(trace_of({}), tmp_path / "a" / "t.rlprof")
    with pytest.raises(OutputError, match="is a folder"):
        write_rlprof(trace_of({}), tmp_path, force=True)


def test_writer_needs_no_polars(tmp_path):
    script = """
import sys
sys.modules["polars"] = None  # any import of it fails
import pyarrow as pa
from pathlib import Path
from rlprof.trace.archive import ARROW_SCHEMAS, archive_meta, write_archive
rows = {"source": ["sm_counters"] * 2, "device": [0, 0], "start_ns": [0, 10], "end_ns": [10, 20],
        "active_frac": [0.25, 1.0]}
table = pa.table(rows)
meta = archive_meta(start_ns=0, end_ns=20, files=["live"])
write_archive(Path(sys.argv[1]), lambda: meta, {"activity": table})
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "t.rlprof")], check=True, cwd=Path.cwd())
    trace = read_rlprof(tmp_path / "t.rlprof")
    assert trace.samples["active_frac"].to_list() == [0.25, 1.0]
    assert dict(trace.samples.schema) == SCHEMAS["activity"]


# ---- reading --------------------------------------------------------------------------------------------


def test_columns_not_asked_for_are_not_read(tmp_path):
    # destroy the pages of one column: only a reader of that column may notice
    path = tmp_path / "t.rlprof"
    rows = pl.concat([RANGES] * 2000).with_columns(thread=pl.int_range(6000, dtype=pl.Int64) * 7919 % 104729)
    write_rlprof(trace_of({"ranges": rows}), path)
    with zipfile.ZipFile(path) as archive:
        content = archive.read("ranges.parquet")
    chunk = pq.ParquetFile(pa.BufferReader(content)).metadata.row_group(0).column(5)
    assert chunk.path_in_schema == "thread"
    at = path.read_bytes().index(content) + chunk.data_page_offset + chunk.total_compressed_size // 2
    damaged = bytearray(path.read_bytes())
    damaged[at : at + 16] = bytes(b ^ 0xFF for b in damaged[at : at + 16])
    path.write_bytes(bytes(damaged))
    trace = read_rlprof(path)
    assert trace.table("ranges", ["start_ns", "name"])["name"].to_list()[:2] == ["iteration", "policy"]
    with pytest.raises(DamagedTraceError, match="table ranges cannot be read"):
        trace.table("ranges", ["thread"])


def test_open_trace_survives_replacing_the_file(path):
    trace = read_rlprof(path)
    write_rlprof(trace_of({}), path, force=True)
    assert len(trace.ranges) == 3


def test_compressed_members_are_read_too(path):
    rewrite(path, compress=True)
    assert_frame_equal(read_rlprof(path).ranges, RANGES, categorical_as_str=True)


def test_other_writers_may_use_plain_text_and_other_widths(path):
    def plain(table: pa.Table) -> pa.Table:
        names = table.schema.names
        table = table.set_column(names.index("name"), "name", table["name"].cast(pa.string()))
        return table.set_column(names.index("thread"), "thread", table["thread"].cast(pa.int16()))

    rewrite(path, ranges=plain)
    assert_frame_equal(read_rlprof(path).ranges, RANGES, categorical_as_str=True)


def test_unknown_members_tables_and_columns_are_ignored_with_a_note(path):
    def add(document: dict[str, Any]) -> None:
        document["tables"]["energy"] = {"rows": 1}
        document["colour"] = "blue"

    rewrite(
        path,
        meta=add,
        ranges=lambda t: t.append_column("colour", pa.array([1, 2, 3])),
        extra={"energy.parquet": b"?", "readme.txt": b"hello"},
    )
    trace = read_rlprof(path)
    assert_frame_equal(trace.ranges, RANGES, categorical_as_str=True)
    text = " | ".join(trace.notes)
    assert "unknown column(s) colour" in text
    assert "table energy is not known" in text
    assert "1 unknown member(s)" in text


def test_version_from_the_future(path):
    rewrite(path, meta=lambda m: {**m, "format_version": 2, "producer": "rlprof 9.0"})
    with pytest.raises(NotATraceError, match=r"version 2.*rlprof 9\.0.*reads up to version 1.*upgrade"):
        read_rlprof(path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"start_ns": "0"}, "start_ns"),
        ({"end_ns": None}, "end_ns"),
        ({"end_ns": True}, "end_ns"),
        ({"files": "a.json"}, "files"),
        ({"traced": [1]}, "traced"),
        ({"tables": {"ranges": 3}}, "tables"),
        ({"notes": [None]}, "notes"),
        ({"format_version": "1"}, "format_version"),
        ({"tables": {"ranges": {"rows": 4}}}, "3 rows, meta.json says 4"),
        ({"tables": {"ranges": {"rows": 3}, "api": {"rows": 1}}}, r"api\.parquet is missing"),
    ],
)
def test_wrong_meta(path, change, says):
    rewrite(path, meta=lambda m: {**m, **change})
    with pytest.raises(DamagedTraceError, match=says):
        read_rlprof(path)


def test_optional_facts_may_be_left_out(path):
    rewrite(path, meta=lambda m: {k: v for k, v in m.items() if v is not None})
    assert read_rlprof(path).meta == TraceMeta("rlprof", (path.name,), 0, 100)


@pytest.mark.parametrize(
    ("ranges", "says"),
    [
        (lambda t: t.drop_columns(["thread"]), "table ranges has no column thread"),
        (lambda t: t.drop_columns(["name"]), "table ranges has no column name"),
        (lambda t: t.set_column(0, "start_ns", pa.array([0.5, 1, 2])), r"ranges\.start_ns is double"),
        (lambda t: t.set_column(2, "name", pa.array([1, 2, 3])), r"ranges\.name is int64"),
    ],
)
def test_wrong_columns(path, ranges, says):
    rewrite(path, ranges=ranges)
    with pytest.raises(DamagedTraceError, match=says):
        read_rlprof(path)


@pytest.mark.parametrize(
    "ranges",
    [
        lambda t: t.set_column(3, "style", pa.array(["push_pop", "sideways", "push_pop"])),
        lambda t: t.set_column(4, "process", pa.array([0, -1, 0])),
    ],
)
def test_values_outside_a_columns_type(path, ranges):
    rewrite(path, ranges=ranges)
    trace = read_rlprof(path)
    with pytest.raises(DamagedTraceError, match="table ranges cannot be read"):
        _ = trace.ranges


def test_parquet_member_that_is_no_parquet(path):
    rewrite(path, leave_out=("ranges.parquet",), extra={"ranges.parquet": b"PAR1 not really"})
    with pytest.raises(DamagedTraceError, match="table ranges cannot be read"):
        read_rlprof(path)


def test_member_of_another_file(path, tmp_path):
    other = write_rlprof(trace_of({"ranges": RANGES.reverse()}), tmp_path / "other.rlprof")
    with zipfile.ZipFile(other) as archive:
        swapped = archive.read("ranges.parquet")
    with zipfile.ZipFile(path) as archive:
        document = archive.read("meta.json")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ranges.parquet", swapped)
        archive.writestr("meta.json", document)
    with pytest.raises(DamagedTraceError, match="table ranges is damaged"):
        read_rlprof(path)


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9, 0.999])
def test_truncated(path, keep):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    with pytest.raises(DamagedTraceError, match="truncated"):
        read_rlprof(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_is_harmless_or_an_error_of_ours(tmp_path, at, bit):
    good = tmp_path / "good.rlprof"
    if not good.exists():
        write_rlprof(trace_of({"ranges": RANGES}), good)
    content = bytearray(good.read_bytes())
    content[int(at * len(content))] ^= 1 << bit
    bad = tmp_path / "bad.rlprof"
    bad.write_bytes(bytes(content))
    try:
        trace = read_rlprof(bad)
        ranges = trace.table("ranges")
    except (DamagedTraceError, NotATraceError):
        return
    if trace.has("ranges"):
        assert ranges["start_ns"].to_list() == RANGES["start_ns"].to_list()
        assert ranges["end_ns"].to_list() == RANGES["end_ns"].to_list()


@pytest.mark.parametrize(
    ("content", "error", "says"),
    [
        (b"", NotATraceError, "empty"),
        (b"SQLite format 3\0", NotATraceError, "not an .rlprof file"),
        (b"PK\x03\x04 and no more", DamagedTraceError, "truncated"),
    ],
)
def test_not_an_archive(tmp_path, content, error, says):
    path = tmp_path / "t.rlprof"
    path.write_bytes(content)
    with pytest.raises(error, match=says):
        read_rlprof(path)


@pytest.mark.parametrize(
    ("members", "error", "says"),
    [
        ({"a.txt": b"x"}, NotATraceError, r"without meta\.json"),
        ({"meta.json": b"{}"}, NotATraceError, "format rlprof"),
        ({"meta.json": b"[1]"}, NotATraceError, "format rlprof"),
        ({"meta.json": b"{"}, DamagedTraceError, "not JSON"),
    ],
)
def test_zip_of_something_else(tmp_path, members, error, says):
    path = tmp_path / "t.rlprof"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(error, match=says):
        read_rlprof(path)


def test_absent_or_a_folder(tmp_path):
    with pytest.raises(UnreadableError, match="cannot be opened"):
        read_rlprof(tmp_path / "absent.rlprof")
    with pytest.raises(UnreadableError, match="cannot be opened"):
        read_rlprof(tmp_path)


def test_low_level_writer_checks_types(tmp_path):
    table = pa.table({c: pa.array(["x"]) for c in ARROW_SCHEMAS["activity"].names})
    with pytest.raises(pa.ArrowInvalid):
        write_archive(tmp_path / "t.rlprof", lambda: archive_meta(start_ns=0, end_ns=1), {"activity": table})
    assert list(tmp_path.iterdir()) == []


def test_examples_of_the_documentation_run(tmp_path, monkeypatch, capsys):
    root = Path(__file__).parents[2]
    text = (root / "docs" / "rlprof_format.md").read_text()
    examples = [block.split("```")[0] for block in text.split("```python\n")[1:]]
    assert len(examples) == 2
    monkeypatch.chdir(root)
    exec(examples[0], {})
    assert capsys.readouterr().out == "20.872624353 s, 65146 kernels\n"
    monkeypatch.chdir(tmp_path)
    exec(examples[1], {})
    assert read_rlprof(tmp_path / "live.rlprof").samples["active_frac"].to_list() == [0.25]


def test_documentation_names_every_table_column_and_key():
    text = (Path(__file__).parents[2] / "docs" / "rlprof_format.md").read_text()
    for name in TABLE_NAMES:
        assert f"**`{name}`**" in text
        part = text.split(f"**`{name}`**")[1].split("\n**")[0]
        assert all(f"`{c}`" in part for c in SCHEMAS[name])
    for key in archive_meta(start_ns=0, end_ns=1):
        assert f"`{key}`" in text
