"""An optimisation that was interrupted and resumed is as an uninterrupted one; simulated time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.rl_programs import make
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.optimize import Optimization, optimize
from rlprof.overlap.optimize.comparison import Comparison
from rlprof.overlap.optimize.decisions import each_once, log_session, read_entries
from rlprof.overlap.optimize.log import DecisionLog
from rlprof.overlap.optimize.result import document
from rlprof.overlap.optimize.simulated import SimulatedWorkload
from rlprof.overlap.optimize.store import Store
from rlprof.overlap.optimize.workload import Measurement, Trial
from rlprof.report.optimize import optimization_html
from rlprof.unavailable import Unavailable

#: A program whose rounds both gain; found by going through seeds.
TWO_ROUNDS = 2
PREPARING_S = 0.25
#: What was done, and with what.
Did = tuple[str, ...]


class Timed(SimulatedWorkload):
    """Time passes on a clock, and Ctrl-C comes in the n-th iteration or trial: before it, or in its midst."""

    now_s: float
    interrupted_in: int | None
    done: list[tuple[Did, float]]
    """What was done whole, and how long it took."""
    broken_s: float
    """Time of what was not."""

    @classmethod
    def of(cls, program: int, now_s: float = 0.0, interrupted_in: int | None = None) -> Timed:
        made = make(program)
        here = cls(made.graph, made.model)
        here.now_s, here.interrupted_in, here.done, here.broken_s = now_s, interrupted_in, [], 0.0
        return here

    def pass_(self, did: Did, time_s: float) -> None:
        """Let time pass."""
        if self.interrupted_in is not None and len(self.done) >= self.interrupted_in:
            self.broken_s = time_s / 2
            self.now_s += self.broken_s
            raise KeyboardInterrupt
        self.now_s += time_s
        self.done.append((did, time_s))

    def iteration(self, graph: CallGraph | None) -> Measurement:
        found = super().iteration(graph)
        self.pass_(("iteration", (graph or self.native).hash), found.time_s)
        return found

    @contextmanager
    def prepared(self, comparison: Comparison, graphs: Sequence[CallGraph]) -> Iterator[list[Trial]]:
        self.pass_(("preparing", *(g.hash for g in graphs)), PREPARING_S)
        with super().prepared(comparison, graphs) as trials:
            yield [_Trial(self, g.hash, str(comparison), t) for g, t in zip(graphs, trials, strict=True)]


class _Trial:
    def __init__(self, workload: Timed, graph: str, work: str, trial: Trial) -> None:
        self._workload, self._did, self._trial = workload, ("trial", graph, work), trial

    def run(self) -> float:
        found = self._trial.run()
        self._workload.pass_(self._did, found)
        return found


def session(path: Path, here: Timed) -> tuple[Optimization, dict[str, Any]]:
    """Optimise in a folder, as far as it comes; the result and its document."""
    earlier = read_entries(path / "decisions.jsonl")
    store = Store(path / "measurements.jsonl", clock=lambda: here.now_s)
    store.begin({"program": here.key})
    log = DecisionLog(path / "decisions.jsonl", clock=lambda: here.now_s)
    log_session(store, log)
    found = optimize(here, log=log, store=store, clock=lambda: here.now_s)
    made = document(found, each_once([*earlier, *log.entries]))
    return found, json.loads(json.dumps(made))


@cache
def whole(program: int) -> tuple[Timed, Optimization, dict[str, Any]]:
    """An uninterrupted one."""
    here = Timed.of(program)
    with TemporaryDirectory() as folder:
        return here, *session(Path(folder), here)


def resumed(
    program: int, interrupted_in: Sequence[int], path: Path
) -> tuple[list[Timed], Optimization, dict[str, Any]]:
    """One that was interrupted in each session but the last one."""
    sessions: list[Timed] = []
    for number in (*interrupted_in, None):
        now_s = 1e3 + (sessions[-1].now_s if sessions else 0.0)
        sessions.append(Timed.of(program, now_s, number))
        found, made = session(path, sessions[-1])
        if not found.stopped:
            break
    return sessions, found, made


def decided(made: dict[str, Any]) -> list[dict[str, Any]]:
    """Decisions without when they were made, and what sessions say of themselves."""
    apart = ("at_s", "session", "reused")
    entries = [e for e in made["decisions"] if e["what"] not in ("started", "session", "ended")]
    return [{k: v for k, v in e.items() if k not in apart} for e in entries]


def compare_with_uninterrupted(program: int, interrupted_in: Sequence[int], path: Path) -> None:
    reference, expected, document_ = whole(program)
    sessions, found, made = resumed(program, interrupted_in, path)
    # result, gain, activity, timelines, estimates and decisions: nothing of them is half
    assert (found.graph.hash, found.steps, found.ended) == (
        expected.graph.hash,
        expected.steps,
        expected.ended,
    )
    assert found.gain_s == expected.gain_s
    for part in ("steps", "total", "rounds", "timelines", "batch_times", "interference"):
        assert made[part] == document_[part], part
    for when in ("before", "after"):
        assert made["sm_activity"][when] == pytest.approx(document_["sm_activity"][when]), when
    assert decided(made) == decided(document_)
    # cost: what was done, each time; what is beyond the uninterrupted one was repeated, or broken off
    done = [did for one in sessions for did in one.done]
    counted = Counter(did for did, _ in done)
    once = Counter(did for did, _ in reference.done)
    assert not once - counted
    repeated = counted - once
    took = dict(done)
    again_s = sum(n * took[did] for did, n in repeated.items())
    trained_s = sum(n * took[did] for did, n in repeated.items() if did[0] == "iteration")
    broken_s = sum(one.broken_s for one in sessions)
    assert found.total_s == pytest.approx(expected.total_s + again_s + broken_s)
    assert found.retained_s == pytest.approx(expected.retained_s + trained_s)
    assert found.net_overhead_s == pytest.approx(expected.net_overhead_s + again_s - trained_s + broken_s)
    if found.gain_s > 0:
        assert found.paid_back_after == pytest.approx(found.net_overhead_s / expected.gain_s)
    else:
        assert isinstance(found.paid_back_after, Unavailable)
    cost = found.cost.part("search")
    assert cost.trials == sum(did[0] == "trial" for did, _ in done)
    assert cost.iterations == len(found.trained) == sum(did[0] == "iteration" for did, _ in done)
    assert len(made["iterations"]) == cost.iterations
    # what each session repeats is no more than one comparison, and what is prepared for it
    assert sum(repeated.values()) <= (len(sessions) - 1) * (2 * 9 + 3)
    assert [s["session"] for s in made["overhead"]["sessions"]] == list(range(1, len(sessions) + 1))


@settings(max_examples=12, deadline=None)
@given(st.sampled_from([0, 1, TWO_ROUNDS]), st.lists(st.integers(0, 130), min_size=1, max_size=3))
def test_resumed_it_is_what_it_is_uninterrupted(program: int, interrupted_in: list[int]) -> None:
    with TemporaryDirectory() as folder:
        compare_with_uninterrupted(program, interrupted_in, Path(folder))


@pytest.mark.parametrize("where", ["first profile", "local trial", "validation", "second profile", "in all"])
def test_wherever_it_is_interrupted(where: str, tmp_path: Path) -> None:
    reference, expected, _ = whole(TWO_ROUNDS)
    first = expected.rounds[0]
    done = [did for did, _ in reference.done]
    kinds = [did[0] for did in done]
    validation = done.index(("iteration", first.after.hash))
    at = {
        "first profile": 0,
        "local trial": kinds.index("trial") + 3,
        "validation": validation + 3,
        "second profile": kinds.index("preparing", validation) - 1,
        "in all": len(kinds) - 2,
    }[where]
    assert kinds[at] == ("trial" if where == "local trial" else "iteration")
    found, _ = session(tmp_path, Timed.of(TWO_ROUNDS, interrupted_in=at))
    accepted = [r for r in found.rounds if r.accepted]
    assert found.stopped
    assert len(accepted) == {"second profile": 1, "in all": 2}.get(where, 0)
    for path in tmp_path.iterdir():
        path.unlink()
    compare_with_uninterrupted(TWO_ROUNDS, [at], tmp_path)


def test_a_finished_one_costs_nothing_more_however_often_it_is_resumed(tmp_path: Path) -> None:
    _, expected, document_ = whole(TWO_ROUNDS)
    session(tmp_path, Timed.of(TWO_ROUNDS))
    for number in (2, 3):
        here = Timed.of(TWO_ROUNDS)
        found, made = session(tmp_path, here)
        assert not here.done
        assert not found.iterations
        assert found.total_s == pytest.approx(expected.total_s)
        assert found.retained_s == pytest.approx(expected.retained_s)
        assert found.paid_back_after == pytest.approx(expected.paid_back_after)
        assert found.searched_s == 0  # the budget is that of a session
        assert made["sm_activity"] == document_["sm_activity"]
        assert made["sm_activity"]["after"] > made["sm_activity"]["before"]
        assert decided(made) == decided(document_)
        assert len(made["overhead"]["sessions"]) == number
        assert f"in {number} sessions" in optimization_html(made).lower()


def test_twice_on_one_store_is_one_session_that_counts_both() -> None:
    made = make(1)
    store = Store()
    first, second = (optimize(SimulatedWorkload(made.graph, made.model), store=store) for _ in range(2))
    assert not second.iterations
    assert second.retained_s == first.retained_s > 0
    assert len(second.cost.sessions) == 1
    assert document(second, [])["sm_activity"] == document(first, [])["sm_activity"]


def test_what_was_trained_under_other_conditions_is_cost_and_no_activity(tmp_path: Path) -> None:
    first = Timed.of(1)
    session(tmp_path, first)
    here = Timed.of(1)
    here.key = "another driver"
    found, made = session(tmp_path, here)
    assert len(here.done) == len(first.done)
    assert found.total_s == pytest.approx(first.now_s + here.now_s)
    assert len(found.trained) == len(found.iterations)
    entry = next(e for e in made["decisions"] if e["what"] == "session")
    assert entry["not_reused"] == [
        "measurements of session 1 are not reused: program another driver was simulated"
    ]


def test_results_of_before_have_no_parts() -> None:
    _, _, made = whole(1)
    overhead = {k: v for k, v in made["overhead"].items() if k not in ("parts", "sessions")}
    assert "net" in optimization_html({**made, "overhead": overhead})
