"""Arguments of another type than was asked for: an error of one line, before anything is done with them."""

from __future__ import annotations

from collections.abc import Callable

from rlprof.errors import RlprofError, UsageError
from rlprof.text import with_article

#: The largest seed: generators of numpy and torch, and files of results, hold 64 bits.
MOST_SEED = 2**64 - 1


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


def expect_seed(seed: object, what: str = "the seed", error: Callable[..., RlprofError] = UsageError) -> None:
    """Raise an error unless a value can be the seed of all random choices.

    Parameters
    ----------
    seed : object
        What was given.
    what : str
        What it stands for: ``"--seed"``.
    error : callable
        Makes the error of a text and ``hint=``.

    Raises
    ------
    RlprofError
        What `error` makes, if it is no whole number from 0 to `MOST_SEED`.
    """
    hint = "give a whole number from 0 to 2**64 - 1"
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise error(f"{what} is {with_article(type(seed).__name__)}", hint=hint)
    if seed < 0:
        raise error(f"{what} is negative", hint=hint)
    if seed > MOST_SEED:  # itself it may have more digits than Python writes
        raise error(f"{what} has {seed.bit_length()} bits", hint=hint)
