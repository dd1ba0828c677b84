"""Reasons that runs measured, what is compared with which run, what has no measurement: of made documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlprof.reproduce.papers import Paper, PaperNumber, read_paper
from rlprof.reproduce.rose import ablation, activity, alone, causes, over_time, provenance, reasons, schedules
from rlprof.reproduce.rose.others import not_measured
from rlprof.reproduce.rose.results import paper_name, setup_of, simulator_of, workload
from rlprof.reproduce.study import obtain, stored_table
from rlprof.unavailable import Unavailable
from tests.conftest import ROOT
from tests.reproduce.rose import made

PAPER = read_paper(ROOT / "datasets" / "papers" / "rose.csv")
WARP = (("native", 100.0, 0.4), ("optimised", 140.0, 0.6))


def frame(module: Any, folder: Path, **documents: Any) -> pl.DataFrame:
    there = made.checkout(folder, **documents)
    return obtain(module.study("h200", 0, there), folder / "out").table.frame


def calls(*rows: tuple[str, str, float, float]) -> list[list[Any]]:
    return [[node, f"iteration/rollout/{node}", worker, start, end] for node, worker, start, end in rows]


def profiled() -> dict[str, Any]:
    """A run whose GPU was busy for 8 of 10 s: 5 s of answers, 1 s of training, 2 s of drawing."""
    document = made.optimised(variants=(("native", 100.0, 0.4), ("optimised", 125.0, 0.5)))
    document["steps"] = {
        "native_profile": {
            "ok": True,
            "wall_s": 10.0,
            "first_call_s": 0.0,
            "gpu_utilization_period_s": 0.5,
            "gpu_utilization_readings": [[0.05 + n / 10, 0.8 if 5 <= n < 105 else 0.0] for n in range(120)],
        },
        "solo_simulation": {"ok": True, "each_s": [4.0], "activity": {"simulation": 0.01}},
    }
    sm = {"name": "SM time", "least_s": 5.5, "head_s": 0.5, "work_s": 4.0, "tail_s": 1.0}
    document["bound"] = {
        "any graph": {"least_s": 8.1, "limits": [{"name": "GPU time slices", "least_s": 8.1}, sm]}
    }
    return document


BEFORE = calls(
    ("answer", "rollout", 0, 2.5), ("step", "env", 2.5, 4.5),
    ("answer", "rollout", 4.5, 7), ("step", "env", 7, 9), ("training_step", "actor", 9, 10),
)  # fmt: skip
AFTER = calls(
    ("answer", "rollout", 0, 3.5), ("step", "env#1", 0.5, 3), ("answer", "rollout", 3.5, 7),
    ("step", "env", 3.5, 6), ("training_step", "actor", 7, 8),
)  # fmt: skip


def with_reasons(folder: Path) -> pl.DataFrame:
    there = made.checkout(folder, optimize_libero=profiled())
    timelines = {"result": "optimize_libero.json", "timelines": {"before": BEFORE, "after": AFTER}}
    made.write(there / "benchmarks/results/gpu/timelines_libero.json", timelines)
    return obtain(reasons.study("h200", 0, there), folder / "out").table.frame


def test_reasons_are_computed_from_readings_and_calls(tmp_path: Path) -> None:
    found = with_reasons(tmp_path)
    value = {
        (r["kind"], r["what"], r["order"]): (r["seconds"], r["alone_s"]) for r in found.iter_rows(named=True)
    }
    assert value["use", "the GPU executes", "native"][0] == pytest.approx(8.0)
    assert value["use", "the GPU draws", "native"][0] == pytest.approx(2.0)  # less answers and training
    assert value["limit", reasons.BOTH, None][0] == pytest.approx(2 + 4 + 1)
    assert value["call", "answer", "native"] == (2.5, 5.0)
    assert value["call", "answer", "graph"] == (3.5, pytest.approx(2.0))
    assert value["call", "training", "graph"] == (1.0, 1.0)
    told = causes.measured(found, "libero", mps=False)
    assert "an answer takes 3.500 s (2.500 s by itself)" in told
    assert "2.00 s of them drawing" in told
    assert "1.25 if calls take turns on the GPU and 1.43 by drawing and SM time" in told
    assert "natively simulation" not in told  # no reset was recorded
    assert "training 1.00 s" in told
    assert causes.measured(found, "mujoco_warp", mps=False) == ""


def test_cores_are_named_where_they_bind(tmp_path: Path) -> None:
    for seconds, binds in ((9.0, True), (6.0, False)):  # drawing and SM time: 7 s
        document = profiled()
        document["bound"]["any graph"]["limits"].append({"name": "cores", "least_s": seconds})
        there = made.checkout(tmp_path / str(binds), optimize_libero=document)
        timelines = {"result": "optimize_libero.json", "timelines": {"before": BEFORE, "after": AFTER}}
        made.write(there / "benchmarks/results/gpu/timelines_libero.json", timelines)
        found = obtain(reasons.study("h200", 0, there), tmp_path / f"{binds} out").table.frame
        told = causes.measured(found, "libero", mps=False)
        assert ("1.11 by cores, whatever the graph" in told) == binds
        assert ("two simulators at once want the same cores" in told) == binds


def test_a_limit_that_another_run_would_need_is_not_made_up(tmp_path: Path) -> None:
    document = profiled()
    del document["steps"]["native_profile"]["gpu_utilization_readings"]
    found = frame(reasons, tmp_path, a=document)
    assert reasons.BOTH not in set(found["what"])
    assert "1.23 if calls take turns on the GPU, from a mean utilisation" in causes.bounds(
        found, "libero", mps=False
    )
    on = profiled()
    on["argv"]["mps"] = "True"  # clients of one server share the GPU: they need not take turns
    assert reasons.READ not in set(frame(reasons, tmp_path / "on", a=on)["what"])


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)).map(lambda s: (min(s), max(s))), max_size=8))
def test_what_spans_cover_is_what_a_fine_count_says(spans: list[tuple[float, float]]) -> None:
    steps = [n / 100 for n in range(1000)]
    counted = sum(any(a <= t < b for a, b in spans) for t in steps) / 100
    assert reasons.covered_s(spans) == pytest.approx(counted, abs=0.01 * (len(spans) + 1))


@given(st.floats(0, 1), st.floats(0.1, 0.5), st.floats(1, 4))
def test_a_steady_load_is_busy_for_its_share(share: float, period_s: float, length_s: float) -> None:
    readings = [(n / 10, share) for n in range(100)]
    assert reasons.busy_s(readings, 1.0, 1.0 + length_s, period_s) == pytest.approx(share * length_s)


def test_the_bound_of_the_shipped_run_is_that_of_its_readings() -> None:
    table = stored_table(reasons.study("h200", 0, ROOT), ROOT)
    assert not isinstance(table, Unavailable)
    told = causes.bounds(table.frame, "libero", mps=False)
    assert "1.39 if calls take turns on the GPU and 1.65 by drawing and SM time" in told


# With or without MPS ----------------------------------------------------------------------------------------


def warp(rate: float, *, mps: bool, **config: Any) -> dict[str, Any]:
    variants = (("native", rate, 0.4), ("optimised", 140.0, 0.6)) if mps else (("native", rate, 0.5),)
    document = made.optimised("mujoco_warp", mps=mps, variants=variants)
    document["config"] |= config
    return document


def either(tmp_path: Path, **documents: Any) -> list[Any]:
    there = made.checkout(tmp_path, **documents)
    tables = {
        name: obtain(module.study("h200", 0, there), tmp_path / name).table.frame
        for name, module in (("schedules", schedules), ("ablation", ablation), ("alone", alone))
        if name != "alone" or "solo" in documents
    }
    tables.setdefault(
        "alone", pl.DataFrame(schema={"workload": pl.String, "mps": pl.Boolean, "date": pl.String})
    )
    compared = (
        schedules.compare(tables, PAPER),
        schedules.compare_activity(tables, PAPER),
        ablation.compare_levers(tables, PAPER),
    )
    return [next(c for c in rows if "with or without MPS" in c.quantity) for rows in compared]


def test_a_gain_under_mps_is_also_told_over_what_runs_without(tmp_path: Path) -> None:
    gain, active, form = either(tmp_path, on=warp(100.0, mps=True), off=warp(120.0, mps=False))
    assert gain.ours == pytest.approx(140 / 120)
    assert gain.paper == 1.20
    assert active.ours == pytest.approx(20)  # 60 over 50 %
    assert form.ours == pytest.approx(140 / 120)
    for row in (gain, active, form):
        assert "off.json" in row.cause
        assert causes.DRIFT in row.cause


def test_the_daemon_may_have_the_faster_schedule(tmp_path: Path) -> None:
    gain, _, form = either(tmp_path, on=warp(100.0, mps=True), off=warp(80.0, mps=False))
    assert gain.ours == form.ours == pytest.approx(1.4)
    assert "on.json" in gain.cause
    assert causes.DRIFT not in gain.cause  # the same run: iterations took turns


def test_runs_of_the_same_iteration_are_a_pair(tmp_path: Path) -> None:
    on, off = warp(100.0, mps=True), warp(120.0, mps=False)
    kept = {"kept": True, "iteration": 3, "weights": "a" * 64}
    for n, (other, told) in enumerate(
        [
            (kept, "both are iteration 3, weights aaaaaaaaaaaa"),
            (
                kept | {"weights": "b" * 64},
                "both are iteration 3 of training, by weights that are not the same",
            ),
            (kept | {"iteration": 4}, causes.DRIFT),
            (kept | {"kept": False, "error": "no memory"}, causes.DRIFT),
        ]
    ):
        documents = {"on": on | {"same_iteration": kept}, "off": off | {"same_iteration": other}}
        for row in either(tmp_path / str(n), **documents):
            assert told in row.cause
            assert (causes.DRIFT in row.cause) == (told == causes.DRIFT)


def test_what_a_daemon_costs_says_whether_weights_are_the_same(tmp_path: Path) -> None:
    """The run of the same digest comes before others of the same configuration, whatever their order."""
    kept = {"kept": True, "iteration": 3, "weights": "a" * 64}
    documents = {}
    for name, mps, seconds, start in (
        ("first", True, 12.0, None),
        ("on", True, 11.0, kept),
        ("off", False, 10.0, kept),
        ("other", False, 8.0, kept | {"weights": "b" * 64}),
    ):
        document = warp(100.0, mps=mps) | {"bound": profiled()["bound"]}
        document["steps"] = {"native_profile": {"ok": True, "wall_s": seconds, "first_call_s": 0.0}}
        documents[name] = document | ({"same_iteration": start} if start else {})
    unknown = "by weights that need not have the same bits"
    for names, change, weights in (
        (("first", "on", "off", "other"), "+10.0 % (11.00 against 10.00 s", "by the same weights"),
        (("on", "other"), "+37.5 %", unknown),
        (("first", "off"), "+20.0 %", unknown),
        (("on",), "", ""),
    ):
        found = frame(reasons, tmp_path / "_".join(names), **{n: documents[n] for n in names})
        told = causes.cost_of_mps(found, "mujoco_warp")
        assert change in told
        assert weights in told
        assert bool(told) == bool(change)


def test_another_set_up_is_no_reference(tmp_path: Path) -> None:
    gain, _, form = either(tmp_path, on=warp(100.0, mps=True), off=warp(120.0, mps=False, substeps=100))
    assert isinstance(gain.ours, Unavailable)
    assert isinstance(form.ours, Unavailable)
    assert "no run of the same workload without MPS is stored" in gain.cause


def test_a_set_up_is_the_configuration_but_for_the_daemon() -> None:
    one = {"simulator": "mujoco_warp", "envs": 80, "rewards": None}
    assert setup_of(one) == setup_of({"envs": 80, "simulator": "mujoco_warp", "simulator_sm_percent": 50})
    assert setup_of(one) == setup_of(one | {"simulator_cores": 0})  # stored before there were turns on cores
    assert setup_of(one) != setup_of(one | {"simulator_cores": 16})
    assert setup_of(one) != setup_of(one | {"envs": 16})


# What is shown first, what loses, what was not measured -----------------------------------------------------


def test_runs_of_the_papers_workload_come_before_captures(tmp_path: Path) -> None:
    runs = frame(over_time, tmp_path, a=made.optimised())
    captures = stored_table(activity.study("smoke", 0, ROOT), ROOT)
    assert not isinstance(captures, Unavailable)
    rows = activity.compare({"over_time": runs, "activity": captures.frame}, PAPER)
    assert rows[0].quantity == "libero: share of the interaction loop below 50 %, colocated-pipe"
    assert rows[0].ours == pytest.approx(50)
    assert [r.paper for r in rows] == [38.8, 59.7, 59.7, 38.8]
    assert "capture" in rows[2].quantity
    assert set(activity.before(runs)["variant"]) == {"colocated-pipe"}


def test_a_graph_that_loses_is_not_called_optimised(tmp_path: Path) -> None:
    lost = made.optimised("mujoco_warp", variants=(("native", 100.0, 0.4), ("optimised", 95.0, 0.5)))
    found = frame(over_time, tmp_path, a=lost)
    (pair,) = over_time.pairs(found)
    assert not pair.pays
    names = [c.quantity for c in over_time.compare({"over_time": found}, PAPER)]
    assert not any(name.endswith("optimised") for name in names)
    assert sum("by the graph, which loses (0.95 times)" in name for name in names) == 2
    assert set(over_time.course(found, pair)["variant"]) == {"colocated", "graph, slower"}
    assert "0.95 times" in pair.titled


def test_the_run_with_most_iterations_is_shown(tmp_path: Path) -> None:
    often = made.optimised(variants=(("native", 100.0, 0.4), *[("optimised", 130.0, 0.5)] * 3))
    found = frame(over_time, tmp_path, a=often, b=made.optimised())
    assert [p.file for p in over_time.pairs(found)] == ["a.json"]


def test_every_number_of_the_paper_has_a_row(tmp_path: Path) -> None:
    """Or is of what nobody can compare: unreadable ones, and ends of ranges."""
    there = made.checkout(tmp_path, libero=made.optimised(), warp=warp(100.0, mps=True))
    frames = {
        name: obtain(module.study("h200", 0, there), tmp_path / name).table.frame
        for name, module in (("schedules", schedules), ("ablation", ablation))
    }
    frames["alone"] = pl.DataFrame(schema={"workload": pl.String, "mps": pl.Boolean, "date": pl.String})
    for figure, compare in (
        ("fig11", schedules.compare),
        ("table02", schedules.compare_activity),
        ("fig14a", ablation.compare_levers),
        ("fig14b", ablation.compare_rounds),
    ):
        shown = [c.paper for c in compare(frames, PAPER)]
        for number in PAPER.of(figure):
            if number.value is not None and number.series != "relative improvement of SM activity":
                assert number.value in shown, (figure, number)
        for row in compare(frames, PAPER):
            assert not row.quantity.startswith("not measured") or (
                isinstance(row.ours, Unavailable) and row.cause
            )


def test_a_policy_that_ran_has_a_row_of_its_own(tmp_path: Path) -> None:
    other = made.optimised()
    other["config"] |= {"policy": "gr00t"}
    there = made.checkout(tmp_path, a=made.optimised(), b=other)
    found = obtain(schedules.study("h200", 0, there), tmp_path / "out").table.frame
    name = workload("libero", 5, "gr00t")
    assert (simulator_of(name), paper_name(name)) == ("libero", "GR00T N1.6")
    empty = pl.DataFrame(schema={"workload": pl.String, "mps": pl.Boolean, "date": pl.String})
    compared = schedules.compare({"schedules": found, "alone": empty}, PAPER)
    row = next(c for c in compared if c.quantity.startswith(f"{name}: fastest"))
    assert row.ours == pytest.approx(1.3)
    assert row.paper == 1.44
    assert not any("H100, LIBERO, GR00T" in c.quantity for c in compared)
    graphs = obtain(ablation.study("h200", 0, there), tmp_path / "graphs").table.frame
    rounds = {c.quantity: c.paper for c in ablation.compare_rounds({"ablation": graphs}, PAPER)}
    assert rounds[f"{name}: two rounds over Colocated+Pipe"] == 1.33
    assert rounds["libero: two rounds over Colocated+Pipe"] == 1.42
    drawn = ablation.ladder(graphs, "fig14b", PAPER)
    assert isinstance(drawn, pl.DataFrame)
    assert {"paper, LIBERO, GR00T N1.6", "paper, LIBERO, pi0.5", name} <= set(drawn["who"])
    active = schedules.compare_activity({"schedules": found}, PAPER)  # of which the paper has no GR00T
    assert any(c.quantity.startswith(name) and isinstance(c.paper, Unavailable) for c in active)


def test_numbers_that_could_be_compared_are_not_excused() -> None:
    number = PaperNumber("fig11", "best", "H100, LIBERO, pi0.5", 1.39, "1", "Section 5.2", "text")
    assert not list(not_measured(Paper("p", (number,)), "fig11", ()))


def test_libero_under_mps_is_compared_too(tmp_path: Path) -> None:
    found = frame(alone, tmp_path, off=made.run(), on=made.run(mps=True))
    for compare in (alone.compare_table, alone.compare_figure):
        rows = {c.quantity: c for c in compare({"alone": found}, PAPER)}
        row = rows["LIBERO, MPS on: speedup"]
        assert row.ours == pytest.approx(0.8 / 0.64)
        assert isinstance(row.paper, Unavailable)
        assert "outside of MPS" in row.cause
        assert "outside of MPS" not in rows["LIBERO, MPS off: speedup"].cause
        assert "if neither slowed the other down, 1.60 times" in row.cause


# Where numbers come from ------------------------------------------------------------------------------------


def test_the_command_of_a_run_is_told_from_its_arguments() -> None:
    document = made.optimised()
    document["argv"] = {
        "set": "['a=1', 'b=x']",
        "counted_others": "2",
        "warm": "True",
        "mps": "False",
        "name": "",
    }
    command = provenance.command_of(document)
    assert command == "python -m benchmarks.gpu.optimize --out OUT --set a=1 b=x --counted-others 2 --warm"
    assert (
        provenance.command_of({"command": "bash benchmarks/gpu/mps.sh OUT"})
        == "bash benchmarks/gpu/mps.sh OUT"
    )


def test_every_shipped_table_says_what_measured_it() -> None:
    for path in sorted((ROOT / "datasets" / "runs" / "rose").glob("*.json")):
        about = json.loads(path.read_text())
        assert about["measured"], path.name
        for run in about["measured"].values():
            assert {"gpu", "date"} <= set(run), path.name
            if path.stem.endswith(".h200") and "sampler" not in run:
                assert {"driver", "python", "torch", "command"} <= set(run), path.name
