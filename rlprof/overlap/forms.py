"""The form of arguments: structure, shapes, types and fixed values, for comparison with what was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlprof.overlap.specs import Key
from rlprof.overlap.values import describe, is_array, take_apart
from rlprof.text import with_article

_VALUES = (bool, int, float, complex, str, bytes, type(None))


@dataclass(frozen=True, slots=True)
class Form:
    """What a value must look like.

    Parameters
    ----------
    kind : str
        Name of its type; empty: anything.
    keys : tuple of int or str
        Of its items; empty for a leaf.
    items : tuple of Form
        One for each key.
    shape : tuple of int or None
        Of an array.
    dtype : str
        Of an array.
    value : object
        A number, text or None that was the same in every run.
    fixed : bool
        `value` counts.
    """

    kind: str
    keys: tuple[Key, ...] = ()
    items: tuple[Form, ...] = ()
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    value: Any = None
    fixed: bool = False


def form_of(value: Any) -> Form:
    """Describe a value: nested tuples, lists, dicts and dataclasses down to arrays, numbers, objects."""
    kind = type(value).__name__
    parts = take_apart(value)
    if parts is not None:
        return Form(kind, parts.keys, tuple(form_of(item) for item in parts.items))
    if is_array(value):
        return Form(kind, shape=tuple(value.shape), dtype=str(value.dtype))
    if isinstance(value, _VALUES):
        return Form(kind, value=value, fixed=True)
    return Form(kind)


ANYTHING = Form("")


def common(forms: Sequence[Form]) -> Form:
    """Return the form that all runs have in common: what was not always the same may be anything."""
    first = forms[0]
    if any(
        (f.kind, f.keys, f.shape, f.dtype) != (first.kind, first.keys, first.shape, first.dtype)
        for f in forms
    ):
        return ANYTHING
    items = tuple(common([form.items[n] for form in forms]) for n in range(len(first.items)))
    fixed = first.fixed and all(_same(form.value, first.value) for form in forms)
    value = first.value if fixed else None
    return Form(first.kind, first.keys, items, first.shape, first.dtype, value, fixed)


def mismatch(wanted: Form, value: Any) -> str | None:
    """Say in what a value differs from the form, in one line; None if in nothing."""
    return _difference(wanted, form_of(value), "") or None


def _same(a: Any, b: Any) -> bool:
    return bool(a == b) or repr(a) == repr(b)  # NaN is the same as NaN


def _difference(wanted: Form, found: Form, at: str) -> str:
    if wanted == ANYTHING:
        return ""
    where = at or "the value"
    if any(getattr(wanted, name) != getattr(found, name) for name in ("kind", "keys", "shape", "dtype")):
        return f"{where} is {_shown(found)}, {_shown(wanted)} was recorded"
    if wanted.fixed and not _same(wanted.value, found.value):
        return f"{where} is {found.value!r:.60}, {wanted.value!r:.60} was recorded"
    for key, a, b in zip(wanted.keys, wanted.items, found.items, strict=True):
        difference = _difference(a, b, f"{at}[{key!r}]")
        if difference:
            return difference
    return ""


def _shown(form: Form) -> str:
    if form.shape is not None:
        return f"{form.kind} of {form.dtype}, shape {form.shape}"
    if form.kind in ("tuple", "list"):
        return f"{form.kind} of {len(form.keys)}"
    if form.keys:
        return f"{form.kind} with {', '.join(map(repr, form.keys[:8]))}"
    return describe(form.value) if form.fixed else with_article(form.kind)
