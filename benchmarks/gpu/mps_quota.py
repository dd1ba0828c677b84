"""The two commands that `rlprof quota` tunes, and the step of `benchmarks.gpu.mps` that tunes them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.gpu.mps_facts import Noted, rlprof


def work_of(kind: str, device: str) -> Callable[[int], None]:
    """A function that does so many operations of a kind and waits for them."""
    import torch

    wait: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else lambda: None
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
