"""``trace.plot``: charts of a trace for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from rlprof.errors import UsageError
from rlprof.plots.views import Views
from rlprof.trace.trace import Trace
from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    import altair as alt


class PlotAccessor:
    """Charts of a trace.

    Each method gives an Altair chart of at most 5,000 rows, or `Unavailable` with the reason. The first call
    ranks the trace's windows; later ones use that ranking again.

    Parameters
    ----------
    trace : Trace
        The capture.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._views: Views | None = None

    def _of(self) -> Views:
        if self._views is None:
            self._views = Views.of(self._trace)
        return self._views

    def timeline(
        self, start_s: float | None = None, end_s: float | None = None, *, process: str | None = None
    ) -> alt.LayerChart | Unavailable:
        """Ranges of each process and thread as bars by depth, and the devices' kernels below.

        Ranges too short to be seen are merged into pale blocks, the subtitle says how many.

        Parameters
        ----------
        start_s, end_s : float, optional
            Span to draw, in seconds of the trace's clock; by default that of the ranges.
        process : str, optional
            Label of the only process to draw.

        Raises
        ------
        UsageError
            If the span is empty or no process has that label.
        """
        views = self._of()
        lo, hi = views.span(start_s, end_s)
        made = views.timeline(lo_ns=lo, hi_ns=hi, process=process, title="Timeline")
        return made if isinstance(made, Unavailable) else made[0]

    def activity(
        self, start_s: float | None = None, end_s: float | None = None, *, device: int | None = None
    ) -> alt.LayerChart | Unavailable:
        """Activity of a device over time: mean, minimum and maximum of each bin, the windows marked.

        Parameters
        ----------
        start_s, end_s : float, optional
            Span to draw, in seconds of the trace's clock; by default that of the ranges.
        device : int, optional
            Device number; by default the first of which activity is known.
        """
        views = self._of()
        if isinstance(views.signals, Unavailable):
            return views.signals
        chosen = views.signals[0].device if device is None else device
        lo, hi = views.span(start_s, end_s)
        made = views.activity(chosen, lo_ns=lo, hi_ns=hi, title=f"Activity of {views.device_label(chosen)}")
        return made if isinstance(made, Unavailable) else made[0]

    def distribution(self, *nodes: str) -> alt.LayerChart | Unavailable:
        """How the time of nodes is spread over activity, with the 50 % and 80 % lines.

        Parameters
        ----------
        *nodes : str
            Paths of nodes, or the last parts of them; by default the best-ranked nodes.

        Raises
        ------
        UsageError
            If no node has such a path.
        """
        views = self._of()
        windows = [w for node in nodes for w in _matching(views, node)] if nodes else None
        made = views.distribution(windows, title="Time of each node by activity")
        return made if isinstance(made, Unavailable) else made[0]

    def windows(self, top: int = 20) -> alt.LayerChart | Unavailable:
        """The best-ranked windows by unused time, D_v (1 - a_v), coloured by tier.

        Parameters
        ----------
        top : int
            Most windows to draw.
        """
        made = self._of().ranking(top=top, title="Low-activity windows by unused time")
        return made if isinstance(made, Unavailable) else made[0]


def _matching(views: Views, node: str) -> list[tuple[str, str]]:
    """Windows whose path is `node`, else whose path ends in it."""
    frame = views.overall().select("node", "process")
    exact = frame.filter(pl.col("node") == node)
    found = exact if exact.height else frame.filter(pl.col("node").str.ends_with("/" + node))
    if found.is_empty():
        known = ", ".join(frame["node"].unique(maintain_order=True).head(8))
        raise UsageError(
            f"no node is called {node!r}; some are: {known}", hint="give a path from trace.windows()"
        )
    return list(found.iter_rows())
