"""The levers of embodied training, each measured alone in complete iterations: those that tell most first.

    python -m benchmarks.gpu.levers --out OUT --simulator libero --seconds 230
    python -m benchmarks.gpu.levers --out OUT --simulator mujoco_arm --preset tiny --device cpu --workers 1

Levers of the program are tried by the native order, the others by a graph: one that an earlier call selected
(`--graph`), or two rollout epochs side by side, which is what the searches on an H200 have selected. There is
no search here, and no checkpoint. Each lever is one step; the table is written after it. A comparison that is
whole is kept in `measurements_levers.jsonl`: a later call with `--measured FILE` does not make it again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.gpu.common import end_s
from benchmarks.gpu.embodied_report import (
    Gpu,
    Report,
    configuration,
    mps_daemon,
    said_in_a_line,
    workload_options,
)
from benchmarks.load import OthersLoad

#: Those that tell most for their time first: to draw otherwise, many processes are started.
ORDER = (
    "cuda-graph,priorities,overlap-rendering=egl-one,groups,in-turn,nice,core-turns,workers,client-priority,"
    "rendering"
)
#: What a lever of the program is compared by; others by the graph.
NATIVE = ("cuda-graph", "rendering", "workers")


class Levers:
    """One trainer, and its levers one after another."""

    def __init__(self, args: argparse.Namespace) -> None:
        from rlprof.workloads.embodied.levers import wanted_levers

        self.args, self.config = args, configuration(args)
        self.wanted = wanted_levers(args.levers, {})  # refused before anything runs
        self.ends = end_s(args.seconds) - args.reserve
        argv = {k: str(v) for k, v in vars(args).items() if k != "out"}
        name = f"levers_{args.simulator}{args.name}.json"
        facts = {
            "command": "levers",
            "config": self.config.to_dict(),
            "argv": argv,
            "levers": [],
            "left_out": [],
        }
        self.report = Report(args.out / name, facts)
        self.gpu = Gpu(self.config.device)
        self.here: Any = None
        self.selected: Any = None

    @property
    def left_s(self) -> float:
        return float(max(0.0, self.ends - time.monotonic()))

    def all(self) -> None:
        """Probe, record, and every lever for which there is time."""
        if self.gpu.cuda:
            probe(self.report, self.config.device)
        with ExitStack() as stack:
            self.build(stack)
            if self.selected is None:
                return
            load = OthersLoad()
            stack.callback(load.end)
            for name in self.wanted:
                self.one(name, load)
        self.report.document["others_busy_frac"] = busy(load.shares)
        self.report.write()

    def build(self, stack: ExitStack) -> None:
        """A trainer, a recording of two iterations, the graph, and an iteration of each order."""
        from rlprof.overlap.optimize.graph_file import GraphFile
        from rlprof.overlap.optimize.graph_levers import Selected
        from rlprof.overlap.optimize.steps import derive, step
        from rlprof.workloads.embodied.optimize import embodied

        with self.report.step("build_and_record") as found:
            scratch = self.args.out / "activity"
            scratch.mkdir(parents=True, exist_ok=True)
            began = time.monotonic()
            self.here = stack.enter_context(
                embodied(
                    self.config,
                    scratch,
                    spares=self.args.spares,
                    activity="off",
                    say=lambda text: print(f"   {time.monotonic() - began:.0f} s: {text}", flush=True),
                )
            )
            found.update(self.gpu.memory())
        if self.here is None:
            return
        with self.report.step("graph") as found:
            workload = self.here.workload
            if self.args.graph is not None:
                kept = GraphFile.read(self.args.graph)
                graph, steps = kept.derive(workload.native), kept.steps
            else:
                epoch = "iteration/generate_rollouts/rollout_epoch"
                steps = (step("split_temporal", epoch, groups=2), step("interleave", epoch))
                graph = derive(workload.native, steps)
            found["steps"] = self.report.document["graph"] = [str(one) for one in steps]
            found["native_s"] = round(workload.iteration(None).time_s, 3)
            found["graph_s"] = round(workload.iteration(graph).time_s, 3)
            self.selected = Selected(workload, graph, steps)

    def one(self, name: str, load: OthersLoad) -> None:
        """One lever: each of its values in turn with what is in use."""
        from rlprof.analysis.trials import Rule
        from rlprof.overlap.optimize.levers import measure_levers
        from rlprof.overlap.optimize.log import DecisionLog
        from rlprof.overlap.optimize.store import Store, key_of
        from rlprof.unavailable import Unavailable
        from rlprof.workloads.embodied.levers import setting_levers
        from rlprof.workloads.embodied.optimize_search import graph_levers

        here, args, native = self.here, self.args, name in NATIVE
        only = {name: self.wanted[name]}
        levers = setting_levers(here, only) if native else graph_levers(here, self.selected, only)
        # who asks for `rendering` gets that of the graph as well: it is a lever of its own here
        levers = [one for one in levers if one.name == name]
        times = self.report.document["steps"]["graph"]
        need_s = (2 * args.pairs + 1) * times["native_s" if native else "graph_s"]
        applies = any(not isinstance(one.others(), Unavailable) for one in levers)
        if applies and self.left_s < need_s:
            print(f"== {name}: LEFT OUT, it needs {need_s:.0f} s and {self.left_s:.0f} are left", flush=True)
            self.report.document["left_out"].append(name)
            self.report.write()
            return
        with self.report.step(name) as found:
            before = len(load.shares)

            def key() -> str:
                return str(here.key if native else key_of(here.key, self.selected.graph.hash))

            def iterate() -> Any:
                if native:
                    return f"native: {here.simulator.key}", here.workload.iteration(None)
                return self.selected.iterate()

            log = DecisionLog(
                args.out / f"decisions_levers{args.name}.jsonl",
                listen=lambda t: print(f"   {t[:300]}", flush=True),
            )
            measured = measure_levers(
                levers,
                iterate,
                key=key,
                rule=Rule(confidence=0.9, most_pairs=args.pairs),
                least_gain_frac=args.epsilon,
                log=log,
                store=Store(self.measurements),
                budget_s=self.left_s,
            )
            here.simulator.drop_all_but(None)
            others = busy(load.shares[before:])
            for row in measured.rows:
                # of what was measured before, nobody knows the load here
                known = None if row.reason.endswith("(measured before)") else others
                self.report.document["levers"].append(
                    {**row.to_dict(), "order": "native" if native else "graph", "others_busy_frac": known}
                )
            if measured.stopped:  # as Ctrl-C: nothing more is begun
                self.ends = 0.0
            found["gpu"] = self.gpu.state()
            found["rows"] = [f"{row.value}: {row.outcome}" for row in measured.rows]
            print(f"== {name}: {', '.join(found['rows'])}", flush=True)

    @property
    def measurements(self) -> Path:
        found: Path = self.args.out / f"measurements_levers{self.args.name}.jsonl"
        return found


def busy(shares: list[float]) -> dict[str, float] | None:
    """Share of the cores that other programs kept busy; None: it was too short to say."""
    return {"median": statistics.median(shares), "most": max(shares)} if shares else None


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


def levers_table(result: dict[str, Any]) -> str:
    """Conditions and rows of the levers, each alone."""
    from rlprof.overlap.optimize.log import setting

    machine, config = result["machine"], result["config"]
    gpu = str(machine.get("gpu") or "").split("\n")[0].split(",")[0]
    graph = "; ".join(f"`{one}`" for one in result.get("graph", ()))
    graph = graph.replace("iteration/generate_rollouts/", "")
    workers = f"{config['workers']} process{'' if config['workers'] == 1 else 'es'} of the simulator at first"
    out = [
        f"{machine['date']}, {gpu or 'no GPU'}, {machine['cores']} cores, {config['policy']} and"
        f" {config['simulator']}, preset {config['preset']}, {config['envs']} environments,"
        f" {config['rollout_epochs']} x {config['chunks']} chunks, {workers}. Complete iterations in turn;"
        f" the graph has {graph}.",
        "",
        "| lever | change | by | without it, s: median (quartiles) | with it, s | gain, by pairs | pairs"
        " | others' load, % of the cores: median (most) | |",
        "|---|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for row in result["levers"]:
        c = row["result"]
        change = (
            ""
            if c is None and row["value"] is None
            else f"{setting(row['before'])} -> {setting(row['value'])}"
        )
        if c is None:
            out.append(f"| {row['lever']} | {change} | | | | | | | {row['outcome']}: {row['reason']} |")
            continue
        sides = (
            f"{c[side]['median_s']:.3f} ({c[side]['low_s']:.3f}..{c[side]['high_s']:.3f})"
            for side in ("reference", "candidate")
        )
        load = row.get("others_busy_frac")
        shown = "" if load is None else f"{100 * load['median']:.0f} ({100 * load['most']:.0f})"
        cells = [
            row["lever"],
            change,
            row["order"],
            *sides,
            f"{c['gain_frac']:+.1%}",
            str(len(c["pairs"])),
            shown,
        ]
        out.append(f"| {' | '.join([*cells, row['outcome'] + ': ' + row['reason']])} |")
    out += [f"| {name} | | | | | | | | left out: no time was left |" for name in result.get("left_out", ())]
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add: Any = parser.add_argument
    workload_options(parser, "libero")
    add("--levers", default=ORDER, help="as of rlprof optimize embodied, in this order")
    add("--seconds", type=float, default=230.0)
    add("--reserve", type=float, default=4.0, help="seconds to leave at the end")
    add("--pairs", type=int, default=5, help="of complete iterations at most; below five, medians decide")
    add("--epsilon", type=float, default=0.01, help="least gain, as a share of the iteration")
    add("--spares", type=int, default=1)
    add("--graph", type=Path, help="a graph.json of an earlier call")
    add("--measured", type=Path, help="measurements_levers.jsonl of an earlier call: not made again")
    add("--mps", action="store_true", help="start an MPS daemon for the run")
    add("--name", default="", help="added to the names of results")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with ExitStack() as stack:
        if args.mps:
            stack.enter_context(mps_daemon())
        levers = Levers(args)

        def interrupt(*_: Any) -> None:
            """As Ctrl-C: the row at work ends, simulators are ended, and nothing more is begun."""
            raise KeyboardInterrupt

        signal.signal(signal.SIGTERM, interrupt)
        if args.measured is not None and not levers.measurements.exists():
            shutil.copyfile(args.measured, levers.measurements)
        levers.all()


if __name__ == "__main__":
    with said_in_a_line():
        main()
