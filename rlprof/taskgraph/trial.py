"""Trials: runs whose changes to state are taken back, however they end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rlprof.errors import UsageError
from rlprof.taskgraph.errors import RestoreError


class Restorable(Protocol):
    """State that a trial may change: an object of this process, or a back end with its workers' state."""

    def snapshot(self) -> Any:
        """Return what `restore` needs; nothing that happens to the state later changes it."""

    def restore(self, snapshot: Any) -> None:
        """Bring the state back to what it was when the snapshot was taken, in place; possibly repeatedly."""


@contextmanager
def restored(states: Iterable[Restorable]) -> Iterator[None]:
    """Take snapshots before the body and restore them after it, whether it ends well or raises.

    Parameters
    ----------
    states : iterable of Restorable
        In the order of their snapshots; they are restored in reverse order, each even if another one fails.

    Raises
    ------
    UsageError
        If one has no such methods; nothing was asked of the others.
    RestoreError
        If a state could not be restored; what the body raised, if anything, is its ``__context__``.
    """
    states = tuple(states)
    for state in states:
        if not (hasattr(state, "snapshot") and hasattr(state, "restore")):
            raise UsageError(
                f"{type(state).__name__} is no state of a trial",
                hint="it needs snapshot() and restore(snapshot)",
            )
    saved = [(state, state.snapshot()) for state in states]
    try:
        yield
    finally:
        failed: list[tuple[Restorable, Exception]] = []
        for state, snapshot in reversed(saved):
            try:
                state.restore(snapshot)
            except Exception as error:
                failed.append((state, error))
        if failed:
            lost, reason = failed[0]
            raise RestoreError(
                f"state of {type(lost).__name__} is not what it was before the trial: {reason}",
                hint="do not train on with it; load a checkpoint",
            ) from reason
