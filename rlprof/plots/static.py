"""Charts as files, drawn without a browser and without a network."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from rlprof.errors import UsageError
from rlprof.plots.embed import page
from rlprof.trace.output import atomic_path

SUFFIXES = (".png", ".svg", ".html", ".json")
#: Width of a chart that otherwise takes the page's.
PAGE_WIDTH = 900


def save(chart: Any, path: str | Path, *, scale: float = 2.0, force: bool = True) -> Path:
    """Write a chart as PNG, SVG, self-contained HTML or Vega-Lite JSON, by the file's suffix.

    Parameters
    ----------
    chart : altair.Chart
        Any Altair chart.
    path : str or pathlib.Path
        Ends in ``.png``, ``.svg``, ``.html`` or ``.json``.
    scale : float
        Pixels per unit of a PNG.
    force : bool
        Replace a file that is there.

    Returns
    -------
    pathlib.Path
        `path`.

    Raises
    ------
    UsageError
        If the suffix is none of these.
    OutputError
        If the file cannot be written; nothing is left half written.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(
            f"charts are written as {', '.join(SUFFIXES)}, not as {suffix or 'a file without suffix'}",
            where=path,
            hint="give the file one of these suffixes",
        )
    content = render(chart, suffix, scale=scale)
    with atomic_path(path, force=force) as temporary:
        temporary.write_bytes(content)
    return path


def render(chart: Any, suffix: str, *, scale: float = 2.0) -> bytes:
    """A chart as the content of a file with `suffix` (``.png``, ``.svg``, ``.html`` or ``.json``)."""
    spec = fixed_width(chart.to_dict())
    if suffix == ".json":
        return json.dumps(spec, indent=1, ensure_ascii=False).encode()
    import vl_convert

    if suffix == ".png":
        return bytes(vl_convert.vegalite_to_png(spec | {"background": "white"}, scale=scale))
    if suffix == ".svg":
        return str(vl_convert.vegalite_to_svg(spec)).encode()
    return page(spec).encode("utf-8", "replace")


def fixed_width(spec: dict[str, Any]) -> dict[str, Any]:
    """`spec` with a width in pixels where it asks for that of the page."""
    return {**spec, "width": PAGE_WIDTH} if spec.get("width") == "container" else spec


def mime_bundle(spec: dict[str, Any]) -> dict[str, Any]:
    """A chart as PNG and SVG for a notebook, which then shows in every viewer and needs no script."""
    import vl_convert

    spec = fixed_width(spec)
    svg = vl_convert.vegalite_to_svg(spec)
    png = vl_convert.svg_to_png(svg, scale=2.0)  # as from the chart itself, which would be laid out once more
    return {"image/svg+xml": svg, "image/png": base64.b64encode(png).decode()}


def display_static() -> None:
    """Show Altair charts in notebooks as pictures, for batch runs (papermill) and for sharing.

    Charts drawn by scripts are lost when a notebook is run without a browser; pictures are not.
    `altair.renderers.enable("default")` undoes it.
    """
    import altair as alt

    alt.renderers.register("rlprof-static", lambda spec, **_: mime_bundle(spec))
    alt.renderers.enable("rlprof-static")
