"""Lines of the log say which number is what."""

from __future__ import annotations

from typing import Any

import pytest

from rlprof.analysis.trials import Rule, compare, measure_paired
from rlprof.overlap.optimize.log import DecisionLog, lines

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


def test_a_long_comparison_tells_how_far_it_is_and_decides_nothing_by_that() -> None:
    told: list[tuple[float, str]] = []
    now = 0.0

    def took(seconds: float) -> float:
        nonlocal now
        now += seconds
        return seconds

    log = DecisionLog(listen=lambda line: told.append((now, line)), clock=lambda: now)
    log.add("interrupted")
    measure_paired(
        lambda: took(4.0), lambda: took(4.0), Rule(most_pairs=6), clock=lambda: now, watch=log.measuring
    )
    assert told[1:] == [
        (16.0, "  measuring, 2 pairs so far: medians 4 s -> 4 s"),
        (32.0, "  measuring, 4 pairs so far: medians 4 s -> 4 s"),
        (48.0, "  measuring, 6 pairs so far: medians 4 s -> 4 s"),
    ]
    assert [entry["what"] for entry in log.entries] == ["interrupted"]
    log.add("interrupted")
    now += 10.0  # a decision was told in between
    log.measuring(compare([(1.0, 1.0)]))
    assert len(told) == 5
