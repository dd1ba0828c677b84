"""Arguments of another type than was asked for: an error of one line, before anything is done with them."""

from __future__ import annotations

from collections.abc import Callable

from rlprof.errors import RlprofError, UsageError
from rlprof.text import with_article


def expect(
    value: object,
    of: type | tuple[type, ...],
    what: str,
    hint: str,
    error: Callable[..., RlprofError] = UsageError,
) -> None:
    """Raise an error unless a value is of a type.

    Parameters
    ----------
    value : object
        What was given.
    of : type or tuple of type
        What it has to be.
    what : str
        What it stands for: ``"the graph"``.
    hint : str
        What to give.
    error : callable
        Makes the error of a text and ``hint=``.

    Raises
    ------
    RlprofError
        What `error` makes.
    """
    if not isinstance(value, of):
        raise error(f"{what} is {with_article(type(value).__name__)}", hint=hint)
