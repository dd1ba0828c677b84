"""Every chart is valid Vega-Lite within the row budget, whatever the capture holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import rlprof
from rlprof.errors import UsageError
from rlprof.plots import ROW_BUDGET, RowBudgetError, charts, prepare
from rlprof.plots.budget import check_rows
from rlprof.plots.lanes import Lanes
from rlprof.plots.theme import ACTIVITY_RANGE, CATEGORY_COLOURS, short_path
from rlprof.trace.trace import Trace
from rlprof.unavailable import Unavailable

from .made import HOSTILE, busy_trace, hostile_trace

KINDS = ("timeline", "activity", "distribution", "windows")


def rows_in(spec: dict[str, Any]) -> int:
    """Rows of data that a chart holds."""
    return sum(len(rows) for rows in spec["datasets"].values())


@pytest.fixture(scope="module")
def real(data: Path) -> Trace:
    return rlprof.read(data / "nsys" / "vla_chunk_and_training.sqlite")


@pytest.mark.parametrize("kind", KINDS)
def test_charts_of_a_real_capture_are_valid_and_small(real: Trace, kind: str) -> None:
    spec = getattr(real.plot, kind)().to_dict()
    assert 0 < rows_in(spec) <= ROW_BUDGET
    assert "temporal" not in json.dumps(spec)


@pytest.mark.parametrize("kind", KINDS)
def test_charts_of_hostile_labels_are_valid(kind: str) -> None:
    spec = getattr(hostile_trace().plot, kind)().to_dict()
    assert 0 < rows_in(spec) <= ROW_BUDGET
    # labels of any length are shortened, and none becomes part of an expression
    assert len(json.dumps(spec)) < 1_500_000
    texts = [
        v for rows in spec.pop("datasets").values() for r in rows for v in r.values() if isinstance(v, str)
    ]
    assert max(map(len, texts)) <= 220
    legends = [v for v in json.dumps(spec).split('"') if "onerror" in v]
    assert all(len(v) < 100 for v in legends)


def test_more_ranges_than_the_budget_are_merged_and_the_subtitle_says_so() -> None:
    spec = busy_trace().plot.timeline().to_dict()
    assert rows_in(spec) <= ROW_BUDGET
    told = " ".join(spec["title"]["subtitle"])
    assert "short ranges are merged into" in told
    assert "16 threads with the least time in ranges" in told


def test_activity_that_cannot_be_told_is_unavailable_and_never_an_empty_chart() -> None:
    plot = busy_trace(400).plot
    for kind in ("activity", "distribution", "windows"):
        made = getattr(plot, kind)()
        assert isinstance(made, Unavailable)
        assert made.reason


MANY = pl.DataFrame({"class": [""] * (ROW_BUDGET + 1), "row": 0})
NONE = pl.DataFrame()


@pytest.mark.parametrize(
    "draw",
    [
        lambda: charts.activity_chart(MANY, NONE, NONE, lo_s=0, hi_s=1),
        lambda: charts.timeline_chart(Lanes(MANY, NONE, NONE, NONE, 1), NONE, lo_s=0, hi_s=1),
        lambda: charts.distribution_chart(MANY),
        lambda: charts.ranking_chart(MANY),
    ],
    ids=["activity", "timeline", "distribution", "ranking"],
)
def test_a_chart_of_too_many_rows_is_refused(draw: Callable[[], object]) -> None:
    with pytest.raises(RowBudgetError, match="5,001 rows for one chart"):
        draw()


def test_the_budget_counts_all_tables_of_a_chart() -> None:
    half = pl.DataFrame({"x": range(2_500)})
    check_rows("two", half, half)
    with pytest.raises(RowBudgetError):
        check_rows("three", half, half, pl.DataFrame({"x": [1]}))


def test_a_long_signal_is_drawn_by_its_envelope() -> None:
    n = 200_000
    at = np.arange(n) * 1_000
    frame = prepare.envelope(at, at + 1_000, (np.arange(n) % 7) / 7, lo_ns=0, hi_ns=n * 1_000, bins=1_200)
    empty_spans = prepare.marked_spans([], lo_ns=0, hi_ns=1, budget=10)
    bounds, _ = prepare.iteration_bounds(at[:0], at[:0], lo_ns=0, hi_ns=1)
    spec = charts.activity_chart(frame, empty_spans, bounds, lo_s=0, hi_s=0.2).to_dict()
    assert rows_in(spec) <= 1_210


def test_a_span_a_process_and_a_device_can_be_chosen(real: Trace) -> None:
    lo = real.meta.start_ns / 1e9
    whole = real.plot.timeline().to_dict()
    part = real.plot.timeline(lo + 0.1, lo + 0.2).to_dict()
    assert rows_in(part) != rows_in(whole)
    label = real.table("processes")["label"][0]
    assert real.plot.timeline(process=label).to_dict()
    assert isinstance(real.plot.activity(device=5), Unavailable)
    with pytest.raises(UsageError, match="no process is called 'rank 99'"):
        real.plot.timeline(process="rank 99")
    with pytest.raises(UsageError, match="is empty"):
        real.plot.activity(2.0, 1.0)


def test_the_distribution_of_one_node_is_found_by_the_end_of_its_path(real: Trace) -> None:
    spec = real.plot.distribution("policy/denoise").to_dict()
    nodes = {r["path"] for rows in spec["datasets"].values() for r in rows if "path" in r}
    assert len(nodes) == 1
    assert "policy/denoise" in nodes.pop()
    with pytest.raises(UsageError, match="no node is called 'absent'"):
        real.plot.distribution("absent")


def test_the_distribution_agrees_with_the_fractions_of_the_ranking(real: Trace) -> None:
    report = real.windows()
    rows = [
        r
        for rows in real.plot.distribution().to_dict()["datasets"].values()
        for r in rows
        if "below_50_frac" in r
    ]
    low = {(s, t): f for s, t, f in report.low_activity.iter_rows()}
    seen = 0
    for row in rows:
        node = row["path"].rsplit(" (", 1)[0]
        if (node, 0.5) in low:
            seen += 1
            assert row["below_50_frac"] == pytest.approx(low[node, 0.5], abs=1e-9)
            assert row["below_80_frac"] == pytest.approx(low[node, 0.8], abs=1e-9)
    assert seen > 10


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_dark_letters_are_readable_on_every_bar() -> None:
    dark = _luminance("#101318")
    for colour in (*ACTIVITY_RANGE, *CATEGORY_COLOURS.values()):
        assert (_luminance(colour) + 0.05) / (dark + 0.05) >= 4.5


@pytest.mark.parametrize("label", HOSTILE)
@pytest.mark.parametrize("chars", [8, 36, 200])
def test_short_labels_fit_and_hold_no_control_character(label: str, chars: int) -> None:
    short = short_path(f"iteration/rollout/{label}", chars)
    assert 0 < len(short) <= chars
    assert short.isprintable()
