"""What `benchmarks.gpu.optimize` decides: what runs again, what a file tells of rounds, solo resources."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu.bounds import IN_TURN, SLICES, Profiled, available_cores, call_times
from benchmarks.gpu.optimize_run import Run, _steps_by_round, stream_priorities
from benchmarks.gpu.solo import (
    LONGEST_PERIOD_S,
    Cores,
    Reading,
    Solo,
    Use,
    period_s,
    renewed_every_s,
    works,
)
from benchmarks.gpu.turns import ANEW, EAGER, NOT_AHEAD, NOT_COMPILED, NOT_NICE, ways_to_draw
from benchmarks.rl_programs import make
from rlprof.cores import usable_cores
from rlprof.overlap.optimize import Options, optimize
from rlprof.overlap.optimize.bound import Limit, Resource, bound
from rlprof.overlap.optimize.simulated import SimulatedWorkload
from rlprof.overlap.optimize.steps import derive
from rlprof.overlap.optimize.windows import CallTime, Window
from rlprof.unavailable import Unavailable
from rlprof.workloads.embodied.config import configure
from rlprof.workloads.embodied.errors import ConfigurationError
from tests.overlap.graphs import Node, graph_of


def run(walls: dict[str, list[float]], *graphs: str) -> Any:
    """A run with counted iterations and graphs of these names, of which equal letters are equal graphs."""
    made = object.__new__(Run)
    rows = [{"variant": n, "warm_up": False, "wall_s": s} for n, of in walls.items() for s in of]
    made.report = SimpleNamespace(document={"iterations": rows})  # type: ignore[assignment]
    made.args = SimpleNamespace(variants="native,hybrid,by hand,optimised")  # type: ignore[assignment]
    made.graphs, made.drawn, made.without, made.start = {"native": None}, {}, {}, None
    for graph in graphs:
        name, _, kind = graph.partition("=")
        made.graphs[name] = SimpleNamespace(hash=kind)
    return made


def test_a_baseline_is_settled_when_it_is_clearly_slower_than_another() -> None:
    made = run({"native": [10.0, 10.4], "hybrid": [10.6, 10.5], "colocated-pipe": [20.0, 21.0]})
    assert not made.settled("native")
    assert not made.settled("hybrid")  # within 3 % of the slowest of the best
    assert made.settled("colocated-pipe")
    assert not made.settled("hybrid-pipe")  # never ran


class Simulated(Run):
    """Orders of known length, in simulated time."""

    takes: dict[str, float]
    now_s: float
    done: list[tuple[str, int]]

    @property
    def left_s(self) -> float:
        return self.ends - self.now_s

    def iteration(self, name: str, turn: str, *, warm: bool = False, short: bool = False) -> None:
        self.now_s += (0.4 if short else 1.0) * self.takes[name]
        self.done.append((name, int(turn)))
        if not short:
            self.longest_s[name] = self.takes[name]
        self.report.document["iterations"].append(
            {"variant": name, "warm_up": warm, "wall_s": self.takes[name]}
        )

    def draw_elsewhere(self) -> None: ...
    def levers_off(self) -> None: ...
    def summary(self, *, show: bool = True) -> None: ...


def in_turn(left_s: float, takes: dict[str, float], *without: str) -> dict[str, int]:
    """How many counted iterations each order gets; `without` are ablations, in the order of `takes`."""
    made = run({}, "optimised=b", *(f"{name}=b" for name in without))
    made.__class__ = Simulated
    made.takes, made.now_s, made.ends, made.done = takes, 0.0, left_s, []
    made.args = SimpleNamespace(variants=",".join(takes), counted=5, counted_others=2)
    made.config = SimpleNamespace(reset_ahead=False)
    made.without = dict.fromkeys(without, EAGER)
    made.longest_s = {name: takes[name] for name in ("native", "optimised")}
    made.variants()
    turns = {name: [t for n, t in made.done if n == name] for name in takes}
    assert all(of == sorted(of) for of in turns.values())
    assert made.now_s <= left_s
    return {name: sum(t > 0 for t in of) for name, of in turns.items()}


def test_orders_that_decide_have_their_iterations_before_ablations_have_any() -> None:
    # the ablation is long, and comes first in --variants
    takes = {EAGER: 20.0, "native": 5.0, "hybrid": 12.0, "optimised": 4.0}
    all_of_them = {EAGER: 2, "native": 5, "hybrid": 2, "optimised": 5}
    assert in_turn(500.0, takes, EAGER) == all_of_them
    assert in_turn(75.0, takes, EAGER) == all_of_them | {EAGER: 0}
    # 45 s for the two, and for hybrid a short iteration and one turn more
    assert in_turn(63.0, takes, EAGER) == all_of_them | {EAGER: 0, "hybrid": 1}
    # what is left in the end is theirs
    assert in_turn(125.0, takes, EAGER) == all_of_them | {EAGER: 1}


def test_a_long_ablation_does_not_keep_a_short_order_from_running(capsys) -> None:
    takes = {EAGER: 20.0, "native": 5.0, "optimised": 4.0}
    assert in_turn(30.0, takes, EAGER) == {EAGER: 0, "native": 3, "optimised": 3}
    assert capsys.readouterr().out.count("LEFT OUT") == 3  # once for each


def test_an_ablation_is_settled_where_there_is_a_result() -> None:
    assert run({}, "by hand=a", "optimised=b").settled("by hand")
    assert not run({}, "by hand=a").settled("by hand")
    assert not run({}, "by hand=a", "optimised=b").settled("optimised")


def test_a_graph_with_resets_ahead_runs_without_them_too() -> None:
    made = run({}, "optimised=a", f"{NOT_AHEAD}=a")
    made.args.variants += f",{NOT_AHEAD}"
    assert made.names() == ["native", "hybrid", "optimised", NOT_AHEAD]
    assert made.settled(NOT_AHEAD)
    assert not made.settled("optimised")


def test_orders_without_a_lever_run_natively_and_by_the_best_graph(capsys) -> None:
    made = run({}, "by hand=a", "optimised=b")
    made.config = SimpleNamespace(cuda_graph=True, keep_prefix=False, compile_policy=True, simulator_nice=10)
    made.args.variants = (
        "native,optimised,steps_not_captured,best_steps_not_captured,prefixes_anew,"
        "best_layers_not_compiled,simulators_not_nice"
    )
    made.levers_off()
    made.levers_off()  # once is enough
    ablations = [EAGER, f"optimised, {EAGER}", NOT_NICE]
    assert made.names() == ["native", "optimised", *ablations]
    assert list(made.without) == ablations
    assert made.graphs[EAGER] is None
    assert made.graphs[f"optimised, {EAGER}"] is made.graphs["optimised"]
    assert made.drawn == {NOT_NICE: (("simulator_nice", 0),)}
    assert all(made.settled(name) for name in ablations)
    told = capsys.readouterr().out
    assert "prefixes anew: LEFT OUT, there is no keep_prefix" in told
    assert "best layers not compiled: LEFT OUT" in told
    alone = run({})
    alone.config = made.config
    alone.args.variants = "native,best_steps_not_captured"
    alone.levers_off()
    assert alone.names() == ["native"]
    assert "there is no graph" in capsys.readouterr().out


def test_a_policy_is_without_a_lever_in_a_block_alone() -> None:
    made = run({})
    forgotten: list[Any] = []
    policy = SimpleNamespace(keeps_prefix=True, captured="graphs", compiled="layers")
    rollout = SimpleNamespace(policy=policy, forget_captured=lambda: forgotten.append(policy.compiled))
    made.here = SimpleNamespace(trainer=SimpleNamespace(rollout=rollout))
    made.observed = None
    made.without = {"a": ANEW, f"optimised, {EAGER}": EAGER, "c": NOT_COMPILED, "d": NOT_NICE}
    seen = {}
    for name in (*made.without, "native"):
        with made.lever_off(name):
            seen[name] = (policy.keeps_prefix, policy.captured, policy.compiled)
    whole = (True, "graphs", "layers")
    assert seen == {
        "a": (False, "graphs", "layers"),
        f"optimised, {EAGER}": (True, None, "layers"),
        "c": (True, "graphs", None),
        "d": whole,
        "native": whole,
    }
    assert forgotten == [None, "layers"]  # captured steps hold layers as they were
    with pytest.raises(ZeroDivisionError), made.lever_off("a"):
        _ = 1 / 0
    assert (policy.keeps_prefix, policy.captured, policy.compiled) == whole


def test_native_schedules_alone_need_no_graph() -> None:
    made = run({})
    made.ways, made.args.parts = {}, "variants"
    made.args.variants = "native,colocated-pipe,steps_not_captured"
    assert not made.wants_graph
    for variants in ("native,by_hand", "native,best_prefixes_anew", "resets_not_ahead"):
        made.args.variants = variants
        assert made.wants_graph
    made.args.variants, made.args.parts = "native", "optimise,variants"
    assert made.wants_graph


def test_training_goes_on_where_weights_cannot_be_put_back(capsys) -> None:
    made = run({})
    made.go_back()  # nothing is kept
    made.gpu = SimpleNamespace(wait=lambda: None)
    put = [0]
    made.start = SimpleNamespace(restore=lambda: put.append(1 // put[-1]))
    made.report.document["same_iteration"] = {"kept": True, "iteration": 2}
    made.go_back()
    assert made.start is None
    found = made.report.document["same_iteration"]
    assert (found["kept"], found["iteration"]) == (False, 2)
    assert found["error"].startswith("ZeroDivisionError")
    assert "training goes on" in capsys.readouterr().out


def test_a_graph_by_hand_is_drawn_elsewhere_where_none_was_searched() -> None:
    made = run({"by hand": [5.0], "by hand, egl-one:2": [4.5]}, "by hand=a")
    made.ways = {"egl-one:2": {"rendering": "egl-one", "painters": 2, "shadows": True}}
    made.draw_elsewhere()
    assert made.names()[2:] == ["by hand", "by hand, egl-one:2", "native, egl-one:2"]
    assert not made.settled("by hand, egl-one:2")  # the fastest
    assert made.settled("native, egl-one:2")


def test_a_graph_runs_under_one_name() -> None:
    assert run({}, "by hand=a", "optimised=a", "round 1=a").names() == ["native", "hybrid", "optimised"]
    two = run({}, "by hand=a", "optimised=b", "round 1=a", "round 2=b")
    assert two.names() == ["native", "hybrid", "optimised", "round 1"]


def test_the_steps_of_the_first_round_make_its_graph() -> None:
    rounds = 0
    for seed in (0, 2, 5):
        program = make(seed)
        result = optimize(SimulatedWorkload(program.graph, program.model), Options(rounds=2))
        counts = _steps_by_round(result)
        accepted = [r for r in result.rounds if r.accepted]
        assert len(counts) == len(accepted)
        for count, one in zip(counts, accepted, strict=True):
            assert derive(program.graph, result.steps[:count]).hash == one.after.hash
        rounds = max(rounds, len(accepted))
    assert rounds == 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_cores_are_those_of_this_process_and_the_simulators() -> None:
    busy = "end = time.process_time() + 0.4\nwhile time.process_time() < end: pass\n"
    code = f"import time\ninput()\n{busy}input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as simulator:
        with Solo("cpu", SimpleNamespace(process_ids=(simulator.pid,))) as solo:
            assert simulator.stdin is not None
            simulator.stdin.write(b"\n")
            simulator.stdin.flush()
            until = time.monotonic() + 20
            while solo._processes() - solo.cores[0].simulator_s < 0.3 and time.monotonic() < until:
                time.sleep(0.05)
        simulator.communicate(b"\n")
    assert 0.25 < solo.simulator_core_s < 2
    use = solo.use(round(solo.cores[0].at_s * 1e9), round(solo.cores[-1].at_s * 1e9))
    expected = solo.own_core_s + solo.simulator_core_s
    assert use.core_s == pytest.approx(expected, abs=1e-3)
    native = graph_of([Node("load", "env", mixes=True)], ())
    sound, assumed = Profiled(native, [], cores=available_cores()).resources(use)
    assert sound["cores"] == Resource(use.core_s, usable_cores())
    assert sound[SLICES] == assumed[IN_TURN] == Unavailable("there is no GPU")


def readings(*busy: float, every_s: float = 0.1) -> list[Reading]:
    return [Reading(round((i + 1) * every_s, 6), one) for i, one in enumerate(busy)]


def test_a_utilisation_is_renewed_once_in_a_period() -> None:
    # renewed at 0.15, 0.35 and 0.55 s, and read every 0.1 s
    assert period_s(readings(0.1, 0.5, 0.5, 0.7, 0.7, 0.2)) == pytest.approx(0.3)
    assert period_s(readings(1.0, 1.0, 1.0, 0.5, 0.5)) == LONGEST_PERIOD_S  # one change tells nothing
    assert period_s(readings(0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0)) == LONGEST_PERIOD_S
    assert period_s([]) == LONGEST_PERIOD_S
    assert renewed_every_s(readings(0.1, 0.5, 0.5, 0.7, 0.7, 0.2)) == pytest.approx(0.2)
    assert renewed_every_s(readings(1.0, 1.0, 1.0, 0.5, 0.5)) == LONGEST_PERIOD_S


def test_busy_time_counts_as_that_of_all_calls_that_a_reading_may_be_of() -> None:
    names = [f"answer{i}" for i in range(4)]
    body = [Node("load", "env", mixes=True), *(Node(name, name, ("load",), mixes=True) for name in names)]
    native = graph_of([*body, Node("train", "actor", ("+".join(names),), mixes=True)], ())
    takes = {"it/load": 1.0, "it/train": 1.0} | {f"it/{name}": 0.5 for name in names}
    times, start_ns = [], 0
    for call in native.calls:
        end_ns = start_ns + round(takes[call.node] * 1e9)
        times.append(CallTime(call.id, start_ns, end_ns))
        start_ns = end_ns
    # nothing executes during the load, half of the time while it answers; a reading tells of the 0.1 s before
    busy = [0.0] * 10 + [0.49, 0.51] * 10 + [0.8, 0.9] * 5 + [0.0]
    seen = readings(*busy)
    assert period_s(seen) == pytest.approx(0.2)
    found = works(seen, times)
    assert sum(work.amount_s for work in found) == pytest.approx(sum(busy) * 0.1)
    assert [work.calls for work in found[:2]] == [("it/load",)] * 2
    assert len(found) == len(seen)  # the first and the last one are in part of before and after
    assert found[11].calls == ("it/load", "it/answer0")  # at 1.2 s: of what ran since 0.8 s
    assert found[15].calls == ("it/answer0", "it/answer1")
    assert found[-1].calls == ("it/train",)
    solo = Solo("cuda", SimpleNamespace())
    solo.readings, solo.cores = seen, [Cores(0.0, 0.0, 0.0), Cores(4.1, 0.0, 0.0)]
    use = solo.use(0, round(4e9))
    _, resources = Profiled(native, [], found).resources(use)
    slices = resources[IN_TURN]
    assert isinstance(slices, Resource)
    assert sum(work.amount_s for work in slices.works) == pytest.approx(sum(busy) * 0.1)
    assert [work.calls for work in slices.works] == [work.calls for work in found]
    assert Profiled(native, []).resources(use)[1][IN_TURN] == Resource(slices.amount_s)
    told = bound(native, takes, {}, assumed=resources)
    (least,) = told.assumed
    assert IN_TURN not in {one.name for one in told.limits}
    # after the load, without the first readings of answers that may be of it, and before training
    assert (least.head_s, least.tail_s) == (1.0, 1.0)
    assert 0.5 * (2.0 - 0.5) <= least.work_s <= 0.5 * 2.0
    plain = Limit(IN_TURN, slices.amount_s)
    assert plain.least_s < least.least_s <= 4.0  # the native order


def test_every_native_iteration_that_is_read_moves_the_bound() -> None:
    native = graph_of([Node("draw", "env", mixes=True), Node("a", "rollout", (), mixes=True)], ())
    windows = [Window(f"it/{n}", 1, s, s, 0.5, 1.0, (), True) for n, s in (("draw", 1.0), ("a", 2.0))]
    made = run({}, "optimised=a")
    made.graphs["optimised"].calls = ()
    made.profiled, made.uses = None, {}
    made.bound()  # nothing was profiled
    made.profiled = Profiled(native, windows)
    for turn, (busy_s, least_s) in enumerate(((4.0, 3.0), (3.0, 2.5), (3.6, 2.6))):
        made.uses[f"turn {turn}"] = Use(0.0, 4.0, 0.5, busy_s)
        made.bound()
        assert made.least["any graph"].least_s == pytest.approx(least_s)
    document = made.report.document
    assert document["native_use"]["turn 1"]["busy_s"] == 3.0
    assert document["bound"]["any graph"]["over_iterations"]["most_s"] == pytest.approx(3.0)
    told = made.compared("optimised", 5.2, 4.0)
    assert told["most_speedup"]["any graph"] == pytest.approx(2.0)
    assert told["share_of_bound"]["any graph"] == pytest.approx(0.65)
    assert told["most_speedup_assumed"]["any graph"] == {IN_TURN: pytest.approx(5.2 / 3.6, abs=1e-4)}


def test_times_of_calls_are_those_of_the_latest_iteration_by_a_graph() -> None:
    tasks = (SimpleNamespace(task="b", start_ns=5, end_ns=9), SimpleNamespace(task="a", start_ns=1, end_ns=4))
    ran = SimpleNamespace(last_run=(None, SimpleNamespace(tasks=tasks)))
    assert call_times(ran) == [CallTime("a", 1, 4), CallTime("b", 5, 9)]
    assert call_times(SimpleNamespace(last_run=None)) == []


def test_ways_to_draw_are_refused_before_anything_runs() -> None:
    config = configure("tiny", simulator="libero", rendering="egl-one", painters=4)
    found = ways_to_draw("egl,egl-one:2,,osmesa", config)
    assert [c["painters"] for c in found.values()] == [None, 2, None]  # nothing but egl-one has any
    assert {c["shadows"] for c in found.values()} == {True}
    assert [c["shadows"] for c in ways_to_draw("egl,egl+plain,egl-one:2+plain", config).values()] == [
        True,
        False,
        False,
    ]
    assert ways_to_draw("", config) == {}
    for wrong in ("egl:2", "egl-one:0", "egl-one:1000"):
        with pytest.raises(ConfigurationError, match="painters"):
            ways_to_draw(wrong, config)
    with pytest.raises(ValueError, match="two"):
        ways_to_draw("egl-one:two", config)
    with pytest.raises(ConfigurationError):
        ways_to_draw("egl", configure("tiny"))


def test_priorities_of_streams_are_refused_before_anything_runs() -> None:
    assert stream_priorities("rollout=-1,vision=0") == {"rollout": -1, "vision": 0}
    assert stream_priorities(None) == stream_priorities("") == {}
    for wrong in ("policy=-1", "rollout", "rollout=1", "rollout=-", "rollout=high", "rollout=-\u0663", "=-1"):
        with pytest.raises(ConfigurationError, match="stream priority"):
            stream_priorities(wrong)
    assert stream_priorities(" rollout = -1 , vision=0") == {"rollout": -1, "vision": 0}
    with pytest.raises(ConfigurationError, match="two stream priorities of rollout"):
        stream_priorities("rollout=-1,rollout=0")


def test_answers_of_every_schedule_and_graph_are_given_again_once() -> None:
    made = run({}, "by hand=a", "optimised=b")
    made.graphs[f"optimised, {EAGER}"], made.without = (
        made.graphs["optimised"],
        {f"optimised, {EAGER}": EAGER},
    )
    turns = ("warm", "0", "1", "2")
    assert [t for t in turns if made.replays("native", t)] == ["1"]
    assert [t for t in turns if made.replays("hybrid", t)] == ["1"]
    assert [t for t in turns if made.replays("optimised", t)] == ["warm", "0"]
    assert not any(made.replays(f"optimised, {EAGER}", t) for t in turns)
