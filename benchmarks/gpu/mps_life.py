"""The life of an MPS daemon, and how it ends: steps of `benchmarks.gpu.mps`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.common import ROOT, environment, machine
from benchmarks.gpu.mps_facts import Facts, Noted, mps_processes, rlprof

#: Where the daemon of somebody else lies that the step `foreign` stands for.
THEIRS = Path(tempfile.gettempdir()) / "rlprof-theirs"


def probe(facts: Noted) -> None:
    """Driver, control program, GPUs, in plain calls."""
    from rlprof.overlap.quota import clients, daemons

    facts.attempt("machine", machine)
    facts.attempt("processes", mps_processes)
    facts.attempt("binary", daemons.find_binary)
    facts.attempt("gpus", lambda: [vars(g) for g in clients.list_gpus()])
    facts["variables"] = {k: v for k, v in os.environ.items() if k.startswith("CUDA_")}
    help_ = ["nvidia-cuda-mps-control", "-h"]
    facts.attempt(
        "help",
        lambda: subprocess.run(
            help_, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10, check=False
        ).stdout[-1500:],
    )


def life(facts: Noted) -> None:
    """Start, status, levels, a client, stop, by the command line."""
    from rlprof.overlap.quota.clients import _ask
    from rlprof.overlap.quota.daemons import daemons

    facts["start"] = rlprof("mps", "start", "--while", os.getpid(), "--format", "json")
    if facts["start"]["code"] != 0:
        return
    try:
        (daemon,) = daemons()
        facts.attempt("processes", mps_processes)
        facts["ours"] = daemon.processes
        facts.attempt("again", lambda: rlprof("mps", "start"))
        facts.attempt("status", lambda: rlprof("mps", "status"))
        facts.attempt("levels", lambda: _levels("--refresh"))
        facts.attempt("levels_again", lambda: _levels()["took_s"])
        # whether a context of the process gets what the driver says before there is one
        contexts = ["sms", "0", "1,3,10,50,80,100", "--context"]
        facts.attempt("contexts", lambda: list(_ask(contexts, daemon.environment())))
        for order in ("get_server_list", "get_default_active_thread_percentage", "ps", "help"):
            facts.attempt(f"order {order}", partial(_answer, daemon, order))
        facts.attempt("client", lambda: _client(daemon))
        facts.attempt("stop", lambda: rlprof("mps", "stop"))
    finally:
        rlprof("mps", "stop", "--force")
    facts["left"] = mps_processes()


def _answer(daemon: Any, order: str) -> str:
    return str(daemon.ask(order)[-3000:])


def _levels(*options: str) -> Facts:
    found = rlprof("mps", "levels", "--format", "json", *options)
    return {"took_s": found["took_s"], **(json.loads(found["out"]) if found["code"] == 0 else found)}


def _client(daemon: Any) -> Facts:
    """A PyTorch client under a quota: what it sees, and whether the daemon says that it is one."""
    from rlprof.overlap.quota.levels import Level

    code = (
        "import sys, torch; x = torch.ones(8, device='cuda'); torch.cuda.synchronize();"
        "print(torch.cuda.get_device_properties(0).multi_processor_count, flush=True); sys.stdin.read()"
    )
    env = {**os.environ, **daemon.environment(Level(0, 50))}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout is not None
        facts: Facts = {"pid": client.pid, "sms_at_50": client.stdout.readline().strip()}
        facts["listed"] = daemon.clients()
        facts["stop_refused"] = rlprof("mps", "stop")
        client.communicate(timeout=20)
    facts["listed_after"] = daemon.clients()
    return facts


def foreign(facts: Noted) -> None:
    """A daemon that rlprof did not start is reported and left alone."""
    from rlprof.overlap.quota.daemons import find_binary

    THEIRS.mkdir(exist_ok=True)
    env = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(THEIRS), "CUDA_MPS_LOG_DIRECTORY": str(THEIRS)}
    # whatever ends this process ends the daemon that nobody else would
    watch = f"while kill -0 {os.getpid()} 2>/dev/null; do sleep 0.5; done; echo quit | '{find_binary()}'"
    quiet: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }
    subprocess.Popen(["sh", "-c", watch], env=env, start_new_session=True, **quiet)
    subprocess.run([find_binary(), "-d"], env=env, check=True, timeout=20)
    try:
        facts["processes"], facts["status"] = mps_processes(), rlprof("mps", "status")
        facts["start"], facts["stop"] = rlprof("mps", "start"), rlprof("mps", "stop")
        answer = subprocess.run(
            [find_binary()], input="get_server_list\n", env=env, capture_output=True, text=True, timeout=20,
            check=False,
        )  # fmt: skip
        facts["still_there"] = {"code": answer.returncode, "processes": mps_processes()}
    finally:
        quit_theirs()
    facts["left"] = mps_processes()
    facts["refused"] = facts["start"]["code"] == 2 and facts["stop"]["code"] == 2


def quit_theirs() -> None:
    from rlprof.overlap.quota.daemons import find_binary

    if (THEIRS / "control").exists():
        env = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(THEIRS)}
        subprocess.run([find_binary()], input="quit\n", env=env, text=True, timeout=20, check=False)


def killed(facts: Noted) -> None:
    """Daemons whose process is killed, told to end, or interrupted; the last is a client at work itself."""
    idle = (
        "import sys, time\nfrom rlprof.overlap.quota.daemon import mps\n"
        "with mps() as daemon:\n    print(daemon.folder, flush=True)\n    time.sleep(60)\n"
    )
    busy = (
        "import os, time\nfrom rlprof.overlap.quota.daemon import mps\n"
        "with mps() as daemon:\n    os.environ.update(daemon.environment())\n    import torch\n"
        "    x = torch.randn(4096, 4096, device='cuda')\n    torch.cuda.synchronize()\n"
        "    print(daemon.folder, flush=True)\n    until = time.monotonic() + 60\n"
        "    while time.monotonic() < until:\n        y = x @ x\n"  # launches until the queue is full
    )
    ways = [("SIGKILL", idle), ("SIGTERM", idle), ("SIGINT", idle), ("SIGTERM at work", busy)]
    for name, code in ways:
        number = signal.Signals[name.split()[0]]
        with subprocess.Popen(
            [sys.executable, "-c", code], env=environment(), cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            folder = Path(process.stdout.readline().strip())
            before = len(mps_processes())
            process.send_signal(number)
            process.wait(20)
        began = time.monotonic()
        while (mps_processes() or folder.exists()) and time.monotonic() - began < 15:
            time.sleep(0.05)
        facts[name] = {
            "processes_before": before,
            "left": mps_processes(),
            "gone_after_s": round(time.monotonic() - began, 2),
        }
