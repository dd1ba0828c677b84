"""Values that people type: durations with units, windows of time, anchors."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Annotated

import typer

from rlprof.errors import UsageError
from rlprof.expect import expect_seed

_UNITS_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9}
_NUMBER = re.compile(r"^\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([a-zµμ]*)\s*$")
_ALLOWED = "a number with ns, us, ms, s or min, like 1ms"


def _seed(value: int) -> int:
    expect_seed(value, "--seed")
    return value


#: The option of every command that makes random choices.
Seed = Annotated[int, typer.Option(metavar="N", callback=_seed, help="Of all random choices.")]


def duration_ns(text: str, *, option: str, plain_unit: str | None = None, least_ns: int | None = None) -> int:
    """Parse a duration.

    Parameters
    ----------
    text : str
        Such as ``1ms`` or ``2.5 s``.
    option : str
        The option it was given to, for the error.
    plain_unit : str, optional
        Unit of a number without one; if not given, a unit is needed.
    least_ns : int, optional
        The shortest that is allowed; any if not given.

    Returns
    -------
    int
        Nanoseconds, rounded.

    Raises
    ------
    UsageError
        If it is no duration, is too short, or has no unit where one is needed.
    """
    match = _NUMBER.match(text)
    unit = (match.group(2) or plain_unit) if match else None
    if match is None or (unit is not None and unit not in _UNITS_NS):
        raise UsageError(f"{option}: {text!r} is not a duration", hint=f"write {_ALLOWED}")
    if unit is None:
        raise UsageError(f"{option}: {text!r} has no unit", hint=f"write {_ALLOWED}")
    try:
        value = int((Decimal(match.group(1)) * _UNITS_NS[unit]).to_integral_value())
    except (InvalidOperation, OverflowError) as error:
        raise UsageError(f"{option}: {text!r} is not a duration", hint=f"write {_ALLOWED}") from error
    if abs(value) >= 2**62:
        raise UsageError(f"{option}: {text!r} is out of range", hint="durations reach to 146 years")
    if least_ns is not None and value < least_ns:
        raise UsageError(f"{option}: {text!r} is too short", hint=f"write at least {least_ns} ns")
    return value


def window_ns(text: str, *, option: str = "--window") -> tuple[int | None, int | None]:
    """Parse a window of time ``A:B``; an end that is left out is open.

    Parameters
    ----------
    text : str
        Such as ``1.5:2`` (seconds in the trace's clock), ``100ms:2s``, ``:5`` or ``3:``.
    option : str
        The option it was given to, for the error.

    Returns
    -------
    tuple of (int or None, int or None)
        Start and end in ns; None is open.

    Raises
    ------
    UsageError
        If it is no window, or ends before it starts.
    """
    start, colon, end = text.partition(":")
    if not colon or (not start.strip() and not end.strip()):
        raise UsageError(
            f"{option}: {text!r} is not a window",
            hint="write START:END in seconds of the trace's clock or with units, like 1.5:2 or 100ms:2s",
        )
    lo = duration_ns(start, option=option, plain_unit="s") if start.strip() else None
    hi = duration_ns(end, option=option, plain_unit="s") if end.strip() else None
    if lo is not None and hi is not None and hi <= lo:
        raise UsageError(f"{option}: {text!r} ends before it starts", hint="write START:END")
    return lo, hi


def anchor(text: str) -> tuple[str, int]:
    """Parse ``FILE=TIME``: where time 0 of a file's clock lies on the common clock.

    Raises
    ------
    UsageError
        If it is not of that form.
    """
    name, equals, value = text.rpartition("=")
    if not equals or not name:
        raise UsageError(
            f"--anchor: {text!r} is not FILE=TIME",
            hint="write the file and the time of its clock's zero, like rank1.json=1682725898079484us",
        )
    return name, duration_ns(value, option="--anchor")


def fraction(value: float, *, option: str) -> float:
    """Check that a number is a fraction above 0 and at most 1 (0 is allowed: no such limit).

    Raises
    ------
    UsageError
        If it is not.
    """
    if not 0 <= value <= 1:
        raise UsageError(
            f"{option}: {value:g} is not a fraction", hint="write a number from 0 to 1, like 0.01"
        )
    return value


_RATE = re.compile(r"^\s*(\d+\.?\d*|\.\d+)\s*(k|m)?(?:hz)?\s*$", re.IGNORECASE)


def rate_hz(text: str, *, option: str = "--rate") -> float:
    """Parse a sampling rate.

    Parameters
    ----------
    text : str
        Such as ``10kHz``, ``10k``, ``500 Hz`` or ``20``.
    option : str
        The option it was given to, for the error.

    Returns
    -------
    float
        Samples per second.

    Raises
    ------
    UsageError
        If it is no rate above zero.
    """
    match = _RATE.match(text)
    value = float(match[1]) * {"": 1, "k": 1e3, "m": 1e6}[(match[2] or "").lower()] if match else 0.0
    if value <= 0:
        raise UsageError(
            f"{option}: {text!r} is not a rate", hint="write a number with Hz or kHz, like 10kHz"
        )
    return value


def devices_list(text: str, *, option: str = "--devices") -> tuple[int, ...]:
    """Parse numbers of GPUs, ``0,1``.

    Raises
    ------
    UsageError
        If it is no list of numbers.
    """
    parts = [p.strip() for p in text.split(",")]
    if not all(p.isdecimal() for p in parts):
        raise UsageError(
            f"{option}: {text!r} is not a list of GPUs", hint="write their numbers, as in nvidia-smi: 0,1"
        )
    return tuple(sorted({int(p) for p in parts}))
