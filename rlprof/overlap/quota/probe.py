"""What the CUDA driver tells a fresh process: which GPUs there are, and how many SMs it may use of one.

Run as a script it prints one line of JSON for each question. Each is asked in a process of its own that has
never loaded the driver, since a process is a client of MPS, under one quota, for as long as it lives. It
imports nothing but the standard library, so that such a process starts in milliseconds.

    probe.py gpus
    probe.py sms ORDINAL PERCENTAGE,... [--context]
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time

LIBRARY = "libcuda.so.1"
#: CUdevice_attribute values of cuda.h.
_SM_COUNT, _COMPUTE_MODE = 16, 20
#: CUexecAffinityType.
_AFFINITY_SM_COUNT = 0
#: Longest time of one question, in seconds.
LIMIT_S = 30.0
#: Clients at a time; MPS takes 48 or more.
AT_ONCE = 4
VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"

Answer = dict[str, object]


class _DriverError(Exception):
    """A call of the driver that failed."""

    def __init__(self, call: str, code: int, name: str) -> None:
        self.call, self.code, self.name = call, code, name


class _Affinity(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("sm_count", ctypes.c_uint)]


class Driver:
    """The few calls of the CUDA driver API that are needed."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(LIBRARY)
        self("cuInit", 0)

    def __call__(self, name: str, *arguments: object) -> None:
        """Call a function; raise if it fails."""
        code = int(getattr(self._library, name)(*arguments))
        if code:
            raise _DriverError(name, code, self._name_of(code))

    def _name_of(self, code: int) -> str:
        text = ctypes.c_char_p()
        try:
            self._library.cuGetErrorName(code, ctypes.byref(text))
        except AttributeError:
            return ""
        return (text.value or b"").decode()

    def number(self, name: str, *arguments: object) -> int:
        """Call a function whose first argument takes an int."""
        value = ctypes.c_int()
        self(name, ctypes.byref(value), *arguments)
        return value.value

    def attribute(self, which: int, device: int) -> int:
        """Attribute of a device."""
        return self.number("cuDeviceGetAttribute", which, device)

    def describe(self, ordinal: int) -> Answer:
        """Name, UUID and facts of a device."""
        device = self.number("cuDeviceGet", ordinal)
        name = ctypes.create_string_buffer(256)
        self("cuDeviceGetName", name, 256, device)
        uuid = (ctypes.c_ubyte * 16)()
        self(
            "cuDeviceGetUuid_v2" if hasattr(self._library, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid",
            uuid,
            device,
        )
        digits = bytes(uuid).hex()
        parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        return {
            "ordinal": ordinal,
            "name": name.value.decode(),
            "uuid": "GPU-" + "-".join(parts),
            "sm_count": self.attribute(_SM_COUNT, device),
            "compute_mode": self.attribute(_COMPUTE_MODE, device),
        }

    def context_sm_count(self, ordinal: int) -> int | None:
        """SMs that a context of this process may use; None if the driver does not say."""
        device = self.number("cuDeviceGet", ordinal)
        context = ctypes.c_void_p()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        try:
            self("cuCtxSetCurrent", context)
            affinity = _Affinity()
            self("cuCtxGetExecAffinity", ctypes.byref(affinity), _AFFINITY_SM_COUNT)
            return int(affinity.sm_count)
        except (_DriverError, AttributeError):  # of a driver that is older than the question
            return None
        finally:
            self("cuDevicePrimaryCtxRelease_v2", device)


def gpus() -> Answer:
    """Driver version and devices."""
    driver = Driver()
    devices = [driver.describe(i) for i in range(driver.number("cuDeviceGetCount"))]
    return {"driver": driver.number("cuDriverGetVersion"), "gpus": devices}


def sms(ordinal: int, percentage: int, *, context: bool = False) -> Answer:
    """SMs that this process sees under a percentage; the driver must not have been loaded before."""
    os.environ[VARIABLE] = str(percentage)
    driver = Driver()
    seen = driver.attribute(_SM_COUNT, driver.number("cuDeviceGet", ordinal))
    answer: Answer = {"percentage": percentage, "sm_count": seen}
    if context:
        answer["context_sm_count"] = driver.context_sm_count(ordinal)
    return answer


class _Child:
    """A forked process that answers one question."""

    def __init__(self, question: str, *arguments: int, context: bool = False) -> None:
        self.asked = (question, *arguments)
        self.until = time.monotonic() + LIMIT_S
        self.text = b""
        self.read, write = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            os.close(self.read)
            code = 1
            try:
                os.write(write, json.dumps(_answer(question, arguments, context)).encode() + b"\n")
                code = 0
            finally:
                os._exit(code)
        os.close(write)

    def heard(self) -> bool:
        """Read what it wrote; True at its end."""
        new = os.read(self.read, 65536)
        self.text += new
        return not new

    def end(self, *, late: bool) -> Answer:
        """Its answer, or how it failed to give one."""
        if late:
            os.kill(self.process, signal.SIGKILL)
        _, status = os.waitpid(self.process, 0)
        os.close(self.read)
        answer: Answer
        if late:
            answer = {"failed": f"no answer within {LIMIT_S:g} s"}
        elif self.text.endswith(b"\n"):
            answer = json.loads(self.text)
        else:
            code = os.waitstatus_to_exitcode(status)
            answer = {"failed": f"the process ended with {code}" if code >= 0 else f"signal {-code} ended it"}
        return {"asked": list(self.asked), **answer}


def _answer(question: str, arguments: tuple[int, ...], context: bool) -> Answer:
    try:
        return gpus() if question == "gpus" else sms(*arguments, context=context)
    except _DriverError as error:
        return {"error": error.code, "error_name": error.name, "call": error.call}
    except OSError as error:
        return {"missing": str(error)}


def main(arguments: list[str]) -> None:
    """Ask, a few processes at a time, and print an answer as soon as it is there."""
    question = arguments[0]
    waiting: list[tuple[int, ...]] = [()]
    if question == "sms":
        waiting = [(int(arguments[1]), int(p)) for p in arguments[2].split(",")]
    context = "--context" in arguments
    at_work: list[_Child] = []
    while waiting or at_work:
        while waiting and len(at_work) < AT_ONCE:
            at_work.append(_Child(question, *waiting.pop(0), context=context))
        ready, _, _ = select.select([c.read for c in at_work], [], [], 0.1)
        for child in list(at_work):
            late = time.monotonic() > child.until
            if late or (child.read in ready and child.heard()):
                at_work.remove(child)
                print(json.dumps(child.end(late=late)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
