"""Words around numbers and names of types."""

from __future__ import annotations

import pytest

from rlprof.errors import UsageError
from rlprof.expect import MOST_SEED, expect, expect_seed
from rlprof.text import counted, with_article


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 faults"), (1, "1 fault"), (2, "2 faults"), (1200, "1,200 faults")]
)
def test_nouns_follow_their_number(number: int, text: str) -> None:
    assert counted(number, "fault") == text
    assert counted(number, "entry", "entries").endswith(" entry" if number == 1 else " entries")


@pytest.mark.parametrize("noun", ["update", "object", "int", "OrderedDict", "ExecutionNode", "array", "item"])
def test_an_before_a_vowel(noun: str) -> None:
    assert with_article(noun) == f"an {noun}"


@pytest.mark.parametrize("noun", ["read", "refresh", "dict", "NoneType", "unit", "use", "UserDict", "list"])
def test_a_before_a_consonant(noun: str) -> None:
    assert with_article(noun) == f"a {noun}"


def test_another_type_is_told_with_what_to_give() -> None:
    expect(3, int, "the number", "give a number")
    with pytest.raises(UsageError, match=r"^the number is a str\. Next: give a number$"):
        expect("3", int, "the number", "give a number")


def test_seeds_are_whole_numbers_of_64_bits() -> None:
    for seed in (0, 7, MOST_SEED):
        expect_seed(seed)
    for seed, said in (
        (-1, "the seed is negative"),
        (MOST_SEED + 1, "the seed has 65 bits"),
        (10**5000, "the seed has 16610 bits"),
        (1.0, "the seed is a float"),
        (True, "the seed is a bool"),
        (None, "the seed is a NoneType"),
    ):
        with pytest.raises(UsageError) as told:
            expect_seed(seed)
        assert str(told.value) == f"{said}. Next: give a whole number from 0 to 2**64 - 1"
