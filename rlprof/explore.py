"""The explorer of the notebooks: choose a node, a device, a span and a view, and see numbers and chart.

Needs ipywidgets (extra ``notebook``), loaded on first use. Charts are pictures drawn in Python, so that the
explorer needs no network, and a notebook that was run in a batch still shows one.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any, Literal, get_args

import polars as pl

from rlprof.errors import RlprofError, UsageError
from rlprof.plots.static import render
from rlprof.plots.theme import short_path
from rlprof.plots.views import Views
from rlprof.text import clean
from rlprof.trace.trace import Trace
from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    from rlprof.analysis.windows import WindowReport

View = Literal["activity over time", "distribution", "timeline"]
VIEWS: tuple[View, ...] = get_args(View)
#: A node: its path and the label of its process.
Key = tuple[str, str]


@dataclass(frozen=True)
class Choice:
    """What the explorer shows.

    Parameters
    ----------
    node : (str, str)
        Path of the node and label of its process.
    device : int
        Device whose activity is drawn.
    start_s, end_s : float
        Span, in seconds of the trace's clock; of no concern to ``distribution``.
    view : str
        One of `VIEWS`.
    """

    node: Key
    device: int
    start_s: float
    end_s: float
    view: View


def node_keys(report: WindowReport) -> dict[str, Key]:
    """Label to show and key of every node, best-ranked first."""
    rows = report.frame.unique(["node", "process"], keep="first", maintain_order=True)
    several = rows["process"].n_unique() > 1
    out: dict[str, Key] = {}
    for node, process, rank in rows.select("node", "process", "rank").iter_rows():
        text = f"{rank if rank is not None else '-':>3}  {short_path(node, 60)}"
        text += f"  ({clean(process)})" if several else ""
        while text in out:  # two nodes may look alike once shortened
            text += " "
        out[text] = (node, process)
    return out


def describe(report: WindowReport, key: Key) -> tuple[str, ...]:
    """What the ranking says of one node, in sentences.

    Parameters
    ----------
    report : WindowReport
        Ranked windows.
    key : (str, str)
        Path of the node and label of its process.

    Returns
    -------
    tuple of str
        Times; activity; whether and why it is ranked.

    Raises
    ------
    UsageError
        If the report has no such node.
    """
    rows = report.frame.filter((pl.col("node") == key[0]) & (pl.col("process") == key[1]))
    if rows.is_empty():
        raise UsageError(f"no node is called {key[0]!r} in process {key[1]!r}", hint="see report.frame")
    row = rows.row(0, named=True)
    mean_s, calls = row["mean_s"], "call" if row["count"] == 1 else "calls"
    mean = f"{mean_s:.3g} s" if mean_s >= 1 else f"{mean_s * 1e3:.3g} ms"
    out = [f"{row['count']:,} {calls} of {mean} on average, {row['total_s']:.3g} s in all."]
    activity, score_s = row["sm_activity"], row["score_s"]
    if activity is None:
        return (*out, "Activity is unavailable; see the notes of the report.")
    below = report.low_activity.filter(pl.col("scope").is_in([key[0], f"{key[1]}:{key[0]}"]))
    shares = ", ".join(f"{f:.0%} of its time below {t:.0%}" for _, t, f in below.iter_rows())
    out.append(f"Activity {activity:.1%}" + (f" ({shares})." if shares else "."))
    if score_s is None:
        return (*out, "It never runs inside an iteration, so it has no rank.")
    found = report.iteration
    share = (
        f", {score_s / (found.total_s / found.count):.0%} of an iteration" if found and found.count else ""
    )
    out.append(f"Room for {score_s:.3g} s of work that fills the GPU, per iteration{share}.")
    if row["tier"] is None:
        out.append("Excluded: too active to be a window.")
    elif not row["eligible"]:
        out.append("Not eligible: too short per iteration.")
    else:
        out.append(f"Rank {row['rank']}, tier {row['tier']}.")
    return tuple(out)


def draw(views: Views, choice: Choice) -> bytes | Unavailable:
    """The chart of a choice as a PNG, the chosen node marked in it.

    Parameters
    ----------
    views : Views
        Of the trace.
    choice : Choice
        What to draw.

    Returns
    -------
    bytes or Unavailable

    Raises
    ------
    UsageError
        If the span is empty or the view has another name than one of `VIEWS`.
    """
    name = short_path(choice.node[0], 80)
    # the charts mark the targets of the ranking: here, the one that was chosen
    marked = replace(views, report=replace(views.report, targets=(choice.node,)))
    made: Any
    if choice.view == "distribution":
        made = marked.distribution([choice.node], title=name, width=700)
    else:
        lo, hi = marked.span(choice.start_s, choice.end_s)
        if choice.view == "activity over time":
            made = marked.activity(choice.device, lo_ns=lo, hi_ns=hi, title=name, width=700)
        elif choice.view == "timeline":
            made = marked.timeline(lo_ns=lo, hi_ns=hi, title="Timeline", width=700)
        else:
            raise UsageError(f"there is no view {choice.view!r}", hint=f"one of {', '.join(VIEWS)}")
    return made if isinstance(made, Unavailable) else render(made[0], ".png", scale=1.5)


class Explorer:
    """Widgets around `describe` and `draw`; show it as the last value of a cell.

    Parameters
    ----------
    trace : Trace
        The capture.
    report : WindowReport, optional
        Its ranked windows, if they were made already.

    Raises
    ------
    UsageError
        If the capture has no ranges.
    RlprofError
        If ipywidgets is not installed.
    """

    def __init__(self, trace: Trace, report: WindowReport | None = None) -> None:
        self._views = Views.of(trace, report)
        self._keys = node_keys(self._views.report)
        if not self._keys:
            raise UsageError(
                f"nothing to explore: {trace.missing.get('ranges', 'the capture has no ranges')}",
                where=" + ".join(trace.meta.files),
                hint="annotate the program with NVTX ranges and capture again",
            )
        self.widget = self._build()
        self._refresh()

    def _build(self) -> Any:
        try:
            import ipywidgets as w  # type: ignore[import-untyped]
        except ImportError as error:
            raise RlprofError("ipywidgets is not installed", hint="pip install 'rlprof[notebook]'") from error
        views = self._views
        lo, hi = (t / 1e9 for t in views.span())
        devices = [s.device for s in views.signals] if not isinstance(views.signals, Unavailable) else [-1]
        wide = w.Layout(width="98%")
        first = next(
            (text for text, key in self._keys.items() if key in views.marked(1)), next(iter(self._keys))
        )
        self._node = w.Dropdown(options=list(self._keys), value=first, description="node", layout=wide)
        self._device = w.Dropdown(
            options=[(views.device_label(d), d) for d in devices],
            description="device",
            disabled=len(devices) < 2,
        )
        self._view = w.ToggleButtons(options=list(VIEWS), description="view")
        self._span = w.FloatRangeSlider(
            value=(lo, hi), min=lo, max=hi, step=(hi - lo) / 1_000, description="span, s",
            readout_format=".3f", continuous_update=False, layout=wide,
        )  # fmt: skip
        self._text = w.HTML()
        self._image = w.Image(format="png", layout=w.Layout(max_width="100%"))
        for control in (self._node, self._device, self._view, self._span):
            control.observe(lambda _: self._refresh(), names="value")
        controls = [self._node, self._view, self._span]
        if len(devices) > 1:
            controls.insert(1, self._device)
        return w.VBox([*controls, self._text, self._image])

    @property
    def choice(self) -> Choice:
        """What is shown now."""
        start, end = self._span.value
        return Choice(self._keys[self._node.value], self._device.value, start, end, self._view.value)

    def _refresh(self) -> None:
        chosen = self.choice
        lines = [*describe(self._views.report, chosen.node)]
        drawn = b"" if chosen.end_s <= chosen.start_s else draw(self._views, chosen)
        if isinstance(drawn, Unavailable):
            lines.append(str(drawn))
            drawn = b""
        self._lines = tuple(lines)
        self._text.value = "<br>".join(escape(line) for line in lines)
        self._image.value = drawn

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        """The widgets, and a picture for viewers that cannot run them."""
        bundle = dict(self.widget._repr_mimebundle_(**options) or {})
        bundle["text/plain"] = "\n".join((self._node.value.strip(), *self._lines))
        if self._image.value:
            bundle["image/png"] = base64.b64encode(self._image.value).decode()
        return bundle


def explore(trace: Trace, report: WindowReport | None = None) -> Explorer:
    """Explore the windows of a trace in a notebook; see `Explorer`."""
    return Explorer(trace, report)
