"""Calls of nodes: hooks, replacement or native, context, coroutines, futures, loops, wrong declarations."""

# ruff: noqa: PLW0108  (lambdas call what is defined after them)
from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import copy
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from rlprof.overlap import Batch, ExecutionNode, LoopNode, Program, State, current, reads, updates
from rlprof.overlap.bindings import Ref
from rlprof.overlap.errors import OverlapError, RecordingError, WrapError


def label() -> str:
    found = current()
    return "" if found is None else found.label


def two_levels(inner: Any = label) -> tuple[ExecutionNode, ExecutionNode]:
    root = ExecutionNode(None, lambda *a: node(*a), name="main")
    node = ExecutionNode(root, inner, name="inner")
    return root, node


# one path --------------------------------------------------------------------------------------------------


def test_replacement_or_native_never_both() -> None:
    seen: list[str] = []
    root, node = two_levels(lambda: seen.append("native"))
    root()
    root.program.install(node, lambda: seen.append("replacement"))
    root()
    root.program.uninstall(node)
    root()
    assert seen == ["native", "replacement", "native"]
    assert node.entry is node.native


def test_hooks_stand_around_either() -> None:
    seen: list[Any] = []
    root, node = two_levels(lambda x: x + 1)
    program = root.program
    remove = program.add_hook(
        node=node,
        before=lambda context, args, kwargs: seen.append((context.label, args)),
        after=lambda context, result, error: seen.append((result, error)),
    )
    root(1)
    program.install(node, lambda x: x + 10)
    root(1)
    program.uninstall()
    assert seen == [("main/inner", (1,)), (2, None), ("main#1/inner", (1,)), (11, None)]
    remove()
    root(1)
    assert len(seen) == 4


def test_hooks_after_see_the_error_and_it_goes_on() -> None:
    seen: list[Any] = []
    root, _ = two_levels(lambda: 1 / 0)
    root.program.add_hook(after=lambda context, result, error: seen.append((context.node, type(error))))
    with pytest.raises(ZeroDivisionError):
        root()
    assert seen == [("main/inner", ZeroDivisionError), ("main", ZeroDivisionError)]
    assert current() is None


def test_a_replacement_needs_an_entry() -> None:
    root, _ = two_levels()
    loop = LoopNode(3, root)
    with pytest.raises(WrapError, match="main/loop"):
        root.program.install(loop, lambda: 0)
    with pytest.raises(WrapError, match="no node 'other'"):
        root.program.install("other", lambda: 0)


# context ---------------------------------------------------------------------------------------------------


def test_labels_count_iterations_and_further_calls() -> None:
    found: list[str] = []
    program = Program()
    root = LoopNode(None, program, lambda: body(), name="iteration")

    def body() -> None:
        for _ in chunk(range(2)):
            found.append(step())
        found.append(once())
        found.append(once())

    chunk = LoopNode(2, root, name="chunk")
    step = ExecutionNode(chunk, label, name="step")
    once = ExecutionNode(root, label, name="once")
    root()
    root()
    one = ["chunk[0]/step", "chunk[1]/step", "once", "once#1"]
    assert found == [f"iteration[{i}]/{part}" for i in (0, 1) for part in one]
    assert current() is None


def test_a_loop_left_early_leaves_its_context() -> None:
    def body() -> list[str]:
        found = []
        for c in chunk(range(5)):
            found.append(label())
            if c == 1:
                break
        found.append(label())
        try:
            for _ in chunk(range(5)):
                raise KeyError
        except KeyError:
            found.append(label())
        return found

    root = ExecutionNode(None, body, name="main")
    chunk = LoopNode(None, root, name="chunk")
    assert root() == ["main/chunk[0]", "main/chunk[1]", "main", "main"]


def test_marked_loops_yield_what_they_are_given() -> None:
    def generate() -> Iterator[str]:
        yield from "ab"

    root = ExecutionNode(None, lambda: (list(loop(generate())), len(loop([1, 2, 3]))), name="main")
    loop = LoopNode(None, root)
    assert root() == (["a", "b"], 3)
    with pytest.raises(WrapError, match="needs what is iterated over"):
        loop()


def test_calls_in_threads_find_their_parent() -> None:
    def body() -> list[str]:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            return sorted(pool.map(lambda _: node(), range(8)))

    root = ExecutionNode(None, body, name="main")
    node = ExecutionNode(root, label, name="inner")
    expected = sorted(["main/inner", *(f"main/inner#{k}" for k in range(1, 8))])
    assert root() == expected
    recording = root.program.record(root, run=lambda: [root(), root()])
    assert sorted(i.id for i in recording.runs[0]) == ["main", *expected]


def test_threads_with_several_parents_need_a_context() -> None:
    gate = threading.Barrier(2)

    def middle_body() -> None:
        gate.wait(60)
        errors.append(pool.submit(node).exception())
        errors.append(pool.submit(contextvars.copy_context().run, node).exception())
        gate.wait(60)

    def body() -> None:
        run = [contextvars.copy_context().run for _ in range(2)]
        threads = [threading.Thread(target=r, args=(middle,)) for r in run]
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    errors: list[BaseException | None] = []
    root = ExecutionNode(None, body, name="main")
    middle = ExecutionNode(root, middle_body, name="middle")
    node = ExecutionNode(middle, label, name="inner")
    with concurrent.futures.ThreadPoolExecutor(1) as pool, root.program.record(root):
        root()
        root()
    told = [str(e) for e in errors if e is not None]
    assert len(errors) == 8
    assert len(told) == 4
    assert all("copy_context" in text for text in told)


def test_bound_methods_partials_and_objects_can_be_entries() -> None:
    class Model:
        def infer(self, x: int) -> int:
            return x + 1

        def __call__(self, x: int) -> int:
            return x + 2

    model = Model()
    root = ExecutionNode(None, lambda: [a(1), b(1), c(1)], name="main")
    a = ExecutionNode(root, model.infer)
    b = ExecutionNode(root, functools.partial(model.infer, 5), name="five")
    c = ExecutionNode(root, model)
    b.program.install(b, lambda x: x)
    assert root() == [2, 1, 3]
    assert (a.path, c.path, a.component, a.owner) == ("main/infer", "main/Model", "Model", model)


# coroutines and futures ------------------------------------------------------------------------------------


def test_coroutines_nest_by_task() -> None:
    async def inner(n: int) -> str:
        before = label()
        await asyncio.sleep(0.001 * (3 - n))
        assert label() == before
        return before

    async def body() -> list[str]:
        return [*await asyncio.gather(*(node(n) for n in range(3))), await node(3), label()]

    root = ExecutionNode(None, body, name="main")
    node = ExecutionNode(root, inner)
    assert asyncio.run(root()) == ["main/inner", "main/inner#1", "main/inner#2", "main/inner#3", "main"]


def test_coroutines_are_recorded() -> None:
    async def make() -> np.ndarray:
        await asyncio.sleep(0)
        return np.random.default_rng().normal(size=3)

    async def use(*arrays: np.ndarray) -> None: ...

    async def body() -> None:
        a, b = await asyncio.gather(make_node(), make_node())
        await use_node(b, a)

    root = ExecutionNode(None, body, name="main")
    make_node = ExecutionNode(root, make)
    use_node = ExecutionNode(root, use)

    async def train() -> None:
        await root()
        await root()

    recording = root.program.record(root, run=lambda: asyncio.run(train()))
    top, first, second, last = recording.runs[1]
    assert [i.id for i in recording.runs[1]] == ["main", "main/make", "main/make#1", "main/use"]
    assert last.arguments.items[0].items == (Ref("main/make#1"), Ref("main/make"))  # type: ignore[union-attr]
    assert first.start_ns <= second.start_ns <= first.return_ns <= last.start_ns <= top.return_ns


def test_a_coroutine_from_a_plain_callable_is_part_of_the_call() -> None:
    async def inner() -> str:
        await asyncio.sleep(0)
        return label()

    async def body() -> str:
        return await node()

    root = ExecutionNode(None, lambda: body(), name="main")
    node = ExecutionNode(root, lambda: inner(), name="inner")
    assert asyncio.run(root()) == "main/inner"

    async def train() -> None:
        await root()
        await root()

    recording = root.program.record(root, run=lambda: asyncio.run(train()))
    assert [i.id for i in recording.runs[0]] == ["main", "main/inner"]


def test_async_loops_can_be_marked() -> None:
    async def items() -> Any:
        for n in range(2):
            yield n

    async def body() -> list[str]:
        return [f"{n} {label()}" async for n in loop(items())]

    root = ExecutionNode(None, body, name="main")
    loop = LoopNode(2, root)
    assert asyncio.run(root()) == ["0 main/loop[0]", "1 main/loop[1]"]


def test_a_future_ends_the_call_when_it_completes() -> None:
    seen: list[Any] = []
    gate = threading.Event()

    def work() -> np.ndarray:
        gate.wait(60)
        return np.random.default_rng().normal(size=3)

    def body() -> None:
        gate.clear()
        future = node()
        seen.append("returned")
        gate.set()
        use(future.result())

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        root = ExecutionNode(None, body, name="main")
        node = ExecutionNode(root, lambda: pool.submit(work), name="work")
        use = ExecutionNode(root, lambda x: None, name="use")
        program = root.program
        program.add_hook(node=node, after=lambda context, result, error: seen.append(result.shape))
        root()
        assert seen == ["returned", (3,)]
        recording = program.record(root, run=lambda: [root() for _ in range(2)])
    assert node.gives_futures
    _, work_call, use_call = recording.runs[0]
    assert work_call.return_ns <= use_call.start_ns
    assert use_call.arguments.items[0].items == (Ref("main/work"),)  # type: ignore[union-attr]


def test_a_future_that_fails_closes_the_record() -> None:
    seen: list[Any] = []

    def body() -> None:
        node().exception()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        root = ExecutionNode(None, body, name="main")
        node = ExecutionNode(root, lambda: pool.submit(lambda: 1 / 0), name="work")
        root.program.add_hook(node=node, after=lambda context, result, error: seen.append(type(error)))
        recording = root.program.record(root, run=lambda: [root(), root()])
    assert [i.failed for i in recording.runs[0]] == [False, True]
    assert seen == [ZeroDivisionError] * 2


def test_an_asyncio_future_ends_the_call() -> None:
    async def body() -> float:
        return float(await node())

    def work() -> asyncio.Future[float]:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        loop.call_later(0.002, future.set_result, 0.5)
        return future

    root = ExecutionNode(None, body, name="main")
    node = ExecutionNode(root, work)

    async def train() -> None:
        await root()
        await root()

    recording = root.program.record(root, run=lambda: asyncio.run(train()))
    assert recording.runs[0][1].duration_s >= 0.002


def test_a_future_that_outlives_the_region_is_refused() -> None:
    gate = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        root = ExecutionNode(None, lambda: [node()], name="main")
        node = ExecutionNode(root, lambda: pool.submit(gate.wait, 10), name="work")
        try:
            with pytest.raises(RecordingError, match="main/work had not ended"):
                root.program.record(root, run=lambda: [root(), root()])
        finally:
            gate.set()
        root()


# wrong declarations ----------------------------------------------------------------------------------------


def test_two_nodes_of_one_name() -> None:
    root, _ = two_levels()
    with pytest.raises(WrapError, match="two nodes have the path main/inner"):
        ExecutionNode(root, label, name="inner")
    assert len(root.children) == 1


def test_an_unknown_state_is_named_with_the_node() -> None:
    root, _ = two_levels()
    with pytest.raises(WrapError, match="main/use declares the state 'ENV'"):
        ExecutionNode(root, label, reads("ENV"), name="use")
    root.program.add(State("ENV"))
    ExecutionNode(root, label, reads("ENV"), name="use")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda r: ExecutionNode(r, label, updates(State("INNER")), name="x"), "two state objects are named"),
        (
            lambda r: ExecutionNode(r, label, reads("A"), updates("A"), name="x"),
            "main/x declares state A twice",
        ),
        (lambda r: ExecutionNode(r, label, reads("A"), stateless=True, name="x"), "stateless and declares A"),
        (lambda r: ExecutionNode(r, label, "A", name="x"), "main/x declares a value of type str"),
        (lambda r: ExecutionNode(r, 3, name="x"), "entry of node main/x is a value of type int"),
        (lambda r: ExecutionNode("main", label, name="x"), "the parent of node x is a value of type str"),
        (lambda r: ExecutionNode(r, label, name="a/b"), "cannot name a node"),
        (lambda r: ExecutionNode(r, None, name="x"), "node x has no entry"),
        (lambda r: LoopNode(0, r, name="x"), "loop x has the count 0"),
        (lambda r: LoopNode(2, r, None, reads("A"), name="x"), "no entry and declares state"),
        (lambda r: ExecutionNode(r, label, name="x", batch=Batch(samples="rows")), "no parameter 'rows'"),
        (
            lambda r: ExecutionNode(r, label, reads("S"), name="x", batch=Batch()),
            "state S, which is by sample",
        ),
        (lambda r: ExecutionNode(r, label, reads(State("P", partitions=2)[2]), name="x"), "no partition 2"),
        # a misspelt role would be no boundary, text in place of a tuple a name for each letter
        (lambda r: ExecutionNode(r, label, name="x", role="updates"), "main/x has the role 'updates'"),
        (lambda r: LoopNode(2, r, label, name="x", role="Sync"), "main/x has the role 'Sync'"),
        (lambda r: ExecutionNode(r, label, name="x", batch="samples"), "main/x has the batch 'samples'"),
        (lambda r: ExecutionNode(r, label, name="x", resources="gpu"), r"resources 'gpu'.*\(\"gpu\",\)"),
        (lambda r: Batch(parameters="obs"), "parameters='obs'"),
        (lambda r: Batch(sequences="obs"), "sequences='obs'"),
        (lambda r: Batch(sequences=None), "sequences=None"),
        (lambda r: Batch(shared_outputs=1), "shared_outputs=1"),
        (lambda r: Batch(unit=0), "unit=0"),
        (lambda r: Batch(axis="0"), "axis='0'"),
        (lambda r: Batch(samples=("rows",)), "samples="),
    ],
)
def test_a_wrong_declaration_says_what_is_wrong(make: Any, message: str) -> None:
    def rows(obs: Any) -> None: ...

    root, _ = two_levels()
    for state in (State("A"), State("INNER"), State("S", partitions=2, by_sample=True)):
        root.program.add(state)
    before = dict(root.program.nodes)
    with pytest.raises(WrapError, match=message):
        make(root)
    assert root.program.nodes == before


def test_an_iteration_that_a_hook_refused_does_not_go_on() -> None:
    root = ExecutionNode(None, lambda: list(chunk(range(2))), name="main")
    chunk = LoopNode(2, root, name="chunk")

    def refuse(*_: Any) -> None:
        raise ValueError("refused")

    root.program.add_hook(node=chunk, before=refuse)
    with pytest.raises(ValueError, match="refused"):
        root()
    assert not chunk.running
    assert not root.running


def test_a_node_called_outside_its_parent() -> None:
    root = ExecutionNode(None, lambda: step(), name="main")
    chunk = LoopNode(2, root, name="chunk")
    step = ExecutionNode(chunk, label, name="step")
    assert step() == "main/chunk/step"  # nobody records: it just runs
    with pytest.raises(
        WrapError, match=r"step belongs into main/chunk, and was called in main\. .*in chunk\("
    ):
        root.program.record(root, run=lambda: [root(), root()])
    assert root().startswith("main/chunk/step")


def test_a_node_that_calls_itself() -> None:
    def down(n: int) -> int:
        return 0 if n == 0 else node(n - 1)

    root, node = two_levels(down)
    assert root(3) == 0
    with pytest.raises(WrapError, match="main/inner calls itself, in main#1/inner"):
        root.program.record(root, run=lambda: [root(3), root(3)])


def test_a_loop_that_runs_another_number_of_times() -> None:
    counts = iter([3, 2])

    def body() -> None:
        for _ in chunk(range(next(counts))):
            pass

    root = ExecutionNode(None, body, name="main")
    chunk = LoopNode(3, root, name="chunk")
    with pytest.raises(WrapError, match="main/chunk of count 3 ran 2 iterations in main"):
        root.program.record(root, run=lambda: [root(), root()])


def nested(leave: Callable[[], None]) -> ExecutionNode:
    """A loop whose iteration has a loop of count 2, of which it leaves out one, and is then left itself."""

    def body() -> None:
        for _ in outer(range(2)):
            for _ in inner(range(2)):
                break
            leave()
            break

    root = ExecutionNode(None, body, name="main")
    outer = LoopNode(None, root, name="outer")
    inner = LoopNode(2, outer, name="inner")
    return root


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_an_iteration_that_is_left_early_says_what_is_missing() -> None:
    root = nested(lambda: None)
    with pytest.raises(WrapError, match="outer/inner of count 2 ran 1 iteration in"):
        root.program.record(root, run=root)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_an_error_in_an_iteration_is_all_that_is_told() -> None:
    def fail() -> None:
        raise ArithmeticError("not finite")

    root = nested(fail)
    with pytest.raises(ArithmeticError, match="not finite"):
        root.program.record(root, run=root)
    assert root.program.left_early is None


def test_a_batch_of_another_size_than_its_state() -> None:
    env = State("ENV", partitions=4, by_sample=True)

    def step(action: Any, samples: Any = None) -> None: ...

    root = ExecutionNode(None, lambda n, rows=None: node(np.zeros(n), samples=rows), name="main")
    node = ExecutionNode(root, step, updates(env), batch=Batch(samples="samples"))
    recording = root.program.record(root, run=lambda: [root(4), root(2, [1, 3])])
    assert [c.key for c, _ in recording.runs[0][1].accesses] == [0, 1, 2, 3]
    assert [c.key for c, _ in recording.runs[1][1].accesses] == [1, 3]
    assert [run[1].batch_size for run in recording.runs] == [4, 2]
    with pytest.raises(WrapError, match="main/step works on 3 samples in main#2/step, and state ENV has 4"):
        root.program.record(root, run=lambda: [root(3)])
    with pytest.raises(WrapError, match="works on sample 7"):
        root.program.record(root, run=lambda: [root(1, [7])])


def test_partitions_are_computed_for_each_call() -> None:
    data = State("DATA", partitions=3)
    program = Program()

    def body() -> None:
        for i in loop(range(3)):
            use(i)
        use_all(1)

    root = ExecutionNode(program, body, name="main")
    loop = LoopNode(3, root)
    use = ExecutionNode(loop, lambda i: None, reads(data[lambda call: call.index]), name="use")
    use_all = ExecutionNode(root, lambda i: None, updates(data[lambda call: (0, call.args[0])]), name="all")
    recording = program.record(root, run=lambda: [root(), root()])
    found = {i.id: [(c.key, m) for c, m in i.accesses] for i in recording.runs[0]}
    assert found["main/loop[2]/use"] == [(2, "read")]
    assert found["main/all"] == [(0, "update"), (1, "update")]
    assert use.spec.accesses[0].keyed
    bad = ExecutionNode(root, lambda: None, reads(data[lambda call: 9]), name="bad")
    root.program.install(root, lambda: None)
    root.program.uninstall()
    with pytest.raises(WrapError, match="no partition 9"), program.record(bad):
        bad()


def test_what_declares_nothing_updates_its_component() -> None:
    class Sim:
        def step(self) -> None: ...

    sim = Sim()
    env, other = State("ENV", sim, partitions=2), State("W", component="Policy")
    root = ExecutionNode(None, lambda: [step(), free()], name="main")
    step = ExecutionNode(root, sim.step)
    free = ExecutionNode(root, sim.step, name="free", stateless=True)
    root.program.add(env)
    root.program.add(other)
    recording = root.program.record(root, run=lambda: [root(), root()])
    _, step_call, free_call = recording.runs[0]
    assert {str(c): m for c, m in step_call.accesses} == {
        "component:Sim": "update",
        "ENV[0]": "update",
        "ENV[1]": "update",
    }
    assert free_call.accesses == ()
    assert recording.states["ENV"].component == "Sim"
    assert not recording.nodes["main/step"].declared


def test_loop_levels() -> None:
    iteration = LoopNode(None, None, lambda: None, name="iteration")
    rollout = ExecutionNode(iteration, lambda: None, name="rollout")
    epoch = LoopNode(2, rollout, name="epoch")
    chunk = LoopNode(2, epoch, name="chunk")
    step = ExecutionNode(chunk, lambda: None, name="step")
    nodes = (iteration, rollout, epoch, chunk, step)
    assert [n.spec.loop_level for n in nodes] == [0, 0, 1, 2, 2]
    assert [n.spec.kind for n in nodes] == ["loop", "plain", "loop", "loop", "plain"]
    assert [n.spec.marked for n in nodes] == [False, False, True, True, False]


# copies ----------------------------------------------------------------------------------------------------


class Sim:
    def __init__(self, name: str) -> None:
        self.name = name

    def step(self, suffix: str = "") -> str:
        return self.name + suffix


def test_a_call_runs_on_a_spare_object() -> None:
    sim, spare = Sim("first"), Sim("second")
    env = State("ENV", sim, copies=[spare])
    table = State("TABLE", {"k": 1}, copies=[{"k": 2}])
    root = ExecutionNode(None, lambda: None, name="main")
    step = ExecutionNode(root, sim.step, updates(env))
    look = ExecutionNode(root, lambda table: table["k"], reads(table), name="look", copy_argument="table")
    blind = ExecutionNode(root, lambda: None, reads(table), name="blind")
    assert step.rebind({"ENV": 0})("!") == "first!"
    assert step.rebind({"ENV": 1})("!") == "second!"
    assert look.rebind({"TABLE": 1})() == 2
    with pytest.raises(WrapError, match="main/step needs copy 2 of state ENV, which has 1"):
        step.rebind({"ENV": 2})
    with pytest.raises(WrapError, match="main/blind cannot be run on a copy of state TABLE"):
        blind.rebind({"TABLE": 1})


def test_nodes_cannot_be_copied() -> None:
    root, node = two_levels()
    with pytest.raises(OverlapError, match="main/inner cannot be copied"):
        copy.deepcopy(node)
    assert root.program.nodes["main/inner"] is node
