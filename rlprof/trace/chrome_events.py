"""What readers of Chrome-trace events share: exact times, ids, begin/end pairs, growing tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

import polars as pl

from rlprof.trace.names import scrub_home
from rlprof.trace.tables import SCHEMAS, TableName, empty

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
    if type(value) is int:
        out = value * 1000
    elif type(value) is float:
        # nan and inf fail this comparison
        if not -1e16 < value < 1e16:
            return None
        out = round(value * 1000)
    elif type(value) is str:
        whole, _, decimals = value.partition(".")
        if len(decimals) == 3 and whole.isdigit() and decimals.isdigit():
            out = int(whole + decimals)
        else:
            try:
                number = Decimal(value) * 1000
            except InvalidOperation:
                return None
            if not number.is_finite() or abs(number) > _MAX_NS:
                return None
            out = int(number.to_integral_value())
    else:
        return None
    return out if -_MAX_NS <= out <= _MAX_NS else None


def as_int(value: object) -> int | None:
    """An integer given as int, whole float or decimal string; None for anything else."""
    if type(value) is int:
        return value
    if type(value) is float and value.is_integer():
        return int(value)
    if type(value) is str:
        text = value.strip()
        if text.removeprefix("-").isdecimal():
            return int(text)
    return None


class Names:
    """Numbers for distinct strings, in the order in which they come."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def code(self, name: object) -> int:
        """Number of a name; what is not a string is written as one."""
        text = name if type(name) is str else "" if name is None else str(name)
        code = self._codes.get(text)
        if code is None:
            code = self._codes[text] = len(self._codes)
        return code

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
    """

    PACK_ROWS = 1 << 14

    def __init__(self, dtypes: Mapping[str, pl.DataType]) -> None:
        self._dtypes = dict(dtypes)
        self._packed: list[pl.DataFrame] = []
        self._rows: list[tuple[Any, ...]] = []

    def add(self, *row: int | bool | None) -> None:
        """Append a row, in the order of the columns."""
        self._rows.append(row)
        if len(self._rows) >= self.PACK_ROWS:
            self._pack()

    def _pack(self) -> None:
        if not self._rows:
            return
        columns = zip(*self._rows, strict=True)
        self._packed.append(
            pl.DataFrame(
                [pl.Series(n, c, dtype=t) for (n, t), c in zip(self._dtypes.items(), columns, strict=True)]
            )
        )
        self._rows.clear()

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


@dataclass
class Pairs:
    """Join begin and end events into ranges.

    ``B``/``E`` pair per (process, thread): an end closes the innermost open range of its name, or the innermost
    of all if it has no name. ``b``/``e`` pair per (process, category, id, name) and may overlap. The events
    are sorted by time first, keeping the file's order among equals, since buffered writers reorder them.
    """

    _events: list[tuple[int, int, str, int, int, object]] = field(default_factory=list)
    unmatched: Counter[str] = field(default_factory=Counter)

    def add(self, ts_ns: int, phase: str, process: int, thread: int, name: int | None, key: object = None) -> None:
        """Take one event; `key` tells apart the open ranges of ``b``/``e`` events."""
        self._events.append((ts_ns, len(self._events), phase, process, thread, (name, key)))

    def __bool__(self) -> bool:
        return bool(self._events)

    def starts(self) -> Iterable[int]:
        """Times of all events taken, ns."""
        return (e[0] for e in self._events)

    def join(self, rows: Rows, end_ns: int) -> None:
        """Add the ranges to `rows` (`RANGE_ROW`); those never ended are cut at `end_ns`, lone ends are counted."""
        open_on: dict[tuple[int, int], list[tuple[int, int]]] = {}
        open_async: dict[object, list[tuple[int, int, int]]] = {}
        for ts_ns, _, phase, process, thread, (name, key) in sorted(self._events, key=lambda e: e[:2]):  # type: ignore[misc]
            if phase == "B":
                open_on.setdefault((process, thread), []).append((name, ts_ns))
            elif phase == "E":
                stack = open_on.get((process, thread), [])
                at = next((i for i in range(len(stack) - 1, -1, -1) if name is None or stack[i][0] == name), None)
                if at is None:
                    self.unmatched["end"] += 1
                    continue
                began, start_ns = stack.pop(at)
                rows.add(start_ns, ts_ns, began, PUSH_POP, process, thread, False)
            elif phase == "b":
                open_async.setdefault((process, name, key), []).append((ts_ns, thread, name))
            else:
                waiting = open_async.get((process, name, key))
                if not waiting:
                    self.unmatched["end"] += 1
                    continue
                start_ns, begun_on, _ = waiting.pop()
                rows.add(start_ns, ts_ns, name, START_END, process, begun_on, False)
        for (process, thread), stack in open_on.items():
            for began, start_ns in stack:
                self.unmatched["begin"] += 1
                rows.add(start_ns, max(end_ns, start_ns), began, PUSH_POP, process, thread, True)
        for (process, name, _), left in open_async.items():  # type: ignore[misc]
            for start_ns, thread, _ in left:
                self.unmatched["begin"] += 1
                rows.add(start_ns, max(end_ns, start_ns), name, START_END, process, thread, True)
        self._events.clear()

    def notes(self) -> list[str]:
        """What could not be paired, with counts."""
        out = []
        if n := self.unmatched["begin"]:
            out.append(f"{n} ranges never end in the capture: cut at its end")
        if n := self.unmatched["end"]:
            out.append(f"{n} range ends without a begin were dropped (begun before the capture?)")
        return out


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
