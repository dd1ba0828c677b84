"""Hardware files of measurements: what was measured is calibrated, nothing else is; they read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.planning.calibration.calibrate import WIDE_FRAC, Calibration, calibrate, with_estimates
from rlprof.planning.calibration.errors import CalibrationError
from rlprof.planning.calibration.estimate import Estimate
from rlprof.planning.calibration.raw import Raw
from rlprof.planning.calibration.tables import (
    calibration_document,
    collectives_table,
    constants_table,
    residuals_table,
)
from rlprof.planning.cluster import Cluster
from rlprof.planning.errors import HardwareError
from rlprof.planning.hardware_file import hardware_from_toml, hardware_to_toml, read_hardware, write_hardware
from tests.planning.calibration.made import MACHINE, TRUE, raw

ALL = raw(0.02, seed=5)


def made(r: Raw = ALL, **more: object) -> Calibration:
    return calibrate(r, name="lab", draws=2, **more)  # type: ignore[arg-type]


def without(*kinds: str) -> Raw:
    return replace(ALL, measurements=tuple(m for m in ALL.measurements if m.kind not in kinds))


def calibrated(c: Calibration) -> set[str]:
    return {name for name, constant in c.hardware.constants.items() if constant.status == "calibrated"}


def test_every_constant_of_a_full_set_is_near_the_true_one_and_says_how_it_was_measured() -> None:
    c = made()
    for name, value in TRUE.items():
        constant = c.hardware.constants[name]
        assert constant.value == pytest.approx(value, rel=0.15), name
        assert (constant.status, constant.date, constant.gpu) == ("calibrated", "2026-01-02", "Invented GPU")
        assert constant.samples > 5
        assert constant.error_frac is not None
    assert c.hardware.value("nongemm_s") == pytest.approx(50e-6, rel=0.1)
    assert (c.hardware.value("nongemm_sequences"), c.hardware.value("nongemm_tokens")) == (8, 512)
    assert c.hardware.gpus_per_node == 2
    assert set(c.hardware.nominal) == {"memory_bytes", "reserved_frac"}
    assert set(c.by_collective) == {
        f"{k}.intra_node" for k in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    }


def test_the_file_reads_back_as_it_was(tmp_path: Path) -> None:
    c = made()
    assert hardware_from_toml(hardware_to_toml(c.hardware)) == c.hardware
    write_hardware(c.hardware, tmp_path / "hw.toml")
    assert read_hardware(str(tmp_path / "hw.toml")).constants == c.hardware.constants


def test_a_tier_that_no_group_spanned_is_left_out_or_nominal_and_never_calibrated() -> None:
    c = made()
    assert not [name for name in c.hardware.constants if "inter_" in name]
    assert any("collective.inter_node is left out" in note for note in c.notes)
    with pytest.raises(HardwareError, match="inter_node"):
        Cluster(c.hardware, 1, 2, 2)
    c = made(base=read_hardware("h200"))
    Cluster(c.hardware, 2, 2, 2)
    assert c.hardware.gpus_per_node == 8
    for name, constant in c.hardware.constants.items():
        assert (constant.status == "nominal") == (
            "inter_" in name or name in ("memory_bytes", "reserved_frac")
        ), name


@pytest.mark.parametrize(
    ("lost", "lacking"),
    [
        (("copy",), {"peak_flops", "memory_bandwidth", "gamma_m", "gamma_k"}),
        (("gemm",), {"peak_flops", "gamma_m", "gamma_k"}),
        (("forward",), {"peak_flops", "gamma_m", "gamma_k"}),
        (("nongemm",), {"nongemm_s", "nongemm_sequences", "nongemm_tokens"}),
    ],
)
def test_a_constant_that_was_not_measured_is_an_error_or_the_bases(
    lost: tuple[str, ...], lacking: set[str]
) -> None:
    with pytest.raises(CalibrationError, match=sorted(lacking)[0]) as error:
        made(without(*lost))
    assert all(name in str(error.value) for name in lacking)
    c = made(without(*lost), base=read_hardware("h200"))
    assert not lacking & calibrated(c)
    for name in lacking:
        assert c.hardware.constants[name].source.startswith("of h200")
        assert any(note.startswith(f"{name} is nominal") for note in c.notes)


def test_one_device_measures_no_links() -> None:
    c = made(raw(links=False))
    assert not [name for name in c.hardware.constants if "intra_node" in name]
    assert made(raw(links=False), base=read_hardware("h200")).hardware.constants[
        "p2p.intra_node.bandwidth"
    ].status == "nominal"  # fmt: skip


def test_constants_calibrated_on_another_gpu_become_nominal_and_on_the_same_stay() -> None:
    one_gpu = raw(links=False)
    for gpu, status in (("Other GPU", "nominal"), (MACHINE.name, "calibrated")):
        base = made().hardware
        base = replace(
            base, constants={n: replace(k, gpu=gpu) if k.gpu else k for n, k in base.constants.items()}
        )
        link = made(one_gpu, base=base).hardware.constants["p2p.intra_node.bandwidth"]
        assert link.status == status
        assert (link.samples > 0) == (status == "calibrated")
        assert gpu in link.source or status == "calibrated"


def test_measurements_of_one_and_two_gpus_of_a_kind_are_one_file() -> None:
    both = Raw(replace(MACHINE, count=1, backend=""), ALL.measurements)
    assert both.machine.identity == MACHINE.identity
    assert made(both).hardware.gpus_per_node == 2


def test_an_uncertain_constant_is_pointed_out() -> None:
    wild = calibrate(raw(0.5, seed=2), name="lab", draws=10)
    wide = {name for name, e in wild.estimates.items() if e.error_frac > WIDE_FRAC}
    assert wide
    assert all(any(note.startswith(f"{name} is uncertain") for note in wild.notes) for name in wide)


kinds = st.sets(st.sampled_from(["copy", "gemm", "forward", "decode_step", "nongemm", "all_reduce", "p2p"]))


@settings(max_examples=6, deadline=None)
@given(kinds)
def test_whatever_is_missing_calibrated_means_measured(lost: set[str]) -> None:
    c = made(without(*lost), base=read_hardware("h200"))
    assert calibrated(c) - {"nongemm_sequences", "nongemm_tokens"} == set(c.estimates)
    for name, e in c.estimates.items():
        assert e.low <= e.value <= e.high
        assert c.hardware.constants[name].samples == e.samples > 0


def test_extras_of_a_base_come_only_with_the_rates_that_they_were_fitted_with() -> None:
    base = read_hardware("h200")
    assert base.value("layer_s") > 0
    assert made(base=base).hardware.value("layer_s") == 0  # its own rates, with the printed formulas
    found = {"memory_bandwidth": Estimate(4e12, 3.9e12, 4.1e12, 9, 2)}
    kept = with_estimates(base, found, name="x", gpu=base.gpu, date="2026-01-02", source="copies")
    assert kept.value("layer_s") == base.value("layer_s")


def test_estimates_of_a_capture_replace_those_of_the_base() -> None:
    base = read_hardware("h100")
    found = {"memory_bandwidth": Estimate(4e12, 3.9e12, 4.1e12, 9, 2)}
    c = with_estimates(base, found, name="x", gpu="NVIDIA H100", date="2026-01-02", source="copies")
    assert c.constants["memory_bandwidth"].status == "calibrated"
    assert c.constants["memory_bandwidth"].error_frac == 0.025
    assert calibrated_names(c.constants) == {"memory_bandwidth"}
    with pytest.raises(CalibrationError, match="not measured"):
        with_estimates(base, found, name="x", gpu="g", date="", source="copies")


def calibrated_names(constants: dict[str, object]) -> set[str]:
    return {name for name, c in constants.items() if c.status == "calibrated"}  # type: ignore[attr-defined]


def test_tables_say_all_of_it() -> None:
    c = made()
    shown = constants_table(c)
    assert all(name in shown for name in c.hardware.constants)
    assert shown.count("calibrated") == len(calibrated(c))
    assert "decode_step" in residuals_table(c.residuals)
    assert "all_to_all.intra_node" in collectives_table(c)
    document = calibration_document(c)
    assert document["estimates"]["gamma_m"]["unit"] == "row"
    assert len(document["residuals"]) == len(c.residuals)
