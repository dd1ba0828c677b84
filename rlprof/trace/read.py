"""Open captures: find the format by content, read one or merge several."""

from __future__ import annotations

from pathlib import Path

from rlprof.progress import Progress, silent
from rlprof.trace.trace import Trace


def read(path: str | Path, *more: str | Path, progress: Progress = silent) -> Trace:
    """Placeholder body until detection and merging land."""
    from rlprof.trace.nsys_sqlite import read_sqlite

    return read_sqlite(Path(path))
