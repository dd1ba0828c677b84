"""Something else than was asked for is an error of one line, whatever function it is given to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rlprof
from rlprof.errors import RlprofError
from rlprof.overlap import Program, check_declarations, wrap
from rlprof.overlap.build import call_graph
from rlprof.overlap.dependencies import dependencies
from rlprof.overlap.explain import explain
from rlprof.overlap.legality import check
from rlprof.overlap.loops import loop_independence
from rlprof.overlap.lower import lower
from rlprof.overlap.memory import peak_memory_bytes
from rlprof.overlap.replay import replay
from rlprof.overlap.semantics import compare, of_graph
from rlprof.overlap.transforms import (
    figure9,
    interleave,
    merge,
    rewire,
    split_chained,
    split_spatial,
    split_temporal,
)
from rlprof.taskgraph import TaskGraph, branches, critical_path, run, schedule, slack, upward_rank, work_s
from rlprof.taskgraph.verify import verify
from tests.overlap.graphs import rollout
from tests.taskgraph.made import as_planned, random_graph

NATIVE = rollout()
TASKS = random_graph(5, 0)
NODE = NATIVE.region

#: Each is given something else than a graph of calls, a recording, or a program.
TAKES_A_GRAPH: dict[str, Callable[[Any], Any]] = {
    "split_spatial": lambda x: split_spatial(x, NODE),
    "split_temporal": lambda x: split_temporal(x, NODE),
    "split_chained": lambda x: split_chained(x, NODE),
    "merge": lambda x: merge(x, NODE),
    "interleave": lambda x: interleave(x, NODE),
    "rewire": lambda x: rewire(x, NODE, shift=1),
    "split_and_interleave": lambda x: figure9.split_and_interleave(x, NODE),
    "train_beside_next_epoch": lambda x: figure9.train_beside_next_epoch(x, NODE, NODE),
    "transfer_beside_compute": lambda x: figure9.transfer_beside_compute(x, [NODE], [NODE]),
    "dependencies": dependencies,
    "lower": lower,
    "loop_independence": lambda x: loop_independence(x, NODE),
    "explain": lambda x: explain(x, NODE),
    "check, native": lambda x: check(x, NATIVE),
    "check": lambda x: check(NATIVE, x),
    "replay": lambda x: replay(NATIVE, x, {}, {}),
    "replay, native": lambda x: replay(x, NATIVE, {}, {}),
    "of_graph": of_graph,
    "compare": lambda x: compare(x, of_graph(NATIVE)),
    "peak_memory_bytes": lambda x: peak_memory_bytes(x, {}),
    "call_graph": call_graph,
    "Program.graph": lambda x: program().graph(x),
    "Program.install": lambda x: program().install(x),
    "Program.install, replacement": lambda x: program().install("run", x),
    "Program.uninstall": lambda x: program().uninstall(x or 0),
    "Program.record": lambda x: program().record(x),
    "check_declarations": lambda x: check_declarations(x, print),
    "wrap, parent": lambda x: wrap(Simple(), "run", x or 0),
    "read": rlprof.read,
}
#: What is no mistake: a program where one is wanted, and a class, which can be called.
RIGHT = {
    ("check_declarations", "program"),
    ("wrap, parent", "program"),
    ("Program.install, replacement", "class"),
}
#: Each is given something else than a task graph.
TAKES_TASKS: dict[str, Callable[[Any], Any]] = {
    "schedule": schedule,
    "upward_rank": upward_rank,
    "work_s": work_s,
    "critical_path": critical_path,
    "slack": slack,
    "branches": branches,
    "run": lambda x: run(x, {}),
    "verify": lambda x: verify(x, as_planned(TASKS)),
    "verify, record": lambda x: verify(TASKS, x),
    "slack, scheduled": lambda x: slack(TASKS, x or 0),
    "critical_path, scheduled": lambda x: critical_path(TASKS, x or 0),
    "TaskGraph.from_json": TaskGraph.from_json,
    "TaskGraph.from_dict": TaskGraph.from_dict,
}
#: Each is given something else than the path of a node.
TAKES_A_PATH: dict[str, Callable[[Any], Any]] = {
    "split_spatial": lambda x: split_spatial(NATIVE, x),
    "split_temporal": lambda x: split_temporal(NATIVE, x),
    "split_chained": lambda x: split_chained(NATIVE, x),
    "merge": lambda x: merge(NATIVE, x),
    "interleave": lambda x: interleave(NATIVE, x),
    "rewire": lambda x: rewire(NATIVE, x, shift=1),
    "rewire, before": lambda x: rewire(NATIVE, NODE, before=x or 0),
    "loop_independence": lambda x: loop_independence(NATIVE, x),
    "explain": lambda x: explain(NATIVE, x),
    "Program.record": lambda x: program().record(x),
}


class Simple:
    def run(self) -> int:
        return 1


def program() -> Program:
    made = Program()
    wrap(Simple(), "run", made)
    return made


def others() -> dict[str, Any]:
    return {
        "None": None,
        "number": 3,
        "text": "graph",
        "list": [1],
        "object": object(),
        "class": Program,
        "program": program(),
    }


def is_refused(call: Callable[[Any], Any], value: Any) -> None:
    with pytest.raises(RlprofError) as error:
        call(value)
    assert "\n" not in str(error.value)
    assert "Next:" in str(error.value), "it says what to give"


@pytest.mark.parametrize("given", others())
@pytest.mark.parametrize("name", TAKES_A_GRAPH)
def test_no_graph_of_calls(name: str, given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # no file is called as a text here
    if (name, given) not in RIGHT:
        is_refused(TAKES_A_GRAPH[name], others()[given])


@pytest.mark.parametrize("name", TAKES_A_GRAPH)
def test_a_graph_of_tasks_is_none_of_calls(name: str) -> None:
    is_refused(TAKES_A_GRAPH[name], TASKS)


@pytest.mark.parametrize("given", [*others(), "calls"])
@pytest.mark.parametrize("name", TAKES_TASKS)
def test_no_graph_of_tasks(name: str, given: str) -> None:
    is_refused(TAKES_TASKS[name], NATIVE if given == "calls" else others()[given])


@pytest.mark.parametrize("given", others())
@pytest.mark.parametrize("name", TAKES_A_PATH)
def test_no_path_of_a_node(name: str, given: str) -> None:
    is_refused(TAKES_A_PATH[name], others()[given])
