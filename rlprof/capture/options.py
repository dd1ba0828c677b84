"""What a capture records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from rlprof.errors import UsageError

Backend = Literal["auto", "cupti", "dcgm", "nvml", "host", "none"]


@dataclass(frozen=True)
class Options:
    """What to record.

    Parameters
    ----------
    backend : str
        ``auto`` takes the best sampler that works here; ``none`` records ranges only.
    rate_hz : float or None
        Samples per second; the back end's own default if None.
    devices : tuple of int or None
        Numbers of the GPUs; None is all.
    kernels : bool
        Record kernels and copies of the program's processes (CUPTI activity).
    metrics : tuple of str
        Further hardware counters to sample (cupti only), by the names that the chip has for them.

    Raises
    ------
    UsageError
        If one is of another type, or there is no such back end.
    """

    backend: Backend = "auto"
    rate_hz: float | None = None
    devices: tuple[int, ...] | None = None
    kernels: bool = False
    metrics: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = get_args(Backend)
        if self.backend not in known:
            what = f"there is no back end {self.backend!r} for a capture from Python"
            raise UsageError(what, hint=f"one of {', '.join(known)}; nsys: rlprof capture --backend nsys")
        rate = self.rate_hz
        if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float)):
            raise UsageError(f"rate_hz={rate!r} is no number", hint="samples per second: rate_hz=10_000")
        for name, kind, like in (("devices", int, "(0, 1)"), ("metrics", str, '("NAME",)')):
            value = getattr(self, name)
            if name == "devices" and value is None:
                continue
            if isinstance(value, str) or not isinstance(value, Sequence):
                raise UsageError(f"{name}={value!r} is no tuple", hint=f"write {name}={like}")
            if not all(isinstance(item, kind) and not isinstance(item, bool) for item in value):
                raise UsageError(
                    f"{name}={value!r} holds what is no {kind.__name__}", hint=f"write {name}={like}"
                )
            object.__setattr__(self, name, tuple(value))
