from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import polars as pl
import pytest

import rlprof
from tests.cli.conftest import Cli


@pytest.mark.parametrize("to", ["chrome", "parquet", "sqlite", "rlprof"])
def test_the_rows_of_a_window_are_exported(cli: Cli, capture: Path, tmp_path: Path, to: str) -> None:
    meta = rlprof.read(capture).meta
    half = (meta.start_ns + meta.end_ns) // 2
    out = tmp_path / f"out.{to}"
    result = cli("export", capture, "--to", to, "--window", f"{half}ns:", "-o", out)
    assert result.code == 0, result.err
    assert result.out == ""
    expected = rlprof.read(capture).between(half, meta.end_ns).table("kernels").height
    assert expected > 0
    if to == "rlprof":
        assert rlprof.read(out).table("kernels").height == expected
    elif to == "parquet":
        assert pl.read_parquet(out / "kernels.parquet").height == expected
    elif to == "sqlite":
        con = sqlite3.connect(out)
        assert con.execute("SELECT count(*) FROM kernels").fetchone() == (expected,)
        con.close()
    else:
        events = json.loads(out.read_bytes())["traceEvents"]
        assert sum(e.get("cat") == "kernel" for e in events) == expected


def test_an_rlprof_file_gives_the_same_ranking(cli: Cli, capture: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.rlprof"
    assert cli("export", capture, "--to", "rlprof", "-o", out).code == 0
    assert rlprof.read(out).windows().frame.equals(rlprof.read(capture).windows().frame)


@pytest.mark.parametrize("to", ["chrome", "parquet", "sqlite", "rlprof"])
def test_what_is_there_is_replaced_only_when_told(cli: Cli, capture: Path, tmp_path: Path, to: str) -> None:
    out = tmp_path / "there"
    out.mkdir() if to == "parquet" else out.write_text("mine")
    result = cli("export", capture, "--to", to, "-o", out)
    assert result.code == 2
    assert "exists already" in result.err
    assert out.is_dir() or out.read_text() == "mine"
    assert cli("export", capture, "--to", to, "-o", out, "--force").code == 0
    assert out.is_dir() or out.read_bytes() != b"mine"
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_several_ranks_become_one_file(cli: Cli, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "both.rlprof"
    assert cli("export", *sorted((data / "kineto").glob("two_ranks*")), "--to", "rlprof", "-o", out).code == 0
    assert rlprof.read(out).table("processes")["rank"].drop_nulls().n_unique() == 2
