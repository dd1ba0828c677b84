"""State of a GPU beside a measurement: clocks, temperature, power, what slows it down."""

from __future__ import annotations

import subprocess
from typing import Any

from rlprof.unavailable import Unavailable

_FIELDS = {
    "clocks.sm": "sm_clock_mhz",
    "clocks.mem": "memory_clock_mhz",
    "temperature.gpu": "temperature_c",
    "power.draw": "power_w",
    "{reasons}.active": "slowed_by",
}


def gpu_state(uuid: str) -> dict[str, Any] | Unavailable:
    """Clocks, temperature, power and the reasons for lower clocks (bits, as NVML numbers them) of a GPU.

    Parameters
    ----------
    uuid : str
        Of the GPU, or its number in nvidia-smi.
    """
    why = "nvidia-smi gave no answer"
    for reasons in ("clocks_event_reasons", "clocks_throttle_reasons"):  # of newer and older drivers
        wanted = ",".join(_FIELDS).replace("{reasons}", reasons)
        command = ["nvidia-smi", f"--query-gpu={wanted}", "--format=csv,noheader,nounits", "-i", uuid]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return Unavailable(f"nvidia-smi cannot be asked ({error})")
        values = [value.strip() for value in done.stdout.strip().split(",")]
        if done.returncode == 0 and len(values) == len(_FIELDS):
            return dict(zip(_FIELDS.values(), map(_number, values), strict=True))
        why = " ".join((done.stderr or done.stdout).split())[:200] or why
    return Unavailable(why)


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
