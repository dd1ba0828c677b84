"""A thread that decodes the hardware's records while others are evaluated.

A record costs 24 to 28 us on one core of the machine it was measured on, 14 to 18 of them in CUPTI's decode:
more than the 20 us in which the next one comes. CUPTI lets go of the interpreter's lock, so that decoding in
a thread and evaluating in another keeps up; and several GPUs are decoded at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, LifoQueue, SimpleQueue

from rlprof.capture.samplers.base import SamplerError
from rlprof.capture.samplers.pm_image import Image

#: Memory of all images together, and the fewest of them whatever they need.
IMAGES_BYTES, LEAST_IMAGES = 64 << 20, 3
#: Room of an image, times what comes between two decodes, and of one for a backlog, times what waits, since
#: more comes while it is made; and how much of the room may be needed.
ROOM, SPARE, FULL = 1.5, 1.5, 0.9
LEAST_SLOTS = 64


class Reader:
    """Decodes every `poll_ns` into images of its own.

    Parameters
    ----------
    make_image : function (slots) -> Image
        Makes an image.
    period_ns : int
        Sampling period.
    poll_ns : int
        Time between two decodes.
    most : int
        Records that the hardware's buffer holds: no image is larger.
    """

    def __init__(self, make_image: Callable[[int], Image], period_ns: int, poll_ns: int, most: int) -> None:
        self._make, self._period_ns, self._poll_ns, self._most = make_image, period_ns, poll_ns, most
        first = make_image(max(LEAST_SLOTS, int(ROOM * poll_ns / period_ns)))
        self._slots = first.slots
        # a place for each image there may be, those that were used last on top; None: not needed so far
        self._free: LifoQueue[Image | None] = LifoQueue()
        for _ in range(max(LEAST_IMAGES, IMAGES_BYTES // first.nbytes) - 1):
            self._free.put(None)
        self._free.put(first)
        self._filled: SimpleQueue[Image] = SimpleQueue()
        self._error: SamplerError | None = None
        self._read_at = time.monotonic_ns()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="counters", daemon=True)

    def start(self) -> None:
        """Begin; the counters run already."""
        self._read_at = time.monotonic_ns()
        self._thread.start()

    def take(self) -> list[Image]:
        """Images that were filled since the last call, in order; each has to be given back.

        Raises
        ------
        SamplerError
            If decoding failed, once what came before was taken.
        """
        found: list[Image] = []
        while True:
            try:
                found.append(self._filled.get_nowait())
            except Empty:
                break
        if not found and self._error is not None:
            raise self._error
        return found

    def give_back(self, image: Image) -> None:
        """An image that was evaluated; one that was made for a backlog is let go."""
        self._free.put(image if image.slots == self._slots else None)

    def finish(self) -> None:
        """Decode no more; safe at any time."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def read(self) -> bool:
        """Decode once, if there is a free image; False after an overflow: nothing would come any more."""
        try:
            place = self._free.get(timeout=self._poll_ns / 1e9)
        except Empty:  # nobody evaluates: the hardware's buffer has to do
            return True
        image = self._make(self._slots) if place is None else place
        image.empty()
        # looked at last of all: making room takes milliseconds, and this thread may be kept from running
        while (waiting := self._waiting()) > FULL * image.slots and image.slots < self._most:
            image = self._make(min(self._most, int(SPARE * waiting)))
            image.empty()
        self._read_at = time.monotonic_ns()
        image.decode()
        self._filled.put(image)
        return not image.overflow

    def _waiting(self) -> float:
        """Records since the last decode."""
        return (time.monotonic_ns() - self._read_at) / self._period_ns

    def _run(self) -> None:
        due = time.monotonic_ns()
        try:
            while True:
                due = max(due + self._poll_ns, time.monotonic_ns())
                if self._ending.wait((due - time.monotonic_ns()) / 1e9) or not self.read():
                    return
        except SamplerError as error:
            self._error = error
        except Exception as error:  # whatever it is, the caller has to know: no sample would come any more
            self._error = SamplerError(f"reading the counters failed ({type(error).__name__}: {error})")
