"""The shipped captures of `benchmarks/gpu/vla.py`, one by CUPTI and one by Nsight Systems, tell the same."""

from __future__ import annotations

import polars as pl
import pytest

import rlprof
from rlprof.errors import NsysError
from tests.conftest import ROOT

DATASETS = ROOT / "datasets"
BY_CUPTI, BY_NSYS = DATASETS / "vla_small_h200.rlprof", DATASETS / "vla_small_h200_nsys.rlprof"
REPORT = DATASETS / "vla_small_h200.nsys-rep"
#: Windows that hold no other, in the order of the room that they leave.
RANKED = [
    "iteration/rollout/epoch/chunk/policy/denoise",
    "simulator.step/physics",
    "simulator.reset/physics",
    "iteration/training/minibatch/backward",
    "iteration/training/minibatch/forward",
    "iteration/training/minibatch/optimizer",
    "simulator.step/render",
    "simulator.reset/render",
]


def leaves(trace: rlprof.Trace) -> pl.DataFrame:
    frame = trace.windows().frame  # type: ignore[union-attr]
    return frame.filter(pl.col("leaf") & pl.col("rank").is_not_null()).sort("rank")


@pytest.mark.parametrize("path", [BY_CUPTI, BY_NSYS], ids=["cupti", "nsys"])
def test_the_windows_rank_as_the_program_was_made(path):
    assert leaves(rlprof.read(path))["node"].to_list() == RANKED


def test_two_instruments_agree_on_what_a_call_takes_of_the_gpu():
    by_cupti, by_nsys = leaves(rlprof.read(BY_CUPTI)), leaves(rlprof.read(BY_NSYS))
    both = by_cupti.join(by_nsys, on="node", suffix="_nsys")
    assert both.height == len(RANKED)
    # other runs at other rates: what a call does is the same, how fast it was launched is not
    # (the first reset loads the renderer's kernels, in 100 to 150 ms: its mean duration tells of that)
    active = both.filter((pl.col("sm_activity") > 0.01) & (pl.col("node") != "simulator.reset/render"))
    assert active.height == 5
    ratio = active["sm_activity"] * active["mean_s"] / (active["sm_activity_nsys"] * active["mean_s_nsys"])
    assert (ratio - 1).abs().max() < 0.06, dict(zip(active["node"], ratio, strict=True))
    points = 100 * (both["sm_activity"] - both["sm_activity_nsys"]).abs()
    assert points.max() < 5, dict(zip(both["node"], points, strict=True))


@pytest.mark.nsys
def test_the_report_reads_as_its_tables_or_says_that_it_is_too_new():
    from rlprof.trace.nsys_tool import find_nsys, version_key

    found = find_nsys()
    if not found:
        pytest.skip("nsys is not installed")
    if version_key(found[0].version) < (2025, 3, 1):
        with pytest.raises(NsysError, match=r"written by Nsight Systems 2025\.3\.1\.0, newer than") as told:
            rlprof.read(REPORT)
        assert "install Nsight Systems 2025.3.1.0 or newer" in told.value.hint
        return
    trace = rlprof.read(REPORT)
    tables = rlprof.read(BY_NSYS)
    assert leaves(trace)["node"].to_list() == RANKED
    for name in ("ranges", "kernels", "copies", "api", "activity"):
        assert trace.table(name).height == tables.table(name).height, name
