"""Types and least numbers of values of a configuration, which may come from a file or a caller's hand."""

from __future__ import annotations

import math
from functools import lru_cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from rlprof.workloads.embodied.errors import ConfigurationError

#: More of anything that is counted than any machine has room or time for.
MOST = 1_000_000_000
#: Least and largest numbers: of what is counted, of seconds that can be waited for, of an optimiser's rate.
RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("envs", "rollout_epochs", "chunks", "chunk_steps", "episode_steps", "group"), (1, MOST)),
    **dict.fromkeys(("update_epochs", "global_batch", "micro_batch", "image", "tasks"), (1, MOST)),
    **dict.fromkeys(("workers", "cameras", "objects"), (0, MOST)),
    "denoise_steps": (1, MOST),
    "substeps": (5, MOST),
    "timeout_s": (0.01, 2_000_000),
    "learning_rate": (0, 1_000_000),
}
_SAID = {bool: "true or false", int: "a whole number", float: "a number", str: "a name"}


def check_value(of: type, name: str, value: Any) -> None:
    """Refuse a value of another type than a field of a dataclass has, or a number that none can be.

    Parameters
    ----------
    of : type
        The dataclass.
    name : str
        Of the field.
    value : value
        For it.

    Raises
    ------
    ConfigurationError
        If it cannot be one.
    """
    kinds = _kinds(of)[name]
    fits = type(value) in kinds or (type(value) is not bool and isinstance(value, kinds))
    if not fits or (isinstance(value, float) and not math.isfinite(value)):
        wanted = [kind for kind in kinds if not (kind is int and float in kinds)]
        hint = " or ".join(said for kind, said in _SAID.items() if kind in wanted)
        raise ConfigurationError(f"{name} is {shown(value)}", hint=f"give {hint}")
    if value is not None and name in RANGES:
        least, most = RANGES[name]
        if not least <= value <= most:
            raise ConfigurationError(f"{name} is {shown(value)}", hint=f"give {least:,} to {most:,}")


def shown(value: Any) -> str:
    """A value in an error of one line; of a long one the beginning."""
    try:
        text = repr(value)
    except ValueError:  # a number of more digits than Python writes
        text = "a number of thousands of digits"
    return text if len(text) <= 40 else f"{text[:40]}..."


@lru_cache(maxsize=8)
def _kinds(of: type) -> dict[str, tuple[type, ...]]:
    return {name: _types(hint) for name, hint in get_type_hints(of).items()}


def _types(hint: Any) -> tuple[type, ...]:
    """What `isinstance` takes for a hint; a whole number is a number."""
    if get_origin(hint) in (Union, UnionType):
        return tuple(kind for part in get_args(hint) for kind in _types(part))
    if get_origin(hint) is Literal:
        return (str,)
    return (float, int) if hint is float else (hint,)
