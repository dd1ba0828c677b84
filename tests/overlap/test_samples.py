"""Bindings in terms of native calls and of parts: each says what the other says, or says that it cannot."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.overlap.bindings import Binding, Const, External, Gather, Pack, Ref, Slice, View, arguments
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.errors import NotBySampleError
from rlprof.overlap.expression import express
from rlprof.overlap.materialise import materialise
from rlprof.overlap.parts import part_arguments, whole_call
from rlprof.overlap.samples import native_form, take
from rlprof.overlap.specs import BatchSpec
from rlprof.overlap.transforms import split_spatial
from tests.overlap.graphs import Node, graph_of

A, B = "it/a", "it/b"


def native(batch: int = 4, *, pair: bool = False) -> CallGraph:
    return graph_of((Node("a", "a", ("x",), pair=pair), Node("b", "b", ("x",))), (), batch)


def halves(*, pair: bool = False) -> CallGraph:
    return split_spatial(native(pair=pair), A)


def test_parts_are_slices_and_all_parts_are_the_whole() -> None:
    graph = halves()
    assert native_form(Ref(f"{A}@1", ("y",)), graph) == Slice(Ref(A, ("y",)), (2, 3))
    both = Gather((Ref(f"{A}@0"), Ref(f"{A}@1")), ((0, 1), (2, 3)))
    assert native_form(both, graph) == Ref(A)
    assert native_form(replace(both, samples=((2, 3), (0, 1))), graph) == Slice(Ref(A), (2, 3, 0, 1))
    assert native_form(Slice(both, (1, 2)), graph) == Slice(Ref(A), (1, 2))
    assert native_form(Slice(Slice(External((0, 0)), (3, 1)), (1,)), graph) == Slice(External((0, 0)), (1,))
    assert native_form(Const("c"), graph) == Const("c")


WRONG: list[tuple[str, Binding, str]] = [
    ("nobody", Ref("it/z"), "no call of the graph"),
    ("a hole", Gather((Ref(f"{A}@0"), Ref(f"{A}@1")), ((0, 1), (3, 4))), "positions of gathered samples"),
    ("twice", Gather((Ref(f"{A}@0"), Ref(f"{A}@0")), ((0, 1), (1, 2))), "positions of gathered samples"),
    (
        "unequal sizes",
        Gather((Ref(f"{A}@0"), Ref(f"{A}@1")), ((0,), (1, 2, 3))),
        "2 samples of the output of it/a go to 1",
    ),
    ("a whole among parts", Gather((Ref(B), Ref(f"{A}@1")), ((0, 1), (2, 3))), "no part of a batch"),
    (
        "things of two calls",
        Gather((Slice(Ref(B), (0, 1)), Ref(f"{A}@1")), ((0, 1), (2, 3))),
        "parts of different things are gathered: the output of it/b and the output of it/a",
    ),
    ("another axis", Gather((Ref(f"{A}@0"), Ref(f"{A}@1")), ((0, 1), (2, 3)), 1), "no part of a batch"),
    (
        "shared keys that are none",
        Gather((Ref(f"{A}@0"), Ref(f"{A}@1")), ((0, 1), (2, 3)), 0, ("info",)),
        "have in common is gathered in another way",
    ),
    (
        "different structures",
        Gather(
            (Pack("list", (0,), (Ref(f"{A}@0"),)), Pack("tuple", (0,), (Ref(f"{A}@1"),))), ((0, 1), (2, 3))
        ),
        "parts of different form",
    ),
    ("a sequence that is none", Slice(Pack("dict", ("k",), (Ref(B),)), (0,), None), "no sequence of samples"),
    (
        "a view of unknown memory",
        Ref(f"{A}@0", (), View(0, (2, 1), (3, 1), "uint64")),
        "does not tell the samples",
    ),
]


@pytest.mark.parametrize(("binding", "reason"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_what_cannot_be_told_is_said(binding: Binding, reason: str) -> None:
    with pytest.raises(NotBySampleError, match=reason):
        native_form(binding, halves())


def test_shared_outputs_are_never_cut_or_joined() -> None:
    graph = halves(pair=True)
    assert native_form(Ref(f"{A}@1", ("info",)), graph) == Ref(A, ("info",))
    joined = Gather((Ref(f"{A}@0"), Ref(f"{A}@1")), ((0, 1), (2, 3)), 0, ("info",))
    assert native_form(joined, graph) == Ref(A)
    assert express(Ref(A), graph) == joined
    with pytest.raises(NotBySampleError, match="in common is gathered in another way"):
        native_form(replace(joined, shared=()), graph)
    with pytest.raises(NotBySampleError, match="partly by sample"):
        native_form(Slice(joined, (0,)), graph)


def test_sequences_are_cut_by_item() -> None:
    graph = native()
    items = tuple(Ref(B, (i,)) for i in range(4))
    listed = Pack("list", (0, 1, 2, 3), items)
    assert take(listed, (2, 0), None) == Pack("list", (0, 1), (items[2], items[0]))
    node = replace(
        graph.nodes[A], batch=BatchSpec(parameters=("p0",), sequences=("p1",)), parameters=("p0", "p1")
    )
    given_ = arguments((Ref(B), listed), {"other": Const("c")})
    part = part_arguments(given_, node, (1, 2))
    positional, named = part.items
    assert isinstance(positional, Pack)
    assert positional.items == (Slice(Ref(B), (1, 2)), Pack("list", (0, 1), items[1:3]))
    assert isinstance(named, Pack)
    assert named.items == (Const("c"),)
    outside = part_arguments(arguments((Ref(B), External((0, 1))), {}), node, (1, 2)).items[0]
    assert isinstance(outside, Pack)
    assert outside.items[1] == Slice(External((0, 1)), (1, 2), None)


def test_parts_of_sequences_are_one_sequence_again() -> None:
    graph = native()
    node = replace(graph.nodes[A], batch=BatchSpec(parameters=(), sequences=("p0",)))
    listed = Pack("list", (0, 1, 2, 3), tuple(Ref(B, (i,)) for i in range(4)))
    for sequence in (listed, External((0, 3))):
        call = replace(graph.by_id[A], arguments=arguments((sequence,), {}))
        calls = tuple(call if c.id == A else c for c in graph.calls)
        program = replace(graph, nodes={**graph.nodes, A: node}, calls=calls)
        # order of definition does not matter here: only bindings are looked at
        parts = tuple(
            replace(
                call, id=f"{A}@{g}", samples=s, group=g, arguments=part_arguments(call.arguments, node, s)
            )
            for g, s in enumerate([(0, 2), (1, 3)])
        )
        assert whole_call(parts, program).arguments == call.arguments


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_views_and_slices_of_parts_are_those_of_the_whole(seed: int) -> None:
    """Real arrays: what is expressed over parts evaluates to what the native binding does."""
    draw = random.Random(seed)
    batch, inner = draw.choice((2, 4, 6)), draw.choice(((3,), (2, 3), ()))
    graph = split_spatial(native(batch), A, cuts=[draw.randint(1, batch - 1)])
    whole = np.arange(batch * int(np.prod(inner, dtype=int))).reshape(batch, *inner)
    outputs = {c.id: np.ascontiguousarray(whole[list(c.samples or ())]) for c in graph.parts[A]} | {A: whole}
    binding: Binding = Ref(A)
    taken = whole
    if draw.random() < 0.7 and inner:
        index = draw.choice(
            [
                np.s_[:, :1],
                np.s_[:, ::-1],
                np.s_[1],
                np.s_[:, 1],
                np.s_[1:],
                np.s_[..., -1],
                np.s_[::2],
                np.s_[0, 1, ...],
            ]
        )
        taken = whole[index]
        if draw.random() < 0.2:
            taken = whole.reshape(batch * inner[0], -1)
        offset = (
            taken.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        ) // whole.itemsize
        strides = tuple(s // whole.itemsize for s in taken.strides)
        of = tuple(s // whole.itemsize for s in whole.strides)
        binding = Ref(A, (), View(offset, taken.shape, strides, str(whole.dtype), whole.shape, of))
    if draw.random() < 0.5 and taken.ndim:
        samples = tuple(draw.sample(range(len(taken)), draw.randint(1, len(taken))))
        binding, taken = take(binding, samples, 0), taken[list(samples)]
    assert np.array_equal(materialise(binding, outputs, ((), {}), {}), taken)
    expressed = express(binding, graph)
    assert np.array_equal(materialise(expressed, outputs, ((), {}), {}), taken)
    again = native_form(expressed, graph)
    assert np.array_equal(materialise(again, outputs, ((), {}), {}), taken)
    assert again == native_form(express(again, graph), graph)
