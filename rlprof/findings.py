"""What `rlprof doctor` looks at, and what it finds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import polars as pl

from rlprof.remedies import Remedies, remedies
from rlprof.trace.trace import Trace
from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    from rlprof.analysis.signals import Signal
    from rlprof.trace.hierarchy import Hierarchy

Status = Literal["ok", "missing", "suspect"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Parameters
    ----------
    topic : str
        What, in a few words.
    status : {"ok", "missing", "suspect"}
        Whether it is there and sound.
    detail : str
        What was found, with counts.
    consequence : str
        What cannot be answered, or is doubtful, because of it; empty if ok.
    remedy : str
        How to record it next time; empty if ok.
    """

    topic: str
    status: Status
    detail: str
    consequence: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Case:
    """A capture with what several checks look at; each is read when first asked for."""

    trace: Trace

    @cached_property
    def remedies(self) -> Remedies:
        """How to record what is missing, with the tool that made the capture."""
        return remedies(self.trace.meta.product)

    @cached_property
    def tree(self) -> Hierarchy:
        """Nodes and invocations."""
        from rlprof.trace.hierarchy import hierarchy

        return hierarchy(self.trace)

    @cached_property
    def signals(self) -> tuple[Signal, ...] | Unavailable:
        """Activity of the devices."""
        from rlprof.analysis.signals import signals

        return signals(self.trace)

    @cached_property
    def kernels(self) -> pl.DataFrame:
        """Kernels, with the columns that checks use."""
        return self.trace.table(
            "kernels", ["start_ns", "end_ns", "device", "process", "correlation_id", "kind"]
        )

    @cached_property
    def labels(self) -> dict[int, str]:
        """Label of each process."""
        return dict(self.trace.table("processes", ["process", "label"]).iter_rows())

    def has_ranges(self) -> bool:
        """Whether any range is there."""
        return self.trace.has("ranges") and not self.tree.nodes.is_empty()
