"""The figures of a capture, computed a second time with sqlite3 and plain loops, sharing no code with rlprof.

For captures with SM counters of one GPU, push/pop ranges and a node called ``iteration``.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Figures:
    """Per (pid, path): invocations and the sums that the report is made of."""

    count: dict = field(default_factory=lambda: defaultdict(int))
    total_ns: dict = field(default_factory=lambda: defaultdict(int))
    self_ns: dict = field(default_factory=lambda: defaultdict(int))
    in_iteration_ns: dict = field(default_factory=lambda: defaultdict(int))
    active: dict = field(default_factory=lambda: defaultdict(float))
    covered: dict = field(default_factory=lambda: defaultdict(float))
    leaf: dict = field(default_factory=dict)
    iterations: list = field(default_factory=list)
    below_50: float = 0.0


def compute(path: Path) -> Figures:
    con = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    ranges = con.execute(
        "SELECT globalTid, start, end, text FROM NVTX_EVENTS WHERE eventType = 59"
        " ORDER BY globalTid, start, -end"
    ).fetchall()
    (metric,) = con.execute(
        "SELECT metricId FROM TARGET_INFO_GPU_METRICS WHERE metricName LIKE 'SMs Active%'"
    ).fetchone()
    samples = con.execute(
        "SELECT timestamp, value FROM GPU_METRICS WHERE metricId = ? ORDER BY timestamp", (metric,)
    ).fetchall()
    con.close()
    steps = sorted(b[0] - a[0] for a, b in itertools.pairwise(samples))
    median = steps[len(steps) // 2]
    held = [
        (t, min(samples[i + 1][0] if i + 1 < len(samples) else t + median, t + int(1.5 * median)), v / 100)
        for i, (t, v) in enumerate(samples)
    ]

    out, stack, invocations = Figures(), [], []
    for thread, start, end, text in ranges:
        while stack and (stack[-1][0] != thread or stack[-1][2] <= start):
            stack.pop()
        name = "/".join([*(s[3] for s in stack), text])
        key = ((thread >> 24) & 0xFFFFFF, name)
        if stack:
            out.self_ns[stack[-1][4]] -= end - start
            out.leaf[stack[-1][4]] = False
        out.leaf.setdefault(key, True)
        out.count[key] += 1
        out.total_ns[key] += end - start
        out.self_ns[key] += end - start
        invocations.append((key, start, end))
        stack.append((thread, start, end, text, key))
    out.iterations = [(s, e) for (_, name), s, e in invocations if name == "iteration"]

    def integral(lo, hi):
        area = length = below = 0.0
        for s, e, v in held:
            if e <= lo:
                continue
            if s >= hi:
                break
            part = min(e, hi) - max(s, lo)
            area, length = area + v * part, length + part
            below += part if v < 0.5 else 0
        return area, length, below

    low = total = 0.0
    for lo, hi in out.iterations:
        _, length, below = integral(lo, hi)
        total, low = total + length, low + below
    out.below_50 = low / total
    for key, start, end in invocations:
        for lo, hi in out.iterations:
            a, b = max(start, lo), min(end, hi)
            if b > a:
                out.in_iteration_ns[key] += b - a
                area, length, _ = integral(a, b)
                out.active[key] += area
                out.covered[key] += length
    return out
