"""Variables that code names and that belong to others: of its module, and of the functions around it."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from operator import is_
from types import CellType, CodeType, FunctionType
from typing import Any

#: What a variable that has no value counts as.
_UNSET = object()
_UNSETS = repeat(_UNSET)
_GLOBAL = frozenset({"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME"})


class Variables:
    """What the variables of enclosing functions and of modules that some functions name are bound to.

    Parameters
    ----------
    functions : iterable of function
        Whose code, and that of functions in it, is looked at.
    """

    def __init__(self, functions: Iterable[FunctionType]) -> None:
        cells: dict[int, tuple[str, CellType]] = {}
        named: dict[int, tuple[dict[str, Any], dict[str, None]]] = {}
        for function in functions:
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
                cells.setdefault(id(cell), (name, cell))
            held = named.setdefault(id(function.__globals__), (function.__globals__, {}))
            held[1].update(dict.fromkeys(sorted(global_names(function.__code__))))
        self._cells = [cell for _, cell in cells.values()]
        self._globals = [(module.get, tuple(names)) for module, names in named.values()]
        self._names = [name for name, _ in cells.values()]
        self._names += [name for _, names in self._globals for name in names]
        self._note(self._read())

    def _read(self) -> list[Any]:
        found = [_contents(cell) for cell in self._cells]
        for get, names in self._globals:
            found += map(get, names, _UNSETS)
        return found

    def _note(self, seen: list[Any]) -> None:
        """Keep what was seen, in the form in which `changed` compares it."""
        self._seen = seen
        self._held = list(zip(self._cells, seen, strict=False))
        self._bound, first = [], len(self._cells)
        for get, names in self._globals:
            self._bound.append((get, names, seen[first : first + len(names)]))
            first += len(names)

    def _is_same(self) -> bool:
        try:
            for cell, value in self._held:
                if cell.cell_contents is not value:
                    return False
        except ValueError:  # not yet assigned
            return False
        for get, names, values in self._bound:  # noqa: SIM110 (a generator takes twice as long)
            if not all(map(is_, map(get, names, _UNSETS), values)):
                return False
        return True

    def changed(self) -> list[str]:
        """Return the names of variables that are bound to something else than at the last look."""
        if self._is_same():
            return []
        now, before = self._read(), self._seen
        self._note(now)
        return list(dict.fromkeys(n for n, a, b in zip(self._names, now, before, strict=True) if a is not b))

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield names and values as they were at the last look."""
        for name, value in zip(self._names, self._seen, strict=True):
            if value is not _UNSET:
                yield name, value


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _UNSET


def global_names(code: CodeType) -> set[str]:
    """Names of variables of the module that code names, and code in it; without those of attributes."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname in _GLOBAL}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= global_names(constant)
    return names


def reachable(entry: Callable[..., Any]) -> dict[str, Any]:
    """What a callable can reach besides its arguments: its object, and variables that it names.

    Parameters
    ----------
    entry : callable
        Of functions and methods the code is looked at, with that of functions in it.

    Returns
    -------
    dict of str to object
        ``self``, ``global NAME`` and ``outer NAME``.
    """
    found: dict[str, Any] = {}
    owner = getattr(entry, "__self__", None)
    if owner is not None and not inspect.ismodule(owner):
        found["self"] = owner
    function = inspect.unwrap(getattr(entry, "__func__", entry))
    if isinstance(function, FunctionType):
        held = function.__globals__
        names = sorted(global_names(function.__code__) & held.keys())
        found.update({f"global {name}": held[name] for name in names})
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            value = _contents(cell)
            if value is not _UNSET:
                found[f"outer {name}"] = value
    return found
