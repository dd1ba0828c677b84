"""Threads that outlive a run: what a library keeps for each thread is made once, not in every run.

PyTorch keeps plans of cuDNN by thread, and never frees them. On an H200 the first answer of a policy in a new
thread took 0.1 s longer.
"""

from __future__ import annotations

import contextvars
import sys
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

_Orders = SimpleQueue[tuple[Callable[[], None], Callable[[], None]] | None]


def take_torch_threads() -> None:
    """Let this thread compute with as many threads as ``torch.set_num_threads`` says.

    PyTorch does so when some operation of a thread first asks, which a multiplication of matrices does not:
    as the first one of a thread it would take all cores, and give other bits than the same call elsewhere.
    """
    ask = getattr(sys.modules.get("torch"), "get_num_threads", None)  # torch may be importing
    if ask is not None:
        ask()


class Threads:
    """Threads by name, kept while they have nothing to do; they end with this object.

    Runs at the same time have different threads, whatever their names. Each piece of work has an empty
    context (`contextvars`), as in a new thread. What else it leaves in its thread is there for the next one:
    ``threading.local``, modes of PyTorch that are never left.
    """

    def __init__(self) -> None:
        self._idle: dict[str, list[_Thread]] = {}
        self._lock = threading.Lock()
        weakref.finalize(self, _end, self._idle)

    def start(self, name: str, work: Callable[[], None]) -> Callable[[], None]:
        """Have the thread of a name do something, or a further one if it is busy.

        Parameters
        ----------
        name : str
            Of the thread.
        work : callable
            What it does; it raises nothing.

        Returns
        -------
        callable
            Waits until it is done. The thread is kept whether or not somebody waits, and however that ends.
        """
        with self._lock:
            idle = self._idle.get(name, [])
            # after a fork there are objects of threads and no threads
            found = next((idle.pop(k) for k, one in enumerate(idle) if one.is_alive()), None)
        thread = _Thread(name) if found is None else found
        done = threading.Event()

        def finished() -> None:
            with self._lock:
                self._idle.setdefault(name, []).append(thread)
            done.set()

        thread.do(work, finished)

        def join() -> None:
            done.wait()

        return join

    def close(self) -> None:
        """End the threads that have nothing to do, and wait for that; further ones may be started."""
        with self._lock:
            ended = _end(self._idle)
        for thread in ended:
            thread.join()


def _end(idle: dict[str, list[_Thread]]) -> list[_Thread]:
    ended = [thread for threads in idle.values() for thread in threads]
    idle.clear()
    for thread in ended:
        thread.end()
    return ended


class _Thread:
    """A thread that takes orders. It holds nothing of what it has done."""

    def __init__(self, name: str) -> None:
        self._orders: _Orders = SimpleQueue()
        self._thread = threading.Thread(
            target=_serve, args=(self._orders,), name=f"rlprof {name}", daemon=True
        )
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether it can do anything."""
        return self._thread.is_alive()

    def do(self, work: Callable[[], None], finished: Callable[[], None]) -> None:
        """Take an order, and tell when it is done."""
        self._orders.put((work, finished))

    def end(self) -> None:
        """End after what has been ordered."""
        self._orders.put(None)

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join()


def _serve(orders: _Orders) -> None:
    while (order := orders.get()) is not None:
        work, finished = order
        del order
        try:
            contextvars.Context().run(work)
        finally:
            del work  # before anybody goes on: a waiting thread keeps nothing alive
            finished()
            del finished
