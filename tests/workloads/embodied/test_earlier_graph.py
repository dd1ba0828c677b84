"""`rlprof optimize embodied --resume` does not lose a graph that an earlier session found."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'rlprof[workloads]'")
pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'rlprof[workloads]'")

from rlprof.analysis.batch_time import BatchTimes
from rlprof.errors import OutputError, UnreadableError
from rlprof.overlap.optimize import derive
from rlprof.overlap.optimize.graph_file import GraphFile
from rlprof.overlap.optimize.outcome import Optimization
from rlprof.workloads.embodied import optimize_run
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
    assert "stays as it is (2 steps; quotas simulator 40 %)" in said
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["earlier_graph"]["steps"] == [str(one) for one in WHOLE]
    assert (result["earlier_graph"]["file"], result["earlier_graph"]["quotas"]) == (
        "graph.json",
        {"simulator": 40},
    )
    assert len(result["steps"]) == stopped
    assert not (tmp_path / "earlier-1").exists()

    find(monkeypatch, WHOLE)  # what is as good replaces it, but here are no quotas
    again = optimize_embodied(request(tmp_path, resume=True))
    assert again.document["earlier_graph"]["file"] == "earlier-1/graph.json"
    assert (tmp_path / "quotas.json").read_bytes() != quotas
    assert (tmp_path / "earlier-1" / "quotas.json").read_bytes() == quotas


def test_another_graph_sets_that_of_an_earlier_session_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under other conditions less may pay, or something else: both graphs are there afterwards."""
    find(monkeypatch, WHOLE)
    optimize_embodied(request(tmp_path))
    find(monkeypatch, WHOLE)
    again = optimize_embodied(request(tmp_path, resume=True))
    assert again.document["earlier_graph"] is None  # it is the same one
    assert not list(tmp_path.glob("*earlier*"))
    names = ("graph.json", "quotas.json")
    first = {name: (tmp_path / name).read_bytes() for name in names}

    find(monkeypatch, WHOLE[:1])
    less = optimize_embodied(request(tmp_path, resume=True))
    assert {name: (tmp_path / "earlier-1" / name).read_bytes() for name in names} == first
    kept = GraphFile.read(tmp_path / "earlier-1" / "graph.json")
    assert (kept.steps, GraphFile.read(tmp_path / "graph.json").steps) == (WHOLE, WHOLE[:1])
    told = less.document["earlier_graph"]
    assert (told["file"], told["steps"]) == ("earlier-1/graph.json", [str(one) for one in WHOLE])
    said = less.summary.splitlines()[-1]
    assert said.startswith(f"{tmp_path / 'earlier-1' / 'graph.json'}: the graph that an earlier session of ")
    assert said.endswith("found was set aside for what this one found (2 steps)")

    find(monkeypatch, WHOLE)  # which begins with the step that is there: nothing of it is lost
    more = optimize_embodied(request(tmp_path, resume=True))
    assert more.document["earlier_graph"] is None
    assert [p.name for p in tmp_path.glob("*earlier*")] == ["earlier-1"]
    assert not list(tmp_path.glob(".*"))


def test_a_session_that_is_killed_leaves_no_quotas_beside_a_graph_that_they_are_not_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find(monkeypatch, WHOLE[:1])
    optimize_embodied(request(tmp_path))
    QuotaFile({"simulator": 40}, "made").write(tmp_path / "quotas.json")
    graph, quotas = ((tmp_path / name).read_bytes() for name in ("graph.json", "quotas.json"))

    def killed(*_: Any) -> None:
        raise SystemExit

    monkeypatch.setattr(optimize_run, "find_quotas", killed)
    with pytest.raises(SystemExit):  # the same graph: they are its quotas still
        optimize_embodied(request(tmp_path, resume=True))
    assert (tmp_path / "quotas.json").read_bytes() == quotas
    graph = (tmp_path / "graph.json").read_bytes()
    find(monkeypatch, WHOLE)
    with pytest.raises(SystemExit):
        optimize_embodied(request(tmp_path, resume=True))
    assert GraphFile.read(tmp_path / "graph.json").steps == WHOLE
    there = QuotaFile.read(tmp_path / "quotas.json")
    assert (there.quotas, there.reason) == ({}, optimize_run.NOT_SEARCHED)
    assert (tmp_path / "earlier-1" / "graph.json").read_bytes() == graph
    assert (tmp_path / "earlier-1" / "quotas.json").read_bytes() == quotas


@pytest.mark.parametrize("name", ["graph.json", "quotas.json"])
@pytest.mark.parametrize("damage", ["cut off", "of another version", "empty"])
def test_what_cannot_be_read_is_not_replaced(tmp_path: Path, name: str, damage: str) -> None:
    graph_file().write(tmp_path / "graph.json")
    QuotaFile({"simulator": 40}, "made").write(tmp_path / "quotas.json")
    text = (tmp_path / name).read_text()
    changed = {"cut off": text[:-20], "of another version": text.replace('"version": 1', '"version": 2')}
    (tmp_path / name).write_text(changed.get(damage, ""))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UnreadableError, match=r"an earlier session found is .* Next: move it") as caught:
        optimize_embodied(request(tmp_path, resume=True))
    assert str(caught.value).startswith(str(tmp_path / name))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", ["graph.json", "measurements.jsonl", "report.html", "config.json"])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_file_is_told_before_anything_starts(tmp_path: Path, name: str, make: Any) -> None:
    make(tmp_path / name)
    told: list[str] = []
    with pytest.raises(OutputError, match=f"{name}: is a .*, a file is to be written"):
        optimize_embodied(request(tmp_path, resume=True), say=told.append)
    assert told == []


@pytest.mark.parametrize(
    ("left", "says"),
    [
        (
            ["measurements.jsonl"],
            "there is no checkpoint in {}: training begins anew, what was measured counts",
        ),
        ([], "there is nothing to resume in {}: it begins anew"),
    ],
)
def test_a_resumed_session_without_a_checkpoint_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: list[str], says: str
) -> None:
    def reached(*_: Any, **__: Any) -> None:
        raise LookupError

    for name in left:
        (tmp_path / name).touch()
    told: list[str] = []
    monkeypatch.setattr(optimize_run, "embodied", reached)
    with pytest.raises(LookupError):
        optimize_embodied(request(tmp_path, resume=True), say=told.append)
    assert told == [says.format(tmp_path)]


def test_what_has_all_of_an_earlier_graph_goes_on_from_it() -> None:
    facts = {"config": {"workers": 2, "simulator_nice": 0}, "stream_priorities": {"rollout": -1}}
    levers = {"levers": {"workers": 2}, "stream_priorities": {"rollout": -1}}
    earlier = EarlierGraph(replace(graph_file(**levers), steps=WHOLE[:1]))
    assert earlier.goes_on_in(graph_file(**facts))
    assert earlier.goes_on_in(replace(graph_file(**facts), steps=WHOLE[:1]))
    for other in (
        replace(graph_file(**facts), steps=WHOLE[1:]),
        replace(graph_file(**facts), steps=()),
        replace(graph_file(**facts), native_hash="another program"),
        graph_file(**facts | {"config": {"workers": 1}}),
        graph_file(**facts | {"stream_priorities": {}}),
    ):
        assert not earlier.goes_on_in(other)


def test_what_cannot_be_set_aside_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: Any) -> None:
        raise SystemExit

    (tmp_path / "earlier-1").mkdir()
    earlier = EarlierGraph(graph_file(), contents={"graph.json": b"{}", "no/folder": b""})
    with pytest.raises(OutputError, match="earlier-2: "):
        earlier.set_aside(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["earlier-1"]
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", ended)
        with pytest.raises(SystemExit):  # as of SIGTERM in the middle
            earlier.set_aside(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["earlier-1"]
    whole = replace(earlier, contents={"graph.json": b"{}"})
    assert [whole.set_aside(tmp_path).name for _ in range(2)] == ["earlier-2", "earlier-3"]
    assert (tmp_path / "earlier-3" / "graph.json").read_bytes() == b"{}"


def test_what_others_left_is_in_the_way_of_no_earlier_graph(tmp_path: Path) -> None:
    (tmp_path / "earlier-1").symlink_to("nowhere")
    (tmp_path / "earlier-2").touch()
    left = tmp_path / f".earlier-3.{os.getpid()}"  # of a process of this number that was killed
    left.mkdir()
    (left / "quotas.json").touch()
    aside = EarlierGraph(graph_file(), contents={"graph.json": b"{}"}).set_aside(tmp_path)
    assert aside.name == "earlier-3"
    assert [path.name for path in aside.iterdir()] == ["graph.json"]


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
        earlier = read(tmp_path)
        assert earlier is not None
        earlier.check(going_on, tmp_path)
        return
    told: list[str] = []
    with pytest.raises(OutputError, match=f"was found with {says}") as caught:
        optimize_embodied(going_on, say=told.append)
    assert "another --out" in str(caught.value)
    assert told == []
    assert [p.name for p in tmp_path.iterdir()] == ["graph.json"]


def read(folder: Path) -> EarlierGraph | None:
    return EarlierGraph.read(folder / "graph.json", folder / "quotas.json")


def test_what_is_no_earlier_graph(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    (tmp_path / "quotas.json").write_text("{")
    assert read(tmp_path) is None
    tried = {"levers": {"workers": 1}, "kept": []}  # a value that a trial left as it was
    replace(graph_file(**tried), steps=()).write(path)
    assert read(tmp_path) is None
    (tmp_path / "quotas.json").unlink()
    replace(graph_file(levers={"workers": 2}), steps=()).write(path)  # of a version that did not say
    earlier = read(tmp_path)
    assert earlier is not None
    assert earlier.line(stays=True).endswith("stays as it is (levers workers)")
    earlier.check(request(tmp_path, rounds=1), tmp_path)


def test_levers_are_written_as_they_are_given() -> None:
    assert levers_text({}) == "none"
    assert levers_text(wanted_levers("workers=8/16,rendering", {})) == "rendering,workers=8/16"
    assert "workers" not in levers_text(wanted_levers(None, {"workers": 2}))
