"""When the machine's state puts a comparison in doubt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlprof.analysis.machine_state import MachineState, doubts, side


def state(**known: float) -> MachineState:
    return MachineState(**{"wall_s": 1.0, "cores": 2, "own_cores": 1.5, **known})  # type: ignore[arg-type]


def test_a_side_weighs_short_trials_less() -> None:
    found = side([state(others_cores=1.0, wall_s=0.1, throttled=1), state(others_cores=0.0, wall_s=0.9)])
    assert found is not None
    assert found.others_cores == pytest.approx(0.1)
    assert (found.trials, found.throttled, found.sm_clock_mhz) == (2, 1, None)
    assert side([]) is None


def test_load_of_others_that_differs_is_told_for_both_sides() -> None:
    (said,) = doubts([state(others_cores=0.9)], [state(others_cores=0.1)])
    assert said == "others kept 0.90 of 2 cores busy beside the reference and 0.10 beside the candidate"


def test_load_of_others_on_both_sides_is_told_too() -> None:
    (said,) = doubts([state(others_cores=0.9)], [state(others_cores=0.95)])
    assert "beside both" in said


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        pytest.param({}, {}, id="nothing is known"),
        pytest.param({"others_cores": 0.1}, {"others_cores": 0.2}, id="little load"),
        pytest.param(
            {"others_cores": 3.0, "cores": 16}, {"others_cores": 0.0, "cores": 16}, id="cores enough for all"
        ),
        pytest.param({"sm_clock_mhz": 1980}, {"sm_clock_mhz": 1965}, id="one step of the clock"),
        pytest.param({"slowed_by": 0x1}, {"slowed_by": 0x0}, id="an idle GPU is not held back"),
        pytest.param({"throttled": 3}, {"throttled": 1}, id="both were throttled"),
        pytest.param({"throttled": 3}, {}, id="one side is not known"),
    ],
)
def test_nothing_is_doubted_for(reference: dict[str, float], candidate: dict[str, float]) -> None:
    assert doubts([state(**reference)], [state(**candidate)]) == ()


def test_clocks_throttling_and_limits_of_one_side() -> None:
    (said,) = doubts([state(sm_clock_mhz=1980)], [state(sm_clock_mhz=1700)])
    assert said == "clocks of the GPU's SMs were 1980 MHz beside the reference and 1700 beside the candidate"
    (said,) = doubts([state(core_mhz=3000)], [state(core_mhz=2000)])
    assert said.startswith("clocks of cores")
    (said,) = doubts([state(throttled=0)], [state(throttled=4)])
    assert said == "cores were throttled 0 times beside the reference and 4 times beside the candidate"
    (said,) = doubts([state(slowed_by=0x24)] * 3, [state(slowed_by=0x1)] * 3)
    assert said == (
        "the GPU was held back by its power limit, its temperature (driver) in 100% of the reference's"
        " trials, in 0% of the other side's"
    )


states = st.builds(
    state,
    others_cores=st.floats(0, 2),
    sm_clock_mhz=st.floats(100, 2000),
    throttled=st.integers(0, 3),
    slowed_by=st.integers(0, 0x1FF),
)


@given(st.lists(states, min_size=1, max_size=4), st.lists(states, min_size=1, max_size=4))
def test_the_sides_may_change_places(one: list[MachineState], other: list[MachineState]) -> None:
    assert len(doubts(one, other)) == len(doubts(other, one))
    for which in doubts(one, one):  # alike: load of others alone
        assert "beside both" in which


@given(states)
def test_documents_give_the_state_again(one: MachineState) -> None:
    again = MachineState.from_dict({**one.to_dict(), "of a later version": 1})
    assert again.others_cores == pytest.approx(one.others_cores, abs=1e-4)
    assert (again.slowed_by, again.core_mhz) == (one.slowed_by, None)
