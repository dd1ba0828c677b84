"""Splits: what they make, and the exact reason for which they refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlprof.overlap.bindings import Gather, Pack, Ref, Slice, View
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.errors import IllegalTransformationError
from rlprof.overlap.legality import check
from rlprof.overlap.transforms import interleave, split_chained, split_spatial, split_temporal
from tests.overlap.graphs import Loop, Node, graph_of, rollout, run, same, state

CHUNK = "it/epoch/chunk"


def legal(native: CallGraph, graph: CallGraph) -> None:
    assert check(native, graph) == ()
    for seed in range(4):
        assert same(run(native), run(graph, seed))


def argument(graph: CallGraph, call: str, number: int = 0) -> object:
    positional = graph.by_id[call].arguments.items[0]
    assert isinstance(positional, Pack)
    return positional.items[number]


# -- spatial


def test_halves_compute_what_the_whole_batch_does() -> None:
    native = rollout()
    halves = split_spatial(native, CHUNK)
    legal(native, halves)
    assert len(halves) == len(native) + 12
    assert len(halves.streams) == 1
    assert halves.history == ("split it/epoch/chunk by samples into 2 + 2",)
    step = halves.by_id["it/epoch[1]/chunk[2]/step@1"]
    assert (step.samples, step.group, step.duration_s) == ((2, 3), 1, 1.0)
    assert [str(a.cell) for a in step.accesses] == ["ENV[2]", "ENV[3]"]
    assert argument(halves, step.id) == Ref("it/epoch[1]/chunk[2]/policy@1")
    # what comes from outside is cut, what stays whole gathers
    assert argument(halves, "it/epoch[0]/chunk[0]/policy@0") == Slice(Ref("it/epoch[0]/reset"), (0, 1))
    last = "it/epoch[0]/chunk[2]/step"
    assert argument(halves, "it/epoch[0]/reward") == Gather(
        (Ref(f"{last}@0"), Ref(f"{last}@1")), ((0, 1), (2, 3))
    )


def test_downstream_consumers_are_cut_too() -> None:
    native = rollout()
    graph = split_spatial(native, CHUNK, downstream=["it/epoch/reward"])
    legal(native, graph)
    assert argument(graph, "it/epoch[0]/reward@0") == Ref("it/epoch[0]/chunk[2]/step@0")


def test_cuts_are_chosen_and_groups_are_as_equal_as_units_allow() -> None:
    native = rollout(batch=6)
    assert [
        c.samples for c in split_spatial(native, CHUNK, cuts=[1]).parts["it/epoch[0]/chunk[0]/policy"]
    ] == [
        (0,),
        (1, 2, 3, 4, 5),
    ]
    four = split_spatial(native, CHUNK, 4)
    assert [len(c.samples or ()) for c in four.parts["it/epoch[0]/chunk[0]/policy"]] == [1, 2, 1, 2]
    legal(native, four)
    united = graph_of((Node("a", "a", ("x",), unit=2), Node("b", "a", ("a",), unit=3)), (), 12)
    graph = split_spatial(united, "it")
    legal(united, graph)
    assert [len(c.samples or ()) for c in graph.parts["it/a"]] == [6, 6]


def test_nodes_split_apart_are_bound_part_to_part() -> None:
    """Halves feed quarters: each quarter takes its samples from one half, and nothing of the other."""
    native = graph_of(
        (Node("a", "a", ("x",)), Node("b", "b", ("a",)), Node("c", "c", ("b",), mixes=True)), ()
    )
    graph = split_spatial(split_spatial(native, "it/b", 4), "it/a")
    legal(native, graph)
    assert argument(graph, "it/b@2") == Slice(Ref("it/a@1"), (0,))
    odd = split_spatial(split_spatial(native, "it/b", cuts=[3]), "it/a")
    legal(native, odd)
    gathered = argument(odd, "it/b@0")
    assert gathered == Gather((Ref("it/a@0"), Slice(Ref("it/a@1"), (0,))), ((0, 1), (2,)))


def test_shared_outputs_come_from_the_first_part() -> None:
    native = graph_of(
        (Node("a", "a", ("x",), {"W": "read"}, pair=True), Node("b", "b", ("a",))), (state("W"),)
    )
    extra = replace(native, output=Pack("list", (0, 1), (Ref("it/a", ("info",)), Ref("it/a"))))
    graph = split_spatial(extra, "it/a")
    assert graph.output == Pack(
        "list",
        (0, 1),
        (Ref("it/a@0", ("info",)), Gather((Ref("it/a@0"), Ref("it/a@1")), ((0, 1), (2, 3)), 0, ("info",))),
    )
    assert check(extra, graph) == ()
    # cut as one value the shared part would be cut too
    taken = replace(native.by_id["it/b"], arguments=replace_refs(native.by_id["it/b"].arguments, Ref("it/a")))
    one_value = replace(native, calls=(native.by_id["it/a"], taken))
    with pytest.raises(IllegalTransformationError, match="partly by sample"):
        split_spatial(one_value, "it/b")
    assert check(one_value, split_spatial(one_value, "it")) == ()


def replace_refs(arguments: Pack, ref: Ref) -> Pack:
    positional = arguments.items[0]
    assert isinstance(positional, Pack)
    return replace(arguments, items=(replace(positional, items=(ref,)), arguments.items[1]))


def test_views_by_sample_are_taken_of_the_parts() -> None:
    native = graph_of(
        (
            Node("a", "a", ("x",)),
            Node("b", "b", ("a:col",)),
            Node("c", "c", ("a:col", "a:row", "a:flat"), mixes=True),
        ),
        (),
    )
    graph = split_spatial(native, "it/a")
    legal(native, graph)
    view = View(1, (2, 1), (3, 1), "uint64", (2, 3), (3, 1))
    assert argument(graph, "it/c") == Gather(
        (Ref("it/a@0", (), view), Ref("it/a@1", (), view)), ((0, 1), (2, 3))
    )
    # the row of sample 1 lies in the first half alone
    assert argument(graph, "it/c", 1) == Ref("it/a@0", (), View(3, (3,), (1,), "uint64", (2, 3), (3, 1)))
    both = split_spatial(native, "it/a", downstream=["it/b"])
    legal(native, both)
    assert argument(both, "it/b@1") == Ref("it/a@1", (), view)


def test_views_that_mix_samples_are_refused() -> None:
    turned = graph_of((Node("a", "a", ("x",)), Node("b", "b", ("a:turned",), mixes=True)), ())
    with pytest.raises(IllegalTransformationError, match="view of the output of it/a mixes samples"):
        split_spatial(turned, "it/a")
    native = graph_of((Node("a", "a", ("x",)), Node("b", "b", ("a:col",), mixes=True)), ())
    arguments = native.by_id["it/b"].arguments
    unknown = replace_refs(arguments, Ref("it/a", (), View(1, (4, 1), (3, 1), "uint64")))
    lost = replace(native, calls=(native.by_id["it/a"], replace(native.by_id["it/b"], arguments=unknown)))
    with pytest.raises(IllegalTransformationError, match="does not tell the samples"):
        split_spatial(lost, "it/a")


def test_lists_of_batches_are_cut_item_by_item() -> None:
    native = graph_of((Node("a", "a", ("x",)), Node("b", "b", ("a+x",)), Node("c", "c", ("b",))), ())
    graph = split_spatial(native, "it/b")
    legal(native, graph)


REFUSED: list[tuple[str, Node, dict[str, object], str]] = [
    (
        "mixes samples",
        Node("a", "a", ("x",), mixes=True),
        {},
        "node it/a declares no batch axis: it may mix samples",
    ),
    (
        "writes a shared cell",
        Node("a", "a", (), {"W": "update"}),
        {},
        "it/a writes W, which is not partitioned by sample",
    ),
    (
        "writes its whole component",
        Node("a", "a", (), {"component:a": "update"}),
        {},
        "it/a writes component:a, which is not partitioned by sample",
    ),
    (
        "is given no samples",
        Node("a", "a", (), {"ENV": "update"}, samples=False),
        {},
        "has no parameter that is given",
    ),
    (
        "inside a unit",
        Node("a", "a", ("x",), unit=2),
        {"cuts": [1]},
        "a cut at 1 falls inside a unit of 2 samples of it/a",
    ),
    ("broken units", Node("a", "a", ("x",), unit=3), {}, "the 4 samples of it/a are no whole units of 3"),
    (
        "more groups than units",
        Node("a", "a", ("x",), unit=2),
        {"groups": 3},
        "4 samples in units of 2 cannot be cut into 3",
    ),
    ("one group", Node("a", "a", ("x",)), {"groups": 1}, "cannot be cut into 1 groups"),
    ("cuts that fall", Node("a", "a", ("x",)), {"cuts": [2, 1]}, "do not ascend between 0 and 4"),
    (
        "a boundary",
        Node("a", "a", (), {"W": "refresh"}, mixes=True, role="sync"),
        {},
        "it/a has the role 'sync', a boundary",
    ),
]


@pytest.mark.parametrize(("node", "how", "reason"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_spatial_split_is_refused(node: Node, how: dict[str, int], reason: str) -> None:
    native = graph_of((node,), (state("ENV", batch=4), state("W"), state("component:a")))
    with pytest.raises(IllegalTransformationError) as caught:
        split_spatial(native, "it/a", **how)  # type: ignore[arg-type]
    assert reason in str(caught.value)
    assert "it/a" in caught.value.calls


def test_batches_must_be_known_and_equal() -> None:
    native = graph_of((Node("a", "a", ("x",)), Node("b", "b", ("x",))), ())
    a, b = native.calls
    with pytest.raises(IllegalTransformationError, match="it/a has 4 samples, it/b 8"):
        split_spatial(replace(native, calls=(a, replace(b, batch_size=8))), "it")
    with pytest.raises(IllegalTransformationError, match="batch size of it/b is not known"):
        split_spatial(replace(native, calls=(a, replace(b, batch_size=None))), "it/b")
    with pytest.raises(IllegalTransformationError, match="it/a is split already"):
        split_spatial(split_spatial(native, "it/a"), "it")
    with pytest.raises(IllegalTransformationError, match="there is no node it/z"):
        split_spatial(native, "it/z")


def test_cells_of_no_sample_are_refused() -> None:
    native = graph_of((Node("a", "a", (), {"ENV": "update"}),), (state("ENV", batch=4),))
    (call,) = native.calls
    small = replace(native, calls=(replace(call, batch_size=2),))
    with pytest.raises(IllegalTransformationError, match=r"uses ENV\[2\], which is none of its 2 samples"):
        split_spatial(small, "it/a")


def test_unknown_names_of_positional_parameters_are_refused() -> None:
    native = graph_of((Node("a", "a", ("x",)),), ())
    nodes = {**native.nodes, "it/a": replace(native.nodes["it/a"], parameters=())}
    with pytest.raises(
        IllegalTransformationError, match="names of the positional parameters of it/a are not known"
    ):
        split_spatial(replace(native, nodes=nodes), "it/a")


# -- temporal


def test_groups_of_epochs_have_storage_of_their_own() -> None:
    native = rollout(epochs=4, copies=2)
    graph = split_temporal(native, "it/epoch")
    legal(native, graph)
    copies = {c.iteration["it/epoch"]: c.accesses[0].copy for c in graph.of_node("it/epoch/reset")}
    assert copies == {0: 1, 1: 1, 2: 0, 3: 0}  # the last group leaves its version where it belongs
    assert {c.group for c in graph.below("it/epoch") if c.iteration["it/epoch"] == 3} == {1}
    legal(native, interleave(graph, "it/epoch"))


def test_epochs_and_batches_are_split_together() -> None:
    native = rollout(epochs=2, copies=2)
    graph = split_spatial(split_temporal(native, "it/epoch"), "it/epoch")
    legal(native, graph)
    apart = interleave(graph, "it/epoch")
    legal(native, apart)
    assert len(apart.streams) == 1 + 4


def test_a_loop_inside_a_loop_is_divided_in_each_execution() -> None:
    inner = Loop(
        "inner", 2, (Node("a", "a", (), {"ENV": "refresh"}), Node("b", "b", ("a",), {"ENV": "update"}))
    )
    native = graph_of(
        (Loop("outer", 2, (inner, Node("c", "c", ("b",), {"ENV": "read"}))),), (state("ENV", copies=2),), 1
    )
    native = replace(native, nodes={p: replace(n, batch=None) for p, n in native.nodes.items()})
    graph = split_temporal(native, "it/outer/inner")
    legal(native, graph)
    legal(native, interleave(graph, "it/outer/inner"))


@pytest.mark.parametrize(
    ("graph", "loop", "groups", "reason"),
    [
        (
            rollout(),
            CHUNK,
            2,
            "it/epoch[0]/chunk[1]/step takes ENV[0], ENV[1] and 2 more of it/epoch[0]/chunk[0]/step",
        ),
        (rollout(), "it/epoch", 2, "2 groups of it/epoch write ENV at once, of which there is 1 copy"),
        (
            rollout(epochs=3, copies=2),
            "it/epoch",
            3,
            "3 groups of it/epoch write ENV at once, of which there are 2",
        ),
        (rollout(copies=3), "it/epoch", 3, "the 2 iterations of it/epoch cannot be divided into 3 groups"),
        (rollout(), "it/epoch/reward", 2, "it/epoch/reward is no loop"),
    ],
)
def test_temporal_split_is_refused(graph: CallGraph, loop: str, groups: int, reason: str) -> None:
    with pytest.raises(IllegalTransformationError) as caught:
        split_temporal(graph, loop, groups)
    assert reason in str(caught.value)


def test_a_loop_without_a_fixed_count_is_dependent() -> None:
    native = graph_of((Loop("l", 2, (Node("a", "a", ("x",)),), fixed=False),), ())
    with pytest.raises(IllegalTransformationError, match="its number of iterations is not fixed"):
        split_temporal(native, "it/l")


# -- chained


def test_segments_start_when_their_inputs_are_ready() -> None:
    """The second segment's first call waits for the last of the first by what it takes, not by the stream."""
    native = graph_of(
        (Loop("l", 4, (Node("a", "a", (), {"S": "update"}), Node("log", "b", ("a",)))),), (state("S"),)
    )
    graph = split_chained(native, "it/l")
    legal(native, graph)
    assert [len(stream) for stream in graph.streams] == [4, 4]
    assert [c.group for c in graph.of_node("it/l/a")] == [0, 0, 1, 1]
    assert [len(s) for s in split_chained(native, "it/l", cuts=[1]).streams] == [2, 6]
    legal(native, interleave(graph, "it/l"))
    with pytest.raises(IllegalTransformationError, match="the 4 iterations of it/l cannot be divided into 5"):
        split_chained(native, "it/l", 5)
    for wrong in ("2", 2.0, None, True):
        with pytest.raises(IllegalTransformationError, match="is no number of groups"):
            split_chained(native, "it/l", wrong)  # type: ignore[arg-type]
    with pytest.raises(IllegalTransformationError, match=r"1\.5 is no number of an iteration"):
        split_chained(native, "it/l", cuts=[1.5])  # type: ignore[list-item]
