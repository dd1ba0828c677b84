"""Decisions of several sessions: each is told once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlprof.errors import OutputError
from rlprof.overlap.optimize.decisions import each_once, log_session, read_entries
from rlprof.overlap.optimize.levers import AGAIN
from rlprof.overlap.optimize.log import DecisionLog, text
from rlprof.overlap.optimize.store import Store


def test_what_a_session_says_once_more_is_left_away() -> None:
    first = [
        {"at_s": 0.0, "what": "started"},
        {"at_s": 1.0, "what": "ranking", "targets": ["a"]},
        {"at_s": 2.0, "what": "not measured", "reason": "no room"},
        {"at_s": 2.5, "what": "not measured", "reason": "no room"},
        {"at_s": 3.0, "what": "lever", "lever": "workers", "reason": "better, clear"},
        {"at_s": 3.0, "what": "ended", "reason": "interrupted"},
    ]
    second = [
        {"at_s": 0.1, "session": 2, "what": "session", "number": 2},
        {"at_s": 0.2, "session": 2, "what": "lever", "lever": "workers", "reason": "better, clear" + AGAIN},
        {"at_s": 0.3, "session": 2, "what": "started"},
        {"at_s": 0.4, "session": 2, "what": "ranking", "targets": ["a"], "reused": True},
        *({"at_s": 0.5 + n, "session": 2, "what": "not measured", "reason": "no room"} for n in range(3)),
        {"at_s": 9.0, "session": 2, "what": "ranking", "targets": ["b"]},
        {"at_s": 9.5, "session": 2, "what": "ended", "reason": "done"},
    ]
    third = [
        {"at_s": 0.1, "session": 3, "what": "session", "number": 3},
        {"at_s": 0.3, "session": 3, "what": "not measured", "reason": "no room"},
        {"at_s": 0.4, "session": 3, "what": "ranking", "targets": ["b"]},
        {"at_s": 0.5, "session": 3, "what": "ranking", "targets": ["c"]},
    ]
    found = each_once([*first, *second, *third])
    assert found == [
        *first, second[0], second[2], second[6], second[7], second[8], third[0], third[3]
    ]  # fmt: skip


def test_lines_of_a_log_that_are_damaged_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    assert read_entries(path) == []
    log = DecisionLog(path)
    log.add("ended", reason="interrupted", steps=[])
    log.add("of a later version", facts=3)
    with path.open("ab") as file:
        file.write(b'\xff\n3\n{"no": "what"}\n{"what": 3}\n{"what": "ran')
    assert read_entries(path) == log.entries
    with pytest.raises(OutputError, match="cannot be read"):
        read_entries(tmp_path)


@pytest.mark.parametrize(
    "entry",
    [
        {"what": "lever"},
        {"what": "ranking", "round": 1, "time_s": 1.0, "source": "off", "windows": 3, "targets": []},
        {"what": "ended", "reason": "done", "steps": None},
        {"what": ["ended"]},
    ],
)
def test_entries_that_say_what_no_decision_does_are_passed_over(tmp_path: Path, entry: object) -> None:
    """As of another version: the log could not be told to people, nor the result be written."""
    path = tmp_path / "decisions.jsonl"
    log = DecisionLog(path)
    log.add("ended", reason="interrupted", steps=[])
    with path.open("a") as file:
        file.write(json.dumps(entry) + "\n" + "[" * 100_000 + "\n")
    assert read_entries(path) == log.entries
    assert text(read_entries(path)) == log.text()


def test_a_line_that_was_cut_off_takes_no_entry_with_it(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    path.write_text('{"what": "ran')
    for reason in ("interrupted", "done"):
        DecisionLog(path).add("ended", reason=reason, steps=[])
    assert [entry["reason"] for entry in read_entries(path)] == ["interrupted", "done"]
    assert path.read_text().count("\n") == 3


def test_a_session_that_goes_on_says_with_what_and_why_not(tmp_path: Path) -> None:
    path = tmp_path / "store.jsonl"
    first = Store(path)
    first.begin({"driver": "575"})
    log = DecisionLog()
    log_session(first, log)
    assert log.entries == []
    first.put("a", "other", 1)
    second = Store(path)
    second.begin({"driver": "580"})
    log_session(second, log)
    said = text(log.entries)
    assert said.startswith("session 2, ")
    assert "1 measurement is there, none of them of sessions under the same conditions\n" in said
    assert "measurements of session 1 are not reused: driver 580 was 575\n" in said
    log.add("other")
    assert [e["session"] for e in log.entries] == [2, 2]
    second.put("b", "other", 1)
    second.put("c", "other", 1)
    third = Store(path)
    third.begin({"driver": "580"})
    log_session(third, log)
    of_them = "3 measurements are there, 2 of them of sessions under the same conditions"
    assert of_them in text(log.entries[-1:])
    assert "3 measurements are there\n" in text(
        [{k: v for k, v in log.entries[-1].items() if k != "reusable"}]
    )
