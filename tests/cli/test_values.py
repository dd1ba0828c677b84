from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from rlprof.cli.main import app
from rlprof.cli.values import anchor, duration_ns, fraction, window_ns
from rlprof.errors import UsageError
from tests.cli.conftest import Cli


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1ns", 1),
        ("1us", 1_000),
        ("1.5 ms", 1_500_000),
        ("1e3us", 1_000_000),
        (".5s", 500_000_000),
        ("2min", 120_000_000_000),
        ("5µs", 5_000),
        ("-3ms", -3_000_000),
        ("0ms", 0),
        ("1682725898079484us", 1_682_725_898_079_484_000),
    ],
)
def test_durations_have_units(text: str, ns: int) -> None:
    assert duration_ns(text, option="--tau-abs") == ns


@pytest.mark.parametrize("text", ["", "ms", "1", "1h", "1 m s", "one", "1,5ms", "nan ms", "inf s", "1e400s"])
def test_what_is_no_duration_is_an_error_that_names_option_and_units(text: str) -> None:
    with pytest.raises(UsageError, match="--tau-abs") as caught:
        duration_ns(text, option="--tau-abs")
    assert "1ms" in str(caught.value) or "range" in str(caught.value)


@given(st.integers(-(2**61), 2**61))
def test_nanoseconds_are_exact(value: int) -> None:
    assert duration_ns(f"{value}ns", option="x") == value


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("1.5:2", (1_500_000_000, 2_000_000_000)),
        ("100ms:2s", (100_000_000, 2_000_000_000)),
        (":5", (None, 5_000_000_000)),
        ("3:", (3_000_000_000, None)),
        ("-0.5:0", (-500_000_000, 0)),
    ],
)
def test_windows(text: str, window: tuple[int | None, int | None]) -> None:
    assert window_ns(text) == window


@pytest.mark.parametrize("text", ["", ":", "5", "2:1", "1:1", "a:b", "1:2:3", "1-2"])
def test_what_is_no_window_is_an_error(text: str) -> None:
    with pytest.raises(UsageError, match="--window"):
        window_ns(text)


def test_anchors() -> None:
    assert anchor("a=b.json=12ns") == ("a=b.json", 12)
    for text in ("a.json", "=5ns", "a.json=5"):
        with pytest.raises(UsageError, match="--anchor"):
            anchor(text)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_fraction_lies_between_0_and_1(value: float) -> None:
    assert fraction(0.01, option="x") == 0.01
    with pytest.raises(UsageError):
        fraction(value, option="--tau-rel")


def with_a_seed(command: Any, *names: str) -> Iterator[tuple[str, ...]]:
    if any("--seed" in option.opts for option in command.params):
        yield names
    for name, verb in getattr(command, "commands", {}).items():
        yield from with_a_seed(verb, *names, name)


SEEDED = list(with_a_seed(typer.main.get_command(app)))


def test_commands_that_make_random_choices_take_a_seed() -> None:
    assert {("run", "embodied"), ("optimize", "embodied"), ("plan",), ("reproduce", "run")} <= set(SEEDED)


@pytest.mark.parametrize("command", SEEDED, ids=" ".join)
@pytest.mark.parametrize(
    ("seed", "said"),
    [
        (-1, "--seed is negative. Next: give a whole number from 0 to 2**64 - 1\n"),
        (2**64, "--seed has 65 bits. Next: give a whole number from 0 to 2**64 - 1\n"),
        ("9" * 5000, "--seed"),
        ("1.5", "--seed"),
    ],
    ids=["negative", "65 bits", "5000 digits", "fraction"],
)
def test_a_seed_that_is_none_is_refused_before_anything_else(
    cli: Cli, command: tuple[str, ...], seed: object, said: str
) -> None:
    result = cli(*command, "--seed", seed)
    assert (result.code, result.out) == (2, "")
    assert said in result.err
    assert result.err.count("\n") == 1
