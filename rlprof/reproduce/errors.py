"""Typed errors of reproductions."""

from __future__ import annotations

from rlprof.errors import RlprofError


class ReproduceError(RlprofError):
    """A reproduction cannot be made."""


class UnknownFigureError(ReproduceError):
    """There is no reproduction of this name, or none with this preset."""


class CheckoutError(ReproduceError):
    """Notebooks and papers' numbers are in a checkout of rlprof, and there is none here."""


class PaperError(ReproduceError):
    """The file with a paper's numbers is damaged."""


class RawTableError(ReproduceError):
    """A raw table, or what is said about it, is missing or damaged."""


class NotebookError(ReproduceError):
    """A notebook failed, or cannot be run here."""
