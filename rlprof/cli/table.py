"""The ranking for people: a table that fits a terminal, or markdown."""

from __future__ import annotations

import io
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlprof.text import clean, shorten

if TYPE_CHECKING:
    from rlprof.analysis.windows import WindowReport
    from rlprof.trace.trace import Trace

SOURCES = {
    "sm_counters": "SM-activity counters",
    "kernel_union": "kernel intervals (busy time: an upper bound of SM activity; no counters in the capture)",
    "host_cores": "host cores (no GPU activity in the capture)",
}
TARGET = "*"
EXCLUDED = "excl"
LOW_BELOW_FRAC = 0.5
HEADINGS = ("rank", "", "node", "tier", "calls", "mean", "total", "active", "<50 %", "score")
#: A capture whose activity is known for less than this much of its duration is said to be.
_SPAN_FRAC = 0.99
#: Width of all columns but node and process, with the gaps between them.
_OTHER_COLUMNS = 56
_MIN_WIDTH, _MAX_WIDTH, _WIDE = 80, 140, 100
#: Labels come from captures: of any length, with any characters. What is longer is cut.
_NAME_LETTERS, _LINE_LETTERS = 300, 2_000


def as_table(
    report: WindowReport, trace: Trace, top: int, width: int | None = None, *, written: bool = False
) -> str:
    """Lay out the ranking as text.

    Parameters
    ----------
    report : WindowReport
        The ranking.
    trace : Trace
        The capture, for the header.
    top : int
        Rows to show.
    width : int, optional
        Columns of text; the terminal's, between 80 and 140, if not given.
    written : bool
        Whether the report is written as well, so that no hint is needed.

    Returns
    -------
    str
        Lines of at most `width` columns.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=io.StringIO(), width=width or _terminal_width(), highlight=False, no_color=True)
    lines = [_wrapped(line, console.width) for line in header(report, trace)]
    rows = _shown(report, top)
    if rows:
        paths = [clean(str(r["node"])) for r in rows]
        several = len({r["process"] for r in rows}) > 1
        processes = [shorten(str(r["process"]), _NAME_LETTERS) for r in rows] if several else None
        taken = 1 + max(7, *(len(p) for p in processes)) if processes else 0
        # calls times mean: the one column to spare when there is little room
        spared = HEADINGS.index("total") if processes and console.width < _WIDE else None
        if spared is not None:
            taken -= 8
        names = short_names(paths, limit=max(16, console.width - _OTHER_COLUMNS - taken))
        table = Table(box=None, padding=(0, 1, 0, 0), collapse_padding=True, pad_edge=False)
        table.add_column("rank", justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
        table.add_column("node", overflow="fold")
        if processes:
            table.add_column("process", no_wrap=True)
        for title in (h for i, h in enumerate(HEADINGS) if i > 2 and i != spared):
            table.add_column(title, justify="right", no_wrap=True)
        low = _low_of(report)
        for i, (row, name) in enumerate(zip(rows, names, strict=True)):
            cells = _cells(row, _cut_left(name), report, low)
            if spared is not None:
                del cells[spared]
            table.add_row(*(Text(c) for c in cells[:3] + (processes or [])[i : i + 1] + cells[3:]))
        with console.capture() as drawn:
            console.print(table)
        lines += ["", *(line.rstrip() for line in drawn.get().splitlines())]
    lines += ["", *(_wrapped(line, console.width) for line in footer(report, len(rows), written=written))]
    return "\n".join(lines) + "\n"


def as_markdown(report: WindowReport, trace: Trace, top: int, *, written: bool = False) -> str:
    """Lay out the ranking as markdown: header lines, a table with full node paths, notes."""
    rows = _shown(report, top)
    lines = [*(f"- {_text(line)}" for line in header(report, trace)), ""]
    if rows:
        lines += ["| " + " | ".join((*HEADINGS[:3], "process", *HEADINGS[3:])) + " |"]
        lines += ["| ---: | --- | --- | --- | " + " | ".join(["---:"] * len(HEADINGS[3:])) + " |"]
        low = _low_of(report)
        for row in rows:
            name = _code(_cut_left(clean(str(row["node"]))))
            cells = [_escape(c) for c in _cells(row, name, report, low)]
            cells.insert(3, _text(str(row["process"])))
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    # a line that begins with the mark of targets would be an item of a list
    lines += [
        _text(line).replace(TARGET, rf"\{TARGET}", 1) + "  "
        if line.startswith(TARGET)
        else _text(line) + "  "
        for line in footer(report, len(rows), written=written)
    ]
    return "\n".join(lines) + "\n"


def header(report: WindowReport, trace: Trace) -> list[str]:
    """What was read, where activity comes from, what the iteration is, how much of it is idle."""
    lines = [_capture_line(trace)]
    source = report.activity_source
    if source is None:
        lines.append("activity: unavailable (see the notes)")
    else:
        period = report.sample_period_s
        every = f", one sample every {seconds(period)}" if period else ""
        lines.append(f"activity: {SOURCES.get(source, source)}{every}")
    if report.iteration is None:
        lines.append("iteration: none found; the whole capture is taken as one (--iteration NAME to choose)")
    else:
        it = report.iteration
        mean = it.total_s / it.count if it.count else 0.0
        lines.append(f"iteration: {it.name}, {it.count} of them, mean {seconds(mean)}")
    lines += _low_activity_lines(report)
    return lines


def footer(report: WindowReport, shown: int, *, written: bool = False) -> list[str]:
    """Notes, and what to do next."""
    lines: list[str] = []
    total = report.frame.height
    ranked = report.frame["rank"].drop_nulls().len()
    per = "per iteration " if report.iteration is not None else ""
    if not ranked:
        lines.append(f"No window can be ranked: {why_nothing_ranked(report)}.")
    elif shown < total:
        lines.append(
            f"{shown} of {total} rows; all: --format csv. score = seconds {per}that the window leaves idle."
        )
    else:
        lines.append(f"score = seconds {per}that the window leaves idle.")
    if report.frame["device"].drop_nulls().n_unique() > 1:
        lines.append("Rows are means over the GPUs that a node's process uses; per GPU: --format csv.")
    if report.targets:
        lines.append(f"{TARGET} fill first: low activity, long, and not inside one another.")
    lines += [f"note: {note}" for note in report.notes]
    if ranked:
        report_hint = "" if written else "--out DIR writes the report with charts; "
        lines.append(f"next: {report_hint}`rlprof doctor TRACE` checks the capture.")
    else:
        lines.append("next: `rlprof doctor TRACE` tells what the capture lacks and how to record it.")
    return lines


def why_nothing_ranked(report: WindowReport) -> str:
    """One clause: why no window has a rank."""
    frame = report.frame
    if frame.is_empty():
        return "there are no ranges, so there is no part of the program to rank"
    if report.activity_source is None:
        return "the activity of the GPU is unknown"
    if frame["sm_activity"].drop_nulls().is_empty():
        return "no activity is known while the ranges run"
    if not frame["eligible"].any():
        return "no range lasts long enough (--tau-abs, --tau-rel) inside an iteration"
    return "every range that lasts long enough is excluded: its activity is 0.8 or more"


def seconds(value: float | None) -> str:
    """A duration with three significant digits and a unit that fits."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0:
        return "0 s"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
        if abs(value) >= size * 0.9995 or unit == "ns":
            scaled = value / size
            digits = 2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0
            return f"{scaled:,.{digits}f} {unit}"
    raise AssertionError("the loop ends with ns")


def short_names(names: Sequence[str], limit: int) -> list[str]:
    """Shorten node paths from the left, as far as they stay different from each other.

    A path is cut at its slashes until it fits `limit` characters, and never so far that it is the tail of
    another one; one that cannot be cut so far stays longer.
    """
    # how many of the names end in each tail
    tails: Counter[str] = Counter()
    for name in set(names):
        if len(name) > _NAME_LETTERS:
            continue
        at = 0
        while at >= 0:
            tails[name[at:]] += 1
            at = name.find("/", at) + 1 or -1
    out = []
    for name in names:
        short = name
        at = 0
        while len(short) > limit and (at := name.find("/", at) + 1):
            tail = name[at:]
            # its own is one of them
            if tails[tail] > (len(name) <= _NAME_LETTERS):
                break
            short = f"…/{tail}"
        out.append(short)
    return out


def _shown(report: WindowReport, top: int) -> list[dict[str, Any]]:
    frame = report.frame
    over_all = frame.filter(frame["device"].is_null())
    # rows over all devices where there are several; rows of single ones are in the other formats
    return (frame if over_all.is_empty() else over_all).head(min(top, frame.height)).to_dicts()


def _low_of(report: WindowReport) -> dict[str, float]:
    """Fraction of each scope's time that is spent below half activity."""
    rows = report.low_activity.filter(report.low_activity["threshold"] == LOW_BELOW_FRAC)
    return {str(r["scope"]): r["fraction"] for r in rows.to_dicts() if r["fraction"] is not None}


def _cells(row: dict[str, Any], name: str, report: WindowReport, low: dict[str, float]) -> list[str]:
    from_some = row["measured_count"] is not None and row["measured_count"] < row["count"]
    activity = "-" if row["sm_activity"] is None else f"{100 * row['sm_activity']:.1f} %"
    target = (row["node"], row["process"]) in set(report.targets)
    # scopes of paths that several processes have are told apart by the process
    share = low.get(f"{row['process']}:{row['node']}", low.get(str(row["node"])))
    tier = row["tier"]
    if tier is None and (row["node"], row["process"]) in report.excluded:
        tier = EXCLUDED
    return [
        "-" if row["rank"] is None else str(row["rank"]),
        TARGET if target else "",
        name,
        "-" if tier is None else str(tier),
        f"{'~' if from_some else ''}{row['count']:,}",
        seconds(row["mean_s"]),
        seconds(row["total_s"]),
        activity,
        "-" if share is None else f"{100 * share:.0f} %",
        seconds(row["score_s"]),
    ]


def _capture_line(trace: Trace) -> str:
    meta = trace.meta
    files = meta.files if len(meta.files) <= 3 else (*meta.files[:2], f"and {len(meta.files) - 2} more")
    devices = trace.table("devices", ["device", "name", "sm_count"])
    gpus = [f"{name}{f' ({sms} SMs)' if sms else ''}" for _, name, sms in devices.iter_rows() if name]
    described = f"{devices.height} GPU{'s' if devices.height != 1 else ''}"
    if gpus:
        described += f": {gpus[0]}" + (" and others" if len(set(gpus)) > 1 else "")
    count = trace.table("processes", ["process"]).height
    return (
        f"{', '.join(files)} ({meta.format}), {seconds(meta.duration_ns / 1e9)}, {described}, "
        f"{count} process{'es' if count != 1 else ''}"
    )


def _low_activity_lines(report: WindowReport) -> list[str]:
    """How much of the iteration (or of the capture) is spent below the thresholds."""
    rows = report.low_activity.to_dicts()
    shares = [
        f"{100 * r['fraction']:.0f} % below {100 * r['threshold']:.0f} % activity"
        for r in rows
        if r["scope"] == rows[0]["scope"] and r["fraction"] is not None
    ]
    if not shares:
        return []
    period = report.sample_period_s
    at = f" (sampled every {seconds(period)}: the share depends on it)" if period else ""
    of, span = str(rows[0]["scope"]), report.activity_span_s
    if report.iteration is None and span is not None and span < _SPAN_FRAC * report.meta.duration_ns / 1e9:
        of += f" with known activity ({seconds(span)})"
    return [f"time of {of}: {', '.join(shares)}{at}"]


def _wrapped(line: str, width: int) -> str:
    import textwrap

    line = shorten(line, _LINE_LETTERS)
    return textwrap.fill(line, width, subsequent_indent="    ", break_on_hyphens=False)


def _terminal_width() -> int:
    import shutil

    return max(_MIN_WIDTH, min(_MAX_WIDTH, shutil.get_terminal_size((_MIN_WIDTH, 24)).columns))


def _cut_left(name: str) -> str:
    """The end of a very long name: what tells it from its relatives."""
    return name if len(name) <= _NAME_LETTERS else f"…{name[1 - _NAME_LETTERS :]}"


def _code(name: str) -> str:
    """A name as a code span of markdown, whatever backticks it holds."""
    longest = max((len(run) for run in re.findall("`+", name)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if longest else ""
    return f"{fence}{pad}{name}{pad}{fence}"


def _text(line: str) -> str:
    """A line of markdown in which nothing from a capture is HTML or ends a cell."""
    return _escape(shorten(line, _LINE_LETTERS)).replace("<", r"\<")


def _escape(text: str) -> str:
    return text.replace("|", "\\|")
