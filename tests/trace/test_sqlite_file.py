"""SQLite files of others are read without a trace in their folder."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

import rlprof
from rlprof.errors import UnreadableError
from tests.trace.nsys_made import export, kernel, push_pop


def _logged(folder: Path) -> Path:
    """A capture in write-ahead mode, one range of which is in the log only."""
    path = export(
        folder / "made.sqlite",
        {
            "META_DATA_EXPORT": [{"name": "EXPORT_SCHEMA_VERSION", "value": "3.20.3"}],
            "NVTX_EVENTS": [push_pop(0, 500, "iteration")],
            "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(0, 100)],
        },
    )
    con = sqlite3.connect(path)
    con.execute("PRAGMA journal_mode = wal")
    con.execute(
        "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid) VALUES (0, 9, 59, 'late', 1)"
    )
    con.commit()
    copy = folder / "copied"
    copy.mkdir()
    for name in ("made.sqlite", "made.sqlite-wal"):  # before the connection merges them
        shutil.copy(folder / name, copy / name)
    con.close()
    return copy / "made.sqlite"


def test_without_a_log_nothing_is_put_beside_the_file(tmp_path: Path) -> None:
    path = _logged(tmp_path)
    path.with_name("made.sqlite-wal").unlink()
    before = {p: p.read_bytes() for p in path.parent.iterdir()}
    assert rlprof.read(path).ranges["name"].to_list() == ["iteration"]
    assert {p: p.read_bytes() for p in path.parent.iterdir()} == before


def test_what_is_in_the_log_only_counts_too(tmp_path: Path) -> None:
    path = _logged(tmp_path)
    assert sorted(rlprof.read(path).ranges["name"]) == ["iteration", "late"]


def test_a_locked_file_is_told_from_a_damaged_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = export(
        tmp_path / "made.sqlite", {"META_DATA_EXPORT": [{"name": "EXPORT_SCHEMA_VERSION", "value": "3"}]}
    )
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **{**k, "timeout": 0}))
    con = connect(path, isolation_level=None)
    con.execute("BEGIN EXCLUSIVE")
    with pytest.raises(UnreadableError, match=r"locked.*close the program"):
        rlprof.read(path)
    con.close()
