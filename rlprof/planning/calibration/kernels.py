"""Measuring single kinds of work: matrix products, copies, norms and activations, the optimizer."""

from __future__ import annotations

import itertools
from typing import Any

from rlprof.planning.calibration.device import Clock
from rlprof.planning.calibration.sweeps import Effort
from rlprof.planning.calibration.torch_module import torch_module
from rlprof.planning.shapes import ModelShape

#: Buffers take turns until this much memory was touched: more than any cache of a processor or GPU holds.
BEYOND_CACHES_BYTES = {"cuda": 256 * 2**20, "cpu": 64 * 2**20}


def gemm_s(key: dict[str, Any], clock: Clock, dtype: str, effort: Effort) -> list[float]:
    """Times of a product of (rows, inner) with the transpose of (columns, inner), as a linear layer does it.

    The weights take turns, so that they come from memory as they do in a model.
    """
    torch = torch_module()

    number = getattr(torch, dtype)
    rows, inner, columns = key["rows"], key["inner"], key["columns"]
    each = inner * columns * number.itemsize
    copies = max(1, min(1024, -(-BEYOND_CACHES_BYTES[clock.device.partition(":")[0]] // each)))
    with torch.no_grad():
        weights = torch.randn(copies, columns, inner, device=clock.device, dtype=number)
        x = torch.randn(rows, inner, device=clock.device, dtype=number)
        out = torch.empty(rows, columns, device=clock.device, dtype=number)
        turn = itertools.cycle(weights.unbind())

        def call() -> None:
            torch.mm(x, next(turn).t(), out=out)

        return clock.repeated(
            call, repeats=effort.repeats, section_s=effort.section_s, least_calls=copies if clock.cuda else 1
        )


def copy_s(key: dict[str, Any], clock: Clock, effort: Effort) -> list[float]:
    """Times of a copy within the memory of the device."""
    torch = torch_module()

    size = key["bytes"]
    source = torch.zeros(size // 4, device=clock.device)
    target = torch.zeros(size // 4, device=clock.device)  # written, so that its pages exist
    return clock.repeated(lambda: target.copy_(source), repeats=effort.repeats, section_s=effort.section_s)


def norms_s(key: dict[str, Any], clock: Clock, dtype: str, effort: Effort) -> list[float]:
    """Times of two norms and two residuals: what tensor ranks do not divide."""
    return nongemm_s(key, clock, dtype, effort, divided=False)


def nongemm_s(
    key: dict[str, Any], clock: Clock, dtype: str, effort: Effort, *, divided: bool = True
) -> list[float]:
    """Times of what a layer does beside products and attention: two norms, rotation, gate, two residuals.

    `divided`: also rotation and gate, which tensor ranks divide.
    """
    torch = torch_module()
    silu = torch_module("nn.functional").silu

    from rlprof.planning.calibration.transformer import norm, rotated

    shape = ModelShape(**key["shape"])
    b, t, number = key["sequences"], key["tokens"], getattr(torch, dtype)

    def some(*size: int) -> Any:
        return torch.randn(*size, device=clock.device, dtype=number)

    x, y, scale = some(b, t, shape.hidden), some(b, t, shape.hidden), some(shape.hidden)
    qk = some(b, t, shape.heads + shape.kv_heads, shape.head_dim)
    cos, sin = some(t, 1, shape.head_dim), some(t, 1, shape.head_dim)
    both = some(b, t, 2 * shape.ffn_hidden)

    def call() -> None:
        norm(x, scale)
        middle = x + y
        norm(middle, scale)
        _ = middle + y
        if divided:
            rotated(qk, cos, sin)
            gate, up = both.chunk(2, dim=-1)
            _ = silu(gate) * up

    with torch.no_grad():
        return clock.repeated(call, repeats=effort.repeats, section_s=effort.section_s)


def optimizer_s(key: dict[str, Any], clock: Clock, dtype: str, effort: Effort) -> list[float]:
    """Times of one mixed-precision Adam step; making the gradients anew each time is not counted."""
    torch = torch_module()

    from rlprof.planning.calibration.transformer import Adam

    number, width = getattr(torch, dtype), 1024
    rows = key["parameters"] // (width * 8)
    weights = tuple(torch.randn(rows, width, device=clock.device, dtype=number) for _ in range(8))
    adam = Adam([weights])
    times = []
    for turn in range(effort.repeats + 2):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        took = clock.once(adam.step)
        if turn >= 2:
            times.append(took)
    return times
