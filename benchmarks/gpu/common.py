"""Starting the program and samplers, and facts about the machine (no names of hosts or users)."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
#: When this process began, but for the start of Python: `--seconds` count from then.
BEGAN_S = time.monotonic()


def end_s(seconds: float) -> float:
    """When so many seconds since this process began are over, on the clock of `time.monotonic`."""
    return BEGAN_S + seconds


def environment() -> dict[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


class Program:
    """`program.py` in a process of its own.

    Parameters
    ----------
    prefix : sequence of str
        Command that starts it, for example nsys and its arguments.
    env : dict, optional
        Its environment.
    core : int, optional
        Core to pin it to: a program that moves between cores varies by more than what is measured.
    """

    def __init__(
        self, prefix: Sequence[str] = (), env: dict[str, str] | None = None, core: int | None = None
    ) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "benchmarks.gpu.program"],
            cwd=ROOT,
            env=env or environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),  # noqa: PLW1509
        )
        self.greeting = self._answer(120)

    def ask(self, order: str, timeout_s: float = 120) -> dict[str, Any]:
        self.tell(order)
        answer = self._answer(timeout_s)
        if "error" in answer:  # a measurement without its order would be one of something else
            raise RuntimeError(f"{order}: {answer['error']}")
        return answer

    def tell(self, order: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()

    def answer(self, timeout_s: float = 120) -> dict[str, Any]:
        return self._answer(timeout_s)

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        limit = time.monotonic() + timeout_s
        while time.monotonic() < limit:
            if not select.select([self.process.stdout], [], [], 1.0)[0]:
                continue
            line = self.process.stdout.readline()
            if not line:
                raise RuntimeError(f"the program ended with {self.process.wait()}")
            if line.startswith("{"):
                return dict(json.loads(line))
        raise TimeoutError("no answer from the program")

    def quit(self, timeout_s: float = 60) -> int:
        with contextlib.suppress(OSError):
            self.tell("quit")
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class SamplerProcess:
    """`python -m rlprof.capture.sampler` at work."""

    def __init__(
        self, folder: Path, backend: str, rate_hz: float, *more: str, avoid: int | None = None
    ) -> None:
        others = os.sched_getaffinity(0) - {avoid}
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "rlprof.capture.sampler", "--backend", backend),
                *("--rate-hz", str(rate_hz), "--folder", str(folder), *more),
            ],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, others),  # noqa: PLW1509
        )
        began = time.monotonic()
        assert self.process.stdout is not None
        told = select.select([self.process.stdout], [], [], 40.0)[0]
        self.line = self.process.stdout.readline().strip() if told else "no answer"
        if not told:
            self.process.kill()
        self.start_s = time.monotonic() - began
        self.ready = self.line.startswith("ready")

    def stop(self, how: str = "stdin", timeout_s: float = 30) -> dict[str, Any]:
        """End it and say what it did."""
        from rlprof.capture.part_reader import read_parts

        began = time.monotonic()
        if how == "term":
            self.process.send_signal(signal.SIGTERM)
        try:
            _, err = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            _, err = self.process.communicate()
            err += "\n(killed: it did not end)"
        facts: dict[str, Any] = {"line": self.line[:1500], "start_s": round(self.start_s, 2)}
        facts |= {"stop_s": round(time.monotonic() - began, 2), "code": self.process.returncode}
        if err.strip():
            facts["stderr"] = err[-3000:]
        for path in self.folder.glob(f"{self.process.pid}-*.json"):
            facts |= json.loads(path.read_text()).get("sampler", {})
        facts["bytes"] = sum(p.stat().st_size for p in self.folder.glob(f"{self.process.pid}-*.arrows"))
        facts["notes"] = [n for p in read_parts(self.folder) if p.pid == self.process.pid for n in p.notes]
        if facts.get("wall_s"):
            facts["cpu_share"] = round(facts["cpu_s"] / facts["wall_s"], 4)
            facts["bytes_per_minute"] = round(facts["bytes"] / facts["wall_s"] * 60)
        return facts


@contextmanager
def sampling(
    folder: Path, backend: str, rate_hz: float, *more: str, avoid: int | None = None
) -> Iterator[SamplerProcess]:
    sampler = SamplerProcess(folder, backend, rate_hz, *more, avoid=avoid)
    try:
        yield sampler
    finally:
        if sampler.process.poll() is None:
            sampler.stop()


def activity(folder: Path) -> Any:
    """The samples that a sampler left, as a pyarrow table."""
    from rlprof.capture.part_reader import read_parts

    return next(p.tables["activity"] for p in read_parts(folder) if "activity" in p.tables)


def find_nsys() -> Path | None:
    """An nsys that this machine has."""
    from rlprof.trace.nsys_tool import PLACES

    on_path = shutil.which("nsys")
    found = [Path(on_path)] if on_path else []
    found += [p for place in PLACES for p in sorted(Path("/").glob(place))]
    return found[-1] if found else None


def clean_environment(scratch: Path, libraries: str = "") -> dict[str, str]:
    """What a program needs to run under nsys, and nothing that tells of the machine: reports hold it all."""
    keep = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(scratch), "LANG": "C.UTF-8"}
    keep["PYTHONPATH"] = environment()["PYTHONPATH"]
    keep["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [libraries, os.environ.get("LD_LIBRARY_PATH")]))
    return keep


def machine() -> dict[str, Any]:
    """GPU, driver, versions and date."""
    from rlprof.cores import usable_cores

    facts: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version(),
        "kernel": platform.release().split("-")[0],
        "cores": usable_cores(),
    }
    query = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,compute_mode", "--format=csv,noheader"]
    with contextlib.suppress(OSError):
        facts["gpu"] = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    for package in ("torch", "cupti-python", "nvidia-cuda-cupti", "nvidia-ml-py", "pyarrow", "numpy"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            facts[package] = importlib.metadata.version(package)
    with contextlib.suppress(OSError):
        for line in Path("/proc/driver/nvidia/params").read_text().splitlines():
            if "Profiling" in line:
                facts[line.split(":")[0]] = line.split(":")[1].strip()
    return facts


#: Characters from which on a result is written without indentation: tracked files travel with every call.
_LARGE = 20_000


def save(path: Path, document: dict[str, Any]) -> None:
    """Write a result whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    text = json.dumps(document, indent=1)
    if len(text) > _LARGE:
        text = json.dumps(document, separators=(",", ":"))
    temporary.write_text(text)
    temporary.replace(path)
