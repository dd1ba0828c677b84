from __future__ import annotations

import gzip
import json
import os
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlprof.errors import DamagedTraceError, NotATraceError, UnreadableError
from rlprof.trace import formats
from rlprof.trace.detect import Capture, captures, detect, natural_key
from tests.trace.nsys_made import export, push_pop

EVENT = {"ph": "X", "name": "step", "cat": "user_annotation", "pid": 1, "tid": 1, "ts": 1, "dur": 2}


def sqlite_with(path: Path, *tables: str) -> Path:
    con = sqlite3.connect(path)
    for table in tables:
        con.execute(f"CREATE TABLE '{table}' (a INTEGER)")
    con.commit()
    con.close()
    return path


def made_nsys_sqlite(path: Path) -> Path:
    rows = {"META_DATA_EXPORT": [{"name": "a", "value": "b"}], "NVTX_EVENTS": [push_pop(0, 1, "step")]}
    return export(path, rows)


def made_rlprof(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("meta.json", "{}")
    return path


def text(content: str | bytes) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return make


def zipped(content: str | bytes) -> Callable[[Path], Path]:
    return text(gzip.compress(content if isinstance(content, bytes) else content.encode()))


KNOWN: dict[str, tuple[Callable[[Path], Path], str]] = {
    "nsys_report": (text(b"NVIDIA Tegra Profiler Report 36398880.\n" + bytes(600)), "nsys-report"),
    "nsys_sqlite": (made_nsys_sqlite, "nsys-sqlite"),
    "schema_before_2_9": (
        lambda p: sqlite_with(p, "StringIds", "CUPTI_ACTIVITY_KIND_KERNEL"),
        "nsys-sqlite",
    ),
    "schema_3_1": (lambda p: sqlite_with(p, "EXPORT_META_DATA"), "nsys-sqlite"),
    "rlprof": (made_rlprof, "rlprof"),
    "kineto": (text(json.dumps({"schemaVersion": 1, "traceEvents": [EVENT]})), "kineto"),
    "kineto_indented": (text(json.dumps({"schemaVersion": 1, "traceEvents": [EVENT]}, indent=2)), "kineto"),
    "kineto_gzip": (zipped(json.dumps({"traceEvents": [EVENT]})), "kineto"),
    "kineto_list": (text(json.dumps([EVENT, EVENT])), "kineto"),
    "kineto_list_never_closed": (text("[\n" + json.dumps(EVENT) + ",\n"), "kineto"),
    "kineto_utf8_bom": (text(b"\xef\xbb\xbf" + json.dumps({"traceEvents": [EVENT]}).encode()), "kineto"),
    "kineto_events_after_a_long_head": (
        text(json.dumps({"note": "x" * 300_000, "traceEvents": [EVENT]})),
        "kineto",
    ),
    "kineto_cut_short": (text(json.dumps({"traceEvents": [EVENT] * 9})[:-30]), "kineto"),
    "kineto_gzip_cut_short": (
        text(gzip.compress(json.dumps({"traceEvents": [EVENT] * 999}).encode())[:-20]),
        "kineto",
    ),
    "jsonl": (text("\n".join(json.dumps(EVENT) for _ in range(3)) + "\n"), "chrome-jsonl"),
    "jsonl_one_line": (text(json.dumps(EVENT)), "chrome-jsonl"),
    "jsonl_gzip": (zipped(json.dumps(EVENT) + "\n" + json.dumps(EVENT)), "chrome-jsonl"),
    "jsonl_last_line_cut": (text(json.dumps(EVENT) + "\n" + json.dumps(EVENT)[:20]), "chrome-jsonl"),
}


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("suffix", ["", ".txt", ".sqlite", ".json"])
def test_a_format_is_found_by_content_whatever_the_name(tmp_path: Path, name: str, suffix: str) -> None:
    make, format = KNOWN[name]
    assert detect(make(tmp_path / f"trace é 1{suffix}")) == format


NOT_TRACES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "empty": (text(b""), "empty (0 bytes)"),
    "text": (text("hello\nworld\n"), "looks like text"),
    "csv": (text("a,b,c\n1,2,3\n"), "comma-separated text"),
    "html": (text("<!DOCTYPE html><html></html>"), "web page"),
    "lfs_pointer": (text("version https://git-lfs.github.com/spec/v1\noid sha256:1\n"), "Git LFS pointer"),
    "zeros": (text(bytes(4096)), "zero bytes only"),
    "binary": (text(bytes(range(256)) * 8), "binary data"),
    "hdf5": (text(b"\x89HDF\r\n\x1a\n" + bytes(99)), "HDF5"),
    "ncu_report": (text(b"NVR\0" + bytes(99)), "Nsight Compute report"),
    "pickle": (text(b"\x80\x04\x95" + bytes(99)), "Python pickle"),
    "gzip_of_text": (zipped("hello\n"), "gzip of text"),
    "gzip_of_nothing": (zipped(""), "gzip of nothing"),
    "gzip_of_report": (zipped(b"NVIDIA Tegra Profiler Report 1.\n"), "gzip of an Nsight Systems capture"),
    "json_object": (text('{"a": 1, "b": 2}'), "keys a, b and no traceEvents"),
    "json_of_many_lines": (text('{"a": 1,\n "b": 2}'), "without traceEvents"),
    "json_list": (text("[1, 2, 3]"), "no trace events"),
    "json_list_of_objects": (text('[{"a": 1}]'), "no trace events"),
    "json_empty_list": (text("[]"), "empty JSON list"),
    "json_cut_short": (text('{"a": {"b"'), "cut short"),
    "jsonl_records": (text('{"a": 1}\n{"a": 2}\n'), "JSON lines with the keys a"),
    "areal_request_records": (text('{"request_id": 1}\n{"request_id": 2}\n'), "request records"),
    "dlprof_database": (lambda p: sqlite_with(p, "dlprof_version", "op_instances"), "DLProf"),
    "visual_studio_index": (
        lambda p: sqlite_with(p, "code_items", "code_item_kinds", "projects"),
        "Visual Studio",
    ),
    "sqlite_of_others": (lambda p: sqlite_with(p, "users", "orders"), "2 table(s) are orders, users"),
    "sqlite_without_tables": (lambda p: sqlite_with(p, "a") and _drop(p), "holds no table"),
    "zip_of_others": (lambda p: _zip(p, "a.json", "b.json"), "it holds a.json, b.json"),
}


def _drop(path: Path) -> Path:
    con = sqlite3.connect(path)
    con.execute("DROP TABLE a")
    con.commit()
    con.close()
    return path


def _zip(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "x")
    return path


@pytest.mark.parametrize("name", NOT_TRACES)
def test_another_file_is_named_for_what_it_is(tmp_path: Path, name: str) -> None:
    make, said = NOT_TRACES[name]
    path = make(tmp_path / "x.sqlite")
    with pytest.raises(NotATraceError) as caught:
        detect(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("keep", [17, 60, 600, 0.5, -1])
def test_a_sqlite_file_that_is_cut_short_is_damaged(tmp_path: Path, keep: float) -> None:
    whole = made_nsys_sqlite(tmp_path / "whole.sqlite").read_bytes()
    length = int(len(whole) * keep) if isinstance(keep, float) else keep
    path = tmp_path / "cut.sqlite"
    path.write_bytes(whole[:length])
    with pytest.raises(DamagedTraceError, match="cut short"):
        detect(path)


def test_a_sqlite_file_with_a_damaged_schema_is_damaged(tmp_path: Path) -> None:
    raw = bytearray(made_nsys_sqlite(tmp_path / "x.sqlite").read_bytes())
    raw[100:4000] = b"\xff" * 3900
    (tmp_path / "x.sqlite").write_bytes(raw)
    with pytest.raises(DamagedTraceError):
        detect(tmp_path / "x.sqlite")


def test_an_archive_that_is_cut_short_is_damaged(tmp_path: Path) -> None:
    raw = made_rlprof(tmp_path / "x.rlprof").read_bytes()
    (tmp_path / "x.rlprof").write_bytes(raw[:40])
    with pytest.raises(DamagedTraceError, match="zip archive"):
        detect(tmp_path / "x.rlprof")


def test_a_gzip_file_of_rubbish_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "x.json.gz").write_bytes(b"\x1f\x8b" + b"\xff" * 100)
    with pytest.raises(DamagedTraceError, match="gzip"):
        detect(tmp_path / "x.json.gz")


@pytest.mark.parametrize(("suffix", "format"), [(".parquet", "nsys-parquet"), (".arrow", "nsys-arrow")])
def test_an_export_folder_is_found_by_the_tables_in_it(tmp_path: Path, suffix: str, format: str) -> None:
    folder = tmp_path / "any name"
    folder.mkdir()
    for name in ("StringIds", "NVTX_EVENTS"):
        pq.write_table(pa.table({"a": [1]}), folder / f"{name}{suffix}")
    assert detect(folder) == format
    assert captures(folder).captures == (Capture(folder, format),)  # type: ignore[arg-type]


def test_a_folder_of_traces_is_one_capture_a_file_in_order_of_rank(tmp_path: Path) -> None:
    for rank in (10, 2, 1):
        (tmp_path / f"traces-r{rank}.jsonl").write_text(json.dumps(EVENT) + "\n")
    (tmp_path / "requests-r1.jsonl").write_text('{"request_id": 1}\n{"request_id": 2}\n')
    (tmp_path / "readme.md").write_text("notes")
    (tmp_path / "empty.log").touch()
    (tmp_path / ".hidden").touch()
    found = captures(tmp_path)
    assert set(found.left_aside) == {"requests-r1.jsonl", "readme.md", "empty.log"}
    assert [c.path.name for c in found.captures] == [f"traces-r{r}.jsonl" for r in (1, 2, 10)]
    with pytest.raises(NotATraceError):
        detect(tmp_path)


def test_an_empty_trace_in_a_folder_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "traces-r0.jsonl").write_text(json.dumps(EVENT) + "\n")
    (tmp_path / "traces-r1.jsonl").write_text("")
    with pytest.raises(NotATraceError, match=r"traces-r1.*empty"):
        captures(tmp_path)


def test_a_folder_of_reports_says_which_to_give(tmp_path: Path) -> None:
    for name in ("a.nsys-rep", "b.nsys-rep"):
        (tmp_path / name).write_bytes(b"NVIDIA Tegra Profiler Report 1.\n")
    (tmp_path / "t.json").write_text(json.dumps([EVENT]))
    with pytest.raises(NotATraceError, match=r"3 capture\(s\).*a\.nsys-rep"):
        captures(tmp_path)


@pytest.mark.parametrize("inside", [[], ["a.txt", "b.txt"], ["sub/"]])
def test_a_folder_without_captures_says_what_it_holds(tmp_path: Path, inside: list[str]) -> None:
    for name in inside:
        (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).write_text("x")
    with pytest.raises(NotATraceError, match="folder") as caught:
        captures(tmp_path)
    assert all(name.rstrip("/") in str(caught.value) for name in inside)


def test_a_parquet_export_of_rlprof_is_told_from_a_capture(tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text("{}")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "ranges.parquet")
    with pytest.raises(NotATraceError, match="export by rlprof"):
        captures(tmp_path)


def test_what_is_no_file_is_refused_without_hanging(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").write_text("x")
    said = {
        tmp_path / "pipe": "named pipe",
        Path(os.devnull): "a device",
        tmp_path / "link": "symbolic link",
        tmp_path / "loop": "cannot be read",
        tmp_path / "none": "no such file",
        tmp_path / "file" / "x": "part of this path is a file",
        tmp_path / ("n" * 300): "cannot be read",
        tmp_path / "nul\0": "cannot be read",
        tmp_path / "latin\udcff.sqlite": "no UTF-8",
    }
    for path, words in said.items():
        with pytest.raises(UnreadableError, match=words):
            detect(path)


def test_a_file_without_permission_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = text("{}")(tmp_path / "x.json")

    def refuse(self: Path, *args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UnreadableError, match="no permission"):
        detect(path)


def test_only_the_head_of_a_big_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "big.json"
    with path.open("wb") as file:
        file.write(b'{"traceEvents": [' + json.dumps(EVENT).encode())
        file.truncate(8 << 30)  # sparse
    read = 0
    for module in ("detect", "detect_json"):
        monkeypatch.setattr(f"rlprof.trace.{module}.HEAD_BYTES", 4096)
    real = Path.open

    def counting(self: Path, *args: object, **kwargs: object) -> object:
        file = real(self, *args, **kwargs)  # type: ignore[arg-type]
        inner = file.read

        def count(size: int = -1) -> object:
            nonlocal read
            data = inner(size)
            read += len(data)
            return data

        file.read = count  # type: ignore[method-assign]
        return file

    monkeypatch.setattr(Path, "open", counting)
    assert detect(path) == "kineto"
    assert 0 < read <= 2 * formats.JSON_HEAD_BYTES


def test_numbers_in_names_sort_by_value() -> None:
    assert sorted(["r10", "r9", "r1x", "r"], key=natural_key) == ["r", "r1x", "r9", "r10"]
