from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from pytest import approx  # noqa: PT013

from rlprof.planning.evaluate import Evaluation, Problem, evaluate
from rlprof.planning.options import ModelOptions
from rlprof.planning.pipeline import Container, Invocation, Link, Model, Pipeline
from rlprof.planning.plan import Plan
from rlprof.planning.timeline import gpu_ranges
from rlprof.planning.times import GivenTimes
from rlprof.planning.workload import LengthQuantile, Workload
from rlprof.taskgraph import RunRecord, TaskRun, verify
from tests.planning.made import TINY, at, cluster
from tests.planning.test_lower import MACHINES, SMALL, cases

HALVES = (LengthQuantile(0.5, 50), LengthQuantile(1.0, 100))


def three(tau: int) -> Pipeline:
    """Generation, reward, training, as in the worked example."""
    return Pipeline(
        "three",
        (Model("pi", TINY, trainable=True), Model("R", TINY, "scalar")),
        (
            Container("W_pi", weights_of="pi"),
            Container("Y", "B*R*(L_p+L_r)"),
            Container("r", "B*R"),
        ),
        (
            Invocation("g", "generation", "pi", ("W_pi",), ("Y",)),
            Invocation("i", "inference", "R", ("Y",), ("r",)),
            Invocation("t", "training", "pi", ("W_pi", "r"), ("W_pi",)),
        ),
        (Link("g", "i", "Y"), Link("i", "t", "r")),
        (Link("t", "g", "W_pi"),),
        staleness={"pi": tau},
    )


def example(tau: int, steps: int, *, split: bool = False) -> Evaluation:
    """4 s on GPU 0, then 1 s and 3 s on GPU 1; transfers take 0.5 s, halves of them 0.25 s."""
    work = Workload(8, 28, 100, quantiles=HALVES if split else ())
    problem = Problem(three(tau), work, cluster(1, 1, 2), ModelOptions(steps=steps))
    whole = problem.pipeline.volume_bytes("Y", work)
    halves = {whole / 2: 0.25}
    times = GivenTimes({"g": 4.0, "i": 1.0, "t": 3.0}, ("g", "i", "t"), comm_s=lambda b: halves.get(b, 0.5))
    return evaluate(problem, Plan({"g": at(0), "i": at(1), "t": at(1)}), times)


@pytest.mark.parametrize(
    ("tau", "steps", "split", "makespan_s"),
    [
        (0, 3, False, 26.5), (1, 3, False, 17.5), (0, 3, True, 24.25), (1, 3, True, 16.75),
        (0, 8, False, 71.5), (1, 8, False, 40.0), (0, 8, True, 65.5), (1, 8, True, 39.25),
    ],
)  # fmt: skip
def test_the_worked_example(tau: int, steps: int, split: bool, makespan_s: float) -> None:
    assert example(tau, steps, split=split).makespan_s == makespan_s


def test_the_third_generation_of_the_worked_example_starts_at_nine_seconds() -> None:
    e = example(1, 3)
    (start,) = [e.timeline.start_s[i] for i in range(len(e.graph.nodes)) if e.graph.label(i) == "g 2"]
    assert start == 9.0


def test_score_utilisation_and_parallelism_by_hand() -> None:
    e = example(0, 1)  # 4 s and 0.5 s and 1 s and 3 s, one after the other
    assert e.makespan_s == 8.5
    assert e.score == approx(8 * 128 / 8.5)
    assert e.utilisation_frac == approx((4 + 0.5 + 1 + 3) / (2 * 8.5))
    assert e.timeline.parallelism == approx(8 / 8.5)


def test_two_gpus_at_once_by_hand() -> None:
    """One step stale: generation of the next step beside inference and training of this one.

    GPU 0 generates from 0 to 4 and 4 to 8; data arrives at 4.5 and 8.5; GPU 1 judges and trains until 8.5,
    receives until 9, and judges and trains until 13.
    """
    e = example(1, 2)
    assert e.makespan_s == 13.0
    assert e.timeline.parallelism == approx(2 * (4 + 1 + 3) / 13)
    # both transfers hold their target alone; there is no publication within two steps
    assert e.utilisation_frac == approx((2 * 4 + 2 * (0.5 + 1 + 3)) / (2 * 13))
    assert e.score == approx(2 * 8 * 128 / 13)


def test_responses_to_one_prompt_count_each() -> None:
    work = Workload(8, 28, 100, rollouts_per_prompt=3)
    problem = Problem(three(0), work, cluster(1, 1, 1), ModelOptions(steps=1))
    e = evaluate(problem, Plan(dict.fromkeys("git", at(0))), GivenTimes(dict.fromkeys("git", 1.0), "git"))
    assert e.score == approx(8 * 3 * 128 / 3.0)


def test_gpus_that_a_plan_leaves_out_count_as_idle() -> None:
    work = Workload(8, 28, 100)
    problem = Problem(three(0), work, cluster(1, 1, 4), ModelOptions(steps=1))
    e = evaluate(problem, Plan(dict.fromkeys("git", at(0))), GivenTimes(dict.fromkeys("git", 1.0), "git"))
    assert e.utilisation_frac == approx(1 / 4)


def test_a_transfer_may_hold_its_source_as_well() -> None:
    work = Workload(8, 28, 100)
    times = GivenTimes({"g": 4.0, "i": 1.0, "t": 3.0}, "git", comm_s=lambda _: 0.5)
    plan = Plan({"g": at(0), "i": at(1), "t": at(1)})
    second = []
    for source in (False, True):
        options = ModelOptions(steps=2, reserve_source=source)
        e = evaluate(Problem(three(1), work, cluster(1, 1, 2), options), plan, times)
        second += [e.timeline.start_s[i] for i in range(len(e.graph.nodes)) if e.graph.label(i) == "g 1"]
    assert second == [4.0, 4.5]  # the second generation waits until the first transfer has left


def test_the_critical_path_is_as_long_as_the_makespan() -> None:
    t = example(1, 8, split=True).timeline
    path = t.critical_path()
    assert t.start_s[path[0]] == 0
    assert t.finish_s[path[-1]] == t.makespan_s
    for a, b in pairwise(path):
        assert t.finish_s[a] == t.start_s[b]


def test_interleaved_environment_and_rollout_never_beat_the_work_that_there_is() -> None:
    """RLinf's placement example: 36 s each on 4 of 8 GPUs, then 60 s of training on all: 96 s a step."""
    pipeline = Pipeline(
        "embodied",
        (Model("policy", TINY, trainable=True), Model("environment", TINY)),
        (Container("W", weights_of="policy"), Container("actions", "B"), Container("frames", "B")),
        (
            Invocation("rollout", "inference", "policy", ("W",), ("actions",)),
            Invocation("env", "inference", "environment", (), ("frames",)),
            Invocation("actor", "training", "policy", ("W", "actions", "frames"), ("W",)),
        ),
        (Link("rollout", "actor", "actions"), Link("env", "actor", "frames")),
        (Link("actor", "rollout", "W"),),
    )
    times = GivenTimes({"rollout": 36.0, "env": 36.0, "actor": 60.0}, ("rollout", "env", "actor"))
    plan = Plan({"rollout": at(0, 4), "env": at(4, 4), "actor": at(0, 8)})
    for tau in (0, 1, 2):
        for steps in (1, 2, 5):
            problem = Problem(
                pipeline.with_staleness({"policy": tau}),
                Workload(8, 1, 1),
                cluster(1, 1, 8),
                ModelOptions(steps=steps),
            )
            assert evaluate(problem, plan, times).makespan_s == 96.0 * steps


def test_sets_of_gpus_are_written_as_ranges() -> None:
    assert [gpu_ranges(m) for m in (0b1, 0b1111, 0b101, 0b11011)] == ["0", "0-3", "0,2", "0-1,3-4"]


@settings(max_examples=40, deadline=None)
@given(cases())
def test_schedules_keep_edges_and_exclusive_gpus(case: tuple) -> None:  # type: ignore[type-arg]
    pipeline, plan, options = case
    e = evaluate(Problem(pipeline, SMALL, MACHINES, options), plan)
    t = e.timeline
    for u, v in e.graph.edges:
        assert t.finish_s[u] <= t.start_s[v]
    # an independent judge: the verification of a run, on the same graph, in picoseconds
    tasks = t.to_task_graph()
    runs = [
        TaskRun(
            tasks.tasks[n].id,
            "w",
            round(t.start_s[i] * 1e12),
            round(t.finish_s[i] * 1e12),
            round(t.finish_s[i] * 1e12),
        )
        for n, i in enumerate(t.order)
    ]
    assert not verify(tasks, RunRecord(tasks.hash, tuple(runs), 0, round(t.makespan_s * 1e12)))
    # bounds: no longer than one after the other, no shorter than the busiest group
    assert max(sum(t.finish_s[i] - t.start_s[i] for i in held) for _, held in t.groups) <= t.makespan_s * (
        1 + 1e-12
    )
    assert t.makespan_s <= sum(f - s for s, f in zip(t.start_s, t.finish_s, strict=True)) * (1 + 1e-12)
    assert 0 < e.utilisation_frac <= 1 + 1e-12
    path = t.critical_path()
    assert t.start_s[path[0]] == 0
    assert all(t.finish_s[a] == t.start_s[b] for a, b in pairwise(path))


def renamed(pipeline: Pipeline) -> Pipeline:
    def new(name: str) -> str:
        return f"x{name[::-1]}"

    return Pipeline(
        new(pipeline.name),
        tuple(Model(new(m.name), m.shape, m.head, m.trainable) for m in pipeline.models),
        tuple(
            Container(new(c.name), c.elements, c.weights_of and new(c.weights_of))
            for c in pipeline.containers
        ),
        tuple(
            Invocation(
                new(v.name), v.role, new(v.model), tuple(map(new, v.inputs)), tuple(map(new, v.outputs))
            )
            for v in pipeline.invocations
        ),
        tuple(Link(new(e.source), new(e.target), new(e.container)) for e in pipeline.data),
        tuple(Link(new(e.source), new(e.target), new(e.container)) for e in pipeline.publications),
        tuple(map(new, pipeline.inputs)),
        tuple(map(new, pipeline.outputs)),
        {new(m): k for m, k in pipeline.tau.items()},
    )


@settings(max_examples=30, deadline=None)
@given(cases())
def test_names_do_not_matter(case: tuple) -> None:  # type: ignore[type-arg]
    pipeline, plan, options = case
    same = Plan({f"x{name[::-1]}": a for name, a in plan.assignments.items()})
    a = evaluate(Problem(pipeline, SMALL, MACHINES, options), plan)
    b = evaluate(Problem(renamed(pipeline), SMALL, MACHINES, options), same)
    assert (a.score, a.utilisation_frac, a.peak_bytes) == (b.score, b.utilisation_frac, b.peak_bytes)
