"""Which EGL device is which CUDA device: graphics number GPUs in an order of their own.

    python -m benchmarks.gpu.egl_devices 1

prints the number that ``MUJOCO_EGL_DEVICE_ID`` takes for CUDA device 1; without an argument all of them.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable

#: Attribute of a device: its number in CUDA (EGL_NV_device_cuda).
EGL_CUDA_DEVICE_NV = 0x323A
MOST = 64


def cuda_devices() -> list[int | None]:
    """Number in CUDA of each EGL device; None: it is no CUDA device."""
    egl = ctypes.CDLL("libEGL.so.1")
    egl.eglGetProcAddress.restype = ctypes.c_void_p
    egl.eglGetProcAddress.argtypes = [ctypes.c_char_p]

    def function(name: bytes, *arguments: type) -> Callable[..., int]:
        address = egl.eglGetProcAddress(name)
        if not address:
            raise OSError(f"this EGL has no {name.decode()}")
        return ctypes.CFUNCTYPE(ctypes.c_uint, *arguments)(address)

    count = ctypes.c_int()
    devices = (ctypes.c_void_p * MOST)()
    query = function(b"eglQueryDevicesEXT", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    if not query(MOST, devices, ctypes.byref(count)):
        raise OSError("EGL does not say its devices")
    attribute = function(b"eglQueryDeviceAttribEXT", ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    found: list[int | None] = []
    for device in devices[: count.value]:
        value = ctypes.c_ssize_t(-1)
        known = attribute(device, EGL_CUDA_DEVICE_NV, ctypes.byref(value))
        found.append(int(value.value) if known and value.value >= 0 else None)
    return found


def main() -> None:
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    try:
        found = cuda_devices()
    except OSError as error:
        raise SystemExit(f"EGL names no devices here: {error}") from None
    if len(sys.argv) > 1:
        there = {str(number): k for k, number in enumerate(found)}
        if sys.argv[1] not in there or sys.argv[1] == "None":
            raise SystemExit(f"none of {len(found)} EGL devices is CUDA device {sys.argv[1]}")
        print(there[sys.argv[1]])
    else:
        print("\n".join(f"EGL device {k}: CUDA device {n}" for k, n in enumerate(found)))


if __name__ == "__main__":
    main()
