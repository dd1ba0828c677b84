"""Measurements made for tests: what a machine of known constants would give, with noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from rlprof.planning.calibration.fit_links import coefficients
from rlprof.planning.calibration.observation import Observation
from rlprof.planning.calibration.predict import hardware_of, predicted_peak_bytes, predicted_s
from rlprof.planning.calibration.raw import Machine, Measurement, Point, Raw
from rlprof.planning.calibration.sweeps import (
    forward_points,
    kernel_points,
    link_points,
    validation_points,
)

MACHINE = Machine("cuda", "Invented GPU", 2, 80_000_000_000, "bfloat16", 2, "nccl", {"torch": "2"})
#: Constants of the invented machine; products reach more than a transformer does.
TRUE = {
    "peak_flops": 400e12,
    "memory_bandwidth": 3e12,
    "gamma_m": 150.0,
    "gamma_k": 300.0,
    "collective.intra_node.alpha_s": 6e-6,
    "collective.intra_node.bandwidth": 2e11,
    "p2p.intra_node.alpha_s": 3e-6,
    "p2p.intra_node.bandwidth": 1.5e11,
}
GEMM_PEAK = 550e12
#: What the printed formulas do not have, of a machine that has all of it.
EXTRAS = {
    "layer_s": 40e-6,
    "elementwise_vectors": 60.0,
    "logits_moves": 8.0,
    "head_reads_frac": 1.0,
    "kv_reads_factor": 1.4,
    "launch_s": 400e-6,
    "training_launch_s": 6e-3,
    "optimizer_bytes": 40.0,
}
PRODUCT_S = 3e-6
DATE = "2026-01-02T03:04:05+00:00"


def observation(point: Point, seconds: float = 1.0, **more: Any) -> Observation:
    """An observation of a point."""
    return replace(Observation(point.kind, point.key, seconds, 0.01, 5, 1, {}, None, DATE), **more)


def true_s(point: Point, extras: Mapping[str, float] | None = None) -> float:
    """Time of a point on the invented machine; with extras of one that needs them."""
    key, o = point.key, observation(point)
    more = dict(extras or {})
    if point.kind == "copy":
        return 2 * float(key["bytes"]) / TRUE["memory_bandwidth"]
    if point.kind == "gemm":
        rows, inner, columns = (float(key[n]) for n in ("rows", "inner", "columns"))
        width = min(inner, columns)
        eta = rows / (rows + TRUE["gamma_m"]) * width / (width + TRUE["gamma_k"])
        moved = 2 * (inner * columns + rows * inner + rows * columns)
        product_s = PRODUCT_S if more else 0.0
        return (
            max(2 * rows * inner * columns / (GEMM_PEAK * eta), moved / TRUE["memory_bandwidth"]) + product_s
        )
    if point.kind == "nongemm" and more:
        vector = 2.0 * key["sequences"] * key["tokens"] * o.shape.hidden
        return more["elementwise_vectors"] * vector / TRUE["memory_bandwidth"]
    if point.kind == "nongemm":
        return 50e-6 * key["sequences"] * key["tokens"] / (8 * 512)
    if point.kind == "norms":
        return 0.3 * true_s(Point("nongemm", key), extras)
    if point.kind == "optimizer":
        return more.get("optimizer_bytes", 18) * float(key["parameters"]) / TRUE["memory_bandwidth"]
    if "ranks" in key:
        kind = "p2p" if point.kind == "p2p" else "collective"
        a, b = coefficients(o)
        alpha, bandwidth = (TRUE[f"{kind}.intra_node.{what}"] for what in ("alpha_s", "bandwidth"))
        return a * alpha + b / bandwidth
    if point.kind == "forward_graph":
        return predicted_s(o, hardware_of(TRUE | more | {"launch_s": 0.0}), 2)
    seconds = predicted_s(o, hardware_of(TRUE | more), 2)
    if point.kind == "decode_step_eager":
        return max(seconds, o.shape.layers * more.get("launch_s", 0.0))
    return seconds


def raw(
    noise: float = 0.0,
    *,
    seed: int = 0,
    links: bool = True,
    operators: bool = False,
    extras: Mapping[str, float] | None = None,
) -> Raw:
    """All measurements of the invented machine; `noise` is a standard deviation, relative."""
    random = np.random.default_rng(seed)
    points = [*kernel_points("cuda", "full"), *forward_points("cuda", "full")]
    points += link_points("cuda", 2, "full") if links else []
    points += validation_points("cuda", "full") if operators else []
    found = []
    for point in points:
        # what is wrong with a visit is wrong with all its times
        seconds = true_s(point, extras) * np.exp(noise * random.standard_normal())
        times = tuple(float(seconds * (1 + 0.1 * noise * x)) for x in random.standard_normal(5))
        peak = None
        if operators and point.kind in ("inference", "generation", "training"):
            peak = round(predicted_peak_bytes(observation(point), 2) * 1.05)
        found.append(Measurement(point.kind, point.key, 0, times, {}, peak, DATE))
    return Raw(MACHINE if links else replace(MACHINE, count=1, backend=""), tuple(found))


def write(path: Any, raw: Raw) -> None:
    """Write raw measurements as a file."""
    from rlprof.planning.calibration.raw import RawWriter

    with RawWriter(path, raw.machine) as writer:
        for m in raw.measurements:
            writer.add(m)


def as_dict(value: Any) -> dict[str, Any]:
    """A dataclass as plain values."""
    return asdict(value)
