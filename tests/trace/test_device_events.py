"""Names of device work."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.trace.device_events import copy_kind, covered_ns, short_name


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "HtoD"),
        ("Memcpy DtoH (Device -> Pinned)", "DtoH"),
        ("Memcpy DtoD (Device -> Device)", "DtoD"),
        ("Memcpy PtoP (Device -> Device)", "PtoP"),
        ("Memset (Device)", "memset"),
        ("CopyHostToDevice", "HtoD"),
        ("something else", "other"),
    ],
)
def test_copy_kind(name: str, kind: str) -> None:
    assert copy_kind(name) == kind


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("volta_sgemm_128x64_nn", "volta_sgemm_128x64_nn"),
        ("void at::native::(anonymous namespace)::Cat<at::X<4u>, 128>(at::X<4u>*, int)", "Cat"),
        ("cask_cudnn::computeOffsetsKernel(cask_cudnn::ComputeOffsetsParams)", "computeOffsetsKernel"),
        ("void vec<4, at::native::AddFunctor<float>, (bool)1>(int, at::Array<char*, 3>)", "vec"),
        (
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long)",
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        ),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("", ""),
        ("<unknown>", "<unknown>"),
    ],
)
def test_short_name(name: str, short: str) -> None:
    assert short_name(name) == short


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15)), max_size=12))
def test_covered_ns_counts_every_covered_instant_once(intervals: list[tuple[int, int]]) -> None:
    frame = pl.DataFrame(
        [(s, s + d) for s, d in intervals], schema={"start_ns": pl.Int64, "end_ns": pl.Int64}, orient="row"
    )
    assert covered_ns(frame) == len({t for s, d in intervals for t in range(s, s + d)})
