"""What is drawn of a trace: the analyses that charts need, done once, and the tables made from them.

The steps between a `Trace` and the pure charts of `rlprof.plots.charts`, for ``trace.plot`` and the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from rlprof.analysis.activity import process_devices
from rlprof.analysis.intervals import F64, I64, StepIntegral, cut_steps, union
from rlprof.analysis.signals import Signal
from rlprof.errors import UsageError
from rlprof.plots import prepare
from rlprof.plots.budget import ROW_BUDGET
from rlprof.plots.charts import Width, activity_chart, distribution_chart, ranking_chart, timeline_chart
from rlprof.plots.lanes import lay_out
from rlprof.plots.theme import WINDOW_COLOURS, process_name
from rlprof.text import clean, shorten
from rlprof.trace.hierarchy import Hierarchy
from rlprof.trace.trace import Trace
from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    import altair as alt

    from rlprof.analysis.windows import WindowReport

#: Short names of the sources of activity, for axes.
QUANTITY = {
    "sm_counters": "SM activity",
    "kernel_union": "GPU busy, upper bound",
    "host_cores": "activity of host cores",
}
#: Most devices drawn in one timeline.
MOST_DEVICES = 16


@dataclass(frozen=True)
class Views:
    """Charts of one trace.

    Parameters
    ----------
    trace : Trace
        The capture.
    report : WindowReport
        Its ranked windows.
    tree : Hierarchy
        Its nodes and invocations.
    signals : tuple of Signal, or Unavailable
        Activity of each device.
    """

    trace: Trace
    report: WindowReport
    tree: Hierarchy
    signals: tuple[Signal, ...] | Unavailable

    @classmethod
    def of(cls, trace: Trace, report: WindowReport | None = None) -> Views:
        """Do the analyses that the charts of `trace` need; `report` if it was made already."""
        made = trace.windows() if report is None else report
        return cls(trace, made, made.tree, made.signals)

    def span(self, start_s: float | None = None, end_s: float | None = None) -> tuple[int, int]:
        """A span of the trace in ns; by default that of its ranges (with a margin), or all of it.

        Captures often begin with minutes of start-up in which no range is marked.
        """
        lo, hi = self.trace.meta.start_ns, self.trace.meta.end_ns
        rows = self.tree.invocations
        if start_s is None and end_s is None and rows.height:
            first, last = int(rows["start_ns"].min()), int(rows["end_ns"].max())  # type: ignore[arg-type]
            margin = max((last - first) // 50, 1)
            return max(lo, first - margin), max(min(hi, last + margin), first - margin + 1)
        asked = (lo if start_s is None else round(start_s * 1e9), hi if end_s is None else round(end_s * 1e9))
        if asked[1] <= asked[0]:
            raise UsageError(
                f"the span from {asked[0] / 1e9:g} s to {asked[1] / 1e9:g} s is empty",
                hint=f"the trace covers {lo / 1e9:g} s to {hi / 1e9:g} s",
            )
        return asked

    def sample(self, most: int = 8) -> tuple[int, int, str] | None:
        """A span of three iterations in the middle, where there are more than `most` to be seen together.

        Returns
        -------
        lo_ns, hi_ns, text : int, int, str
            The span, and which iterations it holds; None when all of them can be seen in one chart.
        """
        found = self.report.iteration
        if found is None or found.count <= most:
            return None
        first = found.count // 2 - 1
        lo, hi = int(found.start_ns[first]), int(found.end_ns[first + 2])
        margin = (hi - lo) // 50 + 1
        return lo - margin, hi + margin, f"iterations {first + 1:,} to {first + 3:,} of {found.count:,}"

    def device_label(self, device: int) -> str:
        """Name to show for a device."""
        if device < 0:
            return "host cores"
        names = dict(self.trace.table("devices", ["device", "name"]).iter_rows())
        name = names.get(device)
        return f"GPU {device} ({shorten(name, 40)})" if name and name != f"GPU {device}" else f"GPU {device}"

    def process_labels(self) -> dict[int, str]:
        """Name to show for each process."""
        return {
            p: clean(t or f"process {p}")
            for p, t in self.trace.table("processes", ["process", "label"]).iter_rows()
        }

    def marked(self, most: int = len(WINDOW_COLOURS)) -> list[tuple[str, str]]:
        """Windows to mark, as (node, process): the suggested targets, or the best-ranked leaves."""
        if self.report.targets:
            return list(self.report.targets)[:most]
        ranked = self.report.frame.filter(pl.col("rank").is_not_null() & pl.col("leaf")).sort("rank")
        return list(dict.fromkeys(ranked.select("node", "process").iter_rows()))[:most]

    def invocations(self, windows: Sequence[tuple[str, str]]) -> list[tuple[I64, I64]]:
        """Start and end of the invocations of each (node, process label)."""
        labels = self.trace.table("processes", ["process", "label"])
        nodes = self.tree.nodes.join(labels, on="process", how="left").select("node", "path", "label")
        numbers: dict[tuple[str, str], list[int]] = {}
        for node, path, label in nodes.iter_rows():
            numbers.setdefault((path, label), []).append(node)
        wanted = [numbers.get(w, []) for w in windows]
        rows = self.tree.invocations.filter(pl.col("node").is_in([n for w in wanted for n in w])).select(
            "node", "start_ns", "end_ns"
        )
        parts = {int(key[0]): part for key, part in rows.group_by("node")}
        out = []
        for group in wanted:
            held = [parts[n] for n in group if n in parts]
            both = pl.concat(held) if held else rows.head(0)
            out.append((both["start_ns"].to_numpy(), both["end_ns"].to_numpy()))
        return out

    def _activity_times(self, windows: Sequence[tuple[str, str]], signal: Signal) -> F64:
        """Time of each window by activity of one device, over the time that its ``sm_activity`` is of.

        That is the time inside iterations, or all of it for a node that never is inside one; devices that the
        node's process does not use count nothing.
        """
        present = tuple(s.device for s in self.signals) if isinstance(self.signals, tuple) else ()
        users = process_devices(self.trace, present)
        numbers: dict[str, list[int]] = {}
        for process, label in self.trace.table("processes", ["process", "label"]).iter_rows():
            numbers.setdefault(label, []).append(process)
        steps = (signal.start_ns, signal.end_ns, signal.active_frac)
        out = np.zeros((len(windows), 20))
        invocations = self.invocations(windows)
        for label in dict.fromkeys(p for _, p in windows):
            own = numbers.get(label, [])
            if not any(signal.device in users.get(p, present) for p in own):
                continue
            at = [i for i, (_, p) in enumerate(windows) if p == label]
            spans = [invocations[i] for i in at]
            times = prepare.activity_times(spans, *steps)
            if self.report.iteration is not None and own:
                scope = union(*self.report.iteration.of(own[0]))
                inside = prepare.activity_times(spans, *cut_steps(*steps, *scope))
                within = StepIntegral.of(*scope)
                ever = np.array([within.over(*span)[0].sum() > 0 for span in spans])
                times = np.where(ever[:, None], inside, times)
            out[at] = times
        return out

    def overall(self) -> pl.DataFrame:
        """The windows' frame with one row for each node and process: over all devices."""
        frame = self.report.frame
        # several devices: the rows over all of them have no device and come first
        return frame.unique(["node", "process"], keep="first", maintain_order=True)

    def activity(
        self,
        device: int,
        *,
        lo_ns: int,
        hi_ns: int,
        bins: int = 1_200,
        title: str | None = None,
        width: Width = 900,
    ) -> tuple[alt.LayerChart, tuple[str, ...]] | Unavailable:
        """Activity of one device over time with the windows marked; and notes for its caption."""
        if isinstance(self.signals, Unavailable):
            return self.signals
        signal = next((s for s in self.signals if s.device == device), None)
        if signal is None:
            known = ", ".join(str(s.device) for s in self.signals)
            return Unavailable(f"no activity is known of device {device}; it is of {known}")
        frame = prepare.envelope(
            signal.start_ns, signal.end_ns, signal.active_frac, lo_ns=lo_ns, hi_ns=hi_ns, bins=bins
        )
        wanted = self.marked()
        pairs = zip(self._named(wanted), self.invocations(wanted), strict=True)
        spans = prepare.marked_spans(
            [(*window, *times) for window, times in pairs],
            lo_ns=lo_ns,
            hi_ns=hi_ns,
            budget=(ROW_BUDGET - frame.height) // 2,
        )
        iterations, note = self._iterations(lo_ns, hi_ns)
        width_ns = (hi_ns - lo_ns) / max(frame.height, 1)
        notes = [f"line: mean of each {_duration(width_ns)}; band: minimum and maximum in it"]
        notes += [note] if note else []
        chart = activity_chart(
            frame,
            spans,
            iterations,
            lo_s=lo_ns / 1e9,
            hi_s=hi_ns / 1e9,
            quantity=QUANTITY[signal.source],
            title=title,
            subtitle=notes,
            width=width,
        )
        return chart, tuple(notes)

    def timeline(
        self,
        *,
        lo_ns: int,
        hi_ns: int,
        process: str | None = None,
        budget: int = ROW_BUDGET,
        title: str | None = None,
        width: Width = 900,
    ) -> tuple[alt.LayerChart, tuple[str, ...]] | Unavailable:
        """Ranges by process, thread and depth, kernels below; and notes for its caption."""
        labels = self.process_labels()
        nodes = self._classified(labels)
        if process is not None:
            if process not in labels.values():
                raise UsageError(
                    f"no process is called {process!r}", hint=f"one of {', '.join(labels.values())}"
                )
            nodes = nodes.filter(pl.col("process").is_in([p for p, t in labels.items() if t == process]))
        ranges = self.tree.invocations.join(nodes, on="node").select(
            "start_ns", "end_ns", "process", "thread", "depth", "name", "activity_frac"
        )
        busy, note = self._kernels(lo_ns, hi_ns, bins=min(1_000, budget // 2))
        if ranges.is_empty() and not busy:
            return Unavailable(
                self.trace.missing.get("ranges", "the capture holds neither ranges nor kernels")
            )
        shown = {p: process_name(t) for p, t in labels.items()}
        lanes = lay_out(ranges, shown, busy, lo_ns=lo_ns, hi_ns=hi_ns, budget=budget - 200)
        iterations, bounds_note = self._iterations(lo_ns, hi_ns)
        notes = (*lanes.notes, *((note,) if note else ()), *((bounds_note,) if bounds_note else ()))
        chart = timeline_chart(
            lanes, iterations, lo_s=lo_ns / 1e9, hi_s=hi_ns / 1e9, title=title, subtitle=notes, width=width
        )
        return chart, notes

    def distribution(
        self,
        windows: Sequence[tuple[str, str]] | None = None,
        *,
        most: int = 24,
        title: str | None = None,
        width: Width = 620,
    ) -> tuple[alt.LayerChart, tuple[str, ...]] | Unavailable:
        """How the time of nodes is spread over activity, all devices together; and notes for its caption."""
        if isinstance(self.signals, Unavailable):
            return self.signals
        if self.report.frame.is_empty():
            return Unavailable(self.trace.missing.get("ranges", "the capture holds no ranges"))
        known = self.overall().filter(pl.col("sm_activity").is_not_null())
        notes = []
        if windows is None:
            if known.height > most:
                notes.append(f"the first {most} of {known.height:,} nodes, by rank; the table holds all")
            chosen = known.head(most)
        else:
            keys = pl.DataFrame(windows, schema={"node": pl.String, "process": pl.String}, orient="row")
            chosen = keys.join(known, on=["node", "process"], maintain_order="left")
        pairs = list(chosen.select("node", "process").iter_rows())
        times = sum(self._activity_times(pairs, signal) for signal in self.signals)
        rows = prepare.distribution_rows(
            self._named(pairs), np.asarray(times), chosen["sm_activity"].to_list()
        )
        if rows.is_empty():
            return Unavailable("no activity is known while these nodes run")
        chart = distribution_chart(
            rows, quantity=QUANTITY[self.signals[0].source], title=title, subtitle=notes, width=width
        )
        return chart, tuple(notes)

    def ranking(
        self, *, top: int = 20, title: str | None = None, width: Width = 620
    ) -> tuple[alt.LayerChart, tuple[str, ...]] | Unavailable:
        """The best-ranked windows by unused time; and notes for its caption."""
        rows = prepare.ranking_rows(self.overall(), top=top)
        if rows.is_empty():
            why = (
                str(self.signals.reason) if isinstance(self.signals, Unavailable) else "no window has a rank"
            )
            return Unavailable(why)
        ranked = int(self.overall()["rank"].is_not_null().sum())
        notes = (f"the best {top} of {ranked:,}",) if ranked > top else ()
        return ranking_chart(rows, title=title, subtitle=notes, width=width), notes

    def _named(self, windows: Sequence[tuple[str, str]]) -> list[tuple[str, str | None]]:
        """Windows without their process where there is only one."""
        several = self.report.frame["process"].n_unique() > 1
        return [(node, process if several else None) for node, process in windows]

    def _iterations(self, lo_ns: int, hi_ns: int) -> tuple[pl.DataFrame, str | None]:
        found = self.report.iteration
        none = np.zeros(0, dtype=np.int64)
        start, end = (found.start_ns, found.end_ns) if found else (none, none)
        return prepare.iteration_bounds(start, end, lo_ns=lo_ns, hi_ns=hi_ns)

    def _classified(self, labels: dict[int, str]) -> pl.DataFrame:
        """Nodes with their last name and their mean activity."""
        rows = self.overall().select("node", "process", "sm_activity")
        known = {(n, clean(p)): a for n, p, a in rows.iter_rows()}
        nodes = self.tree.nodes
        keys = nodes.select("path", "process").iter_rows()
        return nodes.select(
            "node",
            "process",
            "depth",
            pl.col("path").str.split("/").list.last().cast(pl.Categorical).alias("name"),
            pl.Series(
                "activity_frac", [known.get((n, labels.get(p, ""))) for n, p in keys], dtype=pl.Float64
            ),
        )

    def _kernels(
        self, lo_ns: int, hi_ns: int, *, bins: int
    ) -> tuple[list[tuple[str, pl.DataFrame]], str | None]:
        """For each device the share of time with a kernel running, or why it is not drawn."""
        if not self.trace.has("kernels"):
            return [], f"kernels are not drawn: {self.trace.missing.get('kernels', 'the capture holds none')}"
        rows = self.trace.table("kernels", ["start_ns", "end_ns", "device"])
        if rows.is_empty():
            return [], "kernels are not drawn: the capture holds none"
        parts = {int(key[0] or 0): part for key, part in rows.group_by("device")}
        shown = sorted(parts)[:MOST_DEVICES]
        drawn = []
        for device in shown:
            part = parts[device]
            start, end = union(part["start_ns"].to_numpy(), part["end_ns"].to_numpy())
            frame = prepare.envelope(
                start, end, np.ones(len(start)), lo_ns=lo_ns, hi_ns=hi_ns, bins=max(bins // len(shown), 50)
            )
            drawn.append((self.device_label(device), frame))
        left = len(parts) - len(shown)
        return drawn, f"kernels of {left} more devices are not drawn" if left else None


def _duration(ns: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.3g} ns"
