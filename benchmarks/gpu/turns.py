"""Complete iterations of all orders in turn: which ones, how often, how long they take, what they gain."""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from benchmarks.gpu.embodied_report import replay_facts, shortened
from benchmarks.gpu.same_iteration import Start, weakest
from benchmarks.gpu.solo import Solo

#: Orders without a lever that all others have: the native loop, and the best graph (`Turns.levers_off`).
ANEW = "prefixes anew"  # `keep_prefix`
EAGER = "steps not captured"  # `cuda_graph`
NOT_COMPILED = "layers not compiled"  # `compile_policy`
NOT_NICE = "simulators not nice"  # `simulator_nice`
SHARED = "cores shared"  # `simulator_cores`
#: Fields of the configuration whose levers they are without; `layers not compiled` is native alone.
WITHOUT = {
    ANEW: "keep_prefix",
    EAGER: "cuda_graph",
    NOT_COMPILED: "compile_policy",
    NOT_NICE: "simulator_nice",
    SHARED: "simulator_cores",
}
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


class Turns(ABC):
    """One trainer, driven in every order; `benchmarks.gpu.optimize_run.Run` makes it and finds the orders."""

    args: Any
    config: Any
    report: Any
    gpu: Any
    here: Any
    seen: Any
    #: Graphs by the name of their order; None: the native one.
    graphs: dict[str, Any]
    #: Seconds of the latest complete iteration of each order, with what is done before and after it.
    longest_s: dict[str, float]
    #: Ways to draw of `--drawn`, and keys of the simulators that draw so, by the order that has them.
    ways: dict[str, dict[str, Any]]
    drawn: dict[str, Any]
    #: Whose quota was found and its percentage, drivers that are kept, and what native iterations took.
    quota: tuple[str, int] | None
    drivers: dict[str, Any]
    uses: dict[str, Any]
    least: Any
    left_s: Any
    #: Where every iteration begins; None: it goes on from the one before.
    start: Start | None
    #: Priorities of CUDA streams by component.
    streams: dict[str, int]
    #: Levers that an order is without, a key of `WITHOUT`.
    without: dict[str, str]
    #: First observation of the latest iteration.
    observed: Any

    @abstractmethod
    def bound(self) -> None:
        """Bounds by all native iterations that were read until now."""

    def variants(self) -> None:
        """Complete iterations of every order in turn; those that only complete the picture get fewer.

        Where time is short, orders that decide the result have all of theirs before others have any.
        """
        self.draw_elsewhere()
        if self.config.reset_ahead and (best := self.graphs.get("optimised", self.graphs.get("by hand"))):
            self.graphs[NOT_AHEAD] = best
        self.levers_off()
        # the next turn of each order; what has run before is warm
        turns = {name: int(name in self.longest_s) for name in self.names()}
        ran = True
        while ran:
            ran = False
            for name in sorted(turns, key=self.rank):
                turn, need_s = turns[name], self.need_s(name, turns[name])
                if turn > self.last_turn(name):
                    continue
                if self.left_s < need_s:  # nor will they be later
                    print(f"   {name}: LEFT OUT, {need_s:.0f} s are not left", flush=True)
                    del turns[name]
                    continue
                if self.settled(name) and self.left_s < need_s + self.owed_s(turns):
                    continue  # when those that decide have theirs
                short = turn == 0 and name not in self.graphs
                self.iteration(name, str(turn), warm=turn == 0, short=short)
                self.summary(show=False)
                turns[name], ran = turn + 1, True

    def rank(self, name: str) -> int:
        """Of an order in a turn: the result, what it is compared with, what completes the picture."""
        if name in ("native", self.best):
            return 0
        if name in self.without or name == NOT_AHEAD:
            return 3
        return 2 if self.settled(name) else 1

    def last_turn(self, name: str) -> int:
        """The last turn in which an order runs; in turn 0 it warms up."""
        counted: int = self.args.counted
        return min(counted, self.args.counted_others) if self.settled(name) else counted

    def need_s(self, name: str, turn: int) -> float:
        """Seconds that a turn of an order takes."""
        known = self.longest_s.get(name, max(self.longest_s.values(), default=0.0))
        return (0.4 if turn == 0 and name not in self.graphs else 1.1) * known

    def owed_s(self, turns: Mapping[str, int]) -> float:
        """Seconds that orders which decide the result need for their turns that are left."""
        deciding = [name for name in turns if not self.settled(name)]
        return sum(self.need_s(n, t) for n in deciding for t in range(turns[n], self.last_turn(n) + 1))

    def draw_elsewhere(self) -> None:
        """The optimised order (or that by hand) and the native one, drawn in other ways (`--drawn`)."""
        for text, changes in self.ways.items():
            for name in (self.best, "native"):
                if name in self.graphs:
                    self.graphs[f"{name}, {text}"] = self.graphs[name]
                    self.drawn[f"{name}, {text}"] = tuple(changes.items())

    @property
    def best(self) -> str:
        """The graph that counts, if there is one."""
        return "optimised" if "optimised" in self.graphs else "by hand"

    @property
    def wanted(self) -> list[str]:
        """Orders of `--variants`; shell scripts split options at spaces."""
        return [n.strip().replace("_", " ") for n in self.args.variants.split(",")]

    def levers_off(self) -> None:
        """Orders without one lever of the configuration: natively, and by the best graph (`best_...`)."""
        for name in self.wanted:
            lever = name.removeprefix("best ")
            if lever not in WITHOUT:
                continue
            of = self.best if name.startswith("best ") else "native"
            if not getattr(self.config, WITHOUT[lever]) or of not in self.graphs:
                why = f"there is no {WITHOUT[lever]}" if of in self.graphs else "there is no graph"
                print(f"   {name}: LEFT OUT, {why}", flush=True)
            elif lever == NOT_COMPILED and of != "native":
                # the second chain of its steps would be captured anew while it is measured
                print(f"   {name}: LEFT OUT, only the native loop runs without compiled layers", flush=True)
            else:
                order = lever if of == "native" else f"{of}, {lever}"
                self.graphs[order], self.without[order] = self.graphs[of], lever
                if lever == NOT_NICE:
                    self.drawn[order] = (("simulator_nice", 0),)

    def names(self) -> list[str]:
        """Orders to run, each graph once."""
        orders = [
            f"{self.best}, {n.removeprefix('best ')}" if n.startswith("best ") else n for n in self.wanted
        ]
        names = [n for n in orders if n in self.graphs or n in BASELINES]
        names += [n for n in (*self.drawn, "with quota") if n in self.graphs and n not in names]
        rounds = [n for n in self.graphs if n.startswith("round ")]
        names += rounds[:1] if len(rounds) > 1 else []  # one round: it is the optimised graph
        first: dict[str, str] = {}  # a graph that has several names runs under the one that says most
        for name in ("optimised", *rounds[:1], "by hand"):
            if (graph := self.graphs.get(name)) is not None:
                first.setdefault(graph.hash, name)
        always = (*BASELINES, *self.drawn, *self.without, NOT_AHEAD, "with quota")
        return [n for n in names if n in always or n in first.values()]

    def settled(self, name: str) -> bool:
        """Whether more iterations would decide nothing: an ablation, or a baseline that is clearly slower."""
        if name in ("native", "optimised", "with quota"):
            return False
        if name in self.without:
            return True
        if name in self.drawn and not name.startswith("native"):  # the fastest of them goes on
            kind = name.partition(",")[0]
            best = {n: min(w) for n, w in self.walls().items() if n.partition(",")[0] == kind}
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
        from rlprof.workloads.embodied.quotas import OF_ROLLOUT, SIMULATOR
        from rlprof.workloads.embodied.record import replay_answers
        from rlprof.workloads.embodied.runner import measured_iteration
        from rlprof.workloads.embodied.sharing import sharing

        here, measured, row, began = self.here, None, {}, time.monotonic()
        step = self.report.step(f"{name}_{turn}")
        with step as found, shortened(here.trainer, short), self.lever_off(name):
            self.go_back()
            config = self.config if name in self.graphs else replace(self.config, schedule=name)
            driver: Any
            of, percent = self.quota if name == "with quota" and self.quota else (None, None)
            share = percent if of == SIMULATOR else self.drawn.get(name)
            if here.share is not None:
                here.share.use(percent if of == OF_ROLLOUT else None)
            if name not in self.graphs:  # under MPS a hybrid schedule divides the GPU
                share = sharing(config).simulator_percent
            if here.simulator.key != share:
                here.simulator.use(share, beside=name in self.graphs)
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
                if config.stage_schedule.offload:
                    here.trainer.rollout.reload(self.config.rollout_device or self.config.device)
                    here.trainer.actor.reload(self.config.device)
            self.observed = measured.result["trajectories"][0].observations[0]
            if config.stage_schedule.offload:
                self.capture_again()
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
        if measured is None or not found.get("ok"):
            return
        if not short:
            self.compare(name, turn, measured, row)
            self.longest_s[name] = time.monotonic() - began
        if self.replays(name, turn):
            with self.report.step(f"{name}_replay") as found:
                index, most = GlobalStep(here.counter.step - 1), self.args.replayed_calls
                again = replay_answers(here.trainer, measured.result["trajectories"], index, most_calls=most)
                found.update(replay_facts(again))

    def replays(self, name: str, turn: str) -> bool:
        """Whether answers of an iteration are given again: once for every schedule and graph.

        Graphs warm up by complete iterations, schedules by short ones.
        """
        graph = self.graphs.get(name) is not None and name not in self.without
        return (graph and turn in ("0", "warm")) or (name in BASELINES and turn == "1")

    def go_back(self) -> None:
        """Put back what training has changed; without that, should it fail, training goes on."""
        if self.start is None:
            return
        try:
            self.start.restore()
            self.gpu.wait()
        except Exception as error:
            self.start = None
            why = f"{type(error).__name__}: {error}"[:500]
            self.report.document["same_iteration"] |= {"kept": False, "error": why}
            print(f"   weights were not put back, training goes on: {why}", flush=True)

    def compare(self, name: str, turn: str, measured: Any, row: dict[str, Any]) -> None:
        """Compare what an order trained with what native training of the same iteration gave."""
        if self.start is None:
            return
        if self.start.native is None:
            if name == "native":
                with self.report.step("native_outcome"):
                    self.start.native = self.start.outcome(measured)
            return
        with self.report.step(f"{name}_{turn}_against_native") as found:
            # prefixes that are made anew are made of other batches
            exact = False if self.without.get(name) in (ANEW, EAGER, NOT_COMPILED) else None
            compared = self.start.against_native(measured, exact=exact)
            row["against_native"] = found["compared"] = compared
            told = (f"{k} {v:.2g}" for k, v in compared.items() if isinstance(v, float))
            print(f"   {compared['equality']}: {', '.join(told)}", flush=True)
            if not compared["holds"]:
                raise RuntimeError(f"{name} did not train what native training does: {compared['equality']}")

    @contextmanager
    def lever_off(self, name: str) -> Iterator[None]:
        """In the block the policy, or the simulators, are without what an order is without."""
        lever, rollout = self.without.get(name), self.here.trainer.rollout
        if lever == SHARED:
            cores = self.here.trainer.env.cores
            was, cores.places = cores.places, 0
            try:
                yield
            finally:
                cores.places = was
            return
        fields = {ANEW: ("keeps_prefix", False), EAGER: ("captured", None), NOT_COMPILED: ("compiled", None)}
        if lever not in fields:
            yield
            return
        field, value = fields[lever]
        was = getattr(rollout.policy, field)
        try:
            self.set_policy(field, value)
            yield
        finally:
            self.set_policy(field, was)

    def set_policy(self, field: str, value: Any) -> None:
        """Set an attribute of the rollout's policy; steps that were captured hold layers as they were."""
        rollout = self.here.trainer.rollout
        setattr(rollout.policy, field, value)
        if field == "compiled":
            rollout.forget_captured()
            self.capture_again()

    def capture_again(self) -> None:
        """Answer untimed what was seen last: who comes next would wait for CUDA graphs that were dropped."""
        if self.observed is None:
            return
        from rlprof.workloads.embodied.contracts import GlobalStep
        from rlprof.workloads.embodied.nodes import ROLLOUT
        from rlprof.workloads.embodied.quotas import OF_ROLLOUT

        policy = self.here.trainer.rollout.policy
        own, cuda, seen = type(policy), self.gpu.torch.cuda, self.observed
        for priority in {0, self.streams.get(ROLLOUT, 0)}:  # of the native loop, and of graphs
            stream = (
                cuda.Stream(self.config.device, priority=priority) if priority and self.gpu.cuda else None
            )
            with cuda.stream(stream):  # of None: the current one
                own.act(policy, seen, own.noise(policy, seen, GlobalStep(0), 0, 0))
            self.gpu.wait()
        if (share := self.here.share) is not None and self.quota and self.quota[0] == OF_ROLLOUT:
            with share.current(self.quota[1]):
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
            if (apart := weakest([r["against_native"] for r in of if "against_native" in r])) is not None:
                table[name]["against_native"] = apart
            say(f"== {name}: {table[name]}", flush=True)
        todays = (t["wall_s"] for n, t in table.items() if n.partition(",")[0] in BASELINES)
        best = min(todays, default=None)
        further = [n for n in table if n.startswith(("round ", "optimised, ", "by hand, "))]
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


def _nothing(*_: Any, **__: Any) -> None:
    """Say nothing."""
