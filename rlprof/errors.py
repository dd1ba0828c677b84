"""Typed errors. Each prints as one line: what went wrong, where, why, and the next step."""

from __future__ import annotations

import errno
from pathlib import Path

#: Where nothing better is known.
CHECK = "check the path and the disk"
#: What helps against an error of the operating system, whoever met it and wherever.
_STEPS = {
    errno.ENOSPC: "free space, or use another disk",
    errno.EDQUOT: "free space, or use another disk",
    errno.EFBIG: "use another file system, or raise the limit on the size of files (ulimit -f)",
    errno.EROFS: "this file system is read-only: write to another folder",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.EISDIR: "it is a folder: give the name of a file",
    errno.ENOTDIR: "a part of this path is a file: check the path",
    errno.ENOTEMPTY: "give another name, or empty the folder",
    errno.EEXIST: "give another name, or remove it",
    errno.ELOOP: "its symbolic links go in a circle: mend them, or give the file itself",
    errno.EXDEV: "write within one file system",
    errno.EBUSY: "end the program that uses it, or give another name",
    errno.ETXTBSY: "end the program that uses it, or give another name",
    errno.EIO: "check the disk, or use another one",
    errno.ESTALE: "the network file system lost it: look whether it is still there",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "raise the limit on open files (ulimit -n)",
    errno.ENOMEM: "use a machine with more memory, or end other programs",
}
_READING = {
    errno.EACCES: "chmod u+r, or run as its owner",
    errno.EPERM: "chmod u+r, or run as its owner",
    errno.ENOENT: "check the path",
}
_WRITING = {
    errno.EACCES: "write to another folder, or run as the owner of this one",
    errno.EPERM: "write to another folder, or run as the owner of this one",
    errno.ENOENT: "make the folder that it is to be in (mkdir -p)",
}


def step_after(error: OSError, *, writing: bool) -> str | None:
    """The next step after an error of the operating system.

    Parameters
    ----------
    error : OSError
        What was raised.
    writing : bool
        Something was to be written; else it was to be read.

    Returns
    -------
    str or None
        For a person; None if the error is not about a file.
    """
    known = _STEPS | (_WRITING if writing else _READING)
    if error.errno in known:
        return known[error.errno]
    return CHECK if error.filename is not None else None


class RlprofError(Exception):
    """Base of every error that rlprof raises on purpose; the command line exits with code 2.

    Parameters
    ----------
    what : str
        What went wrong, for a person.
    where : str or pathlib.Path, optional
        The file, table or argument concerned.
    hint : str, optional
        The next step to take. Without one, an error of the operating system that it was raised from gives it.
    """

    exit_code = 2
    #: Whether something was to be written: then another step helps against the same error.
    writing = False

    def __init__(self, what: str, *, where: str | Path | None = None, hint: str | None = None) -> None:
        self.what = what
        self.where = None if where is None else str(where)
        self.hint = hint
        super().__init__(str(self))

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        hint = self.hint or self._step_after_cause()
        # one line, whatever an underlying library put into its message
        return " ".join((f"{text}. Next: {hint}" if hint else text).split())

    def _step_after_cause(self) -> str | None:
        cause = self.__cause__
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__
        if cause is None:
            return None
        about_a_file = isinstance(self, UnreadableError | OutputError)
        return step_after(cause, writing=self.writing) or (CHECK if about_a_file else None)


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

    writing = True
