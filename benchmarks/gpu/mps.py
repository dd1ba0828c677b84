"""MPS on a GPU: the life of a daemon, what works beside one, and the quota of two commands.

    python -m benchmarks.gpu.mps run --out FOLDER [--seconds 220] [--steps life,quota]

Each step is a process with a limit; `mps.json` is written after every one, and a step that fails stops none.
`stop` ends whatever daemon is left. `branch` is one of the two commands.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.gpu.common import ROOT, environment, machine, save

Facts = dict[str, Any]
BEGAN = time.monotonic()
#: Most seconds of each step.
LIMITS = {
    "probe": 30,
    "life": 60,
    "foreign": 30,
    "killed": 55,
    "graphs": 40,
    "counters": 45,
    "egl": 35,
    "tests": 60,
    "quota": 200,
}
#: Where the daemon of somebody else lies that the step `foreign` stands for.
THEIRS = Path(tempfile.gettempdir()) / "rlprof-theirs"
NAME = "nvidia-cuda-mps"


class Noted(dict[str, Any]):
    """Facts that are written down as they come, so that what ends a step loses none of them."""

    def __init__(self, file: Path | None = None) -> None:
        super().__init__()
        self.file = file

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        if self.file is not None:
            save(self.file, dict(self))

    def attempt(self, name: str, call: Callable[[], Any]) -> None:
        """Note what a call gives, or its error."""
        try:
            self[name] = call()
        except Exception as error:
            traceback.print_exc()
            self[name] = {"error": f"{type(error).__name__}: {error}"}


def say(text: str) -> None:
    print(f"[{time.monotonic() - BEGAN:5.1f} s] {text}", flush=True)


def rlprof(*arguments: object, timeout_s: float = 60) -> Facts:
    """Run the command line; after its time it is told to end, as by a person."""
    began, late = time.monotonic(), False
    process = subprocess.Popen(
        [sys.executable, "-m", "rlprof", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(),
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        late = True
        process.terminate()
        try:
            out, err = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
    took = round(time.monotonic() - began, 2)
    facts: Facts = {"code": process.returncode, "out": out, "err": err[-2000:], "took_s": took}
    return facts | ({"late": f"told to end after {timeout_s:.0f} s"} if late else {})


def mps_processes() -> list[Facts]:
    """Every MPS process that can be seen, with what of its environment matters."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            if (folder / "comm").read_text().strip() != NAME:
                continue
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            if fields[0] in "ZX":
                continue
            pairs = (folder / "environ").read_bytes().decode("utf-8", "replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        except OSError as error:
            found.append({"pid": int(folder.name), "error": str(error)})
            continue
        kept = {
            p.split("=", 1)[0]: p.split("=", 1)[1] for p in pairs if p.startswith(("CUDA_", "RLPROF_MPS="))
        }
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        found.append(
            {"pid": int(folder.name), "parent": int(fields[1]), "command": command, "environment": kept}
        )
    return found


# steps, each in a process of its own -----------------------------------------------------------------------


def probe(facts: Noted) -> None:
    """Driver, control program, GPUs, in plain calls."""
    from rlprof.overlap.quota import clients, daemon

    facts.attempt("machine", machine)
    facts.attempt("processes", mps_processes)
    facts.attempt("binary", daemon.find_binary)
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
            facts.attempt(f"order {order}", lambda order=order: daemon.ask(order)[-3000:])
        facts.attempt("client", lambda: _client(daemon))
        facts.attempt("stop", lambda: rlprof("mps", "stop"))
    finally:
        rlprof("mps", "stop", "--force")
    facts["left"] = mps_processes()


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
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
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


def as_client(code: str, *arguments: object, timeout_s: float = 40, inside: bool = True) -> Facts:
    """Run Python beside a daemon, as its client or not, and take the last line that is JSON."""
    from rlprof.overlap.quota.daemon import mps
    from rlprof.overlap.quota.daemons import without_mps

    with mps() as daemon:
        env = {**environment(), **(daemon.environment() if inside else without_mps())}
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            env=env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return _last_json(done.stdout) | {"code": done.returncode, "err": done.stderr[-2000:]}


def _last_json(text: str) -> Facts:
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            return dict(json.loads(line))
    return {"said": text[-500:]}


GRAPHS = """
import json, threading, time, torch
torch.cuda.init()
done, errors = {}, {}
def group(number):
    try:
        stream = torch.cuda.Stream()
        x, w = torch.randn(512, 512, device='cuda'), torch.randn(512, 512, device='cuda')
        with torch.cuda.stream(stream):
            for _ in range(3): y = torch.relu(x @ w)
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            barrier.wait(20)
            graph.capture_begin(capture_error_mode='thread_local')
            y = x
            for _ in range(20): y = torch.relu(y @ w) / 20
            barrier.wait(20)  # both are capturing now
            graph.capture_end()
            graph.replay(); stream.synchronize()
            z = x
            for _ in range(20): z = torch.relu(z @ w) / 20
            stream.synchronize()
            done[number] = bool(torch.equal(y, z))
    except Exception as error:
        errors[number] = f'{type(error).__name__}: {error}'
        barrier.abort()
barrier = threading.Barrier(2)
threads = [threading.Thread(target=group, args=(n,)) for n in range(2)]
[t.start() for t in threads]; [t.join() for t in threads]
print(json.dumps({'equal': done, 'errors': errors, 'torch': torch.__version__}))
"""


def graphs(facts: Noted) -> None:
    """Two threads capture CUDA graphs at the same time, as clients and without MPS."""
    facts.attempt("without_mps", lambda: as_client(GRAPHS, inside=False))
    facts.attempt("as_client", lambda: as_client(GRAPHS))


COUNTERS = """
import json, time
from rlprof.capture.samplers.cupti import METRIC
from rlprof.capture.samplers.gpu_clock import load_driver
from rlprof.capture.samplers.pm_counters import PmCounters
load_driver()
counters = PmCounters(0, [METRIC], 1_000_000, 64 << 20, 2000)
out = {'chip': counters.open()}
values, until = [], time.monotonic() + 1.5
while time.monotonic() < until:
    time.sleep(0.05)
    values += [v[0] for v in counters.decode().values.tolist()]
counters.stop(); counters.close()
out['samples'] = len(values)
out['mean_percent'] = sum(values) / len(values) if values else None
print(json.dumps(out))
"""
BUSY = """
import sys, time, torch
x = torch.randn(4096, 4096, device='cuda', dtype=torch.bfloat16)
for _ in range(20): y = x @ x
torch.cuda.synchronize(); print('ready', flush=True)
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    for _ in range(50): y = x @ x
    torch.cuda.synchronize()
"""


def counters(facts: Noted) -> None:
    """PM sampling while a client of the daemon is at work, from outside of MPS and as a client."""
    from rlprof.overlap.quota.daemon import mps
    from rlprof.overlap.quota.daemons import without_mps

    with mps() as daemon:
        ways = {"outside": without_mps(), "as_client": daemon.environment()}
        for name, variables in ways.items():
            busy = subprocess.Popen(
                [sys.executable, "-c", BUSY, "8"],
                env={**environment(), **daemon.environment()},
                stdout=subprocess.PIPE,
                text=True,
            )
            try:
                assert busy.stdout is not None
                busy.stdout.readline()
                done = subprocess.run(
                    [sys.executable, "-c", COUNTERS],
                    env={**environment(), **variables},
                    cwd=ROOT,
                    capture_output=True,
                    text=True,
                    timeout=20,
                    check=False,
                )
                facts[name] = _last_json(done.stdout) | {"code": done.returncode, "err": done.stderr[-1500:]}
            except Exception as error:
                facts[name] = {"error": f"{type(error).__name__}: {error}"}
            finally:
                busy.kill()
                busy.wait()


def draw() -> Facts:
    """Clear and read an image in an EGL context without a display, by plain calls of the libraries."""
    egl = ctypes.CDLL("libEGL.so.1")
    void, number = ctypes.c_void_p, ctypes.c_int
    egl.eglGetProcAddress.restype = void
    devices_of = ctypes.CFUNCTYPE(number, number, ctypes.POINTER(void), ctypes.POINTER(number))(
        egl.eglGetProcAddress(b"eglQueryDevicesEXT")
    )
    display_of = ctypes.CFUNCTYPE(void, ctypes.c_uint, void, void)(
        egl.eglGetProcAddress(b"eglGetPlatformDisplayEXT")
    )
    devices, count = (void * 8)(), number()
    if not devices_of(8, devices, ctypes.byref(count)) or not count.value:
        return {"error": f"no EGL device ({hex(egl.eglGetError())})"}
    display = display_of(0x313F, devices[0], None)
    major, minor = number(), number()
    if not egl.eglInitialize(void(display), ctypes.byref(major), ctypes.byref(minor)):
        return {"error": f"eglInitialize {hex(egl.eglGetError())}", "devices": count.value}
    egl.eglBindAPI(0x30A2)
    wanted = (number * 5)(0x3033, 0x0001, 0x3040, 0x0008, 0x3038)  # pbuffer surfaces, OpenGL
    config, found = void(), number()
    egl.eglChooseConfig(void(display), wanted, ctypes.byref(config), 1, ctypes.byref(found))
    egl.eglCreatePbufferSurface.restype = egl.eglCreateContext.restype = void
    size = (number * 5)(0x3057, 64, 0x3056, 64, 0x3038)
    surface = egl.eglCreatePbufferSurface(void(display), config, size)
    context = egl.eglCreateContext(void(display), config, None, None)
    if not egl.eglMakeCurrent(void(display), void(surface), void(surface), void(context)):
        return {"error": f"eglMakeCurrent {hex(egl.eglGetError())}", "configs": found.value}
    gl = ctypes.CDLL("libOpenGL.so.0")
    gl.glGetString.restype = ctypes.c_char_p
    pixel, began = (ctypes.c_ubyte * 4)(), time.monotonic()
    for _ in range(200):
        gl.glClearColor(*(ctypes.c_float(v) for v in (1.0, 0.0, 1.0, 1.0)))
        gl.glClear(0x4000)
        gl.glReadPixels(0, 0, 1, 1, 0x1908, 0x1401, pixel)
    took = time.monotonic() - began
    return {
        "renderer": (gl.glGetString(0x1F01) or b"").decode(),
        "pixel": list(pixel),
        "right": list(pixel) == [255, 0, 255, 255],
        "us_per_image": round(1e6 * took / 200, 1),
        "devices": count.value,
    }


DRAW = """
import json, os, sys
if 'cuda' in sys.argv:
    import torch; x = torch.ones(8, device='cuda'); torch.cuda.synchronize()
from benchmarks.gpu.mps import draw
found = draw()
if 'cuda' in sys.argv:
    found['sum'] = float((x * 2).sum())
print(json.dumps(found), flush=True)
if 'stay' in sys.argv: sys.stdin.read()
"""


def egl(facts: Noted) -> None:
    """EGL without MPS, beside a daemon, and with CUDA in the same process; whether EGL alone is a client."""
    from rlprof.overlap.quota.daemon import mps

    facts.attempt("without_mps", lambda: as_client(DRAW, inside=False))
    facts.attempt("with_cuda", lambda: as_client(DRAW, "cuda"))
    with mps() as daemon:
        before = daemon.clients()
        with subprocess.Popen(
            [sys.executable, "-c", DRAW, "stay"],
            env={**environment(), **daemon.environment()},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            facts["beside"] = _last_json(process.stdout.readline())
            facts["clients"] = {"before": before, "with_egl": daemon.clients(), "pid": process.pid}
            facts["err"] = process.communicate(timeout=20)[1][-1500:]


def tests(facts: Noted) -> None:
    """The tests that need a GPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "-rs"]
    done = subprocess.run(
        [*command, "tests/overlap/quota/test_gpu.py"],
        env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=LIMITS["tests"] - 5, check=False,
    )  # fmt: skip
    facts["code"], facts["out"], facts["err"] = done.returncode, done.stdout[-3000:], done.stderr[-1000:]


# the two commands ------------------------------------------------------------------------------------------


def work_of(kind: str, device: str) -> Callable[[int], None]:
    """A function that does so many operations of a kind and waits for them."""
    import torch

    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    if kind == "products":
        size, dtype = (4096, torch.bfloat16) if device == "cuda" else (128, torch.float32)
        w = torch.randn(size, size, device=device, dtype=dtype) / size**0.5

        def products(count: int) -> None:
            x = w
            for _ in range(count):
                x = x @ w
            wait()

        return products
    x = torch.ones(1 << (25 if device == "cuda" else 16), device=device)

    def elementwise(count: int) -> None:
        for _ in range(count):
            x.mul_(1.0000001)
        wait()

    return elementwise


def branch(kind: str, count: int, device: str) -> None:
    """One of the two commands."""
    from rlprof.overlap.quota import rounds

    work = work_of(kind, device)
    work(max(count // 10, 1))
    for _ in rounds():
        work(count)


def counts(device: str, products_s: float, elementwise_s: float) -> tuple[int, int]:
    """Operations that take about so long alone, measured here once: the work is the same under all quotas."""
    found = []
    for kind, wanted_s in (("products", products_s), ("elementwise", elementwise_s)):
        work, number, took_s = work_of(kind, device), 20, 0.0
        while took_s < 0.3:  # long enough for the clocks to rise
            number *= 2
            began = time.monotonic()
            work(number)
            took_s = time.monotonic() - began
        found.append(max(1, round(number * wanted_s / took_s)))
    return found[0], found[1]


def quota(facts: Noted, out: Path, seconds: float, device: str, mechanism: str) -> None:
    """`rlprof quota` on a chain of products beside elementwise kernels."""
    # two clients take turns kernel by kernel: B has twice as many, so that A has slack
    products, elementwise = counts(device, 0.12, 0.08)
    facts["products"], facts["elementwise"] = products, elementwise
    file = out / "quota.json"
    command = [sys.executable, "-m", "benchmarks.gpu.mps", "branch", "--device", device]
    a = " ".join([*command, "--kind", "products", "--count", str(products)])
    b = " ".join([*command, "--kind", "elementwise", "--count", str(elementwise)])
    found = rlprof(
        "quota", "--branch", f"A={a}", "--branch", f"B={b}", "--join", "all", "--mechanism", mechanism,
        "--budget", f"{seconds:.0f}s", "--timeout", "60s", "--format", "json", "-o", file, "--force",
        timeout_s=seconds + 5,
    )  # fmt: skip
    facts["run"] = {name: found[name] for name in ("code", "err", "took_s", "late") if name in found}
    if file.exists():
        facts["result"] = json.loads(file.read_text())


# all of it -------------------------------------------------------------------------------------------------

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
