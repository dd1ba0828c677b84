"""Ids inside labels are dropped, numbers that belong to a name stay."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlprof.trace.names import normalise, normalised, scrub_home


@pytest.mark.parametrize(
    ("label", "plain"),
    [
        ("step 17", "step"),
        ("step_11", "step"),
        ("step #3", "step"),
        ("ProfilerStep#551", "ProfilerStep"),
        ("iter-3", "iter"),
        ("epoch (2)", "epoch"),
        ("epoch: 4", "epoch"),
        ("batch [3/10]", "batch"),
        ("rollout 3 of 8", "rollout"),
        ("train_step_12", "train_step"),
        ("aten::empty, op_id = 990346", "aten::empty"),
        ("aten::mul, seq = 45328, op_id = 990726", "aten::mul"),
        ("generate req_id=0x1f", "generate"),
        ("request id: 12, tokens: 7", "request"),
        ("policy", "policy"),
    ],
)
def test_ids_go(label, plain):
    assert normalise(label) == plain


@pytest.mark.parametrize(
    "label",
    ["layer1", "layer_3", "conv2d", "Identity_12", "resnet50", "gemm_128x128", "layer1.0/conv1", "stage_0",
     "FSDP::post_forward (blocks.2._checkpoint_wrapped_module)", "/layer4/layer4.0/Add", "17", "lr=0.5"],
)  # fmt: skip
def test_numbers_of_a_name_stay(label):
    assert normalise(label) == label


@given(st.text(max_size=40))
def test_normalise_is_idempotent_and_never_empty(label):
    once = normalise(label)
    assert normalise(once) == once
    assert bool(once) == bool(label)


@given(
    st.lists(
        st.from_regex(r"(step|op|id|12|, |=|:|_|#| |\\.|0x1f|3x4|007|a1|/|\\(|\\)|x)*", fullmatch=True),
        max_size=12,
    )
)
def test_normalised_equals_normalise_of_each(labels):
    assert normalised(pl.Series(labels, dtype=pl.String)).to_list() == [normalise(t) for t in labels]


def test_numbers_that_only_look_alike_are_not_taken_for_hexadecimal():
    """``id=3x4`` is no integer, ``id=0x4`` is one; without their digits the two are the same."""
    labels = ["load id=3x4", "load id=0x4"]
    assert normalised(pl.Series(labels)).to_list() == ["load id=3x4", "load"]


def test_normalised_keeps_order_and_nulls():
    labels = pl.Series(["step 1", None, "step 2", "policy"]).cast(pl.Categorical())
    assert normalised(labels).to_list() == ["step", None, "step", "policy"]


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ("load /home/alice/x.pt", "load ~/x.pt"),
        ("/Users/bob/run", "~/run"),
        (r"C:\Users\carol\run", r"~\run"),
        ("/root/run", "~/run"),
        ("/conv1/Conv + /relu/Relu", "/conv1/Conv + /relu/Relu"),
        ("module/root/x", "module/root/x"),
    ],
)
def test_users_in_paths(label, shown):
    assert scrub_home(pl.Series([label]).cast(pl.Categorical())).to_list() == [shown]
