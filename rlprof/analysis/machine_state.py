"""State of the machine beside a measurement, and when the states of its two sides put it in doubt."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

#: Cores that others keep busy from which on a comparison is doubted, and the difference between its sides. A
#: quarter of a core, taken from one of the two threads that want a core all of the time, is an eighth of what
#: both get: as much as overlap gains on two cores.
LOAD_CORES = 0.25
#: Others' load only counts where the machine is full: this share of its cores is busy.
FULL_FRAC = 0.9
#: Work that is bound by computing takes as much longer as the clock is lower. 2 % are two steps of an H200's
#: clock, and twice the gain that ends the search.
SM_CLOCK_FRAC = 0.02
#: Clocks of cores are read at one moment and jump: only a larger difference of medians says something.
CORE_CLOCK_FRAC = 0.05
#: A side is slowed down if its GPU is in so many of its trials more than on the other side.
SLOWED_TRIALS_FRAC = 0.5

#: Reasons for lower clocks, as NVML numbers them, that say the GPU is held back. An idle GPU, clocks that
#: somebody has set, and a display are none.
SLOWED_BY = {
    0x4: "its power limit",
    0x8: "the hardware",
    0x10: "another GPU of its sync group",
    0x20: "its temperature (driver)",
    0x40: "its temperature (hardware)",
    0x80: "the power supply",
}


@dataclass(frozen=True)
class MachineState:
    """The machine during one trial. None: this machine does not tell.

    Parameters
    ----------
    wall_s : float
        How long was looked, in seconds.
    cores : float
        Cores that this process may use.
    own_cores, others_cores : float or None
        Cores that this program's processes kept busy, and all others (what a hypervisor took included).
    core_mhz : float or None
        Mean clock of cores at the end.
    throttled : int or None
        Times that cores were slowed down for heat meanwhile, or that a control group let this program wait.
    sm_clock_mhz, memory_clock_mhz, temperature_c, power_w : float or None
        Of the GPU at the end.
    slowed_by : int or None
        Reasons for lower clocks at the end, bits as NVML numbers them.
    """

    wall_s: float
    cores: float
    own_cores: float | None = None
    others_cores: float | None = None
    core_mhz: float | None = None
    throttled: int | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    slowed_by: int | None = None

    def to_dict(self) -> dict[str, float]:
        """What is known, as a JSON document; numbers to four digits behind the point."""
        return _known(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> MachineState:
        """Make a state of its JSON document; names that are not known are passed over."""
        names = {f.name for f in fields(cls)}
        return cls(**{name: value for name, value in document.items() if name in names})


@dataclass(frozen=True)
class SideState:
    """The machine during all trials of one side.

    Parameters
    ----------
    trials : int
        How many were looked at.
    wall_s : float
        All together.
    cores, own_cores, others_cores : float or None
        Means over that time: a short trial alone is no more than a few ticks of the kernel's accounts.
    core_mhz, sm_clock_mhz, memory_clock_mhz, temperature_c, power_w : float or None
        Medians.
    throttled : int or None
        Sum.
    slowed_by : int or None
        All reasons that were seen.
    slowed_frac : float or None
        Share of trials with one of `SLOWED_BY`.
    """

    trials: int
    wall_s: float
    cores: float
    own_cores: float | None = None
    others_cores: float | None = None
    core_mhz: float | None = None
    throttled: int | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    slowed_by: int | None = None
    slowed_frac: float | None = None

    def to_dict(self) -> dict[str, float]:
        """What is known, as a JSON document; numbers to four digits behind the point."""
        return _known(self)


def _known(state: MachineState | SideState) -> dict[str, float]:
    found = ((f.name, getattr(state, f.name)) for f in fields(state))
    return {name: round(value, 4) for name, value in found if value is not None}


def side(states: Iterable[MachineState]) -> SideState | None:
    """Put the states of one side's trials together; None if there are none."""
    states = tuple(states)
    wall_s = sum(s.wall_s for s in states)
    if not states or wall_s <= 0:
        return None

    def known(name: str) -> list[Any]:
        return [value for s in states if (value := getattr(s, name)) is not None]

    def mean(name: str) -> float | None:
        rows = [(s.wall_s, v) for s in states if (v := getattr(s, name)) is not None]
        return sum(w * v for w, v in rows) / sum(w for w, _ in rows) if rows else None

    def over(name: str, how: Callable[[list[Any]], Any]) -> Any:
        values = known(name)
        return how(values) if values else None

    def joined(bits: list[int]) -> int:
        found = 0
        for some in bits:
            found |= int(some)
        return found

    mask = joined(list(SLOWED_BY))
    middle = ("core_mhz", "sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w")
    return SideState(
        trials=len(states),
        wall_s=wall_s,
        cores=states[-1].cores,
        own_cores=mean("own_cores"),
        others_cores=mean("others_cores"),
        throttled=over("throttled", sum),
        slowed_by=over("slowed_by", joined),
        slowed_frac=over("slowed_by", lambda bits: sum(bool(int(b) & mask) for b in bits) / len(bits)),
        **{name: over(name, statistics.median) for name in middle},
    )


def doubts(reference: Sequence[MachineState], candidate: Sequence[MachineState]) -> tuple[str, ...]:
    """Say why the machine's state puts a comparison in doubt.

    Parameters
    ----------
    reference, candidate : sequence of MachineState
        Of the trials of each side.

    Returns
    -------
    tuple of str
        Sentences without a stop; none if nothing is doubted, or nothing is known.
    """
    a, b = side(reference), side(candidate)
    if a is None or b is None:
        return ()
    return tuple(said for said in (_load(a, b), _throttled(a, b), *_clocks(a, b), _slowed(a, b)) if said)


def _load(a: SideState, b: SideState) -> str | None:
    """Others on the cores: a doubt where the machine was full, or would have been on the other side."""
    if a.others_cores is None or b.others_cores is None:
        return None
    own = max(s.own_cores or 0.0 for s in (a, b))
    most = max(a.others_cores, b.others_cores)
    if most < LOAD_CORES or own + most < FULL_FRAC * max(a.cores, b.cores):
        return None
    cores = f"of {a.cores:g} cores"
    if abs(a.others_cores - b.others_cores) >= LOAD_CORES:
        return (
            f"others kept {a.others_cores:.2f} {cores} busy beside the reference"
            f" and {b.others_cores:.2f} beside the candidate"
        )
    return f"others kept {(a.others_cores + b.others_cores) / 2:.2f} {cores} busy beside both"


def _throttled(a: SideState, b: SideState) -> str | None:
    if a.throttled is None or b.throttled is None or bool(a.throttled) == bool(b.throttled):
        return None
    return (
        f"cores were throttled {a.throttled} times beside the reference"
        f" and {b.throttled} times beside the candidate"
    )


def _clocks(a: SideState, b: SideState) -> Iterable[str]:
    for name, what, limit in (
        ("core_mhz", "cores", CORE_CLOCK_FRAC),
        ("sm_clock_mhz", "the GPU's SMs", SM_CLOCK_FRAC),
    ):
        one, other = getattr(a, name), getattr(b, name)
        if one and other and abs(one - other) > limit * max(one, other):
            yield (
                f"clocks of {what} were {one:.0f} MHz beside the reference"
                f" and {other:.0f} beside the candidate"
            )


def _slowed(a: SideState, b: SideState) -> str | None:
    if a.slowed_frac is None or b.slowed_frac is None:
        return None
    if abs(a.slowed_frac - b.slowed_frac) < SLOWED_TRIALS_FRAC:
        return None
    more, name = (a, "reference") if a.slowed_frac > b.slowed_frac else (b, "candidate")
    reasons = ", ".join(text for bit, text in SLOWED_BY.items() if (more.slowed_by or 0) & bit)
    return (
        f"the GPU was held back by {reasons} in {more.slowed_frac:.0%} of the {name}'s trials,"
        f" in {min(a.slowed_frac, b.slowed_frac):.0%} of the other side's"
    )
