"""When a call is complete: coroutines, futures and remote references become values."""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import Future
from typing import Any

from rlprof.overlap.remote import is_reference


class Completer:
    """Waits for what calls return, from any thread; its event loop starts when it is first needed.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop or None
        A running loop of another thread, for coroutines that belong to it; None: one of its own.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def value(self, returned: Any) -> Any:
        """Return the value of a coroutine, future or Ray reference once it is there; others unchanged.

        Raises
        ------
        BaseException
            What the coroutine or the remote call raised.
        """
        if isinstance(returned, Future):
            return returned.result()
        if is_reference(returned):
            import ray

            return ray.get(returned)
        if not inspect.isawaitable(returned):
            return returned
        own = returned.get_loop() if isinstance(returned, asyncio.Future) else None
        return asyncio.run_coroutine_threadsafe(_awaited(returned), own or self._running_loop()).result()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="rlprof event loop", daemon=True
                )
                self._thread.start()
            return self._loop

    def close(self) -> None:
        """End the loop if it is its own; what still runs in it is cancelled and waited for."""
        if self._thread is None or self._loop is None:
            return
        asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


async def _cancel_all() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
