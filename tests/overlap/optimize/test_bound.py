"""Lower bounds on the time of an iteration: worked by hand, and never above what a legal graph takes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.rl_programs import make
from rlprof.errors import UsageError
from rlprof.overlap.bindings import Ref, substitute
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.dependencies import dependencies
from rlprof.overlap.errors import OverlapError
from rlprof.overlap.lower import component_worker
from rlprof.overlap.optimize import Options, optimize
from rlprof.overlap.optimize.bound import (
    CHAIN,
    WORKER,
    Bound,
    Limit,
    Resource,
    Work,
    bound,
    sm_resource,
    worker_resources,
)
from rlprof.overlap.optimize.chains import chains
from rlprof.overlap.optimize.simulated import SimulatedWorkload
from rlprof.overlap.optimize.windows import Window
from rlprof.overlap.parts import as_pack
from rlprof.unavailable import Unavailable
from tests.overlap.graphs import Node, graph_of, rollout, state
from tests.overlap.transforms.randomly import program, step

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"

#: Two epochs of a reset, three chunks of policy and simulator, and a reward.
DURATIONS = {
    "it/epoch/reset": 1.0,
    "it/epoch/chunk/policy": 2.0,
    "it/epoch/chunk/step": 3.0,
    "it/epoch/reward": 0.5,
    "it/advantage": 4.0,
}


def window(node: str, total_s: float, activity: float | None, *, eligible: bool = True) -> Window:
    return Window(node, 1, total_s, total_s, activity, 1.0, (), eligible)


def test_a_bound_worked_by_hand() -> None:
    found = bound(rollout(copies=2), DURATIONS, whole_batches=True)
    limits = {one.name: one.least_s for one in found.limits}
    # one epoch: 1 + 3 x (2 + 3) + 0.5, then advantages; epochs need nothing of each other
    assert limits[CHAIN] == pytest.approx(20.5)
    # advantages take the second epoch's reward alone; no set of answers is harder than one in the chain
    assert limits["component worker policy"] == pytest.approx(20.5)
    # simulation after a reset and an answer, before the advantages: five chunks, and the second reward
    assert limits["component worker simulator"] == pytest.approx((1 + 2) + (5 * 3 + 0.5) + 4)
    assert (found.binding, found.least_s) == ("component worker simulator", 22.5)
    assert found.limits[0] == Limit("component worker simulator", 15.5, 3.0, 4.0)
    assert found.speedup(37) == pytest.approx(37 / 22.5)
    assert found.reached(37, 25) == pytest.approx(22.5 / 25)
    assert found.speedup(20) == 1.0  # what is shorter than the bound cannot be sped up


def test_copies_that_are_workers_of_their_own_share_the_work() -> None:
    native = rollout(copies=2)
    env = replace(native.states["ENV"], component="simulator", separate=True)
    native = replace(native, states={**native.states, "ENV": env})
    found = worker_resources(native, DURATIONS)["simulator"]
    assert found.amount_s / found.units == pytest.approx(10.5)
    least = bound(native, DURATIONS, whole_batches=True)
    assert least.binding == CHAIN
    worker = next(one for one in least.limits if one.name == "component worker simulator")
    # its hardest set is one call, served by all copies at once: no more than the chain
    assert worker == Limit("component worker simulator", 0.25, 16.0, 4.0)


def test_parts_of_a_batch_shorten_a_chain() -> None:
    parts = {"it/epoch/reset": 0.5, "it/epoch/chunk/policy": 1.5, "it/epoch/chunk/step": 1.0}
    found = {one.name: one for one in bound(rollout(), DURATIONS, smallest_s=parts).limits}
    # the reward can be split, and its parts are not known
    assert found[CHAIN].least_s == pytest.approx(0.5 + 3 * 2.5 + 4)
    policy = found["component worker policy"]
    # all answers but the last one of the first epoch, after which nothing is left but a chunk of simulation
    assert (policy.head_s, policy.work_s, policy.tail_s) == (0.5, 5 * 2.0, 1.0 + 1.5 + 1.0)


def test_resources_bound_and_what_is_not_known_is_said() -> None:
    given_: dict[str, Resource | Unavailable] = {
        "SM time": Resource(18.0),
        "cores": Resource(480.0, 16),
        "GPU time slices": Unavailable("no utilisation was read"),
    }
    found = bound(rollout(), DURATIONS, given_)
    assert (found.binding, found.least_s) == ("cores", 30.0)
    assert dict(found.unknown) == {"GPU time slices": "no utilisation was read"}
    assert Bound.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_what_holds_only_under_an_assumption_is_told_beside_the_bound() -> None:
    assumed: dict[str, Resource | Unavailable] = {
        "short, in turn": Resource(1.0),
        "long, in turn": Resource(99.0),
        "GPU, in turn": Unavailable("no utilisation was read"),
    }
    plain, found = bound(rollout(), DURATIONS), bound(rollout(), DURATIONS, assumed=assumed)
    assert (found.limits, found.least_s) == (plain.limits, plain.least_s)
    assert found.assumed == (Limit("long, in turn", 99.0), Limit("short, in turn", 1.0))
    assert dict(found.unknown) == {"GPU, in turn": "no utilisation was read"}
    assert Bound.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    older = {k: v for k, v in found.to_dict().items() if k != "assumed"}
    assert Bound.from_dict(older).assumed == ()


def test_work_of_which_the_calls_are_known_has_what_comes_before_and_after() -> None:
    native = rollout(epochs=1)
    answers = tuple(c.id for c in native.of_node("it/epoch/chunk/policy"))
    last = native.of_node("it/advantage")[0].id
    works = (Work(9.0, answers), Work(0.5, (answers[-1], last)), Work(0.25))
    found = bound(native, DURATIONS, {"GPU": Resource(10.0, works=works)}, whole_batches=True)
    gpu = next(one for one in found.limits if one.name == "GPU")
    # who did the half second is not known: perhaps advantages, after which nothing comes; 0.5 s are anybody's
    assert gpu == Limit("GPU", 9.0, 1.0, 7.5)
    assert gpu.to_dict() == {"name": "GPU", "least_s": 17.5, "head_s": 1.0, "work_s": 9.0, "tail_s": 7.5}
    assert str(gpu) == "GPU 17.50 s (1.00 + 9.00 + 7.50)"
    halved = bound(native, DURATIONS, {"GPU": Resource(10.0, 2.0, works)}, whole_batches=True)
    assert next(one for one in halved.limits if one.name == "GPU").work_s == pytest.approx(4.5)


def test_a_bound_that_one_worker_sets_is_reached() -> None:
    # load, four answers on one worker, each followed by a check of its own, then an end
    body = [Node("load", "disk", (), mixes=True, duration_s=2.0)]
    for i in range(4):
        body.append(Node(f"answer{i}", "policy", ("load",), mixes=True))
        body.append(Node(f"check{i}", f"judge{i}", (f"answer{i}",), mixes=True))
    body.append(Node("end", "learner", ("+".join(f"check{i}" for i in range(4)),), mixes=True))
    native = graph_of(body, ())
    takes = {"it/load": 2.0, "it/end": 0.5} | {f"it/answer{i}": 1.5 for i in range(4)}
    takes |= {f"it/check{i}": 0.25 * (i + 1) for i in range(4)}
    found = bound(native, takes)
    assert found.limits[0] == Limit("component worker policy", 6.0, 2.0, 0.75)
    optimum = min(_makespan(native, takes, random.Random(seed)) for seed in range(200))
    assert optimum == pytest.approx(found.least_s)
    assert max(one.least_s for one in found.limits[1:]) < found.least_s


def test_calls_of_which_only_a_sample_is_used_have_nothing_after_their_other_parts() -> None:
    takes = {"it/make": 1.0, "it/use": 2.0, "it/watch": 4.0}
    for reads, after_s in (("make", 4.0), ("make:row", 0.0), ("make:col", 4.0), ("make:flat", 4.0)):
        native = graph_of((Node("make", "a"), Node("watch", "b", (reads,), mixes=True)), ())
        assert chains(native, {**takes, "it/make": 0.0}, whole_batches=False).tail_s["it/make"] == after_s
        assert chains(native, takes, whole_batches=True).tail_s["it/make"] == 4.0
        assert chains(native, takes, whole_batches=False).head_s["it/watch"] == 1.0
    shared = graph_of((Node("make", "a", pair=True), Node("watch", "b", ("make",), mixes=True)), ())
    make, watch = shared.calls
    told = as_pack(substitute(watch.arguments, lambda _: Ref(make.id, ("info",))))
    only = replace(shared, calls=(make, replace(watch, arguments=told)))
    assert chains(shared, takes, whole_batches=False).tail_s["it/make"] == 4.0
    assert chains(only, takes, whole_batches=False).tail_s["it/make"] == 0.0  # one part tells it


def test_samples_of_a_list_that_come_from_different_calls_do_not_wait_for_each_other() -> None:
    body = (*(Node(f"make{i}", "a", mixes=True) for i in range(2)), Node("use", "b", ("make0+make1",)))
    native = graph_of(body, (), batch=2)
    takes = {"it/make0": 1.0, "it/make1": 3.0, "it/use": 0.0}
    assert chains(native, takes, whole_batches=False).head_s["it/use"] == 3.0
    spec = native.nodes["it/use"]
    assert spec.batch is not None
    lists = replace(spec, batch=replace(spec.batch, parameters=(), sequences=("p0",)))
    native = replace(native, nodes={**native.nodes, "it/use": lists})
    assert chains(native, takes, whole_batches=False).head_s["it/use"] == 0.0
    assert chains(native, takes, whole_batches=True).head_s["it/use"] == 3.0


def test_state_of_some_samples_orders_only_their_parts() -> None:
    body = (Node("first", "a", (), {"ENV": "refresh"}), Node("then", "b", (), {"ENV": "update"}))
    native = graph_of(body, (state("ENV", batch=4),))
    takes = {"it/first": 1.0, "it/then": 2.0}
    assert chains(native, takes, whole_batches=False).head_s["it/then"] == 1.0
    first, then = native.calls
    fewer = replace(native, calls=(first, replace(then, accesses=then.accesses[:2])))
    found = chains(fewer, takes, whole_batches=False)
    assert (found.head_s["it/then"], found.tail_s["it/first"]) == (0.0, 0.0)
    found = chains(fewer, takes, whole_batches=True)
    assert (found.head_s["it/then"], found.tail_s["it/first"], found.longest_s) == (1.0, 2.0, 3.0)


@pytest.mark.parametrize(
    ("durations", "resources"),
    [
        ({"it/advantage": 1.0}, {}),
        ({**DURATIONS, "it/advantage": -1.0}, {}),
        (DURATIONS, {"cores": Resource(1.0, 0)}),
        (DURATIONS, {"cores": Resource(-1.0)}),
        (DURATIONS, {"cores": Resource(1.0, works=(Work(1.1, ("it/advantage",)),))}),
        (DURATIONS, {"cores": Resource(1.0, works=(Work(-1.0, ("it/advantage",)),))}),
        (DURATIONS, {"cores": Resource(1.0, works=(Work(1.0, ("it/nobody",)),))}),
    ],
)
def test_what_makes_no_bound_is_refused(
    durations: dict[str, float], resources: dict[str, Resource | Unavailable]
) -> None:
    with pytest.raises(UsageError):
        bound(rollout(), durations, resources)


def test_sm_time_is_that_of_what_is_called_once() -> None:
    windows = [window("it/epoch/chunk/policy", 12, 0.5), window("it/epoch", 30, 0.4)]
    works = tuple(Work(1.0, (call.id,)) for call in rollout().of_node("it/epoch/chunk/policy"))
    assert sm_resource(rollout(), windows) == Resource(6.0, works=works)
    unknown = sm_resource(rollout(), [*windows, window("it/advantage", 4, None)])
    assert isinstance(unknown, Unavailable)
    assert sm_resource(rollout(), [*windows, window("it/advantage", 0, None, eligible=False)]) == Resource(
        6.0, works=works
    )


def test_bounds_that_were_stored_can_be_read() -> None:
    documents = [
        json.loads(path.read_text()).get("bound") or {} for path in RESULTS.glob("*/optimize_*.json")
    ]
    stored = [one for document in documents for one in document.values()]
    assert stored
    for document in stored:
        found = Bound.from_dict(document)
        assert (found.least_s, found.binding) == (document["least_s"], document["binding"])
        assert [one.least_s for one in found.limits] == [one["least_s"] for one in document["limits"]]
        assert Bound.from_dict(found.to_dict()) == found


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 400))
def test_no_graph_that_is_found_is_faster_than_the_bound(seed: int) -> None:
    program = make(seed)
    workload = SimulatedWorkload(program.graph, replace(program.model, friction=0.0))
    alone = workload.profile(program.graph)
    durations = {w.node: w.mean_s for w in alone.windows}
    resources = {"SM time": sm_resource(program.graph, alone.windows)}
    found = optimize(workload, Options(combinations=2))
    split = any(one.kind == "split_spatial" for one in found.steps)
    least = bound(program.graph, durations, resources, whole_batches=not split)
    assert least.least_s <= workload.simulated(found.graph).makespan_s * (1 + 1e-6)
    assert least.least_s <= workload.simulated(program.graph).makespan_s * (1 + 1e-6)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6))
def test_no_order_of_a_random_program_or_of_its_parts_is_faster_than_the_bound(seed: int) -> None:
    draw = random.Random(seed)
    native = program(draw)
    durations = {node: draw.choice((0.0, 0.5, 1.0, 3.0)) for node in native.nodes}
    whole, any_graph = (bound(native, durations, whole_batches=w) for w in (True, False))
    assert any_graph.least_s <= whole.least_s * (1 + 1e-9)
    old = _old_limits(native, durations)
    for one in whole.limits:
        assert one.least_s >= old[one.name] * (1 - 1e-9)
    for graph in (native, *_transformed(native, draw)):
        split = any(call.samples is not None for call in graph.calls)
        takes_s = min(_makespan(graph, durations, draw) for _ in range(4))
        assert (any_graph if split else whole).least_s <= takes_s * (1 + 1e-9)


def _old_limits(native: CallGraph, durations: dict[str, float]) -> dict[str, float]:
    """Sums, and the longest chain."""
    end: dict[str, float] = {}
    before: dict[str, list[str]] = {}
    for d in dependencies(native):
        if d.kind != "storage":
            before.setdefault(d.target, []).append(d.source)
    sums: dict[str, float] = {}
    for call in native.calls:
        takes = durations[call.node]
        end[call.id] = takes + max((end[name] for name in before.get(call.id, ())), default=0.0)
        if component := native.nodes[call.node].component:
            sums[f"{WORKER} {component}"] = sums.get(f"{WORKER} {component}", 0.0) + takes
    return {CHAIN: max(end.values()), **sums}


def _transformed(native: CallGraph, draw: random.Random) -> Iterator[CallGraph]:
    """Legal graphs of the same work."""
    graph = native
    for _ in range(12):
        try:
            graph = step(draw, graph)(graph)
        except OverlapError:
            continue
        yield graph


def _makespan(graph: CallGraph, durations: dict[str, float], draw: random.Random) -> float:
    """Time in a random order that values allow: a worker serves one call at a time, streams do not count."""
    before: dict[str, set[str]] = {call.id: set() for call in graph.calls}
    for d in dependencies(graph):
        if d.kind != "storage":
            before[d.target].add(d.source)
    end: dict[str, float] = {}
    free: dict[str, float] = {}
    waiting = {call.id: call for call in graph.calls}
    while waiting:
        call = draw.choice([c for c in waiting.values() if before[c.id] <= end.keys()])
        del waiting[call.id]
        share = 1.0 if call.samples is None else len(call.samples) / (call.batch_size or 1)
        worker = component_worker(graph, call) or call.id
        start = max([free.get(worker, 0.0), *(end[name] for name in before[call.id])])
        end[call.id] = free[worker] = start + durations[call.node] * share
    return max(end.values(), default=0.0)
