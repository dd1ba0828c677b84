"""The device that is measured: its facts, its clock, its peak memory. PyTorch is imported on first use."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlprof.errors import UsageError
from rlprof.planning.calibration.raw import Machine
from rlprof.planning.calibration.torch_module import torch_module

Call = Callable[[], Any]


@dataclass(frozen=True)
class Devices:
    """Devices to calibrate.

    Parameters
    ----------
    kind : {"cuda", "cpu"}
        GPUs, or processes of the host's processor.
    numbers : tuple of int
        Of the GPUs, or 0, 1, ... of the processes. Single-device measurements use the first.
    """

    kind: str
    numbers: tuple[int, ...]

    @property
    def first(self) -> str:
        """The first one, as PyTorch names it."""
        return f"cuda:{self.numbers[0]}" if self.kind == "cuda" else "cpu"

    @property
    def dtype(self) -> str:
        """Numbers of weights and activations: bfloat16 on GPUs, float32 on processors."""
        return "bfloat16" if self.kind == "cuda" else "float32"


def parse_devices(text: str | None) -> Devices:
    """Read ``0,1`` (GPUs), ``cpu`` or ``cpu:2`` (processes).

    None: all GPUs, or two processes where there is none.

    Raises
    ------
    UsageError
        If it is something else, or a GPU is not there.
    """
    torch = torch_module()

    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if text is None:
        return Devices("cuda", tuple(range(there))) if there else Devices("cpu", (0, 1))
    if match := re.fullmatch(r"\s*cpu(?::(\d+))?\s*", text):
        count = int(match[1] or 1)
        if not 1 <= count <= 64:
            raise UsageError(f"--devices: {count} processes", hint="give 1 to 64, like cpu:2")
        return Devices("cpu", tuple(range(count)))
    parts = [p.strip() for p in text.split(",")]
    if not all(p.isdecimal() for p in parts):
        raise UsageError(f"--devices: {text!r} is no list of GPUs", hint="write 0,1 or cpu:2")
    numbers = tuple(sorted({int(p) for p in parts}))
    if numbers[-1] >= there:
        raise UsageError(
            f"--devices: there is no GPU {numbers[-1]}", hint=f"PyTorch sees {there} of them; or cpu:2"
        )
    return Devices("cuda", numbers)


def machine(devices: Devices) -> Machine:
    """Return the facts of a machine; nothing in them names the host or a person."""
    torch = torch_module()

    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if devices.kind == "cuda":
        facts = torch.cuda.get_device_properties(devices.numbers[0])
        versions["cuda"] = str(torch.version.cuda)
        with contextlib.suppress(Exception):
            versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        with contextlib.suppress(OSError):
            found = re.search(r"\b\d{3}\.[\d.]+", Path("/proc/driver/nvidia/version").read_text())
            versions |= {"driver": found[0]} if found else {}
        name, memory, scalar = str(facts.name), int(facts.total_memory), 2
    else:
        name = _processor()
        memory, scalar = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), 4
    count = len(devices.numbers)
    backend = ("nccl" if devices.kind == "cuda" else "gloo") if count > 1 else ""
    return Machine(devices.kind, name, count, memory, devices.dtype, scalar, backend, versions)


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    return platform.processor() or platform.machine() or "unknown processor"


class Clock:
    """Times calls on one device: CUDA events on a GPU, the monotonic clock on a processor.

    Parameters
    ----------
    device : str
        As PyTorch names it.
    """

    def __init__(self, device: str) -> None:
        self.device, self.cuda = device, device.startswith("cuda")
        if self.cuda:
            torch = torch_module()

            torch.cuda.set_device(device)

    def wait(self) -> None:
        """Wait until the device has nothing left to do."""
        if self.cuda:
            torch = torch_module()

            torch.cuda.synchronize(self.device)

    def once(self, call: Call) -> float:
        """Time one call, in seconds, from an idle device to an idle device."""
        self.wait()
        if not self.cuda:
            began = time.perf_counter()
            call()
            return time.perf_counter() - began
        torch = torch_module()

        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def repeated(
        self, call: Call, *, repeats: int, section_s: float, least_calls: int = 1, graph: bool = True
    ) -> list[float]:
        """Time a short call many times.

        Parameters
        ----------
        call : callable
            Does the same work each time; on a GPU without waiting for the host.
        repeats : int
            Times to return.
        section_s : float
            Each is the mean over as many calls as take this long.
        least_calls : int
            Calls of a section at least: as many as there are buffers that take turns.
        graph : bool
            On a GPU, replay the calls of a section as one CUDA graph: what is timed is the device, not how
            fast the host launches.

        Returns
        -------
        list of float
            Seconds for one call.
        """
        for _ in range(max(2, least_calls)):
            call()
        one = self.once(call)
        calls = max(least_calls, min(1000, round(section_s / max(one, 1e-7))))

        def section() -> None:
            for _ in range(calls):
                call()

        run = captured(section) if self.cuda and graph else section
        self.once(run)
        return [self.once(run) / calls for _ in range(repeats)]


def captured(call: Call, pool: Any = None) -> Call:
    """Return a call that replays, as one CUDA graph, what `call` launches; it has run once before."""
    torch = torch_module()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # other threads, such as those of NCCL, may ask for the state of the device meanwhile
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        call()
    replay: Call = graph.replay
    return replay


@contextmanager
def freed(device: str) -> Iterator[None]:
    """Give memory that PyTorch keeps for later back to the device at the end."""
    import gc

    try:
        yield
    finally:
        gc.collect()
        if device.startswith("cuda"):
            torch = torch_module()

            torch.cuda.empty_cache()


@contextmanager
def settled(kind: str) -> Iterator[None]:
    """Within the block, leave nothing to chance: one thread on a processor, PyTorch's own attention on a GPU.

    That of cuDNN plans each new length at its first use, which every decode step would be.
    """
    torch = torch_module()

    threads, cudnn = torch.get_num_threads(), torch.backends.cuda.cudnn_sdp_enabled()
    if kind == "cpu":
        torch.set_num_threads(1)
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.cuda.enable_cudnn_sdp(cudnn)


class PeakMemory:
    """Most memory held since `reset`, in bytes: by PyTorch's allocator on a GPU, else of the process.

    Parameters
    ----------
    device : str
        As PyTorch names it. Make it before what is to be counted.
    """

    def __init__(self, device: str) -> None:
        self.device, self.cuda = device, device.startswith("cuda")
        self._trim()
        self._before = self._held("VmRSS")

    def reset(self) -> None:
        """Forget peaks so far."""
        if self.cuda:
            torch = torch_module()

            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            self._trim()
            with contextlib.suppress(OSError):  # 5: the peak resident size starts again from here
                Path("/proc/self/clear_refs").write_text("5")

    def peak_bytes(self) -> int | None:
        """Return the peak beyond what was held when this was made; None where it cannot be told."""
        now = self._held("VmHWM")
        return None if now is None or self._before is None else max(now - self._before, 0)

    def _trim(self) -> None:
        """Have the C library give back what it keeps for later, which is resident but holds nothing."""
        if not self.cuda:
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(None).malloc_trim(0)

    def _held(self, field: str) -> int | None:
        if self.cuda:
            torch = torch_module()

            now = torch.cuda.max_memory_allocated if field == "VmHWM" else torch.cuda.memory_allocated
            return int(now(self.device))
        with contextlib.suppress(OSError):
            found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
            return int(found[1]) * 1024 if found else None
        return None
