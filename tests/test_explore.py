"""The explorer: what it says of a node, what it draws, and what a viewer without widgets gets."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import pytest

from rlprof.analysis.windows import WindowReport
from rlprof.errors import RlprofError, UsageError
from rlprof.explore import VIEWS, Choice, describe, draw, explore, node_keys
from rlprof.plots.views import Views
from rlprof.trace.read import read
from rlprof.trace.trace import Trace
from rlprof.unavailable import Unavailable

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def trace(data: Path) -> Trace:
    return read(data / "nsys" / "vla_chunk_and_training.sqlite")


@pytest.fixture(scope="module")
def views(trace: Trace) -> Views:
    return Views.of(trace)


@pytest.fixture(scope="module")
def report(views: Views) -> WindowReport:
    return views.report


def key_of(report: WindowReport, tail: str) -> tuple[str, str]:
    return next(k for k in node_keys(report).values() if k[0].endswith(tail))


def test_every_node_has_a_label_of_its_own(report: WindowReport) -> None:
    keys = node_keys(report)
    assert set(keys.values()) == set(report.frame.select("node", "process").iter_rows())


def test_the_sentences_carry_the_figures_of_the_ranking(report: WindowReport) -> None:
    key = key_of(report, "/denoise")
    row = next(r for r in report.frame.to_dicts() if (r["node"], r["process"]) == key)
    text = " ".join(describe(report, key))
    assert text.startswith(f"{row['count']:,} call")
    assert f"Activity {row['sm_activity']:.1%}" in text
    assert f"Room for {row['score_s']:.3g} s" in text
    assert f"Rank {row['rank']}, tier 1." in text


def test_an_excluded_node_is_said_to_be_excluded(report: WindowReport) -> None:
    key = key_of(report, "/vlm")
    assert key in report.excluded
    assert describe(report, key)[-1] == "Excluded: too active to be a window."


def test_an_unknown_node_is_an_error(report: WindowReport) -> None:
    with pytest.raises(UsageError, match="no node is called"):
        describe(report, ("nothing", "1"))


@pytest.mark.parametrize("view", VIEWS)
def test_each_view_is_drawn(views: Views, report: WindowReport, view: str) -> None:
    lo, hi = views.span()
    made = draw(views, Choice(key_of(report, "/denoise"), 0, lo / 1e9, hi / 1e9, view))  # type: ignore[arg-type]
    assert isinstance(made, bytes)
    assert made.startswith(PNG)


def test_an_unknown_view_and_an_empty_span_are_errors(views: Views, report: WindowReport) -> None:
    key = key_of(report, "/denoise")
    lo = views.span()[0] / 1e9
    with pytest.raises(UsageError, match="there is no view"):
        draw(views, Choice(key, 0, lo, lo + 1, "pie"))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="empty"):
        draw(views, Choice(key, 0, lo, lo, "timeline"))


def test_the_activity_of_an_unknown_device_is_unavailable(views: Views, report: WindowReport) -> None:
    lo, hi = views.span()
    made = draw(views, Choice(key_of(report, "/denoise"), 7, lo / 1e9, hi / 1e9, "activity over time"))
    assert isinstance(made, Unavailable)
    assert "device 7" in made.reason


def test_choosing_another_node_changes_text_and_picture(trace: Trace, report: WindowReport) -> None:
    explorer = explore(trace, report)
    before = explorer._repr_mimebundle_()
    node = explorer.widget.children[0]
    node.value = next(text for text, key in node_keys(report).items() if key in report.excluded)
    after = explorer._repr_mimebundle_()
    assert explorer.choice.node in report.excluded
    assert "Excluded" in after["text/plain"]
    assert "Excluded" not in before["text/plain"]
    assert after["image/png"] != before["image/png"]


def test_a_viewer_without_widgets_gets_a_picture_and_the_figures(trace: Trace, report: WindowReport) -> None:
    bundle = explore(trace, report)._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert base64.b64decode(bundle["image/png"]).startswith(PNG)
    assert report.targets[0][0].rsplit("/", 1)[-1] in bundle["text/plain"]


def test_without_ipywidgets_the_error_says_what_to_install(
    trace: Trace, report: WindowReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(RlprofError, match=r"rlprof\[notebook\]"):
        explore(trace, report)
