"""The report: one file that loads nothing, in which whatever a capture holds stays text."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest

import rlprof
from rlprof.errors import OutputError
from rlprof.plots import ROW_BUDGET
from rlprof.report import table
from rlprof.report.html import report_html, write_report
from rlprof.report.text import duration, percent
from rlprof.trace.trace import Trace, TraceMeta
from tests.plots.made import HOSTILE, busy_trace, hostile_trace, renamed, trace_of

VOID = {"meta", "input", "wbr", "br", "link", "img", "hr"}


class Page(HTMLParser):
    """Elements of a page; fails on tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.specs: dict[str, dict[str, object]] = {}
        self.text: list[str] = []
        self.styles = ""
        self._chart: str | None = None
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({k for k, _ in attrs}) == len(attrs), f"an attribute twice in {tag}"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        self._chart = dict(attrs).get("data-chart") if tag == "script" else None

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            if self._chart:
                self.specs[self._chart] = json.loads(data)
        elif self.open[-1:] == ["style"]:
            self.styles += data
        else:
            self.text.append(data)

    def count(self, tag: str) -> int:
        return sum(t == tag for t, _ in self.elements)

    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    def rows(self, table_id: str) -> int:
        """Rows of the body of a table: those that can be sorted and searched."""
        tables = [i for i, (t, a) in enumerate(self.elements) if t == "table"]
        at = next(i for i in tables if self.elements[i][1].get("id") == table_id)
        end = next((i for i in tables if i > at), len(self.elements))
        return sum(t == "tr" for t, _ in self.elements[at:end]) - 1


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="module")
def real(data: Path) -> Trace:
    return rlprof.read(data / "nsys" / "vla_chunk_and_training.sqlite")


def page_of(trace: Trace) -> tuple[str, Page]:
    text = report_html(trace.windows(), trace)
    return text, Page(text)


def assert_loads_nothing(text: str, page: Page) -> None:
    for tag, attrs in page.elements:
        for key in ("src", "href", "srcset", "data", "action", "poster", "background"):
            assert attrs.get(key) is None, f"<{tag} {key}>"
    assert "@import" not in page.styles
    assert "url(" not in page.styles
    policy = next(a["content"] for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    # the only addresses in the page's own part are names of schemas
    own = re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    schema = "https://vega.github.io/schema/vega-lite/"
    assert all(u.startswith(schema) for u in re.findall(r"https?://[\w./-]+", own))


def test_a_real_capture(real: Trace, tmp_path: Path) -> None:
    report = real.windows()
    path = tmp_path / "report.html"
    write_report(report, real, path)
    text = path.read_text(encoding="utf-8")
    page = Page(text)

    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    assert path.stat().st_size < 3_000_000
    assert_loads_nothing(text, page)
    assert set(page.specs) == {"activity0", "distribution", "timeline"}
    for spec in page.specs.values():
        assert 0 < sum(map(len, spec["datasets"].values())) <= ROW_BUDGET  # type: ignore[attr-defined]
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    assert set(page.specs) <= set(ids)
    assert page.rows("windows") == report.frame.height
    assert page.rows("low") == report.low_activity["scope"].n_unique()


def test_figures_are_those_of_the_ranking(real: Trace) -> None:
    report = real.windows()
    _, page = page_of(real)
    words = page.words()
    first = report.low_activity.row(0, named=True)
    assert f"{percent(first['fraction'])} of iteration time" in words
    assert f"sampled every {duration(report.sample_period_s)}" in words
    assert report.iteration is not None
    assert f"{report.iteration.count} iterations" in words
    scores = [
        float(a["data-v"])
        for t, a in page.elements
        if t == "td" and a.get("class") == "n bar" and a["data-v"] not in (None, "")
    ]
    expected = report.frame["score_s"].drop_nulls().to_list()
    assert scores == pytest.approx(expected, rel=1e-6)


def test_hostile_text_stays_text() -> None:
    trace = hostile_trace()
    text, page = page_of(trace)
    # three charts, the drawing scripts, the page's script
    assert page.count("script") == 5
    assert page.count("img") == 0
    assert "window.broken" not in {a for _, attrs in page.elements for a in attrs}
    assert_loads_nothing(text.replace("http://evil.example", ""), page)
    # "/" parts a path, so the name is in two pieces
    assert "window.broken=1" in page.words()
    assert html.escape(HOSTILE[2], quote=True) in text
    assert "снег ☃ 数据 \U0001f600" in page.words()
    assert "\u202e" not in text.split("<script>")[0]
    assert "x" * 400 not in text
    assert len(text) < 3_000_000


@pytest.mark.parametrize("bad", ["\udce9t\udce9.sqlite", "/" * 3 + "a.sqlite", "\n\n.sqlite"])
def test_odd_file_names_can_be_written(bad: str, tmp_path: Path) -> None:
    trace = renamed(hostile_trace(), (bad,))
    write_report(trace.windows(), trace, tmp_path / "r.html")
    Page((tmp_path / "r.html").read_text(encoding="utf-8"))


def test_without_activity_the_reason_stands_where_the_chart_would() -> None:
    _, page = page_of(busy_trace(400))
    assert set(page.specs) == {"timeline"}
    words = page.words()
    assert words.count("Not available: ") == 2
    assert "No window is ranked" in words


def test_without_ranges_and_activity_there_is_still_a_report() -> None:
    trace = trace_of(TraceMeta("kineto", ("empty.json",), 0, 1_000))
    text, page = page_of(trace)
    assert page.specs == {}
    assert page.count("script") == 1
    assert "vegaEmbed=" not in text
    assert "no part of the program to rank" in page.words()


def test_several_devices_have_a_chart_each_and_a_choice_in_the_table() -> None:
    trace = hostile_trace(devices=11)
    _, page = page_of(trace)
    assert {f"activity{d}" for d in range(8)} <= set(page.specs)
    assert "activity8" not in page.specs
    assert "3 more devices are left out" in page.words()
    assert page.count("option") == 12
    chosen = [a["data-device"] for t, a in page.elements if t == "tr" and "data-device" in a]
    assert chosen[0] == "all"
    assert set(chosen) == {"all"} | {str(d) for d in range(11)}


def test_of_many_iterations_three_are_drawn_large_and_named() -> None:
    ms = 1_000_000
    base = hostile_trace()
    start = [i * 10 * ms for i in range(30)]
    ranges = pl.DataFrame({"start_ns": start, "end_ns": [s + 9 * ms for s in start]}).with_columns(
        name=pl.lit("iteration"), style=pl.lit("push_pop"), process=1, thread=1, domain=pl.lit(""), cut=False
    )
    tables = {n: base.table(n) for n in ("activity", "devices", "processes")}
    _, page = page_of(trace_of(base.meta, ranges=ranges, **tables))
    assert page.words().count("iterations 15 to 17 of 30") == 2
    assert set(page.specs) == {"activity0", "near0", "distribution", "timeline"}
    bars = [r for d in page.specs["timeline"]["datasets"].values() for r in d if r.get("name") == "iteration"]  # type: ignore[attr-defined]
    assert sorted({r["start_s"] for r in bars}) == pytest.approx([0.14, 0.15, 0.16])


def test_a_long_table_is_cut_and_says_so(real: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MOST_ROWS", 3)
    monkeypatch.setattr(table, "LOW_ROWS", 2)
    _, page = page_of(real)
    assert page.rows("windows") == 3
    left = real.windows().frame.height - 3
    assert f"{left} more rows are in windows.csv" in page.words()
    assert page.rows("low") == 2


def test_a_ranking_by_exact_names_is_drawn_by_exact_names() -> None:
    ms = 1_000_000
    base = hostile_trace()
    ranges = pl.DataFrame(
        {
            "start_ns": [i * 50 * ms for i in range(6)],
            "end_ns": [i * 50 * ms + 40 * ms for i in range(6)],
            "name": [f"step {i}" for i in range(6)],
            "style": "push_pop",
            "process": 1,
            "thread": 1,
            "domain": "",
            "cut": False,
        }
    )
    tables = {n: base.table(n) for n in ("activity", "devices", "processes")}
    trace = trace_of(base.meta, ranges=ranges, **tables)
    report = trace.windows(exact_names=True)
    page = Page(report_html(report, trace))
    nodes = {r.get("path") for rows in page.specs["distribution"]["datasets"].values() for r in rows}  # type: ignore[attr-defined]
    assert {f"step {i}" for i in range(6)} <= nodes


def test_nothing_is_left_where_it_cannot_be_written(real: Trace, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="does not exist"):
        write_report(real.windows(), real, tmp_path / "absent" / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_old_report(
    real: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")

    def full(self: Path, text: str, **_: object) -> int:
        self.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    report = real.windows()
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OutputError, match="disk is full"):
        write_report(report, real, path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_ranking_without_a_report_loads_no_chart_library(data: Path) -> None:
    code = (
        "import sys, rlprof; rlprof.read(sys.argv[1]).windows();"
        "print(*{'altair', 'vl_convert', 'pandas'} & set(sys.modules))"
    )
    file = data / "nsys" / "vla_chunk_and_training.sqlite"
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0.0, "0 s"), (1.6520, "1.65 s"), (0.0781, "78.1 ms"), (4.56e-4, "456 µs"), (2e-8, "20 ns"),
     (12345.6, "12,346 s"), (0.99999, "1 s")],
)  # fmt: skip
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(None, "–"), (0.0, "0 %"), (1.0, "100 %"), (0.001, "<1 %"), (0.9999, ">99 %"), (0.82, "82 %")],
)
def test_a_small_share_is_not_shown_as_none(share: float | None, text: str) -> None:
    assert percent(share) == text


def test_the_report_of_the_h200_capture(shared_traces: Path) -> None:
    trace = rlprof.read(shared_traces / "nsys" / "h200_vla.sqlite")
    text, page = page_of(trace)
    words = page.words()
    assert len(text) < 3_000_000
    assert "82 % of iteration time" in words
    assert "36 calls of 78.2 ms, 8.4 % active" in words
    assert page.rows("windows") == 16
