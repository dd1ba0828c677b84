"""The native version map: which call wrote which version of each state cell, and who sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rlprof.overlap.callgraph import INITIAL, CallGraph
from rlprof.overlap.specs import Cell


@dataclass(frozen=True, slots=True)
class Version:
    """One value that a cell has in a native run of the region.

    Parameters
    ----------
    origin : str
        The native call that wrote it; `INITIAL` for what the region finds.
    mode : {"initial", "update", "refresh"}
        How it came about.
    seen_by : tuple of str
        Native calls that need its value, in order; an update that replaces it is one of them.
    """

    origin: str
    mode: Literal["initial", "update", "refresh"]
    seen_by: tuple[str, ...] = ()


def native_versions(graph: CallGraph) -> dict[Cell, tuple[Version, ...]]:
    """Return the versions of each cell in native order, `INITIAL` first.

    Parameters
    ----------
    graph : CallGraph
        Native or transformed: the parts of a split call count as the call that they are parts of.

    Returns
    -------
    dict of Cell to tuple of Version
        The last one is what the region leaves behind.
    """
    order: dict[Cell, dict[str, Literal["initial", "update", "refresh"]]] = {}
    seen: dict[tuple[Cell, str], dict[str, None]] = {}
    for call in graph.calls:  # in native order
        for access in call.accesses:
            versions = order.setdefault(access.cell, {INITIAL: "initial"})
            if access.sees is not None:
                seen.setdefault((access.cell, access.sees), {})[call.origin] = None
            if access.mode != "read":
                versions[call.origin] = access.mode
    return {
        cell: tuple(
            Version(origin, mode, tuple(seen.get((cell, origin), ()))) for origin, mode in versions.items()
        )
        for cell, versions in order.items()
    }


def left_behind(graph: CallGraph) -> dict[Cell, str]:
    """Return for each cell that the region writes the native call whose version stays at its end."""
    return {
        cell: versions[-1].origin for cell, versions in native_versions(graph).items() if len(versions) > 1
    }


def sees_natively(native: CallGraph) -> Mapping[tuple[str, Cell], str | None]:
    """Return the version that each native call sees of each cell: worked out from order and modes alone.

    Parameters
    ----------
    native : CallGraph
        The native graph; what its accesses say they see is not looked at.

    Returns
    -------
    mapping of (str, Cell) to str or None
        By origin and cell; None for a refresh. A transformed graph has to agree with it.
    """
    current: dict[Cell, str] = {}
    found: dict[tuple[str, Cell], str | None] = {}
    for call in native.calls:
        for access in call.accesses:
            found[call.origin, access.cell] = (
                None if access.mode == "refresh" else current.get(access.cell, INITIAL)
            )
            if access.mode != "read":
                current[access.cell] = call.origin
    return found
