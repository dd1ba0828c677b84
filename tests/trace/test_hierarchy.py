"""Nesting of ranges, against a search for the innermost holder."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.trace.hierarchy import hierarchy
from rlprof.trace.sweep import nest
from tests.analysis.made import trace_of
from tests.trace.nsys_made import made, push_pop, tid


@st.composite
def programs(draw, crossing: bool = False):
    """Ranges (group, start, end) as a program with a stack of its own emits them, some of no duration."""
    rows = []
    for group in range(draw(st.integers(1, 3))):
        time, stack = 0, []
        for grow in draw(st.lists(st.booleans(), max_size=30)):
            time += draw(st.integers(0, 2))
            if grow or not stack:
                stack.append(time)
            else:
                at = draw(st.integers(0, len(stack) - 1)) if crossing else -1
                rows.append((group, stack.pop(at), time))
        while stack:
            time += draw(st.integers(0, 2))
            rows.append((group, stack.pop(), time))
    rows.sort(key=lambda r: (r[0], r[1], -r[2]))
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def innermost_holder(rows, i) -> int:
    """The last earlier range of the group that holds i; an empty one is held by what goes on after it."""
    group, start, end = rows[i]
    for j in range(i - 1, -1, -1):
        g, s, e = rows[j]
        holds = g == group and e >= end and (e > start or s == start) and not s == e == start == end
        if holds:
            return j
    return -1


@given(programs(crossing=True))
@settings(max_examples=300)
def test_nesting_equals_a_search(rows):
    found = nest(*rows.T)
    assert found.parent.tolist() == [innermost_holder(rows.tolist(), i) for i in range(len(rows))]


@given(programs(crossing=True))
@settings(max_examples=300)
def test_a_parent_holds_its_child(rows):
    group, start, end = rows.T
    found = nest(group, start, end)
    for i, p in enumerate(found.parent.tolist()):
        if p >= 0:
            assert group[p] == group[i]
            assert start[p] <= start[i]
            assert end[i] <= end[p]
            assert found.depth[i] == found.depth[p] + 1
        else:
            assert found.depth[i] == 0


def test_crossing_ranges_are_marked(tmp_path):
    rows = [push_pop(0, 100, "a"), push_pop(10, 60, "b"), push_pop(50, 90, "c"), push_pop(51, 55, "d")]
    tree = hierarchy(made(tmp_path, NVTX_EVENTS=rows))
    named = tree.invocations.join(tree.nodes, on="node").sort("start_ns")
    assert named["path"].to_list() == ["a", "a/b", "a/c", "a/c/d"]
    assert named["crossing"].to_list() == [False, True, True, False]
    assert any("2 push/pop ranges of one thread cross" in n for n in tree.notes)


def test_self_time_leaves_children_out(tmp_path):
    rows = [push_pop(0, 100, "a"), push_pop(10, 30, "b"), push_pop(30, 70, "b"), push_pop(40, 50, "c")]
    tree = hierarchy(made(tmp_path, NVTX_EVENTS=rows))
    own = tree.invocations.join(tree.nodes, on="node").group_by("path").agg(pl.col("self_ns").sum())
    assert dict(own.iter_rows()) == {"a": 40, "a/b": 50, "a/b/c": 10}


def test_one_name_under_two_parents_is_two_nodes(tmp_path):
    rows = [push_pop(0, 10, "a"), push_pop(1, 2, "x"), push_pop(20, 30, "b"), push_pop(21, 22, "x")]
    assert sorted(hierarchy(made(tmp_path, NVTX_EVENTS=rows)).nodes["path"]) == ["a", "a/x", "b", "b/x"]


def test_threads_of_a_process_share_nodes_processes_do_not(tmp_path):
    rows = [push_pop(0, 9, "a", tid(10, 1)), push_pop(0, 9, "a", tid(10, 2)), push_pop(0, 9, "a", tid(11, 1))]
    tree = hierarchy(made(tmp_path, NVTX_EVENTS=rows))
    assert tree.nodes.select("path", "process").rows() == [("a", 0), ("a", 1)]
    assert tree.invocations["node"].to_list() == [0, 0, 1]


def test_recursion_deepens_the_path(tmp_path):
    rows = [push_pop(i, 100 - i, "f") for i in range(5)]
    assert hierarchy(made(tmp_path, NVTX_EVENTS=rows)).nodes["path"].to_list()[-1] == "f/f/f/f/f"


def test_domain_of_rlprof_is_not_shown(tmp_path):
    rows = [
        {"start": 0, "eventType": 75, "text": "rlprof", "globalTid": tid(10), "domainId": 4},
        push_pop(0, 9, "a", domainId=4),
    ]
    assert hierarchy(made(tmp_path, NVTX_EVENTS=rows)).nodes["path"].to_list() == ["a"]


def test_shape_of_our_capture(data):
    from rlprof.trace.nsys_sqlite import read_sqlite

    tree = hierarchy(read_sqlite(data / "nsys" / "vla_chunk_and_training.sqlite"))
    leaf = tree.nodes.filter(pl.col("leaf"))["path"].str.split("/").list.last()
    assert {"vlm", "denoise", "forward", "backward", "optimizer", "physics", "render"} <= set(leaf)
    assert tree.nodes.height == tree.nodes.select("process", "path").n_unique()


def test_a_repeated_row_is_one_range_and_not_one_in_the_other():
    rows = {"start_ns": [0, 10, 0, 10, 10, 60, 60], "end_ns": [100, 50, 100, 50, 50, 60, 60]}
    frame = pl.DataFrame({**rows, "name": ["a", "b", "a", "b", "c", "d", "d"]}).with_columns(
        style=pl.lit("push_pop"), process=0, thread=1, domain=pl.lit(""), cut=False
    )
    tree = hierarchy(trace_of(ranges=frame))
    paths = tree.nodes.select("node", "path").join(tree.invocations.group_by("node").len(), on="node")
    # those of no duration are calls in a row under a coarse clock: kept, side by side
    assert dict(paths.select("path", "len").iter_rows()) == {"a": 1, "a/b": 1, "a/b/c": 1, "a/d": 2}
    assert any(note.startswith("2 ranges repeat another") for note in tree.notes)


def test_many_repeats_cost_no_more_than_their_rows():
    frame = pl.DataFrame({"start_ns": [0] * 50_000, "end_ns": [9] * 50_000}).with_columns(
        name=pl.lit("a"), style=pl.lit("push_pop"), process=0, thread=1, domain=pl.lit(""), cut=False
    )
    assert len(hierarchy(trace_of(ranges=frame)).invocations) == 1
