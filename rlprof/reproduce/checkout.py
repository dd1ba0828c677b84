"""Where notebooks, papers' numbers and raw tables are: in a checkout of rlprof."""

from __future__ import annotations

from pathlib import Path

from rlprof.reproduce.errors import CheckoutError

#: What makes a folder a checkout.
MARKS = ("reproductions", "datasets/papers")


def find_checkout(start: str | Path | None = None) -> Path:
    """Return the checkout that a folder lies in; without one named, else that of the package.

    Parameters
    ----------
    start : str or pathlib.Path, optional
        A folder in it; the working folder by default.

    Raises
    ------
    CheckoutError
        If there is none.
    """
    here = Path(start or ".").resolve()
    package = Path(__file__).resolve().parents[2]
    for folder in (here, *here.parents, *([package] if start is None else [])):
        if all((folder / mark).is_dir() for mark in MARKS):
            return folder
    raise CheckoutError(
        "no checkout of rlprof: reproductions and papers' numbers are not part of the installed package",
        where=here,
        hint="clone the repository and run this in it, or name it with --repository",
    )
