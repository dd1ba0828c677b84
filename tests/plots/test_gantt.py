"""A Gantt chart shows all tasks, or says how many it does not, within the row budget."""

from __future__ import annotations

import polars as pl
import pytest

from rlprof.errors import UsageError
from rlprof.plots import ROW_BUDGET, RowBudgetError
from rlprof.plots.gantt import OTHER, Gantt, gantt_chart, lay_out
from rlprof.taskgraph import Edge, Task, TaskGraph, Use, run, schedule


def frame(rows: list[tuple[str, str, str, float, float]]) -> pl.DataFrame:
    schema = {
        "task": pl.String,
        "name": pl.String,
        "lane": pl.String,
        "start_s": pl.Float64,
        "end_s": pl.Float64,
    }
    return pl.DataFrame(rows, schema=schema, orient="row")


def two_groups() -> TaskGraph:
    tasks = [
        Task(f"{name} {g}", name, 0.5, (Use(resource),), "call", g)
        for g in (0, 1)
        for name, resource in (("policy", "gpu"), ("simulator", "cores"))
    ]
    return TaskGraph(tuple(tasks), tuple(Edge(f"policy {g}", f"simulator {g}") for g in (0, 1)), {"cores": 2})


def test_schedule_and_run_are_drawn_alike() -> None:
    graph = two_groups()
    record = run(graph, {"call": lambda task, inputs: None}).record
    planned, ran = lay_out(schedule(graph).to_frame()), lay_out(record.to_frame(graph))
    for gantt in (planned, ran):
        assert gantt.rows[0].startswith("cores")
        assert "gpu" in gantt.rows
        assert set(gantt.names) == {"policy", "simulator"}
        assert sorted(gantt.bars["task"]) == sorted(t.id for t in graph.tasks)
        assert not gantt.notes
        spec = gantt_chart(gantt, title="two groups", end_s=2.0).to_dict()
        assert spec["encoding"]["x"]["scale"]["domain"] == [0, 2.0]
        assert sum(len(rows) for rows in spec["datasets"].values()) == 4
    workers = lay_out(record.to_frame())
    assert all(row.startswith("thread") for row in workers.rows)


def test_tasks_of_one_lane_that_overlap_have_rows_of_their_own() -> None:
    gantt = lay_out(frame([("a", "x", "cores", 0, 2), ("b", "x", "cores", 1, 3), ("c", "x", "cores", 2, 4)]))
    assert gantt.rows == ("cores", "cores, 2")
    assert dict(gantt.bars.select("task", "row").iter_rows()) == {"a": "cores", "b": "cores, 2", "c": "cores"}


def test_one_after_the_other_does_not_overlap_by_a_rounding_error() -> None:
    end_s = 0.1 + 0.2
    assert lay_out(frame([("a", "x", "gpu", 0, end_s), ("b", "x", "gpu", 0.3, 1)])).rows == ("gpu",)


def test_what_is_not_drawn_is_counted() -> None:
    many = frame([(f"t{i}", f"n{i % 20}", "gpu", i / 10, (i + 1) / 10) for i in range(20_000)])
    gantt = lay_out(many)
    assert gantt.bars.height <= ROW_BUDGET
    assert "short tasks are merged" in gantt.notes[0]
    assert OTHER in gantt.names
    shown = sum(
        1 if not t.endswith(" tasks") else int(t.split()[0].replace(",", "")) for t in gantt.bars["task"]
    )
    assert shown == 20_000
    gantt_chart(gantt).to_dict()
    lanes = lay_out(frame([(f"t{i}", "x", f"lane {i:03}", 0, 1) for i in range(100)]), most_rows=10)
    assert len(lanes.rows) == 10
    assert lanes.notes == ("90 rows with 90 bars are not drawn",)


def test_lanes_can_be_chosen_and_ordered() -> None:
    table = frame([("a", "x", "gpu", 0, 1), ("b", "x", "cores", 0, 1), ("c", "x", "nic", 0, 1)])
    assert lay_out(table, lanes=["nic", "gpu"]).rows == ("nic", "gpu")


def test_an_empty_table_and_a_wrong_one() -> None:
    gantt_chart(lay_out(frame([]))).to_dict()
    with pytest.raises(UsageError, match="no lane, end_s"):
        lay_out(frame([]).drop("lane", "end_s"))


def test_more_bars_than_the_budget_are_refused() -> None:
    bars = lay_out(frame([("a", "x", "gpu", 0, 1)])).bars
    with pytest.raises(RowBudgetError):
        gantt_chart(Gantt(pl.concat([bars] * (ROW_BUDGET + 1)), ("gpu",), ("x",)))
