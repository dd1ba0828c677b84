"""Writing recorded ranges and counts into a session's parts."""

from __future__ import annotations

import errno
import time
from array import array
from pathlib import Path
from typing import Any

from rlprof.capture.columns import arrow_array, constant
from rlprof.capture.parts import PartWriter
from rlprof.capture.thread_log import OpenRange, ThreadLog

#: Values of one closed range in a thread's buffer: name, start, end, whether it is a start/end range.
FIELDS = 4
#: Distinct names kept; ranges of further names are called `FURTHER_NAMES`.
MAX_NAMES = 65_536
FURTHER_NAMES = "(further names)"
#: NVTX domain of the ranges.
DOMAIN = "rlprof"


class RangeWriter:
    """Writes the ranges of this process, from one thread at a time.

    Parameters
    ----------
    folder : pathlib.Path
        The session's folder of parts.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writers: dict[str, PartWriter] = {}
        self._names: dict[str, int] = {}
        self._written_counts: dict[str, int] = {}
        self._too_many_names = False

    def _writer(self, table: str) -> PartWriter:
        if table not in self._writers:
            self._writers[table] = PartWriter(self.folder, table)
        return self._writers[table]

    def close(self, failures: tuple[str, ...] = ()) -> None:
        """Write what went wrong as notes, and end the files."""
        if problems := (*self.problems(), *failures):
            self._writer("notes").write({"text": list(problems)})
        for writer in self._writers.values():
            writer.close()

    def abandon(self) -> None:
        """Let go of the files without writing."""
        for writer in self._writers.values():
            writer.abandon()

    def write_closed(self, values: list[Any], threads: list[tuple[int, int]]) -> None:
        """Write closed ranges.

        Parameters
        ----------
        values : list
            `FIELDS` values for each range.
        threads : list of (int, int)
            Number of the thread, and how many ranges in a row are its.
        """
        size = len(values) // FIELDS
        thread = array("q")
        for number, count in threads:
            thread.extend(array("q", [number]) * count)
        self._writer("ranges").write(
            {
                "name": self._name_column(values[0::FIELDS]),
                "start_ns": values[1::FIELDS],
                "end_ns": values[2::FIELDS],
                "style": _style_column(values[3::FIELDS]),
                "thread": thread,
                "domain": constant(DOMAIN, size),
                "cut": [False] * size,
            }
        )

    def write_open(self, logs: list[ThreadLog]) -> None:
        """Write ranges that are open, once each, and that the process is alive."""
        opened = [r for log in logs for r in log.open_ranges()]
        if not opened:
            return
        self._writer("alive").write({"time_ns": [time.monotonic_ns()]})
        if fresh := [r for r in opened if not r.annotation.seen_open]:
            self._writer("open_ranges").write(self._open_columns(fresh))
            for r in fresh:
                r.annotation.seen_open = True

    def write_cut(self, logs: list[ThreadLog], now_ns: int) -> None:
        """Write the ranges that are open as cut now."""
        if opened := [r for log in logs for r in log.open_ranges()]:
            ends = {"end_ns": [max(r.start_ns, now_ns) for r in opened], "cut": [True] * len(opened)}
            self._writer("ranges").write({**self._open_columns(opened), **ends})

    def _open_columns(self, opened: list[OpenRange]) -> dict[str, Any]:
        return {
            "name": self._name_column([r.annotation.name for r in opened]),
            "start_ns": [r.start_ns for r in opened],
            "style": _style_column([r.is_loose for r in opened]),
            "thread": [r.thread for r in opened],
            "domain": constant(DOMAIN, len(opened)),
        }

    def write_counts(self, counts: dict[str, int]) -> None:
        """Write the counts that changed since the last time."""
        changed = {p: n for p, n in counts.items() if self._written_counts.get(p) != n}
        if changed:
            self._writer("loop_counts").write({"path": list(changed), "count": list(changed.values())})
            self._written_counts.update(changed)

    def _name_column(self, names: list[str]) -> Any:
        """Names as one ever-growing dictionary, of which a file needs only what is new."""
        import pyarrow as pa

        known = self._names
        for name in set(names):
            if name not in known:
                if len(known) >= MAX_NAMES:
                    self._too_many_names = True
                    known.setdefault(FURTHER_NAMES, len(known))
                else:
                    known[name] = len(known)
        other = known.get(FURTHER_NAMES, 0)
        places = arrow_array([known.get(name, other) for name in names], pa.int32())
        return pa.DictionaryArray.from_arrays(places, arrow_array(list(known), pa.string()))

    @property
    def lost_ranges(self) -> int:
        """Ranges that could not be written."""
        return self._writers["ranges"].lost_rows if "ranges" in self._writers else 0

    def problems(self) -> tuple[str, ...]:
        """What went wrong, one line each."""
        problems = []
        if lost := self.lost_ranges:
            error = next((w.error for w in self._writers.values() if w.error), None)
            full = error is not None and error.errno in (errno.ENOSPC, errno.EDQUOT)
            reason = "the disk was full" if full else f"they could not be written ({_reason(error)})"
            problems.append(f"{lost} ranges were lost: {reason}")
        if self._too_many_names:
            problems.append(
                f"over {MAX_NAMES} distinct names: later ones are called {FURTHER_NAMES!r}"
                " (give ranges constant names)"
            )
        return tuple(problems)


def _reason(error: OSError | None) -> str:
    return "an earlier error" if error is None else (error.strerror or type(error).__name__)


def _style_column(loose: list[bool]) -> Any:
    import pyarrow as pa

    styles = arrow_array(["push_pop", "start_end"], pa.string())
    return pa.DictionaryArray.from_arrays(arrow_array([int(x) for x in loose], pa.int32()), styles)
