"""What the code between calls changes besides the values that it passes on.

It is not run when a graph is: a counter that it counts up, a list that it appends to, a mode that it sets
would stay as they are. Looked at are the objects that the code of nodes with others inside belongs to or
names, those that nodes are bound to, and registered state.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from rlprof.overlap.snapshots import Snapshot, has_attributes, reader_of

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
        self._functions = [f for node in program.nodes.values() for f in _own_code(node)]
        self._names = {id(f): _global_names(f.__code__) for f in self._functions}
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
        for function in self._functions:
            for name, value in _named_by(function, self._names[id(function)]):
                if not isinstance(value, (ModuleType, type, FunctionType, MethodType)):
                    roots.setdefault(name, value)
        self._around = {id(n.owner) for n in program.nodes.values() if n.children and not n.is_marked}
        self._snapshot = Snapshot(roots, skip)
        self._bound = self._bindings()

    def _bindings(self) -> dict[str, Any]:
        """What variables of enclosing functions and of modules are bound to."""
        return {
            name: value
            for function in self._functions
            for name, value in _named_by(function, self._names[id(function)])
        }

    def changed(self, beside: Iterable[Any] = ()) -> list[str]:
        """Return the names of what the code between calls has changed since the last look.

        Parameters
        ----------
        beside : iterable of object
            Those whose calls run at this time: then only changes of other objects, to which code between
            calls belongs, are its own for sure.
        """
        running = {id(owner) for owner in beside}
        if running:
            sure = self._around - running
            found = self._snapshot.changed()
            self._bound = self._bindings()
            return [
                name
                for root, name in found
                if id(self._snapshot.roots[root]) in sure and name not in self._ignored
            ]
        names = []
        if self._functions:
            now = self._bindings()
            names = [key for key, value in now.items() if self._bound.get(key, self) is not value]
            self._bound = now
        names += [name for _, name in self._snapshot.changed()]
        return [name for name in names if name not in self._ignored] if names else names

    def renew(self) -> None:
        """Look, and forget what has changed."""
        if self._functions:
            self._bound = self._bindings()
        self._snapshot.renew()


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


def _global_names(code: CodeType) -> frozenset[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _global_names(constant)
    return frozenset(names)


def _named_by(function: FunctionType, names: frozenset[str]) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not yet assigned
            continue
    found = function.__globals__
    for name in names:
        if name in found:
            yield name, found[name]
