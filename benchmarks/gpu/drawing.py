"""Time drawing of LIBERO by itself: every image read back alone, and images read back together.

    "$RLPROF_LIBERO_PYTHON" -m benchmarks.gpu.drawing --out OUT

Every image drawn whole and read back alone; read back together; and, as rlprof does, without what a camera
cannot see; beside them scenes without geoms, which cost what is not geometry.
One process with one GL context, then `--processes` with one each, as a rollout has them: how long an
environment of two images takes each way, and whether the images have the same bits. Each process of many
draws one environment a round, and a round ends with the last of them; the ways take turns. Written after
every step. About half a minute.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.common import ROOT, environment, machine, save
from rlprof.workloads.embodied.simulators.libero_render import ENVS_AT_ONCE, Painter, Picture, choose_gl
from rlprof.workloads.embodied.simulators.libero_sheet import Sheet

#: By name: whether images are read back together, and whether what cannot be seen is left out. The third is
#: what rlprof does; the last one draws no geoms at all: what is left is not geometry.
WAYS = {"alone": (False, False), "together": (True, False), "sparing": (True, True), "nothing": (True, False)}
#: Chunks that environments are moved by, so that views differ.
CHUNKS = 5


def prepare(folder: Path, task: int) -> None:
    """Save the model of a task, and what it looks like at some moments; needs no GL."""
    choose_gl("disabled")
    from rlprof.workloads.embodied.simulators.libero_env import ACTION_DIM, TaskEnv

    env = TaskEnv(task)
    importlib.import_module("mujoco").mj_saveModel(env.model, str(folder / "model.mjb"))
    draw = np.random.default_rng(0)
    record = env.start(0)
    seen = [env.view(record)]
    for _ in range(CHUNKS):
        record, _, views, _ = env.advance(record, draw.uniform(-1, 1, (5, ACTION_DIM)))
        seen.extend(views)
    np.save(folder / "views.npy", np.array(seen))
    env.close()


def child(folder: Path, backend: str, image: int, shadows: bool) -> None:
    """Draw as lines of the standard input say, ``WAY ENVS``, and answer with a line each.

    It has the milliseconds that it took, and of them those in which a buffer of several images was read.
    """
    choose_gl(backend)
    mujoco = importlib.import_module("mujoco")
    views = np.load(folder / "views.npy")
    model = mujoco.MjModel.from_binary_path(str(folder / "model.mjb"))
    painter = Painter({0: model}, cameras=2, image=image, shadows=shadows)

    def draw(way: str, envs: int) -> np.ndarray[Any, Any]:
        painter.at_once, painter.sparing = WAYS[way]
        painter._look.geomgroup[1] = way != "nothing"
        out = np.zeros((envs, 2, image, image, 3), dtype=np.uint8)
        painter.paint([Picture(k, 0, views[k % len(views)], out[k]) for k in range(envs)])
        return out

    many = 2 * ENVS_AT_ONCE + 1  # two full buffers, and one begun
    images = {way: draw(way, many) for way in WAYS if way != "nothing"}
    first = images["alone"]
    equal = [all(np.array_equal(first[k], other[k]) for other in images.values()) for k in range(many)]
    distinct = len({one.tobytes() for one in images["alone"]})
    gl = importlib.import_module("OpenGL.GL")
    renderer = gl.glGetString(gl.GL_RENDERER).decode()
    print(json.dumps({"equal": sum(equal), "of": many, "distinct": distinct, "gl": renderer}), flush=True)
    waited, read = [0.0], Sheet.read

    def timed_read(self: Sheet, rows: int) -> np.ndarray[Any, Any]:
        began = time.perf_counter()
        try:
            return read(self, rows)
        finally:
            waited[0] += time.perf_counter() - began

    setattr(Sheet, "read", timed_read)  # noqa: B010
    for line in sys.stdin:
        way, envs = line.split()
        waited[0], began = 0.0, time.perf_counter()
        if int(envs):
            draw(way, int(envs))
        took = time.perf_counter() - began
        print(json.dumps([took * 1e3, waited[0] * 1e3]), flush=True)
    painter.close()


class Drawers:
    """Processes that draw, with a GL context each."""

    def __init__(self, count: int, folder: Path, args: argparse.Namespace) -> None:
        command = [sys.executable, "-m", "benchmarks.gpu.drawing", "--child", str(folder)]
        command += ["--backend", args.backend, "--image", str(args.image), *["--plain"] * args.plain]
        self.each = [
            subprocess.Popen(
                command,
                cwd=ROOT,
                env={**environment(), "OMP_NUM_THREADS": "1", "LP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(count)
        ]

    def answers(self) -> list[Any]:
        """A line of each."""
        found = []
        for process in self.each:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"a process that draws has ended with code {process.wait(timeout=10)}")
            found.append(json.loads(line))
        return found

    def ask(self, order: str) -> tuple[float, list[list[float]]]:
        """All do the same: milliseconds until the last has answered, and what each says."""
        began = time.perf_counter()
        for process in self.each:
            assert process.stdin is not None
            process.stdin.write(order + "\n")
            process.stdin.flush()
        found = self.answers()
        return (time.perf_counter() - began) * 1e3, found

    def close(self) -> None:
        for process in self.each:
            assert process.stdin is not None
            with suppress(OSError):  # an order that one which has ended did not take
                process.stdin.close()
        for process in self.each:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=20)


def spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
    }


def measure(count: int, envs: int, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """All ways in so many processes, which draw so many environments each."""
    began = time.perf_counter()
    drawers = Drawers(count, folder, args)
    try:
        told = drawers.answers()
        found: dict[str, Any] = {
            "processes": count,
            "envs_of_each": envs,
            "start_s": round(time.perf_counter() - began, 2),
            "gl": told[0]["gl"],
            "images_equal": all(t["equal"] == t["of"] for t in told),
            "compared": told,
        }
        rounds: dict[str, list[float]] = {way: [] for way in WAYS}
        own: dict[str, list[float]] = {way: [] for way in WAYS}
        reading: dict[str, list[float]] = {way: [] for way in WAYS}
        limit, k = time.perf_counter() + args.seconds, 0
        while k < 3 or (time.perf_counter() < limit and k < args.rounds):
            for way in list(WAYS)[:: 1 if k % 2 else -1]:
                taken, each = drawers.ask(f"{way} {envs}")
                if k:  # the first one warms up
                    rounds[way].append(taken)
                    own[way].extend(took / envs for took, _ in each)
                    reading[way].extend(waited / envs for _, waited in each)
            k += 1
        for way in WAYS:
            found[way] = {
                "round_ms": spread(rounds[way]),
                "round_ms_per_env": round(statistics.median(rounds[way]) / count / envs, 3),
                "own_ms_per_env": spread(own[way]),
                "reading_ms_per_env": spread(reading[way]),
                "rounds": len(rounds[way]),
            }
        pause_ms = statistics.median(drawers.ask("alone 0")[0] for _ in range(5))
        found["empty_round_ms"] = round(pause_ms, 3)
        medians = {way: found[way]["round_ms"]["median"] for way in WAYS}
        found["ratio"] = round(medians["sparing"] / medians["alone"], 3)
        return found
    finally:
        drawers.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--backend", default="egl", help="egl or osmesa")
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--task", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="without shadows and multisampling")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=4.0, help="for the rounds of a step, at most")
    args = parser.parse_args()
    if args.child:
        child(args.child, args.backend, args.image, not args.plain)
        return 0
    if args.out is None:
        parser.error("--out is missing")
    args.out.mkdir(parents=True, exist_ok=True)
    path, began = args.out / "drawing.json", time.perf_counter()
    document: dict[str, Any] = {"argv": sys.argv[1:], "machine": machine(), "steps": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, args.task)
        document["prepare_s"] = round(time.perf_counter() - began, 2)
        print(f"-- LIBERO's task {args.task} is there after {document['prepare_s']} s", flush=True)
        for label, count, envs in (
            ("one process, 1 environment", 1, 1),
            ("one process, 16 environments", 1, 16),
            (f"{args.processes} processes, 1 environment each", args.processes, 1),
        ):
            try:
                found = {"ok": True, **measure(count, envs, folder, args)}
                line = ", ".join(
                    f"{way}: {found[way]['round_ms']['median']} ms a round"
                    f" (its own {found[way]['own_ms_per_env']['median']} an environment)"
                    for way in WAYS
                )
                line += f", {found['sparing']['reading_ms_per_env']['median']} of it (sparing) reading"
                line += f", ratio {found['ratio']}, bits equal: {found['images_equal']}, {found['gl']}"
            except Exception as error:
                traceback.print_exc()
                found = {"ok": False, "error": f"{type(error).__name__}: {error}"[:2000]}
                line = f"FAILED, {found['error']}"
            document["steps"][label] = found
            save(path, document)
            print(f"-- {label}: {line}; {time.perf_counter() - began:.1f} s so far", flush=True)
    steps = document["steps"].values()
    return 0 if all(s["ok"] and s["images_equal"] for s in steps) else 1


if __name__ == "__main__":
    # what is drawn with is chosen in each process of its own
    os.environ.pop("MUJOCO_GL", None)
    raise SystemExit(main())
