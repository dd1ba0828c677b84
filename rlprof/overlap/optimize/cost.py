"""What an optimisation took: by part of the work, over all sessions; nothing is counted twice.

Net is the whole less training that goes on, as in section 5.4 of the Rose paper: start of workers and model,
preparation, local trials and installation are cost, and so is training that was lost with its session.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlprof.overlap.optimize.workload import Measurement

START, RECORDING, LEVERS, MEMORY, SEARCH = "start", "recording", "levers", "memory", "search"
QUOTAS, OTHER = "quotas", "other"
#: Parts that are known by name, in the order in which they are shown.
PARTS = (START, RECORDING, LEVERS, MEMORY, SEARCH, OTHER, QUOTAS)
#: Parts that are reported apart, and are in no sum.
APART = (QUOTAS,)


@dataclass(frozen=True)
class Session:
    """One call of an optimisation that may be resumed.

    Parameters
    ----------
    number : int
        From 1 on.
    date : str
        Of its beginning, UTC, ISO 8601; empty: not known.
    goes_on_from : int or None
        How many trained iterations it began with: what earlier sessions trained beyond them was lost. None:
        nothing was.
    conditions : mapping of str to value
        What its measurements depend on beside the program.
    """

    number: int
    date: str = ""
    goes_on_from: int | None = None
    conditions: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Spent:
    """Time of a part of the work in a session.

    Parameters
    ----------
    session : int
        Its number.
    part : str
        As in `PARTS`, or another name.
    time_s : float
        Wall time, in seconds; that of parts inside of it is theirs alone.
    trials : int
        Local trials in it.
    """

    session: int
    part: str
    time_s: float
    trials: int = 0


@dataclass(frozen=True)
class Trained:
    """A complete iteration of training, whose time lies within that of its part.

    Parameters
    ----------
    session : int
        Its number.
    part : str
        In which it was trained.
    graph : str
        Hash of the graph, or what ran.
    measurement : Measurement
        The iteration.
    number : int or None
        Of the iteration, from 0 on; None: not known, and it is not lost.
    """

    session: int
    part: str
    graph: str
    measurement: Measurement
    number: int | None = None


@dataclass(frozen=True)
class Lost:
    """What a session trained from an iteration on was not kept.

    Parameters
    ----------
    session : int
        Its number.
    from_iteration : int
        Number of the first one.
    """

    session: int
    from_iteration: int


Record = Session | Spent | Trained | Lost


@dataclass(frozen=True)
class Part:
    """What a part of the work took.

    Parameters
    ----------
    name : str
        As in `PARTS`, or another name.
    total_s : float
        Wall time, in seconds.
    retained_s : float
        What of it was training that goes on.
    iterations, lost : int
        Complete iterations, and how many of them were lost.
    trials : int
        Local trials.
    """

    name: str
    total_s: float = 0.0
    retained_s: float = 0.0
    iterations: int = 0
    lost: int = 0
    trials: int = 0

    @property
    def net_s(self) -> float:
        """What it cost beside training."""
        return max(0.0, self.total_s - self.retained_s)

    def to_dict(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return {
            "part": self.name,
            "total_s": self.total_s,
            "retained_training_s": self.retained_s,
            "net_s": self.net_s,
            "iterations": self.iterations,
            "lost_iterations": self.lost,
            "trials": self.trials,
            "apart": self.name in APART,
        }


@dataclass(frozen=True)
class Cost:
    """What all sessions took.

    Parameters
    ----------
    parts : tuple of Part
        Those that took any time.
    sessions : tuple of Session
        In their order.
    by_session_s : mapping of (int, str) to float
        Wall time of each part in each session.
    unknown : int
        Measurements of sessions whose time was not kept: it is in no sum.
    """

    parts: tuple[Part, ...] = ()
    sessions: tuple[Session, ...] = ()
    by_session_s: Mapping[tuple[int, str], float] = field(default_factory=dict)
    unknown: int = 0

    def part(self, name: str) -> Part:
        """What a part took; nothing if there was none."""
        return next((p for p in self.parts if p.name == name), Part(name))

    @property
    def total_s(self) -> float:
        """Wall time of everything but what is reported apart."""
        return sum(p.total_s for p in self.parts if p.name not in APART)

    @property
    def retained_s(self) -> float:
        """What of it was training that goes on."""
        return sum(p.retained_s for p in self.parts if p.name not in APART)

    @property
    def net_s(self) -> float:
        """What it cost beside training."""
        return max(0.0, self.total_s - self.retained_s)

    @property
    def all_s(self) -> float:
        """Wall time of all parts."""
        return sum(p.total_s for p in self.parts)

    @property
    def iterations(self) -> int:
        """Complete iterations, those that were lost included."""
        return sum(p.iterations for p in self.parts if p.name not in APART)

    def session_s(self, *parts: str) -> float:
        """Wall time of parts in the latest session; without a name, of everything not reported apart."""
        latest = self.sessions[-1].number if self.sessions else 0
        return sum(
            time_s
            for (number, part), time_s in self.by_session_s.items()
            if number == latest and (part in parts if parts else part not in APART)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return sessions and parts as a JSON document."""
        return {
            "parts": [p.to_dict() for p in self.parts],
            "sessions": [
                {
                    "session": s.number,
                    "date": s.date,
                    "parts_s": {
                        part: time_s for (n, part), time_s in self.by_session_s.items() if n == s.number
                    },
                    "goes_on_from": s.goes_on_from,
                }
                for s in self.sessions
            ],
            "measurements_of_unknown_cost": self.unknown,
        }


NOTHING = Cost()


def cost_of(records: Iterable[Record], unknown: int = 0) -> Cost:
    """Add up what was kept.

    Parameters
    ----------
    records : iterable of Session, Spent, Trained and Lost
        In the order in which they were made.
    unknown : int
        Measurements of sessions of which there are no records.
    """
    records = list(records)
    sessions = {r.number: r for r in records if isinstance(r, Session)}
    names = dict.fromkeys(r.part for r in records if isinstance(r, Spent | Trained))
    parts: dict[str, Part] = {name: Part(name) for name in (*PARTS, *names) if name in names}
    by_session_s: dict[tuple[int, str], float] = {}
    for record in records:
        if isinstance(record, Spent):
            old = parts[record.part]
            parts[record.part] = Part(
                old.name,
                old.total_s + record.time_s,
                old.retained_s,
                old.iterations,
                old.lost,
                old.trials + record.trials,
            )
            where = record.session, record.part
            by_session_s[where] = by_session_s.get(where, 0.0) + record.time_s
        elif isinstance(record, Trained):
            old, lost = parts[record.part], is_lost(record, records)
            parts[record.part] = Part(
                old.name,
                old.total_s,
                old.retained_s + (0.0 if lost else record.measurement.time_s),
                old.iterations + 1,
                old.lost + lost,
                old.trials,
            )
    return Cost(tuple(parts.values()), tuple(sessions.values()), by_session_s, unknown)


def is_lost(one: Trained, records: Iterable[Record]) -> bool:
    """Whether training went on from before an iteration."""
    if one.number is None:
        return False
    number = one.number
    return any(
        record.number > one.session and record.goes_on_from is not None and number >= record.goes_on_from
        if isinstance(record, Session)
        else isinstance(record, Lost) and record.session == one.session and number >= record.from_iteration
        for record in records
    )
