"""Activity of spans of a run, and of a run with a sampler of its own."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.unavailable import Unavailable
from rlprof.workloads.embodied import metrics, runner
from rlprof.workloads.embodied.activity import Activity, Span, mean_activity
from tests.workloads.embodied.made import small


def samples(active: list[float], *, device: int = 0, period_ns: int = 10) -> dict[str, np.ndarray]:
    start = np.arange(len(active)) * period_ns
    return {
        "start_ns": start,
        "end_ns": start + period_ns,
        "active_frac": np.array(active, float),
        "device": np.full(len(active), device),
    }


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.data())
def test_it_is_the_mean_over_time(active, data) -> None:
    last = 10 * len(active)
    start = data.draw(st.integers(0, last - 1))
    end = data.draw(st.integers(start + 1, last))
    by_hand = np.mean([active[t // 10] for t in range(start, end)])
    assert mean_activity(**samples(active), span=Span(start, end)) == pytest.approx(by_hand)


def test_what_samples_do_not_cover_is_unavailable() -> None:
    found = mean_activity(**samples([1.0, 1.0]), span=Span(0, 50))
    assert isinstance(found, Unavailable)
    assert found.reason == "samples cover 40% of the span"
    assert mean_activity(**samples([np.nan, 0.5, 0.5]), span=Span(0, 30)) == 0.5
    assert isinstance(mean_activity(**samples([]), span=Span(0, 1)), Unavailable)


def test_devices_count_alike() -> None:
    two = {
        k: np.concatenate([a, b])
        for (k, a), b in zip(
            samples([1.0] * 8).items(), samples([0.0] * 4, device=1, period_ns=20).values(), strict=True
        )
    }
    assert mean_activity(**two, span=Span(0, 80)) == 0.5


def test_a_run_measures_itself_and_leaves_nothing_behind(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco")
    monkeypatch.setattr(metrics, "WRITES_S", 60.0)  # however long the sampler is kept waiting
    rows = runner.run(small(schedule="colocated-pipe"), tmp_path, 4, activity="auto").rows
    assert [r["iteration"] for r in rows] == [0, 1, 2, 3]
    assert [r["iteration"] for r in metrics.read(tmp_path / metrics.NAME)] == [0, 1, 2, 3]
    assert {r["activity_source"] for r in rows} == {"host"}
    assert all(0 < r["activity_frac"] <= 1 for r in rows)
    assert set(rows[0]["phases_activity_frac"]) <= set(rows[0]["phases_s"])
    assert not [p for p in tmp_path.iterdir() if "activity" in p.name]


def test_a_sampler_that_dies_costs_no_row(tmp_path) -> None:
    activity = Activity.start(tmp_path, "cpu")
    rows = metrics.Rows(tmp_path / metrics.NAME, activity)
    try:
        assert activity._session is not None
        os.kill(activity._session._sampler.pid, signal.SIGKILL)
        now = time.monotonic_ns()
        for i in range(3):
            rows.add({"iteration": i}, {"iteration": Span(now + i, now + i + 10**9)})
        assert not metrics.read(tmp_path / metrics.NAME) if (tmp_path / metrics.NAME).exists() else True
        began = time.monotonic()
        rows.flush()
        assert time.monotonic() - began < 40  # it would wait for ever
    finally:
        activity.close()
    found = metrics.read(tmp_path / metrics.NAME)
    assert [r["iteration"] for r in found] == [0, 1, 2]
    assert found[0]["activity_frac"] is None
    assert "the sampler is behind, or has ended" in found[0]["activity_source"]


def test_where_none_is_asked_for_it_says_so(tmp_path) -> None:
    pytest.importorskip("mujoco")
    (row,) = runner.run(small(), tmp_path, 1).rows
    assert row["activity_frac"] is None
    assert row["activity_source"] == "unavailable: not asked for"


def test_a_back_end_that_does_not_work_says_why(tmp_path) -> None:
    activity = Activity.start(tmp_path, "cpu", backend="cupti")
    try:
        if activity.source == "cupti":
            pytest.skip("there is a GPU with counters")
        found = activity.means({"iteration": Span(0, 1)})
        assert isinstance(found, Unavailable)
        assert found.reason.startswith("cupti: ")
    finally:
        activity.close()
