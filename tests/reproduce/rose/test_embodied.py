"""Tables of embodied measurements: from documents made by hand, and from a real small run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlprof.reproduce.papers import read_paper
from rlprof.reproduce.rose import ablation, alone, overhead, schedules
from rlprof.reproduce.rose.results import documents, on_gpu
from rlprof.reproduce.study import obtain
from rlprof.unavailable import Unavailable
from tests.conftest import ROOT
from tests.reproduce.rose import made

PAPER = read_paper(ROOT / "datasets" / "papers" / "rose.csv")


def test_documents_are_found_by_what_they_hold(tmp_path: Path) -> None:
    there = made.checkout(tmp_path, a=made.run(), b=made.run(device="cpu"), c={"command": "selftest"}, d=[1])
    (tmp_path / "benchmarks/results/gpu/broken.json").write_text("{")
    assert list(documents(there, on_gpu)) == ["a.json"]


def test_parts_alone_and_together(tmp_path: Path) -> None:
    there = made.checkout(tmp_path, off=made.run(), on=made.run("mujoco_warp", mps=True))
    study = alone.study("h200", 0, there)
    table = obtain(study, tmp_path / "out").table
    parts = alone.by_workload(table.frame)
    assert set(parts) == {("libero", False), ("mujoco_warp", True)}
    assert parts["libero", False] == {
        "inference": 0.3,
        "simulation": 0.5,
        "serial": 0.8,
        "overlapped": 0.64,
        "inference, overlapped": 0.45,
        "simulation, overlapped": 0.64,
    }
    assert alone.speedup(parts["libero", False]) == pytest.approx(0.8 / 0.64)
    row = table.frame.row(0, named=True)
    assert (row["least_s"], row["most_s"], row["times"], row["active_frac"]) == (0.2, 0.4, 3, 0.5)
    assert (row["gpu"], row["mps"]) == ("NVIDIA H200", False)
    by_name = {c.quantity: c for c in alone.compare_table({"alone": table.frame}, PAPER)}
    assert by_name["LIBERO, MPS off: speedup"].paper == 1.36
    assert by_name["LIBERO, MPS off: serial"].paper == 0.854
    assert "NVIDIA H200" in by_name["mujoco_warp, MPS on: serial"].cause
    figure = {c.quantity: c for c in alone.compare_figure({"alone": table.frame}, PAPER)}
    assert isinstance(figure["mujoco_warp, MPS off: serial"].ours, Unavailable)
    assert figure["mujoco_warp, MPS off: speedup"].paper == pytest.approx(7.673 / 7.871)


def test_a_new_measurement_makes_the_stored_table_another(tmp_path: Path) -> None:
    there = made.checkout(tmp_path, a=made.run())
    before = alone.study("h200", 0, there).key
    document = made.run()
    document["steps"]["solo_serial"]["each_s"] = [0.1, 0.1]
    (there / "benchmarks/results/gpu/a.json").write_text(json.dumps(document))
    assert alone.study("h200", 0, there).key != before


def test_schedules_count_complete_iterations_after_warming_up(tmp_path: Path) -> None:
    there = made.checkout(tmp_path, a=made.run(), b=made.run("mujoco_warp", mps=True))
    table = obtain(schedules.study("h200", 0, there), tmp_path / "out").table
    by_variant = schedules.by_variant(table.frame)
    rows = {(r["file"], r["variant"]): r for r in by_variant.iter_rows(named=True)}
    assert rows["a.json", "colocated"]["steps_per_s"] == 105.0
    assert (rows["a.json", "colocated"]["iterations"], rows["a.json", "colocated"]["active_frac"]) == (2, 0.4)
    assert rows["a.json", "hybrid"]["active_frac"] is None
    # switches are no part of the best of today's schedules
    assert rows["a.json", "hybrid-pipe+prefetch"]["over_best"] == pytest.approx(150 / 120)
    best = schedules.best_schedule(by_variant, "libero")
    assert best is not None
    assert best["variant"] == "hybrid"
    assert schedules.best_schedule(by_variant, "mujoco_warp") is None  # it ran with MPS only
    alone_rows = obtain(alone.study("h200", 0, there), tmp_path / "alone").table.frame
    compared = schedules.compare({"schedules": table.frame, "alone": alone_rows}, PAPER)
    assert "was not measured" in compared[0].cause
    assert [c.ours for c in made.told(compared)] == ["hybrid", pytest.approx(1.25)]
    assert compared[1].paper == 1.39


def test_what_was_withdrawn_stays_in_the_table_and_counts_for_nothing(tmp_path: Path) -> None:
    document = made.run()
    document["withdrawn"] = {"hybrid": "its stages did not overlap"}
    document["solo_activity_includes_first_call"] = True
    there = made.checkout(tmp_path, a=document)
    frame = obtain(schedules.study("h200", 0, there), tmp_path / "out").table.frame
    assert "its stages did not overlap" in set(frame["withdrawn"])
    by_variant = schedules.by_variant(frame)
    assert "hybrid" not in set(by_variant["variant"])
    best = schedules.best_schedule(by_variant, "libero")
    assert best is not None
    assert best["variant"] == "colocated"
    assert "withdrawn: hybrid, its stages" in schedules.cause(frame, "libero")
    solo = obtain(alone.study("h200", 0, there), tmp_path / "solo").table.frame
    assert solo["active_frac"].null_count() == solo.height


def test_optimised_graphs_are_compared_within_their_own_run(tmp_path: Path) -> None:
    slower = made.run()  # the same kind of machine another time, with a slower reference
    there = made.checkout(tmp_path, optimize=made.optimised(), run=slower)
    frame = obtain(schedules.study("h200", 0, there), tmp_path / "out").table.frame
    graphs = obtain(ablation.study("h200", 0, there), tmp_path / "graphs").table.frame
    rounds = {c.quantity: c for c in ablation.compare_rounds({"ablation": graphs}, PAPER)}
    assert rounds["libero: one round over Colocated+Pipe"].ours == pytest.approx(1.2)
    assert rounds["libero: two rounds over Colocated+Pipe"].ours == pytest.approx(1.3)
    levers = {c.quantity: c for c in ablation.compare_levers({"ablation": graphs}, PAPER)}
    assert isinstance(levers["mujoco_warp: graph only over Colocated"].ours, Unavailable)
    active = {c.quantity: c for c in schedules.compare_activity({"schedules": frame}, PAPER)}
    assert active["libero: SM activity, optimised"].ours == pytest.approx(65)
    assert active["libero: relative improvement"].paper == pytest.approx(39.3, abs=0.1)
    spent = obtain(overhead.study("h200", 0, there), tmp_path / "spent").table.frame
    found = {c.quantity: c.ours for c in overhead.compare({"overhead": spent}, PAPER)}
    assert found["libero: net overhead"] == 100.0
    assert found["libero: net, of 250 of our iterations"] == pytest.approx(100 * 100 / (250 * 8))
    assert found["libero: net, of 250 iterations of 340 s"] == pytest.approx(100 * 100 / (250 * 340))


def test_runs_under_other_conditions_are_told_apart(tmp_path: Path) -> None:
    captured, again, other = made.optimised(), made.optimised(), made.run("mujoco_warp", mps=True)
    for document in (captured, again):
        document["config"] |= {"workers": 16, "cuda_graph": True}
    documents = {"optimize": captured, "optimize_2": again, "run": made.run(), "warp": other}
    there = made.checkout(tmp_path, **documents)
    frame = obtain(schedules.study("h200", 0, there), tmp_path / "out").table.frame
    table = schedules.by_variant(frame)
    assert dict(table.select("file", "run").unique().iter_rows()) == {
        "optimize.json": "captured steps, 16 processes, MPS off (optimize)",
        "optimize_2.json": "captured steps, 16 processes, MPS off (optimize_2)",
        "run.json": "MPS off",
        "warp.json": "MPS on",
    }
    assert not table.select("workload", "run", "variant").is_duplicated().any()


def test_activity_is_compared_with_the_best_schedule_of_the_same_run(tmp_path: Path) -> None:
    faster = made.run()  # another day all schedules were faster, and no graph ran
    for row in faster["iterations"]:
        row["simulator_steps_per_s"] *= 10
        row["activity"] = {"iteration": 0.9}
    graph = made.optimised(variants=(("native", 100.0, 0.4), ("optimised", 150.0, 0.6)))
    there = made.checkout(tmp_path, a=faster, b=graph)
    frame = obtain(schedules.study("h200", 0, there), tmp_path / "out").table.frame
    active = {c.quantity: c.ours for c in schedules.compare_activity({"schedules": frame}, PAPER)}
    assert active["libero: SM activity, colocated"] == pytest.approx(40)
    assert active["libero: relative improvement"] == pytest.approx(50)


def test_the_best_schedule_is_told_of_the_run_that_the_gain_is_of(tmp_path: Path) -> None:
    faster = made.run()  # another run, without a graph, in which another schedule was the best, and faster
    faster["iterations"] = [r for r in faster["iterations"] if "+" not in r["variant"]]
    for row in faster["iterations"]:
        row["simulator_steps_per_s"] *= 10
    graph = made.optimised(variants=(("native", 100.0, 0.4), ("optimised", 150.0, 0.6)))
    there = made.checkout(tmp_path, a=faster, b=graph)
    frame = obtain(schedules.study("h200", 0, there), tmp_path / "out").table.frame
    alone_rows = obtain(alone.study("h200", 0, there), tmp_path / "alone").table.frame
    compared = schedules.compare({"schedules": frame, "alone": alone_rows}, PAPER)
    assert [c.ours for c in made.told(compared)] == ["colocated", pytest.approx(1.5)]


@pytest.mark.slow
def test_a_small_run_on_this_processor(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("mujoco")
    found = obtain(alone.study("smoke", 0, ROOT), tmp_path).table.frame
    parts = alone.by_workload(found)["mujoco_arm", False]
    assert {"inference", "simulation", "serial", "overlapped"} <= set(parts)
    assert all(0 < s < 60 for s in parts.values())
