"""Lines of the log say which number is what."""

from __future__ import annotations

from typing import Any

import pytest

from rlprof.analysis.trials import Rule, compare
from rlprof.overlap.optimize.log import lines

#: The machine becomes slower: most candidates beat the reference beside them, and their median is larger.
DRIFTING = [(1.0, 0.9), (1.1, 1.0), (1.2, 1.25), (1.5, 1.4), (1.19, 1.6)]
ENTRIES: dict[str, dict[str, Any]] = {
    "compared": {"steps": "s", "comparison": "chunk", "outcome": "dropped"},
    "validated": {"round": 1, "outcome": "dropped"},
    "lever": {"lever": "l", "before": 1, "value": 2, "outcome": "dropped", "reason": "no gain that counts"},
}


@pytest.mark.parametrize("what", ENTRIES)
def test_a_gain_of_pairs_is_told_from_medians_of_times(what: str) -> None:
    found = compare(DRIFTING, Rule(most_pairs=5))
    assert found.gain_s > 0
    assert found.candidate.median_s > found.reference.median_s
    (line,) = lines({"what": what, "result": found.to_dict(), **ENTRIES[what]})
    assert "medians 1.19 s -> 1.25 s; gain pair by pair +8.4% (5 pairs)" in line
    assert line.endswith("dropped")
