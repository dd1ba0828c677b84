"""Algorithm 1 on a GPU: optimise embodied training, then complete iterations of all orders in turn.

    python -m benchmarks.gpu.optimize --out OUT --simulator mujoco_warp --seconds 480

Makes one trainer, records it, bounds what overlap can gain, tries one overlap by hand, lets the optimiser
search, and runs the four schedules, the graph of each round and the native loop interleaved. Results and
medians are written after every step, so that a kill loses nothing; a step that fails says so and stops
nothing that does not need it. With ``--graph`` an earlier call's graph takes the place of the search.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.gpu.embodied_report import mps_daemon, said_in_a_line, workload_options
from benchmarks.gpu.optimize_run import Run
from benchmarks.gpu.turns import ANEW, BASELINES, NOT_AHEAD, WITHOUT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = functools.partial(parser.add_argument)
    workload_options(parser, "mujoco_arm")
    add("--parts", default="optimise,variants")
    add(
        "--variants",
        default=",".join((*BASELINES, "by hand", "optimised", ANEW, NOT_AHEAD)),
        help=f"orders; also without one lever, natively ({', '.join(n.replace(' ', '_') for n in WITHOUT)})"
        " or by the best graph (best_ before it)",
    )
    add("--counted", type=int, default=5, help="counted iterations of each order")
    add(
        "--counted-others",
        type=int,
        default=2,
        help="of ablations, and of baselines clearly slower than another",
    )
    add(
        "--same-iteration",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="put weights, optimiser and counters back before each iteration, so that all orders train the"
        " same one, and compare what they trained; otherwise training goes on",
    )
    add(
        "--replayed-calls",
        type=int,
        default=4,
        help="answers of each schedule and graph that are given again, evenly spread over an iteration",
    )
    add(
        "--start", type=Path, help="file of that iteration's start: begin there, or write it if there is none"
    )
    add("--seconds", type=float, default=480.0)
    add("--reserve", type=float, default=4.0, help="seconds to leave at the end")
    add("--optimise-seconds", type=float, default=300.0)
    add("--optimise-share", type=float, default=0.6, help="of the time left")
    add("--rounds", type=int, default=2)
    add("--targets", type=int, default=2)
    add("--alternatives", type=int, default=2)
    add("--epsilon", type=float, default=0.01)
    add("--groups", default="2")
    add("--window", type=int, default=4, help="iterations of a loop in a comparison")
    add("--outer-window", type=int, default=1, help="iterations of a loop around loops in a comparison")
    add("--local-pairs", type=int, default=1)
    add("--pairs", type=int, default=1, help="of complete iterations; 1: as in the paper")
    add("--spares", type=int, default=1, help="spare simulators: two epochs side by side")
    add("--warm", action="store_true", help="run each form of a comparison once before it is measured")
    add("--activity", default="auto")
    add("--graph", type=Path, help="a graph.json: run it instead of searching")
    add(
        "--stream-priorities",
        metavar="COMPONENT=N,...",
        help="priorities of CUDA streams in all graphs, as rollout=-1,vision=0: those below 0 go first",
    )
    add("--measured", type=Path, help="measurements.jsonl of an earlier call, which are not made again")
    add("--trainer-percent", type=int, help="with --mps: share of the SMs of policy and training")
    add("--rollout-share", type=int, help="an order with this share of the SMs for the rollout, in percent")
    add("--trainer-below", action="store_true", help="with --mps: simulators' kernels go before the policy's")
    add("--memory", action="store_true", help="measure the memory of calls first, and check it")
    add("--quota-trials", type=int, default=2, help="runs of the comparison under each level")
    add("--quota-share", type=float, default=0.5, help="of the time left")
    add(
        "--quota-sweep", type=int, help="then also measure every so many levels, in what is left of that time"
    )
    add("--level-step", type=int, default=4, help="percent between levels that are probed")
    add("--levels", help="percentages, in place of a probe")
    add(
        "--drawn",
        default="",
        help="further ways to draw, as rendering[:painters][+plain],...: by the graph, and natively",
    )
    add("--mps", action="store_true", help="start an MPS daemon for the run")
    add("--name", default="", help="added to the names of results")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with mps_daemon() if args.mps else nullcontext():
        run = Run(args)

        def interrupt(*_: Any) -> None:
            """As Ctrl-C: what was found is written, processes are ended, and nothing is begun."""
            run.ends = 0.0
            raise KeyboardInterrupt

        signal.signal(signal.SIGTERM, interrupt)
        if args.measured is not None and not run.measurements.exists():
            shutil.copyfile(args.measured, run.measurements)
        run.all()


if __name__ == "__main__":
    with said_in_a_line():
        main()
