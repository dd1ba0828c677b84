"""From recordings to graphs: versions, what becomes one unit and why, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlprof.overlap.bindings import Const, Pack, Ref, View
from rlprof.overlap.build import call_graph
from rlprof.overlap.callgraph import INITIAL, Access
from rlprof.overlap.errors import RecordingError
from rlprof.overlap.specs import AccessSpec, Cell, Mode
from rlprof.overlap.versions import left_behind, native_versions, sees_natively
from tests.overlap.made import External, Script, record, use, value


def test_units_in_program_order_with_native_versions() -> None:
    def body(s: Script) -> None:
        with s.node("region", args=(External((0, 0)),)):
            first = s.call("reset", External((0, 0)), uses=use("refresh", "ENV"), batch_size=4)
            for _ in s.loop("chunk", 2):
                action = s.call("policy", first, uses=use("read", "W"))
                first = s.call("step", action, uses=use("update", "ENV"))
            s.returns(Pack("dict", ("obs",), (first,)))

    graph = call_graph(record(body, {"ENV": {}, "W": {}}))
    assert [c.id for c in graph.calls] == [
        "region/reset",
        "region/chunk[0]/policy",
        "region/chunk[0]/step",
        "region/chunk[1]/policy",
        "region/chunk[1]/step",
    ]
    assert graph.streams == (tuple(c.id for c in graph.calls),)
    assert [c.accesses[0] for c in graph.calls] == [
        Access(Cell("ENV"), "refresh", None),
        Access(Cell("W"), "read", INITIAL),
        Access(Cell("ENV"), "update", "region/reset"),
        Access(Cell("W"), "read", INITIAL),
        Access(Cell("ENV"), "update", "region/chunk[0]/step"),
    ]
    assert graph.output == Pack("dict", ("obs",), (value("region/chunk[1]/step"),))
    assert graph.by_id["region/reset"].batch_size == 4
    assert graph.by_id["region/chunk[1]/step"].indices == (("region/chunk", 1),)
    assert left_behind(graph) == {Cell("ENV"): "region/chunk[1]/step"}
    versions = native_versions(graph)[Cell("ENV")]
    assert [v.origin for v in versions] == [
        INITIAL, "region/reset", "region/chunk[0]/step", "region/chunk[1]/step",
    ]  # fmt: skip
    assert versions[0].seen_by == ()
    assert versions[1].seen_by == ("region/chunk[0]/step",)


def test_durations_are_medians_over_runs() -> None:
    def body(s: Script) -> None:
        with s.node("region"):
            s.call("a", lasts_ns=(10, 30, 20)[s.run])

    assert call_graph(record(body, runs=3)).by_id["region/a"].duration_s == 20e-9


def test_batch_sizes_that_differ_are_not_known() -> None:
    def body(s: Script) -> None:
        with s.node("region"):
            s.call("a", batch_size=4 + s.run)

    assert call_graph(record(body)).by_id["region/a"].batch_size is None


def test_a_use_of_the_whole_object_touches_all_its_cells() -> None:
    def body(s: Script) -> None:
        with s.node("region"):
            s.call("fill", uses=use("refresh", Cell("ENV", 1)))
            s.call("look", uses=use("read", "ENV"))
            s.call("named", uses=use("refresh", Cell("NAMED", "left")))
            s.call("all", uses=use("read", "NAMED"))

    graph = call_graph(record(body, {"ENV": {"partitions": 3}, "NAMED": {}}))
    look = graph.by_id["region/look"].accesses
    assert look == tuple(
        Access(Cell("ENV", k), "read", "region/fill" if k == 1 else INITIAL) for k in range(3)
    )
    assert graph.by_id["region/all"].accesses == (Access(Cell("NAMED", "left"), "read", "region/named"),)


def test_hidden_state_of_undeclared_nodes_is_a_state_of_their_component() -> None:
    def body(s: Script) -> None:
        with s.node("region"):
            s.call("a", uses=use("update", "component:sim"))

    assert call_graph(record(body)).states["component:sim"].component == "sim"


def glue(s: Script, made: bool) -> None:
    """rollout makes an array in its own code, between two calls."""
    with s.node("region"):
        with s.node("rollout"):
            first = s.call("reset", uses=use("refresh", "ENV"))
            s.call("step", s.unknown() if made else first, uses=use("update", "ENV"))
            s.returns(value("region/rollout/reset"))
        s.call("reward", value("region/rollout/reset"))


def test_a_node_whose_code_makes_a_value_that_a_call_needs_is_one_unit() -> None:
    graph = call_graph(record(lambda s: glue(s, True), {"ENV": {}}))
    assert [c.id for c in graph.calls] == ["region/rollout", "region/reward"]
    why = graph.opaque["region/rollout"]
    for part in ("argument 0", "region/rollout/step", "numpy float64 (3,)", "region/rollout/reset"):
        assert part in why
    assert graph.by_id["region/rollout"].accesses == (Access(Cell("ENV"), "refresh", None),)
    # the consumer's argument is now what the unit returns
    reward = graph.by_id["region/reward"].arguments.items[0]
    assert isinstance(reward, Pack)
    assert reward.items == (value("region/rollout"),)


def test_a_node_whose_code_only_routes_is_not() -> None:
    graph = call_graph(record(lambda s: glue(s, False), {"ENV": {}}))
    assert [c.id for c in graph.calls] == ["region/rollout/reset", "region/rollout/step", "region/reward"]
    assert graph.opaque == {}


def test_a_node_whose_code_makes_a_value_that_is_consumed_is_one_unit() -> None:
    def body(s: Script, consumed: bool) -> None:
        with s.node("region"):
            with s.node("rollout"):
                s.call("step")
                s.returns(Pack("tuple", (0, 1), (value("region/rollout", 0), value("region/rollout/step"))))
            s.call("reward", value("region/rollout", 0) if consumed else value("region/rollout/step"))

    graph = call_graph(record(lambda s: body(s, True)))
    assert [c.id for c in graph.calls] == ["region/rollout", "region/reward"]
    assert "region/reward" in graph.opaque["region/rollout"]
    assert call_graph(record(lambda s: body(s, False))).opaque == {}, "nobody needs what it made"


def test_folding_goes_on_until_nothing_is_unknown() -> None:
    """The unit inside needs a value that its parent's code made, so the parent is one unit too."""

    def body(s: Script) -> None:
        with s.node("region"):
            with s.node("outer"):
                fresh = s.unknown()
                with s.node("inner", args=(fresh,)):
                    s.call("leaf", s.unknown())
            s.call("after")

    graph = call_graph(record(body))
    assert [c.id for c in graph.calls] == ["region/outer", "region/after"]
    assert set(graph.opaque) == {"region/outer", "region/outer/inner"}


def test_the_innermost_node_is_folded_and_no_more() -> None:
    def body(s: Script) -> None:
        with s.node("region"), s.node("outer"):
            with s.node("inner"):
                s.call("leaf", s.unknown())
            s.call("beside")

    assert set(call_graph(record(body)).opaque) == {"region/outer/inner"}


@pytest.mark.parametrize("count", [{0: 2, 1: 3}, {0: 2, 1: 2}])
def test_a_while_loop_is_one_unit(count: dict[int, int]) -> None:
    """It calls differently often: from run to run, or from one call to the next."""

    def body(s: Script) -> None:
        with s.node("region"):
            for again in range(2):
                with s.node("until_done"):
                    for _ in range(count[s.run] + again):
                        s.call("step", uses=use("update", "ENV"))

    graph = call_graph(record(body, {"ENV": {}}))
    assert [c.id for c in graph.calls] == ["region/until_done", "region/until_done#1"]
    assert "step#2" in graph.opaque["region/until_done"]
    assert graph.calls[1].accesses == (Access(Cell("ENV"), "update", "region/until_done"),)


def test_a_loop_body_may_depend_on_its_index() -> None:
    def body(s: Script) -> None:
        with s.node("region"):
            for i in s.loop("epoch", 2):
                if i == 0:
                    s.call("warm_up")
                s.call("step")

    assert len(call_graph(record(body))) == 3


def test_a_loop_of_calls_may_depend_on_its_index_and_on_nothing_else() -> None:
    def body(s: Script, differs: bool) -> None:
        with s.node("region"):
            for i in s.loop("epoch", 2, spec={"marked": False}):
                if i == 0 or (differs and s.run == 1):
                    s.call("warm_up")
                s.call("step")

    assert len(call_graph(record(lambda s: body(s, False)))) == 3
    graph = call_graph(record(lambda s: body(s, True)))
    assert [c.id for c in graph.calls] == ["region/epoch[0]", "region/epoch[1]"]


def test_a_loop_that_ends_early_makes_its_parent_one_unit() -> None:
    def body(s: Script) -> None:
        with s.node("region"), s.node("rollout"):
            for _ in s.loop("chunk", 2, declared=3):
                s.call("step")

    graph = call_graph(record(body))
    assert [c.id for c in graph.calls] == ["region/rollout"]
    assert "count 3" in graph.opaque["region/rollout"]
    assert "2 iterations" in graph.opaque["region/rollout"]


def test_a_node_that_catches_an_exception_is_one_unit() -> None:
    def body(s: Script) -> None:
        with s.node("region"), s.node("tries"):
            s.call("fails", failed=True)
            s.call("repairs")

    graph = call_graph(record(body))
    assert [c.id for c in graph.calls] == ["region/tries"]
    assert "region/tries/fails raised" in graph.opaque["region/tries"]


def test_a_node_that_writes_state_in_its_own_code_is_one_unit() -> None:
    def body(s: Script, inner: bool, **fields: object) -> None:
        with s.node("region"), s.node("train", spec={"declared": True}, **fields):
            s.call("loss", uses=use("update" if inner else "read", "THETA"))

    declared = {"uses": use("update", "THETA")}
    assert "THETA" in call_graph(record(lambda s: body(s, False, **declared))).opaque["region/train"]
    assert call_graph(record(lambda s: body(s, True, **declared))).opaque == {}, "the call inside does it"
    seen = {"memory": use("update", "memory:0")}
    assert "memory:0" in call_graph(record(lambda s: body(s, True, **seen))).opaque["region/train"]


def test_values_that_come_from_elsewhere_from_run_to_run_are_chosen_by_the_code() -> None:
    def body(s: Script) -> None:
        with s.node("region"), s.node("best"):
            made = [s.call("a"), s.call("b")]
            s.call("use", made[s.run])

    why = call_graph(record(body)).opaque["region/best"]
    assert "region/best/a in run 0" in why
    assert "region/best/b in run 1" in why


def test_values_that_a_unit_hands_over_by_a_side_way_fold_what_is_around() -> None:
    def body(s: Script) -> None:
        with s.node("region"):
            with s.node("around"):
                with s.node("unit"):
                    s.call("step", s.unknown())
                s.call("use", value("region/around/unit/step"))
            s.call("after")

    graph = call_graph(record(body))
    assert [c.id for c in graph.calls] == ["region/around", "region/after"]
    assert "does not return" in graph.opaque["region/around"]


def test_values_that_come_into_a_unit_by_a_side_way_fold_what_is_around() -> None:
    def body(s: Script) -> None:
        with s.node("region"):
            with s.node("around"):
                obs = s.call("reset")
                with s.node("unit"):
                    s.call("step", s.unknown(), obs)
            s.call("after")

    graph = call_graph(record(body))
    assert [c.id for c in graph.calls] == ["region/around", "region/after"]
    assert "argument 1 of region/around/unit/step" in graph.opaque["region/around"]


def test_modes_of_a_unit_are_those_of_the_calls_inside() -> None:
    def body(s: Script) -> None:
        with s.node("region"), s.node("unit", uses=use("refresh", "A", "OWN")):
            s.call("x", s.unknown(), uses=(*use("read", "A", "B"), *use("refresh", "C")))
            s.call("y", uses=(*use("update", "B", "C"), *use("refresh", "D"), *use("read", "E")))

    call = call_graph(record(body)).by_id["region/unit"]
    assert {a.cell.state: a.mode for a in call.accesses} == {
        "A": "update",
        "B": "update",
        "C": "refresh",
        "D": "refresh",
        "E": "read",
        "OWN": "refresh",
    }


def test_a_unit_that_does_not_always_make_the_same_calls_refreshes_only_what_it_says() -> None:
    """Whether the reset inside comes first in every call is not known."""

    def body(s: Script, **fields: object) -> None:
        with s.node("region"), s.node("unit", **fields):
            s.call("reset", uses=use("refresh", "ENV"), spec={"accesses": (AccessSpec("ENV", "refresh"),)})
            for _ in range(1 + s.run):
                s.call("step", uses=use("update", "ENV"), spec={"accesses": (AccessSpec("ENV", "update"),)})

    def mode(**fields: object) -> str:
        return call_graph(record(lambda s: body(s, **fields), {"ENV": {}})).calls[0].accesses[0].mode

    assert mode() == "update"
    said = {"uses": use("refresh", "ENV"), "spec": {"accesses": (AccessSpec("ENV", "refresh"),)}}
    assert mode(**said) == "refresh"


def test_views_are_given_against_what_the_unit_returns() -> None:
    whole, half = View(4, (2, 3), (3, 1), "float64"), View(7, (3,), (1,), "float64")

    def body(s: Script, consumer: View | None) -> None:
        with s.node("region"):
            with s.node("unit"):
                s.call("step", s.unknown())
                s.returns(Pack("list", (0,), (Ref("region/unit/step", (), whole),)))
            s.call("use", Ref("region/unit/step", (), consumer))

    def bound(consumer: View | None) -> Ref:
        pack = call_graph(record(lambda s: body(s, consumer))).by_id["region/use"].arguments.items[0]
        assert isinstance(pack, Pack)
        (item,) = pack.items
        assert isinstance(item, Ref)
        return item

    assert bound(whole) == Ref("region/unit", (0,), None)
    assert bound(half) == Ref("region/unit", (0,), View(3, (3,), (1,), "float64", (2, 3), (3, 1)))
    for outside in (None, View(0, (2,), (1,), "float64"), View(8, (3,), (1,), "float64")):
        with pytest.raises(RecordingError, match="does not return"):
            bound(outside)


def test_partitions_named_only_in_one_run_widen_the_use_in_every_run() -> None:
    def body(s: Script) -> None:
        with s.node("region"):
            s.call("look", uses=use("read", Cell("ENV", s.run)))
            s.call("same", uses=use("refresh", Cell("ENV", 0)))

    graph = call_graph(record(body, {"ENV": {"partitions": 3}}))
    assert [a.cell.key for a in graph.calls[0].accesses] == [0, 1, 2]
    assert {a.mode for a in graph.calls[0].accesses} == {"read"}
    assert [a.cell.key for a in graph.calls[1].accesses] == [0]


def made(s: Script) -> None:
    with s.node("region"):
        s.call("a")
        s.call("b", s.unknown("torch float32 (8, 2)"))


def chosen(s: Script) -> None:
    with s.node("region"):
        s.call("a")
        s.call("b", Const(f"c{s.run}"))


def returned(s: Script) -> None:
    with s.node("region"):
        s.call("a")
        s.returns(Pack("dict", ("mean",), (value("region", "mean"),)))


def differs(s: Script) -> None:
    with s.node("region"):
        s.call("a")
        if s.run:
            s.call("b")


def raised(s: Script) -> None:
    with s.node("region", failed=s.run == 1):
        s.call("a")


def empty(s: Script) -> None:
    with s.node("region"):
        pass


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        (made, ["argument 0 of region/b", "torch float32 (8, 2)", "between region/a and region/b", "wrap"]),
        (chosen, ["argument 0 of region/b", "not the same in every run"]),
        (returned, ["'mean'", "region", "wrap"]),
        (differs, ["other calls", "run 0", "calls b"]),
        (raised, ["run 1", "raised"]),
        (empty, ["no node was called inside region"]),
    ],
)
def test_a_region_that_cannot_be_replaced_is_refused(body: object, parts: list[str]) -> None:
    with pytest.raises(RecordingError) as error:
        call_graph(record(body, {"ENV": {}}))  # type: ignore[arg-type]
    for part in parts:
        assert part in str(error.value)


def test_a_region_that_writes_state_in_its_own_code_is_refused() -> None:
    def body(s: Script) -> None:
        with s.node("region", spec={"declared": True}, uses=use("update", "ENV")):
            s.call("a")

    with pytest.raises(RecordingError, match="writes ENV in its own code"):
        call_graph(record(body, {"ENV": {}}))


def test_one_run_is_not_enough() -> None:
    with pytest.raises(RecordingError, match="two runs"):
        call_graph(record(made, runs=1))


MODES: tuple[Mode, ...] = ("read", "update", "refresh")


@given(
    st.lists(
        st.dictionaries(st.integers(0, 2), st.sampled_from(MODES), min_size=1, max_size=3),
        min_size=1,
        max_size=8,
    )
)
def test_versions_agree_with_running_the_accesses(script: list[dict[int, Mode]]) -> None:
    """Against a memory in which each write leaves its name."""

    def body(s: Script) -> None:
        with s.node("region"):
            for number, uses in enumerate(script):
                s.call(f"n{number}", uses=tuple((Cell("S", key), mode) for key, mode in uses.items()))

    graph = call_graph(record(body, {"S": {"partitions": 3}}))
    memory = {Cell("S", key): INITIAL for key in range(3)}
    for call in graph.calls:
        for access in call.accesses:
            expected = None if access.mode == "refresh" else memory[access.cell]
            assert access.sees == expected
            assert sees_natively(graph)[call.id, access.cell] == expected
            if access.mode != "read":
                memory[access.cell] = call.id
    written = {cell: name for cell, name in memory.items() if name != INITIAL}
    assert left_behind(graph) == written
