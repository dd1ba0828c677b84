"""Quota levels: the settings that make a difference, weakest first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rlprof.overlap.quota.errors import QuotaError


@dataclass(frozen=True, order=True)
class Level:
    """One quota.

    Parameters
    ----------
    amount : int
        What a process gets: SMs under MPS, cores, or weight; levels are ordered by it.
    setting : int
        What gives it: the percentage for ``CUDA_MPS_ACTIVE_THREAD_PERCENTAGE``, the number of cores, or the
        nice value.
    """

    amount: int
    setting: int

    def to_dict(self) -> dict[str, int]:
        """Return it as a JSON document."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Level:
        """Read what `to_dict` wrote."""
        return cls(int(document["amount"]), int(document["setting"]))


def distinct(probed: Iterable[tuple[int, int]]) -> tuple[Level, ...]:
    """Levels from what fresh clients saw: the distinct SM counts, each by the smallest percentage giving it.

    Level k of Specification A, section 9, is ``distinct(probed)[k - 1]``.

    Parameters
    ----------
    probed : iterable of (int, int)
        Percentage, and the number of SMs that a client under it saw.

    Raises
    ------
    QuotaError
        If there is none, a percentage is not within 1 ... 100 or was seen to give two counts, or a count is
        not positive.
    """
    seen: dict[int, int] = {}
    for percentage, count in probed:
        if not 1 <= percentage <= 100 or count < 1:
            raise QuotaError(f"a client under {percentage} % saw {count} SMs", hint="probe again")
        if seen.setdefault(percentage, count) != count:
            raise QuotaError(
                f"clients under {percentage} % saw {seen[percentage]} and {count} SMs",
                hint="probe again while nothing changes the daemon",
            )
    if not seen:
        raise QuotaError("no client was probed", hint="probe at least one percentage")
    smallest: dict[int, int] = {}
    for percentage in sorted(seen):
        smallest.setdefault(seen[percentage], percentage)
    return tuple(Level(count, smallest[count]) for count in sorted(smallest))
