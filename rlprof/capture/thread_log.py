"""The open and closed ranges of one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from rlprof.capture.loop_counts import LoopCounts

if TYPE_CHECKING:
    from rlprof.capture.annotate import Annotation
    from rlprof.capture.recorder import Recorder


def ignore(_values: Iterable[Any], /) -> None:
    """Takes what a thread records when nothing is recorded."""


class OpenRange(NamedTuple):
    """What is known of a range that has not ended."""

    annotation: Annotation
    thread: int
    start_ns: int
    is_loose: bool


class ThreadLog:
    """Open and closed ranges of one thread.

    Attributes
    ----------
    thread : int
        The thread's number in the operating system.
    stack : list of Annotation
        Open push/pop ranges, outermost first.
    loose : dict of task to list of Annotation
        Open start/end ranges of the tasks that ran interleaved with the owner of `stack`.
    overtaken : list of Annotation
        Open ranges whose enclosing range ended first: they are start/end ranges now.
    ghosts : int
        Ranges in `stack` that another thread has closed.
    loops : dict of task to LoopCounts
        Loops under way of which only some steps are marked.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.thread = threading.get_native_id()
        self.recorder = recorder
        self.nvtx = recorder.nvtx
        self.stack: list[Annotation] = []
        self.loose: dict[int, list[Annotation]] = {}
        self.overtaken: list[Annotation] = []
        self.ghosts = 0
        self.loops: dict[int, LoopCounts] = {}
        self.buffer: list[Any] = []
        self.emit: Callable[[Iterable[Any]], None] = self.buffer.extend if recorder.is_recording else ignore

    def owns_stack(self, task: int) -> bool:
        """Whether a range that `task` opens now nests in this thread's stack.

        It does if the innermost open range is the task's own or belongs to no task; a task with an open
        start/end range keeps to such ranges.
        """
        return (not self.stack or self.stack[-1].task in (task, 0)) and task not in self.loose

    def open_ranges(self) -> list[OpenRange]:
        """All open ranges, from any thread."""
        loose = [a for group in list(self.loose.values()) for a in list(group)]
        found = [*list(self.stack), *loose, *list(self.overtaken)]
        # log is None until a range is open and once it is closed, which may happen meanwhile
        return [OpenRange(a, self.thread, a.start_ns, a.is_loose) for a in found if a.log is self]

    def take(self) -> list[Any]:
        """Remove and give what is in the buffer; safe beside the thread's own appending."""
        count = len(self.buffer)
        taken = self.buffer[:count]
        del self.buffer[:count]
        return taken
