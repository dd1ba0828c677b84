from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import rlprof
from rlprof.cli.results import FILES
from tests.cli.conftest import Cli

DOCUMENT_KEYS = [
    "schema_version",
    "trace",
    "activity_source",
    "iteration",
    "sample_period_s",
    "windows",
    "low_activity",
    "notes",
]
WINDOW_KEYS = [
    "node",
    "process",
    "device",
    "leaf",
    "measured_count",
    "coverage",
    "count",
    "total_s",
    "mean_s",
    "self_s",
    "sm_activity",
    "tier",
    "score_s",
    "eligible",
    "rank",
]


def strict(text: str) -> Any:
    """Parse JSON, refusing NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    return json.loads(text, parse_constant=refuse)


def test_the_json_document_has_the_stated_shape(cli: Cli, capture: Path) -> None:
    result = cli("analyze", capture, "--format", "json")
    assert (result.code, result.err) == (0, "")
    document = strict(result.out)
    assert list(document) == DOCUMENT_KEYS
    assert {"path", "format", "duration_s", "devices", "processes"} <= set(document["trace"])
    assert document["trace"]["path"] == capture.name
    assert all(list(w) == WINDOW_KEYS for w in document["windows"])
    assert all(list(r) == ["scope", "threshold", "fraction"] for r in document["low_activity"])
    assert document["sample_period_s"] == pytest.approx(5e-4, rel=0.1)
    report = rlprof.read(capture).windows()
    assert len(document["windows"]) == report.frame.height  # all nodes, whatever --top is


def test_top_limits_the_table_and_not_the_data(cli: Cli, capture: Path) -> None:
    table = cli("analyze", capture, "--top", "1").out
    assert "1 of" in table
    rows = list(csv.DictReader(io.StringIO(cli("analyze", capture, "--top", "1", "--format", "csv").out)))
    assert list(rows[0]) == WINDOW_KEYS
    assert len(rows) == rlprof.read(capture).windows().frame.height


def test_numbers_of_csv_and_json_are_those_of_python(cli: Cli, capture: Path) -> None:
    frame = rlprof.read(capture).windows().frame
    from_csv = pl.read_csv(io.StringIO(cli("analyze", capture, "--format", "csv").out), schema=frame.schema)
    assert from_csv.equals(frame)
    windows = strict(cli("analyze", capture, "--format", "json").out)["windows"]
    assert [w["sm_activity"] for w in windows] == frame["sm_activity"].to_list()


def test_markdown_is_a_table_with_whole_paths(cli: Cli, capture: Path) -> None:
    text = cli("analyze", capture, "--format", "markdown").out
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len({line.count("|") for line in rows}) == 1
    best = rlprof.read(capture).windows().frame["node"][0]
    assert f"`{best}`" in text
    assert "\n\\* fill first" in text  # a star at the start of a line would make it an item of a list


def test_thresholds_and_iteration_reach_the_analysis(cli: Cli, capture: Path) -> None:
    document = strict(cli("analyze", capture, "--format", "json").out)
    name = document["windows"][1]["node"]
    chosen = strict(cli("analyze", capture, "--iteration", name, "--format", "json").out)
    assert chosen["iteration"]["name"] == name
    strict_ones = strict(
        cli("analyze", capture, "--tau-abs", "100s", "--tau-rel", "1", "--format", "json").out
    )
    assert sum(w["eligible"] for w in strict_ones["windows"]) < sum(
        w["eligible"] for w in document["windows"]
    )


def test_an_unknown_iteration_names_those_there_are(cli: Cli, capture: Path) -> None:
    result = cli("analyze", capture, "--iteration", "no such range")
    assert result.code == 2
    assert "no such range" in result.err
    assert result.err.count("\n") == 1


def test_a_window_cuts_the_capture(cli: Cli, capture: Path) -> None:
    meta = rlprof.read(capture).meta
    middle = (meta.start_ns + meta.end_ns) // 2
    document = strict(cli("analyze", capture, "--window", f":{middle}ns", "--format", "json").out)
    assert document["trace"]["duration_s"] == pytest.approx((middle - meta.start_ns) / 1e9)
    outside = cli("analyze", capture, "--window", "1e6:2e6")
    assert outside.code == 2
    assert outside.err.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [("--tau-abs", "1"), ("--tau-abs", "-1ms"), ("--tau-rel", "2"), ("--window", "5"), ("--anchor", "x")],
)
def test_a_bad_value_is_told_before_anything_is_read(cli: Cli, option: str, value: str) -> None:
    result = cli("analyze", "/no/such/file", option, value)
    assert result.code == 2
    assert option in result.err


def test_two_ranks(cli: Cli, data: Path) -> None:
    files = sorted((data / "kineto").glob("two_ranks*"))
    document = strict(cli("analyze", *files, "--format", "json").out)
    assert document["trace"]["format"] == "merged"
    assert {p["rank"] for p in document["trace"]["processes"]} == {0, 1}
    assert any("clocks are aligned" in n for n in document["notes"])
    none = strict(cli("analyze", *files, "--rank-from", "none", "--format", "json").out)
    assert {p["rank"] for p in none["trace"]["processes"]} == {None}


def test_one_rank_twice_names_both_files(cli: Cli, data: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json.gz"
    other.write_bytes((data / "kineto" / "no_gpu_rank.json.gz").read_bytes())
    first = data / "kineto" / "two_ranks_rank-0.json.gz"
    result = cli("analyze", first, other)
    assert result.code == 2
    assert first.name in result.err
    assert other.name in result.err


def test_nothing_but_the_result_reaches_a_pipe(process: Cli, capture: Path) -> None:
    result = process("analyze", capture, "--format", "json")
    assert result.err == ""
    assert "\x1b" not in result.out
    strict(result.out)
    assert "\x1b" not in process("analyze", capture).out


def test_a_terminal_sees_a_progress_bar(capture: Path) -> None:
    code = f"import pty; pty.spawn([{sys.executable!r}, '-m', 'rlprof', 'analyze', {str(capture)!r}])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm"},
        check=True,
    )
    assert b"\x1b[" in done.stdout  # a bar moves the cursor
    assert b"reading" in done.stdout


# --- --out ---------------------------------------------------------------------------------------------


def test_out_writes_four_files_with_the_same_numbers(cli: Cli, capture: Path, tmp_path: Path) -> None:
    out = tmp_path / "report é"
    result = cli("analyze", capture, "--out", out, "--format", "json")
    assert result.code == 0
    strict(result.out)  # where they were written is said on standard error
    assert sorted(p.name for p in out.iterdir()) == sorted(FILES)
    assert strict((out / "windows.json").read_text()) == strict(result.out)
    frame = rlprof.read(capture).windows().frame
    assert pl.read_parquet(out / "windows.parquet").equals(frame)
    assert pl.read_csv(out / "windows.csv", schema=frame.schema).equals(frame)
    page = (out / "report.html").read_text()
    assert frame["node"][0].split("/")[-1] in page
    assert 'src="http' not in page  # self-contained
    assert 'href="http' not in page


def test_out_keeps_what_else_is_in_the_folder(cli: Cli, capture: Path, tmp_path: Path) -> None:
    (tmp_path / "windows.csv").write_text("of an earlier run")
    (tmp_path / "mine.txt").write_text("mine")
    assert cli("analyze", capture, "--out", tmp_path).code == 0
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert (tmp_path / "windows.csv").read_text().startswith("node,")
    assert {p.name for p in tmp_path.iterdir()} - {"cache"} == {"mine.txt", *FILES}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: p.write_text("x"), "is a file"),
        (lambda p: None, "does not exist"),
        (lambda p: (p / "windows.csv").mkdir(parents=True), "is a folder"),
    ],
)
def test_out_that_cannot_be_written_is_told_first(cli: Cli, tmp_path: Path, make: Any, said: str) -> None:
    out = tmp_path / ("out" if said != "does not exist" else "no/such/out")
    make(out)
    # told before the capture is even looked for
    result = cli("analyze", "/no/such/capture", "--out", out)
    assert result.code == 2
    assert said in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("existing", [False, True])
def test_a_failure_while_writing_leaves_nothing(
    cli: Cli, capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: bool
) -> None:
    from rlprof.report import html

    def fail(*arguments: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    out = tmp_path / "out"
    if existing:
        out.mkdir()
        (out / "windows.csv").write_text("of an earlier run")
    before = sorted(p.name for p in tmp_path.rglob("*") if "cache" not in p.parts)
    monkeypatch.setattr(html, "write_report", fail)
    result = cli("analyze", capture, "--out", out)
    assert result.code == 2
    assert "disk is full" in result.err
    assert result.out == ""
    assert sorted(p.name for p in tmp_path.rglob("*") if "cache" not in p.parts) == before
    if existing:
        assert (out / "windows.csv").read_text() == "of an earlier run"
