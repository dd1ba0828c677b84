"""Which component worker runs a node, and which has a state object, where a program does not say so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlprof.overlap.remote import class_name
from rlprof.overlap.state import State

if TYPE_CHECKING:
    from rlprof.overlap.node import ExecutionNode


class Components:
    """Components by the objects that entries are bound to, each named after its class.

    Parameters
    ----------
    nodes : mapping of str to ExecutionNode
        Of the program, as it grows.
    """

    def __init__(self, nodes: Mapping[str, ExecutionNode]) -> None:
        self._nodes = nodes
        #: Objects, kept alive, and their components, by identity.
        self._names: dict[int, tuple[Any, str]] = {}

    def of_node(self, node: ExecutionNode) -> str:
        """Component of a node that was not given one: by the object that its entry is bound to."""
        owner = node.owner
        if owner is not None:
            return self._of_object(owner)
        return node.parent.component if node.parent is not None else ""

    def _of_object(self, owner: Any) -> str:
        for node in self._nodes.values():
            if node.owner is owner and node._component:
                return node._component
        known = self._names.get(id(owner))
        if known is None:
            name = first = class_name(owner)
            taken = {component for _, component in self._names.values()}
            number = 1
            while name in taken:
                number += 1
                name = f"{first} {number}"
            known = self._names[id(owner)] = (owner, name)
        return known[1]

    def of_state(self, state: State) -> str:
        """Component whose object a state is or has; else the one that first writes it."""
        if state.obj is not None:
            bound = [node for node in self._nodes.values() if node.owner is not None]
            for node in bound:
                if node.owner is state.obj:
                    return node.component
            for node in bound:
                if any(value is state.obj for value in getattr(node.owner, "__dict__", {}).values()):
                    return node.component
        writers = [
            n.component
            for n in self._nodes.values()
            for a in n.accesses
            if a.name == state.name and a.mode != "read"
        ]
        return writers[0] if writers else ""
