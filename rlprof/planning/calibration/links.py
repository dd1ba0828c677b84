"""Measuring what devices do together, collectives, transfers and whole operators.

Processes of our own, one for each device, that always end. Each is
`rlprof.planning.calibration.link_worker`. They meet through a file in a temporary folder, so no port is
needed. They end with this process (their standard input closes), at its limit, or when one of them fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import rlprof
from rlprof.planning.calibration.device import Devices
from rlprof.planning.calibration.errors import CalibrationError
from rlprof.planning.calibration.raw import Measurement, Point
from rlprof.planning.calibration.sweeps import Effort

#: Time that processes have to end by themselves.
GRACE_S = 3.0


def measure_links(
    points: Sequence[tuple[Point, int]],
    devices: Devices,
    effort: Effort,
    keep: Callable[[Measurement], None],
    *,
    limit_s: float,
    quiet_s: float = 60.0,
) -> str:
    """Measure collectives, transfers and operators of several devices, each handed to `keep` as it is done.

    Parameters
    ----------
    points : sequence of (Point, int)
        What to measure, and in which round, in this order.
    devices : Devices
        One process for each.
    effort : Effort
        How often.
    keep : callable
        Takes each measurement.
    limit_s : float
        After so many seconds the processes are ended; what was measured until then counts.
    quiet_s : float
        The processes are ended when nothing was heard of them for so long: a collective that hangs.

    Returns
    -------
    str
        Why not all was measured; empty if all was.

    Raises
    ------
    CalibrationError
        If the processes cannot begin at all.
    """
    ends_at, heard, done = time.monotonic() + limit_s, time.monotonic(), 0
    with _workers(points, devices, effort) as (processes, output, said):
        for line in _lines(output):
            if line:
                heard = time.monotonic()
                message = json.loads(line)
                if "failed_to_start" in message:
                    raise CalibrationError(
                        f"collectives cannot begin: {message['failed_to_start']}",
                        hint="measure on one device: --devices 0",
                    )
                if "kind" in message:
                    parts = {k: tuple(v) for k, v in message.pop("parts", {}).items()}
                    keep(
                        Measurement(
                            **{**message, "seconds": tuple(message.get("seconds", ())), "parts": parts}
                        )
                    )
                    done += 1
                if message.get("done"):
                    return ""
            if any(p.poll() not in (None, 0) for p in processes):
                break
            if time.monotonic() > ends_at:
                return f"the limit of {limit_s:.0f} s for collectives was reached"
            if time.monotonic() - heard > quiet_s:
                return f"nothing was heard of the collectives for {quiet_s:.0f} s"
        why = said() or "it does not say why"
    if not done:
        raise CalibrationError(f"collectives cannot begin: {why}", hint="measure on one device: --devices 0")
    return f"a process of the collectives ended early: {why}"


def _lines(output: Any) -> Iterator[str]:
    """Lines as they come; an empty one twice a second while none does."""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        held = b""
        while True:
            if not selector.select(0.5):
                yield ""
                continue
            data = os.read(output.fileno(), 65536)
            if not data:
                return
            *whole, held = (held + data).split(b"\n")
            yield from (line.decode() for line in whole if line.startswith(b"{"))
            yield ""


@contextmanager
def _workers(
    points: Sequence[tuple[Point, int]], devices: Devices, effort: Effort
) -> Iterator[tuple[list[subprocess.Popen[bytes]], Any, Callable[[], str]]]:
    """Start one process for each device, and end all of them at the end, whatever happens."""
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="rlprof-links-") as name:
        folder = Path(name)
        task = {
            "points": [[p.kind, dict(p.key), n] for p, n in points],
            "kind": devices.kind,
            "numbers": devices.numbers,
            "dtype": devices.dtype,
            "effort": asdict(effort),
        }
        (folder / "task.json").write_text(json.dumps(task))
        root = str(Path(rlprof.__file__).resolve().parents[1])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        if devices.kind == "cuda":
            environment["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1"

        def said() -> str:
            texts = [p.read_text(errors="replace").strip() for p in sorted(folder.glob("*.err"))]
            return next((t.splitlines()[-1][:300] for t in texts if t), "")

        try:
            for rank in range(len(devices.numbers)):
                with (folder / f"{rank}.err").open("wb") as errors:
                    processes.append(
                        subprocess.Popen(
                            [
                                sys.executable,
                                "-m",
                                "rlprof.planning.calibration.link_worker",
                                str(rank),
                                name,
                            ],
                            stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                            stderr=errors,
                            env=environment,
                            start_new_session=True,  # Ctrl-C is for us; we end them
                        )
                    )
            yield processes, processes[0].stdout, said
        finally:
            _end(processes)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Let them end by themselves for a moment, then by force."""
    for process in processes:
        with contextlib.suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()
    for process in processes:
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
