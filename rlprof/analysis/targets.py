"""Which of the ranked windows to fill first: no root, no relatives (specification A, section 4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

#: Activity below which a window is in tier 1, and from which on a node is no window.
TIER_1_BELOW, EXCLUDED_FROM = 0.5, 0.8


class Ranked(NamedTuple):
    """What choosing needs of a node.

    Parameters
    ----------
    node, process : str
        Its path, and whose it is.
    tier : int or None
        1 or 2.
    excluded : bool
        Too active.
    eligible, inside : bool
        Long enough; runs inside of iterations.
    rank : int or None
        From 1; None: it is no window.
    """

    node: str
    process: str
    tier: int | None
    excluded: bool
    eligible: bool
    inside: bool
    rank: int | None


def choose(nodes: Iterable[Ranked], iteration: str | None, most: int) -> tuple[tuple[str, str], ...]:
    """Choose windows by rank.

    Parameters
    ----------
    nodes : iterable of Ranked
        All nodes.
    iteration : str or None
        Path of the iteration.
    most : int
        How many to choose.

    Returns
    -------
    tuple of (node, process)
        The iteration itself and what holds it are not windows, a node that holds an eligible descendant of
        another tier (or an excluded one) is left for its parts, and relatives of one taken are skipped.
    """
    cells = tuple(nodes)
    # what kinds of eligible nodes lie in each node
    held: dict[tuple[str, str], set[int | str | None]] = {}
    for cell in cells:
        if cell.eligible and cell.inside:
            for above in _ancestors(cell.node):
                held.setdefault((above, cell.process), set()).add("excluded" if cell.excluded else cell.tier)
    chosen: list[tuple[str, str]] = []
    for cell in sorted((c for c in cells if c.rank is not None), key=lambda c: c.rank or 0):
        if len(chosen) == most:
            break
        node, process = cell.node, cell.process
        if iteration is not None and (iteration + "/").startswith(node + "/"):
            continue
        if any(p == process and (n.startswith(node + "/") or node.startswith(n + "/")) for n, p in chosen):
            continue
        if not held.get((node, process), set()) - {cell.tier}:
            chosen.append((node, process))
    return tuple(chosen)


def _ancestors(path: str) -> Iterator[str]:
    at = path.rfind("/")
    while at > 0:
        yield path[:at]
        at = path.rfind("/", 0, at)
