"""A snapshot that is looked at again and again sees what one that is made anew would see."""

from __future__ import annotations

import collections
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.overlap.snapshots import Snapshot


class Box:
    """Attributes; equal to itself alone."""

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)


def world() -> Any:
    """Objects of every kind, some held twice, some holding each other."""
    shared = Box(x=1, rows=np.zeros(3))
    root: Any = Box(
        count=0,
        text="a",
        items=[1, 2],
        table={"a": 1, "b": [0.5]},
        frames=collections.deque([np.zeros(2)], maxlen=2),
        names={"a"},
        ordered=collections.OrderedDict(),
        shared=shared,
        child=Box(shared=shared, back=None, rows=np.zeros(4)),
        draw=np.random.default_rng(0),
        raw=bytearray(b"abc"),
        dates=np.zeros(2, "M8[s]"),
    )
    root.child.back = root
    return root


def write(rows: Any) -> None:
    rows.flat[0] += 1


#: Each changes something that a snapshot looks at.
CHANGES: dict[str, Any] = {
    "count": lambda w: setattr(w, "count", w.count + 1),
    "new attribute": lambda w: setattr(w, f"more_{w.count}_{len(vars(w))}", Box(x=[])),
    "another array": lambda w: setattr(w.child, "rows", np.zeros(4)),
    "another object": lambda w: setattr(w, "child", Box(shared=w.shared, rows=np.ones(2), back=w)),
    "a part from below": lambda w: setattr(w, f"up_{len(vars(w))}", w.child),
    "item": lambda w: w.items.append(len(w.items)),
    "list in a list": lambda w: w.items.append([]),
    "in the list": lambda w: w.table["b"].append(0.5),
    "key": lambda w: w.table.update({len(w.table): {}}),
    "frame": lambda w: w.frames.append(np.ones(2)),
    "name": lambda w: w.names.add(str(len(w.names))),
    "first of an empty dict": lambda w: w.ordered.update({f"{len(w.ordered)}": [1]}),
    "shared": lambda w: setattr(w.shared, "x", w.shared.x + 1),
    "write": lambda w: write(w.shared.rows),
    "draw": lambda w: w.draw.random(),
    "bytes": lambda w: w.raw.__setitem__(0, (w.raw[0] + 1) % 256),
    "dates": lambda w: w.dates.__setitem__(0, w.dates[0] + 1),
    "all attributes": lambda w: w.child.__dict__.update({"rows": np.ones(2)}),
    "another __dict__": lambda w: setattr(w.shared, "__dict__", {"x": w.shared.x + 1, "rows": w.shared.rows}),
}


def ids(snapshot: Snapshot) -> set[int]:
    return set(snapshot.parts)


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_seen_once(change: str) -> None:
    root = world()
    snapshot = Snapshot({"root": root})
    for _ in range(3):  # the first time it is found in what has not changed yet
        assert not snapshot.renew()
        CHANGES[change](root)
        assert snapshot.renew()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([*CHANGES, "look"]), max_size=25))
def test_what_is_looked_at_is_what_a_new_snapshot_would_find(changes: list[str]) -> None:
    root = world()
    snapshot = Snapshot({"root": root})
    for change in changes:
        if change == "look":
            snapshot.renew()
        else:
            CHANGES[change](root)
    snapshot.renew()
    assert ids(snapshot) == ids(Snapshot({"root": root}))
    assert not snapshot.renew()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([*CHANGES, "look"]), max_size=25))
def test_names_are_told_whatever_was_changed_before(changes: list[str]) -> None:
    root = world()
    snapshot = Snapshot({"root": root})
    for change in changes:
        if change == "look":
            snapshot.renew()
        else:
            CHANGES[change](root)
    snapshot.renew()
    root.count, root.table["a"] = -1, object()
    assert sorted(snapshot.changed()) == [("root", "root.count"), ("root", "root.table['a']")]


def test_equal_values_that_are_set_anew_are_no_change() -> None:
    root: Any = Box(number=1000, rate=float("nan"), items=[1])
    snapshot = Snapshot({"root": root})
    for _ in range(2):
        root.number, root.rate, root.items = 500 + 500, float("nan"), [1]
        assert snapshot.changed() == []
        root.number = 0
        assert snapshot.changed() == [("root", "root.number")]
        root.number = 1000
        snapshot.renew()


def test_what_is_no_longer_held_is_not_looked_at() -> None:
    old: Any = Box(x=1, items=[1])
    root: Any = Box(held=old)
    snapshot = Snapshot({"root": root})
    root.held = Box(x=1, items=[1])
    assert snapshot.renew()
    old.x, old.items = 2, [2]
    assert not snapshot.renew()
    root.held.items.append(2)
    assert snapshot.changed() == [("root", "root.held.items")]


def test_what_holds_itself_and_is_let_go_is_not_looked_at() -> None:
    ring: Any = Box(x=1)
    ring.other = Box(ring=ring)
    root: Any = Box(held=ring)
    snapshot = Snapshot({"root": root})
    root.held = None
    assert snapshot.renew()
    ring.x = 2
    assert not snapshot.renew()


def test_more_than_is_looked_at_changes_what_is_looked_at() -> None:
    root: Any = Box(all=[Box(x=n) for n in range(250)])
    snapshot = Snapshot({"root": root})
    root.all[:100] = []
    assert snapshot.renew()
    root.all[-1].x = -1
    assert snapshot.renew()


def test_an_object_with_another_dict_is_looked_at() -> None:
    root: Any = Box(child=random.Random(0), own=Box(x=1))
    snapshot = Snapshot({"root": root})
    root.own.__dict__ = {"x": 1}
    assert not snapshot.renew(), "it holds the same"
    root.own.x = 2
    assert snapshot.changed() == [("root", "root.own.x")]


def test_a_container_that_compares_in_its_own_way_is_looked_into() -> None:
    root: Any = Box(counter=collections.Counter())
    snapshot = Snapshot({"root": root})
    root.counter["a"] = 0  # equal to none, says Counter
    assert snapshot.renew()
