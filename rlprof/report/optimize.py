"""The report of an optimisation as one HTML file that opens from disk and loads nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import polars as pl

import rlprof
from rlprof.overlap.optimize.log import setting
from rlprof.plots.embed import script_bundle, script_json
from rlprof.plots.gantt import gantt_chart, lay_out
from rlprof.plots.theme import TEXT
from rlprof.report.html import POLICY
from rlprof.report.text import count, duration, esc, percent, sentence
from rlprof.trace.output import atomic_path

#: Rows of each timeline.
BARS = 2_000


def write_optimization_report(result: Mapping[str, Any], path: Path) -> None:
    """Write the report.

    Parameters
    ----------
    result : mapping
        As of `rlprof.overlap.optimize.result.document`.
    path : pathlib.Path
        File to write; replaced if it is there.

    Raises
    ------
    OutputError
        If the file cannot be written; nothing is left half written.
    """
    page = optimization_html(result)
    with atomic_path(Path(path), force=True) as temporary:
        temporary.write_text(page, encoding="utf-8", errors="replace")


def optimization_html(result: Mapping[str, Any]) -> str:
    """Return the report as the text of a page; see `write_optimization_report`."""
    charts = timelines(result, width="container")
    specs = [
        f'<script type="application/json" data-chart="{key}" data-text="{TEXT}">'
        f"{script_json(chart.to_dict())}</script>"
        for key, (chart, _) in charts.items()
    ]
    styles, script = (
        files("rlprof.report").joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js")
    )
    drawing = f"<script>{script_bundle()}</script>\n" if specs else ""
    config = result["facts"].get("config", {})
    what = ", ".join(str(config[k]) for k in ("policy", "simulator", "algorithm", "preset") if k in config)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Overlap in {esc(what, 120)}</title>",
        f"<style>\n{styles}</style></head>",
        "<body><main>",
        "<header><h1>What may run at the same time, and what it gains</h1>"
        f'<p class="sub"><strong>{esc(what, 120)}</strong> · {esc(result["ended"], 200)}</p></header>',
        _cards(result),
        _section("The graph", "Steps from the native order to the one that is kept.", _steps(result)),
        _section("Timelines", "One iteration each, on one axis: what each component ran.", _figures(charts)),
        _section("Gain", "Complete iterations in turn, each of which is training.", _gain(result)),
        _section(
            "Levers",
            "Settings that were tried alone, in complete iterations; what is compared above has those that"
            " were kept on both sides.",
            _levers(result),
        ),
        _section(
            "What was tried", "In the order of the search; refusals name what forbids them.", _tried(result)
        ),
        _section("What it cost", "", _cost(result)),
        _section(
            "Estimates",
            "Durations on parts of a batch, and how much longer calls take beside others, with residuals.",
            _estimates(result),
        ),
        _section("Where these numbers come from", "", _provenance(result)),
        f"<footer>rlprof {esc(rlprof.__version__)}. This page is one file and loads nothing.</footer>",
        "</main>",
        *specs,
        f"{drawing}<script>\n{script}</script>",
        "</body></html>\n",
    ]
    return "\n".join(parts)


def timelines(result: Mapping[str, Any], *, width: Any = 800) -> dict[str, tuple[Any, tuple[str, ...]]]:
    """Charts of the iteration before and after, on one axis, with their notes; none that was not recorded."""
    found = {}
    tables = {name: task_table(result["timelines"][name]) for name in ("before", "after")}
    ends = [float(t["end_s"].max() or 0.0) for t in tables.values() if t.height]  # type: ignore[arg-type]
    for name, table in tables.items():
        if table.height:
            laid = lay_out(table, budget=BARS)
            chart = gantt_chart(laid, title=name, end_s=max(ends), width=width)
            found[name] = (chart, laid.notes)
    return found


def task_table(tasks: Sequence[Sequence[Any]]) -> pl.DataFrame:
    """Return a table of a Gantt chart: ``task``, ``name``, ``lane``, ``start_s``, ``end_s``."""
    rows = [(task, node.rpartition("/")[2], lane, start, end) for task, node, lane, start, end in tasks]
    schema = {"task": pl.String, "name": pl.String, "lane": pl.String}
    return pl.DataFrame(rows, schema={**schema, "start_s": pl.Float64, "end_s": pl.Float64}, orient="row")


def _section(title: str, lead: str, content: str) -> str:
    below = f'<p class="lead">{lead}</p>' if lead else ""
    return f"<section><h2>{title}</h2>{below}\n{content}\n</section>"


def _card(value: str, what: str) -> str:
    return f'<div class="card"><div class="value">{value}</div><div class="what">{what}</div></div>'


def _cards(result: Mapping[str, Any]) -> str:
    total, cost, active = result["total"], result["overhead"], result["sm_activity"]
    cards = []
    if total is None or not result["steps"]:
        cards.append(_card("no gain", "no overlap that was tried pays; the native order is kept"))
    else:
        ratio = total["reference"]["median_s"] / total["candidate"]["median_s"]
        spread = f"{duration(total['low_s'])} to {duration(total['high_s'])}"
        cards.append(
            _card(
                f"{ratio:.3f} ×",
                f"{esc(total['decision'])}; {duration(total['gain_s'])} an iteration ({spread})",
            )
        )
    if active["after"] is not None:
        cards.append(
            _card(
                percent(active["after"]), f"SM activity of an iteration; {percent(active['before'])} before"
            )
        )
    cards.append(_card(duration(cost["net_s"]), "net cost of the optimisation"))
    back = cost["paid_back_after_iterations"]
    if back is not None:
        cards.append(_card(f"{back:,.0f}", "iterations until it is paid back"))
    return f'<div class="cards">{"".join(cards)}</div>'


def _steps(result: Mapping[str, Any]) -> str:
    if not result["steps"]:
        return "<p>None.</p>"
    return f"<ol>{''.join(f'<li><code>{esc(s)}</code></li>' for s in result['steps'])}</ol>"


def _figures(charts: Mapping[str, tuple[Any, tuple[str, ...]]]) -> str:
    if not charts:
        return '<p class="none">No iteration was recorded.</p>'
    out = []
    for key, (_, notes) in charts.items():
        below = f'<p class="key">{sentence("; ".join(notes))}.</p>' if notes else ""
        out.append(f'<div class="chart" id="{key}"></div>{below}')
    return "\n".join(out)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col"><span>{h}</span></th>' for h in heads)
    body = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'
    )


def _gain(result: Mapping[str, Any]) -> str:
    rows = []
    compared = [(f"round {n}", r["validation"]) for n, r in enumerate(result["rounds"], 1)]
    if len([c for _, c in compared if c is not None]) > 1:
        compared.append(("in all", result["total"]))
    for name, c in compared:
        if c is not None:
            rows.append(
                [
                    name,
                    _spread(c["reference"]),
                    _spread(c["candidate"]),
                    f"{c['gain_frac']:+.1%}",
                    count(len(c["pairs"])),
                    esc(c["decision"]),
                    esc(c["reason"]),
                ]
            )
    if not rows:
        return '<p class="none">No graph came as far as complete iterations.</p>'
    return _table(["", "before", "after", "gain", "pairs", "decision", "ended"], rows)


def _spread(s: Mapping[str, Any]) -> str:
    return f"{duration(s['median_s'])} ({duration(s['low_s'])} to {duration(s['high_s'])})"


def _levers(result: Mapping[str, Any]) -> str:
    rows = []
    for row in result.get("levers", ()):
        c, change = row["result"], ""
        if row["outcome"] != "does not apply":
            change = f"{setting(row['before'])} → {setting(row['value'])}"
        rows.append(
            [
                esc(row["lever"]),
                esc(change),
                "" if c is None else _spread(c["reference"]),
                "" if c is None else _spread(c["candidate"]),
                "" if c is None else f"{c['gain_frac']:+.1%}",
                "" if c is None else count(len(c["pairs"])),
                esc(row["outcome"]),
                esc(row["reason"], 600),
            ]
        )
    if not rows:
        return '<p class="none">None was asked for.</p>'
    return _table(["lever", "change", "before", "after", "gain", "pairs", "outcome", "why"], rows)


def _tried(result: Mapping[str, Any]) -> str:
    rows = []
    for e in result["decisions"]:
        where = [str(e.get("round") or ""), esc(str(e.get("target", "")).rpartition("/")[2])]
        if e["what"] == "compared":
            c = e["result"]
            times = f"{duration(c['reference']['median_s'])} → {duration(c['candidate']['median_s'])}"
            gain = f"{c['gain_frac']:+.1%}, {c['decision']}"
            rows.append(
                [*where, esc(e["steps"]), f"{times} on {esc(e['comparison'])}", gain, esc(e["outcome"])]
            )
        elif e["what"] == "not measured":
            rows.append([*where, esc(e["steps"]), "", "", f"not measured: {esc(e['reason'], 600)}"])
        elif e["what"] == "candidates":
            rows += [
                [*where, esc(r["steps"]), "", "", f"refused: {esc(r['reason'], 600)}"] for r in e["refused"]
            ]
            rows += [
                [*where, esc(c["steps"]), "", "", "not tried: others come first"]
                for c in e["candidates"]
                if not c["kept"]
            ]
    if not rows:
        return '<p class="none">No window was found.</p>'
    return _table(["round", "window", "what", "comparison", "gain", "outcome"], rows)


def _cost(result: Mapping[str, Any]) -> str:
    cost = result["overhead"]
    back = cost["paid_back_after_iterations"]
    rows = [
        ["whole optimisation", duration(cost["total_s"])],
        ["of it training that counts", duration(cost["retained_training_s"])],
        ["net", duration(cost["net_s"])],
        ["gain an iteration", duration(cost["gain_s"])],
        ["paid back after", "never" if back is None else f"{back:,.0f} iterations"],
    ]
    return _table(["", ""], rows) + _parts(cost)


def _parts(cost: Mapping[str, Any]) -> str:
    """What each part of the work took, over all sessions; nothing where results do not tell it."""
    rows = [
        [
            esc(p["part"]) + (" (apart)" if p["apart"] else ""),
            duration(p["total_s"]),
            duration(p["retained_training_s"]),
            duration(p["net_s"]),
            count(p["iterations"]) + (f" ({p['lost_iterations']} lost)" if p["lost_iterations"] else ""),
            count(p["trials"]),
        ]
        for p in cost.get("parts", ())
    ]
    if not rows:
        return ""
    sessions = len(cost["sessions"])
    said = f"<p>In {count(sessions)} session{'' if sessions == 1 else 's'}.</p>"
    if unknown := cost["measurements_of_unknown_cost"]:
        said += f"<p>What {unknown} measurements of an earlier version took is not known.</p>"
    return said + _table(["part", "took", "training that counts", "net", "iterations", "trials"], rows)


def _estimates(result: Mapping[str, Any]) -> str:
    rows = []
    for row in result["batch_times"]:
        sizes = ", ".join(f"{b}: {duration(t)}" for b, t in row["medians_s"].items())
        line = "one size: no line"
        if row["per_sample_s"] is not None:
            line = f"{duration(row['fixed_s'])} + {duration(row['per_sample_s'])} a sample"
        rows.append(
            [esc(row["node"].rpartition("/")[2]), sizes, line, percent(row["worst_residual_frac"], 1)]
        )
    first = _table(["node", "median by batch size", "line", "worst residual"], rows) if rows else ""
    found = result["interference"]
    if not found["factors"]:
        return (
            first + f'<p class="none">No factors of interference: {sentence(found["reason"] or "none")}.</p>'
        )
    residual = found["residual_frac"]
    pairs = [
        [
            esc(f["node"].rpartition("/")[2]),
            esc(f["beside"].rpartition("/")[2]),
            f"{f['factor']:.2f} ×",
            count(f["calls"]),
            percent(residual.get(f["node"]), 1),
        ]
        for f in found["factors"]
    ]
    return (
        first
        + "<h3>Interference</h3>"
        + _table(["node", "beside", "takes", "calls", "median residual"], pairs)
    )


def _provenance(result: Mapping[str, Any]) -> str:
    facts = result["facts"]
    rows = [(k, esc(str(v), 300)) for k, v in facts.get("hardware", {}).items()]
    rows += [("Activity from", esc(r["source"], 200)) for r in result["rounds"][:1]]
    rows.append(("Made with", f"rlprof {esc(str(facts.get('rlprof', rlprof.__version__)))}"))
    return f"<dl>{''.join(f'<dt>{esc(k)}</dt><dd>{v}</dd>' for k, v in rows)}</dl>"
