"""Time LIBERO by itself: start, reset and a chunk, physics and drawing apart, for each way of drawing.

    python -m benchmarks.gpu.libero_probe --out OUT --envs 16 --workers 16

A variant is a rendering with options: `egl-one+every+plain+w8` draws after every action, without shadows, and
has 8 processes in place of `--workers`. The result is written after every variant; one that fails says so and
stops nothing. Those that are in OUT already are left out, so that a run can go on.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.common import machine, save

VARIANTS = ("egl+every", "egl-one+every", "egl+every+plain", "egl-one+every+plain", "osmesa+every")


def memory_mb() -> int | None:
    """Memory of the GPU in use."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    try:
        return int(subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def timed(call: Callable[[], Any], times: int) -> dict[str, Any]:
    """Seconds of calls."""
    each = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        each.append(round(time.perf_counter() - began, 5))
    return {"median_s": statistics.median(each), "each_s": each}


def measure(variant: str, args: argparse.Namespace) -> dict[str, Any]:
    """Start a variant, and time its parts."""
    from rlprof.workloads.embodied.contracts import GlobalStep
    from rlprof.workloads.embodied.simulators.libero_start import start

    rendering, *options = variant.split("+")
    workers = next((int(o[1:]) for o in options if o[:1] == "w" and o[1:].isdigit()), args.workers)
    found: dict[str, Any] = {"gpu_memory_before_mb": memory_mb(), "workers": workers}
    found["most_envs_in_one"] = -(-args.envs // workers)
    began = time.perf_counter()
    simulator: Any = start(
        args.envs,
        workers=workers,
        rendering=rendering,
        cameras=args.cameras,
        image=args.image,
        tasks=args.tasks,
        every_action="every" in options,
        shadows=False if "plain" in options else None,
        timeout_s=args.timeout,
        start_timeout_s=args.start_timeout,
    )
    try:
        found["start_s"] = round(time.perf_counter() - began, 3)
        print(f"   started in {found['start_s']} s", flush=True)
        # every initial state is new the first time, and remembered later
        found["reset_new"] = timed(lambda: simulator.reset(GlobalStep(0), 0), 1)
        found["reset_known"] = timed(lambda: simulator.reset(GlobalStep(0), 0), args.times)
        found["draw_one_frame"] = timed(simulator.render, args.times)
        draw = np.random.default_rng(0)
        shape = (args.envs, simulator.spec.chunk_steps, simulator.spec.action_dim)
        parts: dict[str, list[float]] = {"physics": [], "reward": [], "render": []}
        for k in range(args.times + 1):
            actions = draw.uniform(-1, 1, shape).astype(np.float32)
            calls: dict[str, Callable[[], Any]] = {
                "physics": lambda: simulator.physics(actions),  # noqa: B023
                "reward": simulator.reward,
                "render": simulator.render,
            }
            for name, call in calls.items():
                taken = timed(call, 1)["median_s"]
                if k:  # the first one warms up
                    parts[name].append(taken)
        found |= {f"{k}_s": statistics.median(v) for k, v in parts.items()} | {"parts_each_s": parts}
        found["chunk"] = timed(lambda: simulator.step(actions), args.times)
        half = np.arange(args.envs // 2 or 1)
        found["chunk_half"] = timed(lambda: simulator.step(actions[: len(half)], half), args.times)
        seen = simulator.render()
        found["state_finite"] = bool(np.isfinite(seen.state).all())
        if seen.images is not None:
            found["image_mean"], found["image_std"] = float(seen.images.mean()), float(seen.images.std())
            rows = np.concatenate(np.concatenate(seen.images[:4], axis=1), axis=1)
            (args.out / f"libero_{variant}.png").write_bytes(png(rows))
        found["gpu_memory_mb"] = memory_mb()
    finally:
        began = time.perf_counter()
        simulator.close()
        found["close_s"] = round(time.perf_counter() - began, 3)
    return found


def png(image: np.ndarray[Any, Any]) -> bytes:
    """An image as a PNG file; nothing but numpy is needed."""
    height, width, _ = image.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], axis=1).tobytes()

    def part(name: bytes, data: bytes) -> bytes:
        check = zlib.crc32(name + data).to_bytes(4, "big")
        return len(data).to_bytes(4, "big") + name + data + check

    size = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes((8, 2, 0, 0, 0))
    body = part(b"IHDR", size) + part(b"IDAT", zlib.compress(lines)) + part(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--cameras", type=int, default=2)
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--start-timeout", type=float, default=120.0)
    parser.add_argument("--seconds", type=float, default=1e9, help="start no variant after this")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    path, began = args.out / "libero_probe.json", time.monotonic()
    document: dict[str, Any] = {"argv": sys.argv[1:], "machine": machine(), "variants": {}}
    if path.exists():
        document["variants"] = json.loads(path.read_text())["variants"]
    document["gl"] = {
        k: os.environ.get(k) for k in ("MUJOCO_EGL_DEVICE_ID", "__EGL_VENDOR_LIBRARY_FILENAMES")
    }
    for variant in args.variants.split(","):
        if document["variants"].get(variant, {}).get("ok"):
            print(f"-- {variant}: there already", flush=True)
            continue
        if time.monotonic() - began > args.seconds:
            print(f"-- {variant}: LEFT OUT, no time", flush=True)
            continue
        print(f"-- {variant}", flush=True)
        try:
            found = {"ok": True, **measure(variant, args)}
        except Exception as error:
            traceback.print_exc()
            found = {"ok": False, "error": f"{type(error).__name__}: {error}"[:2000]}
        document["variants"][variant] = found
        save(path, document)
        shown = {k: v["median_s"] if isinstance(v, dict) and "median_s" in v else v for k, v in found.items()}
        shown.pop("parts_each_s", None)
        print("   " + ", ".join(f"{k} {v}" for k, v in shown.items()), flush=True)
    return 0 if any(v["ok"] for v in document["variants"].values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
