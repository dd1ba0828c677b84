"""`rlprof optimize embodied --resume` does not lose a graph that an earlier session found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'rlprof[workloads]'")
pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'rlprof[workloads]'")

from rlprof.analysis.batch_time import BatchTimes
from rlprof.errors import OutputError
from rlprof.overlap.optimize import derive
from rlprof.overlap.optimize.graph_file import GraphFile
from rlprof.overlap.optimize.outcome import Optimization
from rlprof.workloads.embodied.earlier_graph import EarlierGraph, levers_text
from rlprof.workloads.embodied.levers import wanted_levers
from rlprof.workloads.embodied.optimize_run import Request, optimize_embodied
from rlprof.workloads.embodied.quota_file import QuotaFile
from tests.workloads.embodied.made import small
from tests.workloads.embodied.test_optimize import WHOLE


def find(monkeypatch: pytest.MonkeyPatch, steps: tuple[Any, ...], *, stopped: bool = False) -> None:
    def given(workload: Any, *_: Any, **__: Any) -> Optimization:
        native = workload.native
        graph = derive(native, steps) if steps else native
        return Optimization(
            native=native, graph=graph, steps=steps, rounds=(), iterations=(),
            ended="the graph is given", stopped=stopped, batch_times=BatchTimes(),
        )  # fmt: skip

    monkeypatch.setattr("rlprof.workloads.embodied.optimize_search.optimize", given)


def request(out: Path, **values: Any) -> Request:
    config = small(workers=1, update_epochs=1)
    return Request(**{"config": config, "out": out, "activity": "off", "budget_s": 60.0, **values})


@pytest.mark.parametrize("stopped", [False, True])
def test_a_session_without_a_graph_leaves_that_of_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    find(monkeypatch, WHOLE)
    first = optimize_embodied(request(tmp_path))
    assert first.document["earlier_graph"] is None
    QuotaFile({"simulator": 40}, "made").write(tmp_path / "quotas.json")
    graph, quotas = ((tmp_path / name).read_bytes() for name in ("graph.json", "quotas.json"))

    find(monkeypatch, WHOLE[:1] if stopped else (), stopped=stopped)
    said = optimize_embodied(request(tmp_path, resume=True)).summary.splitlines()[-1]
    assert (tmp_path / "graph.json").read_bytes() == graph
    assert (tmp_path / "quotas.json").read_bytes() == quotas
    assert f"{tmp_path / 'graph.json'}: the graph that an earlier session" in said
    assert "stays as it is (2 steps)" in said
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["earlier_graph"]["steps"] == [str(one) for one in WHOLE]
    assert len(result["steps"]) == stopped

    find(monkeypatch, WHOLE)  # what is as good replaces it
    again = optimize_embodied(request(tmp_path, resume=True))
    assert again.document["earlier_graph"] is None
    assert (tmp_path / "quotas.json").read_bytes() != quotas


ASKED = {"--rounds": 2, "--targets": 3, "--levers": "nice,workers=2", "--groups": "2", "--epsilon": 0.01}


def graph_file(**facts: Any) -> GraphFile:
    return GraphFile("iteration", WHOLE, "native", "graph", facts)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"rounds": 1}, "--rounds 2, not 1"),
        ({"targets": 2}, "--targets 3, not 2"),
        ({"groups": (2, 3)}, "--groups 2, not 2,3"),
        ({"epsilon": 0.1}, "--epsilon 0.01, not 0.1"),
        ({"levers": {}}, "--levers nice,workers=2, not none"),
        ({"levers": wanted_levers("core-turns,nice", {})}, "--levers nice,workers=2, not core-turns,nice"),
        ({"rounds": 3, "targets": 4, "budget_s": 1.0, "pairs": 5}, None),
    ],
)
def test_options_that_would_find_less_are_refused_before_anything_starts(
    tmp_path: Path, changed: dict[str, Any], says: str | None
) -> None:
    graph_file(asked=ASKED).write(tmp_path / "graph.json")
    levers = wanted_levers("workers=2,nice", {})
    going_on = replace(request(tmp_path, resume=True, levers=levers), **changed)
    if says is None:
        earlier = EarlierGraph.read(tmp_path / "graph.json")
        assert earlier is not None
        earlier.check(going_on, tmp_path)
        return
    told: list[str] = []
    with pytest.raises(OutputError, match=f"was found with {says}") as caught:
        optimize_embodied(going_on, say=told.append)
    assert "another --out" in str(caught.value)
    assert told == []
    assert [p.name for p in tmp_path.iterdir()] == ["graph.json"]


def test_what_is_no_earlier_graph(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    assert EarlierGraph.read(path) is None
    path.write_text("{")
    assert EarlierGraph.read(path) is None
    tried = {"levers": {"workers": 1}, "kept": []}  # a value that a trial left as it was
    replace(graph_file(**tried), steps=()).write(path)
    assert EarlierGraph.read(path) is None
    replace(graph_file(levers={"workers": 2}), steps=()).write(path)  # of a version that did not say
    earlier = EarlierGraph.read(path)
    assert earlier is not None
    assert str(earlier).endswith("(levers workers)")
    earlier.check(request(tmp_path, rounds=1), tmp_path)


def test_levers_are_written_as_they_are_given() -> None:
    assert levers_text({}) == "none"
    assert levers_text(wanted_levers("workers=8/16,rendering", {})) == "rendering,workers=8/16"
    assert "workers" not in levers_text(wanted_levers(None, {"workers": 2}))
