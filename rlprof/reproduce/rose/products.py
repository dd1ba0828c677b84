"""Under which shares of the SMs matrix products were found wrong: quotas that nobody can train with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlprof.reproduce.rose.results import Document, documents

RIGHT, WRONG = "right", "wrong"
#: The mechanism of shares within a process, and what is before its SMs in a table of both.
BY_GREEN, GREEN = "green contexts", "green "
Row = dict[str, Any]


def is_products(document: Document) -> bool:
    """Whether a document tells of products, as `benchmarks.gpu.products` writes it."""
    rows = document.get("rows")
    return isinstance(rows, list) and bool(rows) and all({"percent", "way"} <= set(row) for row in rows)


def looked_at(checkout: Path) -> dict[str, str]:
    """Return what was found by number of SMs: `WRONG` if any product was, in any stored run.

    SMs of a client of MPS by their number, those of a green context with `GREEN` before it.

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
        for sms, wrong in (one for row in document["rows"] for one in _verdicts(row)):
            found[sms] = WRONG if wrong or found.get(sms) == WRONG else RIGHT
    return dict(sorted(found.items(), key=lambda one: (GREEN in one[0], int(one[0].removeprefix(GREEN)))))


def _verdicts(row: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """SMs and whether some product is wrong with them, of one client."""
    if row.get("sms") is not None and "wrong" in row:
        yield str(row["sms"]), bool(row["wrong"])
    for part in row.get("parts", ()):
        looked = [part[how]["wrong"] for how in ("plain", "captured") if how in part]
        if looked:
            yield f"{GREEN}{part['sms']}", any(looked)


def labelled(rows: Sequence[Row], looked: Mapping[str, str]) -> list[Row]:
    """Return rows with what was found for their ``amount`` of SMs as ``products``; null if nobody looked."""
    return [
        {
            **row,
            "products": looked.get(f"{GREEN if row.get('mechanism') == BY_GREEN else ''}{row['amount']}")
            if row.get("unit") == "SMs"
            else None,
        }
        for row in rows
    ]


def wrong_shares(looked: Mapping[str, str]) -> str | None:
    """Say under how many SMs of a client of MPS products are wrong; None if they are under none."""
    wrong = [sms for sms, what in looked.items() if what == WRONG and GREEN not in sms]
    return f"matrix products are wrong with {', '.join(reversed(wrong))} SMs" if wrong else None
