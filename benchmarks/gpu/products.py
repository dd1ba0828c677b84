"""With which shares of the SMs products of matrices are right, and whether anything makes the others right.

    python -m benchmarks.gpu.products --out OUT
    python -m benchmarks.gpu.products --out OUT --percents 100 --rehearse      # on a processor

Under an MPS daemon of its own, one fresh client after another (`--at-once` for several): one client with
all SMs looks at all kinds of products that `rlprof.overlap.quota.products` knows in green contexts of each
part of the SMs; others under each share of MPS; then, with the shares under which some are wrong, again with
variables and settings that change how cuBLAS chooses its kernels, and by captured CUDA graphs.
`products.json` is written after every client.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.common import end_s, environment, machine, save

if TYPE_CHECKING:
    from torch import Tensor

    from rlprof.overlap.quota.products import WrongProduct

#: Ways to compute products, as variables of the client and an argument of it.
WAYS: dict[str, tuple[dict[str, str], str]] = {
    "as they are": ({}, "plain"),
    "captured": ({}, "captured"),
    "no workspace of cuBLAS": ({"CUBLAS_WORKSPACE_CONFIG": ":0:0"}, "plain"),
    "cublasLt": ({"TORCH_BLAS_PREFER_CUBLASLT": "1"}, "plain"),
    "32 SMs left out": ({}, "carveout=32"),
    "the SMs that are missing left out": ({}, "carveout=missing"),
}
#: SMs of the GPU, for the last of them.
ALL_SMS = 132
#: The way of a client that makes green contexts, and how often it measures a product in each.
GREEN, GREEN_RUNS = "green contexts", 20
#: The product that is timed: one that fills the GPU.
TIMED = (8960, 2048, 2048)


def client(how: str) -> dict[str, Any]:
    """Look at products in this process, in one way."""
    import torch

    from rlprof.overlap.quota.products import check_products

    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    if how.startswith("carveout="):
        sms = torch.cuda.get_device_properties(device).multi_processor_count if device != "cpu" else ALL_SMS
        value = how.partition("=")[2]
        torch._C._set_sm_carveout_experimental(ALL_SMS - sms if value == "missing" else int(value))
    if how != "captured" or device == "cpu":
        found = check_products(device)
    else:
        found = check_products(device, product=_captured)
    try:
        kernels = _kernels(found.wrong) if device != "cpu" else {}
    except RuntimeError as error:  # what is wrong is known all the same
        kernels = {"failed": str(error)[:200]}
    return found.to_dict() | {"kernels": kernels}


def parts_of_the_sms(seconds: float = math.inf) -> Iterator[dict[str, Any]]:
    """Products in green contexts, smallest parts last; all SMs are the process itself.

    No part is begun that would take longer than what is left of so many seconds.
    """
    from functools import partial

    from rlprof.overlap.green import SmShares
    from rlprof.overlap.quota.products import check_products

    shares, ends_s, longest_s = SmShares(), time.monotonic() + seconds, 0.0
    for percent, sms in reversed(shares.parts(0).percents):
        row: dict[str, Any] = {"percent": percent, "sms": sms}
        began_s = time.monotonic()
        if began_s + longest_s > ends_s:
            yield row | {"failed": "left out: no time"}
            continue
        try:
            with shares.current("products", 0, percent):
                for how, product in (("plain", None), ("captured", partial(_captured, shares=shares))):
                    looked = check_products("cuda:0", product=product)
                    row[how] = {k: v for k, v in looked.to_dict().items() if k != "sms"}
                row["time_ms"] = _time_ms()
        except Exception as error:  # the other parts tell as much
            row["failed"] = f"{type(error).__name__}: {str(error)[:200]}"
        longest_s = max(longest_s, time.monotonic() - began_s)
        yield row


def _answer(said: str | bytes | None) -> dict[str, Any]:
    """What a client says: its last line, or a part of the SMs in each; empty if it says nothing."""
    text = said.decode(errors="replace") if isinstance(said, bytes) else said or ""
    lines = []
    for line in text.splitlines():
        with suppress(ValueError):  # libraries print what they like, and the last line may be cut off
            lines.append(json.loads(line))
    found = [line for line in lines if isinstance(line, dict)]
    parts = [line["part"] for line in found if "part" in line]
    return {"parts": parts} if parts else (found or [{}])[-1]


def _time_ms() -> float:
    """Median time of a product in the current stream."""
    import statistics

    import torch

    rows, inner, columns = TIMED
    a = torch.ones(rows, inner, device="cuda:0", dtype=torch.bfloat16)
    b = torch.ones(inner, columns, device="cuda:0", dtype=torch.bfloat16)
    times = []
    for _ in range(GREEN_RUNS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        began.record()
        torch.mm(a, b)
        ended.record()
        ended.synchronize()
        times.append(float(began.elapsed_time(ended)))
    return round(statistics.median(times), 4)


def _captured(a: Any, b: Any, out: Any, shares: Any = None) -> None:
    """The product by a CUDA graph of its own, which writes into `out`, on SMs of the current stream."""
    import torch

    current = torch.cuda.current_stream()
    aside = None if shares is None else shares.beside(current)
    aside = aside or torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    spare = torch.empty_like(out)
    with torch.cuda.stream(aside):
        torch.mm(a, b, out=spare)  # cuBLAS sets itself up
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=aside):
        torch.mm(a, b, out=out)
    out.fill_(float("nan"))
    graph.replay()


def operands(one: WrongProduct, device: str) -> tuple[Tensor, Tensor]:
    """Matrices of a product, laid out as those that were looked at: it decides by which kernel."""
    import torch

    def ones(rows: int, columns: int, transposed: bool) -> Tensor:
        shape = (columns, rows) if transposed else (rows, columns)
        made = torch.ones(shape, device=device, dtype=torch.bfloat16)
        return made.T if transposed else made

    return (
        ones(one.rows, one.inner, one.kind == "gradient of weights"),
        ones(one.inner, one.columns, one.kind == "forward"),
    )


def _kernels(wrong: Iterable[WrongProduct]) -> dict[str, str]:
    """Kernels of the products that are wrong, by their kind and sizes."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    found = {}
    for one in wrong:
        a, b = operands(one, "cuda:0")
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            torch.mm(a, b)
            torch.cuda.synchronize()
        names = [e.key for e in seen.key_averages() if "nvjet" in e.key or "gemm" in e.key]
        of = f"{one.kind}, {one.rows} x {one.inner} x {one.columns}"
        found[of] = names[0] if names else "not seen"
    return found


class Run:
    """Clients, one after another, until the time is over."""

    def __init__(self, args: argparse.Namespace, mine: dict[str, str]) -> None:
        self.args, self.mine = args, mine
        self.ends = end_s(args.seconds)
        self.saving = Lock()  # clients end at the same time
        self.document: dict[str, Any] = {
            "command": " ".join(sys.argv[1:]),
            "machine": machine(),
            "at_once": args.at_once,
            "rows": [],
            "left_out": [],
        }

    def one(self, percent: int, way: str) -> None:
        """One client."""
        row: dict[str, Any] = {"percent": percent, "way": way}
        left_s = self.ends - time.monotonic()
        if left_s < self.args.client_seconds:
            with self.saving:
                self.document["left_out"].append(row)
            return
        variables, how = WAYS.get(way, ({}, "green"))
        share = {} if self.args.rehearse else {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent)}
        try:
            ran = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "benchmarks.gpu.products",
                    "--client",
                    how,
                    "--seconds",
                    f"{left_s - 5}",
                ],
                env={**environment(), **self.mine, **variables, **share},
                capture_output=True,
                text=True,
                timeout=left_s,
                check=False,
            )
            row |= _answer(ran.stdout)
            if ran.returncode or len(row) == 2:
                row["failed"] = ran.stderr.splitlines()[-1:] or f"it ended with {ran.returncode}, silent"
        except subprocess.TimeoutExpired as error:  # parts that it had looked at by then are kept
            row |= {**_answer(error.stdout), "failed": str(error)[-200:]}
        with self.saving:
            self.document["rows"].append(row)
            self.save()
        wrong = row.get("failed", f"{len(row.get('wrong', ()))} of {row.get('tried')} wrong")
        for part in row.get("parts", ()):
            looked = [
                f"{how} {len(part[how]['wrong'])} wrong" for how in ("plain", "captured") if how in part
            ]
            wrong = part.get("failed", f"{', '.join(looked)}, {part.get('time_ms')} ms")
            print(f"{part['percent']:3} % {part['sms']} SMs, {way}: {wrong}", flush=True)
        if "parts" not in row or "failed" in row:
            wrong = row.get("failed", wrong)
            print(f"{percent:3} % {row.get('sms')} SMs, {way}: {wrong}", flush=True)

    def save(self) -> None:
        save(self.args.out / "products.json", self.document)

    def all(self) -> None:
        with ThreadPoolExecutor(self.args.at_once) as pool:
            first = [] if self.args.rehearse else [(100, GREEN)]
            first += [(p, "as they are") for p in self.args.percents]
            list(pool.map(lambda one: self.one(*one), first))
            bad = [r["percent"] for r in self.document["rows"] if r.get("wrong")]
            # the largest one first: it is the one that somebody would want
            wanted = [(p, w) for p in sorted(bad, reverse=True)[:2] for w in list(WAYS)[1:]]
            if self.args.rehearse:
                wanted = [(100, way) for way in ("captured", "cublasLt")]
            list(pool.map(lambda one: self.one(*one), wanted))
        self.save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add: Any = parser.add_argument
    add("--out", type=Path, default=Path())
    add("--percents", type=lambda t: [int(p) for p in t.split(",")], default=[*range(100, 7, -4)])
    add("--at-once", type=int, default=3, help="clients at the same time")
    add("--seconds", type=float, default=90.0)
    add(
        "--client-seconds", type=float, default=12.0, help="what a client takes: none is begun with less left"
    )
    add("--rehearse", action="store_true", help="without a daemon, on a processor")
    add("--client", metavar="WAY", help="look in this process, and print what was found")
    args = parser.parse_args()
    if args.client == "green":
        for part in parts_of_the_sms(args.seconds):  # each at once, if it is killed
            print(json.dumps({"part": part}), flush=True)
        return
    if args.client:
        sys.stdout.write(json.dumps(client(args.client)) + os.linesep)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    from rlprof.overlap.quota.daemon import mps

    with nullcontext() if args.rehearse else mps(0) as daemon:
        Run(args, {} if daemon is None else daemon.environment()).all()


if __name__ == "__main__":
    main()
