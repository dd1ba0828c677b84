"""A program to be captured: takes orders, answers each with one line of JSON.

Orders come on standard input, or one on the command line (``python -m benchmarks.gpu.program load 15``):

launch N [S]      N small kernels in S segments, one about every 100 us: bound by the host
queue N [S]       N kernels of about 95 us each in S segments, launched ahead: bound by the GPU
load SECONDS      nodes of different activity one after the other, each a range of known name
edges N           N matrix products with gaps, with the host's times before and after each
profile N         N small kernels under torch's profiler: how many of them it records
work N            rounds of host work between two kernels, instead of the calibrated number
quit
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

Answer = dict[str, Any]


def launch(count: int, segments: int = 1) -> Answer:
    """Launch in several segments; the fastest tells what the work takes when nobody interferes."""
    return _segments(_launch, count, segments)


def queue(count: int, segments: int = 1) -> Answer:
    """Launch as far ahead as the driver lets: the GPU is never idle, the host hardly matters."""
    return _segments(_queue, count, segments)


def _segments(run: Callable[[int], float], count: int, segments: int) -> Answer:
    walls = [run(count // segments) for _ in range(segments)]
    best = min(walls)
    return {"wall_s": best, "walls_s": walls, "kernels_per_s": count // segments / best}


def _queue(count: int) -> float:
    global BIG  # noqa: PLW0603
    if BIG is None:
        BIG = torch.zeros(50_000_000, device="cuda")
    torch.cuda.synchronize()
    began = time.monotonic_ns()
    for _ in range(count):
        BIG.add_(1.0)
    torch.cuda.synchronize()
    return (time.monotonic_ns() - began) / 1e9


def _launch(count: int) -> float:
    x = torch.zeros(1 << 18, device="cuda")
    torch.cuda.synchronize()
    began = time.monotonic_ns()
    for i in range(count):
        x.add_(1.0)
        # host work of a fixed amount, not a fixed time: a slowed program takes longer
        total = 0
        for k in range(WORK):
            total += k
        if i % 100 == 99:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return (time.monotonic_ns() - began) / 1e9


def set_work(rounds: int) -> None:
    """Do the same work as another program, whatever this one's calibration said."""
    global WORK  # noqa: PLW0603
    WORK = rounds


def calibrate(target_s: float = 100e-6) -> int:
    """Rounds of host work so that one kernel is launched about every `target_s`."""
    global WORK  # noqa: PLW0603
    WORK = 1000
    _launch(200)
    took = _launch(2000) / 2000
    base_work = WORK
    WORK = 0
    bare = _launch(2000) / 2000
    per_round = max(1e-9, (took - bare) / base_work)
    WORK = max(0, int((target_s - bare) / per_round))
    return WORK


WORK = 0
#: What `queue` works on; made when first asked for.
BIG: torch.Tensor | None = None

#: name, side of the square product, seconds of host sleep after it, repetitions within the node. A node whose
#: name ends in _graph launches all repetitions as one CUDA graph: the host does not matter to it.
NODES: tuple[tuple[str, int, float, int], ...] = (
    ("dense", 8192, 0.0, 20),
    ("medium", 1024, 0.0, 400),
    ("small", 256, 0.0, 2000),
    ("medium_graph", 1024, 0.0, 400),
    ("small_graph", 256, 0.0, 2000),
    ("gaps", 4096, 0.002, 10),
    ("idle", 0, 0.005, 6),
)


def load(seconds: float, annotate: Callable[[str], Any]) -> Answer:
    """Nodes of different SM activity, again and again."""
    sizes = {side for _, side, _, _ in NODES if side}
    mats = {side: torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for side in sizes}
    out = {side: torch.empty_like(m) for side, m in mats.items()}
    for side, m in mats.items():
        torch.mm(m, m, out=out[side])
    torch.cuda.synchronize()
    graphs = {name: _graph(mats[side], repeat) for name, side, _, repeat in NODES if name.endswith("_graph")}
    began, steps = time.monotonic_ns(), 0
    while time.monotonic_ns() - began < seconds * 1e9:
        with annotate("step"):
            for name, side, pause, repeat in NODES:
                with annotate(name):
                    if name in graphs:
                        graphs[name].replay()
                        torch.cuda.synchronize()
                        continue  # the next node
                    for _ in range(repeat):
                        if side:
                            torch.mm(mats[side], mats[side], out=out[side])
                        if pause:
                            if side:
                                torch.cuda.synchronize()
                            time.sleep(pause)
                    torch.cuda.synchronize()
        steps += 1
    return {"steps": steps, "start_ns": began, "end_ns": time.monotonic_ns()}


def _graph(m: torch.Tensor, repeat: int) -> torch.cuda.CUDAGraph:
    """A graph of products, run once."""
    out, graph = torch.empty_like(m), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeat):
            torch.mm(m, m, out=out)
    graph.replay()
    torch.cuda.synchronize()
    return graph


def edges(count: int) -> Answer:
    m = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(m)
    torch.mm(m, m, out=out)
    torch.cuda.synchronize()
    seen = []
    for _ in range(count):
        time.sleep(0.01)
        before = time.monotonic_ns()
        torch.mm(m, m, out=out)
        torch.cuda.synchronize()
        seen.append([before, time.monotonic_ns()])
    return {"edges": seen}


def profile(count: int) -> Answer:
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    x = torch.zeros(1 << 18, device="cuda")
    with torch_profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as p:
        for _ in range(count):
            x.add_(1.0)
        torch.cuda.synchronize()
    kernels = [e for e in p.events() if e.device_type == DeviceType.CUDA]
    return {"launched": count, "recorded": len(kernels)}


def annotator() -> Callable[[str], Any]:
    try:
        from rlprof.capture.annotate import annotate

        return annotate
    except Exception:  # torch's own marks do as well
        return torch.cuda.nvtx.range


def obey(word: str, rest: list[str]) -> Answer:
    if word == "launch":
        return launch(*(int(r) for r in rest))
    if word == "queue":
        return queue(*(int(r) for r in rest))
    if word == "work":
        set_work(int(rest[0]))
        return {"work": WORK}
    if word == "load":
        return load(float(rest[0]), annotator())
    if word == "edges":
        return edges(int(rest[0]))
    if word == "profile":
        return profile(int(rest[0]))
    return {"error": f"unknown order {word}"}


def main() -> None:
    torch.zeros(1, device="cuda")
    if len(sys.argv) > 1:
        print(json.dumps(obey(sys.argv[1], sys.argv[2:])), flush=True)
        return
    rounds = calibrate()
    print(json.dumps({"ready": True, "work": rounds, "torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "quit":
            break
        try:
            answer = obey(word, rest)
        except Exception as error:  # the order failed, the program goes on
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
