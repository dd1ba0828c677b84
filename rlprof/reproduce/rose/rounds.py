"""Rounds of a search that were not accepted: what complete iterations of them gained."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlprof.overlap.optimize.log import not_accepted

#: Every decision of a stored run, under the name of the run.
SEARCHES = "benchmarks/results/searches"
Document = dict[str, Any]


def rounds_not_accepted(document: Mapping[str, Any]) -> str:
    """Say what was measured of each round that was not accepted: gain pair by pair, pairs, why it ended.

    Parameters
    ----------
    document : mapping
        Of a run. Its optimisation has ``rounds``, and ``validated``, decisions on others (`with_decisions`).

    Returns
    -------
    str
        Empty where all rounds were accepted, or nothing was compared.
    """
    found = document.get("optimisation") or {}
    rounds = found.get("rounds") or ()
    told = {
        number: one["validation"]
        for number, one in enumerate(rounds, 1)
        if not one.get("accepted") and one.get("validation")
    }
    # the last decision of a round counts: whatever was resumed repeats earlier ones
    told |= {e["round"]: e["result"] for e in found.get("validated") or () if (e["round"] or 0) > len(rounds)}
    return "; ".join(not_accepted(number, result) for number, result in sorted(told.items()))


def rounds_decided(document: Mapping[str, Any]) -> int:
    """Count rounds that were accepted or not, with those that a search left out of its result."""
    found = document.get("optimisation") or {}
    decided = [e["round"] or 0 for e in found.get("validated") or ()]
    return max(len(found.get("rounds") or ()), *decided, 0)


def with_decisions(stored: Mapping[str, Document], checkout: Path) -> dict[str, Document]:
    """Return documents whose optimisations have what was decided of rounds that they do not hold.

    A search whose budget ended inside of a round left that round out of its result, and has it in its log.

    Parameters
    ----------
    stored : mapping of str to dict
        Documents of runs, by file.
    checkout : pathlib.Path
        Holds the searches.
    """
    return {file: _with_decisions(document, checkout / SEARCHES / file) for file, document in stored.items()}


def _with_decisions(document: Document, path: Path) -> Document:
    found = document.get("optimisation")
    if not isinstance(found, Mapping):
        return document
    further = [e for e in _refusals(path) if e["round"] > len(found.get("rounds") or ())]
    return {**document, "optimisation": {**found, "validated": further}} if further else document


def _refusals(path: Path) -> Sequence[Mapping[str, Any]]:
    """Decisions of a kept search not to accept a round; none where none is kept."""
    try:
        decisions = json.loads(path.read_text(encoding="utf-8"))["decisions"]
        return [
            e
            for e in decisions
            if e["what"] == "validated" and e["round"] is not None and e["outcome"] == "not accepted"
        ]
    except (OSError, ValueError, LookupError, TypeError):
        return []
