"""One call, as it is noted while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rlprof.overlap.context import CallContext
from rlprof.overlap.known import Known, Raw, leaves_of
from rlprof.overlap.modes import TorchModes
from rlprof.overlap.specs import Cell, Mode

if TYPE_CHECKING:
    from rlprof.overlap.node import ExecutionNode


class CallRecord:
    """One call, as noted while it runs."""

    # class attributes, so that making a record sets nothing else
    args: Sequence[Raw] = ()
    kwargs: Mapping[str, Raw] = MappingProxyType({})
    output: Raw | None = None
    #: Arrays in its arguments.
    arrays: Sequence[Known] = ()
    #: Containers in its arguments that can be changed, with their items.
    containers: Sequence[tuple[Raw, tuple[Any, ...]]] = ()
    accesses: tuple[tuple[Cell, Mode], ...] = ()
    batch_size: int | None = None
    modes: TorchModes | None = None
    has_inner = failed = False
    device: Any = None
    start_ns = return_ns = end_ns = 0
    #: What its own code changed, if others were called in it.
    effects: Sequence[str] = ()
    #: Generators of random numbers that belong to everybody, from which it drew.
    random: Sequence[str] = ()

    def __init__(self, node: ExecutionNode, context: CallContext, parent: CallRecord | None) -> None:
        self.node = node
        self.context = context
        self.parent = parent

    def was_given(self, value: Any) -> bool:
        """Whether an object is among its arguments."""
        return any(
            known.obj is value for raw in (*self.args, *self.kwargs.values()) for known in leaves_of(raw)
        )

    @property
    def id(self) -> str:
        """As `Invocation.id`."""
        region = self
        while region.parent is not None:
            region = region.parent
        name = region.node.name
        return name + self.context.label[len(region.context.label) :]

    def is_below(self, other: CallRecord) -> bool:
        """Whether this call ran inside the other."""
        above = self.parent
        while above is not None:
            if above is other:
                return True
            above = above.parent
        return False
