"""What can go wrong when a program is wrapped, recorded, transformed and run; errors name the culprit."""

from __future__ import annotations

from rlprof.errors import RlprofError, UsageError


class OverlapError(RlprofError):
    """A program that cannot be wrapped, recorded, transformed or run as asked."""


class WrapError(UsageError, OverlapError):
    """A node or a state object is declared in a way that cannot work."""


class RecordingError(OverlapError):
    """A recording cannot stand for the program: its runs differ, or a value has no known origin."""


class IllegalTransformationError(OverlapError):
    """A transformation would change what the program computes.

    Parameters
    ----------
    reason : str
        Which dependency, boundary or missing declaration forbids it, in one line.
    rule : str
        The rule that is broken: ``"L1"`` to ``"L7"``, or the name of the transformation whose own condition
        does not hold.
    calls : tuple of str
        Calls, nodes or cells that are involved.
    hint : str
        What would make it legal, if anything would.
    """

    def __init__(self, reason: str, *, rule: str, calls: tuple[str, ...] = (), hint: str = "") -> None:
        self.reason, self.rule, self.calls = reason, rule, calls
        super().__init__(f"{rule}: {reason}", hint=hint)


class NotBySampleError(OverlapError):
    """A value or a call that cannot be told sample by sample."""


class UndeclaredWriteError(OverlapError):
    """A call changed registered state that its node does not declare to write."""


class UndeclaredReadError(OverlapError):
    """A call's result depends on registered state that its node does not declare to read."""


class ReplayError(OverlapError):
    """A replacement cannot be run here, or computed something else than the native program."""
