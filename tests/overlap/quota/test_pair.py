"""Which process has slack, in runs whose times are simulated or made up."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.errors import UsageError
from rlprof.overlap.quota.pair import END, EligiblePair, WorkerProcess, find_pair
from rlprof.taskgraph import Edge, RunRecord, Task, TaskGraph, TaskRun, schedule
from rlprof.unavailable import Unavailable

BOTH = {"policy": WorkerProcess(1), "simulator": WorkerProcess(2)}


def ran(graph: TaskGraph, times_s: dict[str, tuple[float, float]]) -> RunRecord:
    """Record of a run with these starts and ends."""
    runs = [
        TaskRun(t.id, t.worker or "caller", *(round(1e9 * times_s[t.id][i]) + 10**12 for i in (0, 1, 1)))
        for t in graph.tasks
    ]
    end_ns = max(run.end_ns for run in runs)
    return RunRecord(graph.hash, tuple(sorted(runs, key=lambda r: r.end_ns)), 10**12, end_ns)


def simulated(graph: TaskGraph) -> RunRecord:
    """Record of the run that the scheduler predicts."""
    made = schedule(graph)
    times = {t.id: (float(made.start_s[i]), float(made.finish_s[i])) for i, t in enumerate(graph.tasks)}
    return ran(graph, times)


def fork_join(*, policy_s: float, simulator_s: float) -> TaskGraph:
    tasks = [
        Task("reset", "reset", 1.0, worker="simulator", payload="reset"),
        Task("infer", "infer", policy_s, worker="policy", payload="infer", program_order=1),
        Task("step", "step", simulator_s, worker="simulator", payload="step", program_order=2),
        Task("reward", "reward", 1.0, worker="policy", payload="reward", program_order=3),
    ]
    edges = [Edge("reset", "infer"), Edge("reset", "step"), Edge("infer", "reward"), Edge("step", "reward")]
    return TaskGraph(tuple(tasks), tuple(edges))


def interleaved(chunks: int, *, policy_s: float, simulator_s: float) -> TaskGraph:
    """Two groups of environments: the policy infers for one while the simulator steps the other."""
    tasks, edges = [], []
    for c in range(chunks):
        for g in (0, 1):
            infer, step = f"infer {c} {g}", f"step {c} {g}"
            tasks.append(
                Task(infer, "infer", policy_s, worker="policy", payload="infer", program_order=len(tasks))
            )
            tasks.append(
                Task(step, "step", simulator_s, worker="simulator", payload="step", program_order=len(tasks))
            )
            edges.append(Edge(infer, step))
            if c:
                edges.append(Edge(f"step {c - 1} {g}", infer))
    return TaskGraph(tuple(tasks), tuple(edges))


def test_the_branch_that_is_ready_first_has_the_slack() -> None:
    graph = fork_join(policy_s=3.0, simulator_s=5.0)
    pair = find_pair(graph, simulated(graph), BOTH)
    assert isinstance(pair, EligiblePair)
    assert (pair.earlier, pair.later, pair.join) == ("policy", "simulator", "reward")
    assert (pair.slack_s, pair.earlier_ready_s, pair.later_ready_s) == pytest.approx((2.0, 3.0, 5.0))
    assert (pair.occurrences, pair.agreeing, pair.weight_s) == (1, 1, pytest.approx(2.0))
    assert pair.meetings[0].overlap_s == pytest.approx(3.0)
    json.dumps(pair.to_dict())


@given(st.floats(-5, 5), st.floats(-5, 5))
def test_the_join_moves_as_far_as_the_slack_allows(later_gains: float, earlier_loses: float) -> None:
    graph = fork_join(policy_s=3.0, simulator_s=5.0)
    pair = find_pair(graph, simulated(graph), BOTH)
    assert isinstance(pair, EligiblePair)
    join = max(5.0 - later_gains, 3.0 + earlier_loses)
    assert pair.join_gain_s(later_gains, earlier_loses) == pytest.approx(5.0 - join, abs=1e-6)
    gain = pair.join_gain_s(later_gains, earlier_loses) > 1e-9
    assert gain == (later_gains > 1e-9 and earlier_loses < pair.slack_s - 1e-9)


@settings(max_examples=60)
@given(st.integers(2, 5), st.floats(0.5, 4), st.floats(0.5, 4))
def test_interleaved_groups_meet_in_every_chunk(chunks: int, policy_s: float, simulator_s: float) -> None:
    graph = interleaved(chunks, policy_s=policy_s, simulator_s=simulator_s)
    pair = find_pair(graph, simulated(graph), BOTH)
    if abs(policy_s - simulator_s) < 1e-3:
        return
    assert isinstance(pair, EligiblePair)
    faster, slower = ("policy", "simulator") if policy_s < simulator_s else ("simulator", "policy")
    assert (pair.earlier, pair.later) == (faster, slower)
    # a call of each runs beside one of the other, and whoever is faster waits for the rest of it
    assert pair.slack_s == pytest.approx(abs(policy_s - simulator_s), abs=1e-6)
    assert pair.occurrences >= chunks - 1
    assert pair.agreeing == pair.occurrences


def test_several_runs_are_taken_together() -> None:
    graph = fork_join(policy_s=3.0, simulator_s=5.0)
    times = {"reset": (0.0, 1.0), "infer": (1.0, 4.0), "step": (1.0, 6.0), "reward": (7.0, 8.0)}
    records = [ran(graph, times | {"step": (1.0, end)}) for end in (3.9, 5.0, 6.0)]
    pair = find_pair(graph, records, BOTH)
    assert isinstance(pair, EligiblePair)
    assert (pair.slack_s, pair.occurrences, pair.agreeing) == (pytest.approx(1.0), 1, 2)


def test_of_several_pairs_that_with_most_slack_in_all_is_taken() -> None:
    """A small slack that comes often outweighs a large one that comes once; the other one is named."""
    tasks, edges = [Task("start", worker="a", payload="x", duration_s=0.1)], []
    last = "start"
    times = {"start": (0.0, 0.1)}
    now = 0.1
    for n, (a_s, b_s) in enumerate([(2.0, 1.0)] * 4 + [(1.0, 4.0)]):
        name = "often" if n < 4 else "once"
        for worker, time_s in (("a", a_s), ("b", b_s)):
            task = f"{worker} {n}"
            tasks.append(Task(task, worker=worker, payload="x", program_order=len(tasks)))
            times[task] = (now, now + time_s)
            edges += [Edge(last, task), Edge(task, f"join {n}")]
        now += max(a_s, b_s)
        tasks.append(Task(f"join {n}", name, program_order=len(tasks)))
        times[f"join {n}"] = (now, now)
        last = f"join {n}"
    graph = TaskGraph(tuple(tasks), tuple(edges))
    pair = find_pair(graph, ran(graph, times), {"a": WorkerProcess("p"), "b": WorkerProcess("q")})
    assert isinstance(pair, EligiblePair)
    assert (pair.earlier, pair.join, pair.occurrences) == ("b", "often", 4)
    assert pair.weight_s == pytest.approx(4.0)
    assert pair.others == ("a before b at once: less slack in all, 3 s",)


def test_branches_without_a_common_task_meet_at_the_end() -> None:
    graph = TaskGraph((Task("a", worker="policy", payload="x"), Task("b", worker="simulator", payload="x")))
    pair = find_pair(graph, ran(graph, {"a": (0.0, 1.0), "b": (0.5, 3.0)}), BOTH)
    assert isinstance(pair, EligiblePair)
    assert (pair.earlier, pair.join, pair.slack_s) == ("policy", END, pytest.approx(2.0))


def refusal(answer: EligiblePair | Unavailable) -> str:
    assert isinstance(answer, Unavailable)
    assert answer.reason.startswith("no pair is eligible for a quota, keep q0: ")
    return answer.reason


def test_a_graphics_only_renderer_has_no_quota() -> None:
    graph = fork_join(policy_s=3.0, simulator_s=5.0)
    processes = BOTH | {"simulator": WorkerProcess(2, client=False, reason="an EGL context only")}
    said = refusal(find_pair(graph, simulated(graph), processes))
    assert "simulator is no client (an EGL context only)" in said


def test_one_process_or_two_gpus_make_no_pair() -> None:
    graph = fork_join(policy_s=3.0, simulator_s=5.0)
    record = simulated(graph)
    one = {"policy": WorkerProcess(1), "simulator": WorkerProcess(1)}
    assert "no two branches in distinct processes" in refusal(find_pair(graph, record, one))
    two = {"policy": WorkerProcess(1, gpu=0), "simulator": WorkerProcess(2, gpu=1)}
    assert "do not work on one GPU" in refusal(find_pair(graph, record, two))
    none = {"policy": WorkerProcess(1), "simulator": WorkerProcess(2, gpu=None)}
    assert "do not work on one GPU" in refusal(find_pair(graph, record, none))


def test_work_that_does_not_overlap_makes_no_pair() -> None:
    graph = fork_join(policy_s=3.0, simulator_s=5.0)
    times = {"reset": (0.0, 1.0), "infer": (1.0, 4.0), "step": (4.0, 9.0), "reward": (9.0, 10.0)}
    assert "worked at the same time" in refusal(find_pair(graph, ran(graph, times), BOTH))
    chain = TaskGraph(
        tuple(
            Task(n, worker=w, payload="x") for n, w in (("a", "policy"), ("b", "simulator"), ("c", "policy"))
        ),
        (Edge("a", "b"), Edge("b", "c")),
    )
    in_turn = ran(chain, {"a": (0.0, 1.0), "b": (1.0, 2.0), "c": (2.0, 3.0)})
    assert "worked at the same time" in refusal(find_pair(chain, in_turn, BOTH))


def test_branches_that_are_ready_together_have_no_slack() -> None:
    graph = fork_join(policy_s=3.0, simulator_s=3.0)
    assert "neither has slack" in refusal(find_pair(graph, simulated(graph), BOTH))


def test_a_run_that_cannot_be_judged_is_refused() -> None:
    graph = fork_join(policy_s=3.0, simulator_s=5.0)
    record = simulated(graph)
    other = fork_join(policy_s=3.0, simulator_s=4.0)
    failed = tuple(r._replace(failed=True) if r.task == "step" else r for r in record.tasks)
    for one, graph_, processes, said in (
        (dataclasses.replace(record, tasks=record.tasks[1:]), graph, BOTH, "'reset' did not run"),
        (dataclasses.replace(record, tasks=failed), graph, BOTH, "'step' did not run to its end"),
        (record, other, BOTH, "of another graph"),
        (record, graph, {"policy": WorkerProcess(1)}, "process of worker 'simulator'"),
    ):
        with pytest.raises(UsageError, match=said):
            find_pair(graph_, one, processes)
    with pytest.raises(UsageError, match="no run"):
        find_pair(graph, [], BOTH)


def test_who_hands_on_what_others_made_is_looked_through() -> None:
    """Observations are copied by a worker of their own: who waits for it waits for the simulator."""
    plain = interleaved(3, policy_s=2.0, simulator_s=1.0)
    tasks, edges = list(plain.tasks), []
    for edge in plain.edges:
        if edge.source.startswith("step"):
            copy = edge.target.replace("infer", "copy")
            tasks.append(Task(copy, "copy", 0.0, worker="host", payload="copy", program_order=len(tasks)))
            edges += [Edge(edge.source, copy), Edge(copy, edge.target)]
        else:
            edges.append(edge)
    graph = TaskGraph(tuple(tasks), tuple(edges))
    pair = find_pair(graph, simulated(graph), {**BOTH, "host": None})
    wanted = find_pair(plain, simulated(plain), BOTH)
    assert isinstance(pair, EligiblePair)
    assert isinstance(wanted, EligiblePair)
    same = ("earlier", "later", "join", "slack_s", "occurrences")
    assert [getattr(pair, n) for n in same] == [getattr(wanted, n) for n in same]
    # as a worker of the policy's process it would hide that the policy waits for the simulator
    hidden = find_pair(graph, simulated(graph), {**BOTH, "host": BOTH["policy"]})
    assert not isinstance(hidden, EligiblePair) or (hidden.earlier, hidden.join) != (wanted.earlier, "infer")
