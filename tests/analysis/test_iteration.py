"""Which node is the iteration."""

from __future__ import annotations

import pytest

from rlprof.analysis.iteration import find_iteration
from rlprof.errors import UsageError
from rlprof.trace.hierarchy import hierarchy
from rlprof.trace.nsys_sqlite import read_sqlite
from tests.analysis.made import trace_of
from tests.analysis.test_windows import made_ranges


def found(*rows, name=None, style="push_pop"):
    return find_iteration(hierarchy(trace_of(ranges=made_ranges(*rows, style=style))), name)


def test_by_name_before_shape():
    rows = [(i * 100, i * 100 + 90, "cycle") for i in range(5)]
    rows += [(i * 100 + 1, i * 100 + 50, "train_step") for i in range(5)]
    assert found(*rows).name == "cycle/train_step"


def test_iteration_is_a_better_name_than_step():
    assert found((0, 100, "step"), (0, 50, "iteration")).name == "step/iteration"


def test_ids_in_the_name_do_not_hide_it():
    steps = [(i * 10, i * 10 + 9, f"ProfilerStep#{551 + i}") for i in range(3)]
    assert (found(*steps).name, found(*steps).count) == ("ProfilerStep", 3)


def test_by_shape_when_no_name_tells():
    rows = [(i * 100, i * 100 + 90, "cycle") for i in range(5)]
    rows += [(i * 100, i * 100 + 50, "work") for i in range(5)]
    assert found(*rows).name == "cycle"


def test_a_long_initialisation_is_not_an_iteration(shared_traces):
    trace = read_sqlite(shared_traces / "nsys" / "long_init_range.sqlite")
    assert find_iteration(hierarchy(trace)) is None
    assert any("no iteration was found" in n for n in trace.windows().notes)


def test_operators_that_repeat_are_not_iterations(shared_traces):
    trace = read_sqlite(shared_traces / "nsys" / "two_gpus_trimmed_kernels_without_calls.sqlite")
    assert find_iteration(hierarchy(trace)) is None


def test_steps_with_numbers_in_a_real_capture(shared_traces):
    trace = read_sqlite(shared_traces / "nsys" / "training_autograd_thread.sqlite")
    step = find_iteration(hierarchy(trace))
    assert (step.name, step.count) == ("step", 9)


@pytest.mark.parametrize("name", ["a/b", "b"])
def test_a_given_name_is_a_path_or_its_tail(name):
    assert found((0, 100, "iteration"), (0, 100, "a"), (5, 10, "b"), name="b").name.endswith("b")
    assert found((0, 100, "a"), (5, 10, "b"), name=name).name == "a/b"


def test_a_name_as_the_frameworks_documentation_spells_it():
    assert found((0, 100, "a"), (5, 10, "predict"), name="rollout/predict").name == "a/predict"


def test_an_unknown_name_lists_known_ones():
    with pytest.raises(UsageError, match=r"no node is called 'x'; the longest ones are: a, a/b"):
        found((0, 100, "a"), (5, 10, "b"), name="x")
    with pytest.raises(UsageError, match=r"the longest ones are: a, a/b\. Next"):
        found((0, 100, "a", 0), (5, 10, "b", 0), (0, 99, "a", 1), (5, 10, "b", 1), (0, 9, "a/b", 2), name="x")


def test_each_process_uses_its_own_marks_and_others_the_reference():
    rows = [(0, 100, "iteration", 0), (10, 110, "iteration", 1), (20, 30, "sim", 2)]
    iteration = found(*rows)
    assert iteration.of(1)[0].tolist() == [10]
    assert iteration.of(2)[0].tolist() == iteration.start_ns.tolist() == [0]


def test_start_end_steps_are_found_by_name():
    """verl marks its phases as start/end ranges."""
    rows = [(i * 100, i * 100 + 90, "step") for i in range(3)] + [
        (i * 100, i * 100 + 40, "gen") for i in range(3)
    ]
    assert found(*rows, style="start_end").name == "step"


def test_no_ranges_no_iteration():
    assert find_iteration(hierarchy(trace_of())) is None
