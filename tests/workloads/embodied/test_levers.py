"""Levers of embodied training: which apply, what they change, and that a run has those of its graph."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'rlprof[workloads]'")
pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'rlprof[workloads]'")

import torch

from rlprof.analysis.batch_time import BatchTimes
from rlprof.analysis.trials import PairedComparison, Rule, measure_paired
from rlprof.errors import UnreadableError
from rlprof.overlap.equality import equal_bits
from rlprof.overlap.optimize import derive
from rlprof.overlap.optimize.graph_file import GraphFile
from rlprof.overlap.optimize.graph_levers import Selected
from rlprof.overlap.optimize.levers import Row
from rlprof.overlap.optimize.outcome import Optimization
from rlprof.overlap.optimize.workload import Measurement
from rlprof.unavailable import Unavailable
from rlprof.workloads.embodied import build
from rlprof.workloads.embodied.config import Config, configure
from rlprof.workloads.embodied.errors import ConfigurationError
from rlprof.workloads.embodied.levers import (
    LEVERS,
    CudaGraph,
    Rendering,
    Workers,
    check_levers,
    kept_levers,
    processes_to_try,
    settled_by_levers,
    wanted_levers,
)
from rlprof.workloads.embodied.optimize import embodied
from rlprof.workloads.embodied.optimize_run import Request, optimize_embodied
from rlprof.workloads.embodied.optimize_search import Search, graph_levers
from rlprof.workloads.embodied.overlap_levers import (
    ClientPriority,
    Nice,
    OverlapRendering,
    stream_components,
)
from rlprof.workloads.embodied.rollout_worker import RolloutWorker
from rlprof.workloads.embodied.runner import run
from rlprof.workloads.embodied.sharing import PIPE, sharing
from tests.workloads.embodied.made import small
from tests.workloads.embodied.test_optimize import WHOLE


def here(config: Config, **parts: Any) -> Any:
    """A trainer that is not there: enough for what is decided from a configuration."""
    return SimpleNamespace(config=config, **parts)


# which are tried ------------------------------------------------------------------------------------------


def test_all_that_no_option_fixes_are_tried_unless_some_are_named() -> None:
    found = wanted_levers(None, {"workers": 14, "device": "cpu"})
    assert list(found) == list(LEVERS)
    assert found["rendering"] is None
    assert found["workers"] == Unavailable("--workers is given, which fixes it")
    assert wanted_levers("none", {"workers": 14}) == {}
    assert wanted_levers("workers=8/16, rendering=osmesa,groups", {"workers": 14}) == {
        "workers": (8, 16),
        "rendering": ("osmesa",),
        "groups": None,
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("wheels", "no lever is called 'wheels'"),
        ("workers=0", "workers=0"),
        ("groups=1", "groups=1"),
        ("workers=", "workers="),
        ("rendering=crayon", "rendering=crayon"),
        ("overlap-rendering=crayon", "overlap-rendering=crayon"),
        ("nice=20", "nice=20"),
        ("nice=-1", "nice=-1"),
        ("cuda-graph=on", "cuda-graph takes no values"),
        ("none,groups", "no lever is called 'none'"),
    ],
)
def test_what_is_no_lever_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        wanted_levers(text, {})


@pytest.mark.parametrize(
    ("envs", "cores", "numbers"),
    [
        (16, 16, (8, 16)),
        (16, 14, (4, 8, 14)),
        (64, 2, (1, 2)),
        (4, 1, (1,)),
        (1, 16, (1,)),
        (80, 16, (8, 16)),
    ],
)
def test_numbers_of_processes(envs: int, cores: int, numbers: tuple[int, ...]) -> None:
    assert processes_to_try(envs, cores) == numbers


def test_what_does_not_apply_says_why() -> None:
    trainer = SimpleNamespace(rollout=RolloutWorker(SimpleNamespace()))
    on_cpu = here(configure("tiny"), trainer=trainer)
    assert CudaGraph(on_cpu).others() == Unavailable("rollouts compute on cpu, which has no CUDA graphs")
    on_cpu.config = configure("h200")
    assert CudaGraph(on_cpu).others() == (True,)
    on_cpu.config = configure("h200", cuda_graph=True)
    assert CudaGraph(on_cpu).others() == (False,)
    on_cpu.config = configure("h200", policy="openvla_oft")
    assert CudaGraph(on_cpu).others() == Unavailable("openvla_oft has no denoise steps")
    on_cpu.config = configure("exact", device="cuda:0")
    assert "sample by sample" in str(CudaGraph(on_cpu).others())
    arm, warp = configure("tiny"), configure("tiny", simulator="mujoco_warp", workers=1)
    assert Rendering(here(arm)).others() == Unavailable("where mujoco_arm draws cannot be chosen")
    assert Workers(here(arm)).others() == Unavailable("the simulator is in this process")
    assert Workers(here(warp)).others() == Unavailable("all environments of mujoco_warp are in one process")
    blind = configure("tiny", simulator="libero", workers=2)
    assert Rendering(here(blind)).others() == Unavailable("no images are drawn")
    fixed = Unavailable("--workers is given, which fixes it")
    assert Workers(here(blind), fixed).others() == fixed
    assert Workers(here(blind), (1, 2, 64, 65)).others() == (1, 64)
    assert Nice(here(arm)).others() == Unavailable("the simulator is in this process")
    assert Nice(here(warp)).others() == Nice(here(blind)).others() == (10,)
    assert Nice(here(replace(blind, simulator_nice=10))).others() == (0,)
    assert Nice(here(replace(blind, simulator_nice=5))).others() == (10, 0)
    assert Nice(here(blind), wanted_levers("nice=0/5/15", {})["nice"]).others() == (5, 15)
    assert wanted_levers("nice=5/15/5,workers=2/02", {}) == {"nice": (5, 15), "workers": (2,)}
    fixed = wanted_levers(None, {"simulator_nice": 0})["nice"]
    assert Nice(here(blind), fixed).others() == Unavailable("--simulator-nice is given, which fixes it")


def test_nothing_is_nicer_than_the_nicest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpriority", lambda which, who: 19)
    assert "nothing is nicer" in str(Nice(here(configure("tiny", workers=1))).others())


@pytest.mark.parametrize("streams", [1, 2])
def test_what_runs_beside_others_is_not_tried_where_nothing_overlaps(streams: int) -> None:
    wanted: dict[str, Any] = {"nice": (5,), "client-priority": Unavailable("an option fixes it")}
    graph = SimpleNamespace(streams=((),) * streams)
    selected = Selected(cast(Any, None), cast(Any, graph), ())
    priority, nice = graph_levers(here(configure("tiny", workers=1)), selected, wanted)
    assert nice.others() == ((5,) if streams > 1 else Unavailable("nothing overlaps in the selected graph"))
    assert priority.others() == Unavailable("an option fixes it")


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize(
    ("asked", "values"),
    [
        ("rendering", ("egl-one", "osmesa")),
        ("rendering=osmesa", ("osmesa",)),
        ("overlap-rendering=egl-one/egl", ("egl-one",)),
        ("rendering=osmesa,overlap-rendering=egl-one", ("egl-one",)),
    ],
)
def test_where_images_are_drawn_is_tried_again_where_something_overlaps(
    streams: int, asked: str, values: tuple[str, ...]
) -> None:
    config = configure("tiny", simulator="libero", workers=2, cameras=2)
    selected = Selected(cast(Any, None), cast(Any, SimpleNamespace(streams=((),) * streams)), ())
    (lever,) = graph_levers(here(config), selected, wanted_levers(asked, {}))
    assert isinstance(lever, OverlapRendering)
    assert lever.name == "overlap-rendering" != Rendering.name  # a row and a measurement of its own
    assert lever.beside
    none = Unavailable("nothing overlaps in the selected graph")
    assert lever.others() == (values if streams > 1 else none)
    fixed = wanted_levers(None, {"rendering": "egl"})
    lever = graph_levers(here(config), selected, {"rendering": fixed["rendering"]})[0]
    assert lever.others() == Unavailable("--rendering is given, which fixes it") == fixed["overlap-rendering"]


def test_a_simulator_yields_to_others_only_as_a_client_of_mps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warp = configure("h200", simulator="mujoco_warp", workers=1)
    monkeypatch.delenv(PIPE, raising=False)
    assert ClientPriority(here(warp)).others() == Unavailable("no MPS daemon")
    with pytest.raises(ConfigurationError, match="cannot have a low priority: no MPS daemon"):
        sharing(replace(warp, simulator_low_priority=True))
    (tmp_path / "control").touch()
    daemon = {PIPE: str(tmp_path)}
    monkeypatch.setenv(PIPE, str(tmp_path))
    lever = ClientPriority(here(warp))
    assert (lever.present, lever.others()) == (False, (True,))
    assert lever.changes(True) == {"simulator_low_priority": True}
    assert "libero is no CUDA client" in str(
        ClientPriority(here(configure("h200", simulator="libero"))).others()
    )
    low = sharing(replace(warp, simulator_low_priority=True, simulator_sm_percent=60), daemon)
    assert low.simulator_environment == {
        "CUDA_MPS_CLIENT_PRIORITY": "1",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "60",
    }
    assert low.label.endswith("simulator below normal priority")
    assert "CUDA_MPS_CLIENT_PRIORITY" not in sharing(warp, daemon).simulator_environment
    monkeypatch.setenv("CUDA_MPS_CLIENT_PRIORITY", "1")  # of the driver: the simulator goes first
    assert sharing(warp, daemon).simulator_environment == {"CUDA_MPS_CLIENT_PRIORITY": "0"}


def test_images_are_as_they_were_wherever_they_are_drawn() -> None:
    seen = configure("tiny", simulator="libero", workers=2, cameras=2)
    lever = Rendering(here(seen))
    assert lever.others() == ("egl-one", "osmesa")
    assert lever.changes("osmesa") == {"rendering": "osmesa", "shadows": True}
    drawn = replace(seen, rendering="osmesa")
    assert Rendering(here(drawn)).changes("egl") == {"rendering": "egl", "shadows": False}
    assert Rendering(here(replace(seen, shadows=False))).changes("osmesa")["shadows"] is False
    several = replace(seen, rendering="egl-one", painters=2)
    lever = Rendering(here(several))
    for value in lever.others():  # which have no painters
        assert replace(several, **lever.changes(value)).painters is None
    assert "painters" not in lever.changes("egl-one")


def test_streams_are_of_components_that_compute_in_this_process() -> None:
    node = {c: SimpleNamespace(component=c) for c in ("env", "rollout", "actor", "host")}
    call = {f"{c}#": SimpleNamespace(node=c) for c in node}

    def graph(*streams: tuple[str, ...]) -> Any:
        return SimpleNamespace(nodes=node, by_id=call, streams=streams)

    inside, outside = SimpleNamespace(process_ids=()), SimpleNamespace(process_ids=(1,))
    gpu = configure("h200")
    assert "cpu has no streams" in str(stream_components(here(configure("tiny")), graph()))
    beside = graph(("env#",), ("rollout#", "actor#"))
    assert stream_components(here(gpu, simulator=inside), beside) == ("actor", "env", "rollout")
    assert "no two components" in str(stream_components(here(gpu, simulator=outside), beside))
    copies = graph(("host#", "rollout#"), ("host#", "rollout#"))  # which are no work of SMs
    assert "no two components" in str(stream_components(here(gpu, simulator=outside), copies))
    trains = graph(("env#",), ("rollout#",), ("actor#",))
    assert stream_components(here(gpu, simulator=outside), trains) == ("actor", "rollout")
    node["vision"] = SimpleNamespace(component="vision")
    call["vision#"] = SimpleNamespace(node="vision")
    sees = graph(("vision#", "rollout#"), ("host#", "vision#", "rollout#"))  # steps beside another's prefix
    assert stream_components(here(gpu, simulator=outside), sees) == ("actor", "rollout", "vision")


# what they change -----------------------------------------------------------------------------------------


def test_other_processes_go_on_with_the_same_bits(tmp_path: Path) -> None:
    with embodied(small(workers=1), tmp_path, activity="off") as found:
        lever = Workers(found)
        first = found.simulator.process_ids
        for value, processes in ((2, 2), (1, 1), (2, 2)):
            lever.use(value)
            assert len(found.simulator.process_ids) == processes
            found.workload.iteration(None)
        assert lever.present == 1
        lever.keep(2)
        assert lever.present == found.config.workers == 2
        assert found.simulator.key is None
        assert not set(first) & set(found.simulator.process_ids)
        after = {k: v.clone() for k, v in found.trainer.actor.policy.state_dict().items()}
        worlds = found.trainer.env.simulator.state_dict()
        trained = found.iterations
    run(small(), tmp_path / "plain", trained)
    saved = torch.load(tmp_path / "plain" / "checkpoint.pt", weights_only=True)
    assert equal_bits(dict(saved["actor"]), after)
    assert equal_bits({k: v.numpy() for k, v in saved["environments"].items()}, worlds)


def test_only_one_further_simulator_is_there_at_a_time(tmp_path: Path) -> None:
    with embodied(small(workers=1), tmp_path, activity="off") as found:
        first, lever = found.simulator.process_ids, Workers(found)
        lever.use(2)
        second = found.simulator.process_ids
        lever.use(1)
        assert all(Path(f"/proc/{pid}").exists() for pid in (*first, *second))
        lever.use(3)
        assert all(Path(f"/proc/{pid}").exists() for pid in (*first, *found.simulator.process_ids))
        assert not any(Path(f"/proc/{pid}").exists() for pid in second)


def nice_values(simulator: Any) -> list[int]:
    return [os.getpriority(os.PRIO_PROCESS, pid) for pid in simulator.process_ids]


def test_nicer_processes_go_on_with_the_same_bits(tmp_path: Path) -> None:
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    with embodied(small(workers=2), tmp_path, activity="off", spares=1) as found:
        lever, spare = Nice(found), found.simulator.beside[0]
        assert nice_values(found.simulator) == [mine] * 2
        before = found.simulator.state_dict()
        lever.use(4)
        assert nice_values(found.simulator) == nice_values(spare) == [mine + 4] * 2
        assert equal_bits(found.simulator.state_dict(), before)
        lever.keep(4)
        assert lever.present == found.config.simulator_nice == 4
        assert found.simulator.key is None
        assert nice_values(found.simulator) == nice_values(spare) == [mine + 4] * 2
        found.workload.iteration(None)
        after = {k: v.clone() for k, v in found.trainer.actor.policy.state_dict().items()}
        trained = found.iterations
    run(small(), tmp_path / "plain", trained)
    saved = torch.load(tmp_path / "plain" / "checkpoint.pt", weights_only=True)
    assert equal_bits(dict(saved["actor"]), after)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterations train as they do, and take as long as was recorded for their number of processes."""
    real = Search.native_iteration

    def native_iteration(self: Search) -> tuple[str, Measurement]:
        label, found = real(self)
        return label, replace(found, time_s={1: 0.30, 2: 0.21}[len(self.here.simulator.process_ids)])

    monkeypatch.setattr(Search, "native_iteration", native_iteration)


def request(out: Path) -> Request:
    levers = wanted_levers("cuda-graph,rendering,workers=2,groups,priorities,client-priority", {})
    for name in ("in-turn", "nice", "core-turns"):
        levers[name] = Unavailable("it is measured for real, and a machine may be busy")
    return Request(
        config=small(workers=1), out=out, activity="off", rounds=1, targets=1, alternatives=1, pairs=5,
        local_pairs=1, budget_s=600.0, levers=levers,
    )  # fmt: skip


@pytest.mark.usefixtures("recorded")
def test_the_whole_command_keeps_a_lever_and_a_run_has_to_have_it(tmp_path: Path) -> None:
    out = tmp_path / "optimisation"
    done = optimize_embodied(request(out))
    result = json.loads((out / "result.json").read_text())
    rows = {row["lever"]: row for row in result["levers"]}
    assert list(rows) == list(LEVERS)
    assert rows["workers"]["outcome"] == "kept"
    assert rows["workers"]["result"]["gain_frac"] == pytest.approx(0.3)
    assert {rows[n]["outcome"] for n in ("cuda-graph", "rendering", "priorities", "client-priority")} == {
        "does not apply"
    }
    assert rows["nice"]["reason"].startswith("it is measured for real")
    assert "lever workers, 1 -> 2: +30.0%" in done.summary
    assert not done.result.steps
    assert "not paid back by overlap (what levers gain is not counted)" in done.summary
    assert "<td>1 → 2</td>" in (out / "report.html").read_text()
    assert result["facts"]["config"]["workers"] == 2
    assert json.loads((out / "config.json").read_text())["workers"] == 2
    assert kept_levers(out / "graph.json") == {"workers": 2}
    tried = [m.time_s for label, m in done.result.iterations if "trying levers" in label]
    assert len(tried) == 11
    assert done.result.retained_s >= sum(tried)
    with pytest.raises(ConfigurationError, match="selected with workers 2, and 1 is set"):
        run(small(workers=1), tmp_path / "run", 3, graph=out / "graph.json")


@pytest.mark.slow
@pytest.mark.usefixtures("recorded")
def test_a_lever_that_was_kept_is_there_when_it_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "optimisation"
    first = optimize_embodied(request(out))
    last = torch.load(out / "checkpoint.pt", weights_only=True)["iteration"]
    again = optimize_embodied(replace(request(out), resume=True))
    assert not [label for label, _ in again.result.iterations if "trying levers" in label]
    assert again.result.graph.hash == first.result.graph.hash
    assert kept_levers(out / "graph.json") == {"workers": 2}
    summary = run(small(workers=2), out, last + 3, resume=True, graph=out / "graph.json")
    assert summary.iterations == last + 3


#: Seconds of an iteration: natively, by the graph.
DRAWN_S = {"egl": (1.0, 0.8), "egl-one": (1.6, 0.6)}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, str, str]]:
    """LIBERO that is not there: an arm in its place, a given graph, recorded times; what ran in which way."""
    ran: list[tuple[bool, str, str]] = []
    make_real = build.make_simulator

    def make(config: Config, *shared: Any) -> Any:
        arm = replace(config, simulator="mujoco_arm", cameras=0, rendering=None, shadows=None)
        made: Any = make_real(arm, *shared)
        made.rendering = config.rendering or "egl"
        return made

    @contextmanager
    def watched(*arguments: Any, **options: Any) -> Iterator[Any]:
        with embodied(*arguments, **options) as found:
            real = found.workload.iteration

            def iteration(graph: Any) -> Measurement:
                way, spare = found.simulator.inner.rendering, found.simulator.beside[0].inner.rendering
                ran.append((graph is not None, way, spare))
                return replace(real(graph), time_s=DRAWN_S[way][graph is not None])

            found.workload.iteration = iteration
            yield found

    def given(workload: Any, *_: Any, **__: Any) -> Optimization:
        native = workload.native
        return Optimization(
            native=native, graph=derive(native, WHOLE), steps=WHOLE, rounds=(), iterations=(),
            ended="the graph is given", stopped=False, batch_times=BatchTimes(),
        )  # fmt: skip

    for module in ("build", "optimize", "graph_driver"):
        monkeypatch.setattr(f"rlprof.workloads.embodied.{module}.make_simulator", make)
    monkeypatch.setattr("rlprof.workloads.embodied.optimize_run.embodied", watched)
    monkeypatch.setattr("rlprof.workloads.embodied.optimize_search.optimize", given)
    return ran


def drawing(out: Path) -> Request:
    config = small(simulator="libero", workers=1, cameras=1, image=32)
    levers = wanted_levers("rendering=egl-one", {})
    return replace(request(out), config=config, spares=1, levers=levers)


def test_what_takes_longer_natively_is_kept_where_it_takes_less_from_what_overlaps(
    tmp_path: Path, drawn: list[tuple[bool, str, str]]
) -> None:
    out = tmp_path / "optimisation"
    done = optimize_embodied(drawing(out))
    rows = {row.lever: row for row in done.result.levers}
    assert [(r.lever, r.outcome) for r in done.result.levers] == [
        ("rendering", "dropped"),
        ("overlap-rendering", "kept"),
    ]
    assert rows["overlap-rendering"].result.gain_frac == pytest.approx(0.25)  # type: ignore[union-attr]
    said = (out / "decisions.txt").read_text()
    assert "lever rendering, egl -> egl-one: complete iterations, medians 1 s -> 1.6 s" in said
    assert "lever overlap-rendering, egl -> egl-one: complete iterations, medians 800 ms -> 600 ms" in said
    # natively spare ones do no work; the native order is compared as it was drawn before there was a graph
    assert set(drawn) == {
        *((False, "egl", "egl"), (False, "egl-one", "egl")),
        *((True, "egl", "egl"), (True, "egl-one", "egl-one"), (False, "egl", "egl-one")),
    }
    assert done.result.total is not None
    assert done.result.total.gain_frac == pytest.approx(0.4)
    assert "lever overlap-rendering, egl -> egl-one: +25.0%" in done.summary
    kept = kept_levers(out / "graph.json")
    assert kept == {"rendering": "egl-one", "shadows": True}
    assert json.loads((out / "config.json").read_text())["rendering"] == "egl-one"
    check_levers(replace(drawing(out).config, **kept), kept)
    with pytest.raises(ConfigurationError, match="selected with rendering egl-one, and None is set"):
        check_levers(drawing(out).config, kept)


@pytest.mark.usefixtures("drawn")
def test_an_interruption_of_the_last_comparison_loses_no_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(reference: Any, *_: Any, **__: Any) -> Any:
        reference()  # the native order, as it was drawn
        raise KeyboardInterrupt

    monkeypatch.setattr("rlprof.workloads.embodied.optimize_search.measure_paired", interrupted)
    out = tmp_path / "optimisation"
    done = optimize_embodied(drawing(out))
    assert (done.result.stopped, done.result.ended, done.result.total) == (True, "interrupted", None)
    assert kept_levers(out / "graph.json") == {"rendering": "egl-one", "shadows": True}
    assert (out / "checkpoint.pt").exists()


@pytest.mark.usefixtures("drawn")
def test_the_budget_may_end_the_last_comparison_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_pair(reference: Any, candidate: Any, rule: Rule, **_: Any) -> PairedComparison:
        return measure_paired(reference, candidate, replace(rule, budget_s=0.0))

    monkeypatch.setattr("rlprof.workloads.embodied.optimize_search.measure_paired", one_pair)
    done = optimize_embodied(drawing(tmp_path / "optimisation"))
    assert done.result.total is not None
    assert len(done.result.total.pairs) == 1
    spent = f"the budget of {drawing(tmp_path).budget_s:g} s is spent"
    # the graph is found; what is left is told
    assert (done.result.stopped, done.result.ended) == (False, "the graph is given")
    assert any(part.startswith(spent) for part in done.result.unfinished)
    assert done.document["unfinished"]
    assert not done.interrupted


@pytest.mark.slow
def test_how_a_graph_is_drawn_is_there_when_it_runs_and_when_it_goes_on(
    tmp_path: Path, drawn: list[tuple[bool, str, str]]
) -> None:
    out = tmp_path / "optimisation"
    first = optimize_embodied(drawing(out))
    graph, config = out / "graph.json", drawing(out).config
    with pytest.raises(ConfigurationError, match="selected with rendering egl-one, and None is set"):
        run(config, tmp_path / "run", 3, graph=graph)
    assert run(replace(config, **kept_levers(graph)), tmp_path / "run", 3, graph=graph).iterations == 3
    drawn.clear()
    again = optimize_embodied(replace(drawing(out), resume=True))
    outcomes = [[(r.lever, r.outcome) for r in done.result.levers] for done in (first, again)]
    assert outcomes[0] == outcomes[1]
    assert (False, "egl-one", "egl") not in drawn  # what was measured in either phase is not measured again
    assert (True, "egl", "egl") not in drawn


def test_what_was_tried_is_settled_whether_kept_or_not() -> None:
    before = configure("tiny", workers=1)
    none = Row("rendering", "egl", None, "does not apply", "nothing is drawn")
    assert settled_by_levers(before, before, [replace(none, lever="overlap-rendering")]) == {}
    assert settled_by_levers(before, before, [none]) == {}
    tried = Row("workers", 1, 2, "dropped", "worse")
    assert settled_by_levers(before, before, [none, tried]) == {"workers": 1}
    drawn = configure("tiny", simulator="libero", workers=2, cameras=2)
    row = Row("rendering", "egl", "osmesa", "dropped", "worse")
    assert settled_by_levers(drawn, drawn, [row]) == {}  # as it is by default
    after = replace(drawn, rendering="osmesa", shadows=True)
    assert settled_by_levers(drawn, after, [row]) == {"rendering": "osmesa", "shadows": True}


def test_a_file_that_names_no_lever_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    GraphFile("iteration", (), "a", "b", {"levers": {"seed": 3}}).write(path)
    with pytest.raises(UnreadableError, match="has a lever 'seed'"):
        kept_levers(None, path)
    GraphFile("iteration", (), "a", "b", {}).write(path)
    assert kept_levers(path, None) == {}
