"""When the device work of a call was complete, by CUDA events that nobody waits for while training runs."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlprof.overlap.call_record import CallRecord

#: Events closer together than this had nothing between them: recording the second takes as long.
NOTHING_S = 10e-6
#: Events that are tried to find the host time of one.
TRIES = 8
#: Work that is complete so soon after a call has returned cannot be told from none, in nanoseconds: the
#: device is idle, its events come when they are recorded, and its clock is known no better.
SOON_NS = 50_000


class DeviceTimes:
    """Events around calls, on the stream that is current in the calling thread.

    Work that a call submits to other streams is not seen. Without torch, or before CUDA is initialised,
    nothing is done: the completion of a call is its return then.
    """

    def __init__(self) -> None:
        torch = sys.modules.get("torch")
        cuda = getattr(torch, "cuda", None)
        self._cuda: Any = cuda if cuda is not None and cuda.is_initialized() else None
        self._origins: dict[int, tuple[Any, int]] = {}
        if self._cuda is not None:
            for device in range(self._cuda.device_count()):
                self._origin(device)

    @property
    def present(self) -> bool:
        """Whether there is a device to look at."""
        return self._cuda is not None

    def _origin(self, device: int) -> None:
        """Find an event at a known host time: of several tries the one that is known best.

        The first event of all takes long, because much is made then.
        """
        best_ns: int | None = None
        with self._cuda.device(device):
            self._cuda.synchronize(device)
            for _ in range(TRIES):
                event = self._cuda.Event(enable_timing=True)
                began = time.monotonic_ns()
                event.record()
                event.synchronize()
                took = time.monotonic_ns() - began
                if best_ns is None or took < best_ns:
                    best_ns = took
                    self._origins[device] = (event, began + took // 2)

    def mark(self) -> Any:
        """Return what `returned` needs: an event before the call."""
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return (self._cuda.current_device(), event, None)

    def returned(self, record: CallRecord) -> None:
        """Record an event after a call."""
        device, before, _ = record.device
        event = self._cuda.Event(enable_timing=True)
        event.record(self._cuda.current_stream(device))
        record.device = (device, before, event)

    def settle(self, records: list[CallRecord]) -> None:
        """Wait for all events and set the completion of each call; called when the run is over."""
        for record in records:
            if record.device is None or record.device[2] is None:
                continue
            device, before, after = record.device
            after.synchronize()
            record.device = None
            if before.elapsed_time(after) / 1e3 < NOTHING_S:
                continue  # no work of its own: the events may have waited for others' work
            origin, at_ns = self._origins[device]
            end_ns = at_ns + round(origin.elapsed_time(after) * 1e6)
            if end_ns - record.return_ns > SOON_NS:
                record.end_ns = end_ns
