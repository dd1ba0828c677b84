"""Calls that launch work on CUDA devices: complete when their events are, not when the host returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlprof.taskgraph.backend import Call, Pending
from rlprof.taskgraph.task import Task

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Launched:
    """What a call returns that launched work on streams of its own.

    Parameters
    ----------
    output : object
        What consumers get.
    streams : tuple of torch.cuda.Stream
        Streams on which it launched, besides the one that was current when it was called; of any device.
    """

    output: Any
    streams: tuple[torch.cuda.Stream, ...]


def on_device(call: Call, stream: torch.cuda.Stream | None = None) -> Call:
    """Wrap a call so that its output is ready when the device has done what the call launched.

    An event is recorded on the stream that is current in the call, and on those that it names by returning
    `Launched`. The thread that waits for the events sleeps. Consumers start after that, so they need no event
    of their own, on whatever stream they run, and memory of an input is not used again before they are done.

    Parameters
    ----------
    call : callable
        A payload: launches work and returns without waiting for it.
    stream : torch.cuda.Stream, optional
        Current stream for the call. Tasks that are to overlap need different ones: a new thread's current
        stream is the device's default one.

    Returns
    -------
    callable
        The payload to use instead; it returns `Pending`. A failure of the device's work is raised by its
        ``wait``. If the call itself raises, what it launched on the current stream is waited for first.
    """

    def launch(task: Task, inputs: Mapping[str, Any]) -> Pending:
        torch = _torch()
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            current = torch.cuda.current_stream()
            try:
                output = call(task, inputs)
            except BaseException:
                current.synchronize()  # a task that failed leaves no work behind
                raise
            own: tuple[Any, ...] = ()
            if isinstance(output, Launched):
                output, own = output.output, output.streams
            return Pending(output, recorded((current, *own)))

    return launch


def _torch() -> Any:
    import torch

    return torch


def recorded(streams: Iterable[torch.cuda.Stream]) -> Callable[[], None]:
    """Record an event on each stream now; what is returned waits for all of them, for use in `Pending`."""
    torch, events = _torch(), []
    for stream in streams:
        event = torch.cuda.Event(blocking=True)  # the waiting thread sleeps instead of spinning
        event.record(stream)
        events.append(event)

    def wait() -> None:
        for event in events:
            event.synchronize()

    return wait
