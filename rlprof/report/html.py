"""The report of a capture as one HTML file that opens from disk and loads nothing.

Ranked windows, activity over time, distribution of activity in each node, timeline, fractions at low
activity, notes and provenance. Whatever comes from a capture is escaped; of the machine that recorded it
nothing but file names is shown.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rlprof
from rlprof.plots.embed import script_bundle, script_json
from rlprof.plots.theme import TEXT
from rlprof.plots.views import Views
from rlprof.progress import Progress, silent
from rlprof.report.table import first_fractions, low_activity_table, window_table
from rlprof.report.text import count, duration, esc, esc_path, percent, sentence
from rlprof.trace.output import atomic_path
from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    from rlprof.analysis.windows import WindowReport
    from rlprof.trace.trace import Trace

#: Rows of all activity charts of a report together, and devices drawn.
ACTIVITY_ROWS, MOST_DEVICES = 6_000, 8

SOURCE_SENTENCE = {
    "sm_counters": "SM activity is measured by hardware counters: the share of the GPU's multiprocessors "
    "that have work resident, over the whole device, whoever put it there.",
    "kernel_union": "The capture has no SM counters. Activity is the time with a kernel in flight: an upper "
    "bound of SM activity, windows may be emptier than they look.",
    "host_cores": "The capture has no GPU activity. What is shown is the activity of the host's cores.",
}

#: Nothing may be fetched, by whatever means; the drawing scripts compile expressions.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data: blob:"
)

MOVE = "Drag to move, Shift and wheel to zoom, double click to reset."
ACTIVITY_LEAD = (
    "Shaded, with a strip above: when the windows to fill run. Vertical lines bound the iterations; dashed "
    f"lines are at 50 % and 80 %. {MOVE}"
)
DISTRIBUTION_LEAD = (
    "One histogram for each node: how much of its time lies in each 5 % step of activity; the tallest bar of "
    "each has full height. A mean of 40 % may be a steady 40 %, or half idle and half busy: only the second "
    "leaves room that other work can take whole."
)
TIMELINE_LEAD = (
    "Ranges of each process and thread by depth, coloured by the mean activity of their node; below, when "
    f"the GPUs ran kernels. {MOVE}"
)


def write_report(report: WindowReport, trace: Trace, path: Path, *, progress: Progress = silent) -> None:
    """Write the HTML report of a capture.

    Parameters
    ----------
    report : WindowReport
        The ranking, as given by ``trace.windows()``.
    trace : Trace
        The capture that it is of.
    path : pathlib.Path
        File to write; replaced if it is there.
    progress : Progress
        Told of each part.

    Raises
    ------
    OutputError
        If the file cannot be written; nothing is left half written.
    """
    page = report_html(report, trace, progress=progress)
    with atomic_path(Path(path), force=True) as temporary:
        # a name of a file may hold bytes that are no text
        temporary.write_text(page, encoding="utf-8", errors="replace")


def report_html(report: WindowReport, trace: Trace, *, progress: Progress = silent) -> str:
    """The report as the text of a page; see `write_report`."""
    charts = _Charts()
    progress("report: nodes", 0.0)
    views = Views.of(trace, report)
    lo, hi = views.span()
    progress("report: activity over time", 0.2)
    activity = _activity(views, charts, lo, hi)
    progress("report: distribution", 0.4)
    distribution = charts.figure("distribution", views.distribution(width="container"))
    progress("report: timeline", 0.6)
    timeline = _timeline(views, charts, lo, hi)
    progress("report: page", 0.9)
    name = ", ".join(esc(f, 120) for f in trace.meta.files[:8])
    if len(trace.meta.files) > 8:
        name += f" and {len(trace.meta.files) - 8} more"
    styles, script, how_to_read = (_part(f) for f in ("page.css", "page.js", "help.html"))
    drawing = f"<script>{script_bundle()}</script>\n" if charts.specs else ""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>GPU windows of {name}</title>",
        f"<style>\n{styles}</style></head>",
        f"<body><main>\n{_header(report, trace, name)}",
        _cards(report),
        how_to_read,
        _section("Low-activity windows, ranked", _ranking_lead(report), _ranking(report), long=True),
        _section("Activity over time", _source_sentence(report) + " " + ACTIVITY_LEAD, activity),
        _section("How each node's time is spread over activity", DISTRIBUTION_LEAD, distribution),
        _section("Timeline", TIMELINE_LEAD, timeline),
        _section("Time at low activity", _low_lead(report), _low(report), long=True),
        _section("Notes", "What was missing, repaired, left out or guessed.", _notes(report)),
        _section("Where these numbers come from", "", _provenance(report, trace)),
        f"<footer>rlprof {esc(rlprof.__version__)}. This page is one file and loads nothing.</footer>",
        "<noscript><p>Charts and sorting need JavaScript; the tables do not.</p></noscript>",
        "</main>",
        *charts.specs,
        f"{drawing}<script>\n{script}</script>",
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _part(name: str) -> str:
    return files("rlprof.report").joinpath(name).read_text(encoding="utf-8")


class _Charts:
    """The specifications of a page's charts, collected while its figures are made."""

    def __init__(self) -> None:
        self.specs: list[str] = []

    def figure(self, key: str, made: tuple[Any, tuple[str, ...]] | Unavailable) -> str:
        """A place for one chart with its notes below, or the reason why there is none."""
        if isinstance(made, Unavailable):
            return f'<p class="none">Not available: {sentence(made.reason)}</p>'
        chart, notes = made
        spec = script_json(chart.to_dict())
        self.specs.append(
            f'<script type="application/json" data-chart="{key}" data-text="{TEXT}">{spec}</script>'
        )
        below = f'<p class="key">{sentence("; ".join(notes))}.</p>' if notes else ""
        return f'<div class="chart" id="{key}"></div>{below}'


def _section(title: str, lead: str, content: str, *, long: bool = False) -> str:
    kind = ' class="long"' if long else ""
    # where there is nothing to see, how to read it is of no use
    below = f'<p class="lead">{lead}</p>' if lead and 'class="none"' not in content else ""
    return f"<section{kind}><h2>{title}</h2>{below}\n{content}\n</section>"


def _header(report: WindowReport, trace: Trace, name: str) -> str:
    gpus = _gpus(report)
    about = [duration(trace.meta.duration_ns / 1e9) + " captured", gpus or "no GPU listed"]
    about.append(f"{len(report.processes)} process{'es' if len(report.processes) != 1 else ''}")
    return (
        "<header><h1>Where is the GPU idle or half used?</h1>"
        f'<p class="sub"><strong>{name}</strong> · {" · ".join(about)}</p></header>'
    )


def _gpus(report: WindowReport) -> str:
    """The GPUs by name with their number, escaped."""
    names: dict[str, int] = {}
    for device in report.devices:
        sms = f" ({device['sm_count']} SMs)" if device.get("sm_count") else ""
        text = f"{device.get('name') or 'GPU'}{sms}"
        names[text] = names.get(text, 0) + 1
    return ", ".join(f"{n} × {esc(t, 80)}" if n > 1 else esc(t, 80) for t, n in names.items())


def _sampled(report: WindowReport) -> str:
    if report.sample_period_s is None:
        return ""
    return f"sampled every {duration(report.sample_period_s)}"


def _cards(report: WindowReport) -> str:
    cards = [_first_card(report)]
    found = first_fractions(report)
    if found is not None:
        scope, shares = found
        span = duration(report.activity_span_s)
        known = f"the {span} of the capture with known activity"
        what = known if report.iteration is None else f"iteration time ({esc(scope, 60)})"
        sampled = f"; {_sampled(report)}" if _sampled(report) else ""
        cards += [
            _card(percent(share), f"of {what} is below {t * 100:.0f} % activity{sampled}", low=True)
            for t, share in sorted(shares.items())
        ]
    if report.iteration is None:
        cards.append(_card("–", "no iteration was found: the whole capture is taken as one"))
    else:
        it = report.iteration
        mean = it.total_s / it.count if it.count else None
        cards.append(_card(duration(mean), f"mean duration of {count(it.count)} iterations"))
    return f'<div class="cards">{"".join(cards)}</div>'


def _first_card(report: WindowReport) -> str:
    rows = report.frame
    if report.targets:
        node, process = report.targets[0]
        rows = rows.filter((rows["node"] == node) & (rows["process"] == process))
    best = next((r for r in rows.iter_rows(named=True) if r["rank"] is not None), None)
    if best is None:
        known = [n for n in report.notes if "unavailable" in n or n.startswith("no nodes")]
        reason = known[0] if known else "no part of the program is long enough and has a known low activity"
        return (
            '<div class="card first"><div class="value">No window is ranked</div>'
            f'<div class="what">{sentence(reason)}</div></div>'
        )
    path = esc_path(best["node"], 120)
    unused, active = duration(best["score_s"]), percent(best["sm_activity"], 1)
    per = " per iteration" if report.iteration is not None else ""
    calls = f"{count(best['count'])} calls of {duration(best['mean_s'])}"
    return (
        f'<div class="card first"><div class="what">fill first</div><div class="value">{path}</div>'
        f'<div class="what">{unused} of unused GPU{per}: {calls}, {active} active</div></div>'
    )


def _card(value: str, what: str, *, low: bool = False) -> str:
    kind = " low" if low else ""
    return f'<div class="card"><div class="value{kind}">{value}</div><div class="what">{what}</div></div>'


def _ranking_lead(report: WindowReport) -> str:
    ranked = report.frame["rank"].drop_nulls().len()
    return (
        f"{count(ranked)} of {count(report.frame.height)} rows have a rank. A node holds the nodes below it: "
        "scores of a path and of its parts are views of the same time and must not be added. "
        "<em>fill first</em> marks windows to start with, none inside another."
    )


def _ranking(report: WindowReport) -> str:
    if report.frame.is_empty():
        return '<p class="none">There are no ranges, so there is no part of the program to rank.</p>'
    return window_table(report)


def _source_sentence(report: WindowReport) -> str:
    if report.activity_source is None:
        return "Activity is unavailable; the notes say why."
    sampled = f" It is {_sampled(report)}." if _sampled(report) else ""
    return SOURCE_SENTENCE.get(report.activity_source, esc(report.activity_source)) + sampled


def _activity(views: Views, charts: _Charts, lo: int, hi: int) -> str:
    if isinstance(views.signals, Unavailable):
        return charts.figure("activity", views.signals)
    drawn = views.signals[:MOST_DEVICES]
    sample = views.sample()
    bins = min(1_200, ACTIVITY_ROWS // len(drawn))
    out = []
    for signal in drawn:
        if len(views.signals) > 1:
            out.append(f"<h3>{esc(views.device_label(signal.device))}</h3>")
        made = views.activity(signal.device, lo_ns=lo, hi_ns=hi, bins=bins, width="container")
        out.append(charts.figure(f"activity{signal.device}", made))
        if sample is not None:
            first, last, text = sample
            near = views.activity(signal.device, lo_ns=first, hi_ns=last, bins=bins, width="container")
            out.append(f"<h3>{text}</h3>{charts.figure(f'near{signal.device}', near)}")
    left = len(views.signals) - len(drawn)
    if left:
        how = "<code>trace.plot.activity(device=…)</code> draws them"
        out.append(f'<p class="key">{left} more devices are left out; {how}.</p>')
    return "\n".join(out)


def _timeline(views: Views, charts: _Charts, lo: int, hi: int) -> str:
    sample = views.sample()
    if sample is not None:
        lo, hi, text = sample
    figure = charts.figure("timeline", views.timeline(lo_ns=lo, hi_ns=hi, width="container"))
    return figure if sample is None else f"<h3>{text}</h3>{figure}"


def _low_lead(report: WindowReport) -> str:
    if report.low_activity.is_empty():
        return "Activity is unavailable; the notes say why."
    if report.sample_period_s is None:
        return "Share of time in steps of lower activity than the threshold."
    return (
        "Share of the covered time that lies in samples below the threshold, "
        f"<strong>{_sampled(report)}</strong>. It depends on the sampling period, because longer "
        "samples average over short idle gaps: compare it only with captures of the same period."
    )


def _low(report: WindowReport) -> str:
    if report.low_activity.is_empty():
        return ""
    return low_activity_table(report)


def _notes(report: WindowReport) -> str:
    if not report.notes:
        return "<p>None.</p>"
    return f'<ul class="notes">{"".join(f"<li>{sentence(n)}</li>" for n in report.notes)}</ul>'


def _provenance(report: WindowReport, trace: Trace) -> str:
    meta = trace.meta
    found = report.iteration
    schema = f", schema {esc(meta.schema_version, 40)}" if meta.schema_version else ""
    sampled = f", {_sampled(report)}" if _sampled(report) else ""
    rows = [
        ("Capture", ", ".join(esc(f, 120) for f in meta.files[:64])),
        ("Format", esc(meta.format) + schema),
        ("Recorded with", esc(meta.product, 120) if meta.product else "the capture does not say"),
        ("GPUs", _gpus(report) or "none listed in the capture"),
        ("Span", f"{meta.start_ns / 1e9:.6f} s to {meta.end_ns / 1e9:.6f} s of the capture's clock"),
        ("Activity from", esc(report.activity_source or "unavailable") + sampled),
        (
            "Iteration",
            f"{esc(found.name)}: {count(found.count)} of them, {duration(found.total_s)} in all"
            if found
            else "none found; the whole capture",
        ),
        (
            "Score",
            "S(v) = D<sub>v</sub> (1 − a<sub>v</sub>), seconds per iteration. D<sub>v</sub>: time of node v "
            "inside iterations, divided by their number. a<sub>v</sub> = Σ a<sub>i</sub> |inv ∩ i| / Σ |inv "
            "∩ i| over v's invocations and the samples i. Tier 1: a<sub>v</sub> &lt; 0.5; tier 2: below 0.8; "
            "at 0.8 or more a node is excluded. Rank: tier, then decreasing S. Eligible: D<sub>v</sub> ≥ "
            "min(τ<sub>abs</sub>, τ<sub>rel</sub> × mean iteration).",
        ),
        ("Made with", f"rlprof {esc(rlprof.__version__)}"),
    ]
    if meta.clock_uncertainty_ns:
        rows.insert(
            5, ("Clocks", f"of several captures, aligned to ± {duration(meta.clock_uncertainty_ns / 1e9)}")
        )
    return f"<dl>{''.join(f'<dt>{k}</dt><dd>{v}</dd>' for k, v in rows)}</dl>"
