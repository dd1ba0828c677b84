"""MPS on a GPU: the life of a daemon, what works beside one, and the quota of two commands.

    python -m benchmarks.gpu.mps run --out FOLDER [--seconds 220] [--steps life,quota]

Each step is a process with a limit; `mps.json` is written after every one, and a step that fails stops none.
`stop` ends whatever daemon is left. `branch` is one of the two commands.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.gpu.common import ROOT, environment, save
from benchmarks.gpu.mps_beside import TESTS_S, counters, egl, graphs, tests
from benchmarks.gpu.mps_facts import BEGAN, Facts, Noted, mps_processes, say
from benchmarks.gpu.mps_life import foreign, killed, life, probe, quit_theirs
from benchmarks.gpu.mps_quota import branch, quota

#: Most seconds of each step.
LIMITS = {
    "probe": 30,
    "life": 60,
    "foreign": 30,
    "killed": 55,
    "graphs": 40,
    "counters": 45,
    "egl": 35,
    "tests": TESTS_S + 5,
    "quota": 200,
}
STEPS: dict[str, Callable[[Noted], None]] = {
    "probe": probe,
    "life": life,
    "foreign": foreign,
    "killed": killed,
    "graphs": graphs,
    "counters": counters,
    "egl": egl,
    "tests": tests,
}


def stop() -> None:
    """End every daemon that this script can have left."""
    try:
        from rlprof.overlap.quota.daemons import daemons

        for daemon in daemons():
            daemon.stop(even_with_clients=True)
            say(f"stopped a daemon that was left: {daemon.folder}")
        quit_theirs()
    except Exception:
        traceback.print_exc()
    left = mps_processes()
    say(f"MPS processes left: {left or 'none'}")


@contextmanager
def always_stopped() -> Iterator[None]:
    def end(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    try:
        yield
    finally:
        stop()


def run_step(name: str, out: Path, limit_s: float) -> Facts:
    """Run a step in a process group of its own and take its result."""
    began = time.monotonic()
    result = out / f".{name}.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.gpu.mps", "step", "--name", name, "--out", str(out)]
    command += ["--seconds", f"{max(limit_s - 20, 10):.0f}"]
    process = subprocess.Popen(command, cwd=ROOT, env=environment(), start_new_session=True)
    ended: str | int
    try:
        ended = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        ended = f"ended after its limit of {limit_s:.0f} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    facts = json.loads(result.read_text()) if result.exists() else {}
    result.unlink(missing_ok=True)
    return facts | {"ended": ended, "step_s": round(time.monotonic() - began, 1)}


def run(out: Path, seconds: float, wanted: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    file = out / "mps.json"
    document: Facts = json.loads(file.read_text()) if file.exists() else {}
    with always_stopped():
        for name in ["probe", *[w for w in wanted if w != "probe"]]:
            left_s = seconds - (time.monotonic() - BEGAN)
            if left_s < 12:
                say(f"== {name}: LEFT OUT, no time")
                document.setdefault(name, {"left_out": "no time"})
                continue
            say(f"== {name}")
            document[name] = run_step(name, out, min(LIMITS[name], left_s))
            save(file, document)
            shown = json.dumps(document[name])
            say(f"== {name}: {document[name]['ended']}, {document[name]['step_s']} s: {shown[:1500]}")
            leftover = mps_processes()
            if leftover:
                document[name]["leftover"] = leftover
                save(file, document)
                stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("order", choices=["run", "step", "stop", "branch"])
    parser.add_argument("--out", type=Path, default=Path("mps-out"))
    parser.add_argument("--seconds", type=float, default=220)
    parser.add_argument("--steps", default="life,foreign,killed,graphs,counters,egl,quota,tests")
    parser.add_argument("--name", choices=list(LIMITS))
    parser.add_argument("--kind", choices=["products", "elementwise"])
    parser.add_argument("--count", type=int)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--mechanism", default="mps")
    given = parser.parse_args()
    if given.order == "run":
        run(given.out, given.seconds, [s for s in given.steps.split(",") if s])
    elif given.order == "stop":
        stop()
    elif given.order == "branch":
        branch(given.kind, given.count, given.device)
    else:
        facts = Noted(given.out / f".{given.name}.json")
        try:
            if given.name == "quota":
                quota(facts, given.out, given.seconds, given.device, given.mechanism)
            else:
                STEPS[given.name](facts)
        except BaseException as error:
            traceback.print_exc()
            facts["error"] = f"{type(error).__name__}: {error}"
            facts["traceback"] = traceback.format_exc()[-3000:]


if __name__ == "__main__":
    main()
