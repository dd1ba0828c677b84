"""Device work of calls: a CUDA stream for each component, completion by events, modes of torch in threads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from rlprof.overlap.green import SmShares
from rlprof.overlap.modes import TorchModes, current_modes, in_modes
from rlprof.overlap.structures import is_tensor
from rlprof.overlap.values import take_apart
from rlprof.taskgraph import Pending


def _torch_with_cuda() -> Any:
    """Return torch if it is loaded and CUDA is in use; nothing is imported or initialised."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None


class CudaStreams:
    """Streams by lane and device. They live as long as the replacement, as do the allocator's pools of them.

    A lane is a component: its calls run one at a time and each completes before the next starts, so memory
    that a component frees is never taken while another of its calls still uses it.

    Parameters
    ----------
    priorities : mapping of str to int, optional
        Of the streams of a component: below 0 they go before others whose work waits for the same SMs. They
        hold within this process.
    shares : SmShares, optional
        Shares of the SMs by component, as they are when a call begins.
    """

    def __init__(self, priorities: Mapping[str, int] | None = None, shares: SmShares | None = None) -> None:
        self.priorities = dict(priorities or {})
        self.shares = shares
        self._streams: dict[tuple[str, int], Any] = {}
        self._shared: set[Any] = set()

    def stream(self, torch: Any, lane: str, device: int) -> Any:
        """Return the stream of a lane on a device; made when first asked for.

        Raises
        ------
        GreenContextError
            If its component cannot have its share of the SMs.
        """
        key = (lane, device)
        priority = self.priorities.get(lane.partition("#")[0], 0)  # a copy's lane is env#1
        if self.shares is not None and (own := self.shares.stream(lane, device, priority)) is not None:
            self._shared.add(own)
            return own
        if key not in self._streams:
            self._streams[key] = torch.cuda.Stream(device=device, priority=priority)
        return self._streams[key]

    def synchronize(self) -> None:
        """Wait for all work in them."""
        for stream in [*self._streams.values(), *self._shared]:
            stream.synchronize()


class DeviceRun:
    """One run's view of the devices.

    Made in the thread that calls the region: its device, its streams, its grad, inference and autocast modes
    hold for all calls, which run in other threads.

    Parameters
    ----------
    streams : CudaStreams
        Kept from run to run.
    """

    def __init__(self, streams: CudaStreams) -> None:
        self._streams = streams
        self._modes = current_modes()
        self._torch = torch = _torch_with_cuda()
        self._device = 0
        self._before: dict[int, Any] = {}
        self._callers: dict[int, Any] = {}
        if torch is None:
            return
        self._device = torch.cuda.current_device()
        for device in range(torch.cuda.device_count()):
            if device == self._device or torch.cuda.memory_reserved(device):
                self._callers[device] = torch.cuda.current_stream(device)
                self._before[device] = self._callers[device].record_event()

    def call(
        self,
        lane: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        complete: Callable[[Any], Any],
        modes: TorchModes | None = None,
    ) -> Any:
        """Call a function on the lane's streams.

        Parameters
        ----------
        lane : str
            Whose streams.
        function, args, kwargs
            The call.
        complete : callable
            Makes a value of a coroutine or a future that was returned.
        modes : TorchModes, optional
            Those of the call; by default those in which the region was called.

        Returns
        -------
        object
            What it returned; a `Pending` of that if its device work may not be complete.
        """
        torch = self._torch
        if torch is None and self._modes is None and modes is None:
            return self._finished(complete(function(*args, **kwargs)))
        with in_modes(modes or self._modes):
            if torch is None:
                return self._finished(complete(function(*args, **kwargs)))
            with ExitStack() as stack:
                streams = {d: self._streams.stream(torch, lane, d) for d in self._before}
                for device, stream in streams.items():
                    stream.wait_event(self._before[device])
                    stack.enter_context(torch.cuda.stream(stream))
                stack.enter_context(torch.cuda.device(self._device))
                for tensor in _cuda_tensors((args, kwargs)):
                    if tensor.get_device() in streams:
                        # freed by whoever holds it last, it is not given away before this work is done
                        tensor.record_stream(streams[tensor.get_device()])
                returned = function(*args, **kwargs)
                output = complete(returned)
                used = list(streams.values())
                if output is not returned:  # a coroutine runs in a thread with other streams
                    used += [*self._callers.values(), *map(torch.cuda.default_stream, streams)]
                events = [stream.record_event(torch.cuda.Event(blocking=True)) for stream in used]
        return Pending(output, lambda: [event.synchronize() for event in events])

    @staticmethod
    def _finished(output: Any) -> Any:
        """Wait if CUDA came into use in this run: its work is in no stream of ours."""
        torch = _torch_with_cuda()
        if torch is not None:
            torch.cuda.synchronize()
        return output

    def settle(self) -> None:
        """Wait for what calls have launched, after one of them failed."""
        if self._torch is not None:
            self._streams.synchronize()

    def hand_over(self, output: Any) -> None:
        """Make the region's output safe on the streams of its caller; all work is complete by now."""
        if self._torch is not None:
            for tensor in _cuda_tensors(output):
                if tensor.get_device() in self._callers:
                    tensor.record_stream(self._callers[tensor.get_device()])


def _cuda_tensors(value: Any) -> Iterator[Any]:
    parts = take_apart(value)
    if parts is not None:
        for item in parts.items:
            yield from _cuda_tensors(item)
    elif is_tensor(value) and value.is_cuda:
        yield value
