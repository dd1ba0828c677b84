from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlprof.overlap.quota.errors import QuotaError
from rlprof.overlap.quota.levels import Level, distinct


def test_levels_of_a_gpu_are_distinct_counts_by_the_smallest_percentage() -> None:
    # as measured on a GPU of 132 SMs
    probed = [(100, 132), (50, 66), (10, 12), (3, 8), (1, 8)]
    assert distinct(probed) == (Level(8, 1), Level(12, 10), Level(66, 50), Level(132, 100))


@given(st.integers(8, 200), st.integers(1, 50), st.integers(1, 8), st.randoms())
def test_every_count_has_one_level(sms: int, step: int, unit: int, random: object) -> None:
    probed = [(p, max(8, sms * p // 100 // unit * unit)) for p in {*range(step, 101, step), 100}]
    random.shuffle(probed)  # type: ignore[attr-defined]
    levels = distinct(probed)
    assert [x.amount for x in levels] == sorted({n for _, n in probed})
    for level in levels:
        assert level.setting == min(p for p, n in probed if n == level.amount)
    assert [Level.from_dict(x.to_dict()) for x in levels] == list(levels)


@pytest.mark.parametrize("probed", [[], [(0, 8)], [(101, 8)], [(50, 0)], [(50, 66), (50, 64)]])
def test_probes_that_cannot_be_are_refused(probed: list[tuple[int, int]]) -> None:
    with pytest.raises(QuotaError):
        distinct(probed)
