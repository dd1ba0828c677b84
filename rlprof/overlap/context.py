"""Which call is running here: followed per thread and per task, whether or not anything is recorded.

Random draws are keyed by it, recorded calls get their parent from it, and whoever runs the calls of a graph
sets it (`at_call`), so that a call sees the same context wherever it runs.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rlprof.capture import recorder as _recorder
from rlprof.capture.annotate import annotate

if TYPE_CHECKING:
    from rlprof.overlap.callgraph import Call
    from rlprof.overlap.trace import RunTrace


class CallContext:
    """One call of a node, or one iteration of a marked loop, while it runs.

    Parameters
    ----------
    node : str
        Path of the node.
    parent : CallContext or None
        Enclosing call; None outside of every node.
    position : int
        Iteration of a loop node; of a plain node, how many calls in the same parent came before.
    is_loop : bool
        The node is a loop node.

    Attributes
    ----------
    draws : int
        Random draws made so far in this call.
    args, kwargs : tuple, mapping
        Its arguments, while somebody looks.
    """

    # class attributes, so that making a context sets nothing else
    draws = 0
    run: RunTrace | None = None
    record: Any = None
    pending: Any = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = MappingProxyType({})
    _label: str | None = None
    counts: dict[str, itertools.count[int]] | None = None
    _samples: tuple[int, ...] | None = None
    #: In which its range of a capture is open.
    range_thread: int | None = None

    def __init__(self, node: str, parent: CallContext | None, position: int, is_loop: bool) -> None:
        self.node = node
        self.parent = parent
        self.position = position
        self.is_loop = is_loop

    def __repr__(self) -> str:
        return f"<call {self.label}>"

    def counter(self, node: str) -> itertools.count[int]:
        """Return what counts the calls of child `node` in this call; ``next`` gives a call's position."""
        counts = self.counts
        if counts is None:
            counts = self.counts = {}
        counter = counts.get(node)
        if counter is None:  # one step each, so that two threads never get one number
            counter = counts.setdefault(node, itertools.count())
        return counter

    def calls_of(self, node: str) -> int:
        """Return how many calls of child `node` this call has made."""
        counter = (self.counts or {}).get(node)
        return 0 if counter is None else int(repr(counter)[6:-1])

    @property
    def samples(self) -> tuple[int, ...] | None:
        """Positions of its samples in the native batch, for a part of a split call; None: all of them."""
        context: CallContext | None = self
        while context is not None:
            if context._samples is not None:
                return context._samples
            context = context.parent
        return None

    @property
    def step(self) -> str:
        """Last part of the label: the node's name with its iteration or occurrence."""
        name = self.node.rpartition("/")[2]
        if self.is_loop:
            return f"{name}[{self.position}]"
        return f"{name}#{self.position}" if self.position else name

    @property
    def label(self) -> str:
        """Name of this call: as `Call.origin`, and with the iterations outside of the region."""
        if self._label is None:
            if self.parent is None:
                before = self.node.rpartition("/")[0]
                self._label = f"{before}/{self.step}" if before else self.step
            else:
                self._label = f"{self.parent.label}/{self.step}"
        return self._label

    @label.setter
    def label(self, label: str) -> None:
        self._label = label

    @property
    def indices(self) -> tuple[tuple[str, int], ...]:
        """Loop nodes and their iterations, outermost first, from the root on."""
        own = ((self.node, self.position),) if self.is_loop else ()
        return own if self.parent is None else self.parent.indices + own

    @property
    def index(self) -> int:
        """Iteration of the nearest enclosing loop (0 outside of loops)."""
        indices = self.indices
        return indices[-1][1] if indices else 0


_current: ContextVar[CallContext | None] = ContextVar("rlprof_call", default=None)


def current() -> CallContext | None:
    """Return the innermost call that is running in this thread or task; None outside of every node."""
    return _current.get()


def call_context(region: CallContext, call: Call) -> CallContext:
    """Return the context in which a call of a graph runs, as if it ran natively.

    Parameters
    ----------
    region : CallContext
        The call of the region's node that the graph stands in for.
    call : Call
        A call of the graph.
    """
    made = CallContext(call.node, region, 0, False)
    inside = call.origin.partition("/")[2]
    made.label = f"{region.label}/{inside}" if inside else region.label
    made._samples = call.samples
    if call.indices:
        # the innermost loop is the position of an enclosing context that only carries indices
        outer = region
        for node, index in call.indices:
            outer = CallContext(node, outer, index, True)
        made.parent = outer
    return made


@contextmanager
def at_call(region: CallContext, call: Call) -> Iterator[CallContext]:
    """Run a block as the given call of a graph: its draws and nested nodes see the native context.

    In a capture the block is a range of the call's node, as natively, whatever thread it runs in.

    Parameters
    ----------
    region : CallContext
        ``current()`` in the replacement of the region's node.
    call : Call
        A call of the graph.
    """
    made = call_context(region, call)
    token = _current.set(made)
    shown = None
    if _recorder.current is not None:
        # where the region's own range is open, this one lies inside it
        inside = region.range_thread == threading.get_ident()
        name = call.node.removeprefix(f"{region.node}/") if inside else call.node
        shown = annotate(name)
        shown.__enter__()
    try:
        yield made
    finally:
        if shown is not None:
            shown.__exit__(None, None, None)
        _current.reset(token)
