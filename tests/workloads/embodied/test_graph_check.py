"""A graph of another program is refused before anything of a run is touched."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'rlprof[workloads]'")
pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'rlprof[workloads]'")

from rlprof.overlap.optimize.graph_file import GraphFile
from rlprof.workloads.embodied.config import Config, configure
from rlprof.workloads.embodied.errors import ConfigurationError
from rlprof.workloads.embodied.graph_check import STRUCTURE, check_graph
from rlprof.workloads.embodied.optimize import embodied
from rlprof.workloads.embodied.runner import run
from tests.workloads.embodied.made import SMALL, small

#: A change of each value that decides which calls there are, with what else must change with it.
CHANGES: dict[str, dict[str, Any]] = {
    "algorithm": {"algorithm": "grpo", "group": 2},
    "envs": {"envs": 8},
    "rollout_epochs": {"rollout_epochs": 1},
    "chunks": {"chunks": 4, "episode_steps": 20},
    "update_epochs": {"update_epochs": 1},
    "global_batch": {"global_batch": 16},
    "minibatch_scope": {"minibatch_scope": "epoch"},
    "auto_reset": {"auto_reset": True},
    "phases": {"phases": True},
    "whole_answers": {"whole_answers": True},
    "prefix_worker": {"prefix_worker": True},
    "denoise_steps": {"denoise_steps": 3},
}
SAME: list[dict[str, Any]] = [
    {"seed": 5}, {"learning_rate": 1e-4}, {"workers": 1}, {"micro_batch": 2}, {"reward": "dense"},
    {"keep_prefix": True, "train": "expert"},
]  # fmt: skip


def selected(config: Config, **facts: Any) -> GraphFile:
    document = json.loads(json.dumps(config.to_dict()))
    return GraphFile("iteration", (), "a", "b", {"config": document, **facts})


@pytest.mark.parametrize("name", CHANGES)
def test_a_graph_of_other_calls_is_refused(name: str) -> None:
    graph, path = selected(small()), Path("graph.json")
    with pytest.raises(ConfigurationError, match=rf"graph\.json: .*{name} .*, not .*Next: .*--preset exact"):
        check_graph(small(**CHANGES[name]), graph, path)


def test_every_value_that_counts_is_tried() -> None:
    assert set(CHANGES) == {*STRUCTURE, "denoise_steps"}


@pytest.mark.parametrize("spares", [0, 1])
@pytest.mark.parametrize(("before", "now"), [({"workers": 1}, {}), ({}, {"workers": 2})])
def test_a_simulator_in_its_own_process_counts_where_there_are_spare_ones(
    spares: int, before: dict[str, Any], now: dict[str, Any]
) -> None:
    graph = selected(small(**before), spares=spares)
    said = f"workers {before.get('workers', 0)}, not {now.get('workers', 0)}"
    with pytest.raises(ConfigurationError, match=said) if spares else nullcontext():
        check_graph(small(**now), graph)


def test_batches_that_are_no_longer_computed_sample_by_sample_count() -> None:
    tiny = configure("tiny", **SMALL)
    with pytest.raises(ConfigurationError, match="preset exact, not tiny"):
        check_graph(tiny, selected(small()))
    with pytest.raises(ConfigurationError, match="simulator mujoco_arm, not mujoco_warp"):
        check_graph(replace(tiny, simulator="mujoco_warp", device="cuda:0"), selected(tiny))


@pytest.mark.parametrize("values", SAME, ids=str)
def test_what_changes_no_call_is_allowed(values: dict[str, Any]) -> None:
    check_graph(small(**values), selected(small()))


def test_facts_that_are_not_told_or_of_another_version_are_left_to_the_hash() -> None:
    check_graph(small(), GraphFile("iteration", (), "a", "b", {}))
    other = {**small().to_dict(), "of another version": 1}
    del other["envs"]
    check_graph(small(envs=8), GraphFile("iteration", (), "a", "b", {"config": other}))


@pytest.mark.parametrize(
    ("config", "facts", "said"),
    [
        (configure("tiny"), {}, "was selected for another program"),
        (small(schedule="hybrid"), {}, "in place of the schedule colocated"),
        (small(env_prefetch=True), {}, "--env-prefetch would do nothing.* or use --reset-ahead"),
        (small(train_pipe=True, minibatch_scope="epoch"), {}, "--train-pipe would do nothing"),
        (small(rollout_process=True), {}, "a rollout process cannot be told apart"),
        (small(), {"levers": {"workers": 7}}, "was selected with workers 7"),
    ],
    ids=["another_preset", "another_schedule", "prefetch", "train_pipe", "rollout_process", "other_levers"],
)
@pytest.mark.parametrize("there", [False, True])
def test_nothing_is_written_or_replaced_for_a_graph_that_does_not_fit(
    tmp_path: Path, config: Config, facts: dict[str, Any], said: str, there: bool
) -> None:
    selected(small(), **facts).write(tmp_path / "graph.json")
    out = tmp_path / "out"
    if there:
        out.mkdir()
        (out / "metrics.jsonl").write_text("of an earlier run")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(ConfigurationError, match=said):
        run(config, out, 1, force=True, graph=tmp_path / "graph.json")
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    assert out.exists() == there


@pytest.mark.slow
@pytest.mark.parametrize("values", [*CHANGES.values(), *SAME], ids=str)
def test_the_graph_is_another_one_exactly_if_a_value_that_counts_differs(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    hashes = []
    for number, config in enumerate((small(), small(**values))):
        (tmp_path / str(number)).mkdir()
        with embodied(config, tmp_path / str(number), activity="off") as here:
            hashes.append(here.workload.native.hash)
    assert (hashes[0] != hashes[1]) == (values in CHANGES.values())
