"""The check knows nothing of transformations: every graph that was spoilt by hand is refused by its rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rlprof.overlap.bindings import Binding, Const, Gather, Ref, Slice, arguments
from rlprof.overlap.callgraph import INITIAL, Call, CallGraph
from rlprof.overlap.legality import Refusal, check
from rlprof.overlap.transforms import interleave, split_spatial, split_temporal
from tests.overlap.graphs import Loop, Node, graph_of, rollout, state

CHUNK = "it/epoch/chunk"


def program() -> CallGraph:
    """Everything that rules speak of: weights, synchronisation, updates, copies, partitions."""
    return graph_of(
        (
            Node("sync", "policy", (), {"THETA": "read", "W": "refresh"}, mixes=True, role="sync"),
            Loop(
                "epoch",
                2,
                (
                    Node("reset", "simulator", (), {"ENV": "refresh"}, out="obs", unit=2),
                    Loop(
                        "chunk",
                        2,
                        (
                            Node("policy", "policy", ("obs",), {"W": "read"}),
                            Node("step", "simulator", ("policy",), {"ENV": "update"}, out="obs"),
                        ),
                    ),
                    Node("log", "logger", ("obs",), {"LOG": "update"}, mixes=True),
                ),
            ),
            Node("advantage", "learner", ("obs",), mixes=True),
            Loop(
                "mb",
                2,
                (Node("update", "learner", ("advantage",), {"THETA": "update"}, mixes=True, role="update"),),
            ),
            Node("eval", "policy", ("x",), {"W": "read"}),
        ),
        (state("ENV", batch=4, copies=2), state("W", weights=True), state("THETA"), state("LOG")),
    )


def halves() -> CallGraph:
    return interleave(split_spatial(program(), CHUNK), CHUNK)


def epochs() -> CallGraph:
    """The same without the log: its epochs are free."""
    native = program()
    kept = tuple(c for c in native.calls if not c.node.endswith("log"))
    return replace(native, calls=kept, streams=(tuple(c.id for c in kept),), output=Const("none"))


def with_call(graph: CallGraph, name: str, **changes: object) -> CallGraph:
    calls = tuple(replace(c, **changes) if c.id == name else c for c in graph.calls)  # type: ignore[arg-type]
    return replace(graph, calls=calls)


def with_argument(graph: CallGraph, name: str, change: Callable[[Binding], Binding]) -> CallGraph:
    (args, _) = graph.by_id[name].arguments.items
    return with_call(graph, name, arguments=arguments((change(args.items[0]),), {}))  # type: ignore[union-attr]


def with_access(graph: CallGraph, name: str, cell: str, **changes: object) -> CallGraph:
    call = graph.by_id[name]
    assert any(str(a.cell) == cell for a in call.accesses)
    made = tuple(a._replace(**changes) if str(a.cell) == cell else a for a in call.accesses)  # type: ignore[arg-type]
    return with_call(graph, name, accesses=made)


def in_order(graph: CallGraph, *names: str) -> CallGraph:
    """Put the calls into one stream, these ones in this order at the place of the first."""
    order = [c.id for c in graph.calls if c.id not in names]
    place = min(i for i, c in enumerate(graph.calls) if c.id in names)
    return replace(graph, streams=((*order[:place], *names, *order[place:]),), order_edges=())


def without(graph: CallGraph, name: str) -> CallGraph:
    calls = tuple(c for c in graph.calls if c.id != name)
    streams = tuple(tuple(n for n in s if n != name) for s in graph.streams)
    edges = tuple(e for e in graph.order_edges if name not in e)
    return replace(graph, calls=calls, streams=streams, order_edges=edges)


def rules(native: CallGraph, graph: CallGraph) -> dict[str, Refusal]:
    found: dict[str, Refusal] = {}
    for refusal in check(native, graph):
        found.setdefault(refusal.rule, refusal)
    return found


def test_legal_graphs_pass() -> None:
    native = program()
    assert check(native, native) == ()
    assert check(native, split_spatial(native, CHUNK)) == ()
    assert check(native, halves()) == ()
    free = epochs()
    assert check(free, interleave(split_temporal(free, "it/epoch"), "it/epoch")) == ()


STEP = "it/epoch[0]/chunk[1]/step"
POLICY = "it/epoch[0]/chunk[1]/policy"
UPDATE = "it/mb[1]/update"


def swapped(binding: Binding) -> Binding:
    assert isinstance(binding, Gather)
    return replace(binding, samples=tuple(reversed(binding.samples)))


SEEDED: list[tuple[str, str, str, Callable[[], CallGraph]]] = [
    # L1: each call and sample once
    ("a call is dropped", "L1", "eval does not run", lambda: without(program(), "it/eval")),
    (
        "a part is dropped",
        "L1",
        "sample 2 of it/epoch[0]/chunk[1]/step runs 0",
        lambda: without(halves(), f"{STEP}@1"),
    ),
    (
        "a call runs twice",
        "L1",
        "runs whole, and again",
        lambda: twice(program(), "it/eval"),
    ),
    (
        "samples overlap",
        "L1",
        "sample 1 of",
        lambda: with_call(halves(), f"{STEP}@1", samples=(1, 2, 3)),
    ),
    (
        "a call that mixes samples is cut",
        "L1",
        "is cut, and may mix samples",
        lambda: with_call(program(), "it/advantage", samples=(0, 1, 2, 3)),
    ),
    (
        "a unit is cut",
        "L1",
        "inside a unit of 2",
        lambda: cut_reset(program()),
    ),
    ("another region", "L1", "not of", lambda: replace(program(), region="it/epoch")),
    (
        "another node",
        "L1",
        "another node",
        lambda: with_call(program(), "it/eval", node="it/epoch/chunk/policy"),
    ),
    # L2: native values
    (
        "an input is the one before",
        "L2",
        "does not get its native argument",
        lambda: with_argument(program(), POLICY, lambda _: Ref("it/epoch[0]/reset")),
    ),
    (
        "an input is the other half",
        "L2",
        "does not get its native argument",
        lambda: with_argument(halves(), f"{POLICY}@0", lambda _: Ref("it/epoch[0]/chunk[0]/step@1")),
    ),
    (
        "the whole batch goes to a half",
        "L2",
        "does not get its native argument",
        lambda: with_argument(
            halves(), "it/epoch[0]/chunk[0]/policy@0", lambda b: b.of if isinstance(b, Slice) else b
        ),
    ),
    (
        "samples in the wrong order",
        "L2",
        "it/advantage does not get its native argument",
        lambda: with_argument(halves(), "it/advantage", swapped),
    ),
    (
        "a slice along another axis",
        "L2",
        "does not get its native argument",
        lambda: with_argument(
            halves(),
            "it/epoch[0]/chunk[0]/policy@0",
            lambda b: replace(b, axis=1),  # type: ignore[call-arg]
        ),
    ),
    (
        "an input of nobody",
        "L2",
        "no call of the graph",
        lambda: with_argument(program(), POLICY, lambda _: Ref("it/nobody")),
    ),
    (
        "a stale version",
        "L2",
        "sees LOG as the region's start left it",
        lambda: with_access(program(), "it/epoch[1]/log", "LOG", sees=INITIAL),
    ),
    (
        "a version of the future",
        "L2",
        "sees W as",
        lambda: with_access(program(), "it/eval", "W", sees="it/mb[1]/update"),
    ),
    (
        "an update that says it refreshes",
        "L2",
        "uses ENV[0] by refresh, natively by update",
        lambda: with_access(program(), STEP, "ENV[0]", mode="refresh", sees=None),
    ),
    (
        "a half that touches the other's cells",
        "L2",
        "other than natively",
        lambda: with_call(halves(), f"{STEP}@0", accesses=program().by_id[STEP].accesses),
    ),
    ("an access is forgotten", "L2", "does not use W", lambda: with_call(program(), "it/eval", accesses=())),
    (
        "state ends in a spare copy",
        "L2",
        "ends in copy 1",
        lambda: in_copy(epochs(), "it/epoch[1]/", 1),
    ),
    (
        "a version is looked for in the wrong copy",
        "L2",
        "it lies in copy 0",
        lambda: with_all_accesses(program(), STEP, 1),
    ),
    (
        "the result is another one",
        "L2",
        "does not return its native result",
        lambda: replace(program(), output=Ref("it/eval")),
    ),
    (
        "a consumer runs before its producer",
        "L2",
        "whose output it needs",
        lambda: in_order(program(), STEP, POLICY),
    ),
    (
        "streams and dependencies close a circle",
        "L2",
        "wait for each other",
        lambda: replace(crosswise(), streams=(("it/c", "it/b"), ("it/d", "it/a"))),
    ),
    # L3: writes keep their order
    (
        "two writes are swapped",
        "L3",
        "writes LOG before",
        lambda: in_order(program(), "it/epoch[1]/log", "it/epoch[0]/log"),
    ),
    ("native order is rewritten", "L3", "another place", lambda: with_call(program(), "it/eval", order=0)),
    # L4: storage
    (
        "a version is overwritten before it is read",
        "L4",
        "has still to read",
        lambda: moved_after(readers(), "it/look", "it/again"),
    ),
    (
        "a copy that is not declared",
        "L4",
        "of which 2 are declared",
        lambda: in_copy(epochs(), "it/epoch[0]/", 2),
    ),
    (
        "copies are declared by the graph itself",
        "L4",
        "not declared as natively",
        lambda: replace(
            program(), states={**program().states, "ENV": replace(program().states["ENV"], copies=9)}
        ),
    ),
    # L5: exclusive things
    (
        "a node leaves its worker",
        "L5",
        "another component",
        lambda: with_node(program(), f"{CHUNK}/step", component="elsewhere"),
    ),
    (
        "a buffer is forgotten",
        "L5",
        "another resources",
        lambda: with_node(program(), f"{CHUNK}/step", resources=("graph",)),
    ),
    # L6: boundaries
    (
        "an update crosses another",
        "L6",
        "crosses",
        lambda: in_order(program(), UPDATE, "it/mb[0]/update"),
    ),
    (
        "a reader crosses the synchronisation",
        "L6",
        "crosses",
        lambda: in_order(program(), "it/eval", "it/sync"),
    ),
    (
        "an update loses its role",
        "L6",
        "another role",
        lambda: with_node(program(), "it/mb/update", role=""),
    ),
    (
        "nothing holds an update back",
        "L6",
        "nothing makes it/sync2 wait for it/train",
        lambda: replace(critic(), streams=tuple((c.id,) for c in critic().calls)),
    ),
]


def twice(graph: CallGraph, name: str) -> CallGraph:
    call = graph.by_id[name]
    again = replace(call, id=f"{name}@9", samples=(0, 1, 2, 3), group=9)
    return replace(graph, calls=(*graph.calls, again), streams=(*graph.streams, (again.id,)))


def cut_reset(graph: CallGraph) -> CallGraph:
    name = "it/epoch[0]/reset"
    call = graph.by_id[name]

    def part(group: int, samples: tuple[int, ...]) -> Call:
        accesses = tuple(a for a in call.accesses if a.cell.key in samples)
        return replace(call, id=f"{name}@{group}", samples=samples, group=group, accesses=accesses)

    parts = (part(0, (0,)), part(1, (1, 2, 3)))
    calls = (*(c for c in graph.calls if c.id != name), *parts)
    streams = tuple(
        n for s in graph.streams for old in s for n in ((p.id for p in parts) if old == name else (old,))
    )
    return replace(graph, calls=calls, streams=(streams,))


def with_node(graph: CallGraph, path: str, **changes: object) -> CallGraph:
    return replace(graph, nodes={**graph.nodes, path: replace(graph.nodes[path], **changes)})  # type: ignore[arg-type]


def in_copy(graph: CallGraph, prefix: str, copy: int) -> CallGraph:
    """All ENV of the calls that start so in another copy."""
    for call in graph.calls:
        if call.id.startswith(prefix):
            graph = with_all_accesses(graph, call.id, copy)
    return graph


def with_all_accesses(graph: CallGraph, name: str, copy: int) -> CallGraph:
    made = tuple(a._replace(copy=copy) if a.cell.state == "ENV" else a for a in graph.by_id[name].accesses)
    return with_call(graph, name, accesses=made)


def readers() -> CallGraph:
    return graph_of(
        (
            Node("fill", "a", (), {"BOX": "refresh"}),
            Node("look", "b", (), {"BOX": "read"}),
            Node("again", "a", (), {"BOX": "refresh"}, mixes=True),
        ),
        (state("BOX"),),
    )


def moved_after(graph: CallGraph, name: str, other: str) -> CallGraph:
    return in_order(graph, other, name)


def critic() -> CallGraph:
    """An update of something that is not published: no state orders it before the next synchronisation."""
    return graph_of(
        (
            Node("sync1", "policy", (), {"W": "refresh"}, mixes=True, role="sync"),
            Node("play", "policy", (), {"W": "read"}),
            Node("train", "critic", (), {"V": "update"}, mixes=True, role="update"),
            Node("sync2", "policy", (), {"W": "refresh"}, mixes=True, role="sync"),
        ),
        (state("W", weights=True), state("V")),
    )


def crosswise() -> CallGraph:
    return graph_of((Node("a"), Node("b"), Node("c", reads=("a",)), Node("d", reads=("b",))), ())


def native_of(graph: CallGraph) -> CallGraph:
    """The native graph that a seeded graph belongs to: at most one call is missing."""
    there = {c.origin for c in graph.calls}
    fit = [n for n in (program(), epochs(), readers(), critic(), crosswise()) if there <= set(n.by_id)]
    return min(fit, key=len)


@pytest.mark.parametrize(("what", "rule", "reason", "make"), SEEDED, ids=[s[0] for s in SEEDED])
def test_what_was_seeded_is_refused_by_its_rule(
    what: str, rule: str, reason: str, make: Callable[[], CallGraph]
) -> None:
    spoilt = make()
    found = check(native_of(spoilt), spoilt)
    assert any(r.rule == rule and reason in r.reason for r in found), [str(r) for r in found]
    assert all("\n" not in str(r) for r in found)


def test_order_that_goes_round_by_itself_is_refused() -> None:
    graph = halves()
    a, b = graph.streams[-2][0], graph.streams[-2][-1]
    assert rules(program(), replace(graph, order_edges=((b, a),)))["order"].calls[0] in graph.by_id


def test_iterations_of_the_root_loop_do_not_mix() -> None:
    """A region around several training iterations: readers of the first end before updates of the second."""
    native = graph_of(
        (
            Loop(
                "train",
                2,
                (Node("play", "policy", (), {"W": "read"}), Node("log", "logger", ("play",), mixes=True)),
            ),
        ),
        (state("W", weights=True),),
    )
    path = "it/train"
    native = with_node(native, path, loop_level=0)
    assert check(native, native) == ()
    apart = replace(native, streams=tuple((c.id,) for c in native.calls))
    refusal = rules(native, apart)["L6"]
    assert refusal.calls == ("it/train[0]/play", "it/train[1]/play")
    ordered = replace(apart, order_edges=(refusal.calls,))  # type: ignore[arg-type]
    assert check(native, ordered) == ()


def test_memory_beyond_the_limit_is_refused_and_unknown_is_not_enough() -> None:
    native = rollout(batch=4)
    graph = interleave(split_spatial(native, CHUNK), CHUNK)
    sizes = {call.node: 100.0 for call in native.calls}
    assert check(native, native, memory_bytes=100, call_bytes=sizes) == ()
    assert check(native, graph, memory_bytes=1000, call_bytes=sizes) == ()
    (refusal,) = check(native, graph, memory_bytes=99, call_bytes=sizes)
    assert refusal.rule == "L7"
    (refusal,) = check(native, graph, memory_bytes=1e9)
    assert (refusal.rule, "not known" in refusal.reason) == ("L7", True)


def test_a_transformed_graph_can_stand_for_the_native_one() -> None:
    native = rollout()
    parts = split_spatial(native, CHUNK)
    assert check(parts, native) == ()
    assert check(parts, interleave(parts, CHUNK)) == ()
