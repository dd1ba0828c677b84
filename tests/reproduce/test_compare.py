from __future__ import annotations

import pytest

from rlprof.reproduce.compare import Compared, amount, comparison_frame, comparison_text
from rlprof.unavailable import Unavailable

ABSENT = Unavailable("not measured")


@pytest.mark.parametrize(
    ("ours", "paper", "unit", "difference"),
    [
        (110.0, 100.0, "tokens/s", "+10.0%"),
        (41.5, 60.0, "%", "-18.5 points"),
        (0.981, 0.99, "1", "-0.009"),
        (3.0, 0.0, "s", "+3"),
        ("A2, A1", "A2, A1", "", "same"),
        ("no", "yes", "", "differs"),
        (0.3, "below 1", "%", ""),
        (ABSENT, 1.0, "s", "cannot tell"),
        (1.0, ABSENT, "s", "cannot tell"),
        (-0.0, 0.0, "%", "+0 points"),
    ],
)
def test_differences(ours: object, paper: object, unit: str, difference: str) -> None:
    assert Compared("x", unit, ours, paper).difference == difference  # type: ignore[arg-type]


def test_text_numbers_causes_once_and_a_missing_number_is_never_zero() -> None:
    rows = [
        Compared("a", "s", 1234.6, 1000.0, "clock"),
        Compared("b", "s", ABSENT, 2.0, "clock"),
        Compared("c", "s", 1.0, 1.0),
    ]
    text = comparison_text(rows)
    assert text.count("clock") == 1
    assert "[1] clock" in text
    assert "1,235" in text
    frame = comparison_frame(rows)
    assert frame["ours"].to_list() == ["1,235", "unavailable", "1"]
    assert frame["cause"].to_list() == ["clock", "clock", ""]


def test_amounts() -> None:
    assert amount(0.25, 100) == 25
    assert isinstance(amount(None), Unavailable)
