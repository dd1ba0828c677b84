"""How long known work takes beside something else: on the GPU, on a core, and until a thread is woken.

What takes turns with compute on the GPU stretches the first alone, what takes cores the others alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

#: Products in the graph that is timed, of matrices of this size: some milliseconds.
PRODUCTS, SIZE = 20, 4096
#: Rounds of a loop of a few milliseconds.
ROUNDS = 50_000
#: Seconds that a thread asks to sleep.
SLEEP_S = 0.001


class Gauges:
    """See the module.

    Parameters
    ----------
    torch : module
        PyTorch.
    device : str
        Of a GPU; of a processor: there is nothing to measure on the GPU.
    """

    def __init__(self, torch: Any, device: str) -> None:
        self._torch, self._device = torch, device
        self._graph: Any = None
        #: Why there is no value of the GPU.
        self.reason: str | None = None
        if not device.startswith("cuda"):
            self.reason = f"{device} is no GPU"
            return
        try:
            self._graph = self._captured()
        except Exception as error:  # the others are of use without it
            self.reason = f"{type(error).__name__}: {error}"[:300]

    def _captured(self) -> Any:
        torch = self._torch
        kind = {"device": self._device, "dtype": torch.bfloat16}
        a, b, c = (torch.zeros(SIZE, SIZE, **kind).normal_() for _ in range(3))
        for _ in range(3):
            torch.mm(a, b, out=c)
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(PRODUCTS):
                torch.mm(a, b, out=c)
        torch.cuda.synchronize(self._device)
        self._kept = (a, b, c)
        return graph

    def during(self, going_on: Callable[[], bool], least: int = 10) -> dict[str, list[float]]:
        """Seconds of each kind of work, again and again.

        Parameters
        ----------
        going_on : callable
            Whether to go on.
        least : int
            How often at least.
        """
        found: dict[str, list[float]] = {}
        done = 0
        while done < least or going_on():
            done += 1
            if self._graph is not None:
                found.setdefault("gpu", []).append(self._on_gpu())
            found.setdefault("core", []).append(_on_core())
            began = time.perf_counter()
            time.sleep(SLEEP_S)
            found.setdefault("wake", []).append(time.perf_counter() - began)
        return found

    def _on_gpu(self) -> float:
        """Seconds of a graph; it is launched while the GPU is at work, so that no core is waited for."""
        events = [self._torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self._graph.replay()
        events[0].record()
        self._graph.replay()
        events[1].record()
        events[1].synchronize()
        return float(events[0].elapsed_time(events[1])) / 1e3


def _on_core() -> float:
    began = time.perf_counter()
    for _ in range(ROUNDS):
        pass
    return time.perf_counter() - began
