"""What the code between calls changes besides the values that it passes on.

It is not run when a graph is: a counter that it counts up, a list that it appends to, a mode that it sets
would stay as they are. Looked at are the objects that the code of nodes with others inside belongs to or
names, those that nodes are bound to, and registered state.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from rlprof.overlap.readers import has_attributes, reader_of
from rlprof.overlap.snapshots import Change, Snapshot
from rlprof.overlap.variables import Variables

if TYPE_CHECKING:
    from rlprof.overlap.node import ExecutionNode
    from rlprof.overlap.program import Program


class Surroundings:
    """What the code between a program's calls can reach.

    Parameters
    ----------
    program : Program
        Its nodes and state objects.
    given : iterable of object
        Arguments of the region.
    ignored : iterable of object
        Objects whose changes need not happen when a graph is run, or names of what changes, as those that
        `changed` returns.
    """

    def __init__(self, program: Program, given: Iterable[Any] = (), ignored: Iterable[Any] = ()) -> None:
        ignored = tuple(ignored)
        skip = frozenset(id(item) for item in ignored if not isinstance(item, str))
        self._ignored = frozenset(item for item in ignored if isinstance(item, str))
        self._variables = Variables([f for node in program.nodes.values() for f in _own_code(node)])
        roots: dict[str, Any] = {}
        for node in program.nodes.values():
            owner = None if node.is_marked else node.owner
            if owner is not None and reader_of(owner) is not None:
                roots.setdefault(_free(roots, type(owner).__name__, owner), owner)
        for state in program.states.values():
            roots.setdefault(state.name, state.obj)
        for value in given:
            if has_attributes(value):  # the region is a method that was wrapped in its class
                roots.setdefault(_free(roots, type(value).__name__, value), value)
        for name, value in self._variables:
            if not isinstance(value, (ModuleType, type, FunctionType, MethodType)):
                roots.setdefault(name, value)
        self._around = {id(n.owner) for n in program.nodes.values() if n.children and not n.is_marked}
        self._snapshot = Snapshot(roots, skip)

    def look(self) -> Changes | None:
        """Return what has changed since the last look, whoever did it; None: nothing."""
        names, moved = self._variables.changed(), self._snapshot.look()
        return Changes(self, names, moved) if names or moved else None

    def outside(self, changes: Changes, beside: Iterable[Any]) -> list[str]:
        """Return the names of changes that code between calls made; see `Changes.outside`."""
        running = {id(owner) for owner in beside}
        found = self._snapshot.changed(changes.moved)
        if running:
            sure = self._around - running
            names = [name for root, name in found if id(self._snapshot.roots[root]) in sure]
        else:
            names = [*changes.names, *(name for _, name in found)]
        return [name for name in names if name not in self._ignored]


@dataclass(frozen=True, slots=True)
class Changes:
    """What was seen to change between two looks.

    Parameters
    ----------
    surroundings : Surroundings
        Who looked.
    names : list of str
        Variables.
    moved : list of Change
        Parts of objects.
    """

    surroundings: Surroundings
    names: list[str]
    moved: list[Change]

    def outside(self, beside: Iterable[Any] = ()) -> list[str]:
        """Return the names of what the code between calls has changed.

        Parameters
        ----------
        beside : iterable of object
            Those whose calls run at this time: then only changes of other objects, to which code between
            calls belongs, are its own for sure.
        """
        return self.surroundings.outside(self, beside)


def _free(roots: dict[str, Any], name: str, owner: Any) -> str:
    number, found = 1, name
    while roots.get(found, owner) is not owner:
        number += 1
        found = f"{name} {number}"
    return found


def _own_code(node: ExecutionNode) -> Iterator[FunctionType]:
    """Functions whose code runs between calls of nodes."""
    if node.is_marked or not node.children:
        return
    function = inspect.unwrap(getattr(node.native, "__func__", node.native))
    if isinstance(function, FunctionType):
        yield function
