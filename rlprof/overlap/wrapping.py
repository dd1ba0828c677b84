"""Putting a node in place of a function or method, so that existing code need not change."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rlprof.overlap.errors import WrapError
from rlprof.overlap.node import ExecutionNode, LoopNode
from rlprof.overlap.specs import BatchSpec, Role
from rlprof.overlap.state import Access

if TYPE_CHECKING:
    from rlprof.overlap.program import Program

_ABSENT = object()


def wrap(
    holder: Any,
    attribute: str,
    parent: ExecutionNode | Program | None,
    *accesses: Access | tuple[Access, ...],
    count: int | None = None,
    loop: bool = False,
    name: str | None = None,
    component: str | None = None,
    stateless: bool = False,
    batch: BatchSpec | None = None,
    resources: Iterable[str] = (),
    role: Role = "",
    movable: bool = True,
    copy_argument: str | Mapping[str, str] | None = None,
) -> ExecutionNode:
    """Put a node in place of an attribute; `Program.unwrap` puts it back.

    Parameters
    ----------
    holder : object
        An object, a class or a module. Of an object only its own method is replaced, not its class's: one
        that was copied or unpickled has its native method (but not one that a ``__copy__`` of its class made
        of its attributes). In a class static and class methods stay what they are; of a plain method ``self``
        is the first argument.
    attribute : str
        Name of the function or method.
    parent, *accesses, name, component, stateless, batch, resources, role, movable, copy_argument
        As for `ExecutionNode`.
    count : int, optional
        Makes a loop node, as for `LoopNode`.
    loop : bool
        Makes a loop node without a fixed count.

    Returns
    -------
    ExecutionNode
        The node that is now called.

    Raises
    ------
    WrapError
        If there is no such attribute, or it cannot be replaced.
    """
    if not isinstance(attribute, str):
        raise WrapError(f"{attribute!r} is no name of an attribute", hint="give it as text")
    where = holder.__name__ if inspect.ismodule(holder) or inspect.isclass(holder) else type(holder).__name__
    try:
        native = getattr(holder, attribute)
    except AttributeError:
        raise WrapError(f"{where} has no attribute {attribute!r}", hint="check the name") from None
    if isinstance(native, ExecutionNode) or isinstance(getattr(native, "rlprof_node", None), ExecutionNode):
        raise WrapError(f"{where}.{attribute} is wrapped already", hint="unwrap it first")
    own = inspect.getattr_static(holder, attribute) if inspect.isclass(holder) else _ABSENT
    entry = own.__func__ if isinstance(own, (staticmethod, classmethod)) else native
    common: dict[str, Any] = {
        "name": name or attribute,
        "component": component,
        "stateless": stateless,
        "batch": batch,
        "resources": resources,
        "role": role,
        "movable": movable,
        "copy_argument": copy_argument,
    }
    before = vars(holder).get(attribute, _ABSENT) if hasattr(holder, "__dict__") else _ABSENT
    try:  # before there is a node
        setattr(holder, attribute, own if own is not _ABSENT else native)
        _put_back(holder, attribute, before)
    except (AttributeError, TypeError) as error:
        raise WrapError(
            f"{where}.{attribute} cannot be replaced: {error}", hint="wrap it in its class, or call the node"
        ) from None
    node = (
        LoopNode(count, parent, entry, *accesses, **common)
        if loop or count is not None
        else ExecutionNode(parent, entry, *accesses, **common)
    )
    # a class needs a function, which becomes a method; an object what turns native when it is copied
    is_shared = inspect.isclass(holder) or inspect.ismodule(holder)
    put: Any = functools.update_wrapper(node.call if is_shared else _Put(node.call), entry)
    put.rlprof_node = node
    if hasattr(entry, "remote"):
        put.remote = put
    setattr(holder, attribute, type(own)(put) if isinstance(own, (staticmethod, classmethod)) else put)
    if isinstance(put, _Put):
        put.rlprof_before = before
        vars(holder).setdefault("__reduce_ex__", _Reduction(_reduced, holder))
    node.program.on_unwrap(functools.partial(_put_back, holder, attribute, before))
    return node


class _Put(functools.partial[Any]):
    """What stands in place of an object's method: a copy of the object has its own method, without a node."""

    rlprof_node: ExecutionNode
    #: The attribute that it stands in place of.
    rlprof_before: Any = _ABSENT

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.rlprof_node.native, memo)

    def __reduce__(self) -> Any:
        return _same, (self.rlprof_node.native,)


def _same(native: Any) -> Any:
    return native


class _Reduction(functools.partial[Any]):
    """An object's own ``__reduce_ex__``, which `copy` and `pickle` ask before that of its class."""


def _reduced(holder: Any, protocol: Any) -> Any:
    """Take an object apart as its class does, with its native attributes in place of nodes."""
    of_class: Any = type(holder).__reduce_ex__
    found = of_class(holder, protocol)
    if isinstance(found, str) or len(found) < 3:
        return found
    state = found[2]
    if isinstance(state, dict):
        state = _natives(state)
    elif isinstance(state, tuple) and len(state) == 2 and isinstance(state[0], dict):
        state = (_natives(state[0]), state[1])  # attributes, and those in slots
    return (*found[:2], state, *found[3:])


def _natives(attributes: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in attributes.items():
        native = value.rlprof_before if type(value) is _Put else value
        if native is not _ABSENT and type(native) is not _Reduction:
            found[name] = native
    return found


def _put_back(holder: Any, attribute: str, before: Any) -> None:
    if before is _ABSENT:
        delattr(holder, attribute)
    else:
        setattr(holder, attribute, before)
    held = getattr(holder, "__dict__", {})
    is_last = not any(type(value) is _Put for value in held.values())  # some lie if `isinstance` asks
    if is_last and type(held.get("__reduce_ex__")) is _Reduction:
        del held["__reduce_ex__"]
