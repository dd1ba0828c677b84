"""Real programs, wrapped and recorded: their graphs, loops and explanations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlprof.overlap import LoopNode, Program, State, reads, refreshes, updates, wrap
from rlprof.overlap.build import call_graph
from rlprof.overlap.callgraph import INITIAL, CallGraph
from rlprof.overlap.dependencies import dependencies
from rlprof.overlap.errors import RecordingError
from rlprof.overlap.explain import explain
from rlprof.overlap.loops import loop_independence
from rlprof.overlap.specs import Cell
from rlprof.overlap.versions import left_behind
from tests.overlap.programs import wrapped

Array = Any
EPOCHS, CHUNKS, SAMPLES = 2, 3, 4


def test_the_training_program() -> None:
    w = wrapped(samples=4, epochs=2, chunks=3, minibatches=2)
    graph = call_graph(w.program.record(w.iteration, runs=2, run=lambda: w.trainer.train(2)))
    assert graph.opaque == {}
    assert len(graph) == 1 + 2 * (1 + 3 * 2) + 1 + 1 + 2
    epoch = loop_independence(graph, "iteration/rollout/epoch")
    assert (epoch.kind, epoch.alive, epoch.refreshed) == ("free", 2, ("ENV",))
    assert loop_independence(graph, "iteration/rollout/epoch/chunk").kind == "dependent"
    assert "infer takes obs from step of the iteration before" in str(
        graph.explain("iteration/rollout/epoch/chunk")
    )
    minibatch = loop_independence(graph, "iteration/minibatch")
    assert {f.cell.state for f in minibatch.flows if f.cell} == {"THETA", "OPT"}
    assert len(minibatch.flows) == 2, "no output of a minibatch is taken by the next"
    assert left_behind(graph)[Cell("THETA")] == "iteration/minibatch[1]/update"
    found = {(d.source, d.target) for d in dependencies(graph)}
    steps = "iteration/rollout/epoch[0]/chunk[{}]/{}"
    assert (steps.format(0, "infer"), steps.format(0, "step")) in found
    assert (steps.format(0, "step"), steps.format(1, "infer")) in found
    assert graph.by_id[steps.format(1, "step")].batch_size == 4
    assert all((c.duration_s or 0) > 0 for c in graph.calls)


class Sim:
    """A simulator whose observations are made new at each step."""

    def __init__(self) -> None:
        self.x = np.zeros((SAMPLES, 2))
        self.draw = np.random.default_rng(0)

    def reset(self, which: Array = None) -> Array:
        rows = np.ones(SAMPLES, bool) if which is None else which
        self.x[rows] = 1.0
        return self.x.copy()

    def step(self, action: Array) -> tuple[Array, Array]:
        self.x = self.x + action
        return self.x.copy(), self.draw.random(SAMPLES) < 0.5


class Rollout:
    """The row of the table that `kind` says."""

    def __init__(self, kind: str) -> None:
        self.kind, self.sim = kind, Sim()
        self.chunk: Callable[[Any], Any] = iter
        self.done = np.array([True, False, True, False])
        self.weights = np.ones(2)

    def policy(self, obs: Array) -> Array:
        return obs * self.weights

    def epoch(self, obs: Array, done: Array) -> tuple[Array, Array]:
        if self.kind == "reset first":
            obs = self.sim.reset()
        if self.kind == "reset done":
            obs = self.sim.reset(done)
        for _ in self.chunk(range(CHUNKS)):
            obs, done = self.sim.step(self.policy(obs))
        if self.kind == "reset last":
            obs = self.sim.reset()
        return obs, done

    def rollout(self, obs: Array) -> Array:
        done = self.done
        for _ in range(EPOCHS):
            obs, done = self.epoch(obs, done)
        return obs


def graph_of_rollout(kind: str) -> CallGraph:
    r, program = Rollout(kind), Program()
    env, w = State("ENV", r.sim, partitions=SAMPLES), State("W", r.weights)
    rollout = wrap(r, "rollout", program)
    epoch = wrap(r, "epoch", rollout, count=EPOCHS)
    chunk = LoopNode(CHUNKS, epoch, name="chunk")
    r.chunk = chunk
    if kind == "reset done":
        wrap(r.sim, "reset", epoch, refreshes(env[lambda call: np.flatnonzero(call.args[0])]))
    elif kind != "no reset":
        wrap(r.sim, "reset", epoch, refreshes(env))
    wrap(r, "policy", chunk, reads(w))
    wrap(r.sim, "step", chunk, updates(env))
    run = lambda: [r.rollout(np.zeros((SAMPLES, 2))) for _ in range(2)]  # noqa: E731
    return call_graph(program.record(rollout, runs=2, run=run))


@pytest.mark.parametrize(
    ("kind", "expected", "flows"),
    [
        ("reset first", "free", set()),
        ("no reset", "dependent", {"policy <- step", "step <- step: ENV"}),
        ("reset last", "dependent", {"policy <- reset", "step <- reset: ENV"}),
    ],
)
def test_rows_of_the_table(kind: str, expected: str, flows: set[str]) -> None:
    graph = graph_of_rollout(kind)
    found = loop_independence(graph, "rollout/epoch")
    assert found.kind == expected, explain(graph, "rollout/epoch")
    last = {
        f"{f.target.rpartition('/')[2]} <- {f.source.rpartition('/')[2]}"
        + (f": {f.cell.state}" if f.cell else "")
        for f in found.flows
    }
    assert last == flows


def test_a_reset_of_what_is_done_makes_the_loop_dependent() -> None:
    """Which partitions those are differs from run to run, so it counts as an update of all."""
    graph = graph_of_rollout("reset done")
    assert graph.opaque == {}
    found = loop_independence(graph, "rollout/epoch")
    assert found.kind == "dependent"
    last = {(f.target.rpartition("/")[2], f.source.rpartition("/")[2], len(f.cells)) for f in found.flows}
    assert ("reset", "step", SAMPLES) in last, explain(graph, "rollout/epoch")
    assert ("reset", "step", 0) in last, "it takes what was done"


class Glue:
    """Calls with code between them."""

    def __init__(self) -> None:
        self.count = [3, 5]
        self.buffer = np.zeros(2)

    def a(self, x: Array) -> Array:
        return x + 1

    def b(self, x: Array) -> Array:
        return x * 2

    def fill(self, x: Array) -> Array:
        self.buffer[...] = x
        return self.buffer

    def routes(self, x: Array) -> dict[str, Array]:
        first = self.a(x)
        both = {"whole": first, "part": first[1:]}
        return {"b": self.b(both["part"]), "a": both["whole"].T}

    def computes(self, x: Array) -> Array:
        return self.b(self.a(x) - 1.0)

    def loops(self, x: Array) -> Array:
        for _ in range(self.count.pop(0)):
            x = self.a(x)
        return x

    def in_place(self, x: Array) -> tuple[Array, Array]:
        first = self.fill(x)
        one = self.b(first)
        second = self.fill(self.a(x))
        return one, self.b(second)

    def region(self, x: Array) -> Array:
        return self.inner(x)  # type: ignore[attr-defined]


def graph_of_glue(name: str, *leaves: str) -> CallGraph:
    glue, program = Glue(), Program()
    glue.inner = getattr(glue, name)  # type: ignore[attr-defined]
    region = wrap(glue, "region", program)
    inner = wrap(glue, "inner", region, name="inner")
    for leaf in leaves:
        wrap(glue, leaf, inner, stateless=True)
    run = lambda: [glue.region(np.arange(2.0) + k) for k in range(2)]  # noqa: E731
    return call_graph(program.record(region, runs=2, run=run))


def test_code_that_routes_is_left_out() -> None:
    graph = graph_of_glue("routes", "a", "b")
    assert [c.node for c in graph.calls] == ["region/inner/a", "region/inner/b"]
    assert graph.opaque == {}


def test_code_that_computes_makes_its_node_one_unit() -> None:
    graph = graph_of_glue("computes", "a", "b")
    assert [c.id for c in graph.calls] == ["region/inner"]
    why = graph.opaque["region/inner"]
    assert "argument 0 of region/inner/b" in why
    assert "float64" in why


def test_calls_that_depend_on_data_make_their_node_one_unit() -> None:
    graph = graph_of_glue("loops", "a")
    assert [c.id for c in graph.calls] == ["region/inner"]
    assert "other calls" in graph.opaque["region/inner"]
    assert "one unit" in str(explain(graph, "region/inner"))


def test_a_buffer_that_is_written_again_is_state() -> None:
    """b has read the buffer before it is filled again."""
    graph = graph_of_glue("in_place", "a", "b", "fill")
    assert [c.node.rpartition("/")[2] for c in graph.calls] == ["fill", "b", "a", "fill", "b"]
    (cell,) = {a.cell for c in graph.calls for a in c.accesses}
    assert graph.states[cell.state].memory
    first, one, _, second, two = graph.calls
    assert [a.sees for c in (one, two) for a in c.accesses] == [first.id, second.id]
    assert first.accesses[0].sees in (None, INITIAL)
    assert (one.id, second.id, "storage") in {(d.source, d.target, d.kind) for d in dependencies(graph)}


class Branches:
    """Calls a node only for large numbers: in no recorded run."""

    def __init__(self) -> None:
        self.weights = np.ones(2)

    def use(self, x: Array) -> Array:
        return x * self.weights

    def train(self) -> None:
        self.weights += 1

    def maybe(self, x: Array) -> Array:
        return self.use(x) if x[0] > 100 else x + 1

    def region(self, x: Array) -> Array:
        self.train()
        return self.maybe(x)


def test_a_node_that_no_run_called_may_still_be_called() -> None:
    """What it declares counts for the call around it."""
    b, program = Branches(), Program()
    w = State("W", b.weights)
    region = wrap(b, "region", program)
    maybe = wrap(b, "maybe", region, stateless=True)
    wrap(b, "train", region, updates(w))
    wrap(b, "use", maybe, reads(w))

    def run() -> None:
        b.region(np.zeros(2))
        b.region(np.ones(2))

    graph = call_graph(program.record(region, runs=2, run=run))
    (access,) = graph.by_id["region/maybe"].accesses
    assert (access.cell, access.mode, access.sees) == (Cell("W"), "read", "region/train")


def test_a_region_that_may_call_what_no_run_called_is_refused() -> None:
    b, program = Branches(), Program()
    region = wrap(b, "region", program)
    wrap(b, "maybe", region, stateless=True)
    wrap(b, "train", region)
    wrap(b, "use", region)

    def run() -> None:
        b.region(np.zeros(2))
        b.region(np.ones(2))

    with pytest.raises(RecordingError, match="region/use is declared inside it and was called in no run"):
        call_graph(program.record(region, runs=2, run=run))
