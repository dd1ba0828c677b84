"""Under which shares of the SMs matrix products were found wrong: quotas that nobody can train with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlprof.reproduce.rose.results import Document, documents

RIGHT, WRONG = "right", "wrong"
Row = dict[str, Any]


def is_products(document: Document) -> bool:
    """Whether a document tells of products, as `benchmarks.gpu.products` writes it."""
    rows = document.get("rows")
    return isinstance(rows, list) and bool(rows) and all({"percent", "way"} <= set(row) for row in rows)


def looked_at(checkout: Path) -> dict[str, str]:
    """Return what was found by number of SMs: `WRONG` if any product was, in any stored run.

    Parameters
    ----------
    checkout : pathlib.Path
        Holds the results.

    Returns
    -------
    dict of str to str
        Empty if nobody looked.
    """
    found: dict[str, str] = {}
    for document in documents(checkout, is_products).values():
        for row in document["rows"]:
            if row.get("sms") is None or "wrong" not in row:
                continue
            sms = str(row["sms"])
            found[sms] = WRONG if row["wrong"] or found.get(sms) == WRONG else RIGHT
    return dict(sorted(found.items(), key=lambda one: int(one[0])))


def labelled(rows: Sequence[Row], looked: Mapping[str, str]) -> list[Row]:
    """Return rows with what was found for their ``amount`` of SMs as ``products``; null if nobody looked."""
    return [
        {**row, "products": looked.get(str(row["amount"])) if row.get("unit") == "SMs" else None}
        for row in rows
    ]


def wrong_shares(looked: Mapping[str, str]) -> str | None:
    """Say under how many SMs products are wrong; None if they are under none."""
    wrong = [sms for sms, what in looked.items() if what == WRONG]
    return f"matrix products are wrong with {', '.join(reversed(wrong))} SMs" if wrong else None
