"""The tables of the report: ranked windows, and shares of time at low activity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from rlprof.report.text import count, duration, esc, esc_path, percent

if TYPE_CHECKING:
    from rlprof.analysis.windows import WindowReport

#: Rows of a table in the page; the files beside the report hold all.
MOST_ROWS = 2_000
LOW_ROWS = 300

TIER_CELLS = {1: ('<span class="tier1">1</span>', 1), 2: ('<span class="tier2">2</span>', 2)}


def window_table(report: WindowReport) -> str:
    """The ranked windows as HTML: sortable, searchable, one row for each node and device."""
    frame = report.frame
    several_processes = frame["process"].n_unique() > 1
    devices = frame["device"].unique().sort(nulls_last=False).to_list()
    rows = frame.head(MOST_ROWS)
    top = frame["score_s"].max()
    best = float(top) if isinstance(top, (int, float)) and top > 0 else 1.0
    partial = bool((frame["coverage"].drop_nulls() < 0.995).any())
    heads = [
        _head("rank", "by tier, then by score", number=True, up=True),
        _head("node", "path of range names"),
    ]
    if several_processes:
        heads.append(_head("process", "process that marked the ranges"))
    heads += [
        _head("score", "D_v (1 − a_v): unused GPU time per iteration", number=True),
        _head("activity", "time-weighted mean activity, a_v", number=True),
        _head("tier", "1: below 50 %, 2: 50 to 80 %, excluded: 80 % or more", number=True, up=True),
        _head("calls", "invocations in the capture", number=True),
        _head("mean", "mean duration of one invocation, T(v)", number=True),
        _head("total", "time in the capture, children included", number=True),
        _head("self", "time in the capture without that of children", number=True),
    ]
    if partial:
        heads.append(_head("covered", "share of the time for which activity is known", number=True))
    targets = set(report.targets)
    body = "\n".join(
        _window_row(r, targets, best, several_processes, partial) for r in rows.iter_rows(named=True)
    )
    left = frame.height - rows.height
    more = (
        f'<p class="key">{left:,} more rows are in windows.csv, windows.json and windows.parquet.</p>'
        if left
        else ""
    )
    return (
        f'<div class="tools" data-for="windows">'
        f'<input type="search" placeholder="search nodes" aria-label="search nodes">{_device_choice(devices)}'
        f'<label><input type="checkbox"> innermost nodes only</label><output></output></div>\n'
        f'<div class="scroll"><table class="sortable" id="windows"><thead><tr>{"".join(heads)}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>{more}"
    )


def _head(name: str, tip: str, *, number: bool = False, up: bool = False) -> str:
    kind = ' class="n"' if number else ""
    first = ' data-up="1"' if up else ""
    return f'<th scope="col"{kind}{first} title="{esc(tip)}"><button type="button">{esc(name)}</button></th>'


def _device_choice(devices: list[int | None]) -> str:
    """A choice of device where there are several; rows over all of them have no device."""
    if len(devices) < 2:
        return ""
    options = "".join(
        f'<option value="{_device_key(d)}">{"all devices together" if d is None else f"GPU {d}"}</option>'
        for d in devices
    )
    return f'<label>device <select aria-label="device">{options}</select></label>'


def _device_key(device: int | None) -> str:
    return "all" if device is None else str(device)


def _window_row(
    row: dict[str, Any],
    targets: set[tuple[str, str]],
    best: float,
    several_processes: bool,
    partial: bool,
) -> str:
    node, process = str(row["node"]), str(row["process"])
    activity, tier, score = row["sm_activity"], row["tier"], row["score_s"]
    if tier in TIER_CELLS:
        tier_text, tier_key = TIER_CELLS[tier]
    elif activity is None:
        tier_text, tier_key = '<span class="unknown">–</span>', None
    else:
        tier_text, tier_key = '<span class="excluded">excluded</span>', 3
    calls = count(row["count"])
    if row["measured_count"] is not None and row["measured_count"] != row["count"]:
        calls += f" ({count(row['measured_count'])} measured)"
    mark = ' <span class="fill">fill first</span>' if row["rank"] and (node, process) in targets else ""
    cells = [_cell(str(row["rank"] or "–"), row["rank"]), f'<td class="node">{_path(node)}{mark}</td>']
    if several_processes:
        cells.append(f"<td>{esc(process, 60)}</td>")
    width = 0.0 if score is None or row["rank"] is None else min(100 * float(score) / best, 100)
    cells += [
        f'<td class="n bar" style="--w:{width:.1f}" data-v="{_key(score)}">{duration(score)}</td>',
        _cell(percent(activity, 1), activity),
        _cell(tier_text, tier_key),
        _cell(calls, row["count"]),
        _cell(duration(row["mean_s"]), row["mean_s"]),
        _cell(duration(row["total_s"]), row["total_s"]),
        _cell(duration(row["self_s"]), row["self_s"]),
    ]
    if partial:
        cells.append(_cell(percent(row["coverage"]), row["coverage"]))
    leaf = "1" if row["leaf"] else "0"
    return f'<tr data-device="{_device_key(row["device"])}" data-leaf="{leaf}">{"".join(cells)}</tr>'


def _cell(text: str, value: float | None) -> str:
    return f'<td class="n" data-v="{_key(value)}">{text}</td>'


def _key(value: float | None) -> str:
    return "" if value is None else f"{value:.9g}"


def _path(node: str) -> str:
    """A path with its last name set off, so that the eye finds it in a long one."""
    parents, slash, last = node.rpartition("/")
    # a line may break after a slash, and elsewhere only where a name is too long for any line
    kind = " long" if any(len(part) > 40 for part in node.split("/")) else ""
    before = f'<span class="path">{esc_path(parents)}{slash}<wbr></span>' if slash else ""
    return f'<span class="name{kind}">{before}<span class="leafname">{esc(last)}</span></span>'


def low_activity_table(report: WindowReport) -> str:
    """Shares of time below each threshold, by scope, as HTML."""
    low = report.low_activity
    thresholds = low["threshold"].unique().sort().to_list()
    wide = low.pivot(on="threshold", index="scope", values="fraction", maintain_order=True)
    rows = [
        f'<tr><td class="node">{_path(str(r[0]))}</td>'
        + "".join(_cell(percent(v, 1), v) for v in r[1:])
        + "</tr>"
        for r in wide.head(LOW_ROWS).iter_rows()
    ]
    heads = [_head("time of", "the iteration (or the capture), then every node")]
    heads += [_head(f"below {t * 100:.0f} %", "share of the covered time", number=True) for t in thresholds]
    left = wide.height - len(rows)
    more = f'<p class="key">{left:,} more are in windows.json.</p>' if left > 0 else ""
    return (
        f'<div class="scroll"><table class="sortable" id="low"><thead><tr>{"".join(heads)}</tr></thead>\n'
        f"<tbody>\n{chr(10).join(rows)}\n</tbody></table></div>{more}"
    )


def first_fractions(report: WindowReport) -> tuple[str, dict[float, float]] | None:
    """The scope that the fractions begin with (iteration or capture) and its share below each threshold."""
    low = report.low_activity
    if low.is_empty():
        return None
    scope = str(low["scope"][0])
    own = low.filter(pl.col("scope") == scope)
    return scope, dict(own.select("threshold", "fraction").iter_rows())
