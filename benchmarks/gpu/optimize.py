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
import re
import shutil
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.gpu.bounds import Profiled, available_cores, spreads
from benchmarks.gpu.embodied_report import (
    Gpu,
    Report,
    configuration,
    mps_daemon,
    said_in_a_line,
    shortened,
    workload_options,
)
from benchmarks.gpu.solo import Solo, Use, works

EPOCH = "iteration/generate_rollouts/rollout_epoch"
CHUNK = f"{EPOCH}/chunk"
#: The native loop without `keep_prefix`: what that gains by itself.
ANEW = "prefixes anew"
#: The optimised graph without resets ahead, where the others have them: what those gain by themselves.
NOT_AHEAD = "resets not ahead"
#: Schedules of the baseline; `native` is the colocated loop, in which everything is a node.
BASELINES = ("native", "colocated-pipe", "hybrid", "hybrid-pipe")


def ways_to_draw(text: str, config: Any) -> dict[str, dict[str, Any]]:
    """Values of the configuration for each way to draw of `--drawn`; refused before anything runs."""
    found = {}
    for way in filter(None, text.split(",")):
        drawn, plain, _ = way.partition("+plain")  # without shadows and multisampling: other images
        rendering, _, painters = drawn.partition(":")
        changes = {
            "rendering": rendering,
            "painters": int(painters) if painters else None,
            "shadows": config.shadows is not False and not plain,
        }
        replace(config, **changes)
        found[way] = changes
    return found


def stream_priorities(text: str | None) -> dict[str, int]:
    """Priorities of CUDA streams by component, of `--stream-priorities`; refused before anything runs."""
    from rlprof.workloads.embodied.errors import ConfigurationError
    from rlprof.workloads.embodied.nodes import ACTOR, ENV, HOST, ROLLOUT, VISION

    known, found = (ENV, ROLLOUT, ACTOR, HOST, VISION), {}
    for part in filter(None, (text or "").split(",")):
        component, _, value = (word.strip() for word in part.partition("="))
        if component in found:
            raise ConfigurationError(f"two stream priorities of {component}", hint="give each once")
        if component not in known or not re.fullmatch(r"0|-[0-9]+", value):
            raise ConfigurationError(
                f"a stream priority {part!r}",
                hint=f"give rollout=-1,vision=0; of {', '.join(known)}; 0, or below for those that go first",
            )
        found[component] = int(value)
    return found


class Run:
    """One trainer: optimised, and driven in every order."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.config = args, configuration(args)
        self.ways = ways_to_draw(args.drawn, self.config)
        self.streams = stream_priorities(args.stream_priorities)
        self.ends: float = time.monotonic() + args.seconds
        facts = {
            "command": "optimize",
            "config": self.config.to_dict(),
            "argv": {k: str(v) for k, v in vars(args).items() if k != "out"},
            "iterations": [],
        }
        self.report = Report(args.out / f"optimize_{args.simulator}{args.name}.json", facts)
        self.gpu = Gpu(self.config.device)
        self.here: Any = None
        self.seen: Any = None
        self.graphs: dict[str, Any] = {"native": None}
        self.longest_s: dict[str, float] = {}
        self.memory = False
        self.native_profile: Any = None
        self.least: Any = None
        self.profiled: Profiled | None = None
        #: What native iterations took of cores and of the GPU, for the bound.
        self.uses: dict[str, Use] = {}
        self.steps: Any = ()
        self.by_hand_steps: Any = ()
        self.levels: Any = ()
        self.shares: dict[str, int] = {}
        #: Keys of the simulators that draw elsewhere, by the order that has them.
        self.drawn: dict[str, Any] = {}
        self.drivers: dict[str, Any] = {}

    @property
    def measurements(self) -> Path:
        """What the search has measured."""
        found: Path = self.args.out / f"measurements{self.args.name}.jsonl"
        return found

    @property
    def left_s(self) -> float:
        return self.ends - time.monotonic() - float(self.args.reserve)

    def all(self) -> None:
        with ExitStack() as stack:
            self.probe()
            self.build(stack)
            if self.here is None:
                return
            try:
                self.first()
                if self.args.graph is None:
                    self.by_hand()
                self.meter()
                if self.args.graph is not None:
                    self.given()
                elif "optimise" in self.args.parts.split(","):
                    self.optimise()
                if "quotas" in self.args.parts.split(","):
                    self.quotas()
                if "variants" in self.args.parts.split(","):
                    self.variants()
            finally:
                for driver in self.drivers.values():
                    driver.close()
                self.summary()

    def probe(self) -> None:
        """What everything rests on, in seconds."""
        with self.report.step("probe_packages") as found:
            import importlib.util

            for name in ("torch", "numpy", "pyarrow", "orjson", "polars", "transformers", "mujoco"):
                found[name] = importlib.util.find_spec(name) is not None
        with self.report.step("probe_optimiser") as found:
            # on simulated time: imports, and every decision, without polars and without a GPU
            from benchmarks.rl_programs import make
            from rlprof.overlap.optimize import optimize
            from rlprof.overlap.optimize.simulated import SimulatedWorkload

            program = make(2)
            result = optimize(SimulatedWorkload(program.graph, program.model))
            found["steps"] = [str(s) for s in result.steps]
            assert result.steps
        with self.report.step("probe_device") as found, self.own_share():
            torch = self.gpu.torch
            x = torch.ones(512, 512, device=self.config.device)
            found["sum"] = float((x @ x).sum())
            found["state"] = str(self.gpu.state())
            found.update(self.gpu.memory())

    @contextmanager
    def own_share(self) -> Iterator[None]:
        """Variables of MPS for this process alone, which reads them when it makes its context."""
        percent = self.args.trainer_percent
        mine = {} if percent is None else {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent)}
        mine |= {"CUDA_MPS_CLIENT_PRIORITY": "1"} if self.args.trainer_below else {}
        os.environ.update(mine)
        try:
            yield
        finally:
            for name in mine:
                del os.environ[name]

    def build(self, stack: ExitStack) -> None:
        """Simulators, policy, and a recording of two iterations."""
        from rlprof.workloads.embodied.optimize import embodied
        from rlprof.workloads.embodied.record import watch

        with self.report.step("build_and_record") as found:
            scratch = self.args.out / "activity"
            scratch.mkdir(parents=True, exist_ok=True)
            began = time.monotonic()

            def say(what: str) -> None:
                print(f"   {time.monotonic() - began:.1f} s: {what}", flush=True)

            here = stack.enter_context(
                embodied(self.config, scratch, spares=self.args.spares, activity=self.args.activity, say=say)
            )
            native = here.workload.native
            found["calls"], found["native"] = len(native), native.hash
            found["activity"] = type(here.workload.activity).__name__
            found["no_activity"] = getattr(here.workload.activity, "reason", None)
            found["opaque"] = dict(native.opaque)
            found.update(self.gpu.memory())
            self.prioritise(here)
            found["stream_priorities"] = str(self.streams)
            self.here = here
            self.seen = watch(here.trainer)
            if self.config.keep_prefix:
                self.graphs[ANEW] = None

    def prioritise(self, here: Any) -> None:
        """Let streams of graphs have their priorities; what is measured with others is not reused."""
        from rlprof.overlap.optimize.store import key_of

        if self.streams:
            here.workload.set_stream_priorities(self.streams)
            here.workload.key = key_of(here.workload.key, [f"{c}={p}" for c, p in self.streams.items()])

    def first(self) -> None:
        """One native iteration, call by call: how long all takes, and what overlap can gain at most."""
        from rlprof.overlap.optimize.store import Store, key_of

        workload = self.here.workload
        times: list[Any] = []
        with self.report.step("native_profile") as found:
            began_ns = time.monotonic_ns()
            with Solo(self.config.device, self.here.simulator) as solo:
                self.native_profile = workload.profile(workload.native)
                ended_ns = time.monotonic_ns()
                solo.wait()
            self.seen.take(0)
            self.longest_s["native"] = (ended_ns - began_ns) / 1e9
            found["wall_s"] = round(self.native_profile.measurement.time_s, 3)
            found["source"] = self.native_profile.source
            found.update(solo.to_dict())
            times = call_times(workload)
            if times:  # relative to the readings of the GPU's utilisation
                began_ns, ended_ns = times[0].start_ns, max(t.end_ns for t in times)
                found["first_call_s"] = round(solo.since_began(began_ns), 3)
            self.uses["profile"] = solo.use(began_ns, ended_ns)
            # the search begins with what was profiled here
            store = Store(self.measurements)
            key = key_of(workload.key, "profile", workload.native.hash)
            store.put(key, "profile", self.native_profile.to_dict())
        if "profile" not in self.uses:
            return
        with self.report.step("bound") as found:
            from rlprof.workloads.embodied.nodes import ENV
            from rlprof.workloads.embodied.sharing import CUDA_SIMULATORS

            self.profiled = Profiled(
                workload.native,
                self.native_profile.windows,
                works(solo.readings, times) if times else (),
                simulator=ENV,
                slices=not (self.args.mps and self.config.simulator in CUDA_SIMULATORS),
                cores=available_cores(),
            )
            self.bound()
            for name, one in self.least.items():
                found[name] = f"{one.least_s:.2f} s ({one.binding})"
                limits = (*one.limits, *one.assumed)
                print(f"   {name}: " + ", ".join(str(limit) for limit in limits), flush=True)
                found["unknown"] = str(one.unknown)

    def bound(self) -> None:
        """Bounds by all native iterations that were read until now; see `benchmarks.gpu.bounds`."""
        if self.profiled is None:
            return
        found = spreads(self.profiled, list(self.uses.values()))
        self.least = {name: one.median for name, one in found.items()}
        self.report.document["native_use"] = {of: use.to_dict() for of, use in self.uses.items()}
        self.report.document["bound"] = {name: one.to_dict() for name, one in found.items()}

    def by_hand(self) -> None:
        """One overlap without any search: of two epochs with a spare simulator, else of two halves."""
        from rlprof.overlap.optimize.graph_file import GraphFile
        from rlprof.overlap.optimize.steps import derive, step

        with self.report.step("by_hand") as found:
            steps = (step("split_spatial", CHUNK, groups=2), step("interleave", CHUNK))
            if self.args.spares:  # whole batches, two epochs side by side
                steps = (step("split_temporal", EPOCH, groups=2), step("interleave", EPOCH))
            self.by_hand_steps = steps
            self.graphs["by hand"] = derive(self.here.workload.native, steps)
            found["streams"] = len(self.graphs["by hand"].streams)
            kept = GraphFile.of(
                self.here.workload.native,
                self.graphs["by hand"],
                steps,
                spares=self.args.spares,
                stream_priorities=self.streams,
            )  # for a later call, should the search find nothing
            kept.write(self.args.out / f"by_hand{self.args.name}.json")
        if "by hand" in self.graphs:
            self.iteration("by hand", "warm", warm=True)

    def meter(self) -> None:
        """One native iteration under a meter of memory, for rule L7."""
        if self.here.free_bytes is None or not self.args.memory:
            return
        with self.report.step("memory") as found:
            self.here.workload.measure_memory()
            self.seen.take(0)
            known = self.here.workload.call_bytes() or {}
            largest = sorted(known.items(), key=lambda item: -item[1])[:5]
            found["free_gb"] = round(self.here.free_bytes / 1e9, 2)
            found["largest_gb"] = str([(n.rpartition("/")[2], round(b / 1e9, 3)) for n, b in largest])
            self.memory = True

    def given(self) -> None:
        """A graph that an earlier call has selected."""
        from rlprof.overlap.optimize.graph_file import GraphFile
        from rlprof.overlap.optimize.steps import derive

        with self.report.step("given_graph") as found:
            kept = GraphFile.read(self.args.graph)
            self.graphs["optimised"] = kept.derive(self.here.workload.native)
            self.steps = kept.steps
            found["steps"] = [str(s) for s in kept.steps]
            if self.args.stream_priorities is None:  # those that it was selected with
                self.streams = dict(kept.facts.get("stream_priorities") or {})
                self.prioritise(self.here)
            found["stream_priorities"] = str(self.streams)
            # what its first round had found, for Fig 14
            by_round = kept.facts.get("round_steps", [len(kept.steps)])
            self.report.document["given"] = {"accepted": len(by_round), "steps": found["steps"]}
            first, *more = by_round
            if more:
                self.graphs["round 1"] = derive(self.here.workload.native, kept.steps[:first])
                self.graphs["round 2"] = self.graphs["optimised"]
        if "optimised" in self.graphs:
            self.iteration("optimised", "warm", warm=True)

    def optimise(self) -> None:
        """Algorithm 1, in a share of the time that is left."""
        from rlprof.analysis.trials import Rule
        from rlprof.overlap.optimize import Options, optimize
        from rlprof.overlap.optimize.graph_file import GraphFile
        from rlprof.overlap.optimize.log import DecisionLog
        from rlprof.overlap.optimize.result import document
        from rlprof.overlap.optimize.store import Store

        args = self.args
        with self.report.step("optimise") as found:
            budget_s = min(args.optimise_seconds, args.optimise_share * self.left_s)
            options = Options(
                targets=args.targets,
                alternatives=args.alternatives,
                rounds=args.rounds,
                epsilon=args.epsilon,
                groups=tuple(int(g) for g in args.groups.split(",")),
                iterations=args.window,
                outer_iterations=args.outer_window,
                warm_up=args.warm,
                local=Rule(confidence=0.9, most_pairs=args.local_pairs),
                validation=Rule(confidence=0.9, most_pairs=args.pairs),
                combinations=2,
                budget_s=budget_s,
                memory_bytes=self.here.free_bytes if self.memory else None,
            )
            log = DecisionLog(
                args.out / f"decisions{args.name}.jsonl", listen=lambda t: print(f"   {t[:300]}", flush=True)
            )
            store = Store(self.measurements)
            result = optimize(self.here.workload, options, log=log, store=store)
            if result.steps and not result.stopped:
                result = self.in_turn(result, options, log, store)
            self.seen.take(0)  # records of the iterations that were trained here are of no further use
            made = document(
                result, log.entries, {"config": self.config.to_dict(), "options": options.to_dict()}
            )
            # timelines are the largest part: whole only in the file of their own
            self.report.document["optimisation"] = {
                k: v for k, v in made.items() if k not in ("timelines", "decisions")
            }
            _write(args.out / f"optimisation{args.name}.json", made)
            for number, one in enumerate(result.rounds, 1):
                if one.accepted:
                    self.graphs[f"round {number}"] = one.after
            if result.steps:
                self.graphs["optimised"], self.steps = result.graph, result.steps
                facts = {
                    "spares": args.spares,
                    "round_steps": _steps_by_round(result),
                    "stream_priorities": self.streams,
                }
                kept = GraphFile.of(result.native, result.graph, result.steps, **facts)
                kept.write(args.out / f"graph{args.name}.json")
            found["steps"], found["ended"] = [str(s) for s in result.steps], result.ended
            found["net_s"], found["gain_s"] = result.net_overhead_s, result.gain_s

    def in_turn(self, result: Any, options: Any, log: Any, store: Any) -> Any:
        """The lever of the selected graph that needs no other simulators: whether copies take turns."""
        from rlprof.overlap.optimize.graph_levers import InTurn, Selected
        from rlprof.overlap.optimize.levers import measure_levers
        from rlprof.overlap.optimize.store import key_of

        workload = self.here.workload
        selected = Selected(workload, result.graph, result.steps)
        measured = measure_levers(
            [InTurn(selected)],
            selected.iterate,
            key=lambda: key_of(workload.key, selected.graph.hash),
            rule=options.validation,
            least_gain_frac=options.epsilon,
            log=log,
            store=store,
            budget_s=max(0.0, options.budget_s - result.total_s),
        )
        return replace(result.including(measured), graph=selected.graph, steps=selected.steps)

    def quotas(self) -> None:
        """Algorithm 2 for the selected graph: the simulator's share of the SMs, under MPS."""
        from rlprof.analysis.trials import Rule
        from rlprof.overlap.quota.clients import choose_gpu, list_gpus, probe_levels
        from rlprof.workloads.embodied.quota_file import QuotaFile
        from rlprof.workloads.embodied.quotas import processes, tune
        from rlprof.workloads.embodied.sharing import CUDA_SIMULATORS

        args = self.args
        name = "optimised" if "optimised" in self.graphs else "by hand"
        if name not in self.graphs:
            return
        with self.report.step("levels") as found:
            if args.levels:  # percentages; stands in for a probe where there is no GPU
                from rlprof.overlap.quota.levels import Level

                self.levels = tuple(Level(int(p), int(p)) for p in args.levels.split(","))
            else:
                probed = probe_levels(choose_gpu(list_gpus(), 0), dict(os.environ), step=args.level_step)
                self.levels = probed.levels
            found["levels"] = str([(v.amount, v.setting) for v in self.levels])
        if not self.levels:
            return
        with self.report.step("quotas") as found:
            client = self.config.simulator in CUDA_SIMULATORS or bool(args.levels)
            reason = "" if client else f"{self.config.simulator} is no CUDA client"
            steps = self.steps or self.by_hand_steps
            result = tune(
                self.here.workload,
                self.graphs[name],
                steps,
                self.here.simulator,
                self.levels,
                processes(self.here.simulator, 0, client=client, reason=reason),
                trials=args.quota_trials,
                rule=Rule(confidence=0.9, most_pairs=args.pairs),
                budget_s=args.quota_share * self.left_s,
                sweep_every=args.quota_sweep,
                say=lambda text: print(f"   {text}", flush=True),
            )
            self.seen.take(0)
            self.report.document["quotas"] = result.to_dict()
            QuotaFile(result.quotas, result.reason).write(args.out / f"quotas{args.name}.json")
            found["quotas"], found["reason"] = str(result.quotas), result.reason
            if result.search is not None and result.level is None:
                best = result.search.best_level  # shown in turn with q0, whatever the validation said
                if best != self.levels[-1]:
                    self.shares["best level"] = best.setting
            elif result.level is not None:
                self.shares["best level"] = result.level.setting
            if "best level" in self.shares:
                self.graphs["with quota"] = self.graphs[name]

    def variants(self) -> None:
        """Complete iterations of every order in turn; those that only complete the picture get fewer."""
        self.draw_elsewhere()
        if self.config.reset_ahead and (best := self.graphs.get("optimised", self.graphs.get("by hand"))):
            self.graphs[NOT_AHEAD] = best
        names = self.names()
        for turn in range(self.args.counted + 1):
            for name in names:
                if turn == 0 and name in self.longest_s:
                    continue  # it has run before: warm
                short = turn == 0 and name not in self.graphs
                if turn > self.args.counted_others and self.settled(name):
                    continue
                known = self.longest_s.get(name, max(self.longest_s.values(), default=0.0))
                need_s = (0.4 if short else 1.1) * known
                if self.left_s < need_s:
                    print(f"   {name}: LEFT OUT, {need_s:.0f} s are not left", flush=True)
                    continue
                self.iteration(name, str(turn), warm=turn == 0, short=short)
                self.summary(show=False)

    def draw_elsewhere(self) -> None:
        """The optimised order, and the native one, with images drawn in other ways (`--drawn`)."""
        for text, changes in self.ways.items():
            for name in ("optimised", "native"):
                if name in self.graphs:
                    self.graphs[f"{name}, {text}"] = self.graphs[name]
                    self.drawn[f"{name}, {text}"] = tuple(changes.items())

    def names(self) -> list[str]:
        """Orders to run, each graph once."""
        wanted = self.args.variants.replace("_", " ").split(",")  # shell scripts split options at spaces
        names = [n for n in wanted if n in self.graphs or n in BASELINES]
        names += [n for n in (*self.drawn, "with quota") if n in self.graphs]
        rounds = [n for n in self.graphs if n.startswith("round ")]
        names += rounds[:1] if len(rounds) > 1 else []  # one round: it is the optimised graph
        first: dict[str, str] = {}  # a graph that has several names runs under the one that says most
        for name in ("optimised", *rounds[:1], "by hand"):
            if (graph := self.graphs.get(name)) is not None:
                first.setdefault(graph.hash, name)
        always = (*BASELINES, *self.drawn, ANEW, NOT_AHEAD, "with quota")
        return [n for n in names if n in always or n in first.values()]

    def settled(self, name: str) -> bool:
        """Whether more iterations would decide nothing: an ablation, or a baseline that is clearly slower."""
        if name in ("native", "optimised", "with quota"):
            return False
        if name in self.drawn and name.startswith("optimised"):  # the fastest of them goes on
            best = {n: min(w) for n, w in self.walls().items() if n.startswith("optimised")}
            return name in best and best[name] > 1.01 * min(best.values())
        if name in self.graphs:
            return name != "by hand" or "optimised" in self.graphs
        walls = self.walls()
        others = [w for n, w in walls.items() if n in BASELINES and n != name]
        return name in walls and any(min(walls[name]) > 1.03 * max(w) for w in others)

    def walls(self) -> dict[str, list[float]]:
        """Seconds of the counted iterations of each order."""
        found: dict[str, list[float]] = {}
        for row in self.report.document["iterations"]:
            if not row["warm_up"]:
                found.setdefault(row["variant"], []).append(row["wall_s"])
        return found

    def iteration(self, name: str, turn: str, *, warm: bool = False, short: bool = False) -> None:
        """Train one iteration in an order; a short one warms up what a schedule needs."""
        from rlprof.reproduce.rose.samples import summary
        from rlprof.workloads.embodied.ahead import ResetsAhead
        from rlprof.workloads.embodied.contracts import GlobalStep
        from rlprof.workloads.embodied.drivers import make_driver
        from rlprof.workloads.embodied.graph_driver import PlacedDriver
        from rlprof.workloads.embodied.record import replay_answers
        from rlprof.workloads.embodied.runner import measured_iteration
        from rlprof.workloads.embodied.sharing import sharing

        here = self.here
        with self.report.step(f"{name}_{turn}") as found, shortened(here.trainer, short):
            config = self.config if name in self.graphs else replace(self.config, schedule=name)
            driver: Any
            share = self.shares.get("best level") if name == "with quota" else self.drawn.get(name)
            if name not in self.graphs:  # under MPS a hybrid schedule divides the GPU
                share = sharing(config).simulator_percent
            if here.simulator.key != share:
                here.simulator.use(share, beside=name in self.graphs)
            here.trainer.rollout.policy.keeps_prefix = self.config.keep_prefix and name != ANEW
            if name in self.graphs:
                here.resets.drop()
                resets = ResetsAhead(()) if name == NOT_AHEAD else here.resets
                driver = PlacedDriver(here.workload, here.trainer, self.graphs[name], resets)
                driver.prepare(GlobalStep(here.counter.step))
            else:
                here.workload.place(None)
                here.resets.drop()
                if short or name not in self.drivers:  # a short one is of another shape
                    self.drivers[name] = make_driver(here.trainer, config, here.counter.step)
                driver = self.drivers.pop(name) if short else self.drivers[name]
            began = time.monotonic()
            read = self.config.device if name == "native" and not warm else None
            try:
                with nullcontext() if read is None else Solo(read, here.simulator) as solo:
                    measured = measured_iteration(here.trainer, driver, config, self.seen, here.counter.step)
                    if solo is not None:
                        solo.wait()
                here.counter.step += 1
            finally:
                if name in self.graphs or short:
                    driver.close()
                here.trainer.rollout.policy.keeps_prefix = self.config.keep_prefix
                if config.stage_schedule.offload:
                    here.trainer.rollout.reload(self.config.rollout_device or self.config.device)
                    here.trainer.actor.reload(self.config.device)
            if config.stage_schedule.offload:
                self.capture_again(measured.result["trajectories"][0].observations[0])
            if not short:
                self.longest_s[name] = time.monotonic() - began
            span = measured.spans["iteration"]
            active = here.workload.activity.between(span.start_ns, span.end_ns)
            row = {**measured.row, "variant": name, "turn": turn, "warm_up": warm, "short": short}
            row["sm_activity"] = None if active is None else active.mean(span.start_ns, span.end_ns)
            row["over_time"] = None if active is None else summary(active, measured.spans)
            row |= {**self.gpu.memory(), "gpu": self.gpu.state()}
            self.report.document["iterations"].append(row)
            found["wall_s"], found["sm_activity"] = round(row["wall_s"], 3), row["sm_activity"]
            found.update({k: round(v, 3) for k, v in row["phases_s"].items()})
            found["differences"] = str(row.get("semantic_differences"))
            if solo is not None:
                self.uses[f"turn {turn}"] = solo.use(span.start_ns, span.end_ns)
                found.update(solo.to_dict())
                self.bound()
        if warm and found.get("ok") and name in self.graphs and self.graphs[name] is not None:
            with self.report.step(f"{name}_replay") as found:
                step = GlobalStep(here.counter.step - 1)
                again = replay_answers(here.trainer, measured.result["trajectories"], step, most_calls=4)
                found.update(asdict(again))

    def capture_again(self, seen: Any) -> None:
        """Answer untimed: the weights have moved, and who comes next would wait for CUDA graphs."""
        from rlprof.workloads.embodied.contracts import GlobalStep
        from rlprof.workloads.embodied.nodes import ROLLOUT

        policy = self.here.trainer.rollout.policy
        own, cuda = type(policy), self.gpu.torch.cuda
        for priority in {0, self.streams.get(ROLLOUT, 0)}:  # of the native loop, and of graphs
            stream = (
                cuda.Stream(self.config.device, priority=priority) if priority and self.gpu.cuda else None
            )
            with cuda.stream(stream):  # of None: the current one
                own.act(policy, seen, own.noise(policy, seen, GlobalStep(0), 0, 0))
            self.gpu.wait()

    def summary(self, *, show: bool = True) -> None:
        """Medians of the counted iterations, and what the optimised order gains over the best other one."""
        say = print if show else _nothing
        rows: dict[str, list[dict[str, Any]]] = {}
        for row in self.report.document["iterations"]:
            if not row["warm_up"]:
                rows.setdefault(row["variant"], []).append(row)
        table: dict[str, Any] = {}
        for name, of in rows.items():
            walls = [r["wall_s"] for r in of]
            active = [r["sm_activity"] for r in of if r["sm_activity"] is not None]
            table[name] = {
                "iterations": len(of),
                "wall_s": round(statistics.median(walls), 3),
                "wall_range_s": [round(min(walls), 3), round(max(walls), 3)],
                "steps_per_s": round(statistics.median(r["simulator_steps_per_s"] for r in of), 3),
                "sm_activity": round(statistics.fmean(active), 4) if active else None,
                "placement": of[0]["placement"],
            }
            say(f"== {name}: {table[name]}", flush=True)
        best = min((t["wall_s"] for n, t in table.items() if n in BASELINES), default=None)
        further = [n for n in table if n.startswith(("round ", "optimised, "))]
        for name in ("by hand", "optimised", "with quota", NOT_AHEAD, *further):
            if best is not None and name in table:
                table[name] |= self.compared(name, best, table[name]["wall_s"])
                say(f"== {name}: {table[name]['speedup_over_best_baseline']} x the best baseline", flush=True)
                for kind in self.least or ():
                    most, share = table[name]["most_speedup"][kind], table[name]["share_of_bound"][kind]
                    say(f"==   at most {most} x ({kind}): {100 * share:.0f} % of it", flush=True)
        self.report.document["summary"] = table
        self.report.write()

    def compared(self, name: str, best_s: float, wall_s: float) -> dict[str, Any]:
        """What an order gains over the best baseline, and how much of what is possible that is."""
        found: dict[str, Any] = {"speedup_over_best_baseline": round(best_s / wall_s, 4)}
        graph = self.graphs.get(name)
        found["splits_batches"] = graph is not None and any(c.samples is not None for c in graph.calls)
        bounds = self.least or {}
        # what holds only under an assumption is told beside the bound
        found["most_speedup_assumed"] = {
            k: {one.name: round(max(1.0, best_s / one.least_s), 4) for one in b.assumed if one.least_s}
            for k, b in bounds.items()
        }
        found["most_speedup"] = {k: round(b.speedup(best_s), 4) for k, b in bounds.items()}
        found["share_of_bound"] = {k: round(b.reached(best_s, wall_s), 4) for k, b in bounds.items()}
        return found


def _steps_by_round(result: Any) -> list[int]:
    """How many of the selected steps there were after each round that found any."""
    from rlprof.overlap.optimize.steps import derive

    made = {derive(result.native, result.steps[:n]).hash: n for n in range(1, len(result.steps) + 1)
            if n == len(result.steps) or result.steps[n].kind != "interleave"}  # fmt: skip
    return [made[r.after.hash] for r in result.rounds if r.accepted and r.after.hash in made]


def call_times(workload: Any) -> list[Any]:
    """When the calls of the latest iteration by a graph ran, on the monotonic clock; empty: not recorded."""
    from rlprof.overlap.optimize.windows import CallTime

    if workload.last_run is None:
        return []
    _, record = workload.last_run
    return sorted((CallTime(t.task, t.start_ns, t.end_ns) for t in record.tasks), key=lambda t: t.start_ns)


def _nothing(*_: Any, **__: Any) -> None:
    """Say nothing."""


def _write(path: Path, document: Any) -> None:
    from rlprof.overlap.optimize.graph_file import write_json

    write_json(path, document)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = functools.partial(parser.add_argument)
    workload_options(parser, "mujoco_arm")
    add("--parts", default="optimise,variants")
    add("--variants", default=",".join((*BASELINES, "by hand", "optimised", ANEW, NOT_AHEAD)))
    add("--counted", type=int, default=5, help="counted iterations of each order")
    add(
        "--counted-others",
        type=int,
        default=2,
        help="of ablations, and of baselines clearly slower than another",
    )
    add("--seconds", type=float, default=480.0)
    add("--reserve", type=float, default=5.0, help="seconds to leave at the end")
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
