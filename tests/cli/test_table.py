from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlprof
from rlprof.cli.table import HEADINGS, as_markdown, as_table, seconds, short_names, why_nothing_ranked
from tests.trace.nsys_made import kernel, made, push_pop


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (float("nan"), "-"),
        (0.0, "0 s"),
        (1.234e-9, "1.23 ns"),
        (5e-4, "500 us"),
        (9.996e-3, "10.0 ms"),
        (0.99999, "1.00 s"),
        (1234.5, "1,234 s"),
        (-2.5e-3, "-2.50 ms"),
    ],
)
def test_durations_for_people(value: float | None, text: str) -> None:
    assert seconds(value) == text


@given(
    st.lists(
        st.lists(st.sampled_from(["a", "bb", "policy", "denoise", "x" * 9]), min_size=1, max_size=6).map(
            "/".join
        ),
        unique=True,
        max_size=12,
    ),
    st.integers(3, 30),
)
def test_shortened_names_stay_apart(names: list[str], limit: int) -> None:
    short = short_names(names, limit)
    assert len(set(short)) == len(names)
    for name, text in zip(names, short, strict=True):
        if len(name) <= limit:
            assert text == name
        else:
            assert name.endswith(text.removeprefix("…/"))
            # what is left tells the node from every other one
            tail = text.removeprefix("…")
            assert text == name or [n for n in names if ("/" + n).endswith(tail)] == [name]


@pytest.mark.parametrize("width", [80, 100, 140])
def test_no_line_is_wider_than_asked(data: Path, width: int) -> None:
    trace = rlprof.read(data / "nsys" / "vla_chunk_and_training.sqlite")
    text = as_table(trace.windows(), trace, 20, width=width)
    assert max(map(len, text.splitlines())) <= width


def test_the_table_says_what_it_rests_on(data: Path) -> None:
    trace = rlprof.read(data / "nsys" / "vla_chunk_and_training.sqlite")
    report = trace.windows()
    text = as_table(report, trace, 20)
    assert "vla_chunk_and_training.sqlite (nsys-sqlite)" in text
    assert "SM-activity counters" in text
    assert "every 500 us" in text  # beside the fraction, which depends on it
    assert "next:" in text
    best = report.frame.filter(report.frame["leaf"]).row(0, named=True)
    (line,) = [x for x in text.splitlines() if best["node"].split("/")[-1] in x]
    assert f"{100 * best['sm_activity']:.1f} %" in line
    assert ("*" in line) == ((best["node"], best["process"]) in report.targets)


def test_fewer_rows_are_said_to_be_fewer(data: Path) -> None:
    trace = rlprof.read(data / "nsys" / "vla_chunk_and_training.sqlite")
    report = trace.windows()
    text = as_table(report, trace, 2)
    assert f"2 of {report.frame.height} rows" in text


def test_with_nothing_to_rank_it_says_why(tmp_path: Path) -> None:
    trace = made(tmp_path, CUPTI_ACTIVITY_KIND_KERNEL=[kernel(0, 5)], ANALYSIS_DETAILS=[{"duration": 100}])
    text = as_table(trace.windows(), trace, 20)
    assert "No window can be ranked: there are no ranges" in text
    assert "rlprof doctor" in text


def test_without_iteration_it_says_how_much_of_the_capture_has_an_activity(tmp_path: Path) -> None:
    trace = made(
        tmp_path,
        NVTX_EVENTS=[push_pop(0, 50, "work")],
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(10, 35)],
        ANALYSIS_DETAILS=[{"duration": 100}],
    )
    text = as_table(trace.windows(), trace, 20)
    assert "time of capture with known activity (50.0 ns): 50 % below 50 % activity" in text
    assert "per iteration" not in text


def test_with_no_activity_it_says_that_it_is_unknown(tmp_path: Path) -> None:
    trace = made(tmp_path, NVTX_EVENTS=[push_pop(0, 50, "step")], ANALYSIS_DETAILS=[{"duration": 100}])
    report = trace.windows()
    assert why_nothing_ranked(report) == "the activity of the GPU is unknown"
    assert "activity: unavailable" in as_table(report, trace, 20)


def test_marks_in_names_are_no_markup(tmp_path: Path) -> None:
    ranges = [push_pop(0, 10**8, "[red]step[/red] |x|"), push_pop(0, 10**7, "[bold]")]
    trace = made(
        tmp_path,
        NVTX_EVENTS=ranges,
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(0, 5)],
        ANALYSIS_DETAILS=[{"duration": 10**8}],
    )
    report = trace.windows()
    assert "[red]" in as_table(report, trace, 20, width=140)
    markdown = as_markdown(report, trace, 20)
    rows = [line for line in markdown.splitlines() if line.startswith("| ")]
    assert len({line.replace("\\|", "").count("|") for line in rows}) == 1


HOSTILE = [
    "\x1b[31mred\x1b[0m\x1b]0;title\x07", "a\nb\r\nc\td", "a\0b", "\u202egnp.exe", "\x9b2J", "a|b|`c`",
    "[bold red]x[/]", "</script><img src=x onerror=alert(1)>", "A" * 1_000_000, "/".join("ab" * 5_000),
]  # fmt: skip


@pytest.mark.parametrize("label", HOSTILE, ids=[ascii(t[:12]) for t in HOSTILE])
def test_a_label_can_neither_drive_the_terminal_nor_break_the_layout(tmp_path: Path, label: str) -> None:
    trace = made(
        tmp_path,
        NVTX_EVENTS=[push_pop(0, 900, "iteration"), push_pop(0, 500, label)],
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(0, 100)],
        ANALYSIS_DETAILS=[{"duration": 1_000}],
    )
    report = trace.windows()
    table, markdown = as_table(report, trace, 20, width=80), as_markdown(report, trace, 20)
    for text in (table, markdown):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
        assert len(text) < 8_000
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len(rows) == 4
    assert {len(re.split(r"(?<!\\)\|", r)) for r in rows} == {len(HEADINGS) + 3}
    # outside of code spans nothing is HTML
    assert "<img" not in re.sub(r"`[^`]*`", "", markdown).replace(r"\<", "")


def test_many_rows_are_shortened_in_bounded_time() -> None:
    names = [f"root/{'x' * 40}/node {i}" for i in range(20_000)]
    assert short_names(names, 30)[7] == "…/node 7"
