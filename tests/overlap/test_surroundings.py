"""The code between calls is not run when a graph is: every way of leaving something behind is refused."""

from __future__ import annotations

import asyncio
import random
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlprof.overlap import Batch, Program, Recording, State, refreshes, updates, wrap
from rlprof.overlap.build import call_graph
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.errors import IllegalTransformationError, RecordingError
from rlprof.overlap.specs import Cell
from rlprof.overlap.transforms import split_spatial

SEEN: list[int] = []


class Data:
    """As programs hand batches around: no dataclass."""

    def __init__(self) -> None:
        self.rows = np.ones(2)
        self.advantage: Any = None


class Trainer:
    """An iteration with `glue` between its two calls."""

    def __init__(self, glue: Callable[[Trainer, Any], Any]) -> None:
        self.glue = glue
        self.count = 1000
        self.log: list[int] = []
        self.metrics: dict[str, list[float]] = {"loss": []}
        self.frames: deque[Any] = deque(maxlen=2)
        self.totals: defaultdict[str, int] = defaultdict(int)
        self.returns = np.zeros(3)
        self.kept = SimpleNamespace(t=0)
        self.draw = np.random.default_rng(0)
        self.child: Any = Data()
        self.large = np.zeros(100_000)

    def make(self) -> Any:
        return Data()

    def use(self, data: Any, *more: Any) -> Any:
        return np.array(data.rows)

    def iteration(self) -> Any:
        data = self.make()
        more = self.glue(self, data)
        return self.use(data, *(() if more is None else (more,)))


def recorded(trainer: Trainer, runs: int = 2, **how: Any) -> Recording:
    program = Program()
    iteration = wrap(trainer, "iteration", program)
    for name in ("make", "use"):
        wrap(trainer, name, iteration, stateless=True)
    return program.record(iteration, runs=runs, run=lambda: [trainer.iteration() for _ in range(runs)], **how)


def counts(self: Trainer, _: Any) -> None:
    self.count += 1


def appends(self: Trainer, _: Any) -> None:
    self.log.append(1)


def appends_deeper(self: Trainer, _: Any) -> None:
    self.metrics["loss"].append(0.5)


def counts_by_name(self: Trainer, _: Any) -> None:
    self.totals["steps"] += 1


def queues(self: Trainer, _: Any) -> Any:
    self.frames.append(np.ones(2))
    return self.frames


def writes_rows(self: Trainer, _: Any) -> None:
    self.returns[0] += 1


def sets_an_attribute(self: Trainer, _: Any) -> Any:
    self.kept.t += 1
    return self.kept


def sets_an_attribute_of_a_part(self: Trainer, _: Any) -> None:
    self.child.advantage = np.ones(2)


def sets_what_a_call_returned(_: Trainer, data: Any) -> None:
    data.advantage = np.ones(2)


def draws_by_itself(self: Trainer, _: Any) -> None:
    self.draw.random()


def draws_from_numpy(_: Trainer, __: Any) -> None:
    np.random.random()


def draws_from_python(_: Trainer, __: Any) -> None:
    random.random()


@pytest.mark.parametrize(
    ("glue", "what"),
    [
        (counts, r"Trainer\.count"),
        (appends, r"Trainer\.log"),
        (appends_deeper, r"Trainer\.metrics\['loss'\]"),
        (counts_by_name, r"Trainer\.totals\['steps'\]"),
        (queues, r"Trainer\.frames"),
        (writes_rows, r"Trainer\.returns"),
        (sets_an_attribute, r"Trainer\.kept\.t"),
        (sets_an_attribute_of_a_part, r"Trainer\.child\.advantage"),
        (sets_what_a_call_returned, "the Data that iteration/make returned"),
        (draws_by_itself, r"Trainer\.draw"),
        (draws_from_numpy, r"the position of the generator of numpy\.random"),
        (draws_from_python, "the position of the generator of random"),
    ],
)
def test_an_effect_of_the_code_between_calls_would_be_lost(
    glue: Callable[[Trainer, Any], Any], what: str
) -> None:
    with pytest.raises(RecordingError, match=rf"^iteration: its own code changes {what}, and is not run"):
        call_graph(recorded(Trainer(glue)))


def test_what_is_ignored_may_change() -> None:
    def both(self: Trainer, data: Any) -> None:
        counts(self, data)
        appends(self, data)

    trainer = Trainer(both)
    with pytest.raises(RecordingError, match=r"Trainer\.log"):
        call_graph(recorded(trainer, ignore=["Trainer.count"]))
    assert len(call_graph(recorded(Trainer(trainer.glue), ignore=["Trainer.count", "Trainer.log"]))) == 2
    other = Trainer(appends)
    assert len(call_graph(recorded(other, ignore=[other.log]))) == 2


def test_what_is_set_to_what_it_is_does_not_change() -> None:
    def glue(self: Trainer, _: Any) -> None:
        self.count = 500 + 500
        self.child.advantage = float("nan")

    trainer = Trainer(glue)
    trainer.child.advantage = float("nan")
    assert len(call_graph(recorded(trainer))) == 2


def test_variables_of_functions_around_are_seen() -> None:
    program, step = Program(), 0
    trainer = Trainer(counts)

    def iteration() -> Any:
        nonlocal step
        step += 1
        SEEN.append(step)
        return trainer.use(trainer.make())

    trainer.iteration = iteration  # type: ignore[method-assign]
    node = wrap(trainer, "iteration", program)
    for name in ("make", "use"):
        wrap(trainer, name, node, stateless=True)
    recording = program.record(node, run=lambda: [trainer.iteration() for _ in range(2)])
    assert {e for call in recording.runs[1] for e in call.effects} == {"step", "SEEN"}


def test_self_of_a_method_that_was_wrapped_in_its_class_is_looked_at() -> None:
    class Own(Trainer):
        def iteration(self) -> Any:
            self.count += 1
            return self.use(self.make())

        def make(self) -> Any:
            return Data()

        def use(self, data: Any, *more: Any) -> Any:
            return np.array(data.rows)

    program = Program()
    node = wrap(Own, "iteration", program)
    for name in ("make", "use"):
        wrap(Own, name, node, stateless=True)
    trainer = Own(counts)
    recording = program.record(node, run=lambda: [trainer.iteration() for _ in range(2)])
    program.unwrap()
    with pytest.raises(RecordingError, match=r"its own code changes Own\.count"):
        call_graph(recording)


def test_an_object_whose_methods_were_wrapped_in_its_class_is_no_argument() -> None:
    class Simulator:
        count = 0

        def step(self, x: Any) -> Any:
            self.count += 1
            return x + self.count

        def run(self, x: Any) -> Any:
            return self.step(self.step(x))

    program = Program()
    node = wrap(Simulator, "run", program)
    wrap(Simulator, "step", node, updates(State("ENV")))
    simulator = Simulator()
    graph = call_graph(program.record(node, run=lambda: [simulator.run(np.ones(2)) for _ in range(2)]))
    program.unwrap()
    assert {a.cell for call in graph.calls for a in call.accesses} == {Cell("ENV")}


def test_a_large_array_that_is_filled_before_its_only_use_asks_for_one_run_more() -> None:
    def glue(self: Trainer, _: Any) -> Any:
        self.large[0] += 1
        return self.large

    with pytest.raises(RecordingError, match="record one run more"):
        recorded(Trainer(glue))
    with pytest.raises(RecordingError, match=r"its own code changes a kept array float64 \(100000,\)"):
        call_graph(recorded(Trainer(glue), runs=3))


class Drawing:
    """Two components that draw from one generator of everybody, declared by nobody."""

    def __init__(self, draw: Callable[[], Any]) -> None:
        self.draw = draw

    def infer(self) -> Any:
        return np.ones(2) * self.draw()

    def step(self, action: Any) -> Any:
        return action + self.draw()

    def still(self, x: Any) -> Any:
        return x + 1

    def iteration(self) -> Any:
        return self.still(self.step(self.infer()))


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (np.random.random, "numpy.random"),
        (np.random.standard_normal, "numpy.random"),
        (random.random, "random"),
    ],
)
def test_an_undeclared_generator_of_everybody_is_state_of_all_that_draw(
    draw: Callable[[], Any], name: str
) -> None:
    graph = graph_of_drawing(draw)
    uses = {call.node.rpartition("/")[2]: {(a.cell, a.mode) for a in call.accesses} for call in graph.calls}
    drawing = (Cell(f"random:{name}"), "update")
    assert uses["infer"] == {drawing}
    assert uses["step"] == {drawing, (Cell("ENV"), "update")}
    assert uses["still"] == set()


def test_a_batch_that_draws_from_a_generator_of_everybody_is_not_cut() -> None:
    class Plain:
        def infer(self, x: Any) -> Any:
            return x + np.random.random(len(x))

        def iteration(self, x: Any) -> Any:
            return self.infer(x)

    plain, program = Plain(), Program()
    iteration = wrap(plain, "iteration", program)
    wrap(plain, "infer", iteration, stateless=True, batch=Batch())
    graph = call_graph(program.record(iteration, run=lambda: [plain.iteration(np.ones(4)) for _ in range(2)]))
    with pytest.raises(
        IllegalTransformationError, match=r"iteration/infer draws from the generator of numpy\.random"
    ):
        split_spatial(graph, "iteration/infer")


def test_a_generator_of_torch_is_state_too() -> None:
    torch = pytest.importorskip("torch")
    graph = graph_of_drawing(lambda: float(torch.rand(())))
    assert [a.cell for a in graph.by_id["iteration/infer"].accesses] == [Cell("random:torch")]


def graph_of_drawing(draw: Callable[[], Any]) -> CallGraph:
    plain, program = Drawing(draw), Program()
    iteration = wrap(plain, "iteration", program)
    wrap(plain, "infer", iteration, stateless=True)
    wrap(plain, "step", iteration, updates(State("ENV")))
    wrap(plain, "still", iteration, stateless=True)
    return call_graph(program.record(iteration, run=lambda: [plain.iteration(), plain.iteration()]))


def test_an_object_that_one_call_changes_and_another_reads_is_state() -> None:
    class Plain:
        def make(self) -> Any:
            return OrderedDict(rows=np.ones(2))

        def fill(self, batch: Any) -> None:
            batch["advantage"] = np.ones(2)

        def train(self, batch: Any) -> Any:
            return batch["rows"] + batch["advantage"]

        def iteration(self) -> Any:
            batch = self.make()
            self.fill(batch)
            return self.train(batch)

    plain, program = Plain(), Program()
    iteration = wrap(plain, "iteration", program)
    for name in ("make", "fill", "train"):
        wrap(plain, name, iteration, stateless=True)
    graph = call_graph(program.record(iteration, run=lambda: [plain.iteration(), plain.iteration()]))
    uses = {c.node: [(a.cell.state, a.mode) for a in c.accesses] for c in graph.calls}
    assert uses["iteration/fill"] == [("memory:iteration/make", "update")]
    assert uses["iteration/train"] == [("memory:iteration/make", "read")]


def test_what_calls_change_in_their_own_object_is_their_business() -> None:
    class Plain:
        def __init__(self) -> None:
            self.steps: list[int] = []

        def reset(self) -> Any:
            self.steps = []
            return np.ones(2)

        def step(self, x: Any) -> Any:
            self.steps.append(1)
            return x + len(self.steps)

        def iteration(self) -> Any:
            return self.step(self.step(self.reset()))

    plain, program, env = Plain(), Program(), State("ENV")
    iteration = wrap(plain, "iteration", program)
    wrap(plain, "reset", iteration, refreshes(env))
    wrap(plain, "step", iteration, updates(env))
    graph = call_graph(program.record(iteration, run=lambda: [plain.iteration(), plain.iteration()]))
    assert len(graph) == 3


class Worker:
    def __init__(self) -> None:
        self.calls = 0

    async def act(self, x: Any) -> Any:
        self.calls += 1
        await asyncio.sleep(0.001)
        self.calls += 1
        return x + 1


class Driver:
    """Two workers at once, and a counter that is counted while they work."""

    def __init__(self, counts: bool) -> None:
        self.counts, self.count = counts, 0
        self.one, self.two = Worker(), Worker()

    async def iteration(self, x: Any) -> Any:
        both = [asyncio.create_task(w.act(x)) for w in (self.one, self.two)]
        await asyncio.sleep(0)
        self.count += self.counts
        return await both[0], await both[1]


@pytest.mark.parametrize("counts", [True, False])
def test_a_change_while_calls_go_on_is_the_code_between_calls_if_it_is_no_object_of_theirs(
    counts: bool,
) -> None:
    driver, program = Driver(counts), Program()
    node = wrap(driver, "iteration", program)
    wrap(driver.one, "act", node, stateless=True, name="one")
    wrap(driver.two, "act", node, stateless=True, name="two")

    async def train() -> None:
        for _ in range(2):
            await driver.iteration(np.ones(2))

    recording = program.record(node, run=lambda: asyncio.run(train()))
    if not counts:
        assert len(call_graph(recording)) == 2
        return
    with pytest.raises(RecordingError, match=r"iteration: its own code changes Driver\.count"):
        call_graph(recording)


def test_objects_that_cannot_be_looked_at_are_passed_over() -> None:
    class Gone:
        pass

    class Liar:
        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            raise RuntimeError("do not look")

    trainer = Trainer(lambda self, data: None)
    trainer.proxy, trainer.liar = weakref.proxy(Gone()), Liar()  # type: ignore[attr-defined]
    assert len(call_graph(recorded(trainer))) == 2
