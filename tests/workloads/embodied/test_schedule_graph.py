"""What the model of the schedules must say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.taskgraph import TaskGraph, schedule, work_s
from rlprof.workloads.embodied.errors import ConfigurationError
from rlprof.workloads.embodied.schedule_graph import Costs, Shape, asynchronous_graph, iteration_graph
from rlprof.workloads.embodied.schedules import SCHEDULES, StageSchedule, schedule_named

COLOCATED, COLOCATED_PIPE = SCHEDULES["colocated"], SCHEDULES["colocated-pipe"]
HYBRID, HYBRID_PIPE = SCHEDULES["hybrid"], SCHEDULES["hybrid-pipe"]
seconds = st.floats(0.01, 10)
small = st.integers(1, 4)


def rollout_s(stages: StageSchedule, shape: Shape, costs: Costs) -> float:
    """Time of the rollout alone: from the synchronisation, which takes none, to its last task."""
    planned = schedule(iteration_graph(stages, shape, costs))
    done = [f for t, f in zip(planned.graph.tasks, planned.finish_s, strict=True) if t.worker != "actor"]
    return float(max(done))


def costs(env_s: float, predict_s: float, *, stages: int = 1, reset_s: float = 0.0, **values) -> Costs:
    """Times of one stage when those of the whole batch are given: linear in the batch."""
    return Costs(
        sync_s=0.0,
        reset_s=reset_s / stages,
        predict_s=predict_s / stages,
        env_s=env_s / stages,
        adv_s=0.0,
        train_s=0.0,
        **values,
    )


@settings(deadline=None)
@given(small, small, seconds, seconds, seconds)
def test_one_stage_on_one_group_of_gpus_takes_the_sum(epochs, chunks, env_s, predict_s, reset_s) -> None:
    shape = Shape(epochs, chunks)
    wanted = epochs * (reset_s + chunks * (env_s + predict_s) + predict_s)
    assert rollout_s(COLOCATED, shape, costs(env_s, predict_s, reset_s=reset_s)) == pytest.approx(wanted)
    # one stage on separate GPUs alternates as well
    assert rollout_s(HYBRID, shape, costs(env_s, predict_s, reset_s=reset_s)) == pytest.approx(wanted)


@settings(deadline=None)
@given(small, small, seconds, seconds)
def test_two_stages_on_separate_gpus_take_at_least_the_longer_of_both(
    epochs, chunks, env_s, predict_s
) -> None:
    found = rollout_s(HYBRID_PIPE, Shape(epochs, chunks), costs(env_s, predict_s, stages=2))
    total_env, total_predict = epochs * chunks * env_s, epochs * (chunks + 1) * predict_s
    assert found >= max(total_env, total_predict) * (1 - 1e-9)
    assert found <= (total_env + total_predict) * (1 + 1e-9)


@settings(deadline=None)
@given(seconds, seconds)
def test_two_stages_tend_to_the_bottleneck_and_fill_and_tail_vanish(env_s, predict_s) -> None:
    bottleneck, beyond = max(env_s, predict_s), []
    for chunks in (1, 4, 16, 64):
        took = rollout_s(HYBRID_PIPE, Shape(1, chunks), costs(env_s, predict_s, stages=2))
        beyond.append(took - chunks * bottleneck)
        # at most one stage of each to fill, and the last values
        assert beyond[-1] <= env_s / 2 + predict_s / 2 + predict_s + 1e-9
    assert max(beyond) - min(beyond) <= predict_s + env_s  # independent of the number of chunks


@settings(deadline=None)
@given(seconds, seconds)
def test_with_one_chunk_stages_gain_nothing_where_a_half_takes_as_long_as_the_whole(env_s, predict_s) -> None:
    """Launch-bound calls: with one chunk there is only fill and tail."""
    shape = Shape(1, 1, values=False)
    whole = rollout_s(HYBRID, shape, costs(env_s, predict_s))
    assert rollout_s(HYBRID_PIPE, shape, costs(2 * env_s, 2 * predict_s, stages=2)) >= whole - 1e-9


@settings(deadline=None)
@given(small, small, seconds, seconds, st.integers(1, 100), st.integers(1, 100))
def test_sharing_gpus_never_beats_the_work(epochs, chunks, env_s, predict_s, env_sm, predict_sm) -> None:
    priced = costs(env_s, predict_s, stages=2, env_sm=env_sm, predict_sm=predict_sm)
    graph = iteration_graph(COLOCATED_PIPE, Shape(epochs, chunks), priced)
    planned = schedule(graph).makespan_s
    work = epochs * (chunks * (env_s * env_sm + predict_s * predict_sm) + predict_s * predict_sm) / 100
    assert planned >= work * (1 - 1e-9)
    assert work_s(graph)["gpu"] == pytest.approx(work)


@settings(deadline=None)
@given(small, small, seconds, seconds)
def test_stages_that_need_the_whole_gpu_gain_nothing(epochs, chunks, env_s, predict_s) -> None:
    piped = rollout_s(COLOCATED_PIPE, Shape(epochs, chunks), costs(env_s, predict_s, stages=2))
    assert piped == pytest.approx(rollout_s(COLOCATED, Shape(epochs, chunks), costs(env_s, predict_s)))


@settings(deadline=None)
@given(small, small, seconds, seconds, st.integers(1, 50), st.integers(1, 50))
def test_stages_that_fit_beside_each_other_never_lose(
    epochs, chunks, env_s, predict_s, env_sm, predict_sm
) -> None:
    sharing = {"env_sm": env_sm, "predict_sm": predict_sm}
    shape = Shape(epochs, chunks)
    piped = rollout_s(COLOCATED_PIPE, shape, costs(env_s, predict_s, stages=2, **sharing))
    assert piped <= rollout_s(COLOCATED, shape, costs(env_s, predict_s, **sharing)) * (1 + 1e-9)


def test_reloading_and_offloading_are_tasks_where_rlinf_has_them() -> None:
    moves = {"env": 1.0, "rollout": 2.0, "actor": 4.0}
    priced = Costs(sync_s=0.5, reset_s=1, predict_s=1, env_s=1, adv_s=1, train_s=1, move_s=moves)
    graph = iteration_graph(HYBRID, Shape(1, 1), priced)
    planned = schedule(graph)
    start = {t.id: s for t, s in zip(graph.tasks, planned.start_s, strict=True)}
    end = {t.id: s for t, s in zip(graph.tasks, planned.finish_s, strict=True)}
    assert start["sync_weights"] >= end["reload-weights actor"]
    assert start["predict/0.0.0"] >= end["reload rollout"]
    assert start["reset/0.0"] >= end["reload env"]
    # the environments leave only after all epochs; that hides behind the advantages
    assert start["offload env"] >= end["env/0.0.0"]
    assert start["adv/0"] < end["offload env"] + 1e-9
    assert start["train/0.0.0"] >= end["reload actor"] >= end["offload rollout"] + moves["actor"]
    assert start["offload actor"] >= end["train/0.0.0"]
    assert {t.id for t in iteration_graph(COLOCATED, Shape(1, 1)).tasks if "load" in t.id} == set()


@given(small, small, st.integers(1, 3), st.integers(1, 3), st.sampled_from([1, 2]), st.booleans())
@settings(deadline=None)
def test_every_unit_of_work_is_there_once(epochs, chunks, passes, minibatches, stages, values) -> None:
    shape = Shape(epochs, chunks, passes, epochs, minibatches, values)
    graph = iteration_graph(StageSchedule("x", "hybrid", stages, True), shape)
    count = dict.fromkeys(("reset", "predict", "env", "values", "adv", "train", "sync_weights"), 0)
    for task in graph.tasks:
        if task.payload in count:
            count[task.payload] += 1
    assert count == {
        "reset": epochs * stages,
        "predict": epochs * chunks * stages,
        "env": epochs * chunks * stages,
        "values": epochs * stages * values,
        "adv": epochs,
        "train": passes * epochs * minibatches,
        "sync_weights": 1,
    }


def before(graph: TaskGraph) -> Callable[[str, str], bool]:
    above: dict[str, set[str]] = {t.id: set() for t in graph.tasks}
    for position in graph.topological_order:
        task = graph.tasks[position].id
        for edge in graph.edges:
            if edge.source == task:
                above[edge.target] |= above[task] | {task}
    return lambda a, b: a in above[b]


def test_training_on_an_epoch_may_begin_before_the_next_one() -> None:
    shape = Shape(2, 2, parts=2)
    piped = StageSchedule("x", "hybrid", 1, train_pipe=True)
    comes_before = before(iteration_graph(piped, shape))
    assert not comes_before("reset/1.0", "train/0.0.0")
    assert comes_before("values/0.0", "train/0.0.0")
    assert comes_before("values/1.0", "train/0.1.0")
    assert before(iteration_graph(HYBRID, shape))("values/1.0", "train/0.0.0")
    with pytest.raises(ConfigurationError, match="minibatch scope to epoch"):
        iteration_graph(piped, Shape(2, 2))


@settings(deadline=None)
@given(small, small, st.sampled_from([1, 2]), seconds, seconds)
def test_episodes_that_begin_early_hide_behind_training(epochs, chunks, stages, reset_s, train_s) -> None:
    plain = StageSchedule("x", "colocated", stages)
    ahead = replace(plain, env_prefetch=True)
    priced = Costs(0.0, reset_s / stages, 0.1, 0.1, 0.1, 0.0, train_s, env_sm=50, train_sm=50)
    shape = Shape(epochs, chunks, minibatches=2)
    graph = iteration_graph(ahead, shape, priced)
    planned = schedule(graph)
    start = {t.id: s for t, s in zip(graph.tasks, planned.start_s, strict=True)}
    end = {t.id: s for t, s in zip(graph.tasks, planned.finish_s, strict=True)}
    # nothing of this iteration's rollout is left when the next one's episodes begin
    assert start["prefetch/0"] >= max(f for t, f in end.items() if t.split("/")[0] in ("env", "values"))
    hidden = schedule(iteration_graph(plain, shape, priced)).makespan_s - planned.makespan_s
    assert hidden == pytest.approx(reset_s - max(0.0, reset_s - 2 * train_s), abs=1e-9)
    # each iteration begins as many episodes as before
    assert sum(t.duration_s for t in graph.tasks if t.payload in ("reset", "prefetch")) == pytest.approx(
        epochs * reset_s
    )
    with pytest.raises(ConfigurationError, match="offloads the simulator"):
        iteration_graph(replace(HYBRID, env_prefetch=True), shape)


def test_an_epoch_begins_when_the_last_values_are_there() -> None:
    comes_before = before(iteration_graph(HYBRID_PIPE, Shape(2, 1)))
    assert comes_before("values/0.0", "reset/1.1")
    assert comes_before("values/0.1", "reset/1.0")
    assert not comes_before("env/0.0.1", "predict/0.0.1")


@settings(deadline=None)
@given(seconds, seconds, st.floats(0, 2), st.integers(0, 2))
def test_an_asynchronous_period_is_the_longer_branch(generate_s, train_s, sync_s, staleness) -> None:
    spans = [
        schedule(
            asynchronous_graph(n, generate_s=generate_s, train_s=train_s, sync_s=sync_s, staleness=staleness)
        ).makespan_s
        for n in (20, 40)
    ]
    period = (spans[1] - spans[0]) / 20
    if staleness == 0:
        assert period == pytest.approx(generate_s + train_s + sync_s)
    else:
        assert period == pytest.approx(max(generate_s, train_s + sync_s))


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="use colocated, colocated-pipe"):
        schedule_named("rlinf")
    with pytest.raises(ConfigurationError, match="asynchronous"):
        iteration_graph(SCHEDULES["async"], Shape(1, 1))
