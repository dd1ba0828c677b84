"""What works beside an MPS daemon: steps of `benchmarks.gpu.mps`."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time

from benchmarks.gpu.common import ROOT, environment
from benchmarks.gpu.mps_facts import Facts, Noted, last_json

#: Most seconds of the tests that need a GPU.
TESTS_S = 55


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
        return last_json(done.stdout) | {"code": done.returncode, "err": done.stderr[-2000:]}


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
                facts[name] = last_json(done.stdout) | {"code": done.returncode, "err": done.stderr[-1500:]}
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
from benchmarks.gpu.mps_beside import draw
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
            facts["beside"] = last_json(process.stdout.readline())
            facts["clients"] = {"before": before, "with_egl": daemon.clients(), "pid": process.pid}
            facts["err"] = process.communicate(timeout=20)[1][-1500:]


def tests(facts: Noted) -> None:
    """The tests that need a GPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "-rs"]
    done = subprocess.run(
        [*command, "tests/overlap/quota/test_gpu.py"],
        env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=TESTS_S, check=False,
    )  # fmt: skip
    facts["code"], facts["out"], facts["err"] = done.returncode, done.stdout[-3000:], done.stderr[-1000:]
