"""One clock for several captures: anchors, how far they can be trusted, and when they cannot be used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from rlprof.errors import ClockError, UsageError
from rlprof.trace.skew import Collectives, Skew, collectives, skew
from rlprof.trace.trace import Trace

#: A host's clock may be slewed by at most this much (Linux, adjtimex(2)): 500 parts in a million.
MAX_SLEW_FRAC = 500e-6
#: What is assumed between hosts, since a capture does not say how its host keeps time. NTP keeps hosts within
#: some ms on a local network and tens of ms over the internet; 100 ms and more happen on congested paths.
ASSUMED_HOST_SKEW_NS = 100_000_000
#: PyTorch traces state their time to the microsecond.
ANCHOR_RESOLUTION_NS = 1_000
#: Unix times before the year 2000 are no Unix times.
#: Captures further apart than this are not of one run, whatever anchors say.
ANCHOR_SLIP_NS = 86_400 * 10**9
_YEAR_2000_NS = 946_684_800 * 10**9


@dataclass(frozen=True)
class Clock:
    """The common clock of several captures.

    Parameters
    ----------
    shift_ns : tuple of int
        For each capture: added to its times.
    utc_origin_ns : int or None
        Unix time at the common zero; None if the anchors are not Unix times.
    uncertainty_ns : int
        Bound of the error of one capture's times against another's.
    notes : tuple of str
        Where the bound comes from, and what common collectives show.
    """

    shift_ns: tuple[int, ...]
    utc_origin_ns: int | None
    uncertainty_ns: int
    notes: tuple[str, ...]


def common_clock(
    traces: Sequence[Trace], where: Sequence[str], labels: Sequence[str], anchors: Mapping[str, int]
) -> Clock:
    """Align captures by the time that each states at its zero.

    The error is bounded, best evidence first: by collectives that captures share (see
    `rlprof.trace.skew`); on one host (a GPU in common), by how far its clock can have been slewed between
    the moments at which the captures read it; else it is assumed, because a wall clock says nothing of how
    well its host keeps time, and the note says that it is.

    Parameters
    ----------
    traces : sequence of Trace
        The captures.
    where : sequence of str
        How the user named them, for errors and to find `anchors`.
    labels : sequence of str
        Names for notes.
    anchors : mapping of file to int
        Time at zero of a capture's clock, in ns on the common clock, in place of what it states.

    Returns
    -------
    Clock
        Zero is that of the capture that starts its clock first.

    Raises
    ------
    ClockError
        If a capture states no time and has no anchor, or if captures do not overlap in time.
    UsageError
        If an anchor names none of the captures, or several.
    """
    stated = _stated(where, anchors)
    origins: list[int] = []
    for i, trace in enumerate(traces):
        origin = stated.get(i, trace.meta.utc_origin_ns)
        if origin is None and len(traces) == 1:
            origin = 0
        if origin is None:
            other = where[1 if i == 0 else 0]
            raise ClockError(
                f"{where[i]} does not say when its clock started, so it cannot be aligned with {other}",
                hint=f"state it with {_anchor_option(where[i])}, or analyse the files one by one",
            )
        origins.append(origin)
    zero = min(origins)
    shift = tuple(o - zero for o in origins)
    utc = zero if all(o >= _YEAR_2000_NS for o in origins) else None
    if len(traces) == 1:
        return Clock(shift, utc, traces[0].meta.clock_uncertainty_ns, ())
    _refuse_apart(traces, where, shift, stated)
    bound, notes = _uncertainty(traces, labels, shift, stated)
    return Clock(shift, utc, bound, notes)


def _stated(where: Sequence[str], anchors: Mapping[str, int]) -> dict[int, int]:
    """Anchors by the position of the file they name."""
    out: dict[int, int] = {}
    for name, value in anchors.items():
        found = [i for i, w in enumerate(where) if w == name]
        found = found or [i for i, w in enumerate(where) if PurePath(w).name == name]
        if len(found) != 1:
            raise UsageError(
                f"the anchor {name!r} names {'none' if not found else len(found)} of the captures",
                hint="name the file as it is given, with its folder if several have one name",
            )
        out[found[0]] = int(value)
    return out


def _refuse_apart(
    traces: Sequence[Trace], where: Sequence[str], shift: Sequence[int], stated: Mapping[int, int]
) -> None:
    """Captures of one run overlap in time; if they do not, their clocks are not one clock."""
    spans = sorted(
        (t.meta.start_ns + s, t.meta.end_ns + s, i)
        for i, (t, s) in enumerate(zip(traces, shift, strict=True))
    )
    latest, last = spans[0][1], spans[0][2]
    for start, end, i in spans[1:]:
        # whoever states an anchor vouches for it, but captures a day apart are a slip in its value or unit
        vouched = (i in stated or last in stated) and start - latest <= ANCHOR_SLIP_NS
        if start > latest and not vouched:
            raise ClockError(
                f"{where[last]} ends {_seconds(start - latest)} before {where[i]} starts: captures of one "
                "run overlap in time, so these are different runs or clocks that cannot be aligned",
                hint=f"analyse them one by one, or state the clock with {_anchor_option(where[i])}",
            )
        if end > latest:
            latest, last = end, i


def _uncertainty(
    traces: Sequence[Trace], labels: Sequence[str], shift: Sequence[int], stated: Mapping[int, int]
) -> tuple[int, tuple[str, ...]]:
    """Bound of the error between any two captures, and what to say of it."""
    checks = _checks(traces, shift)
    one_host = _one_host(traces)
    slew = ANCHOR_RESOLUTION_NS + round(MAX_SLEW_FRAC * (max(shift) - min(shift)))
    notes: list[str] = []
    assumed: list[str] = []
    bounds: list[int] = [0]
    for i in range(1, len(traces)):
        check = checks.get(i)
        if check is not None:
            bounds.append(check.bound_ns)
            notes.append(_check_note(labels[0], labels[i], check))
        elif i in stated or 0 in stated:
            bounds.append(0)
        elif one_host[i]:
            bounds.append(slew)
        else:
            bounds.append(ASSUMED_HOST_SKEW_NS + slew)
            assumed.append(labels[i])
    own = max(t.meta.clock_uncertainty_ns for t in traces)
    total = own + sum(sorted(bounds)[-2:])  # two files may be off to opposite sides of the first
    span = f"times of different files agree to {_seconds(total)}"
    if assumed:
        notes.insert(
            0,
            f"clocks are aligned by the wall clocks of the captures; {span} if their hosts' clocks do to "
            f"{_seconds(ASSUMED_HOST_SKEW_NS)}, which is assumed: no common GPU or collective tells",
        )
    elif stated:
        notes.insert(0, f"clocks are aligned by stated anchors, which are taken as exact; otherwise {span}")
    else:
        how = "common collectives" if checks else "one host's clock, slewed by at most 500 ppm"
        notes.insert(0, f"clocks are aligned by the wall clocks of the captures; {span} ({how})")
    return total, tuple(notes)


def _checks(traces: Sequence[Trace], shift: Sequence[int]) -> dict[int, Skew]:
    """Bounds against the first capture, from collectives, where there are any."""
    if sum(t.has("kernels") for t in traces) < 2 or not traces[0].has("kernels"):
        return {}
    first = _collectives(traces[0], shift[0])
    if not len(first):
        return {}
    found = {
        i: skew(first, _collectives(t, shift[i])) for i, t in enumerate(traces) if i and t.has("kernels")
    }
    return {i: s for i, s in found.items() if s is not None}


def _collectives(trace: Trace, shift_ns: int) -> Collectives:
    # not through Trace.table: the columns would stay in memory beside the merged ones
    kernels = trace.loaders["kernels"](["start_ns", "end_ns", "stream", "name"]).frame
    own = collectives(kernels)
    return Collectives(own.kind, own.start_ns + shift_ns, own.end_ns + shift_ns)


def _one_host(traces: Sequence[Trace]) -> list[bool]:
    """Whether each capture has a GPU in common with the first (directly or through others)."""
    sets = [{u for u in t.table("devices", ["uuid"])["uuid"] if u} for t in traces]
    known = set(sets[0])
    together = [True] + [False] * (len(sets) - 1)
    for _ in sets:
        for i, own in enumerate(sets):
            if not together[i] and own & known:
                together[i] = True
                known |= own
    return together


def _check_note(first: str, second: str, check: Skew) -> str:
    ahead = f"{_seconds(abs(check.ahead_ns))} {'later' if check.ahead_ns >= 0 else 'earlier'}"
    text = (
        f"clock check: {check.matched} common collectives end {ahead} in {second} than in {first} (median); "
        f"its clock is off by {_signed(check.low_ns)} to {_signed(check.high_ns)}"
    )
    if not check.low_ns <= 0 <= check.high_ns:
        least = _seconds(min(abs(check.low_ns), abs(check.high_ns)))
        text += f", so the wall clocks are wrong by at least {least}: state the clock with --anchor"
    return text


def _anchor_option(name: str) -> str:
    return f"--anchor '{PurePath(name).name}=TIME'"


def _signed(value_ns: int) -> str:
    return ("-" if value_ns < 0 else "+") + _seconds(abs(value_ns))


def _seconds(value_ns: int) -> str:
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if value_ns >= size:
            return f"{value_ns / size:,.4g} {unit}"
    return f"{value_ns} ns"
