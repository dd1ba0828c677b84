"""How long work tells a caller how far it is."""

from __future__ import annotations

from collections.abc import Callable

#: Called with a short name of the stage and the fraction done (0..1).
Progress = Callable[[str, float], None]


def silent(stage: str, fraction: float) -> None:
    """Show nothing."""
