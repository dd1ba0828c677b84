"""The optimiser on embodied training: trials leave nothing behind, and an optimised run trains the same."""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'rlprof[workloads]'")
pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'rlprof[workloads]'")

import torch

from rlprof.errors import OutputError
from rlprof.overlap.equality import equal_bits
from rlprof.overlap.errors import OverlapError
from rlprof.overlap.optimize import Options, derive, optimize
from rlprof.overlap.optimize.comparison import affected, comparison
from rlprof.overlap.optimize.graph_file import GraphFile
from rlprof.overlap.optimize.log import DecisionLog
from rlprof.overlap.optimize.search import search
from rlprof.overlap.optimize.simulated import DeviceModel, NodeModel, SimulatedWorkload
from rlprof.overlap.optimize.steps import Step, step
from rlprof.overlap.optimize.store import Store
from rlprof.overlap.optimize.trials import alone
from rlprof.workloads.embodied import optimize_run, optimize_search
from rlprof.workloads.embodied.config import Config, configure
from rlprof.workloads.embodied.errors import CheckpointError, ConfigurationError, SimulatorDiedError
from rlprof.workloads.embodied.optimize import Counter, asked_of, embodied
from rlprof.workloads.embodied.optimize_run import Request, optimize_embodied
from rlprof.workloads.embodied.optimize_search import Search
from rlprof.workloads.embodied.policies.base import Kept
from rlprof.workloads.embodied.quota_file import QuotaFile
from rlprof.workloads.embodied.quotas import Quotas
from rlprof.workloads.embodied.runner import run
from tests.conftest import ROOT

EPOCH = "iteration/generate_rollouts/rollout_epoch"
CHUNK = f"{EPOCH}/chunk"
STEP = f"{CHUNK}/env_interact_step/step"
TEMPORAL = (step("split_temporal", EPOCH, groups=2), step("interleave", EPOCH))
SPATIAL = (step("split_spatial", CHUNK, groups=2), step("interleave", CHUNK))
KEEPING = {"policy": "pi0", "train": "expert", "keep_prefix": True, "whole_answers": True}
APART = {**KEEPING, "prefix_worker": True}
WHOLE = (step("split_spatial", EPOCH, groups=2), step("interleave", EPOCH))


def small(**values: object) -> Config:
    """Two epochs of two chunks, four environments, one optimiser step in each pass."""
    sizes = {"envs": 4, "chunks": 2, "episode_steps": 10, "global_batch": 16, "micro_batch": 8}
    return configure("exact", **{**sizes, "update_epochs": 1, **values})


def test_a_recording_keeps_no_memory_of_the_device_of_its_iterations(tmp_path: Path) -> None:
    config = small(policy="pi0", train="expert", keep_prefix=True)
    with embodied(config, tmp_path, spares=1, activity="off"):
        assert not [o for o in gc.get_objects() if type(o) is Kept]


def held(trainer) -> dict[str, object]:
    """Everything that training goes on from."""
    found = {
        "environments": trainer.env.simulator.state_dict(),
        "rollout": trainer.rollout.policy.state_dict(),
        "actor": trainer.actor.policy.state_dict(),
        "optimizer": trainer.actor.optimizer.state_dict(),
        "numbers": (trainer.rollout.version, trainer.actor.updates),
    }
    return {name: plain(value) for name, value in found.items()}


def plain(value):
    """Ordered dicts as dicts."""
    return {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("scope", ["rollout", pytest.param("epoch", marks=pytest.mark.slow)])
def test_trials_never_reach_training(tmp_path: Path, scope: str) -> None:
    config = small(minibatch_scope=scope, global_batch=8)
    with embodied(config, tmp_path, spares=1, activity="off") as here:
        native = here.workload.native
        forms: list[tuple[Step, ...]] = [SPATIAL, WHOLE, TEMPORAL]
        if scope == "epoch":  # its comparison trains: weights and optimiser are changed and put back
            training = "iteration/actor_training/update_epoch/part"
            forms.append((step("train_beside_next_epoch", EPOCH, training=training),))
        before = json.dumps(_digest(held(here.trainer)))
        for steps in forms:
            graph = derive(native, steps)
            work = comparison(native, [native, graph], [*affected(steps), CHUNK])
            with here.workload.prepared(work, [native, graph]) as trials:
                assert all(trial.run() > 0 for trial in trials)
                # whatever the order, the calls do what natively they do: the same state, again and again
                first = json.dumps(_digest(held(here.trainer)))
                assert trials[1].run() > 0
                assert json.dumps(_digest(held(here.trainer))) == first
                trials[1].serially()
                assert json.dumps(_digest(held(here.trainer))) == first
                lonely = alone(graph, trials[1].spans())
                assert {size for node, size, _ in lonely if node == STEP} == (
                    {4} if steps[0].kind != "split_spatial" else {2}
                )
            assert json.dumps(_digest(held(here.trainer))) == before
        here.workload.iteration(derive(native, forms[-1]))
        trained = held(here.trainer)
    with embodied(config, tmp_path, spares=1, activity="off") as here:
        here.workload.iteration(None)
        assert equal_bits(held(here.trainer), trained)


def _digest(value: object) -> object:
    import hashlib

    if isinstance(value, dict):
        return {str(k): _digest(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_digest(v) for v in value]
    if hasattr(value, "tobytes"):
        return hashlib.sha256(value.tobytes()).hexdigest()
    if torch.is_tensor(value):
        return hashlib.sha256(value.detach().numpy().tobytes()).hexdigest()
    return repr(value)


@pytest.mark.parametrize(
    ("steps", "options"),
    [
        pytest.param(TEMPORAL, {}, id="epochs side by side"),
        pytest.param(TEMPORAL, KEEPING, id="epochs side by side, prefixes kept, whole answers"),
        pytest.param(TEMPORAL, APART, id="epochs side by side, prefixes made apart and kept, whole answers"),
        pytest.param(
            SPATIAL, {"prefix_worker": True}, id="halves of a chunk, prefixes apart", marks=pytest.mark.slow
        ),
        pytest.param(WHOLE, {}, id="halves of the batch", marks=pytest.mark.slow),
        pytest.param(WHOLE, KEEPING, id="halves, prefixes kept, whole answers", marks=pytest.mark.slow),
    ],
)
def test_an_optimised_run_trains_as_the_native_one(
    tmp_path: Path, steps: tuple[Step, ...], options: dict[str, object]
) -> None:
    config = small(**options)
    with embodied(config, tmp_path, spares=1, activity="off") as here:
        native = here.workload.native
        kept = GraphFile.of(native, derive(native, steps), steps, spares=1)
    kept.write(tmp_path / "graph.json")
    run(config, tmp_path / "native", 4)
    run(config, tmp_path / "optimised", 4, graph=tmp_path / "graph.json")
    rows = [json.loads(line) for line in (tmp_path / "optimised" / "metrics.jsonl").read_text().splitlines()]
    assert [row["graph"] for row in rows] == [False, False, True, True]
    assert all(row["semantic_differences"] == [] for row in rows)
    assert set(rows[-1]["phases_s"]) == set(rows[0]["phases_s"])
    one, other = (tmp_path / name for name in ("native", "optimised"))
    assert (one / "semantic_record.jsonl").read_text() == (other / "semantic_record.jsonl").read_text()
    saved = [torch.load(folder / "checkpoint.pt", weights_only=True) for folder in (one, other)]
    for name in ("actor", "rollout", "optimizer", "environments", "updates", "version"):
        assert equal_bits(plain(saved[0][name]), plain(saved[1][name])), name


def test_a_graph_of_another_program_ends_the_run_and_says_so(tmp_path: Path) -> None:
    with embodied(small(), tmp_path, activity="off") as here:
        native = here.workload.native
        GraphFile.of(native, derive(native, WHOLE), WHOLE).write(tmp_path / "graph.json")
    other = small(chunks=1, global_batch=8, episode_steps=5)
    with pytest.raises(OverlapError, match="selected for another program"):
        run(other, tmp_path / "run", 3, graph=tmp_path / "graph.json", checkpoint_every=2)
    # the iterations that were recorded are training that counts
    assert torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["iteration"] == 2
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2
    assert len(run(other, tmp_path / "two", 2, graph=tmp_path / "graph.json").rows) == 2
    with pytest.raises(ConfigurationError, match="in place of the schedule colocated"):
        run(small(schedule="hybrid"), tmp_path / "run", 3, graph=tmp_path / "graph.json", force=True)


def test_only_the_loop_can_be_optimised(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigurationError, match="is no program of nodes"),
        embodied(small(schedule="hybrid"), tmp_path),
    ):
        pass


def test_what_activity_is_asked_of_is_told_to_the_search(tmp_path: Path) -> None:
    assert asked_of(small(), "auto") == asked_of(small(), "program") == "program"
    assert asked_of(replace(small(), device="cuda:0"), "auto") == "auto"
    with embodied(small(), tmp_path, activity="off") as here:
        assert here.workload.activity_from == "off"


def test_recorded_durations_lead_to_the_policy_beside_the_simulator(tmp_path: Path) -> None:
    """The decision path on a real graph, with durations that were measured on two cores, one thread each."""
    recorded = json.loads((ROOT / "benchmarks/results/optimize/durations_exact.json").read_text())[
        "medians_s"
    ]
    with embodied(small(), tmp_path, activity="off") as here:
        native = here.workload.native
    nodes = {}
    # paths are of before answers were a node; what `upload` does was part of `vision`
    recorded[f"{CHUNK}/predict/upload"] = {"0": 0.0}
    for call in native.calls:
        measured = recorded[call.node.replace("/answer/", "/")]
        known = {int(size): seconds for size, seconds in measured.items()}
        if len(known) > 1:
            per_sample = max(0.0, (known[8] - known[4]) / 4)
            nodes[call.node] = NodeModel(max(0.0, known[8] - 8 * per_sample), per_sample, demand=0.45)
        else:
            nodes[call.node] = NodeModel(next(iter(known.values())), demand=0.45)
    log = DecisionLog()
    found = optimize(SimulatedWorkload(native, DeviceModel(nodes)), Options(epsilon=0.01), log=log)
    ranking = next(e for e in log.entries if e["what"] == "ranking")
    answer = f"{CHUNK}/predict/answer"
    assert answer in ranking["targets"]
    tried = next(e for e in log.entries if e["what"] == "candidates" and e["target"] == answer)
    kept = [c for c in tried["candidates"] if c["kept"]]
    assert kept
    assert kept[0]["partner"] == f"{CHUNK}/env_interact_step"
    assert any("is dependent" in r["reason"] for r in tried["refused"])
    assert any("there is 1 copy" in r["reason"] for r in tried["refused"])
    assert found.steps
    assert found.steps[0].kind == "split_spatial"
    assert found.total is not None
    assert found.total.gain_frac > 0.03


def test_phases_of_a_chunk_are_windows_beside_which_answers_may_run(tmp_path: Path) -> None:
    with embodied(small(phases=True), tmp_path, activity="off") as here:
        profile = here.workload.profile(here.workload.native)
        durations_s = {w.node: w.mean_s for w in profile.windows}
        for phase in ("physics", "reward", "render"):
            node = f"{CHUNK}/env_interact_step/{phase}"
            assert durations_s[node] > 0
            found = search(here.workload.native, node, durations_s)
            assert {c.partner for c in found.candidates} == {f"{CHUNK}/predict"}
            # the simulator serves one call at a time, its own phases too
            assert any(r.reason.startswith("L5: both are of component worker env") for r in found.refused)


def test_the_whole_command_and_going_on(tmp_path: Path) -> None:
    out = tmp_path / "optimisation"
    request = Request(
        config=replace(small(), workers=1),
        out=out,
        activity="program",
        rounds=1,
        targets=1,
        alternatives=1,
        pairs=1,
        local_pairs=1,
        budget_s=60.0,
    )
    said: list[str] = []
    done = optimize_embodied(replace(request, resume=True), say=said.append)  # as a script that is restarted
    assert said[0] == f"there is nothing to resume in {out}: it begins anew"
    names = {p.name for p in out.iterdir()}
    assert names == {
        "config.json", "decisions.jsonl", "decisions.txt", "measurements.jsonl", "graph.json", "quotas.json",
        "result.json", "report.html", "report.ipynb", "checkpoint.pt",
    }  # fmt: skip
    result = json.loads((out / "result.json").read_text())
    assert result["steps"] == [str(s) for s in done.result.steps]
    assert "the program's share of" in result["rounds"][0]["source"]
    assert result["overhead"]["total_s"] >= result["overhead"]["retained_training_s"] > 0
    page = (out / "report.html").read_text()
    assert "What was tried" in page
    assert str(tmp_path) not in page
    quotas = QuotaFile.read(out / "quotas.json")
    assert (quotas.quotas, quotas.reason) == ({}, "there is no GPU to divide")
    assert result["quota"]["reason"] == quotas.reason
    assert quotas.apply(request.config) == request.config
    with pytest.raises(OutputError, match="an optimisation is there already"):
        optimize_embodied(request)
    said.clear()
    with pytest.raises(CheckpointError, match=r"is of another configuration: seed 0 -> 9.*--graph"):
        optimize_embodied(
            replace(request, config=replace(request.config, seed=9), resume=True), say=said.append
        )
    assert said == []  # nothing was started for it
    assert json.loads((out / "config.json").read_text())["seed"] == request.config.seed
    # nothing is measured again, training goes on where it was, and what the first session took still counts
    began = time.monotonic()
    again = optimize_embodied(replace(request, resume=True))
    took_s = time.monotonic() - began
    assert not again.result.iterations
    assert [str(s) for s in again.result.steps] == result["steps"]
    cost, before = again.result.cost, done.result.cost
    assert [s.number for s in cost.sessions] == [1, 2]
    assert [p.lost for p in cost.parts] == [0] * len(cost.parts)
    # which window has most room is measured, and on a busy machine it may be one in which nothing may run
    compared = any(e["what"] == "compared" for e in result["decisions"])
    assert cost.part("search").trials == before.part("search").trials
    assert (before.part("search").trials > 0) == compared
    assert cost.part("search").iterations == before.part("search").iterations
    assert cost.part("recording").iterations == 4
    # all of a session is counted, but for the writing of its result
    assert 0.7 * took_s < Store(out / "measurements.jsonl").cost().session_s() < took_s
    assert cost.retained_s > before.retained_s > 0
    resumed = json.loads((out / "result.json").read_text())
    assert resumed["sm_activity"] == result["sm_activity"]
    told = [e["what"] for e in resumed["decisions"]]
    assert resumed["decisions"][: len(result["decisions"])] == result["decisions"]
    assert told[len(result["decisions"]) :] == ["session", "started", "ended"]
    assert resumed["facts"]["date"]
    assert resumed["facts"]["hardware"]["processor"]
    assert [p["part"] for p in resumed["overhead"]["parts"]] == [p.name for p in cost.parts]
    saved = torch.load(out / "checkpoint.pt", weights_only=True)
    iterations = saved["iteration"]
    summary = run(request.config, out, iterations + 3, resume=True, graph=out / "graph.json")
    assert [row["iteration"] for row in summary.rows] == [iterations, iterations + 1, iterations + 2]
    assert summary.rows[-1]["graph"] is True


@pytest.mark.slow
def test_training_that_an_interrupted_session_lost_is_none_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "optimisation"
    request = Request(
        config=replace(small(), workers=1), out=out, activity="off", rounds=1, targets=1, alternatives=1,
        pairs=1, local_pairs=1, budget_s=60.0,
    )  # fmt: skip
    real = Counter.__call__

    def interrupted(self: Counter) -> dict[str, object]:
        if self.step == 2:  # that of the profile
            self.whole = False
            raise KeyboardInterrupt
        return real(self)

    monkeypatch.setattr(Counter, "__call__", interrupted)
    first = optimize_embodied(request).result
    assert first.stopped
    assert not (out / "checkpoint.pt").exists()
    lost = sum(p.lost for p in first.cost.parts)
    assert (lost, first.retained_s) == (2, 0.0)
    assert first.net_overhead_s == first.total_s
    monkeypatch.setattr(Counter, "__call__", real)
    cost = optimize_embodied(replace(request, resume=True)).result.cost
    assert [s.goes_on_from for s in cost.sessions] == [0, 0]
    assert sum(p.lost for p in cost.parts) == 2
    result = json.loads((out / "result.json").read_text())
    assert result["facts"]["iterations"] == sum(p.iterations for p in cost.parts) - 2
    assert cost.net_s > first.total_s
    assert "(2 lost)" in (out / "report.html").read_text()


def test_the_budget_of_the_search_is_told_as_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Begun(Exception):
        """The search of a graph would begin here."""

    def begins(_: object, options: Options, **__: object) -> None:
        raise Begun(options.budget_spent)

    monkeypatch.setattr(optimize_search, "optimize", begins)
    nothing = SimpleNamespace(drop_all_but=lambda _: None, key="")
    here = SimpleNamespace(
        key="", workload=SimpleNamespace(key="", native=None), simulator=nothing, memory=None
    )
    monkeypatch.setattr(optimize_search, "setting_levers", lambda *_: [])
    request = Request(config=small(), out=tmp_path, budget_s=120.0)
    search = Search(request, here, DecisionLog(), Store(), lambda _: None)  # type: ignore[arg-type]
    search.began -= 60.0  # what levers took
    with pytest.raises(Begun, match=r"the budget of 120 s is spent \((60|59\.\d) s after levers\)"):
        search.run()


@pytest.mark.parametrize("during", ["the search for quotas", "the checkpoint"])
def test_what_fails_after_the_search_loses_nothing_that_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, during: str
) -> None:
    def dies(search: Search, *_: object) -> Quotas:
        here = search.here
        os.kill(here.simulator.process_ids[0], signal.SIGKILL)
        if during == "the search for quotas":
            here.workload.iteration(None)
        return Quotas(None, "there is no GPU to divide")

    monkeypatch.setattr(optimize_run, "find_quotas", dies)
    config = replace(small(), workers=1)
    request = Request(config=config, out=tmp_path, activity="off", budget_s=0.01)
    with pytest.raises(SimulatorDiedError, match="SIGKILL during"):
        optimize_embodied(request)
    names = {p.name for p in tmp_path.iterdir()}
    assert names >= {"graph.json", "quotas.json", "result.json", "decisions.txt", "report.html"}
    reason = QuotaFile.read(tmp_path / "quotas.json").reason
    assert ("the search for quotas failed" in reason) == (during == "the search for quotas")
    assert ("checkpoint.pt" in names) == (during == "the checkpoint")
    monkeypatch.undo()
    run(config, tmp_path, 3, resume="checkpoint.pt" in names, graph=tmp_path / "graph.json")


@pytest.mark.parametrize("also", ["result.json", "report.html"])
def test_a_checkpoint_that_is_not_there_is_told_whatever_else_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, also: str
) -> None:
    """As on a disk that is full: the page can be made again, training cannot."""

    def full(path: Path, *_: object) -> None:
        raise OutputError("cannot be written (No space left on device)", where=path)

    def but_one(path: Path, document: Mapping[str, object]) -> None:
        (full if path.name == also else write)(path, document)

    write = optimize_run.write_json
    monkeypatch.setattr(optimize_run.checkpoint, "save", full)
    monkeypatch.setattr(optimize_run, "write_json", but_one)
    if also == "report.html":
        monkeypatch.setattr(optimize_run, "_report", lambda _made, path, _say: full(path))
    with pytest.raises(OutputError, match=r"checkpoint\.pt: cannot be written"):
        optimize_embodied(Request(replace(small(), workers=1), tmp_path, activity="off", budget_s=0.01))
    assert not (tmp_path / "checkpoint.pt").exists()
    assert (tmp_path / "result.json").exists() == (also != "result.json")
