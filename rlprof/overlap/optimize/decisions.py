"""Decisions of all sessions of an optimisation, each once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlprof.errors import OutputError
from rlprof.overlap.optimize.levers import AGAIN
from rlprof.overlap.optimize.log import DecisionLog, Entry, lines
from rlprof.overlap.optimize.store import Store

#: What may differ between an entry and its repetition.
_APART = ("at_s", "session", "reused")
#: What each session says of itself.
_OWN = ("started", "session", "ended")


def log_session(store: Store, log: DecisionLog) -> None:
    """Tell the log of a session that goes on with measurements, and why it cannot use some of them."""
    here = store.session
    if here is not None and (here.number > 1 or store.not_reused):
        log.session = here.number
        log.add(
            "session",
            number=here.number,
            date=here.date,
            measurements=len(store),
            reusable=store.reusable,
            not_reused=list(store.not_reused),
        )


def read_entries(path: Path) -> list[Entry]:
    """Read the entries of a decision log; none if there is no file.

    Parameters
    ----------
    path : pathlib.Path
        JSON documents, one a line; lines that were cut off or damaged, or say what no decision of this
        version does, are passed over.

    Raises
    ------
    OutputError
        If it cannot be read.
    """
    if not path.exists():
        return []
    try:
        content = path.read_bytes()
    except OSError as error:
        raise OutputError(f"cannot be read ({error.strerror})", where=path) from error
    found: list[Entry] = []
    for line in content.splitlines():
        with suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
            entry = json.loads(line)
            if isinstance(entry["what"], str) and lines(entry):  # raises if it cannot be told to people
                found.append(entry)
    return found


def each_once(entries: Iterable[Mapping[str, Any]]) -> list[Entry]:
    """Leave away what a session says once more because it goes on from measurements of an earlier one.

    Parameters
    ----------
    entries : iterable of mapping
        In the order in which they were made; those without a ``session`` are of the first one.

    Returns
    -------
    list of dict
        Every decision where it was first made, and beginning and end of each session. What was measured
        again, with another result, is there twice.
    """
    found: list[Entry] = []
    before: Counter[str] = Counter()
    here: Counter[str] = Counter()
    session = 1
    for entry in entries:
        number = entry.get("session", 1)
        if number != session:
            before |= here  # of each as many as the session had that had most
            here, session = Counter(), number
        key = _said(entry)
        here[key] += 1
        if entry["what"] in _OWN or here[key] > before[key]:
            found.append(dict(entry))
    return found


def _said(entry: Mapping[str, Any]) -> str:
    plain = {k: v for k, v in entry.items() if k not in _APART}
    if entry["what"] == "lever":
        plain["reason"] = str(entry.get("reason", "")).removesuffix(AGAIN)
    return json.dumps(plain, sort_keys=True, default=str)
