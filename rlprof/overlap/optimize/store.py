"""Measurements that are kept, and what making them took, over all sessions of an optimisation.

Measurements are kept by program version, conditions and the graphs that were measured.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from rlprof.errors import OutputError
from rlprof.overlap.optimize.cost import OTHER, Cost, Lost, Part, Record, Session, Spent, Trained, cost_of
from rlprof.overlap.optimize.machine import Sides
from rlprof.overlap.optimize.trials import Seen
from rlprof.overlap.optimize.workload import Measurement, Profile

#: Kinds of documents that hold a comparison.
_COMPARISONS = ("lever", "local", "complete", "in all", "quota level", "quota complete")


def key_of(*parts: str | Iterable[str]) -> str:
    """Hash of texts and sets of texts; the order of the latter plays no part."""
    found = sha256()
    for part in parts:
        found.update(json.dumps(part if isinstance(part, str) else sorted(part)).encode())
    return found.hexdigest()


class Store:
    """Documents by key, and records of what they took, in memory and in a file that grows by each at once.

    What one store sees is a *session*; what the file has already is of earlier ones. Time is that of the part
    of the work that is being done (`spending`), and is kept with every document and at the end of the part:
    who is killed loses what has passed since.

    Parameters
    ----------
    path : pathlib.Path, optional
        JSON documents, one a line; lines that were cut off or damaged are passed over, and counted.
        Nothing is written before `begin` or the first document.
    clock : callable, optional
        Seconds.

    Examples
    --------
    >>> store = Store()
    >>> with store.spending("quotas"):
    ...     store.tried()  # after each local trial
    >>> store.spent("quotas").trials
    1
    """

    def __init__(self, path: Path | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._found: dict[str, Any] = {}
        self._measured_in: dict[str, int] = {}  # number of the session, by key; 0: of before there were any
        self._records: list[Record] = []
        self._unknown = self._damaged = self._read_of = 0
        self._session: Session | None = None
        self._unwritten: list[Record] = []
        self._parts: list[str] = []
        self._since = clock()
        self._trained: Callable[[], int] | None = None
        #: Why measurements of earlier sessions are of no use in this one, a line for each reason.
        self.not_reused: tuple[str, ...] = ()
        if path is None or not path.exists():
            return
        try:
            text = path.read_bytes()
        except OSError as error:
            raise OutputError(f"cannot be read ({error.strerror})", where=path) from error
        for line in text.splitlines():
            self._read(line)
        if text and not text.endswith(b"\n"):
            with path.open("a", encoding="utf-8") as file:
                file.write("\n")

    def _read(self, line: bytes) -> None:
        try:
            entry = json.loads(line, parse_constant=_no_number)
            if "key" in entry:
                _check(entry)
                self._found[entry["key"]] = entry["value"]
                self._measured_in[entry["key"]] = self._read_of
                self._unknown += not self._records  # of before records were kept
            else:
                record = _record(entry)
                self._records.append(record)
                if isinstance(record, Session):
                    self._read_of = record.number
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            self._damaged += bool(line.strip())

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: str) -> Any | None:
        """Return a document; None if there is none."""
        return self._found.get(key)

    def put(self, key: str, kind: str, value: Any) -> None:
        """Keep a document.

        Raises
        ------
        OutputError
            If the file cannot be written.
        """
        self._keep_time()
        self._measured_in[key] = self._begun().number
        self._found[key] = value
        self._write({"key": key, "kind": kind, "value": value})

    # sessions and cost -------------------------------------------------------------------------------------

    def begin(
        self,
        conditions: Mapping[str, Any] | None = None,
        *,
        goes_on_from: int | None = None,
        trained: Callable[[], int] | None = None,
    ) -> None:
        """Begin the session, once what it goes on with is known to be good; without it, it begins by itself.

        Parameters
        ----------
        conditions : mapping of str to value, optional
            What measurements depend on beside the program.
        goes_on_from : int, optional
            How many trained iterations there are; what earlier sessions trained beyond them was lost.
        trained : callable, optional
            How many there are by now.

        Raises
        ------
        OutputError
            If the file cannot be written.
        """
        if self._session is not None:
            raise RuntimeError("the session has begun")
        number = 1 + max((s.number for s in self.sessions), default=0)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        plain = json.loads(json.dumps(dict(conditions or {}), default=str))
        self._session = Session(number, now, goes_on_from, plain)
        self._trained = trained
        self._add(self._session)
        waiting, self._unwritten = self._unwritten, []
        for record in waiting:
            self._add(record)
        name = "the store" if self._path is None else self._path.name
        damaged = f"damaged lines of {name}, passed over: {self._damaged}; what they took is in no sum"
        self.not_reused = ((damaged,) if self._damaged else ()) + tuple(
            f"measurements of session {s.number} are not reused: {'; '.join(said)}"
            for s in self.sessions[:-1]
            if (said := differences(s.conditions, plain))
        )

    @property
    def session(self) -> Session | None:
        """The one that goes on; None: it has not begun."""
        return self._session

    @property
    def sessions(self) -> tuple[Session, ...]:
        """All that have begun, this one included."""
        return tuple(r for r in self._records if isinstance(r, Session))

    @contextmanager
    def spending(self, part: str) -> Iterator[None]:
        """Count time as that of a part; within it that of another part is the other one's alone."""
        self._keep_time()
        self._parts.append(part)
        try:
            yield
        finally:
            self._keep_time()
            self._parts.pop()

    def tried(self, trials: int = 1) -> None:
        """Count local trials of the part that is being done."""
        self._keep_time(trials)

    def train(self, graph: str, measurement: Measurement, number: int | None = None) -> None:
        """Keep a complete iteration of training, in the part that is being done.

        Parameters
        ----------
        graph : str
            Hash of the graph, or what ran.
        measurement : Measurement
            The iteration.
        number : int, optional
            Of the iteration, from 0 on; by default that of the latest one.

        Raises
        ------
        OutputError
            If the file cannot be written.
        """
        self._keep_time()
        session = self._begun()
        if number is None and self._trained is not None:
            number = self._trained() - 1
        self._add(Trained(session.number, self._part, graph, measurement, number))

    def lose(self) -> None:
        """Keep that what was trained in this session does not go on: there is no checkpoint of it."""
        session = self._begun()
        self._add(Lost(session.number, session.goes_on_from or 0))

    def spent(self, part: str) -> Part:
        """Sum of a part over all sessions, until now."""
        return self.cost().part(part)

    def cost(self) -> Cost:
        """Sum of all parts over all sessions, until now."""
        self._keep_time()
        return cost_of([*self._records, *self._unwritten], self._unknown)

    def trained(self) -> tuple[Trained, ...]:
        """All iterations that were trained under the conditions of this session, in earlier ones too."""
        alike = self._alike
        return tuple(r for r in self._records if isinstance(r, Trained) and r.session in alike)

    @property
    def reusable(self) -> int:
        """How many documents there are of sessions under the conditions of this one: those can be of use."""
        alike = self._alike
        return sum(number in alike for number in self._measured_in.values())

    @property
    def _alike(self) -> set[int]:
        """Numbers of the sessions under the conditions of this one."""
        here = self._session
        return {s.number for s in self.sessions if here is None or s.conditions == here.conditions}

    @property
    def _part(self) -> str:
        return self._parts[-1] if self._parts else OTHER

    def _keep_time(self, trials: int = 0) -> None:
        now = self._clock()
        passed, self._since = now - self._since, now
        if trials or (self._parts and passed > 0):
            number = 0 if self._session is None else self._session.number
            self._add(Spent(number, self._part, passed if self._parts else 0.0, trials))

    def _begun(self) -> Session:
        if self._session is None:
            self.begin()
        assert self._session is not None
        return self._session

    def _add(self, record: Record) -> None:
        """Keep a record; one of before the session has begun waits for it."""
        if self._session is None:
            self._unwritten.append(record)
            return
        if isinstance(record, Spent) and not record.session:
            record = Spent(self._session.number, record.part, record.time_s, record.trials)
        self._records.append(record)
        self._write(_entry(record))

    def _write(self, entry: Mapping[str, Any]) -> None:
        if self._path is None:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:
            raise OutputError(f"cannot be written ({error.strerror})", where=self._path) from error


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Say what differs between conditions, as ``driver 580 was 575``; nothing that only one of them knows.

    Parameters
    ----------
    before, now : mapping of str to value
        Mappings within them are looked into.
    """
    said = []
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            said += differences(old, new)
        elif old != new:
            said.append(f"{name} {_short(new)} was {_short(old)}")
    return said


def _short(value: Any) -> str:
    return "none" if value is None else ("off", "on")[value] if isinstance(value, bool) else str(value)[:60]


def _entry(record: Record) -> dict[str, Any]:
    match record:
        case Session():
            return {
                "kind": "session",
                "session": record.number,
                "date": record.date,
                "goes_on_from": record.goes_on_from,
                "conditions": dict(record.conditions),
            }
        case Spent():
            found = {"kind": "spent", "session": record.session, "part": record.part, "time_s": record.time_s}
            return found | ({"trials": record.trials} if record.trials else {})
        case Trained():
            return {
                "kind": "iteration",
                "session": record.session,
                "part": record.part,
                "graph": record.graph,
                "number": record.number,
                "value": record.measurement.to_dict(),
            }
        case Lost():
            return {"kind": "lost", "session": record.session, "from_iteration": record.from_iteration}


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no measurement")


def _check(entry: Mapping[str, Any]) -> None:
    """Raise unless a document has the form of its kind: what is not as it was written is measured again."""
    kind, value = entry.get("kind"), entry["value"]
    if kind == "profile":
        Profile.from_dict(value)
    if kind in _COMPARISONS:
        Sides.of(value)
        Seen.from_dict(value.get("seen", {}))
        pairs = [(float(a), float(b)) for a, b in value["pairs"]]
        if not pairs or not all(0 <= t < math.inf for pair in pairs for t in pair):
            raise ValueError("no times")


def _record(entry: Mapping[str, Any]) -> Record:
    session = int(entry["session"])
    match entry["kind"]:
        case "session":
            first = entry["goes_on_from"]
            return Session(
                session, str(entry["date"]), None if first is None else int(first), dict(entry["conditions"])
            )
        case "spent" if 0 <= float(entry["time_s"]) < math.inf:
            return Spent(session, str(entry["part"]), float(entry["time_s"]), int(entry.get("trials", 0)))
        case "iteration":
            number = entry["number"]
            if not 0 <= float(entry["value"]["time_s"]) < math.inf:
                raise ValueError("no time")
            return Trained(
                session,
                str(entry["part"]),
                str(entry["graph"]),
                Measurement.from_dict(entry["value"]),
                None if number is None else int(number),
            )
        case "lost":
            return Lost(session, int(entry["from_iteration"]))
    raise ValueError(f"no record is of kind {entry['kind']!r}")
