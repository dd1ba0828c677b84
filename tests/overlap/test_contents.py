"""What objects hold: every change is seen, everything is put back, every number can be changed."""

from __future__ import annotations

import collections
import random
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlprof.overlap.contents import Contents
from rlprof.overlap.perturbation import perturb


class Slotted:
    __slots__ = ("__hidden", "value")

    def __init__(self) -> None:
        self.value, self.__hidden = 1.5, [1, 2]


class Plain:
    def __init__(self) -> None:
        self.array = np.arange(6.0).reshape(2, 3)
        self.number, self.flag, self.text, self.nothing = 3, True, "a", None
        self.nested: Any = {"a": [np.zeros(2), (np.ones(1), 4)], 3: {"x"}}
        self.draw = np.random.default_rng(0)
        self.old = random.Random(1)
        self.legacy = np.random.RandomState(2)
        self.slotted = Slotted()
        self.queue = collections.deque([1, 2], maxlen=5)
        self.lock = threading.Lock()
        self.raw = bytearray(b"abc")


def digests(contents: Contents) -> dict[str, bytes]:
    return {path: place.digest() for path, place in contents.places.items()}


CHANGES = {
    "array in place": lambda o: o.array.__setitem__((0, 0), 9),
    "array replaced": lambda o: setattr(o, "array", np.zeros((2, 3))),
    "array of another type": lambda o: setattr(o, "array", o.array.astype(np.float32)),
    "number": lambda o: setattr(o, "number", 4),
    "number of another type": lambda o: setattr(o, "number", 3.0),
    "text": lambda o: setattr(o, "text", "b"),
    "nothing to something": lambda o: setattr(o, "nothing", 0),
    "inner array": lambda o: o.nested["a"][0].__setitem__(1, 1),
    "inner array in a tuple": lambda o: o.nested["a"][1][0].__setitem__(0, 2),
    "set": lambda o: o.nested[3].add("y"),
    "key": lambda o: o.nested.__setitem__("b", 1),
    "removed key": lambda o: o.nested.pop(3),
    "list": lambda o: o.nested["a"].append(1),
    "generator": lambda o: o.draw.normal(),
    "random": lambda o: o.old.random(),
    "legacy random": lambda o: o.legacy.rand(),
    "slot": lambda o: setattr(o.slotted, "value", 2.5),
    "hidden slot": lambda o: o.slotted._Slotted__hidden.append(3),
    "queue": lambda o: o.queue.append(3),
    "queue item": lambda o: o.queue.__setitem__(0, 3),
    "new attribute": lambda o: setattr(o, "fresh", 1),
    "removed attribute": lambda o: delattr(o, "text"),
    "bytes": lambda o: o.raw.__setitem__(0, 1),
    "negative zero": lambda o: o.array.__setitem__((0, 0), -0.0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_is_seen_and_put_back(name: str) -> None:
    thing = Plain()
    before = Contents({"X": thing})
    assert not before.sealed
    seen = digests(before)
    objects = (thing.array, thing.nested, thing.nested["a"], thing.nested[3], thing.queue)
    CHANGES[name](thing)
    assert digests(Contents({"X": thing})) != seen
    before.restore()
    assert digests(Contents({"X": thing})) == seen
    after = (thing.array, thing.nested, thing.nested["a"], thing.nested[3], thing.queue)
    assert all(a is b for a, b in zip(objects, after, strict=True)), "in the same objects"


def test_every_number_changes_when_it_is_perturbed() -> None:
    thing = Plain()
    contents = Contents({"X": thing})
    draw = np.random.default_rng(0)
    numbers = {p for p, place in contents.places.items() if perturb(place, draw)}
    after = Contents({"X": thing})
    assert numbers == {
        p for p in contents.places if contents.places[p].kind in ("array", "number", "random")
    } - {
        "X.nested['a'][1][1]"  # a number in a tuple can only be replaced with the tuple
    }
    contents.restore()
    before = digests(Contents({"X": thing}))
    for path in numbers:
        assert after.places[path].kind == contents.places[path].kind
    again = Contents({"X": thing})
    for path in numbers:
        perturb(again.places[path], draw)
    changed = digests(Contents({"X": thing}))
    assert {p for p in changed if changed[p] != before[p]} == numbers


@given(
    st.sampled_from(["float64", "float32", "float16", "int64", "int8", "uint8", "bool", "complex128"]),
    st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=4),
)
def test_all_elements_change(dtype: str, values: list[float]) -> None:
    array = (
        np.abs(np.asarray(values)).astype(dtype)
        if dtype[0] == "u"
        else np.asarray(values).clip(-90, 90).astype(dtype)
    )
    before = array.copy()
    place = Contents({"X": array}).places["X"]
    assert perturb(place, np.random.default_rng(0))
    assert array.dtype == dtype
    assert (array != before).all()
    assert np.isfinite(array).all()


def test_keys_that_are_objects_are_told_apart() -> None:
    table = {
        Holder.__new__(Holder): np.zeros(1),
        Holder.__new__(Holder): np.zeros(1),
        (1, 2): 3,
    }  # by identity
    before = digests(Contents({"X": table}))
    next(iter(table.values()))[0] = 1
    now = digests(Contents({"X": table}))
    assert [path for path in now if now[path] != before[path]] == ["X[Holder 0]"]


def test_arrays_without_an_axis_change_too() -> None:
    array = np.array(1.0)
    assert perturb(Contents({"X": array}).places["X"], np.random.default_rng(0))
    assert array != 1.0


def test_a_row_changes_alone() -> None:
    array = np.zeros((3, 2))
    place = Contents({"X": array}).places["X"]
    perturb(place, np.random.default_rng(0), row=1)
    assert (array[1] != 0).all()
    assert not array[[0, 2]].any()
    assert place.digest(0) == place.digest(2) != place.digest(1)


def test_what_belongs_to_another_root_is_left_to_it() -> None:
    owner, other = Plain(), Plain()
    owner.nested = other
    found = Contents({"A": owner, "B": other}).places
    assert "B.array" in found
    assert not [path for path in found if path.startswith("A.nested")]


def test_cycles_end() -> None:
    thing = Plain()
    thing.nested = thing
    assert Contents({"X": thing}).places


@dataclass(eq=False)
class Holder:
    inner: Any = field(default=None)


@pytest.mark.parametrize("make", [lambda: iter([1]), lambda: (x for x in "ab"), lambda: memoryview(b"a")])
def test_what_cannot_be_looked_into_is_named(make: Any) -> None:
    found = Contents({"X": Holder([make()])})
    assert list(found.sealed) == ["X.inner[0]"]


def test_what_reaches_out_of_the_process_is_sealed() -> None:
    import multiprocessing

    a, b = multiprocessing.Pipe()
    try:
        assert Contents({"X": Holder(a)}).sealed == {"X.inner": "Connection"}
    finally:
        a.close()
        b.close()


def test_torch_modules_and_optimisers() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    roots = {"MODEL": model, "OPT": optimiser, "G": torch.Generator().manual_seed(0)}

    def step() -> None:
        optimiser.zero_grad()
        model(torch.arange(6.0).reshape(2, 3)).square().sum().backward()
        optimiser.step()

    step()
    before = Contents(roots)
    assert not before.sealed
    seen = digests(before)
    assert {"MODEL._modules['0']._parameters['weight']"} <= set(seen)
    step()
    torch.rand(1, generator=roots["G"])
    changed = {p for p, d in digests(Contents(roots)).items() if seen.get(p) != d}
    assert {
        "MODEL._modules['0']._parameters['weight']",
        "MODEL._modules['1']._buffers['running_mean']",
    } <= changed
    assert any(p.startswith("OPT.state") for p in changed)
    assert any(p.startswith("G") for p in changed)
    version = model[0].weight._version
    before.restore()
    assert model[0].weight._version == version
    assert digests(Contents(roots)) == seen
    assert all(perturb(p, np.random.default_rng(0)) for p in Contents({"W": model[0].weight}).places.values())
    assert (model[0].weight != before.places["MODEL._modules['0']._parameters['weight']"].value).sum() == 0
    assert torch.isfinite(model[0].weight).all()
    scalar = torch.tensor(1.0)
    assert perturb(Contents({"X": scalar}).places["X"], np.random.default_rng(0))
    assert scalar != 1.0
