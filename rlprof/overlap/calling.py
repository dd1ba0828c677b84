"""The function that is called in place of a native one: what every call of a node goes through.

It is a closure, because it is called as often as the native code is: looking things up on an object at each
call would double what it costs.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from rlprof.capture import recorder as _recorder
from rlprof.overlap.context import CallContext, _current
from rlprof.overlap.observe import finish, observed, observed_coroutine

if TYPE_CHECKING:
    from rlprof.overlap.node import ExecutionNode


class Switch:
    """What calls of a node look at.

    Attributes
    ----------
    quiet : bool
        Nobody asked for hooks, and the node is no region that is to be recorded.
    target : callable
        What runs: the replacement if there is one, else the native entry.
    is_parent : bool
        Other nodes are called inside it.
    outside : itertools.count
        Counts calls that are not inside a call of the parent: iterations, for the root.
    """

    __slots__ = ("is_parent", "outside", "quiet", "target")

    def __init__(self, target: Callable[..., Any]) -> None:
        self.quiet = True
        self.target = target
        self.is_parent = False
        self.outside = itertools.count()


def make_call(node: ExecutionNode, switch: Switch) -> Callable[..., Any]:
    """Return the function that runs a node whose entry returns its result, a future, or a coroutine."""
    path, parent_path, is_loop = node.path, node.parent_path, node.is_loop
    running = node.running
    get, enter, leave, new_counter = _current.get, _current.set, _current.reset, itertools.count

    def call(*args: Any, **kwargs: Any) -> Any:
        parent = get()
        if parent is None or parent.node != parent_path:
            parent = node.find_parent(parent)
        if parent is None:
            context = CallContext(path, None, next(switch.outside), is_loop)
        else:
            counts = parent.counts
            if counts is None:
                counts = parent.counts = {}
            counter = counts.get(path)
            if counter is None:  # one step, so that two threads never get one number
                counter = counts.setdefault(path, new_counter())
            context = CallContext(path, parent, next(counter), is_loop)
            if parent.run is not None:
                context.run = parent.run
        if switch.is_parent:
            running.add(context)
        token = enter(context)
        try:
            if switch.quiet and context.run is None and _recorder.current is None:
                result = switch.target(*args, **kwargs)
            else:
                result = observed(node, context, args, kwargs)
        finally:
            leave(token)
            if switch.is_parent:
                running.discard(context)
        if type(result) is CoroutineType:
            return resume(node, context, result)
        return result

    return call


def enter(node: ExecutionNode) -> CallContext:
    """Make the context of a call that starts here."""
    parent = _current.get()
    if parent is None or parent.node != node.parent_path:
        parent = node.find_parent(parent)
    position = next(node.switch.outside if parent is None else parent.counter(node.path))
    context = CallContext(node.path, parent, position, node.is_loop)
    if parent is not None and parent.run is not None:
        context.run = parent.run
    node.running.add(context)
    return context


def make_coroutine_call(node: ExecutionNode, switch: Switch) -> Callable[..., Any]:
    """Return the coroutine function that runs a node whose entry is one."""

    async def call(*args: Any, **kwargs: Any) -> Any:
        context = enter(node)
        token = _current.set(context)
        try:
            if switch.quiet and context.run is None and _recorder.current is None:
                result = switch.target(*args, **kwargs)
                return await result if isinstance(result, Awaitable) else result
            return await observed_coroutine(node, context, args, kwargs)
        finally:
            _current.reset(token)
            node.running.discard(context)

    return call


async def resume(node: ExecutionNode, context: CallContext, coroutine: CoroutineType[Any, Any, Any]) -> Any:
    """Await a coroutine that a plain callable has returned, as part of its call."""
    node.running.add(context)
    token = _current.set(context)
    try:
        return await finish(node, context, coroutine)
    finally:
        _current.reset(token)
        node.running.discard(context)
