"""The trace: tidy tables in one clock, read from a capture when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import polars as pl

from rlprof.trace.tables import TABLE_NAMES, TableName, empty, schema
from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    import pandas as pd

    from rlprof.analysis.activity import NodeActivity
    from rlprof.analysis.windows import WindowReport
    from rlprof.plots.accessor import PlotAccessor


@dataclass(frozen=True)
class Loaded:
    """What a reader gives for one table: the rows, and notes on what was missing, repaired or dropped."""

    frame: pl.DataFrame
    notes: tuple[str, ...] = ()


#: Reads the named columns of one table (None: all), with the types of `rlprof.trace.tables`.
#: The row order must not depend on the columns asked for.
Loader = Callable[[Sequence[str] | None], Loaded]


@dataclass(frozen=True)
class TraceMeta:
    """Facts about a capture as a whole.

    Parameters
    ----------
    format : str
        ``nsys-sqlite``, ``nsys-parquet``, ``nsys-arrow``, ``nsys-report``, ``kineto``, ``chrome-jsonl``,
        ``rlprof`` or ``merged``.
    files : tuple of str
        Names (no paths) of the captures it was read from.
    start_ns, end_ns : int
        The span that the capture covers, in the trace's clock.
    utc_origin_ns : int or None
        Nanoseconds since the Unix epoch at time 0 of the trace's clock; None if the capture does not say.
    clock_uncertainty_ns : int
        Bound of the error made by putting several captures on one clock; 0 for one capture.
    graph_mode : str or None
        ``graph`` (a CUDA-graph launch is one record), ``node`` (each kernel is), or None if not stated.
    sampling_hz : float or None
        Rate of the activity counters that was asked for; analyses use the measured median step.
    product : str or None
        Tool and version that wrote the capture.
    schema_version : str or None
        Version of the file's schema.
    traced : frozenset of str or None
        What was switched on during capture, out of ``cuda``, ``nvtx``, ``gpu_metrics``; None if not stated.
    overhead_ns : int or None
        Time in which the profiler says that it held up at least one thread; None if it does not say.
    """

    format: str
    files: tuple[str, ...]
    start_ns: int
    end_ns: int
    utc_origin_ns: int | None = None
    clock_uncertainty_ns: int = 0
    graph_mode: str | None = None
    sampling_hz: float | None = None
    product: str | None = None
    schema_version: str | None = None
    traced: frozenset[str] | None = None
    overhead_ns: int | None = None

    @property
    def duration_ns(self) -> int:
        """Length of the span that the capture covers."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, eq=False)
class Trace:
    """A capture as tidy tables (see `rlprof.trace.tables`) in one clock.

    Tables are read when first asked for, and only the columns asked for. A table that the capture does
    not hold is `Unavailable` with the reason, never empty.

    Parameters
    ----------
    meta : TraceMeta
        Facts about the capture as a whole.
    loaders : mapping of table name to Loader
        How to read each table that the capture holds.
    missing : mapping of table name to str
        Why each other table is absent.
    base_notes : tuple of str
        Notes that hold before any table is read.
    """

    meta: TraceMeta
    loaders: Mapping[TableName, Loader]
    missing: Mapping[TableName, str] = field(default_factory=dict)
    base_notes: tuple[str, ...] = ()
    # memory of what was read; not part of the value
    _cache: dict[TableName, pl.DataFrame] = field(default_factory=dict, repr=False)
    _notes: dict[str, None] = field(default_factory=dict, repr=False)

    def has(self, name: TableName) -> bool:
        """Whether the capture holds table `name` (it may still have no row of interest)."""
        return name in self.loaders

    def table(self, name: TableName, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Read columns of a table; an absent table is given as one with no rows.

        For analyses, which check `has` where absent and empty differ. People use the properties.

        Parameters
        ----------
        name : str
            Table name.
        columns : sequence of str, optional
            Columns to read; all if not given.

        Returns
        -------
        polars.DataFrame
            The columns, in the order asked for; all of them in the order of the table's schema.
        """
        # callers unpack rows in the order they asked for
        want = list(schema(name) if columns is None else dict.fromkeys(columns))
        if name not in self.loaders:
            return empty(name, want).select(want)
        held = self._cache.get(name)
        if held is None or not set(want) <= set(held.columns):
            union = set(want) | set(held.columns if held is not None else ())
            loaded = self.loaders[name](list(schema(name, list(union))))
            self._notes.update(dict.fromkeys(loaded.notes))
            held = loaded.frame
            self._cache[name] = held
        return held.select(want)

    def _public(self, name: TableName) -> pl.DataFrame | Unavailable:
        if not self.has(name):
            return Unavailable(self.missing.get(name, f"this {self.meta.format} capture has no {name}"))
        return self.table(name)

    @property
    def ranges(self) -> pl.DataFrame | Unavailable:
        """Host-side ranges: NVTX, annotations, framework timers."""
        return self._public("ranges")

    @property
    def kernels(self) -> pl.DataFrame | Unavailable:
        """Kernels and whole CUDA-graph launches."""
        return self._public("kernels")

    @property
    def copies(self) -> pl.DataFrame | Unavailable:
        """Copies and memsets on the device."""
        return self._public("copies")

    @property
    def api(self) -> pl.DataFrame | Unavailable:
        """Runtime and driver calls."""
        return self._public("api")

    @property
    def samples(self) -> pl.DataFrame | Unavailable:
        """Activity samples (table ``activity``)."""
        return self._public("activity")

    @property
    def counters(self) -> pl.DataFrame | Unavailable:
        """Further hardware counters, sampled beside the activity."""
        return self._public("counters")

    @property
    def devices(self) -> pl.DataFrame | Unavailable:
        """GPUs."""
        return self._public("devices")

    @property
    def processes(self) -> pl.DataFrame | Unavailable:
        """Processes, one row for each in each capture."""
        return self._public("processes")

    @property
    def notes(self) -> tuple[str, ...]:
        """What was missing, repaired or dropped, with counts, in all that has been read so far."""
        return (*self.base_notes, *self._notes)

    def to_pandas(self, name: TableName) -> pd.DataFrame | Unavailable:
        """A table as a pandas frame, or `Unavailable`."""
        frame = self._public(name)
        return frame if isinstance(frame, Unavailable) else frame.to_pandas()

    def between(self, start_ns: int, end_ns: int) -> Trace:
        """The part of the trace inside [start_ns, end_ns): rows that touch it, cut at its edges.

        Parameters
        ----------
        start_ns, end_ns : int
            Times in the trace's clock; clipped to the trace's span.

        Returns
        -------
        Trace
            Same clock, same devices and processes.

        Raises
        ------
        UsageError
            If nothing of the trace lies in between.
        """
        from rlprof.trace.cut import cut_loaders

        lo, hi = max(start_ns, self.meta.start_ns), min(end_ns, self.meta.end_ns)
        loaders, note = cut_loaders(self, lo, hi, asked_ns=(start_ns, end_ns))
        whole = (lo, hi) == (self.meta.start_ns, self.meta.end_ns)
        return Trace(
            # how much of the profiler's own time lies in a part is not known
            meta=replace(
                self.meta, start_ns=lo, end_ns=hi, overhead_ns=self.meta.overhead_ns if whole else None
            ),
            loaders=loaders,
            missing=self.missing,
            base_notes=(*self.base_notes, note),
        )

    def windows(
        self,
        *,
        iteration: str | None = None,
        tau_abs_ns: int = 1_000_000,
        tau_rel_frac: float = 0.01,
        exact_names: bool = False,
        loop_counts: Mapping[str, int] | None = None,
    ) -> WindowReport:
        """Rank the low-activity windows of a training iteration; see `rlprof.analysis.windows.windows`."""
        from rlprof.analysis.windows import windows

        return windows(
            self,
            iteration=iteration,
            tau_abs_ns=tau_abs_ns,
            tau_rel_frac=tau_rel_frac,
            exact_names=exact_names,
            loop_counts=loop_counts,
        )

    def activity(self, node: str, *, exact_names: bool = False) -> NodeActivity | Unavailable:
        """Activity of the GPUs while `node` runs; see `rlprof.analysis.activity.node_activity`."""
        from rlprof.analysis.activity import node_activity

        return node_activity(self, node, exact_names=exact_names)

    @property
    def plot(self) -> PlotAccessor:
        """Charts of this trace: ``trace.plot.timeline()``, ``trace.plot.activity()``, ..."""
        from rlprof.plots.accessor import PlotAccessor

        return PlotAccessor(self)

    def __repr__(self) -> str:
        held = ", ".join(n for n in TABLE_NAMES if self.has(n))
        return (
            f"Trace({' + '.join(self.meta.files)}, {self.meta.format}, "
            f"{self.meta.duration_ns / 1e9:.3f} s; tables: {held})"
        )
