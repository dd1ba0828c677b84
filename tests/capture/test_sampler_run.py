"""What a sampler at work writes, whatever befalls it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlprof.capture.part_reader import ProcessParts, read_parts
from rlprof.capture.sampler_run import GRAIN, Run, loss_notes
from rlprof.capture.samplers.base import Device, Losses, SamplerError, Samples, Source


def parts_of(folder: Path) -> ProcessParts:
    (found,) = read_parts(folder)
    return found


class Scripted:
    """A sampler that delivers what it is told and then fails."""

    source: Source = "sm_counters"
    period_ns = 100_000
    poll_ns = 1_000_000

    def __init__(self, lost: Losses | None = None) -> None:
        self.drains = 0
        self.lost = lost or Losses()

    def start(self) -> list[Device]:
        return [Device(0, "NVIDIA H200", 132, "GPU-1")]

    def drain(self) -> list[Samples]:
        self.drains += 1
        if self.drains > 3:
            raise SamplerError("the GPU fell off the bus")
        at = self.drains * 1_000_000
        extra = {"sm__warps": np.array([float(self.drains)])}
        return [Samples(0, np.array([at]), np.array([at + 100_000]), np.array([0.123456789]), extra)]

    def stop(self) -> list[Samples]:
        return [Samples(0, np.array([9_000_000]), np.array([9_100_000]), np.array([1.0]))]

    def losses(self) -> Losses:
        return self.lost

    def clock(self) -> dict[str, Any]:
        return {"0": {"method": "arrival of the records", "uncertainty_ns": 2_500_000}}


class Never:
    def wait(self, until_ns: int) -> bool:
        return False


def test_a_sampler_that_fails_on_the_way_leaves_what_it_had(tmp_path: Path) -> None:
    sampler = Scripted()
    run = Run(tmp_path, "cupti", sampler, sampler.start())
    assert run.until(Never()) == 2
    found = parts_of(tmp_path)
    assert found.tables["activity"]["start_ns"].to_pylist() == [1_000_000, 2_000_000, 3_000_000, 9_000_000]
    assert found.tables["activity"]["active_frac"].to_pylist()[0] == pytest.approx(0.123456789, abs=1 / GRAIN)
    assert found.tables["counters"]["value"].to_pylist() == [1.0, 2.0, 3.0]
    assert set(found.tables["counters"]["metric"].to_pylist()) == {"sm__warps"}
    assert found.tables["devices"].to_pylist() == [
        {"device": 0, "name": "NVIDIA H200", "sm_count": 132, "uuid": "GPU-1"}
    ]
    assert "the cupti sampler stopped early: the GPU fell off the bus" in found.notes
    assert not found.facts["sampler"]["finished"]


def test_a_library_that_fails_in_its_own_way_costs_no_samples_either(tmp_path: Path) -> None:
    class GpuIsLostError(Exception):
        pass

    class Failing(Scripted):
        def drain(self) -> list[Samples]:
            try:
                return super().drain()
            except SamplerError:
                raise GpuIsLostError("code 15") from None

        def stop(self) -> list[Samples]:
            raise GpuIsLostError("code 15")

    sampler = Failing()
    assert Run(tmp_path, "nvml", sampler, sampler.start()).until(Never()) == 2
    found = parts_of(tmp_path)
    assert found.tables["activity"].num_rows == 3
    assert "the nvml sampler stopped early: GpuIsLostError: code 15" in found.notes


def test_what_is_missing_is_said_in_sentences() -> None:
    lost = Losses(lost_samples=50, lost_ns=5_000_000, gaps=2, overflows=1, invalid=3, repeated=4)
    notes = loss_notes("cupti", Scripted(lost), 950)
    assert notes[0] == "50 samples (5.00%) are missing in 2 gap(s), 5.0 ms in all; nothing was filled in"
    assert "buffer was full 1 time(s)" in notes[1]
    assert "3 answers of the cupti sampler were no number" in notes[2]
    assert notes[3] == "4 samples came twice and were taken once"
    assert "within 2.5 ms" in notes[4]
    assert "not verified" in loss_notes("dcgm", Scripted(), 1)[0]
