"""Graphs of pipelines and plans: boxes in columns, arrows between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from rlprof.plots.budget import check_rows
from rlprof.plots.gantt import NAME_COLOURS
from rlprof.plots.theme import TEXT, style
from rlprof.text import clean, shorten

if TYPE_CHECKING:
    import altair as alt

    from rlprof.planning.layout import Drawing, DrawnNode

#: Colours of nodes by role or kind, and of edges by kind.
NODE_COLOURS = dict(
    zip(("generation", "inference", "training", "comm", "reshard"), NAME_COLOURS, strict=False)
)
EDGE_COLOURS = {"data": "#555555", "publication": "#c0392b", "state": "#8c6bb1", "order": "#b0b0b0"}
#: Size of a box and of the cell that it lies in, in pixels.
BOX, CELL = (200, 34), (260, 56)
LETTERS = 32
#: Arrows that lead back run a little below the middle of their boxes.
BACK_ROW = 0.2


def dag_chart(drawing: Drawing) -> alt.LayerChart:
    """Draw a graph that was laid out.

    Parameters
    ----------
    drawing : Drawing
        As given by `rlprof.planning.layout`.

    Raises
    ------
    RowBudgetError
        If there are more than 5,000 boxes or arrows.
    """
    import altair as alt

    nodes = pl.DataFrame(
        {
            "x": [float(n.column) for n in drawing.nodes],
            "y": [float(n.row) for n in drawing.nodes],
            "label": [shorten(clean(n.label), LETTERS) for n in drawing.nodes],
            "full": [clean(n.label) for n in drawing.nodes],
            "detail": [shorten(clean(n.detail), LETTERS + 4) for n in drawing.nodes],
            "kind": [n.kind for n in drawing.nodes],
        }
    )
    half = BOX[0] / CELL[0] / 2
    ends = [(drawing.nodes[e.source], drawing.nodes[e.target], e) for e in drawing.edges]
    edges = pl.DataFrame(
        {
            "x": [u.column + (half if forward(u, v) else -half) for u, v, _ in ends],
            "y": [u.row + (0.0 if forward(u, v) else BACK_ROW) for u, v, _ in ends],
            "x2": [v.column - (half if forward(u, v) else -half) for u, v, _ in ends],
            "y2": [v.row + (0.0 if forward(u, v) else BACK_ROW) for u, v, _ in ends],
            "turn": [90.0 if forward(u, v) else 270.0 for u, v, _ in ends],
            "edge": [e.kind for _, _, e in ends],
            "from": [clean(u.label) for u, _, _ in ends],
            "to": [clean(v.label) for _, v, _ in ends],
            "carries": [clean(e.label) for _, _, e in ends],
        },
        schema_overrides=dict.fromkeys(("x", "y", "x2", "y2", "turn"), pl.Float64),
    )
    check_rows("graph", nodes)
    check_rows("graph", edges)
    lo_x, hi_x = _span(nodes["x"])
    lo_y, hi_y = _span(nodes["y"])
    x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[lo_x, hi_x], nice=False))
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[hi_y, lo_y], nice=False))
    kinds = [k for k in NODE_COLOURS if k in set(nodes["kind"])]
    edge_kinds = [k for k in EDGE_COLOURS if k in set(edges["edge"])]
    lines = (
        alt.Chart(edges)
        .mark_rule(opacity=0.7, strokeWidth=1.2)
        .encode(
            x,
            y,
            x2="x2:Q",
            y2="y2:Q",
            color=_colour("edge", EDGE_COLOURS, edge_kinds),
            tooltip=["edge:N", "from:N", "to:N", "carries:N"],
        )
    )
    tips = (
        alt.Chart(edges)
        .mark_point(shape="triangle", filled=True, size=45, opacity=0.9)
        .encode(
            x=alt.X("x2:Q", axis=None, scale=alt.Scale(domain=[lo_x, hi_x], nice=False)),
            y=alt.Y("y2:Q", axis=None, scale=alt.Scale(domain=[hi_y, lo_y], nice=False)),
            angle=alt.Angle("turn:Q", scale=None),
            color=_colour("edge", EDGE_COLOURS, edge_kinds),
        )
    )
    boxes = (
        alt.Chart(nodes)
        .mark_rect(width=BOX[0], height=BOX[1], cornerRadius=4, stroke=TEXT, strokeWidth=0.5, opacity=1)
        .encode(x, y, fill=_fill(kinds), tooltip=["full:N", "detail:N", "kind:N"])
    )
    text = (
        alt.Chart(nodes)
        .mark_text(fontSize=10, dy=-6, color="white", fontWeight="bold")
        .encode(x, y, text="label:N")
    )
    below = alt.Chart(nodes).mark_text(fontSize=9, dy=8, color="white").encode(x, y, text="detail:N")
    chart = alt.layer(lines, tips, boxes, text, below).properties(
        title=clean(drawing.title), width=CELL[0] * (hi_x - lo_x), height=CELL[1] * (hi_y - lo_y)
    )
    return style(chart)  # type: ignore[no-any-return]


def forward(source: DrawnNode, target: DrawnNode) -> bool:
    """Whether an arrow between two boxes leads right."""
    return target.column > source.column


def _span(values: pl.Series) -> tuple[float, float]:
    numbers = values.to_list() or [0.0]
    return min(numbers) - 0.6, max(numbers) + 0.6


def _colour(field: str, colours: dict[str, str], kinds: list[str]) -> Any:
    import altair as alt

    scale = alt.Scale(domain=kinds, range=[colours[k] for k in kinds])
    return alt.Color(
        f"{field}:N",
        scale=scale,
        legend=alt.Legend(title="waits for", symbolType="square", symbolStrokeWidth=4),
    )


def _fill(kinds: list[str]) -> Any:
    import altair as alt

    scale = alt.Scale(domain=kinds, range=[NODE_COLOURS[k] for k in kinds])
    return alt.Fill("kind:N", scale=scale, legend=alt.Legend(title="node"))
