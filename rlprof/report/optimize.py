"""The report of an optimisation as one HTML file that opens from disk and loads nothing."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import rlprof
from rlprof.plots.embed import script_bundle, script_json
from rlprof.plots.theme import TEXT
from rlprof.report.html import POLICY
from rlprof.report.optimize_charts import task_table, timelines
from rlprof.report.optimize_sections import headline, sections, title_of
from rlprof.report.optimize_stored import reads_result, whole
from rlprof.report.text import esc
from rlprof.trace.output import atomic_path

__all__ = ["optimization_html", "task_table", "timelines", "write_optimization_report"]


def write_optimization_report(result: Mapping[str, Any], path: Path) -> None:
    """Write the report.

    Parameters
    ----------
    result : mapping
        As of `rlprof.overlap.optimize.result.document`, or of `rlprof.report.optimize_stored.read_result`.
    path : pathlib.Path
        File to write; replaced if it is there.

    Raises
    ------
    OutputError
        If the file cannot be written; nothing is left half written.
    RlprofError
        If it is no result of an optimisation.
    """
    page = optimization_html(result)
    with atomic_path(Path(path), force=True) as temporary:
        temporary.write_text(page, encoding="utf-8", errors="replace")


@reads_result
def optimization_html(result: Mapping[str, Any]) -> str:
    """Return the report as the text of a page; see `write_optimization_report`."""
    result = whole(result)
    shown = sections(result, width="container")
    specs = [
        f'<script type="application/json" data-chart="{esc(figure.key)}" data-text="{TEXT}">'
        f"{script_json(figure.chart.to_dict())}</script>"
        for section in shown.values()
        for figure in section.figures
    ]
    styles, script = (
        files("rlprof.report").joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js")
    )
    drawing = f"<script>{script_bundle()}</script>\n" if specs else ""
    what = esc(title_of(result), 120)
    about = " · ".join(esc(str(told)) for told in (result["facts"].get("date"), result["ended"]) if told)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Overlap in {what}</title>",
        f"<style>\n{styles}</style></head>",
        "<body><main>",
        "<header><h1>What may run at the same time, and what it gains</h1>"
        f'<p class="sub"><strong>{what}</strong> · {about}</p></header>',
        _cards(result),
        *(section.html() for section in shown.values()),
        f"<footer>rlprof {esc(rlprof.__version__)}. This page is one file and loads nothing.</footer>",
        "<noscript><p>Charts need JavaScript; the tables do not.</p></noscript>",
        "</main>",
        *specs,
        f"{drawing}<script>\n{script}</script>",
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _cards(result: Mapping[str, Any]) -> str:
    cards = "".join(
        f'<div class="card"><div class="value">{esc(value)}</div><div class="what">{esc(what)}</div></div>'
        for value, what in headline(result)
    )
    return f'<div class="cards">{cards}</div>'
