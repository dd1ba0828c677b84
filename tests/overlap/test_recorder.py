"""Where the values of recorded calls come from."""

# ruff: noqa: PLW0108  (lambdas call what is defined after them)
from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import pytest

from rlprof.overlap import ExecutionNode, Program, Recording, State, reads, updates
from rlprof.overlap.bindings import Binding, Const, External, Pack, Ref, View
from rlprof.overlap.build import call_graph
from rlprof.overlap.errors import RecordingError
from rlprof.overlap.recording import Invocation, Unknown
from rlprof.overlap.specs import Cell

Step = Callable[..., Any]


def recorded(
    main: Callable[..., Any],
    steps: dict[str, Step],
    *,
    runs: int = 2,
    inputs: Callable[[int], tuple[Any, ...]] | None = None,
) -> Recording:
    """Record `main(call, *inputs)`; ``call.name(...)`` calls the node of that name."""

    class Calls:
        pass

    calls = Calls()
    program = Program()
    root = ExecutionNode(program, lambda *args: main(calls, *args), name="main")
    for name, step in steps.items():
        setattr(calls, name, ExecutionNode(root, step, name=name, stateless=True))

    def run() -> None:
        for n in range(runs):
            root(*(inputs(n) if inputs else ()))

    return program.record(root, runs=runs, run=run)


def call(recording: Recording, name: str, run: int = 0) -> Invocation:
    return next(i for i in recording.runs[run] if i.id == f"main/{name}")


def argument(recording: Recording, name: str, position: int = 0, run: int = 0) -> Binding:
    args = call(recording, name, run).arguments.items[0]
    assert isinstance(args, Pack)
    return args.items[position]


def fresh() -> np.ndarray:
    return np.random.default_rng().normal(size=(4, 3))


def sink(*_: Any, **__: Any) -> None: ...


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Batch:
    obs: Any
    weight: float


def test_an_output_is_known_by_identity() -> None:
    r = recorded(lambda c: c.use(c.make()), {"make": fresh, "use": sink})
    assert argument(r, "use") == Ref("main/make")


@pytest.mark.parametrize(
    ("made", "pick", "path"),
    [
        (lambda: (fresh(), fresh()), lambda v: v[1], (1,)),
        (lambda: {"a": [fresh(), fresh()]}, lambda v: v["a"][1], ("a", 1)),
        (lambda: Pair(fresh(), fresh()), lambda v: v.right, ("right",)),
        (lambda: Batch(fresh(), 0.25), lambda v: v.obs, ("obs",)),
        (lambda: (fresh(), float(fresh()[0, 0])), lambda v: v[1], (1,)),
        (lambda: (fresh(), fresh().sum()), lambda v: v[1], (1,)),
        (lambda: (fresh(), object()), lambda v: v[1], (1,)),
    ],
    ids=["tuple", "dict", "namedtuple", "dataclass", "float", "numpy scalar", "object"],
)
def test_a_part_of_an_output_has_its_path(made: Step, pick: Step, path: tuple[Any, ...]) -> None:
    r = recorded(lambda c: c.use(pick(c.make())), {"make": made, "use": sink})
    assert argument(r, "use") == Ref("main/make", path)


def test_a_number_in_a_container_is_known_wherever_it_lies_and_whatever_becomes_of_the_container() -> None:
    def make(gain: float) -> Any:
        number = gain * 2.0
        return {"a": gain * 3.0, "b": {"c": [gain * 5.0]}, "same": (number, number), "count": 1}

    def main(c: Any, gains: list[float]) -> Any:
        found = c.make(gains[0])
        a, deep, same = found["a"], found["b"]["c"][0], found["same"][0]
        c.clear(found)
        c.use(a, [deep], {"x": same}, gains[1], found)
        return a, deep

    r = recorded(
        main,
        {"make": make, "clear": lambda found: found.clear(), "use": sink},
        inputs=lambda n: ([1.5 + n, 2.5 + n],),
    )
    assert argument(r, "make") == External((0, 0, 0))
    assert argument(r, "use") == Ref("main/make", ("a",))
    assert argument(r, "use", 1) == Pack("list", (0,), (Ref("main/make", ("b", "c", 0)),))
    assert argument(r, "use", 2) == Pack("dict", ("x",), (Ref("main/make", ("same", 1)),))
    assert argument(r, "use", 3) == External((0, 0, 1))
    assert argument(r, "use", 4) == Ref("main/make"), "state, written in place by clear"
    output = r.runs[0][0].output
    assert output == Pack("tuple", (0, 1), (Ref("main/make", ("a",)), Ref("main/make", ("b", "c", 0))))
    assert [mode for _, mode in call(r, "clear").memory] == ["update"]


def test_a_number_beside_one_that_is_passed_on_is_new() -> None:
    def extend(found: list[float]) -> list[float]:
        return [*found, found[0] * 2.0]

    r = recorded(
        lambda c, x: c.use(*c.extend(c.make(x))),
        {"make": lambda x: [x * 3.0], "extend": extend, "use": sink},
        inputs=lambda n: (1.5 + n,),
    )
    assert argument(r, "extend") == Ref("main/make")
    assert argument(r, "use", 1) == Ref("main/extend", (1,))


def test_a_container_is_known_until_glue_changes_it() -> None:
    def main(c: Any) -> None:
        found = c.make()
        c.use(found)
        found.append(found[0])
        c.use_changed(found)

    r = recorded(main, {"make": lambda: [fresh()], "use": sink, "use_changed": sink})
    assert argument(r, "use") == Ref("main/make")
    item = Ref("main/make", (0,))
    assert argument(r, "use_changed") == Pack("list", (0, 1), (item, item))


def test_glue_puts_structures_together() -> None:
    def main(c: Any) -> Any:
        a, b = c.make(), c.make()
        c.use(Pair(a, {"b": b, 1: [a]}), weight=Batch(b, 0.5))
        return (a, [b])

    r = recorded(main, {"make": fresh, "use": sink})
    a, b = Ref("main/make"), Ref("main/make#1")
    pair = argument(r, "use")
    assert isinstance(pair, Pack)
    assert r.constants[pair.kind] is Pair
    assert pair.keys == ("left", "right")
    assert pair.items == (a, Pack("dict", ("b", 1), (b, Pack("list", (0,), (a,)))))
    named = call(r, "use").arguments.items[1]
    assert isinstance(named, Pack)
    batch = named.items[0]
    assert isinstance(batch, Pack)
    assert r.constants[batch.kind] is Batch
    assert batch.items == (b, Const("0.5"))
    assert call(r, "use").output == Ref("main/use")
    assert r.runs[0][0].output == Pack("tuple", (0, 1), (a, Pack("list", (0,), (b,))))


def test_a_view_taken_by_glue() -> None:
    def main(c: Any) -> None:
        made = c.make()
        c.use(made[1:, ::2])
        c.use(made.T)
        c.use(made[1:][1])

    r = recorded(main, {"make": fresh, "use": sink})
    assert argument(r, "use") == Ref("main/make", (), View(3, (3, 2), (3, 2), "float64", (4, 3), (3, 1)))
    assert argument(r, "use#1") == Ref("main/make", (), View(0, (3, 4), (1, 3), "float64", (4, 3), (3, 1)))
    assert argument(r, "use#2") == Ref("main/make", (), View(6, (3,), (1,), "float64", (4, 3), (3, 1)))


def test_a_view_of_a_view_that_was_returned() -> None:
    def main(c: Any) -> None:
        c.use(c.make()[1])

    r = recorded(main, {"make": lambda: fresh()[::2], "use": sink})
    assert argument(r, "use") == Ref("main/make", (), View(6, (3,), (1,), "float64", (2, 3), (6, 1)))


def test_arguments_of_the_region() -> None:
    given = [fresh(), fresh()]

    def main(c: Any, array: Any, number: int, more: dict[str, Any]) -> None:
        c.use(array, number, more["k"], more)
        c.use(array[0])

    r = recorded(main, {"use": sink}, inputs=lambda n: (given[n], n, {"k": fresh()}))
    assert argument(r, "use", 0) == External((0, 0))
    assert argument(r, "use", 1) == External((0, 1))
    assert argument(r, "use", 2) == External((0, 2, "k"))
    assert argument(r, "use", 3) == External((0, 2))
    assert argument(r, "use#1") == External((0, 0), View(0, (3,), (1,), "float64", (4, 3), (3, 1)))


def test_what_is_the_same_in_every_run_is_constant() -> None:
    config = object()
    table = np.arange(3.0)

    def main(c: Any) -> None:
        c.use(config, table, 1 / len(table), None, True, "text", 1000, [table, 1])

    r = recorded(main, {"use": sink})
    found = [argument(r, "use", i) for i in range(8)]
    assert all(isinstance(b, Const) for b in found[:7])
    values = [r.constants[b.name] for b in found[:7] if isinstance(b, Const)]
    assert values[0] is config
    assert values[1] is table
    assert values[2:] == [1 / 3, None, True, "text", 1000]
    assert isinstance(found[7], Pack)  # a new list each time
    assert [call(r, "use", n).arguments for n in (0, 1)] == [call(r, "use").arguments] * 2


@pytest.mark.parametrize(
    "made", [fresh, lambda: float(fresh()[0, 0]), object, lambda: 1000 + secrets.randbits(60)]
)
def test_what_glue_makes_anew_is_unknown(made: Step) -> None:
    r = recorded(lambda c: c.use(made()), {"use": sink})
    binding = argument(r, "use")
    assert isinstance(binding, Const)
    assert binding.name.startswith("?")
    assert isinstance(r.constants[binding.name], Unknown)


@pytest.mark.parametrize(
    "made",
    [lambda: np.arange(3) > 5, lambda: np.max(np.arange(3) > 5), lambda: np.float64(np.zeros(3).sum())],
    ids=["an empty mask", "a flag of numpy", "a sum of nothing"],
)
def test_what_glue_makes_anew_is_unknown_though_its_bits_were_the_same(made: Step) -> None:
    r = recorded(lambda c: c.use(made()), {"use": sink})
    binding = argument(r, "use")
    assert isinstance(binding, Const)
    found = r.constants[binding.name]
    assert isinstance(found, Unknown)
    assert found.equal


class Phase(Enum):
    ROLLOUT = 1


@pytest.mark.parametrize("value", [np.False_, Phase.ROLLOUT, Phase, len, None, False, 0])
def test_an_equal_value_is_not_taken_for_what_a_call_returned(value: Any) -> None:
    """Of each of these there is one object."""
    r = recorded(lambda c: [c.make(), c.use(value)][:0], {"make": lambda: value, "use": sink})
    assert isinstance(argument(r, "use"), Const)


def test_an_array_made_by_glue_that_is_returned_is_its_output() -> None:
    program = Program()
    root = ExecutionNode(program, lambda: use(middle()), name="main")
    middle = ExecutionNode(root, lambda: make() + 1, name="middle")
    make = ExecutionNode(middle, fresh, name="make")
    use = ExecutionNode(root, sink, name="use")
    r = program.record(root, run=lambda: [root(), root()])
    assert call(r, "middle").output == Ref("main/middle")
    assert argument(r, "use") == Ref("main/middle")


def test_what_a_call_is_given_and_returns_is_passed_on() -> None:
    r = recorded(lambda c: c.use(c.same(c.make())), {"make": fresh, "same": lambda x: x, "use": sink})
    assert argument(r, "use") == Ref("main/make")
    assert call(r, "same").output == Ref("main/make")


def test_numbers_that_python_shares_are_constants_or_unknown() -> None:
    count = iter([1, 2])
    r = recorded(lambda c: c.use(c.make(), None), {"make": lambda: next(count), "use": sink})
    first, second = argument(r, "use"), argument(r, "use", 1)
    assert isinstance(first, Const)
    assert first.name.startswith("?")
    assert second == Const("None")


def test_a_persistent_list_of_constants_is_one_object() -> None:
    kept = [np.arange(2), 3]
    r = recorded(lambda c: c.use(kept), {"use": sink})
    binding = argument(r, "use")
    assert isinstance(binding, Const)
    assert r.constants[binding.name] is kept


def test_times_parents_and_indices() -> None:
    r = recorded(lambda c: c.use(c.make()), {"make": fresh, "use": sink})
    top, make, use = r.runs[0]
    assert (make.parent, use.parent, top.parent) == ("main", "main", None)
    assert top.start_ns <= make.start_ns <= make.return_ns <= use.start_ns <= use.return_ns <= top.return_ns
    assert all(i.end_ns == i.return_ns for i in r.runs[0])
    assert not top.failed


# memory written in place ------------------------------------------------------------------------------------


def memory(recording: Recording, name: str) -> dict[str, str]:
    return {cell.state: mode for cell, mode in call(recording, name).memory}


def add_one(array: np.ndarray) -> None:
    array += 1


def test_an_argument_written_by_a_call_becomes_state() -> None:
    def main(c: Any) -> None:
        made = c.make()
        c.use(made)
        c.write(made)
        c.use(made)

    r = recorded(main, {"make": fresh, "use": sink, "write": add_one})
    name = "memory:main/make"
    assert memory(r, "make") == {name: "refresh"}
    assert memory(r, "use") == {name: "read"}
    assert memory(r, "write") == {name: "update"}
    assert memory(r, "use#1") == {name: "read"}
    assert r.states[name].memory


def test_a_write_through_a_view_is_one_to_the_whole() -> None:
    def main(c: Any) -> None:
        made = c.make()
        c.write(made[1:])
        c.use(made)

    r = recorded(main, {"make": fresh, "use": sink, "write": add_one})
    assert memory(r, "write") == {"memory:main/make": "update"}
    assert memory(r, "use") == {"memory:main/make": "read"}


def test_the_same_array_returned_again_with_other_contents_is_state() -> None:
    buffer = np.zeros(3)

    def step() -> np.ndarray:
        buffer[:] += 1
        return buffer

    def main(c: Any) -> None:
        for _ in range(2):
            c.use(c.step())

    r = recorded(main, {"step": step, "use": sink})
    name = "memory:main/step"
    assert memory(r, "step") == {name: "refresh"}
    assert memory(r, "use") == {name: "read"}
    assert memory(r, "step#1") == {name: "update"}
    assert argument(r, "use#1") == Ref("main/step#1")


def test_new_views_of_one_buffer_are_state() -> None:
    buffer = np.zeros(3)

    def step() -> np.ndarray:
        buffer[:] += 1
        return buffer[:2]

    def main(c: Any) -> None:
        for _ in range(2):
            c.use(c.step())

    r = recorded(main, {"step": step, "use": sink})
    assert memory(r, "step#1") == {"memory:main/step": "update"}
    assert memory(r, "use#1") == {"memory:main/step": "read"}


def test_nothing_written_is_no_state() -> None:
    kept = np.zeros(3)
    r = recorded(lambda c: [c.use(c.get()), c.use(c.get())], {"get": lambda: kept, "use": sink})
    assert not any(i.memory for i in r.runs[0])
    assert not r.states


def test_a_write_that_nobody_shows_is_found_in_the_next_run() -> None:
    class Sim:
        def reset(self) -> np.ndarray:
            self.obs = fresh()
            return self.obs

        def step(self) -> None:
            self.obs += 1

    sim = Sim()

    def main(c: Any) -> None:
        obs = c.reset()
        c.use(obs)
        c.step()
        c.other()
        c.use(obs)

    r = recorded(main, {"reset": sim.reset, "step": sim.step, "use": sink, "other": sink})
    name = "memory:main/reset"
    for run in range(2):
        found = {i.id: dict(i.memory) for i in r.runs[run]}
        assert found["main/step"] == {Cell(name): "update"}
        assert found["main/use#1"] == {Cell(name): "read"}
        assert not found["main/other"]


def test_a_write_by_glue_is_the_parents() -> None:
    def main(c: Any) -> None:
        made = c.make()
        c.use(made)
        made += 1
        c.use(made)

    r = recorded(main, {"make": fresh, "use": sink})
    assert {cell.state: mode for cell, mode in r.runs[0][0].memory} == {"memory:main/make": "update"}


def test_an_unexplained_change_in_the_last_run_is_refused() -> None:
    runs = iter(range(10))

    def main(c: Any) -> None:
        number = next(runs)
        made = c.make()
        c.use(made)
        if number == 1:
            made += 1
        c.use(made)

    with pytest.raises(RecordingError, match="had been changed since"):
        recorded(main, {"make": fresh, "use": sink})


def test_arrays_of_a_declared_state_are_its_cells() -> None:
    theta = np.zeros(3)
    state = State("THETA", theta)
    program = Program()
    root = ExecutionNode(program, lambda: [step(theta), use(theta), tell(theta[:2])], name="main")
    step = ExecutionNode(root, add_one, updates(state), name="step")
    use = ExecutionNode(root, sink, reads(state), name="use")
    tell = ExecutionNode(root, sink, name="tell", stateless=True)
    r = program.record(root, run=lambda: [root(), root()])
    assert not memory(r, "step")  # declared
    assert memory(r, "tell") == {"THETA": "read"}
    binding = argument(r, "step")
    assert isinstance(binding, Const)
    assert r.constants[binding.name] is theta


# containers changed in place --------------------------------------------------------------------------------


def test_a_given_list_that_calls_append_to_is_state() -> None:
    buffers: list[list[Any]] = [[], []]

    def main(c: Any, buffer: list[Any]) -> None:
        c.look(buffer)
        c.add(buffer)
        c.look(buffer)

    r = recorded(
        main,
        {"add": lambda b: b.append(fresh()), "look": sink},
        inputs=lambda n: (buffers[n],),
    )
    name = "memory:the arguments.0.0"
    assert memory(r, "look") == memory(r, "look#1") == {name: "read"}
    assert memory(r, "add") == {name: "update"}
    assert argument(r, "look#1") == External((0, 0))


def test_a_returned_dict_that_calls_change_is_state() -> None:
    def main(c: Any) -> None:
        found = c.make()
        c.change(found)
        c.look(found)

    r = recorded(
        main, {"make": lambda: {"a": fresh()}, "change": lambda d: d.update(b=fresh()), "look": sink}
    )
    assert memory(r, "make") == {"memory:main/make": "refresh"}
    assert memory(r, "change") == {"memory:main/make": "update"}
    assert memory(r, "look") == {"memory:main/make": "read"}
    assert argument(r, "look") == Ref("main/make")


def test_a_given_list_that_glue_appends_to_is_refused() -> None:
    with pytest.raises(RecordingError, match=r"the list at argument \[0\] of main was changed in place"):
        recorded(lambda c, b: b.append(c.make()), {"make": fresh}, inputs=lambda n: ([],))


def test_a_list_of_glue_that_a_call_changes_is_unknown() -> None:
    def main(c: Any) -> None:
        found = [c.make()]
        c.add(found)

    r = recorded(main, {"make": fresh, "add": lambda b: b.append(1)})
    binding = argument(r, "add")
    assert isinstance(binding, Const)
    assert r.constants[binding.name] == Unknown("list which the call changes in place")


def test_a_list_that_glue_keeps_and_fills_is_unknown() -> None:
    kept: list[Any] = []

    def main(c: Any) -> None:
        kept.clear()
        kept.append(c.make())
        c.use(kept)

    r = recorded(main, {"make": fresh, "use": sink})
    binding = argument(r, "use")
    assert isinstance(binding, Const)
    assert "filled by the code between calls" in r.constants[binding.name].what


# runs ------------------------------------------------------------------------------------------------------


def test_too_few_calls_are_refused() -> None:
    program = Program()
    root = ExecutionNode(program, sink, name="main")
    with pytest.raises(RecordingError, match="was called 1 time, and 2"):
        program.record(root, run=root)
    root()  # recording has stopped


def test_skip_leaves_the_first_calls_out() -> None:
    seen = []
    program = Program()
    root = ExecutionNode(program, lambda n: use(n), name="main")
    use = ExecutionNode(root, seen.append, name="use")
    r = program.record(root, skip=3, run=lambda: [root(n) for n in range(1000, 1006)])
    assert len(r.runs) == 2
    assert len(seen) == 6
    assert argument(r, "use") == External((0, 0))


def test_a_failing_region_is_noted() -> None:
    program = Program()
    root = ExecutionNode(program, lambda: use(), name="main")
    use = ExecutionNode(root, lambda: 1 / 0, name="use")
    with program.record(root) as recorder:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                root()
    assert [i.failed for i in recorder.recording.runs[0]] == [True, True]


def test_recording_where_a_replacement_is_installed_is_refused() -> None:
    program = Program()
    root = ExecutionNode(program, lambda: use(), name="main")
    use = ExecutionNode(root, sink, name="use")
    program.install(use, lambda: 3)
    with pytest.raises(RecordingError, match="uninstall"):
        program.record(root, run=root)


class Scaled(np.ndarray):
    """An array that is more than its memory."""


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.ma.masked_array(np.random.default_rng().normal(size=4), mask=[0, 1, 0, 0]),
        lambda: np.random.default_rng().normal(size=4).view(Scaled),
    ],
    ids=["masked", "a class of the program"],
)
def test_a_view_of_an_array_of_another_class_is_unknown(make: Step) -> None:
    """Taken of its memory it would be a plain array."""
    r = recorded(lambda c: [c.use(c.make()[1:])][:0], {"make": make, "use": sink})
    binding = argument(r, "use")
    assert isinstance(binding, Const)
    assert isinstance(r.constants[binding.name], Unknown)


def test_an_array_of_objects_that_glue_writes_is_noticed() -> None:
    def main(c: Any) -> None:
        texts = c.make()
        texts[0] = "changed"
        c.use(texts)

    r = recorded(main, {"make": lambda: np.array(["a", "b"], dtype=object), "use": sink})
    with pytest.raises(RecordingError, match=r"changes the array object \(2,\) that main/make returned"):
        call_graph(r)


def test_a_list_that_holds_itself_can_be_passed_on() -> None:
    def make() -> Any:
        itself: list[Any] = []
        itself.append(itself)
        return itself

    r = recorded(lambda c: [c.use(c.make())][:0], {"make": make, "use": lambda x: len(x)})
    assert argument(r, "use") == Ref("main/make")
