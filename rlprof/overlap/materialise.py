"""Bindings become values: outputs of calls are looked up, cut, joined and put together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlprof.overlap.batches import cut, join
from rlprof.overlap.bindings import Binding, Const, External, Pack, Path, Ref, Slice, View
from rlprof.overlap.errors import ReplayError
from rlprof.overlap.specs import Key
from rlprof.overlap.strided import take_view
from rlprof.overlap.structures import put_together
from rlprof.overlap.values import describe, is_array

#: Arguments of a region.
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
HINT = "the program no longer does what was recorded: uninstall the replacement, or record the region again"
_PLAIN = {"tuple": "tuple", "list": "list", "dict": "dict"}


def materialise(
    binding: Binding,
    outputs: Mapping[str, Any],
    external: Arguments,
    constants: Mapping[str, Any],
    batch_size: int | None = None,
) -> Any:
    """Evaluate a binding.

    Parameters
    ----------
    binding : Binding
        What is wanted.
    outputs : mapping of str to object
        Outputs of the calls it refers to, by id.
    external : tuple of (tuple, dict)
        Arguments of the region.
    constants : mapping of str to object
        Values of `Const` bindings and types of `Pack`.
    batch_size : int, optional
        Samples of the whole of what is cut.

    Returns
    -------
    object
        Parts and views share the memory of what they are part of; a `Gather` is new.

    Raises
    ------
    ReplayError
        If an output has not the structure that was recorded, or parts cannot be joined.
    """
    if isinstance(binding, Ref):
        if binding.call not in outputs:
            raise ReplayError(f"the output of {binding.call} is needed before it is there")
        return _part(outputs[binding.call], binding.path, binding.view, f"the output of {binding.call}")
    if isinstance(binding, External):
        return _part(external, binding.path, binding.view, "the region's arguments")
    if isinstance(binding, Const):
        if binding.name not in constants:
            raise ReplayError(f"the recording has no constant {binding.name!r}")
        return constants[binding.name]
    if isinstance(binding, Pack):
        made = _PLAIN.get(binding.kind) or constants.get(binding.kind)
        if made is None:
            raise ReplayError(f"the recording has no type {binding.kind!r}")
        items = tuple(materialise(item, outputs, external, constants, batch_size) for item in binding.items)
        return put_together(made, binding.keys, items)
    if isinstance(binding, Slice):
        # where what is cut is a part itself, its size is not that of the whole
        inside = isinstance(binding.of, Slice) or (isinstance(binding.of, Ref) and "@" in binding.of.call)
        of = materialise(binding.of, outputs, external, constants, batch_size)
        return cut(of, binding.samples, binding.axis, None if inside else batch_size)
    parts = [materialise(part, outputs, external, constants, batch_size) for part in binding.parts]
    return join(parts, binding.samples, binding.axis, binding.shared)


def _part(value: Any, path: Path, wanted: View | None, where: str) -> Any:
    for depth, key in enumerate(path):
        try:
            value = _step(value, key)
        except (LookupError, AttributeError, TypeError) as error:
            at = "".join(f"[{k!r}]" for k in path[: depth + 1])
            raise ReplayError(f"{where} has no {at}: there is {describe(value)}", hint=HINT) from error
    if wanted is None:
        return value
    if not is_array(value):
        raise ReplayError(f"{where} holds {describe(value)} where an array was recorded", hint=HINT)
    try:
        return take_view(value, wanted)
    except ValueError as error:
        raise ReplayError(f"{where} holds {describe(value)}: {error}", hint=HINT) from error


def _step(value: Any, key: Key) -> Any:
    if isinstance(value, Mapping) or isinstance(key, int):
        return value[key]
    return getattr(value, key)
