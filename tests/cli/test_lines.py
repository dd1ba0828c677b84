"""Progress where there is no terminal: lines at a sensible rate, on standard error, that end nothing."""

from __future__ import annotations

import io
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlprof.cli import console
from rlprof.cli.lines import IterationLines, Lines, iteration_line

ROW = {
    "iteration": 2,
    "wall_s": 1.234,
    "simulator_steps_per_s": 5120.4,
    "return_mean": 0.1234,
    "success_frac": 0.25,
    "policy_loss": -0.01234,
    "value_loss": 2.0,
    "approx_kl": 0.1,
}


class Clock:
    """A time that is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_line_of_an_iteration() -> None:
    assert iteration_line(ROW, 10) == (
        "iteration 3 of 10: 1.23 s, 5,120 simulator steps/s, return 0.123, success 25.0%,"
        " policy loss -0.0123, value loss 2"
    )


@given(st.lists(st.floats(0.001, 30.0), min_size=1, max_size=200))
def test_each_long_iteration_has_a_line_and_short_ones_do_not_fill_the_log(steps: list[float]) -> None:
    clock = Clock()
    lines = Lines(0.0, least_s=1.0, most_s=10.0, clock=clock)
    each = IterationLines(len(steps), lines)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "stderr", told := io.StringIO())
        for index, seconds in enumerate(steps):
            clock.now += seconds
            each.finished({**ROW, "iteration": index})
    shown = [int(line.split()[1]) - 1 for line in told.getvalue().splitlines()]
    assert shown == sorted(set(shown))
    assert {0, len(steps) - 1} <= set(shown)
    assert {index for index, seconds in enumerate(steps) if seconds >= 10.0} <= set(shown)
    assert len(shown) <= sum(steps) + 2


def test_other_work_says_nothing_if_it_is_short_and_else_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    monkeypatch.setattr(console, "Lines", lambda: Lines(clock=clock))
    with console.progress_bar() as progress:
        for clock.now in range(36):
            progress("search\x1b[31ming", clock.now / 36)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "".join(f"search?[31ming, {share}%\n" for share in (28, 56, 83))


def test_who_waits_for_the_first_iteration_is_told_what_for(capsys: pytest.CaptureFixture[str]) -> None:
    with IterationLines(3, patience_s=0.05) as lines:
        lines.progress("training", 0.0)
        time.sleep(0.5)
    assert capsys.readouterr().err == "training: no iteration is done yet\n"
    with IterationLines(3, patience_s=0.05) as lines:
        lines.finished(ROW)
        time.sleep(0.2)
    assert len(capsys.readouterr().err.splitlines()) == 1


class Gone(io.StringIO):
    """A pipe whose reader has gone."""

    def write(self, _text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("stderr", [None, Gone()])
def test_a_line_that_cannot_be_written_ends_nothing(monkeypatch: pytest.MonkeyPatch, stderr: object) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    lines = Lines(0.0)
    for _ in range(3):
        lines.offer("still at work", now=True)
