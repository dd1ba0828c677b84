"""Fits find the constants of an invented machine again, and refuse where they could not."""

from __future__ import annotations

import numpy as np
import pytest

from rlprof.planning.calibration.errors import CalibrationError
from rlprof.planning.calibration.estimate import Estimate, interval, refitted, resampled
from rlprof.planning.calibration.fit_compute import (
    BESIDE,
    NEUTRAL,
    PARAMETERS,
    ComputeFit,
    _table,
    copy_rate,
    fit_compute,
    fit_copies,
)
from rlprof.planning.calibration.fit_links import coefficients, fit_link
from rlprof.planning.calibration.observation import observe
from rlprof.planning.calibration.predict import hardware_of, passes_of, predicted_s, question
from rlprof.planning.calibration.raw import Measurement, Point, Raw
from rlprof.planning.calibration.sweeps import (
    COLLECTIVES,
    FITTED,
    LAUNCHED,
    Preset,
    forward_points,
    kernel_points,
    validation_points,
)
from rlprof.planning.cluster import LinkRate
from rlprof.planning.cost_time import all_reduce_s
from tests.planning.calibration.made import (
    DATE,
    EXTRAS,
    GEMM_PEAK,
    MACHINE,
    TRUE,
    observation,
    raw,
    true_s,
)

NAMES = ("peak_flops", "memory_bandwidth", "gamma_m", "gamma_k")


def computed(r: Raw, **more: object) -> ComputeFit:
    return fit_compute(observe(r, *FITTED), 2, **{"draws": 8, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("bandwidth", ["copies", "everything"])
def test_exact_times_give_the_constants_back(bandwidth: str) -> None:
    fit = computed(raw(), bandwidth=bandwidth, draws=3)
    for name in NAMES:
        assert fit.values[name] == pytest.approx(TRUE[name], rel=1e-3), name
    assert fit.gemm_peak_flops.value == pytest.approx(GEMM_PEAK, rel=1e-3)
    assert max(abs(r.error_frac) for r in fit.residuals) < 1e-3


def test_noise_stays_noise_and_the_intervals_say_so() -> None:
    fit = computed(raw(0.03, seed=3), draws=30)
    for name in NAMES:
        e: Estimate = getattr(fit, name)
        assert e.value == pytest.approx(TRUE[name], rel=0.15), name
        assert e.low <= e.value <= e.high
        assert 0 < e.error_frac < 0.5, name


def test_a_few_wild_times_do_not_move_the_fit() -> None:
    made = raw()
    wild = [
        Measurement(m.kind, m.key, 0, tuple(10 * t for t in m.seconds), {}, None, DATE) if n % 12 == 5 else m
        for n, m in enumerate(made.measurements)
    ]
    fit = computed(Raw(MACHINE, tuple(wild)), draws=2)
    for name in NAMES:
        assert fit.values[name] == pytest.approx(TRUE[name], rel=0.1), name


def test_both_effects_count_once() -> None:
    """F_peak times eta at its own shape is the measured rate: eta is not in F_peak."""
    fit = computed(raw(), draws=2)
    point = Point("forward", next(m.key for m in raw().measurements if m.kind == "forward"))
    (p,), _ = passes_of(observation(point), 2)
    assert p.launched == "launch_s"
    eta = p.rows / (p.rows + fit.gamma_m.value) * p.width / (p.width + fit.gamma_k.value)
    seconds = predicted_s(observation(point), hardware_of(TRUE), 2)
    assert p.work_flop / seconds == pytest.approx(fit.peak_flops.value * eta, rel=2e-3)


@pytest.mark.parametrize("extras", [{}, EXTRAS])
def test_the_fit_predicts_what_the_cost_model_predicts(extras: dict[str, float]) -> None:
    """Equal up to rounding: the fit's own table of passes, and `operator_time`."""
    observed = [observation(p) for p in validation_points("cuda", "full")]
    observed += [observation(p) for p in forward_points("cuda", "full") if p.kind in FITTED]
    values = {**TRUE, **extras, "gemm_peak_flops": GEMM_PEAK}
    updates = extras.get("optimizer_bytes", 18.0) / TRUE["memory_bandwidth"]
    table = _table(
        observed,
        2,
        head_reads_frac=extras.get("head_reads_frac", 0.0),
        update_s=Estimate(updates, updates, updates, 1, 1),
    )
    given = [values.get(name, NEUTRAL.get(name, 0.0)) for name in PARAMETERS]
    ours = table.times(np.array([*np.log(given[:3]), *given[3:]]))
    theirs = [predicted_s(o, hardware_of(TRUE | extras), 2) for o in observed]
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_what_real_machines_need_is_found_again() -> None:
    made = raw(operators=True, extras=EXTRAS)
    observed = observe(made, *FITTED, *LAUNCHED, "nongemm", "optimizer", "training")
    fit = fit_compute(observed, 2, bandwidth="everything", formulas="extended", draws=2)
    for name in NAMES:
        assert fit.values[name] == pytest.approx(TRUE[name], rel=0.03), name
    for name, value in EXTRAS.items():
        if name != "head_reads_frac":  # known
            assert fit.extras[name].value == pytest.approx(value, rel=0.03), name
    assert max(abs(r.error_frac) for r in fit.residuals) < 0.03


def test_a_machine_that_needs_nothing_more_is_told_so() -> None:
    observed = observe(raw(), *FITTED, *LAUNCHED, "optimizer")
    fit = fit_compute(observed, 2, bandwidth="everything", formulas="extended", draws=2)
    assert fit.extras["layer_s"].value < 1e-6
    assert fit.extras["optimizer_bytes"].value == pytest.approx(18, rel=0.05)
    assert "training_launch_s" not in fit.extras  # no training was measured
    predicted = computed(raw(), draws=2).extras
    assert predicted == {}  # the printed formulas have none of it


@pytest.mark.parametrize(("device", "preset"), [("cuda", "quick"), ("cpu", "full"), ("cpu", "quick")])
def test_what_every_preset_measures_can_be_fitted(device: str, preset: Preset) -> None:
    points = [*kernel_points(device, preset), *forward_points(device, preset)]
    observed = [observation(p, true_s(p, EXTRAS)) for p in points if p.kind != "norms"]
    fit = fit_compute(observed, 2, bandwidth="everything", formulas="extended", draws=2)
    assert fit.extras.keys() > BESIDE
    assert all(np.isfinite(r.error_frac) for r in fit.residuals)
    assert np.median([abs(r.error_frac) for r in fit.residuals if r.kind != "copy"]) < 0.1


def test_decode_steps_of_few_sizes_leave_out_what_they_do_not_tell() -> None:
    """A calibration cut short: kernels beside the products have no term that could take their time."""
    few = [
        o
        for o in observe(raw(extras=EXTRAS), *FITTED, "nongemm", "optimizer")
        if o.kind != "decode_step" or o.key["prompt_tokens"] in (768, 320)
    ]
    assert {o.kind for o in few} >= {"nongemm", "decode_step"}
    fit = fit_compute(few, 2, bandwidth="everything", formulas="extended", draws=2)
    assert not BESIDE & fit.extras.keys()
    assert "nongemm" not in {r.kind for r in fit.residuals}
    assert all(np.isfinite(r.error_frac) for r in fit.residuals)


def test_a_bandwidth_that_no_pass_tells_is_that_of_copies() -> None:
    """Products of many rows alone: all of them are bound by compute, and any large rate would fit."""
    many = [
        o
        for o in observe(raw(), *FITTED)
        if o.kind in ("copy", "forward") or (o.kind == "gemm" and o.key["rows"] >= 1024)
    ]
    fit = fit_compute(many, 2, bandwidth="everything", formulas="extended", draws=2)
    assert fit.bandwidth == "copies"
    assert fit.memory_bandwidth.value == pytest.approx(TRUE["memory_bandwidth"], rel=1e-6)


def test_a_forward_and_a_decode_step_ask_for_just_that() -> None:
    key = {"shape": validation_points("cuda", "full")[0].key["shape"], "sequences": 4, "prompt_tokens": 100}
    key["response_tokens"] = 0
    role, _, work = question(observation(Point("forward", key)), 2)
    assert (role, work.sequence_tokens, work.sequences) == ("inference", 100, 4)
    role, _, work = question(observation(Point("decode_step", key)), 2)
    # one step, which attends to the 100 tokens before it and to itself
    assert (role, work.response_tokens - 1, work.prompt_tokens + work.response_tokens / 2) == (
        "generation",
        1,
        101,
    )


@pytest.mark.parametrize("kind", ["collective", "p2p"])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_latency_and_bandwidth_are_found_again(kind: str, noise: float) -> None:
    observed = observe(raw(noise, seed=1), *(COLLECTIVES if kind == "collective" else ["p2p"]))
    fit = fit_link(observed, draws=20)
    within = 1e-4 if not noise else 0.2
    assert fit.alpha_s.value == pytest.approx(TRUE[f"{kind}.intra_node.alpha_s"], rel=within)
    assert fit.bandwidth.value == pytest.approx(TRUE[f"{kind}.intra_node.bandwidth"], rel=within)
    assert fit.bandwidth.low <= fit.bandwidth.value <= fit.bandwidth.high
    assert len(fit.residuals) == len(observed)


def test_the_coefficients_are_those_of_the_cost_model() -> None:
    o = observation(Point("all_reduce", {"bytes": 2**26, "ranks": 4, "tier": "intra_node"}))
    a, b = coefficients(o)
    assert (a, b) == (6, 1.5 * 2**26)  # 2 (p - 1), 2 (p - 1) / p M
    assert a * 5e-6 + b / 150e9 == pytest.approx(all_reduce_s(2**26, 4, LinkRate(5e-6, 1 / 150e9)))
    assert a * 5e-6 + b / 150e9 == pytest.approx(0.701089e-3, rel=1e-5)


def test_bandwidth_is_that_of_copies_too_large_for_a_cache() -> None:
    sizes = {2**20: 9e12, 2**28: 3.1e12, 2**30: 3e12, 2**32: 2.9e12}
    copies = [observation(Point("copy", {"bytes": size}), 2 * size / rate) for size, rate in sizes.items()]
    assert copy_rate(copies[0]) == pytest.approx(9e12)
    e = fit_copies(copies)
    assert e.value == pytest.approx(3e12)
    assert e.points == 3
    assert e.low < 3e12 < e.high


def test_what_does_not_determine_a_constant_is_refused_by_name() -> None:
    observed = observe(raw(), *FITTED)
    cases = {
        "gamma_m": [o for o in observed if o.kind != "gemm" or o.key["rows"] in (1, 4096)],
        "gamma_k": [o for o in observed if o.kind != "gemm" or o.key["inner"] == 4096 == o.key["columns"]],
        "peak_flops": [o for o in observed if o.kind != "forward"],
        "memory_bandwidth": [o for o in observed if o.kind != "copy"],
    }
    for name, some in cases.items():
        with pytest.raises(CalibrationError, match=name):
            fit_compute(some, 2)
    sizes = observe(raw(), "p2p")
    for some in ([], sizes[:2], sizes[3:6:1][:1] * 5):
        with pytest.raises(CalibrationError, match="latency from bandwidth"):
            fit_link(some)


def test_deviations_are_drawn_within_their_group_and_every_size_stays() -> None:
    fitted = np.array([1.0, 10.0, 2.0, 20.0, 3.0])
    measured = fitted * np.exp([0.1, 0.5, 0.2, 0.6, 0.3])
    seen = refitted(measured, fitted, lambda to: np.log(to / fitted), 0, 60, 0, ["a", "b", "a", "b", "a"])
    small, large = seen[:, [0, 2, 4]], seen[:, [1, 3]]
    assert set(small.round(6).ravel()) == {0.1, 0.2, 0.3}
    assert set(large.round(6).ravel()) == {0.5, 0.6}
    widened = refitted(measured, fitted, lambda to: np.log(to / fitted), 4, 5, 0, ["a", "b", "a", "b", "a"])
    assert widened.max() > 0.6


def test_few_sizes_have_an_interval_that_a_bandwidth_can_have() -> None:
    few = observe(raw(0.1, seed=4), "p2p")[::3]
    fit = fit_link(few, draws=60)
    assert fit.bandwidth.high < 5 * fit.bandwidth.value


def test_groups_keep_their_number_when_points_are_drawn_anew() -> None:
    seen = resampled(5, lambda at: np.sort(at).astype(float), 50, 0, ["a", "a", "b", "b", "b"])
    assert ((seen < 2).sum(axis=1) == 2).all()
    assert len({tuple(row) for row in seen}) > 5
    assert interval(np.array([1.0, 2.0, 3.0]), 9.0)[1] == 9.0
