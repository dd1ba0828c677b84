"""What an optimisation took: each second belongs to one part, whatever was interrupted or killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlprof.overlap.optimize.cost import OTHER, QUOTAS, SEARCH
from rlprof.overlap.optimize.store import Store
from rlprof.overlap.optimize.workload import Measurement


class Clock:
    """Goes on when it is told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_time_of_a_part_within_another_one_is_its_own() -> None:
    clock = Clock()
    store = Store(clock=clock)
    clock.now_s += 50  # nobody's
    with store.spending(OTHER):
        clock.now_s += 1
        with store.spending(SEARCH):
            clock.now_s += 10
            store.put("a", "other", 1)
            clock.now_s += 20
        clock.now_s += 2
        assert store.cost().total_s == 33
    clock.now_s += 50
    cost = store.cost()
    assert {p.name: p.total_s for p in cost.parts} == {OTHER: 3, SEARCH: 30}
    assert cost.session_s() == 33
    assert cost.session_s(SEARCH) == 30


def test_quotas_are_summed_over_sessions_and_reported_apart(tmp_path: Path) -> None:
    clock = Clock()
    for _ in range(2):
        store = Store(tmp_path / "store.jsonl", clock=clock)
        with store.spending(SEARCH):
            clock.now_s += 7
            with store.spending(QUOTAS):
                clock.now_s += 3
                store.tried()
                clock.now_s += 4
                store.tried(2)
                store.train("graph", Measurement(4.0))
    spent = store.spent(QUOTAS)
    assert (spent.total_s, spent.retained_s, spent.net_s) == (14, 8, 6)
    assert (spent.trials, spent.iterations) == (6, 2)
    assert (store.cost().total_s, store.cost().retained_s) == (14, 0)
    assert [s.number for s in store.sessions] == [1, 2]


def test_who_is_killed_loses_what_has_passed_since_the_last_record(tmp_path: Path) -> None:
    clock = Clock()
    killed = Store(tmp_path / "store.jsonl", clock=clock)
    killed.begin()
    with killed.spending(SEARCH):
        clock.now_s += 5
        killed.put("a", "other", 1)
        clock.now_s += 100
        assert Store(tmp_path / "store.jsonl").cost().total_s == 5


def test_training_that_no_later_session_goes_on_from_is_no_training_that_counts(tmp_path: Path) -> None:
    path = tmp_path / "store.jsonl"
    done = [0]

    def session(goes_on_from: int, iterations: int) -> Store:
        store = Store(path, clock=Clock())
        done[0] = goes_on_from
        store.begin(goes_on_from=goes_on_from, trained=lambda: done[0])
        for _ in range(iterations):
            done[0] += 1
            store.train("native", Measurement(1.0))
        return store

    assert session(0, 4).cost().retained_s == 4
    assert session(3, 2).cost().retained_s == 5  # the checkpoint is of after the third one
    lost = session(5, 3)
    assert lost.cost().retained_s == 8
    lost.lose()
    (part,) = lost.cost().parts
    assert (part.retained_s, part.iterations, part.lost) == (5, 9, 4)
    assert session(5, 1).cost().retained_s == 6
    assert session(0, 0).cost().retained_s == 0  # without a checkpoint all of it began anew


def test_a_refused_session_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.jsonl"
    clock = Clock()
    store = Store(path, clock=clock)
    with store.spending(OTHER):
        clock.now_s += 3
    assert not path.exists()
    store.begin()
    assert Store(path).cost().total_s == 3


def test_measurements_of_before_costs_were_kept_are_said(tmp_path: Path) -> None:
    path = tmp_path / "store.jsonl"
    path.write_text('{"key": "a", "kind": "other", "value": 1}\n{"key": "b", "kind": "other", "value": 1}\n')
    store = Store(path)
    store.put("c", "other", 1)
    assert store.cost().to_dict()["measurements_of_unknown_cost"] == 2
    assert Store(path).cost().unknown == 2


def test_a_session_says_why_measurements_are_of_no_use(tmp_path: Path) -> None:
    path = tmp_path / "store.jsonl"
    first = {"driver": "575.57", "mps": False, "versions": {"mujoco": "3.3"}, "cores": 2}
    assert _begun(path, first).not_reused == ()
    assert _begun(path, first).not_reused == ()
    other = {"driver": "580.65", "mps": True, "versions": {"mujoco": "3.4"}, "cores": 2}
    assert _begun(path, other).not_reused == tuple(
        f"measurements of session {n} are not reused: driver 580.65 was 575.57; mps on was off;"
        " mujoco 3.4 was 3.3"
        for n in (1, 2)
    )


def _begun(path: Path, conditions: dict[str, object]) -> Store:
    store = Store(path)
    store.begin(conditions)
    return store


@pytest.mark.parametrize("line", ['{"kind": "session"}', '{"kind": "spent", "session": 1}', '{"kind": 3}'])
def test_damaged_records_are_passed_over(tmp_path: Path, line: str) -> None:
    path = tmp_path / "store.jsonl"
    path.write_text(line + '\n{"kind": "iteration", "session": 1, "part": "search", "graph": "g"}\n')
    assert Store(path).cost().parts == ()


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("pass"), st.integers(1, 9)),
            st.tuples(st.just("in"), st.sampled_from(["a", "b", QUOTAS])),
            st.tuples(st.sampled_from(["out", "put", "look"]), st.none()),
        ),
        max_size=30,
    )
)
def test_every_second_of_a_session_is_counted_once(steps: list[tuple[str, object]]) -> None:
    clock = Clock()
    store = Store(clock=clock)
    began = clock.now_s
    open_parts = [store.spending(OTHER)]
    open_parts[0].__enter__()
    for what, value in steps:
        if what == "pass":
            clock.now_s += int(str(value))
        elif what == "in":
            open_parts.append(store.spending(str(value)))
            open_parts[-1].__enter__()
        elif what == "out" and len(open_parts) > 1:
            open_parts.pop().__exit__(None, None, None)
        elif what == "put":
            store.put("a", "other", 1)
        else:
            store.cost()
    cost = store.cost()
    assert sum(p.total_s for p in cost.parts) == clock.now_s - began
    assert cost.total_s == clock.now_s - began - cost.part(QUOTAS).total_s
    assert sum(cost.by_session_s.values()) == clock.now_s - began
