"""One trainer on a GPU: built and recorded, profiled, bounded, optimised, and given quotas."""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.gpu.bounds import Profiled, available_cores, call_times, spreads
from benchmarks.gpu.common import end_s
from benchmarks.gpu.embodied_report import Gpu, Report, configuration
from benchmarks.gpu.same_iteration import Start
from benchmarks.gpu.solo import Solo, Use, works
from benchmarks.gpu.turns import NOT_AHEAD, Turns, ways_to_draw

EPOCH = "iteration/generate_rollouts/rollout_epoch"
CHUNK = f"{EPOCH}/chunk"


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


class Run(Turns):
    """One trainer: optimised, and driven in every order."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.config = args, configuration(args)
        self.ways = ways_to_draw(args.drawn, self.config)
        self.streams = stream_priorities(args.stream_priorities)
        self.ends: float = end_s(args.seconds)
        facts = {
            "command": "optimize",
            "config": self.config.to_dict(),
            "argv": {k: str(v) for k, v in vars(args).items() if k not in ("out", "start")},
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
        self.quota: tuple[str, int] | None = None
        #: Keys of the simulators that draw elsewhere, by the order that has them.
        self.drawn: dict[str, Any] = {}
        self.drivers: dict[str, Any] = {}
        self.start: Start | None = None
        self.without: dict[str, str] = {}
        self.observed: Any = None

    @property
    def measurements(self) -> Path:
        """What the search has measured."""
        found: Path = self.args.out / f"measurements{self.args.name}.jsonl"
        return found

    @cached_property
    def store(self) -> Any:
        """Measurements, and what they take. Each call trains anew: training of earlier ones is lost."""
        from rlprof.overlap.optimize.store import Store

        return Store(self.measurements)

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
                self.keep_start()
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
                if self.args.rollout_share is not None:
                    self.given_share()
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
                embodied(
                    self.config,
                    scratch,
                    spares=self.args.spares,
                    activity=self.args.activity,
                    store=self.store,
                    say=say,
                )
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

    def keep_start(self) -> None:
        """Copies of what training changes, to which every iteration goes back."""
        if not self.args.same_iteration:
            return
        with self.report.step("same_iteration") as found:
            start = Start(self.here, self.here.free_bytes)
            start.restore()  # it must work later
            self.gpu.wait()
            self.start = start
            found.update(start.to_dict())
            self.report.document["same_iteration"] = dict(found)
        if self.start is None:
            return
        path: Path | None = self.args.start
        if path is not None:
            with self.report.step("start_file") as found:
                found["read"] = path.exists()
                if found["read"]:
                    self.start.load(path)
                    self.report.document["same_iteration"] = self.start.to_dict()
                else:
                    self.start.save(path)
        with self.report.step("start_digest") as found:
            found["weights"] = self.report.document["same_iteration"]["weights"] = self.start.digest()

    def prioritise(self, here: Any) -> None:
        """Let streams of graphs have their priorities; what is measured with others is not reused."""
        from rlprof.overlap.optimize.store import key_of

        if self.streams:
            here.workload.set_stream_priorities(self.streams)
            here.workload.key = key_of(here.workload.key, [f"{c}={p}" for c, p in self.streams.items()])

    def first(self) -> None:
        """One native iteration, call by call: how long all takes, and what overlap can gain at most."""
        from rlprof.overlap.optimize.cost import SEARCH
        from rlprof.overlap.optimize.store import key_of

        workload = self.here.workload
        times: list[Any] = []
        with self.report.step("native_profile") as found:
            began_ns = time.monotonic_ns()
            with self.store.spending(SEARCH), Solo(self.config.device, self.here.simulator) as solo:
                self.native_profile = workload.profile(workload.native)
                ended_ns = time.monotonic_ns()
                self.store.train(workload.native.hash, self.native_profile.measurement)
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
            key = key_of(workload.key, "profile", workload.native.hash)
            self.store.put(key, "profile", self.native_profile.to_dict())
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
        if "by hand" in self.graphs and self.wants_graph:
            self.iteration("by hand", "warm", warm=True)

    @property
    def wants_graph(self) -> bool:
        """Whether anything runs by a graph: native schedules alone need none to be warmed up."""
        parts = {"optimise", "quotas"} & set(self.args.parts.split(","))
        named = [n for n in self.wanted if n in ("by hand", "optimised", NOT_AHEAD) or n.startswith("best ")]
        return bool(parts or named or self.ways)

    def meter(self) -> None:
        """One native iteration under a meter of memory, for rule L7."""
        from rlprof.overlap.optimize.cost import MEMORY

        if self.here.free_bytes is None or not self.args.memory:
            return
        with self.report.step("memory") as found:
            with self.store.spending(MEMORY):
                self.store.train("native, memory of calls", self.here.workload.measure_memory())
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
        from rlprof.overlap.optimize.decisions import each_once, log_session, read_entries
        from rlprof.overlap.optimize.graph_file import GraphFile
        from rlprof.overlap.optimize.log import DecisionLog
        from rlprof.overlap.optimize.result import document

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
            decisions = args.out / f"decisions{args.name}.jsonl"
            earlier = read_entries(decisions)
            log = DecisionLog(decisions, listen=lambda t: print(f"   {t[:300]}", flush=True))
            log_session(self.store, log)
            result = optimize(self.here.workload, options, log=log, store=self.store)
            if result.steps and not result.stopped:
                result = self.in_turn(result, options, log, self.store)
            self.seen.take(0)  # records of the iterations that were trained here are of no further use
            made = document(
                result,
                each_once([*earlier, *log.entries]),
                {"config": self.config.to_dict(), "options": options.to_dict()},
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
            budget_s=max(0.0, options.budget_s - result.searched_s),
        )
        return replace(result.including(measured), graph=selected.graph, steps=selected.steps)

    def quotas(self) -> None:
        """Algorithm 2 for the selected graph, under MPS: the share of the SMs of who has slack."""
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
                share=self.here.share,
                sweep_every=args.quota_sweep,
                say=lambda text: print(f"   {text}", flush=True),
            )
            self.seen.take(0)
            self.report.document["quotas"] = result.to_dict()
            QuotaFile(result.quotas, result.reason).write(args.out / f"quotas{args.name}.json")
            found["quotas"], found["reason"] = str(result.quotas), result.reason
            search = result.search
            if search is not None and search.best != search.start:
                # shown in turn with q0, whatever the validation said
                self.quota = (result.component, search.best_level.setting)
                self.graphs["with quota"] = self.graphs[name]

    def given_share(self) -> None:
        """A share of the rollout that was found elsewhere, by green contexts; nothing is searched."""
        from rlprof.workloads.embodied.quotas import OF_ROLLOUT

        name = self.best
        if name not in self.graphs:
            return
        with self.report.step("given_share") as found:
            if self.here.share is None:
                raise RuntimeError("there is no GPU, of which the rollout could have a share")
            percent = self.args.rollout_share
            self.here.share.use(percent)  # products are looked at
            self.here.share.use(None)
            self.quota = (OF_ROLLOUT, percent)
            self.graphs["with quota"] = self.graphs[name]
            found["sms"] = self.here.share.sms(percent)
            reason = "given, and found by benchmarks.gpu.rollout_quota"
            self.report.document["quotas"] = {"quotas": {OF_ROLLOUT: percent}, "reason": reason}


def _steps_by_round(result: Any) -> list[int]:
    """How many of the selected steps there were after each round that found any."""
    from rlprof.overlap.optimize.steps import derive

    made = {derive(result.native, result.steps[:n]).hash: n for n in range(1, len(result.steps) + 1)
            if n == len(result.steps) or result.steps[n].kind != "interleave"}  # fmt: skip
    return [made[r.after.hash] for r in result.rounds if r.accepted and r.after.hash in made]


def _write(path: Path, document: Any) -> None:
    from rlprof.overlap.optimize.graph_file import write_json

    write_json(path, document)
