from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlprof.overlap.quota.clients import Gpu, ProbedLevels
from rlprof.overlap.quota.errors import QuotaError
from rlprof.overlap.quota.levels import Level, distinct
from rlprof.overlap.quota.products import Products, WrongProduct
from rlprof.overlap.quota.report import levels_document, levels_text
from rlprof.unavailable import Unavailable


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


def test_products_are_told_beside_their_levels() -> None:
    gpu = Gpu(0, "Stand-in", "GPU-0", 132, 0, 13000)
    levels = ProbedLevels(gpu, 50, ((50, 66), (76, 100), (100, 132)), "2026-11-30")
    wrong = Products(100, 36, (WrongProduct(176, 1024, 256, "forward", 8, 768, None),))
    looked = [Unavailable("no time"), wrong, Products(132, 36, ())]
    text = levels_text(levels, looked).splitlines()
    assert [line.split("  ")[-1].strip() for line in text[-3:]] == [
        "cannot tell: no time",
        "1 of 36",
        "none of 36",
    ]
    assert "products" not in levels_text(levels)
    document = json.loads(json.dumps(levels_document(levels, looked)))
    assert [level["products"].get("unavailable") for level in document["levels"]] == ["no time", None, None]
    assert document["levels"][1]["products"]["wrong"][0]["unwritten"] == 768
    assert ProbedLevels.from_dict(document) == levels
