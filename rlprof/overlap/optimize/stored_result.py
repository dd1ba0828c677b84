"""Results of optimisations that were written before, read again."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from rlprof.errors import UnreadableError
from rlprof.overlap.optimize.result import FORMAT, VERSION

RESULT = "result.json"
#: What a report shows, whoever wrote the result.
NEEDED = ("facts", "steps", "ended", "total", "rounds", "sm_activity", "timelines", "overhead", "decisions")


def parsed(text: str) -> Any:
    """Parse a stored result; a number that is none, or infinite, is not known: None.

    Raises
    ------
    ValueError, RecursionError
        If it is no JSON.
    """

    def number(digits: str) -> float | None:
        value = float(digits)
        return value if math.isfinite(value) else None

    return json.loads(text, parse_constant=lambda _: None, parse_float=number)


def read_result(path: Path) -> dict[str, Any]:
    """Read the result of an optimisation.

    Parameters
    ----------
    path : pathlib.Path
        ``result.json``, or the folder that it lies in.

    Returns
    -------
    dict
        As of `rlprof.overlap.optimize.result.document`.

    Raises
    ------
    UnreadableError
        If there is none, or it is damaged, of another kind or of a later version.
    """
    file = path / RESULT if path.is_dir() else path
    try:
        document = parsed(file.read_text(encoding="utf-8"))
    except OSError as error:
        hint = "give the folder of an optimisation, or its result.json"
        raise UnreadableError(f"cannot be read ({error.strerror})", where=file, hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"is no JSON ({error})", where=file, hint="give a result.json") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        hint = "give what rlprof optimize wrote, or a file of benchmarks/results/searches"
        raise UnreadableError("is no result of an optimisation", where=file, hint=hint)
    if document.get("version") != VERSION:
        raise UnreadableError(
            f"is of version {document.get('version')}, and {VERSION} is known",
            where=file,
            hint="use the rlprof that wrote it",
        )
    if missing := [name for name in NEEDED if name not in document]:
        raise UnreadableError(f"lacks {', '.join(missing)}", where=file, hint="optimise again")
    return document
