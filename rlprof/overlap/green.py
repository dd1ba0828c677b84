"""Shares of the SMs within a process: streams of green contexts (CUDA 12.4 and later).

A percentage of MPS is that of a process, for its life. A green context is a part of the SMs for the kernels
of its streams alone: a component can have fewer SMs while the rest of its process, such as training, has all
of them, and the share can be changed between two calls. The driver rounds it up to whole groups of SMs that
clusters of blocks need (8 on Hopper), which a percentage of MPS does not see to. Processes compute at the
same time only as clients of MPS, here too; such a client has all SMs (a percentage of 100).
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rlprof.overlap.errors import OverlapError

#: Python package of the driver; PyTorch for CUDA comes with it.
PACKAGE = "cuda.bindings.driver"
#: Variable of a client of MPS; its share is that of all of the process.
PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
#: Lane of streams that are no component's.
_BESIDE = "beside"
_TAKES = "it takes a whole GPU, and a driver for CUDA 12.4 or later"
#: What the driver says where only all SMs are as many as are asked for.
_NO_PART = ("CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", "CUDA_ERROR_INVALID_VALUE")


class GreenContextError(OverlapError):
    """A green context that cannot be made."""


class _RefusedError(GreenContextError):
    def __init__(self, what: str, *, hint: str, code: str) -> None:
        super().__init__(what, hint=hint)
        self.code = code


@dataclass(frozen=True)
class SmParts:
    """Which parts of the SMs of a GPU a green context can have.

    Parameters
    ----------
    parts : tuple of int
        Numbers of SMs, smallest first; the last one is all of them.
    """

    parts: tuple[int, ...]

    @property
    def sms(self) -> int:
        """All SMs."""
        return self.parts[-1]

    def amount(self, percent: int) -> int:
        """SMs of a share: the smallest part that is no smaller."""
        return next(part for part in self.parts if 100 * part >= percent * self.sms)

    @property
    def percents(self) -> tuple[tuple[int, int], ...]:
        """Parts that a percentage gives, smallest first, each after the largest percentage that gives it."""
        pairs = ((100 * part // self.sms, part) for part in self.parts)
        return tuple((percent, part) for percent, part in pairs if percent and self.amount(percent) == part)


def sm_parts(device: int) -> SmParts:
    """Ask the driver which parts of the SMs of a GPU there are.

    Parameters
    ----------
    device : int
        As PyTorch numbers it.

    Raises
    ------
    GreenContextError
        If the driver, or its Python package, is missing or too old, or MPS gives this process a share.
    """
    driver, _, resource = _resource(device)
    sms = int(resource.sm.smCount)
    _check_whole(device, sms)
    found = {sms}
    wanted = 1
    while wanted < sms:  # what is asked for is rounded up
        part = _part(driver, resource, wanted)
        if part is None:
            break
        found.add(int(part.sm.smCount))
        wanted = max(wanted, int(part.sm.smCount)) + 1
    return SmParts(tuple(sorted(found)))


def _check_whole(device: int, sms: int) -> None:
    """See that this process has all SMs: under a percentage of MPS green contexts have no part."""
    import torch

    percent = os.environ.get(PERCENTAGE, "").strip()
    mine = int(torch.cuda.get_device_properties(device).multi_processor_count)
    if percent not in ("", "100", "100.0") or mine != sms:
        has = f"{PERCENTAGE}={percent}" if percent else f"{mine} of {sms} SMs"
        raise GreenContextError(
            f"this process has a share of GPU {device} by MPS already ({has}): green contexts have no part",
            hint=f"start it without {PERCENTAGE}, under a daemon whose default is 100",
        )


def _part(driver: Any, resource: Any, least: int) -> Any | None:
    """A part of at least so many SMs; None if there is none but the whole."""
    try:
        groups, count, _ = _checked(driver, "cuDevSmResourceSplitByCount", 1, resource, 0, least)
    except _RefusedError as error:
        if error.code in _NO_PART:
            return None
        raise
    return groups[0] if count and int(groups[0].sm.smCount) >= least else None


class SmShares:
    """Shares of the SMs by component, for streams of this process.

    Streams and their contexts live as long as the process: memory that PyTorch keeps for a stream is asked
    for by its handle, which must not become another one's.

    Attributes
    ----------
    percents : dict of str to int
        By component; who is not named has all SMs. Changes hold for what is launched from then on.
    """

    def __init__(self, percents: Mapping[str, int] | None = None) -> None:
        self.percents = dict(percents or {})
        self._contexts: dict[tuple[int, int], Any] = {}
        self._streams: dict[tuple[str, int, int, int], Any] = {}
        self._context_of: dict[int, tuple[int, int]] = {}
        self._parts: dict[int, SmParts] = {}
        self._lock = threading.Lock()

    def parts(self, device: int) -> SmParts:
        """As of `sm_parts`, asked once."""
        if device not in self._parts:
            self._parts[device] = sm_parts(device)
        return self._parts[device]

    def sms(self, component: str, device: int) -> int | None:
        """SMs that a component has; None: all of them."""
        percent = self.percents.get(component)
        return None if percent is None else self._sms(percent, device)

    def stream(self, lane: str, device: int, priority: int = 0) -> Any | None:
        """Stream of a lane on its share of a device.

        Parameters
        ----------
        lane : str
            Whose stream: a component, or a copy of one (``"env#1"``), which has the share of the component.
        device : int
            As PyTorch numbers it.
        priority : int
            Of the stream.

        Returns
        -------
        torch.cuda.Stream or None
            None where the component has all SMs: any stream will do.

        Raises
        ------
        GreenContextError
            If there is none to be had.
        """
        return self._stream(lane, device, self.sms(lane.partition("#")[0], device), priority)

    def _sms(self, percent: int, device: int) -> int | None:
        parts = self.parts(device)
        amount = parts.amount(percent)
        return None if amount == parts.sms else amount

    def _stream(self, lane: str, device: int, sms: int | None, priority: int) -> Any | None:
        if sms is None:
            return None
        key = (lane, device, sms, priority)
        with self._lock:  # lanes have threads of their own
            if key not in self._streams:
                self._streams[key] = self._new_stream(device, sms, priority)
            return self._streams[key]

    def beside(self, stream: Any) -> Any | None:
        """Return another stream with SMs and priority of one of these; None if it is none of these.

        It is the same one each time: libraries keep memory for every stream that they have seen.
        """
        context = self.context_of(stream)
        return None if context is None else self._stream(_BESIDE, *context, stream.priority)

    def context_of(self, stream: Any) -> tuple[int, int] | None:
        """Device and number of SMs of a stream; None if it is none of these."""
        return self._context_of.get(stream.cuda_stream)

    @contextmanager
    def current(self, lane: str, device: int, percent: int | None) -> Iterator[None]:
        """In the block the current stream has a share of the SMs, after what was launched before it.

        What is launched behind the block comes after all of it.

        Parameters
        ----------
        lane, device
            As of `stream`.
        percent : int or None
            The share; None: the block is as it is without this.

        Raises
        ------
        GreenContextError
            If there is none to be had.
        """
        import torch

        stream = None if percent is None else self._stream(lane, device, self._sms(percent, device), 0)
        if stream is None:
            yield
            return
        before = torch.cuda.current_stream(device)
        stream.wait_stream(before)
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            before.wait_stream(stream)

    def _new_stream(self, device: int, sms: int, priority: int) -> Any:
        import torch

        torch.cuda.init()  # type: ignore[no-untyped-call]
        driver = _driver()
        with torch.cuda.device(device):
            torch.empty(1, device=f"cuda:{device}")  # the context that it is a part of is there
            if (device, sms) not in self._contexts:
                self._contexts[device, sms] = _context(device, sms)
            flags = int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
            context = self._contexts[device, sms]
            (handle,) = _checked(driver, "cuGreenCtxStreamCreate", context, flags, priority)
        self._context_of[int(handle)] = (device, sms)
        return torch.cuda.ExternalStream(int(handle), device=device)  # type: ignore[no-untyped-call]


def _context(device: int, sms: int) -> Any:
    driver, number, resource = _resource(device)
    part = _part(driver, resource, sms)
    if part is None or int(part.sm.smCount) != sms:
        got = "no part" if part is None else f"one of {int(part.sm.smCount)}"
        raise GreenContextError(
            f"GPU {device} has {got} in place of {sms} SMs for a green context", hint="choose another share"
        )
    (descriptor,) = _checked(driver, "cuDevResourceGenerateDesc", [part], 1)
    flags = int(driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM)
    (context,) = _checked(driver, "cuGreenCtxCreate", descriptor, number, flags)
    return context


def _resource(device: int) -> tuple[Any, Any, Any]:
    """The driver, its number of a device, and the device's SMs."""
    import torch

    if not torch.cuda.is_available():
        raise GreenContextError("PyTorch finds no CUDA device", hint="look at nvidia-smi")
    torch.cuda.init()  # type: ignore[no-untyped-call]
    driver = _driver()
    # numbers of PyTorch and of the driver are the same: both are of the devices that are visible
    (number,) = _checked(driver, "cuDeviceGet", device)
    kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    (resource,) = _checked(driver, "cuDeviceGetDevResource", number, kind)
    return driver, number, resource


def _driver() -> Any:
    try:
        return importlib.import_module(PACKAGE)
    except ImportError as error:
        raise GreenContextError(
            f"a share of the SMs within a process needs {PACKAGE} ({error})",
            hint="pip install cuda-bindings, of the version of CUDA that PyTorch was built for",
        ) from error


def _checked(driver: Any, name: str, *arguments: Any) -> tuple[Any, ...]:
    """Results of a call to the driver."""
    call = getattr(driver, name, None)
    if call is None:
        raise GreenContextError(
            f"{PACKAGE} has no {name}", hint="install a cuda-bindings package of CUDA 12.4 or later"
        )
    try:
        code, *found = call(*arguments)
    except RuntimeError as error:  # the package says so of functions that an older driver lacks
        raise GreenContextError(f"{name}: {error}", hint=_TAKES) from error
    if code.name != "CUDA_SUCCESS":
        raise _RefusedError(f"{name} says {code.name}", hint=_TAKES, code=code.name)
    return tuple(found)
