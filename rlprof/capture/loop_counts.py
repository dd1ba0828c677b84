"""How often the ranges inside a partly marked loop really ran."""

from __future__ import annotations

from rlprof.trace.names import normalise


class CountNode:
    """A range within a loop, and how often it was entered."""

    __slots__ = ("children", "count", "name", "parent")

    def __init__(self, name: str, parent: CountNode | None) -> None:
        self.name = name
        self.parent = parent
        self.count = 0
        self.children: dict[str, CountNode] = {}


class LoopCounts:
    """Counts of one run of an outermost loop, kept by the one task that runs it.

    Parameters
    ----------
    prefix : tuple of str
        Names of the ranges around the loop.
    flat : bool
        Whether its ranges are start/end ranges, whose paths are their names alone.

    Attributes
    ----------
    at : CountNode
        Innermost range that is open.
    muted : int
        Steps under way that are not marked, one within the other.
    """

    def __init__(self, prefix: tuple[str, ...], *, flat: bool) -> None:
        self.prefix = () if flat else tuple(normalise(n) for n in prefix)
        self.flat = flat
        self.root = CountNode("", None)
        self.at = self.root
        self.muted = 0

    def enter(self, name: str) -> CountNode:
        """Count one more of `name` inside the innermost open range."""
        node = self.at.children.get(name)
        if node is None:
            node = self.at.children[name] = CountNode(name, self.at)
        node.count += 1
        self.at = node
        return node

    def leave(self, node: CountNode) -> None:
        """Close `node` and whatever is open inside it."""
        assert node.parent is not None
        self.at = node.parent

    def by_path(self) -> dict[str, int]:
        """Count of each node path, as the reader of a capture names it; from any thread."""
        found: dict[str, int] = {}
        pending = [(self.root, self.prefix)]
        while pending:
            node, above = pending.pop()
            # list() of a dict is one step under the interpreter's lock: the loop goes on meanwhile
            for child in list(node.children.values()):
                names = (*above, normalise(child.name))
                path = names[-1] if self.flat else "/".join(names)
                found[path] = found.get(path, 0) + child.count
                pending.append((child, names))
        return found
