"""Studies: computed once, resumed where they were, stored tables used only where they are the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rlprof.errors import OutputError
from rlprof.reproduce.errors import RawTableError
from rlprof.reproduce.raw import RawTable, about_path, read_raw, write_raw
from rlprof.reproduce.study import Study, obtain, shipped_path, stored_table
from rlprof.unavailable import Unavailable


class Counted:
    """A study of three cases that counts how often each was computed; one may interrupt."""

    def __init__(self, interrupt: str = "", stale: str | None = None, **parameters: Any) -> None:
        self.calls: list[str] = []
        self.interrupt = interrupt
        self.study = Study(
            "made/numbers",
            "smoke",
            0,
            parameters,
            {name: self.case(name) for name in ("a", "b", "c")},
            stale=lambda _: stale,
        )

    def case(self, name: str) -> Callable[[], list[dict[str, Any]]]:
        def rows() -> list[dict[str, Any]]:
            if name == self.interrupt:
                raise KeyboardInterrupt
            self.calls.append(name)
            return [{"value": ord(name), "none": None}, {"value": ord(name) + 0.5, "none": "x, y"}]

        return rows


def test_a_table_is_computed_once_and_says_where_it_comes_from(tmp_path: Path) -> None:
    counted = Counted()
    first = obtain(counted.study, tmp_path / "out")
    assert (first.computed, counted.calls) == (3, ["a", "b", "c"])
    frame = first.table.frame
    assert frame["case"].to_list() == ["a", "a", "b", "b", "c", "c"]
    assert frame["value"].to_list() == [97.0, 97.5, 98.0, 98.5, 99.0, 99.5]
    assert frame["none"].to_list() == [None, "x, y"] * 3
    about = first.table.about
    assert {"seed", "preset", "parameters", "machine", "versions", "began", "ended", "sha256"} <= set(about)
    assert (about["rows"], set(about["machine"])) == (6, {"processor", "cores"})
    again = obtain(counted.study, tmp_path / "out")
    assert (again.computed, len(counted.calls)) == (0, 3)
    assert again.table.frame.equals(frame)
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"numbers.smoke.csv", "numbers.smoke.json"}
    assert obtain(counted.study, tmp_path / "out", fresh=True).computed == 3


def test_an_interrupted_study_goes_on_where_it_was(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        obtain(Counted(interrupt="c").study, tmp_path)
    assert not (tmp_path / "numbers.smoke.csv").exists()
    (partial,) = tmp_path.glob(".*.partial.jsonl")
    with partial.open("a") as file:
        file.write('{"case": "c", "rows": [')  # killed while writing
    counted = Counted()
    done = obtain(counted.study, tmp_path)
    assert (done.computed, counted.calls) == (1, ["c"])
    assert done.table.frame["value"].to_list() == [97.0, 97.5, 98.0, 98.5, 99.0, 99.5]
    assert not list(tmp_path.glob(".*"))


def test_two_computations_into_one_folder_keep_out_of_each_others_way(tmp_path: Path) -> None:
    inner = Counted()
    outer = Counted()

    def meanwhile() -> list[dict[str, Any]]:
        assert obtain(inner.study, tmp_path).computed == 3  # nothing of the one at work is taken
        assert len(list(tmp_path.glob(".*.partial.jsonl"))) == 1  # nor is its file removed
        return [{"value": 98.0, "none": None}]

    cases = {**outer.study.cases, "b": meanwhile}
    done = obtain(replace(outer.study, cases=cases), tmp_path)
    assert (done.computed, inner.calls, outer.calls) == (3, ["a", "b", "c"], ["a", "c"])
    assert done.table.frame["value"].to_list() == [97.0, 97.5, 98.0, 99.0, 99.5]
    assert read_raw(tmp_path / "numbers.smoke.csv").frame.equals(done.table.frame)  # whoever was last
    assert {p.name for p in tmp_path.iterdir()} == {"numbers.smoke.csv", "numbers.smoke.json"}


def test_a_study_of_what_was_never_measured_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    study = Study("made/gpu", "h200", 0, {}, {}, reads=True, missing="no run is stored; measure.sh makes one")
    got = obtain(study, tmp_path / "out", checkout=tmp_path)
    assert (got.table.frame.height, got.computed) == (0, 0)
    assert got.table.origin == "no rows: no run is stored; measure.sh makes one"
    shown = stored_table(study, tmp_path)
    assert isinstance(shown, RawTable)
    assert shown.about["missing"] == study.missing
    assert not list(tmp_path.iterdir())


def test_what_was_interrupted_with_other_parameters_is_not_gone_on_with(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        obtain(Counted(interrupt="c", budget=1).study, tmp_path)
    assert obtain(Counted(budget=2).study, tmp_path).computed == 3


def test_a_shipped_table_is_used_if_it_is_the_same(tmp_path: Path) -> None:
    counted = Counted(budget=1)
    path = shipped_path(tmp_path, counted.study)
    assert path == tmp_path / "datasets" / "runs" / "made" / "numbers.smoke.csv"
    obtain(counted.study, path.parent)
    used = obtain(Counted(budget=1).study, tmp_path / "out", checkout=tmp_path)
    assert (used.computed, used.table.path) == (0, path)
    other = obtain(Counted(budget=2).study, tmp_path / "out", checkout=tmp_path)
    assert other.computed == 3
    assert "other parameters" in other.notes[0]


def test_a_stale_or_changed_table_is_computed_again_and_that_is_said(tmp_path: Path) -> None:
    obtain(Counted().study, tmp_path)
    stale = obtain(Counted(stale="the model is another").study, tmp_path)
    assert stale.computed == 3
    assert "the model is another" in stale.notes[0]
    path = tmp_path / "numbers.smoke.csv"
    path.write_text(path.read_text().replace("97.5", "79.5"))
    changed = obtain(Counted().study, tmp_path)
    assert changed.computed == 3
    assert "another than the one its facts are about" in changed.notes[0]


def test_facts_that_are_damaged_or_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    write_raw(path, pl.DataFrame({"a": [1]}), {"seed": 0})
    assert read_raw(path).frame["a"].to_list() == [1]
    about_path(path).write_text("{")
    with pytest.raises(RawTableError, match="no JSON"):
        read_raw(path)
    about_path(path).write_text(json.dumps({"format": "other"}))
    with pytest.raises(RawTableError, match="no facts"):
        read_raw(path)


def test_measurements_are_read_where_no_table_is_stored(tmp_path: Path) -> None:
    counted = Counted()
    study = replace(counted.study, reads=True)
    table = stored_table(study, tmp_path)
    assert isinstance(table, RawTable)
    assert (table.frame.height, counted.calls) == (6, ["a", "b", "c"])
    assert isinstance(stored_table(counted.study, tmp_path), Unavailable)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        obtain(Counted().study, tmp_path / "file" / "out")


@pytest.mark.parametrize(
    "damaged", [b"\xff\xfe\x00", b"3\n", b'{"case": ["a"], "began": "", "seconds": 0, "rows": []}', b'{"ca']
)
def test_lines_of_an_interrupted_run_that_are_damaged(tmp_path: Path, damaged: bytes) -> None:
    counted = Counted()
    study = counted.study
    partial = tmp_path / f".{study.file.removesuffix('.csv')}.{study.key}.partial.jsonl"
    partial.write_bytes(damaged)
    counted.interrupt = "b"
    with pytest.raises(KeyboardInterrupt):
        obtain(study, tmp_path)
    counted.interrupt = ""
    assert obtain(study, tmp_path).computed == 2  # a was kept, behind the line that was cut off
