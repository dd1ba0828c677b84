"""Looking at a GPU's clock: a kernel of one thread that writes ``%globaltimer`` into host memory.

The counters' records carry the same clock (PTIMER, nanoseconds since the epoch as the driver set it at boot).
The driver's library is called through `ctypes`: nothing to install, and no framework in this process.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

from rlprof.capture.samplers.base import Device, SamplerError
from rlprof.capture.samplers.clock_map import Reading

LIBRARY = "libcuda.so.1"
#: Nanoseconds that one look may wait for its turn on the GPU, and that the looks of a burst may take each on
#: the mean: nothing is read from the counters meanwhile.
PATIENCE_NS, MEAN_PATIENCE_NS = 20_000_000, 5_000_000
_PTX = b"""
.version 6.4
.target sm_75
.address_size 64
.visible .entry look(.param .u64 place, .param .u64 token)
{
    .reg .u64 %p, %t, %k;
    ld.param.u64 %p, [place];
    ld.param.u64 %k, [token];
    mov.u64 %t, %globaltimer;
    st.volatile.global.u64 [%p], %t;
    membar.sys;
    st.volatile.global.u64 [%p+8], %k;
    ret;
}
"""
_SM_COUNT = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
_MAPPED = 0x3  # CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP


def load_driver() -> Any:
    """Load the driver's library and initialise it.

    Returns
    -------
    ctypes.CDLL

    Raises
    ------
    SamplerError
        If there is no driver, or no GPU that it can use.
    """
    try:
        driver = ctypes.CDLL(LIBRARY)
    except OSError:
        raise SamplerError(
            f"no NVIDIA driver is installed here ({LIBRARY} was not found)", hint="use --backend host"
        ) from None
    _check(driver, driver.cuInit(0), "initialise the driver")
    return driver


def device_count(driver: Any) -> int:
    """Number of GPUs that the driver shows to this process."""
    count = ctypes.c_int()
    _check(driver, driver.cuDeviceGetCount(ctypes.byref(count)), "count the GPUs")
    return count.value


def describe(driver: Any, device: int) -> Device:
    """Name, number of SMs and identity of a GPU.

    Raises
    ------
    SamplerError
        If there is no such GPU.
    """
    handle = _handle(driver, device)
    name = ctypes.create_string_buffer(256)
    _check(driver, driver.cuDeviceGetName(name, len(name), handle), "name the GPU")
    sms = ctypes.c_int()
    _check(driver, driver.cuDeviceGetAttribute(ctypes.byref(sms), _SM_COUNT, handle), "count the SMs")
    raw = (ctypes.c_ubyte * 16)()
    _check(driver, driver.cuDeviceGetUuid_v2(ctypes.byref(raw), handle), "identify the GPU")
    uuid = bytes(raw).hex()
    text = "-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]))
    return Device(device, name.value.decode(), sms.value, f"GPU-{text}")


class GpuClock:
    """The clock of one GPU; holds a CUDA context of its own until `close`.

    Parameters
    ----------
    driver : ctypes.CDLL
        From `load_driver`.
    device : int
        Number of the GPU.

    Raises
    ------
    SamplerError
        If a context or the kernel cannot be had: memory full, exclusive compute mode.
    """

    def __init__(self, driver: Any, device: int) -> None:
        self._driver = driver
        self._handle = _handle(driver, device)
        self._context = ctypes.c_void_p()
        self._do("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._handle)
        try:
            self._do("cuCtxSetCurrent", self._context)
            module, self._kernel = ctypes.c_void_p(), ctypes.c_void_p()
            self._do("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(_PTX))
            self._do("cuModuleGetFunction", ctypes.byref(self._kernel), module, ctypes.c_char_p(b"look"))
            self._place = ctypes.c_void_p()
            self._do("cuMemHostAlloc", ctypes.byref(self._place), ctypes.c_size_t(16), ctypes.c_uint(_MAPPED))
            address = self._place.value or 0
            self._time = ctypes.c_uint64.from_address(address)
            self._seen = ctypes.c_uint64.from_address(address + 8)
            self._seen.value = 0
            self._token = ctypes.c_uint64(0)
            at = ctypes.c_uint64(address)
            self._arguments = (ctypes.c_void_p * 2)(ctypes.addressof(at), ctypes.addressof(self._token))
            self._keep = at
        except BaseException:
            self.close()
            raise

    def look(self, patience_ns: int = PATIENCE_NS) -> Reading | None:
        """Look at the clock once.

        Parameters
        ----------
        patience_ns : int
            How long to wait for the GPU.

        Returns
        -------
        Reading or None
            None if the GPU did not get to it in time.

        Raises
        ------
        SamplerError
            If the driver refuses.
        """
        self._do("cuCtxSetCurrent", self._context)
        one, zero = ctypes.c_uint(1), ctypes.c_uint(0)
        token = self._token.value = self._token.value + 1
        before = time.monotonic_ns()
        # the arguments are copied by the launch, so that the next token cannot reach this one
        self._do(
            "cuLaunchKernel", self._kernel, one, one, one, one, one, one, zero, None, self._arguments, None
        )
        limit = before + patience_ns
        while self._seen.value != token:
            if time.monotonic_ns() > limit:
                return None
        after = time.monotonic_ns()
        return Reading(before, self._time.value, after)

    def burst(self, count: int, *, close_enough_ns: int = 0) -> list[Reading]:
        """Look several times.

        Parameters
        ----------
        count : int
            How often at most.
        close_enough_ns : int
            Stop at a bracket that is no wider.

        Returns
        -------
        list of Reading
            May be empty on a GPU that is fully taken.
        """
        readings: list[Reading] = []
        limit = time.monotonic_ns() + count * MEAN_PATIENCE_NS
        for _ in range(count):
            left = limit - time.monotonic_ns()
            reading = self.look(min(PATIENCE_NS, left)) if left > 0 else None
            if reading is None:
                break
            readings.append(reading)
            if reading.after_ns - reading.before_ns <= close_enough_ns:
                break
        return readings

    def close(self) -> None:
        """Give the context back."""
        if self._context:
            self._driver.cuDevicePrimaryCtxRelease_v2(self._handle)
            self._context = ctypes.c_void_p()

    def _do(self, function: str, *arguments: Any) -> None:
        _check(self._driver, getattr(self._driver, function)(*arguments), function)


def _handle(driver: Any, device: int) -> ctypes.c_int:
    handle = ctypes.c_int()
    if driver.cuDeviceGet(ctypes.byref(handle), ctypes.c_int(device)):
        count = device_count(driver)
        raise SamplerError(
            f"there is no GPU {device}: this machine shows {count}",
            hint="number them from 0 in the order of nvidia-smi",
        )
    return handle


def _check(driver: Any, code: int, doing: str) -> None:
    if code:
        text = ctypes.c_char_p()
        driver.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
        name = text.value.decode() if text.value else f"error {code}"
        raise SamplerError(f"the NVIDIA driver refused ({doing}): {name}", hint="see that nvidia-smi works")
