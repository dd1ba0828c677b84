"""Nodes in place of attributes, and putting them back."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from rlprof.overlap import ExecutionNode, Program, State, current, reads, wrap
from rlprof.overlap.errors import WrapError


class Model:
    def __init__(self, name: str = "m") -> None:
        self.name = name
        self.given = lambda x: x * 2

    def infer(self, x: int) -> tuple[str, int]:
        """Infer."""
        return self.name, x

    async def ainfer(self, x: int) -> int:
        return x

    @staticmethod
    def scale(x: int) -> int:
        return 10 * x

    @classmethod
    def make(cls, x: int) -> tuple[str, int]:
        return cls.__name__, x

    @property
    def size(self) -> int:
        return 1


class Slotted:
    __slots__ = ("x",)

    def go(self) -> int:
        return 1


def call_all(model: Any) -> list[Any]:
    return [model.infer(1), model.scale(2), model.make(3), model.given(4), asyncio.run(model.ainfer(5))]


@pytest.mark.parametrize("on_class", [False, True])
def test_wrapped_attributes_do_the_same_and_come_back(on_class: bool) -> None:
    model = Model()
    native = call_all(model)
    before = (dict(vars(model)), dict(vars(Model)))
    program = Program()
    root = ExecutionNode(program, lambda: call_all(model), name="main")
    holder = Model if on_class else model
    nodes = [wrap(holder, name, root) for name in ("infer", "scale", "make", "ainfer")]
    nodes.append(wrap(model, "given", root))
    seen: list[str] = []
    program.add_hook(before=lambda context, args, kwargs: seen.append(context.label))
    assert root() == native
    assert seen == ["main", *(f"main/{n}" for n in ("infer", "scale", "make", "given", "ainfer"))]
    assert inspect.iscoroutinefunction(model.ainfer)
    assert model.infer.__doc__ == "Infer."
    program.unwrap()
    assert (dict(vars(model)), dict(vars(Model))) == before
    assert call_all(model) == native
    assert len(seen) == 6


def test_other_objects_of_the_class_are_left_alone() -> None:
    model, other = Model(), Model("other")
    program = Program()
    root = ExecutionNode(program, lambda: None, name="main")
    wrap(model, "infer", root)
    assert "infer" not in vars(other)
    program.unwrap()
    assert "infer" not in vars(model)


def test_a_method_of_a_class_gets_self() -> None:
    program = Program()
    root = ExecutionNode(program, lambda m: m.infer(1), name="main")
    node = wrap(Model, "infer", root)
    try:
        assert root(Model("a")) == ("a", 1)
        assert node.parameters == ("self", "x")
    finally:
        program.unwrap()


def test_a_subclass_gets_no_attribute_of_its_own() -> None:
    class Child(Model):
        pass

    program = Program()
    root = ExecutionNode(program, lambda: Child("c").infer(1), name="main")
    wrap(Child, "infer", root)
    assert root() == ("c", 1)
    assert "infer" in vars(Child)
    program.unwrap()
    assert "infer" not in vars(Child)


def test_functions_of_modules() -> None:
    module = types.ModuleType("some_module")
    exec("def helper(x): return x + 1\ndef main(): return helper(1)", module.__dict__)
    sys.modules["some_module"] = module
    try:
        native = module.helper
        program = Program()
        root = wrap(module, "main", program)
        wrap(module, "helper", root, stateless=True)
        program.install("main/helper", lambda x: -x)
        assert module.main() == -1
        program.unwrap()
        assert module.helper is native
        assert module.main() == 2
    finally:
        del sys.modules["some_module"]


def test_wrapping_is_undone_in_reverse() -> None:
    model = Model()
    program = Program()
    root = wrap(model, "infer", program)
    with pytest.raises(WrapError, match=r"Model\.infer is wrapped already"):
        wrap(model, "infer", root)
    outer = model.infer

    def patched(x: int) -> Any:
        return outer(x + 1)

    model.infer = patched  # type: ignore[method-assign]
    wrap(model, "infer", root, name="patched")
    program.unwrap()
    assert "infer" not in vars(model)


def test_a_wrap_that_fails_changes_nothing() -> None:
    model = Model()
    before = dict(vars(model))
    program = Program()
    root = ExecutionNode(program, lambda: None, name="main")
    with pytest.raises(WrapError, match="which is not known"):
        wrap(model, "infer", root, reads("NOTHING"))
    with pytest.raises(WrapError, match="no attribute 'other'"):
        wrap(model, "other", root)
    with pytest.raises(WrapError, match=r"Slotted\.go cannot be replaced"):
        wrap(Slotted(), "go", root)
    with pytest.raises(WrapError, match=r"Model\.size cannot be replaced|entry of node main/size"):
        wrap(model, "size", root)
    assert dict(vars(model)) == before
    assert list(program.nodes) == ["main"]


def test_loops_are_wrapped_too() -> None:
    model = Model()
    program = Program()
    root = ExecutionNode(program, lambda: [model.infer(i) for i in range(3)], name="main")
    w = State("W")
    node = wrap(model, "infer", root, reads(w), count=3)
    labels: list[str] = []
    program.add_hook(node=node, before=lambda *_: labels.append(current().label))  # type: ignore[union-attr]
    root()
    assert labels == [f"main/infer[{i}]" for i in range(3)]
    assert node.spec.count == 3


class Copied:
    """Something that is copied after its methods were wrapped, as reference policies are."""

    def __init__(self) -> None:
        self.weight = 1

    def infer(self, x: int) -> int:
        return x * self.weight


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda obj: pickle.loads(pickle.dumps(obj))])
def test_a_copy_of_an_object_does_not_call_the_method_of_the_first(
    duplicate: Callable[[Copied], Copied],
) -> None:
    first, program = Copied(), Program()
    wrap(first, "infer", program)
    second = duplicate(first)
    second.weight = 10
    assert (first.infer(2), second.infer(2)) == (2, 20)
    assert not hasattr(second.infer, "rlprof_node")
    program.unwrap()
    assert second.infer(2) == 20


class InSlots:
    """Attributes in slots and others."""

    __slots__ = ("__dict__", "weight")

    def __init__(self) -> None:
        self.weight = 1
        self.given = len

    def infer(self, x: int) -> int:
        return x * self.weight


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copy_has_the_attributes_that_nodes_stand_in_place_of(
    duplicate: Callable[[InSlots], InSlots],
) -> None:
    first, program = InSlots(), Program()
    root = wrap(first, "infer", program)
    wrap(first, "given", root)
    second = duplicate(first)
    second.weight = 10
    assert (first.infer(2), second.infer(2)) == (2, 20)
    assert vars(second) == {"given": len}
    program.unwrap()
    assert vars(first) == {"given": len}
