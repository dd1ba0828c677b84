"""The levers of embodied training on a GPU, each alone, then the graph with those that pay.

    python -m benchmarks.gpu.levers --out OUT --simulator libero --seconds 420 --levers cuda-graph,workers

It is `rlprof optimize embodied` with a probe before and a table after. Decisions and measurements are written
as they are made, so that a kill loses nothing; a later call with --resume goes on.
"""

from __future__ import annotations

import argparse
import os
import time
from contextlib import ExitStack
from typing import Any

from benchmarks.gpu.embodied_report import Report, configuration, workload_options


def probe(report: Report, device: str) -> None:
    """What levers rest on, in seconds."""
    with report.step("probe_streams") as found:
        import torch

        found["range"] = str(getattr(torch.cuda.Stream, "priority_range", lambda: "not told")())
        high = torch.cuda.Stream(device=device, priority=-1)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(high):
            found["priority"] = torch.cuda.current_stream().priority
        assert found["priority"] < 0
    with report.step("probe_capture") as found:
        import torch

        x, graph = torch.ones(1024, device=device), torch.cuda.CUDAGraph()
        aside = torch.cuda.Stream(device=device, priority=-1)  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=aside, capture_error_mode="thread_local"):
            y = x * 2
        graph.replay()
        torch.cuda.synchronize()
        found["sum"] = float(y.sum())
        assert found["sum"] == 2048


def run(args: argparse.Namespace, report: Report) -> None:
    """Probe, optimise, and show the ablation."""
    from rlprof.workloads.embodied.levers import wanted_levers
    from rlprof.workloads.embodied.optimize_run import Request, optimize_embodied

    began, config = time.monotonic(), configuration(args)
    if config.device.startswith("cuda"):
        probe(report, config.device)
    with report.step("optimise") as found:
        request = Request(
            config=config,
            out=args.out,
            spares=args.spares,
            activity=args.activity,
            resume=args.resume,
            force=not args.resume,
            rounds=args.rounds,
            targets=args.targets,
            alternatives=args.alternatives,
            budget_s=max(1.0, args.seconds - (time.monotonic() - began) - args.reserve),
            groups=(2,),
            pairs=args.pairs,
            local_pairs=args.local_pairs,
            levers=wanted_levers(args.levers, {}),
        )

        def say(text: str) -> None:
            print(f"   {time.monotonic() - began:.0f} s: {text[:300]}", flush=True)

        done = optimize_embodied(request, say=say)
        found["ended"], found["steps"] = done.result.ended, done.document["steps"]
        report.document["levers"] = done.document["levers"]
        print(done.summary, flush=True)
    for row in report.document.get("levers", ()):
        c = row["result"]
        times = (
            "" if c is None else f" {c['reference']['median_s']:.3f} -> {c['candidate']['median_s']:.3f} s"
        )
        print(
            f"== {row['lever']} {row['before']} -> {row['value']}:{times} {row['outcome']}, {row['reason']}",
            flush=True,
        )
    report.write()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add: Any = parser.add_argument
    workload_options(parser, "libero")
    add("--levers", help="as of rlprof optimize embodied; by default all")
    add("--seconds", type=float, default=420.0)
    add("--reserve", type=float, default=90.0, help="seconds for starting, recording and ending")
    add("--rounds", type=int, default=1)
    add("--targets", type=int, default=2)
    add("--alternatives", type=int, default=2)
    add("--pairs", type=int, default=5, help="of complete iterations; below five, medians decide")
    add("--local-pairs", type=int, default=5)
    add("--spares", type=int, default=1)
    add("--activity", default="auto")
    add("--resume", action="store_true")
    add("--mps", action="store_true", help="start an MPS daemon for the run")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    argv = {k: str(v) for k, v in vars(args).items() if k != "out"}
    report = Report(
        args.out / f"levers_{args.simulator}{'_mps' if args.mps else ''}.json",
        {"command": "levers", "argv": argv},
    )
    with ExitStack() as stack:
        if args.mps:
            from rlprof.overlap.quota.daemon import mps

            os.environ.update(stack.enter_context(mps(0)).environment())
        run(args, report)


if __name__ == "__main__":
    main()
