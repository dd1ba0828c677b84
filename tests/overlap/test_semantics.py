from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlprof.errors import UsageError
from rlprof.overlap.bindings import Const, External, Gather, Pack, Ref, Slice, arguments
from rlprof.overlap.callgraph import INITIAL, Access, Call, CallGraph
from rlprof.overlap.execute import execute
from rlprof.overlap.semantics import Watch, compare, of_graph
from rlprof.overlap.specs import Cell, NodeSpec, StateSpec

W = Cell("W")
NODES = {
    "r": NodeSpec("r", None),
    "r/sync": NodeSpec("r/sync", "r", role="sync"),
    "r/infer": NodeSpec("r/infer", "r"),
    "r/update": NodeSpec("r/update", "r", role="update"),
}
STATES = {"W": StateSpec("W", rollout_weights=True)}


def graph(groups=(), *, update_order=(0, 1), reads=("r/sync",), rows=0) -> CallGraph:
    """sync, infer on four samples (whole or in groups), two updates on minibatches of its output."""
    x = External((0, 0))
    calls = [Call("r/sync", "r/sync", "r/sync", 0, arguments((), {}), (Access(W, "refresh", None),))]
    parts = list(enumerate(groups)) or [(0, None)]
    for group, samples in parts:
        name = "r/infer" if samples is None else f"r/infer@{group}"
        args = arguments((x if samples is None else Slice(x, samples),), {})
        sees = reads[group % len(reads)]
        calls.append(
            Call(name, "r/infer", "r/infer", 1, args, (Access(W, "read", sees),), (), samples, 4, group)
        )
    outputs = tuple(Ref(c.id) for c in calls[1:])
    data = outputs[0] if not groups else Gather(outputs, tuple(groups))
    for place, index in enumerate(update_order):
        name = "r/update" if not index else f"r/update#{index}"
        args = arguments((data, Const(f"rows {index + rows}")), {})
        calls.append(Call(name, "r/update", name, 2 + place, args))
    constants_streams = (tuple(c.id for c in calls),)
    return CallGraph("r", NODES, STATES, tuple(calls), constants_streams, Pack("list", (), ()))


CONSTANTS = {f"rows {i}": np.array([i, i + 1]) for i in range(3)}
ENTRIES = {"r/sync": lambda: None, "r/infer": lambda x: x * 2, "r/update": lambda d, rows: d[rows].sum()}
X = np.arange(4.0)
GROUPS = ((0, 2), (3, 1))


def seen(made: CallGraph, entries=None, **how):
    watch = Watch(made)
    execute(made, entries or ENTRIES, CONSTANTS, ((X,), {}), watcher=watch, **how)
    return watch.record


def test_a_split_graph_has_the_native_record_and_so_has_its_run():
    native, split = graph(), graph(GROUPS)
    assert of_graph(native) == of_graph(split)
    assert len(of_graph(native).policy) == 4
    for made in (native, split):
        assert not compare(of_graph(native), seen(made))
    assert not compare(seen(native), seen(split), bits=True)


def kinds(native, other, **how):
    return sorted({d.kind for d in compare(native, other, **how)})


def test_graphs_and_watches_are_no_records():
    made = graph()
    for pair in ((made, of_graph(made)), (of_graph(made), made), (of_graph(made), Watch(made))):
        with pytest.raises(UsageError, match=r"is no semantic record. Next: compare of_graph\(graph\)"):
            compare(*pair)


def test_another_order_of_updates_is_a_difference():
    assert kinds(seen(graph()), seen(graph(update_order=(1, 0)))) == ["update order"]
    assert kinds(of_graph(graph()), of_graph(graph(update_order=(0,)))) == ["update order"]
    (difference,) = compare(of_graph(graph()), of_graph(graph(update_order=(0,))))
    assert str(difference) == "update order of update 1: natively r/update#1, here none"


def test_other_minibatch_contents_are_a_difference():
    assert kinds(of_graph(graph()), of_graph(graph(rows=1))) == ["minibatch contents"]
    shuffled = graph(GROUPS)
    wrong = tuple(
        replace(c, arguments=arguments((Gather(tuple(Ref(f"r/infer@{g}") for g in (0, 1)), ((0, 1), (2, 3))),
                                        c.arguments.items[0].items[1]), {}))
        if c.node == "r/update"
        else c
        for c in shuffled.calls
    )  # fmt: skip
    assert kinds(of_graph(graph()), of_graph(replace(shuffled, calls=wrong))) == ["minibatch contents"]
    # the same provenance, and other row numbers when it ran
    other = Watch(graph())
    execute(graph(), ENTRIES, {**CONSTANTS, "rows 1": np.array([0, 3])}, ((X,), {}), watcher=other)
    assert kinds(seen(graph()), other.record) == ["minibatch contents"]


def test_bits_only_count_when_they_are_asked_for():
    rounded = {**ENTRIES, "r/infer": lambda x: x * (2 + 1e-15)}
    native, other = seen(graph()), seen(graph(GROUPS), rounded)
    assert kinds(native, other) == []
    assert kinds(native, other, bits=True) == ["minibatch bits"]


def test_another_version_of_the_policy_is_a_difference_for_its_samples():
    early = graph(GROUPS, reads=("r/sync", INITIAL))
    found = compare(of_graph(graph()), of_graph(early))
    assert {d.kind for d in found} == {"policy version"}
    assert [d.where for d in found] == ["r/infer, W, sample 1", "r/infer, W, sample 3"]
    assert str(found[0]).endswith("natively r/sync, here the initial one")


def test_what_is_seen_does_not_believe_the_graph():
    """A graph that says one thing and runs another: the record shows what happened."""
    made = graph(GROUPS)
    streams = (("r/sync",), *((c.id,) for c in made.calls if c.node != "r/sync"))
    # group 1 runs before the synchronisation, whatever its access says
    calls = tuple(replace(c, accesses=()) if c.id == "r/infer@1" else c for c in made.calls)
    early = replace(
        made, calls=calls, streams=streams, order_edges=(("r/infer@1", "r/sync"), ("r/update", "r/update#1"))
    )
    watch = Watch(early)
    told = made.by_id["r/infer@1"]

    class Told:
        """Passes the calls on as they were declared."""

        def started(self, call, args):
            watch.started(told if call.id == told.id else call, args)

        def ended(self, call):
            watch.ended(call)

    execute(early, ENTRIES, CONSTANTS, ((X,), {}), watcher=Told())
    assert {d.kind for d in compare(of_graph(graph()), watch.record)} == {"policy version"}


@pytest.mark.parametrize("role", ["update", ""])
def test_a_unit_that_holds_an_update_is_one(role):
    nodes = {"r": NodeSpec("r", None), "r/train": NodeSpec("r/train", "r"),
             "r/train/step": NodeSpec("r/train/step", "r/train", role=role)}  # fmt: skip
    call = Call("r/train", "r/train", "r/train", 0, arguments((), {}))
    made = CallGraph("r", nodes, {}, (call,), (("r/train",),), Pack("list", (), ()))
    assert len(of_graph(made).updates) == (role == "update")
