"""A graph is checked when it is made, and equal graphs have one text and one hash."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.taskgraph import (
    CellAccess,
    CycleError,
    DuplicateError,
    Edge,
    GraphError,
    GraphFormatError,
    GraphTypeError,
    ResourceError,
    Task,
    TaskGraph,
    UnknownTaskError,
    Use,
)

from .made import graphs, stateful_tasks

A, B, C = Task("a"), Task("b"), Task("c")


@given(graphs(), st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_hash_and_text_do_not_depend_on_the_order_of_insertion(
    graph: TaskGraph, chance: random.Random
) -> None:
    tasks, edges = list(graph.tasks), list(graph.edges)
    capacities = list(graph.capacities.items())
    for part in (tasks, edges, capacities):
        chance.shuffle(part)
    again = TaskGraph(tuple(tasks), tuple(edges), dict(capacities))
    assert again == graph
    assert again.hash == graph.hash
    assert again.to_json() == graph.to_json()


@given(graphs() | stateful_tasks().map(TaskGraph))
@settings(max_examples=50, deadline=None)
def test_json_round_trip(graph: TaskGraph) -> None:
    again = TaskGraph.from_json(graph.to_json())
    assert again == graph
    assert hash(again) == hash(graph)


def test_every_field_takes_part_in_the_hash() -> None:
    base = {
        "id": "a", "name": "x", "duration_s": 1.0, "resources": (Use("gpu"),), "payload": "p",
        "program_order": 1, "provenance": (("k", 1),), "accesses": (CellAccess("W", "", "a"),),
        "worker": "left",
    }  # fmt: skip
    other = {
        "id": "b", "name": "y", "duration_s": None, "resources": (Use("gpu", exclusive=True),),
        "payload": None, "program_order": 2, "provenance": (("k", 2),), "accesses": (),
        "worker": None,
    }  # fmt: skip
    hashes = {TaskGraph((Task(**{**base, key: other[key]}),)).hash for key in base}  # type: ignore[arg-type]
    hashes.add(TaskGraph((Task(**base),)).hash)  # type: ignore[arg-type]
    hashes.add(TaskGraph((Task(**base),), capacities={"gpu": 2}).hash)  # type: ignore[arg-type]
    hashes |= {
        TaskGraph((Task("a", accesses=(access,)),)).hash
        for access in (
            CellAccess("W", ""), CellAccess("V", ""), CellAccess("W", "", "a"), CellAccess("W", None, "a"),
            CellAccess("W", "", copy=1),
        )
    }  # fmt: skip
    hashes |= {
        TaskGraph((A, B), (edge,)).hash
        for edge in (Edge("a", "b"), Edge("b", "a"), Edge("a", "b", "state"), Edge("a", "b", "data", "obs"))
    }
    assert len(hashes) == len(base) + 2 + 5 + 4


def test_the_hash_is_the_same_in_another_process() -> None:
    program = (
        "from rlprof.taskgraph import *;"
        "print(TaskGraph((Task('a', duration_s=0.1, provenance={'z': 1, 'b': 'x'}), Task('b')),"
        " (Edge('a', 'b'),)).hash)"
    )
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    here = TaskGraph((B, Task("a", duration_s=0.1, provenance=(("z", 1), ("b", "x")))), (Edge("a", "b"),))
    assert there.strip() == here.hash


def test_a_cycle_is_named_task_by_task() -> None:
    tail = Task("tail")
    edges = (Edge("a", "b"), Edge("b", "c"), Edge("c", "a"), Edge("c", "tail"), Edge("head", "a"))
    with pytest.raises(CycleError, match="a") as caught:
        TaskGraph((A, B, C, tail, Task("head")), edges)
    path = caught.value.path
    assert set(path) == {"a", "b", "c"}
    assert all(
        (x, y) in {("a", "b"), ("b", "c"), ("c", "a")} for x, y in zip(path, path[1:] + path[:1], strict=True)
    )


def test_a_task_that_waits_for_itself_is_a_cycle() -> None:
    with pytest.raises(CycleError) as caught:
        TaskGraph((A,), (Edge("a", "a"),))
    assert caught.value.path == ("a",)


@given(graphs(most=10), st.data())
@settings(max_examples=50, deadline=None)
def test_any_edge_backwards_along_a_path_is_refused_with_a_real_cycle(
    graph: TaskGraph, data: st.DataObject
) -> None:
    if not graph.edges:
        return
    edge = data.draw(st.sampled_from(graph.edges))
    edges = (*graph.edges, Edge(edge.target, edge.source, "order", "back"))
    with pytest.raises(CycleError) as caught:
        TaskGraph(graph.tasks, edges, graph.capacities)
    path, pairs = caught.value.path, {(e.source, e.target) for e in edges}
    assert all(pair in pairs for pair in zip(path, path[1:] + path[:1], strict=True))


def test_a_long_cycle_prints_as_one_short_line() -> None:
    tasks = tuple(Task(f"t{i}") for i in range(5000))
    edges = tuple(Edge(f"t{i}", f"t{(i + 1) % 5000}") for i in range(5000))
    with pytest.raises(CycleError) as caught:
        TaskGraph(tasks, edges)
    assert len(caught.value.path) == 5000
    assert len(str(caught.value)) < 300


def test_mistakes_are_named() -> None:
    with pytest.raises(DuplicateError, match="'a'"):
        TaskGraph((A, B, Task("a", name="other")))
    with pytest.raises(DuplicateError, match="'a' -> 'b'"):
        TaskGraph((A, B), (Edge("a", "b"), Edge("a", "b")))
    with pytest.raises(UnknownTaskError, match="'gone'"):
        TaskGraph((A, B), (Edge("a", "gone"),))
    with pytest.raises(UnknownTaskError, match="'gone'"):
        TaskGraph((A, B), (Edge("gone", "a"),))
    with pytest.raises(GraphError, match="'wish'"):
        TaskGraph((A, B), (Edge("a", "b", "wish"),))  # type: ignore[arg-type]
    for duration_s in (-1.0, float("nan"), float("inf")):
        with pytest.raises(GraphError, match="'a' has the duration"):
            TaskGraph((Task("a", duration_s=duration_s),))
    with pytest.raises(ResourceError, match="needs 5 of 'cores', of which there are 4"):
        TaskGraph((Task("a", resources=(Use("cores", 5),)),), capacities={"cores": 4})
    with pytest.raises(ResourceError, match="needs 0 of 'gpu'"):
        TaskGraph((Task("a", resources=(Use("gpu", 0),)),))
    with pytest.raises(ResourceError, match="twice"):
        TaskGraph((Task("a", resources=(Use("gpu"), Use("gpu"))),))
    with pytest.raises(ResourceError, match="capacity 0"):
        TaskGraph((), capacities={"gpu": 0})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TaskGraph(A), "the tasks of the graph are Task.*one item needs a comma"),
        (lambda: TaskGraph("ab"), "the tasks of the graph are 'ab'"),
        (lambda: TaskGraph(None), "the tasks of the graph are None"),
        (lambda: TaskGraph(("a",)), "'a' among the tasks of the graph is no Task"),
        (lambda: TaskGraph((A, B), Edge("a", "b")), "the edges of the graph are Edge"),
        (lambda: TaskGraph((A, B), (("a", "b", "data"),)), "among the edges of the graph is no Edge"),
        (lambda: Task("a", resources=Use("gpu")), "the resources of task 'a' are Use"),
        (lambda: Task("a", resources=("gpu",)), "'gpu' among the resources of task 'a' is no Use"),
        (lambda: Task("a", accesses=("W",)), "'W' among the accesses of task 'a' is no CellAccess"),
        (lambda: TaskGraph((Task(3),)), "task 3 has an id or a name that is no text"),
        (
            lambda: TaskGraph((Task("a", payload=print),)),
            "has the payload .* is no text. Next: name it",
        ),
        (lambda: TaskGraph((Task("a", worker=2),)), "has the worker 2, which is no text"),
        (lambda: TaskGraph((Task("a", program_order=0.5),)), "program order of task 'a' is 0.5"),
        (lambda: TaskGraph((Task("a", resources=(Use("gpu", 0.5),)),)), "amount of 'gpu' of task 'a' is 0.5"),
        (lambda: TaskGraph((A,), capacities={"gpu": "2"}), "capacity of 'gpu' is '2'"),
        (lambda: TaskGraph((A,), capacities=[("gpu", 2)]), "the capacities of the graph are"),
    ],
)
def test_a_part_of_another_type_is_a_typed_error_that_names_it(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(GraphTypeError, match=message):
        make()


def test_parts_may_come_from_any_iterable() -> None:
    made = TaskGraph((t for t in (A, B)), (e for e in (Edge("a", "b"),)))
    assert made == TaskGraph((A, B), (Edge("a", "b"),))
    assert Task("a", resources=(u for u in (Use("gpu"),))).resources == (Use("gpu"),)


def test_two_edges_between_the_same_tasks_may_differ_in_kind_or_item() -> None:
    graph = TaskGraph((A, B), (Edge("a", "b"), Edge("a", "b", "state"), Edge("a", "b", "data", "obs")))
    assert graph.successors.of(0) == [1]
    assert graph.predecessors.of(1) == [0]


def document(**changes: object) -> str:
    return json.dumps({**TaskGraph((A, B), (Edge("a", "b"),)).to_dict(), **changes})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        document(version=3),
        document(tasks=[{"id": "a"}]),
        document(tasks=None),
        document(tasks=[{"id": "a", "resources": [{"amount": 1}]}]),
        document(edges=[{"source": "a", "target": "b", "weight": 1}]),
        document(capacities=[1]),
        document(tasks=[{"id": "a", "resources": [], "accesses": [{"cell": "W"}]}]),
        document(tasks=[{"id": "a", "resources": [], "accesses": None}]),
        document(capacities={"gpu": "many"}),
    ],
)
def test_other_documents_are_refused(text: str) -> None:
    with pytest.raises(GraphFormatError):
        TaskGraph.from_json(text)


def test_documents_of_version_1_have_neither_accesses_nor_workers() -> None:
    task = {
        "id": "a", "name": "policy", "duration_s": 0.5, "payload": "p", "program_order": 3,
        "resources": [{"resource": "gpu", "amount": 1, "exclusive": False}], "provenance": {"k": 1},
    }  # fmt: skip
    old = {"format": "rlprof.taskgraph", "version": 1, "tasks": [task], "edges": [], "capacities": {"gpu": 2}}
    expected = Task("a", "policy", 0.5, (Use("gpu"),), "p", 3, (("k", 1),))
    assert TaskGraph.from_json(json.dumps(old)) == TaskGraph((expected,), capacities={"gpu": 2})


def test_a_document_with_a_cycle_is_refused_like_any_graph() -> None:
    edges = [{"source": "a", "target": "b"}, {"source": "b", "target": "a"}]
    with pytest.raises(CycleError):
        TaskGraph.from_json(document(edges=edges))


def test_the_package_loads_nothing_heavy() -> None:
    program = (
        "import sys, rlprof.taskgraph, rlprof.taskgraph.processes, rlprof.taskgraph.ray_backend;"
        "import rlprof.taskgraph.cuda;"
        "heavy = {'torch', 'ray', 'polars', 'pandas', 'altair'};"
        "print(*sorted({m.split('.')[0] for m in sys.modules} & heavy))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_graph_is_scheduled_run_and_verified_without_polars() -> None:
    """Lean GPU machines have numpy and orjson; worker processes inherit that."""
    program = """
import sys
class Hide:
    def find_spec(self, name, *_):
        if name in ("polars", "pandas", "pyarrow", "torch", "altair"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hide())
from rlprof.taskgraph import *
from rlprof.taskgraph.processes import ProcessBackend
graph = TaskGraph((Task("a", payload="call", duration_s=1.0), Task("b", payload="call", duration_s=1.0)))
assert schedule(graph).makespan_s == slack(graph).total_s.max() + 1.0 == 1.0
from tests.taskgraph.worker_states import no_restore
for calls in (no_restore(), ProcessBackend({"w": no_restore})):
    assert not verify(TaskGraph.from_json(graph.to_json()), run(graph, calls).record)
assert not {"polars", "pandas", "pyarrow"} & set(sys.modules)
"""
    root = str(Path(__file__).parents[2])
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=root)
