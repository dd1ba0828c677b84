"""What readers of Chrome-trace events share: exact times, ids, begin/end pairs, growing tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

import polars as pl

from rlprof.trace.names import scrub_home
from rlprof.trace.tables import SCHEMAS, TableName, empty, schema
from rlprof.trace.trace import Loaded, Loader

#: Years 2000 to 2100 in ns since the Unix epoch: a clock that reads within them counts UTC.
EPOCH_NS = (946_684_800_000_000_000, 4_102_444_800_000_000_000)
_MAX_NS = 2**63 - 1


def us_to_ns(value: object) -> int | None:
    """Exact integer nanoseconds of a time in microseconds.

    Parameters
    ----------
    value : object
        int, float or decimal string, as found in a file. A float is exact to the nanosecond below 1e12 us;
        `rlprof.trace.json_stream` hands over longer ones as strings.

    Returns
    -------
    int or None
        Rounded to the nearest nanosecond; None if it is no finite number or does not fit 64 bits.
    """
    if type(value) is str:
        out = _decimal_to_ns(value)
    elif type(value) is float:
        # nan and inf fail this comparison
        out = round(value * 1000) if -1e16 < value < 1e16 else None
    elif type(value) is int:
        out = value * 1000
    else:
        return None
    return out if out is not None and -_MAX_NS <= out <= _MAX_NS else None


def _decimal_to_ns(text: str) -> int | None:
    if text[-4:-3] == ".":
        # three decimals, as PyTorch writes them: without the point they are nanoseconds
        try:
            return int(text[:-4] + text[-3:])
        except ValueError:
            return None
    try:
        number = Decimal(text) * 1000
    except InvalidOperation:
        return None
    if not number.is_finite() or abs(number) > _MAX_NS:
        return None
    return int(number.to_integral_value())


def as_int(value: object) -> int | None:
    """An integer of 64 bits given as int, whole float or decimal string; None for anything else."""
    out: int | None = None
    if type(value) is int:
        out = value
    elif type(value) is float and value.is_integer():
        out = int(value)
    elif type(value) is str:
        text = value.strip()
        if len(text) < 21 and text.removeprefix("-").isdecimal():
            out = int(text)
    return out if out is not None and -_MAX_NS <= out <= _MAX_NS else None


def worker_label(pid: object) -> str:
    """Name to show for a process: a host or address after ``@`` is personal and left out."""
    return str(pid).partition("@")[0].strip() or "process"


def counted(count: int, noun: str) -> str:
    """``1 event``, ``2 events``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


class Names:
    """Numbers for distinct strings, in the order in which they come."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def code(self, name: object) -> int:
        """Number of a name; what is not a string is written as one."""
        if type(name) is not str:
            name = "" if name is None else str(name)
        return self._codes.setdefault(name, len(self._codes))

    @property
    def strings(self) -> list[str]:
        """Names by number."""
        return list(self._codes)

    def decode(self, codes: pl.Series) -> pl.Series:
        """Categorical column of the names with these numbers (null stays null), user names scrubbed."""
        distinct = pl.Series(self.strings, dtype=pl.String).cast(pl.Categorical())
        return scrub_home(distinct.gather(codes)).alias(codes.name)


class ThreadIds:
    """Numbers for threads: the thread's own id, or -1, -2, ... for threads known by a name (``main``)."""

    def __init__(self) -> None:
        self._named: dict[str, int] = {}

    def number(self, tid: object) -> int:
        """Number of a thread as found in a file."""
        if type(tid) is int:
            return tid
        number = as_int(tid)
        if number is not None:
            return number
        return self._named.setdefault(str(tid), -1 - len(self._named))


class Rows:
    """A table that grows by rows and is packed into typed columns from time to time, so that it stays small.

    Parameters
    ----------
    dtypes : mapping of str to polars type
        Columns in order.

    Attributes
    ----------
    fresh : list of tuple
        Rows not packed yet. Code that adds very many may append to it and call `settle` now and then.
    """

    PACK_ROWS = 1 << 14

    def __init__(self, dtypes: Mapping[str, pl.DataType]) -> None:
        self._dtypes = dict(dtypes)
        self._packed: list[pl.DataFrame] = []
        self.fresh: list[tuple[Any, ...]] = []

    def add(self, *row: int | bool | None) -> None:
        """Append a row, in the order of the columns."""
        self.fresh.append(row)
        self.settle()

    def settle(self) -> None:
        """Pack the fresh rows if there are many."""
        if len(self.fresh) >= self.PACK_ROWS:
            self._pack()

    def _pack(self) -> None:
        if not self.fresh:
            return
        columns = zip(*self.fresh, strict=True)
        self._packed.append(
            pl.DataFrame(
                [pl.Series(n, c, dtype=t) for (n, t), c in zip(self._dtypes.items(), columns, strict=True)]
            )
        )
        self.fresh.clear()

    def frame(self) -> pl.DataFrame:
        """All rows; the table is empty afterwards."""
        self._pack()
        out = pl.concat(self._packed) if self._packed else pl.DataFrame(schema=self._dtypes)
        self._packed.clear()
        return out


#: Rows of ranges before names are decoded.
RANGE_ROW = {
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "name": pl.UInt32(),
    "style": pl.UInt8(),
    "process": pl.UInt32(),
    "thread": pl.Int64(),
    "cut": pl.Boolean(),
}
STYLES = ("push_pop", "start_end", "operator")
PUSH_POP, START_END, OPERATOR = range(3)


@dataclass(frozen=True, slots=True)
class _Half:
    """One end of a range; `key` tells apart the open ranges of ``b``/``e`` events."""

    ts_ns: int
    phase: str
    process: int
    thread: int
    name: int | None
    key: object


@dataclass
class Pairs:
    """Join begin and end events into ranges.

    ``B``/``E`` pair per (process, thread): an end closes the innermost open range of its name, or the
    innermost of all if it has no name. ``b``/``e`` pair per (process, category, id, name) and may overlap.
    The events are sorted by time first, keeping the file's order among equals, since buffered writers
    reorder them. A range never ended is cut at the capture's end, or where its process was last seen before
    it started again (`restart`).
    """

    _halves: list[_Half] = field(default_factory=list)
    unmatched: Counter[str] = field(default_factory=Counter)

    def add(
        self, ts_ns: int, phase: str, *, process: int, thread: int, name: int | None, key: object = None
    ) -> None:
        """Take one event."""
        self._halves.append(_Half(ts_ns, phase, process, thread, name, key))

    def restart(self, ts_ns: int, process: int) -> None:
        """The process with this number starts (again) at this time: a writer appends to an older file."""
        self._halves.append(_Half(ts_ns, "R", process, 0, None, None))

    def __bool__(self) -> bool:
        return bool(self._halves)

    def times(self) -> Iterable[int]:
        """Times of all events taken, ns."""
        return (half.ts_ns for half in self._halves)

    def join(self, rows: Rows, end_ns: int) -> None:
        """Add the ranges to `rows`; those never ended are cut at `end_ns`, lone ends are counted.

        Parameters
        ----------
        rows : Rows
            With the columns `RANGE_ROW`.
        end_ns : int
            End of the capture, in the clock of the events.
        """
        stacks: dict[object, list[_Half]] = {}
        last_seen: dict[int, int] = {}
        restarts: dict[int, list[tuple[int, int]]] = {}
        for half in sorted(self._halves, key=lambda h: h.ts_ns):
            if half.phase == "R":
                before = last_seen.get(half.process, half.ts_ns)
                restarts.setdefault(half.process, []).append((half.ts_ns, before))
                continue
            last_seen[half.process] = half.ts_ns
            nests = half.phase in "BE"
            stack = stacks.setdefault(
                (half.process, half.thread) if nests else (half.process, half.name, half.key), []
            )
            if half.phase in "Bb":
                stack.append(half)
            elif (at := _innermost(stack, half.name)) is None:
                self.unmatched["end"] += 1
            else:
                _add_range(rows, stack.pop(at), half.ts_ns, cut=False)
        for stack in stacks.values():
            for begun in stack:
                # an end after a restart closes what began after it: only what was lost is left here
                lives = (last for at, last in restarts.get(begun.process, ()) if at > begun.ts_ns)
                self.unmatched["begin"] += 1
                _add_range(rows, begun, max(next(lives, end_ns), begun.ts_ns), cut=True)
        self._halves.clear()

    def notes(self) -> list[str]:
        """What could not be paired, with counts."""
        out = []
        if n := self.unmatched["begin"]:
            out.append(f"{counted(n, 'range')} never ended in the capture, cut at its (or the process's) end")
        if n := self.unmatched["end"]:
            out.append(f"{counted(n, 'end')} of ranges without a begin dropped (begun before the capture?)")
        return out


def _innermost(stack: list[_Half], name: int | None) -> int | None:
    """Position of the last open range of this name (of any, if None)."""
    for at in range(len(stack) - 1, -1, -1):
        if name is None or stack[at].name == name:
            return at
    return None


def _add_range(rows: Rows, begun: _Half, end_ns: int, *, cut: bool) -> None:
    style = PUSH_POP if begun.phase == "B" else START_END
    rows.add(begun.ts_ns, end_ns, begun.name, style, begun.process, begun.thread, cut)


def ranges_frame(raw: pl.DataFrame, names: Names, origin_ns: int) -> pl.DataFrame:
    """Ranges table from `RANGE_ROW` rows, sorted by start, outer before inner; time 0 is `origin_ns`."""
    if raw.is_empty():
        return empty("ranges")
    raw = raw.sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)
    style = pl.Series(STYLES, dtype=pl.Enum(STYLES))
    return raw.select(
        pl.col("start_ns") - origin_ns,
        pl.col("end_ns") - origin_ns,
        names.decode(raw["name"]),
        style.gather(raw["style"]).alias("style"),
        "process",
        "thread",
        pl.lit("").cast(pl.Categorical()).alias("domain"),
        "cut",
    )


def typed(frame: pl.DataFrame, table: TableName) -> pl.DataFrame:
    """Columns of `table` in order, cast to its types."""
    return frame.select(pl.col(c).cast(t) for c, t in SCHEMAS[table].items())


def loader(table: TableName, frame: pl.DataFrame) -> Loader:
    """Loader of a table that is in memory already."""

    def load(columns: Sequence[str] | None) -> Loaded:
        return Loaded(frame.select(list(schema(table, columns))))

    return load
