from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlprof.errors import OutputError, UnreadableError
from rlprof.planning.algorithms import ppo, share_actor_critic
from rlprof.planning.baselines import concurrent_plan, greedy_plan, synchronous
from rlprof.planning.errors import PlanFormatError, PlanningError
from rlprof.planning.evaluate import Problem, evaluate
from rlprof.planning.explain import explain, terms
from rlprof.planning.gains import ladder, losses
from rlprof.planning.layout import columns_of, compact_drawing, executable_drawing, unrolled_drawing
from rlprof.planning.options import ModelOptions
from rlprof.planning.plan import Box, Plan
from rlprof.planning.plan_file import SavedPlan, configuration_hash, read_plan, write_plan
from rlprof.planning.report import (
    assignments_table,
    box_text,
    comparison_table,
    gantt_text,
    ladder_table,
    losses_table,
    memory_table,
    percent,
    terms_table,
)
from rlprof.planning.unroll import unroll
from rlprof.planning.workload import Workload, three_phases
from rlprof.plots.dag import dag_chart
from tests.planning.made import TINY, at, cluster

WORK = Workload(32, 64, 64, quantiles=three_phases(64))
PROBLEM = Problem(
    ppo(TINY, TINY, TINY, staleness={"actor": 1}),
    WORK,
    cluster(1, 1, 4),
    ModelOptions(steps=3, fuse_training=True),
)
PLAN = Plan(
    {
        "actor_generation": at(0, 2),
        "reference_inference": at(2, 1),
        "reward_inference": at(3, 1),
        "critic_inference": at(2, 2, (1, 2, 1), 4),
        "actor_training": at(2, 2),
        "critic_training": at(2, 2),
    }
)


def saved() -> SavedPlan:
    base = synchronous(PROBLEM)
    baselines = {"greedy": greedy_plan(base), "concurrent": concurrent_plan(base)}
    facts = {"seed": 7, "staleness": [0, 1], "structures": [{"throughput_tokens_per_s": 5.0}]}
    return SavedPlan(PROBLEM, PLAN, base.pipeline, baselines, facts, (PLAN,))


def test_a_plan_survives_its_file_with_all_that_it_was_made_for(tmp_path: Path) -> None:
    write_plan(saved(), tmp_path / "plan.json")
    read = read_plan(tmp_path / "plan.json")
    assert read == saved()
    assert read.hash == saved().hash == configuration_hash(PROBLEM, PLAN)
    assert read.evaluate().score == evaluate(PROBLEM, PLAN).score
    assert read.synchronous_score == 5.0
    document = json.loads((tmp_path / "plan.json").read_text())
    assert document["prediction"]["throughput_tokens_per_s"] == evaluate(PROBLEM, PLAN).score
    with pytest.raises(OutputError):
        write_plan(saved(), tmp_path / "plan.json", force=False)


def test_the_hash_is_of_the_configuration_alone(tmp_path: Path) -> None:
    other = Plan({**PLAN.assignments, "reward_inference": at(2, 1)})
    assert configuration_hash(PROBLEM, other) != configuration_hash(PROBLEM, PLAN)
    assert configuration_hash(synchronous(PROBLEM), PLAN) != configuration_hash(PROBLEM, PLAN)
    turned = Plan(dict(reversed(PLAN.assignments.items())))
    assert configuration_hash(PROBLEM, turned) == configuration_hash(PROBLEM, PLAN)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (("format",), "x", '"format" is not "rlprof.plan"'),
        (("version",), 2, "version 2, known is 1"),
        (("configuration",), None, "there is no configuration"),
        (("configuration", "plan", "actor_generation", "microbatches"), 2, "its hash is another"),
        (("configuration", "workload", "prompts"), 64, "its hash is another"),
        (("baselines",), 3, "of a wrong type"),
        (("elites",), [{"actor_generation": {}}], "a field is missing"),
    ],
)
def test_a_broken_plan_file_is_one_clear_error(
    tmp_path: Path, key: tuple[str, ...], value: object, said: str
) -> None:
    path = tmp_path / "plan.json"
    write_plan(saved(), path)
    document = json.loads(path.read_text())
    table = document
    for part in key[:-1]:
        table = table[part]
    table[key[-1]] = value
    path.write_text(json.dumps(document))
    with pytest.raises(PlanFormatError, match=said) as caught:
        read_plan(path)
    assert str(path) in str(caught.value)


def test_other_files_are_no_plans(tmp_path: Path) -> None:
    for content, said in ((b"{", "no JSON"), (b"[]", "no plan"), (b"\xff", "not a text file")):
        (tmp_path / "odd.json").write_bytes(content)
        with pytest.raises(PlanningError, match=said):
            read_plan(tmp_path / "odd.json")
    with pytest.raises(UnreadableError):
        read_plan(tmp_path / "none.json")


def test_terms_add_up_to_what_is_scheduled() -> None:
    """The parts of each invocation's time sum to its total, and that is what the schedule has."""
    e = evaluate(
        synchronous(Problem(PROBLEM.pipeline, Workload(32, 64, 64), PROBLEM.cluster, ModelOptions(steps=1))),
        PLAN,
    )
    by_name: dict[str, dict[str, float]] = {}
    for term in terms(e):
        if term.quantity == "time":
            by_name.setdefault(term.invocation, {})[term.term] = term.value
    for i, node in enumerate(e.graph.nodes):
        if node.kind == "op":
            parts = by_name[PROBLEM.pipeline.invocations[node.vertex].name]
            total = sum(v for k, v in parts.items() if k.endswith("_s") and k != "total_s")
            spent = e.timeline.finish_s[i] - e.timeline.start_s[i]
            assert total == pytest.approx(parts["total_s"]) == pytest.approx(spent)
    frame = explain(e)
    assert frame.columns == ["invocation", "quantity", "term", "formula", "value", "unit"]
    assert frame.height == len(terms(e))
    assert {"comm", "payload"} <= {
        w for t in frame["term"].to_list() + frame["formula"].to_list() for w in t.split()
    }


def test_gains_by_taking_away() -> None:
    e = evaluate(PROBLEM, PLAN)
    lost = {x.what: x for x in losses(e)}
    assert set(lost) == {"staleness", "splitting by response length", "stage fusion"}
    fresh = evaluate(synchronous(PROBLEM), PLAN)
    assert lost["staleness"].score == fresh.score
    assert lost["staleness"].loss_frac == pytest.approx(1 - fresh.score / e.score)
    concurrent = evaluate(synchronous(PROBLEM), concurrent_plan(synchronous(PROBLEM)))
    rungs = ladder(e, concurrent, concurrent.score * 1.1)
    assert [r.score for r in rungs] == [concurrent.score, concurrent.score * 1.1, e.score]
    assert (1 + rungs[1].gain_frac) * (1 + rungs[2].gain_frac) == pytest.approx(e.score / concurrent.score)
    assert len(ladder(e, concurrent)) == 2


def test_tables_for_people_hold_what_they_should() -> None:
    e = evaluate(PROBLEM, PLAN)
    names = [v.name for v in PROBLEM.pipeline.invocations]
    assert all(name in assignments_table(e) for name in names)
    assert "fused" in assignments_table(e)
    held = memory_table(e.memory, PROBLEM.cluster.usable_bytes, names).split("\n")
    assert [line.split()[0] for line in held] == ["GPUs", "0-1", "2", "3"]
    shown = comparison_table([("this plan", e), ("greedy", e)])
    assert f"{e.score:,.0f}" in shown
    assert shown.count("\n") == 2
    assert terms_table(terms(e)).count("\n") == len(terms(e))
    assert "staleness" in losses_table(losses(e))
    assert "concurrent baseline" in ladder_table(ladder(e, e))
    assert [percent(x) for x in (0.1234, -0.00001, -0.5)] == ["+12.3%", "+0.0%", "-50.0%"]
    assert box_text(Box((1, 0, 2), (1, 8, 2))) == "rack 1, nodes 0-7, GPUs 2-3"


def test_the_gantt_in_text_shows_who_holds_what() -> None:
    e = evaluate(
        Problem(PROBLEM.pipeline, WORK, PROBLEM.cluster, ModelOptions(steps=1, split_generation=False)), PLAN
    )
    lines = gantt_text(e, columns=200).split("\n")
    first = next(line for line in lines if line.startswith("GPU 0-1"))
    bar = first.split("|")[1]
    assert len(bar) == 200
    assert set(bar) <= {"A", "~", "."}
    share = e.timeline.finish_s[0] / e.makespan_s
    assert bar.count("A") == pytest.approx(200 * share, abs=2)


def test_drawings_of_all_stages() -> None:
    e = evaluate(PROBLEM, PLAN)
    compact = compact_drawing(share_actor_critic(ppo(TINY, TINY, TINY)))
    assert [n.column for n in compact.nodes] == [0, 1, 1, 1, 2]
    assert sum(x.kind == "publication" for x in compact.edges) == 2
    unrolled = unrolled_drawing(unroll(PROBLEM.pipeline, 3))
    assert len(unrolled.nodes) == 18
    executable = executable_drawing(e.graph, PLAN)
    assert len(executable.nodes) == len(e.graph.nodes)
    for drawing in (compact, unrolled, executable):
        places = [(n.column, n.row) for n in drawing.nodes]
        assert len(set(places)) == len(places)
        document = dag_chart(drawing).to_dict()
        assert len(document["layer"]) == 5
    assert columns_of(3, [(0, 1), (1, 2), (0, 2)]) == [0, 1, 2]
