from __future__ import annotations

import json
import random

import pytest

from rlprof.analysis.trials import Rule
from rlprof.overlap.quota.levels import Level
from rlprof.overlap.quota.search import QuotaSearch, quota_search
from rlprof.overlap.quota.validation import validate

LEVELS = tuple(Level(k, k) for k in range(1, 6))


def found(best: int) -> QuotaSearch:
    return quota_search(LEVELS, lambda level: 1.0 + abs(level.setting - best))


def test_a_quota_that_complete_runs_confirm_is_kept() -> None:
    runs: list[int] = []

    def run(level: Level) -> float:
        runs.append(level.setting)
        return 10.0 + abs(level.setting - 3)

    answer = validate(found(3), run)
    assert (answer.chosen, answer.kept) == (LEVELS[2], False)
    assert runs[:4] == [5, 3, 3, 5]  # interleaved
    assert "gain 16.7%" in answer.reason
    json.dumps(answer.to_dict(), allow_nan=False)


@pytest.mark.parametrize(("effect", "said"), [(2.0, "are slower"), (0.0, "gain nothing that counts")])
def test_q0_is_kept_unless_complete_runs_beat_it(effect: float, said: str) -> None:
    random.seed(0)
    answer = validate(found(3), lambda level: 10.0 + (effect if level == LEVELS[2] else 0) + random.random())
    assert (answer.chosen, answer.kept) == (LEVELS[4], True)
    assert said in answer.reason


def test_a_gain_below_the_least_is_not_worth_a_quota() -> None:
    rule = Rule(least_gain_frac=0.05)
    assert validate(found(3), lambda level: 10.0 if level == LEVELS[4] else 9.9, rule).kept
    assert not validate(found(3), lambda level: 10.0 if level == LEVELS[4] else 9.0, rule).kept


def test_a_search_that_was_cut_short_does_not_speak_for_the_levels_it_did_not_try() -> None:
    asked: list[None] = []

    def spent() -> bool:
        asked.append(None)
        return len(asked) > 1

    search = quota_search(LEVELS, lambda level: 6.0 - level.setting, spent=spent)
    answer = validate(search, lambda _level: pytest.fail("was run"))
    assert answer.kept
    assert answer.reason.startswith(
        "none of the 1 levels tried, of 4 others, was faster; the budget was spent"
    )
    assert validate(found(5), lambda _level: 0.0).reason == "no other level was faster in local trials"


def test_where_the_search_found_nothing_nothing_is_run() -> None:
    answer = validate(found(5), lambda _level: pytest.fail("was run"))
    assert (answer.chosen, answer.kept, answer.comparison) == (LEVELS[4], True, None)
