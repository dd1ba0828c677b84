"""Results of optimisations that were written before: what is read, and what is refused in a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlprof.errors import UnreadableError
from rlprof.overlap.optimize.result import FORMAT, VERSION
from rlprof.overlap.optimize.stored_result import NEEDED, read_result
from tests.conftest import ROOT

WHOLE: dict[str, Any] = {"format": FORMAT, "version": VERSION, **dict.fromkeys(NEEDED)}


def test_a_folder_and_its_file_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps(WHOLE))
    assert read_result(tmp_path) == read_result(tmp_path / "result.json") == WHOLE


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read"),
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "is no result of an optimisation"),
        ('{"command": "optimize"}', "is no result of an optimisation"),
        (json.dumps(WHOLE | {"version": VERSION + 1}), f"is of version {VERSION + 1}"),
        (json.dumps({k: v for k, v in WHOLE.items() if k != "decisions"}), "lacks decisions"),
    ],
)
def test_what_cannot_be_read_is_said_with_the_file(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "result.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UnreadableError, match=says) as raised:
        read_result(path)
    assert raised.value.where == str(path)
    assert raised.value.hint


def test_the_searches_that_are_kept_are_small_and_can_be_read() -> None:
    kept = sorted((ROOT / "benchmarks" / "results" / "searches").glob("*.json"))
    assert {p.stem for p in kept} >= {"optimize_libero", "optimize_mujoco_warp_search"}
    for path in kept:
        assert path.stat().st_size < 100_000
        found = read_result(path)
        assert found["decisions"][0]["what"] == "started"
        assert "ended" in {entry["what"] for entry in found["decisions"]}
        assert found["timelines"]["before"]
