"""Which cells one call uses by its declaration, and how many samples it works on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from rlprof.overlap.context import CallContext
from rlprof.overlap.errors import WrapError
from rlprof.overlap.specs import Cell, Mode
from rlprof.overlap.state import Access, State
from rlprof.overlap.values import flatten, is_array
from rlprof.text import counted

if TYPE_CHECKING:
    from rlprof.overlap.node import ExecutionNode

Uses = tuple[tuple[Cell, Mode], ...]


def component_cell(component: str) -> Cell:
    """Return the cell that stands for all of a component that is not declared."""
    return Cell(f"component:{component}")


def batch_size(node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """Samples that a call works on: the length of its first batched argument, else of its state by sample.

    None if it has neither.
    """
    batch = node.batch
    if batch is None:
        return None
    if (  # the usual case, without looking further
        args
        and type(args[0]) is np.ndarray
        and args[0].ndim > batch.axis
        and batch.parameters is None
        and not batch.sequences
        and node.parameters[:1] != (batch.samples,)
    ):
        return int(args[0].shape[batch.axis])
    for parameter, value in _named(node, args, kwargs):
        if parameter == batch.samples:
            continue
        if parameter in batch.sequences:
            return len(value)
        if batch.parameters is None or parameter in batch.parameters:
            for _, leaf in flatten(value):
                if is_array(leaf) and leaf.ndim > batch.axis:
                    return int(leaf.shape[batch.axis])
    for access in node.accesses:
        state = node.program.states[access.name]
        if state.by_sample and access.key is None and access.key_function is None:
            return state.partitions
    return None


def _named(node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    yield from zip(node.parameters, args, strict=False)
    yield from kwargs.items()


def uses(
    node: ExecutionNode, context: CallContext, args: tuple[Any, ...], kwargs: dict[str, Any], size: int | None
) -> Uses:
    """Cells that a call uses, partitions resolved.

    Parameters
    ----------
    node : ExecutionNode
        One whose uses are not fixed.
    context : CallContext
        Given to functions that compute a partition.
    args, kwargs : tuple, dict
        Of the call.
    size : int or None
        What `batch_size` says.

    Raises
    ------
    WrapError
        If a computed partition does not exist, or the number of samples is not that of a state by sample.
    """
    found: dict[Cell, Mode] = {}
    for access in node.accesses:
        state = node.program.states[access.name]
        for cell in _cells(node, access, state, context, args, kwargs, size):
            found[cell] = access.mode if found.get(cell, access.mode) == access.mode else "update"
    return tuple(found.items())


def fixed_uses(node: ExecutionNode) -> Uses | None:
    """Cells that every call of a node uses; None if they depend on the call.

    A node that declares nothing updates all of its component.
    """
    if node.is_marked or node.is_stateless:
        return ()
    if not node.accesses:
        return _everything(node)
    states = node.program.states
    if any(a.key_function is not None or states[a.name].by_sample for a in node.accesses):
        return None
    return uses(node, CallContext(node.path, None, 0, False), (), {}, None)


class NodeUses:
    """What is the same at every call of a node.

    Attributes
    ----------
    takes_self : bool
        A method that was wrapped in its class: its first argument is its object.
    uses : tuple of (Cell, mode) or None
        As of `fixed_uses`.
    has_batch : bool
        It declares a batch.
    first_axis : int or None
        Axis of samples of its first argument, if it is clear that this is one of the batch.
    """

    __slots__ = ("first_axis", "has_batch", "takes_self", "uses")

    def __init__(self, node: ExecutionNode) -> None:
        is_method = not node.is_marked and node.parameters[:1] == ("self",)
        self.takes_self = is_method and node.owner is None
        self.uses = fixed_uses(node)
        batch = node.batch
        self.has_batch = batch is not None
        self.first_axis: int | None = None
        if batch is not None and batch.parameters is None and not batch.sequences:
            self.first_axis = batch.axis if node.parameters[:1] != (batch.samples,) else None


def depends_on_call(node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call may use other cells than another of its size: it is told some, or computes them."""
    if any(access.key_function is not None for access in node.accesses):
        return True
    told = None if node.batch is None else node.batch.samples
    return told is not None and (told in kwargs or told in node.parameters[: len(args)])


def _everything(node: ExecutionNode) -> Uses:
    component = node.component
    found: list[tuple[Cell, Mode]] = [(component_cell(component), "update")]
    for name, spec in node.program.state_specs().items():
        if spec.component == component:
            keys = range(spec.partitions) if spec.partitions is not None else (None,)
            found += [(Cell(name, key), "update") for key in keys]
    return tuple(found)


def _cells(
    node: ExecutionNode,
    access: Access,
    state: State,
    context: CallContext,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    size: int | None,
) -> Iterable[Cell]:
    if access.key_function is not None:
        keys = access.key_function(context)
        listed = [keys] if isinstance(keys, (int, str)) else list(keys)
        for key in listed:
            try:
                state.check(int(key) if hasattr(key, "__index__") else key)
            except WrapError as error:
                raise WrapError(
                    f"node {node.path} in {context.label}: {error.what}", hint=error.hint
                ) from None
        return [Cell(state.name, int(key) if hasattr(key, "__index__") else key) for key in listed]
    if access.key is not None:
        return [Cell(state.name, access.key)]
    if state.partitions is None:
        return [Cell(state.name)]
    if state.by_sample:
        samples = _samples(node, state, context, args, kwargs, size)
        return [Cell(state.name, sample) for sample in samples]
    return [Cell(state.name, key) for key in range(state.partitions)]


def _samples(
    node: ExecutionNode,
    state: State,
    context: CallContext,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    size: int | None,
) -> Iterable[int]:
    """Samples of a call: those that it is told, else all."""
    assert state.partitions is not None
    parameter = None if node.batch is None else node.batch.samples
    for name, value in _named(node, args, kwargs):
        if name == parameter and value is not None:
            samples = [int(s) for s in value]
            for sample in samples:
                if not 0 <= sample < state.partitions:
                    raise WrapError(
                        f"node {node.path} works on sample {sample} in {context.label}, and state"
                        f" {state.name} has {state.partitions}"
                    )
            return samples
    if size is not None and size != state.partitions:
        raise WrapError(
            f"node {node.path} works on {counted(size, 'sample')} in {context.label}, and state {state.name}"
            f" has {state.partitions}",
            hint="tell it which samples they are, or give the state as many partitions",
        )
    return range(state.partitions)
