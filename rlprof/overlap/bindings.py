"""Where a value comes from: expressions over outputs of calls, arguments of the region, and constants.

A recording describes each argument of a call by such an expression; transformations rewrite them; running a
graph evaluates them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from rlprof.overlap.specs import Key

#: Steps into nested tuples, lists, dicts and dataclasses, outermost first.
Path = tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class View:
    """A part of an array's memory, in the terms of ``as_strided`` of numpy and torch.

    Parameters
    ----------
    offset : int
        First element, counted in elements from the first element of the whole array.
    shape : tuple of int
        Of the view.
    strides : tuple of int
        In elements.
    dtype : str
        Of the view, as the array library prints it.
    whole_shape, whole_strides : tuple of int or None
        Of the whole array, as the call returned it; strides in elements. They tell which samples a view
        shows, so that it can be taken of a part of a batch. None: not known, or of another dtype.
    """

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    whole_shape: tuple[int, ...] | None = None
    whole_strides: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Ref:
    """What lies at `path` of the output of call `call`; a view of it if `view` is given."""

    call: str
    path: Path = ()
    view: View | None = None


@dataclass(frozen=True, slots=True)
class External:
    """What lies at `path` of the region's arguments ``(args, kwargs)``; a view of it if `view` is given."""

    path: Path
    view: View | None = None


@dataclass(frozen=True, slots=True)
class Const:
    """A value that is the same in every run; `name` is its key in the recording's table of constants."""

    name: str


@dataclass(frozen=True, slots=True)
class Pack:
    """A nested structure put together by the code between calls.

    Parameters
    ----------
    kind : str
        ``"tuple"``, ``"list"``, ``"dict"``, or the key of a type in the recording's table of constants (named
        tuples and dataclasses).
    keys : tuple of int or str
        Positions, keys or field names.
    items : tuple of Binding
        One for each key.
    """

    kind: str
    keys: tuple[Key, ...]
    items: tuple[Binding, ...]


@dataclass(frozen=True, slots=True)
class Slice:
    """The given samples of a batch, along `axis` of every array in it; of a sequence if `axis` is None."""

    of: Binding
    samples: tuple[int, ...]
    axis: int | None = 0


@dataclass(frozen=True, slots=True)
class Gather:
    """A batch of parts: sample ``samples[i][j]`` is sample j of part i.

    Parameters
    ----------
    parts : tuple of Binding
        At least one.
    samples : tuple of tuple of int
        The original positions of each part's samples; together 0 .. n - 1, each once.
    axis : int
        Axis of samples in every array.
    shared : tuple of int or str
        First-level keys of the structure that are taken from the first part as they are.
    """

    parts: tuple[Binding, ...]
    samples: tuple[tuple[int, ...], ...]
    axis: int = 0
    shared: tuple[Key, ...] = ()


Binding = Ref | External | Const | Pack | Slice | Gather


def leaves(binding: Binding) -> Iterator[Ref | External | Const]:
    """Yield what a binding is made of, left to right, repetitions included."""
    stack: list[Binding] = [binding]
    while stack:
        top = stack.pop()
        if isinstance(top, Pack):
            stack.extend(reversed(top.items))
        elif isinstance(top, Gather):
            stack.extend(reversed(top.parts))
        elif isinstance(top, Slice):
            stack.append(top.of)
        else:
            yield top


def sources(binding: Binding) -> tuple[str, ...]:
    """Ids of the calls whose output a binding needs, in order of first use."""
    return tuple(dict.fromkeys(leaf.call for leaf in leaves(binding) if isinstance(leaf, Ref)))


def substitute(binding: Binding, change: Callable[[Ref | External | Const], Binding]) -> Binding:
    """Return the binding with every leaf replaced by what `change` returns for it."""
    if isinstance(binding, Pack):
        return replace(binding, items=tuple(substitute(item, change) for item in binding.items))
    if isinstance(binding, Gather):
        return replace(binding, parts=tuple(substitute(part, change) for part in binding.parts))
    if isinstance(binding, Slice):
        return replace(binding, of=substitute(binding.of, change))
    return change(binding)


def arguments(args: tuple[Binding, ...], kwargs: dict[str, Binding]) -> Pack:
    """Binding of a call's arguments: a pair of a tuple and a dict."""
    positional = Pack("tuple", tuple(range(len(args))), args)
    named = Pack("dict", tuple(kwargs), tuple(kwargs.values()))
    return Pack("tuple", (0, 1), (positional, named))


def to_document(binding: Binding) -> list[Any]:
    """Return a binding as nested lists for JSON; equal bindings give equal documents."""
    if isinstance(binding, Pack):
        return ["pack", binding.kind, list(binding.keys), [to_document(item) for item in binding.items]]
    if isinstance(binding, Gather):
        parts = [to_document(part) for part in binding.parts]
        return ["gather", parts, [list(s) for s in binding.samples], binding.axis, list(binding.shared)]
    if isinstance(binding, Slice):
        return ["slice", to_document(binding.of), list(binding.samples), binding.axis]
    if isinstance(binding, Const):
        return ["const", binding.name]
    view = None
    if binding.view is not None:
        v = binding.view
        view = [v.offset, list(v.shape), list(v.strides), v.dtype, v.whole_shape, v.whole_strides]
    if isinstance(binding, Ref):
        return ["ref", binding.call, list(binding.path), view]
    return ["external", list(binding.path), view]
