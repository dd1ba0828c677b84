"""Iterations of a loop that the native code marks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlprof.capture import recorder as _recorder
from rlprof.overlap.calling import enter
from rlprof.overlap.context import CallContext, _current
from rlprof.overlap.errors import WrapError
from rlprof.overlap.observe import end_call, start

if TYPE_CHECKING:
    from rlprof.overlap.node import LoopNode


class Iterations:
    """Iterates, and lets the calls in the loop's body know in which iteration they are.

    Parameters
    ----------
    node : LoopNode
        Without an entry.
    steps : iterable or asynchronous iterable
        What is iterated over.
    """

    __slots__ = ("_before", "_context", "_node", "_observation", "_source", "_steps")

    def __init__(self, node: LoopNode, steps: Any) -> None:
        self._node = node
        self._steps = steps
        self._source: Any = None
        self._context: CallContext | None = None
        self._before: CallContext | None = None
        self._observation: Any = None

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterations:
        self._source = iter(self._steps)
        return self

    def __next__(self) -> Any:
        self._leave()
        item = next(self._source)
        self._enter()
        return item

    def __aiter__(self) -> Iterations:
        self._source = self._steps.__aiter__()
        return self

    async def __anext__(self) -> Any:
        self._leave()
        item = await self._source.__anext__()
        self._enter()
        return item

    def __del__(self) -> None:
        # after a break or an exception; Python prints what is raised here, and nobody can catch it
        try:
            self._leave()
        except WrapError as error:
            self._node.program.left_early = error

    def _enter(self) -> None:
        node = self._node
        found = _current.get()
        context = enter(node)
        if not node.switch.quiet or context.run is not None or _recorder.current is not None:
            try:
                self._observation = start(node, context, (), {})
            except BaseException:
                node.running.discard(context)
                raise
        self._context, self._before = context, found
        _current.set(context)

    def _leave(self) -> None:
        context = self._context
        if context is None:
            return
        self._context = None
        self._node.running.discard(context)
        if _current.get() is context:
            _current.set(self._before)
        self._before = None
        if self._observation is not None:
            observation, self._observation = self._observation, None
            end_call(self._node, context, observation, None, None)
