"""Flags, small numbers and other values that Python shares, where calls return them.

There is one ``False``, so it does not show whether a ``False`` that a call is given is the one that another
returned, or was written there. Nor does it show whether code between calls branches on a flag. A graph
holds the value of the recorded runs; so it may be run only as long as such values stay what they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlprof.overlap.bindings import Path
from rlprof.overlap.errors import ReplayError
from rlprof.overlap.lineage import is_shared, leaves_of
from rlprof.overlap.values import at_path, describe

if TYPE_CHECKING:
    from rlprof.overlap.trace import CallRecord, RunTrace


@dataclass(frozen=True, slots=True)
class Flag:
    """A value that a call returned in every recorded run.

    Parameters
    ----------
    call : str
        Id of the call, as `Invocation.id`.
    path : tuple of (int or str)
        Where in its output.
    value : object
        What was there.
    consumer : str
        A later call that was given the same, or the region, which returned it; empty: none, the value is
        True or False.
    """

    call: str
    path: Path
    value: Any
    consumer: str = ""


def find_flags(runs: Sequence[RunTrace]) -> Mapping[str, tuple[Flag, ...]]:
    """Find what has to stay as it was, by call.

    Parameters
    ----------
    runs : sequence of RunTrace
        Ended. What differs between them is no constant, and needs no watching.
    """
    found = [{(flag.call, flag.path): flag for flag in _flags(run)} for run in runs]
    by_call: dict[str, tuple[Flag, ...]] = {}
    for place, flag in found[0].items():
        if all(_same(flag.value, other[place].value) if place in other else False for other in found[1:]):
            by_call[flag.call] = (*by_call.get(flag.call, ()), flag)
    return by_call


def _flags(run: RunTrace) -> Iterator[Flag]:
    last: dict[int, tuple[float, str]] = {}  # last call that was given a value, and when
    for record in run.records:
        for raw in (*record.args, *record.kwargs.values()):
            for known in leaves_of(raw):
                if known.record is None and not known.external and is_shared(known.obj):
                    last[id(known.obj)] = max(
                        last.get(id(known.obj), (0.0, "")), (record.start_ns, record.id)
                    )
    region = run.records[0]
    for known in () if region.output is None else leaves_of(region.output):
        if is_shared(known.obj):
            last[id(known.obj)] = (float("inf"), region.id)
    for record, path, value in run.lineage.shared:
        if record is region:
            continue
        used_ns, consumer = last.get(id(value), (0.0, ""))
        if used_ns >= _end_ns(record):
            yield Flag(record.id, path, value, consumer)
        elif isinstance(value, bool):
            yield Flag(record.id, path, value)


def _end_ns(record: CallRecord) -> int:
    return max(record.end_ns, record.return_ns)


def _same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and bool(a == b))


def check_flags(flags: Sequence[Flag], output: Any, part: bool = False) -> None:
    """Compare what a call returned with the recorded runs.

    Parameters
    ----------
    flags : sequence of Flag
        Of this call.
    output : object
        What it returned.
    part : bool
        It is a part of a batch: positions in a list say nothing.

    Raises
    ------
    ReplayError
        If a flag is another one; it says what may depend on it.
    """
    if part and isinstance(output, list):
        return
    for flag in flags:
        now = at_path(output, flag.path)
        if _same(flag.value, now):
            continue
        at = "".join(f"[{key!r}]" for key in flag.path)
        why = "the code between calls may branch on it"
        if flag.consumer:
            why = f"{flag.consumer} got the same, and may need the new one"
        raise ReplayError(
            f"{flag.call} returned {describe(now)}{f' at {at}' if at else ''}, and {flag.value!r} in every"
            f" recorded run; {why}",
            hint="record runs in which it differs, return it in an array,"
            ' or install with on_flag="ignore" if nothing depends on it',
        )
