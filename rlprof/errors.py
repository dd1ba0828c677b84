"""Typed errors. Each prints as one line: what went wrong, where, why, and the next step."""

from __future__ import annotations

from pathlib import Path


class RlprofError(Exception):
    """Base of every error that rlprof raises on purpose; the command line exits with code 2.

    Parameters
    ----------
    what : str
        What went wrong, for a person.
    where : str or pathlib.Path, optional
        The file, table or argument concerned.
    hint : str, optional
        The next step to take.
    """

    exit_code = 2

    def __init__(self, what: str, *, where: str | Path | None = None, hint: str | None = None) -> None:
        self.what = what
        self.where = None if where is None else str(where)
        self.hint = hint
        super().__init__(str(self))

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        # one line, whatever an underlying library put into its message
        return " ".join((f"{text}. Next: {self.hint}" if self.hint else text).split())


class UsageError(RlprofError):
    """An argument has a value that cannot be used."""


class UnreadableError(RlprofError):
    """A file cannot be opened: missing, no permission, a directory where a file is needed."""


class NotATraceError(RlprofError):
    """A file can be read but is none of the known capture formats, or is empty."""


class DamagedTraceError(RlprofError):
    """A file is of a known format but truncated or inconsistent."""


class NsysError(RlprofError):
    """The nsys command line tool is needed and absent, or failed."""


class NewerReportError(NsysError):
    """A report was written by a newer Nsight Systems than the one installed."""


class ClockError(RlprofError):
    """Several captures cannot be put on one clock."""


class RankError(RlprofError):
    """Two captures claim the same rank."""


class OutputError(RlprofError):
    """A result cannot be written: disk full, no permission, exists already."""
