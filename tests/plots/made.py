"""Traces made for charts and reports: one with labels that try to break a page, one of many ranges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from rlprof.trace.tables import conform
from rlprof.trace.trace import Loaded, Trace, TraceMeta

#: Labels that a capture may hold and that must stay text wherever they are shown.
HOSTILE = (
    "</script><script>window.broken=1</script>",
    "<img src=x onerror=window.broken=1>",
    "\"quoted\" 'single' & amp; `tick` ${1+1} \\u003c \\",
    "снег ☃ 数据 \U0001f600 e\u0301",
    "right\u202eto left\u2028line\x00\x07",
    "x" * 10_000,
    "href=http://evil.example/x",
)


def trace_of(meta: TraceMeta, **tables: pl.DataFrame) -> Trace:
    """A trace of given tables; columns that are left out are null."""
    loaders = {
        name: (lambda columns, name=name, rows=rows: Loaded(conform(rows, name, columns)))
        for name, rows in tables.items()
    }
    return Trace(meta, loaders)  # type: ignore[arg-type]


def hostile_trace(devices: int = 1) -> Trace:
    """Three iterations, each holding one range of every hostile name, with counters on every device."""
    ms = 1_000_000
    rows = []
    for i in range(3):
        start = i * 100 * ms
        rows.append((start, start + 90 * ms, "iteration"))
        rows += [
            (start + (1 + 10 * k) * ms, start + (9 + 10 * k) * ms, name) for k, name in enumerate(HOSTILE)
        ]
    starts, ends, names = zip(*rows, strict=True)
    at = np.arange(0, 300 * ms, ms)
    samples = [
        pl.DataFrame(
            {
                "source": "sm_counters",
                "device": d,
                "start_ns": at,
                "end_ns": at + ms,
                "active_frac": (at // ms * 7 % 100) / 250,
            }
        )
        for d in range(devices)
    ]
    evil = HOSTILE[0]
    return trace_of(
        TraceMeta("nsys-sqlite", (f"{evil}.sqlite",), 0, 300 * ms, product=evil, schema_version=evil),
        ranges=pl.DataFrame(
            {
                "start_ns": starts,
                "end_ns": ends,
                "name": names,
                "style": "push_pop",
                "process": 1,
                "thread": 7,
                "domain": "",
                "cut": False,
            }
        ),
        activity=pl.concat(samples),
        kernels=pl.DataFrame(
            {
                "start_ns": at,
                "end_ns": at + ms // 3,
                "device": 0,
                "stream": 7,
                "process": 1,
                "correlation_id": np.arange(len(at)),
                "name": evil,
                "blocks": 4,
                "kind": "kernel",
            }
        ),
        devices=pl.DataFrame(
            {"device": list(range(devices)), "name": [evil] * devices, "sm_count": [132] * devices}
        ),
        processes=pl.DataFrame(
            {
                "process": [1],
                "pid": [1],
                "label": [evil],
                "file": ["a.sqlite"],
                "devices": [list(range(devices))],
            }
        ),
    )


def busy_trace(ranges: int = 40_000) -> Trace:
    """Many short ranges on several threads, far more than a chart holds, and no activity at all."""
    thread = np.arange(ranges) % 40
    start = np.arange(ranges) // 40 * 1_000
    return trace_of(
        TraceMeta("chrome-jsonl", ("many.jsonl",), 0, int(start[-1]) + 1_000),
        ranges=pl.DataFrame(
            {
                "start_ns": start,
                "end_ns": start + 400,
                "name": [f"op {chr(97 + i % 5)}" for i in range(ranges)],
                "style": "push_pop",
                "process": 1,
                "thread": thread,
                "domain": "",
                "cut": False,
            }
        ),
        processes=pl.DataFrame({"process": [1], "pid": [1], "label": ["rank 0"], "file": ["many.jsonl"]}),
    )


def renamed(trace: Trace, files: tuple[str, ...]) -> Trace:
    """The trace under other file names."""
    return replace(trace, meta=replace(trace.meta, files=files))
