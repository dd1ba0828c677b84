"""What all samplers have in common: limits, samples, and the interface that the sampler process drives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from rlprof.errors import RlprofError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Backend = Literal["cupti", "dcgm", "nvml", "host"]
#: Best first.
BACKENDS: tuple[Backend, ...] = get_args(Backend)
Source = Literal["sm_counters", "host_cores"]
US, MS, S = 1_000, 1_000_000, 1_000_000_000


class SamplerError(RlprofError):
    """A sampler cannot start or go on: no driver, no permission, not supported, counters taken."""


@dataclass(frozen=True)
class Limits:
    """The sampling periods that a back end can keep, and why no others.

    Parameters
    ----------
    min_period_ns, max_period_ns : int
        Shortest and longest period.
    default_period_ns : int
        What is used when nobody asks.
    floor_reason, ceiling_reason : str
        Why not shorter, why not longer: the end of a sentence.
    """

    min_period_ns: int
    max_period_ns: int
    default_period_ns: int
    floor_reason: str
    ceiling_reason: str = "longer ones hide what happens in between"


LIMITS: dict[Backend, Limits] = {
    "cupti": Limits(
        # 24 to 30 us a record on an H200's host: at 40 us none lost and 73 % of a core, at 25 us none and
        # 94 %, at 20 us many (benchmarks/results/gpu/decode_cost.json); `pm_counters` says why one thread
        40 * US,
        10 * MS,
        100 * US,
        "reading a sample takes up to 30 us of a core, and CUPTI fails where two threads read",
    ),
    "dcgm": Limits(100 * MS, 10 * S, 100 * MS, "the host engine updates its fields no faster"),
    "nvml": Limits(
        100 * MS, 10 * S, 100 * MS, "below that, most answers of NVML's GPM are zero or not a number"
    ),
    "host": Limits(
        20 * MS,
        10 * S,
        50 * MS,
        "the kernel accounts in ticks of 10 ms, so that a sample would be all or nothing",
    ),
}


def check_period(backend: Backend, period_ns: int) -> None:
    """Refuse a period that a back end cannot keep.

    Parameters
    ----------
    backend : str
        One of `BACKENDS`.
    period_ns : int
        The period asked for.

    Raises
    ------
    UsageError
        If it is outside the range of `backend`; says the range and the reason.
    """
    limits = LIMITS[backend]
    if limits.min_period_ns <= period_ns <= limits.max_period_ns:
        return
    short = period_ns < limits.min_period_ns
    reason = limits.floor_reason if short else limits.ceiling_reason
    raise UsageError(
        f"{rate_text(period_ns)} is outside the range of the {backend} sampler "
        f"({rate_text(limits.max_period_ns)} to {rate_text(limits.min_period_ns)}): {reason}",
        hint=f"--rate {rate_text(limits.min_period_ns if short else limits.max_period_ns).replace(' ', '')}",
    )


def period_of(rate_hz: float) -> int:
    """The period in nanoseconds of a rate in hertz.

    Raises
    ------
    UsageError
        If the rate is not a positive, finite number.
    """
    if not 0 < rate_hz < 1e9:
        raise UsageError(f"a sampling rate of {rate_hz:g} Hz is no rate", hint="for example --rate 10kHz")
    return round(1e9 / rate_hz)


def rate_text(period_ns: int) -> str:
    """A period as a rate for people: ``10 kHz``."""
    hertz = 1e9 / period_ns
    return f"{hertz / 1000:.4g} kHz" if hertz >= 1000 else f"{hertz:.4g} Hz"


@dataclass(frozen=True)
class Samples:
    """Samples of one device, in order of time.

    Parameters
    ----------
    device : int
        Number of the GPU in the order of its PCI bus, as in ``nvidia-smi``; -1 is the host.
    start_ns, end_ns : ndarray of int64, shape (n,)
        What each sample covers, in the clock of `time.monotonic_ns`.
    active_frac : ndarray of float64, shape (n,)
        Mean activity over it, 0..1.
    extra : dict of str to ndarray of float64, shape (n,)
        Further metrics, by name.
    """

    device: int
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    active_frac: NDArray[np.float64]
    extra: dict[str, NDArray[np.float64]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass
class Losses:
    """What a sampler could not deliver; counted, never filled in.

    Parameters
    ----------
    lost_samples : int
        Samples that should have been there: the time not covered over the period, rounded.
    lost_ns : int
        Time not covered.
    gaps : int
        How many stretches that time is in.
    overflows : int
        How often the hardware's buffer was full.
    dropped : int
        Records without a valid time (as the first of a run), not counted as lost.
    invalid : int
        Answers that were no number.
    repeated : int
        Records of a time that was delivered already; left out.
    """

    lost_samples: int = 0
    lost_ns: int = 0
    gaps: int = 0
    overflows: int = 0
    dropped: int = 0
    invalid: int = 0
    repeated: int = 0

    def gap(self, length_ns: int, period_ns: int) -> None:
        """Count a stretch of time without samples."""
        self.lost_samples += max(1, round(length_ns / period_ns))
        self.lost_ns += length_ns
        self.gaps += 1


@dataclass(frozen=True)
class Device:
    """A sampled device, for the capture's table of devices.

    Parameters
    ----------
    device : int
        As in `Samples`.
    name : str or None
        Product name.
    sm_count : int or None
        Number of streaming multiprocessors.
    uuid : str or None
        To recognise one GPU in several captures; never shown.
    facts : dict
        More that a back end knows: chip, number of cores, hardware-buffer size.
    """

    device: int
    name: str | None = None
    sm_count: int | None = None
    uuid: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)


class Sampler(Protocol):
    """One back end at work. All calls come from one thread.

    Attributes
    ----------
    source : str
        Value of the column `source` of its samples.
    period_ns : int
        Period that is really kept.
    poll_ns : int
        How often `drain` wants to be called.
    """

    source: Source
    period_ns: int
    poll_ns: int

    def start(self) -> Sequence[Device]:
        """Begin to sample; return once samples really come.

        Raises
        ------
        SamplerError
            With the reason for people if that is impossible here.
        """

    def drain(self) -> Sequence[Samples]:
        """What has come since the last call. Never blocks for longer than reading takes."""

    def stop(self) -> Sequence[Samples]:
        """End sampling, return what is left and give everything back. May be called once, after `start`."""

    def losses(self) -> Losses:
        """What is missing so far."""

    def clock(self) -> dict[str, Any]:
        """How its times were put on the host's clock: method, offset, drift, uncertainty."""
