"""The points that are measured: enough, each once, and none that predictions are judged by in a fit."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import pytest

from rlprof.planning.calibration import sweeps
from rlprof.planning.calibration.observation import split_of
from rlprof.planning.calibration.predict import predicted_peak_bytes
from rlprof.planning.calibration.raw import Point
from tests.conftest import ROOT
from tests.planning.calibration.made import observation


def every(device: str, preset: sweeps.Preset) -> list[Point]:
    return [
        *sweeps.kernel_points(device, preset),
        *sweeps.forward_points(device, preset),
        *sweeps.validation_points(device, preset),
        *sweeps.link_points(device, 2, preset),
    ]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_every_point_is_there_once_and_quick_is_less(device: str) -> None:
    counts = []
    for preset in ("full", "quick", "smoke"):
        points = every(device, preset)  # type: ignore[arg-type]
        assert len(set(points)) == len(points)
        counts.append(len(points))
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_at_least_sixty_configurations_of_every_role_in_both_halves(device: str) -> None:
    points = sweeps.validation_points(device, "full")
    assert len(points) >= 60
    for role in ("inference", "generation", "training"):
        halves = [split_of(observation(p)) for p in points if p.kind == role]
        assert min(halves.count("fit"), halves.count("held_out")) >= 5
        assert len({str(p.key["shape"]["name"]) for p in points if p.kind == role}) >= 3


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_no_operator_that_predictions_are_judged_by_is_measured_for_the_fit(device: str) -> None:
    def sizes(points: list[Point]) -> set[tuple[object, ...]]:
        return {
            (p.key["shape"]["name"], p.key["sequences"], p.key["prompt_tokens"] + p.key["response_tokens"])
            for p in points
            if p.kind in ("forward", "inference", "training")
        }

    judged = sizes(sweeps.validation_points(device, "full"))
    assert judged
    assert not sizes(sweeps.forward_points(device, "full")) & judged


def test_what_is_to_be_measured_fits_into_an_h200() -> None:
    for point in [*sweeps.validation_points("cuda", "full"), *sweeps.forward_points("cuda", "full")]:
        assert predicted_peak_bytes(observation(point), 2) < 0.9 * 141e9, point.identity


def test_operators_of_one_model_follow_one_another() -> None:
    ordered = sweeps.shapes_in_turn(sweeps.validation_points("cuda", "full"))
    models = [(p.kind == "training", p.key["shape"]["name"]) for p in ordered]
    changes = sum(a != b for a, b in pairwise(models))
    assert changes == len(set(models)) - 1


def test_one_device_has_no_links_and_four_have_groups_of_two_and_four() -> None:
    assert sweeps.link_points("cuda", 1, "full") == []
    ranks = {(p.kind, p.key["ranks"]) for p in sweeps.link_points("cuda", 4, "quick")}
    assert {("all_reduce", 2), ("all_reduce", 4), ("p2p", 2)} <= ranks
    assert ("p2p", 4) not in ranks


def test_measuring_imports_nothing_but_pytorch_and_the_standard_library() -> None:
    allowed = {"rlprof", "torch"}
    code = (
        "import sys; before = set(sys.modules)\n"
        "import rlprof.planning.calibration.measure, rlprof.planning.calibration.link_worker\n"
        "names = {m.partition('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names)\n"
        "print(sorted(names))"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(eval(out.stdout)) <= allowed
