from __future__ import annotations

import gc
import threading
import weakref
from contextvars import ContextVar
from dataclasses import replace

import numpy as np
import pytest

from rlprof.overlap import Draws
from rlprof.overlap.bindings import Binding, Const, External, Pack, Ref, arguments
from rlprof.overlap.callgraph import Access, Call, CallGraph
from rlprof.overlap.errors import ReplayError
from rlprof.overlap.execute import Executor, execute
from rlprof.overlap.lower import lower
from rlprof.overlap.specs import Cell, NodeSpec, StateSpec
from rlprof.taskgraph import Cancellation, RunCancelledError, SerialBackend, Threads, verify
from tests.overlap.adversary import last_first
from tests.overlap.handmade import SAMPLES, Player, rollout_graph

OBS = np.linspace(-1, 1, SAMPLES * 3).reshape(SAMPLES, 3)


@pytest.mark.parametrize(
    "groups", [(), ((0, 1, 2), (3, 4, 5)), ((0, 2, 4), (1, 3, 5)), ((5, 0), (1,), (4, 2, 3))]
)
@pytest.mark.parametrize("backend", [None, SerialBackend])
def test_a_graph_gives_the_bits_of_the_native_program(groups, backend):
    native, other = Player(), Player()
    graph = rollout_graph(3, groups)
    for _ in range(2):  # state goes on
        wanted = native.rollout(OBS, 3)
        output, record = execute(graph, other.entries(), {}, ((OBS, 3), {}), backend=backend)
        assert np.array_equal(output["last"], wanted["last"])
        assert all(np.array_equal(a, b) for a, b in zip(output["rewards"], wanted["rewards"], strict=True))
        assert np.array_equal(native.position, other.position)
        assert not verify(lower(graph), record)


def chain(*names: str, output: Binding, **changes) -> CallGraph:
    """Calls one after another, each given the output of the one before."""
    nodes = {"r": NodeSpec("r", None)} | {f"r/{n}": NodeSpec(f"r/{n}", "r") for n in names}
    calls = []
    for place, name in enumerate(names):
        args = arguments((Ref(calls[-1].id) if calls else External((0, 0)),), {})
        calls.append(Call(f"r/{name}", f"r/{name}", f"r/{name}", place, args, **changes))
    return CallGraph("r", nodes, {}, tuple(calls), (tuple(c.id for c in calls),), output)


class Thing:
    def __init__(self, value):
        self.value = value


def test_outputs_live_until_their_last_consumer_and_no_longer():
    alive: list[weakref.ref] = []
    seen: list[list[bool]] = []

    def make(before):
        gc.collect()
        seen.append([ref() is not None for ref in alive])
        made = Thing(before)
        alive.append(weakref.ref(made))
        return Thing("kept elsewhere") if before is None else made

    def end(before):
        gc.collect()
        seen.append([ref() is not None for ref in alive])
        return 1

    graph = chain("a", "b", "c", "d", output=Ref("r/d"))
    entries = {"r/a": make, "r/b": lambda x: make(x.value), "r/c": lambda x: make(x.value), "r/d": end}
    output, _ = execute(graph, entries, {}, (("x",), {}))
    assert output == 1
    assert seen == [[], [True], [False, True], [False, False, True]]


def test_an_output_that_nobody_needs_is_dropped():
    refs = []

    def unused(x):
        thing = Thing(x)
        refs.append(weakref.ref(thing))
        return thing

    def after(x):
        gc.collect()
        return refs[0]() is None

    graph = chain("a", "b", output=Ref("r/b"))
    calls = (graph.calls[0], replace(graph.calls[1], arguments=arguments((External((0, 0)),), {})))
    output, _ = execute(replace(graph, calls=calls), {"r/a": unused, "r/b": after}, {}, ((1,), {}))
    assert output is True


class Rebindable:
    """As a node: an entry, and the same for spare copies."""

    def __init__(self, objects):
        self.objects = objects

    @property
    def entry(self):
        return self.objects[0].append

    def rebind(self, copies):
        return self.objects[copies["S"]].append


def test_a_call_on_a_spare_copy_runs_on_the_spare_object():
    graph = chain("a", "b", output=Const("none"))
    calls = tuple(
        replace(
            c,
            accesses=(Access(Cell("S"), "refresh", None, copy),),
            arguments=arguments((External((0, 0)),), {}),
        )
        for c, copy in zip(graph.calls, (1, 0), strict=True)
    )
    graph = replace(graph, calls=calls, states={"S": StateSpec("S", copies=2)})
    node = Rebindable([[], []])
    execute(graph, {"r/a": node, "r/b": node}, {"none": None}, ((7,), {}))
    assert node.objects == [[7], [7]]
    with pytest.raises(ReplayError, match="spare copy of S, and its entry cannot be rebound"):
        Executor(graph, {"r/a": print, "r/b": print}, {})
    both = (Access(Cell("S", 0), "refresh", None, 1), Access(Cell("S", 1), "refresh", None, 0))
    mixed = replace(graph, calls=(replace(calls[0], accesses=both), calls[1]))
    with pytest.raises(ReplayError, match="two storage copies of S"):
        Executor(mixed, {"r/a": node, "r/b": node}, {})


def test_random_draws_are_those_of_the_native_call():
    """Keyed by region, call and sample: whatever the order, and whatever the group."""
    draws = Draws(3)

    def infer(obs, samples=None):
        return {"action": obs + draws.normal(len(obs), (3,), samples=samples)}

    def step(action, samples=None):
        return action * 0.5 + draws.normal(len(action), (3,)), action.sum(axis=1)

    entries = {"rollout/chunk/infer": infer, "rollout/chunk/step": step}
    results = []
    for groups in ((), ((0, 1, 2), (3, 4, 5)), ((4, 1), (0, 2, 3, 5))):
        for how in ({}, {"backend": SerialBackend, "priorities": last_first}):
            results.append(execute(rollout_graph(3, groups), entries, {}, ((OBS, 3), {}), **how)[0]["last"])
    assert all(np.array_equal(results[0], other) for other in results[1:])
    assert not np.array_equal(results[0], execute(rollout_graph(4), entries, {}, ((OBS, 4), {}))[0]["last"])


def test_the_first_failure_stops_the_run_and_is_what_was_raised():
    ran = []

    class Broken(Exception):
        pass

    def step(action, samples=None):
        ran.append(samples)
        raise Broken("no gradient") from ValueError("cause")

    player = Player()
    before = set(threading.enumerate())
    with pytest.raises(Broken, match="no gradient") as caught:
        execute(
            rollout_graph(5, ((0, 1, 2), (3, 4, 5))),
            {**player.entries(), "rollout/chunk/step": step},
            {},
            ((OBS, 5), {}),
        )
    assert isinstance(caught.value.__cause__, ValueError)  # its own cause is kept
    assert caught.value.__notes__ == [
        f"raised by rollout/chunk[0]/step@{int(ran[0][0] == 3)}, run by rlprof on simulator"
    ]
    assert len(ran) == 1
    assert not set(threading.enumerate()) - before


def test_a_parameter_for_samples_that_the_call_passes_itself_is_refused():
    graph = rollout_graph(1, ((0, 1, 2), (3, 4, 5)))
    named = Pack("dict", ("samples",), (Const("s"),))
    calls = tuple(
        replace(c, arguments=replace(c.arguments, items=(c.arguments.items[0], named)))
        if "step" in c.id
        else c
        for c in graph.calls
    )
    with pytest.raises(ReplayError, match="passes 'samples' itself"):
        execute(replace(graph, calls=calls), Player().entries(), {"s": None}, ((OBS, 1), {}))


def test_a_run_can_be_cancelled_from_elsewhere():
    cancellation = Cancellation()
    ran = []

    def infer(obs):
        ran.append(1)
        cancellation.cancel("enough")
        return {"action": obs}

    with pytest.raises(RunCancelledError, match="enough"):
        execute(
            rollout_graph(3),
            {**Player().entries(), "rollout/chunk/infer": infer},
            {},
            ((OBS, 3), {}),
            cancellation=cancellation,
        )
    assert len(ran) == 1


def test_context_variables_of_the_caller_are_seen_in_every_thread():
    variable: ContextVar[str] = ContextVar("variable")
    seen = set()

    def infer(obs):
        seen.add(variable.get())
        variable.set("changed")  # only in this call
        return {"action": obs}

    variable.set("callers")
    graph = rollout_graph(2, ((0, 1, 2), (3, 4, 5)))
    execute(graph, {**Player().entries(), "rollout/chunk/infer": infer}, {}, ((OBS, 2), {}))
    assert seen == {"callers"}
    assert variable.get() == "callers"


def test_what_a_call_leaves_in_its_thread_is_no_part_of_what_the_next_run_is_promised():
    """Context variables and modes of torch are those of the caller, in threads that are kept too."""
    torch = pytest.importorskip("torch")
    variable: ContextVar[str] = ContextVar("variable", default="callers")
    seen = []

    def infer(obs):
        seen.append((variable.get(), torch.is_grad_enabled(), np.geterr()["divide"]))
        variable.set("changed")
        torch.set_grad_enabled(False)
        np.seterr(divide="raise")
        return {"action": obs}

    graph = rollout_graph(2, ((0, 1, 2), (3, 4, 5)))
    executor = Executor(graph, {**Player().entries(), "rollout/chunk/infer": infer}, {})
    wanted = ("callers", True, np.geterr()["divide"])
    for _ in range(3):
        executor.run(((OBS, 2), {}))
    executor.close()
    assert set(seen) == {wanted}
    assert torch.is_grad_enabled()


def test_a_call_that_runs_another_graph_in_threads_that_both_have():
    threads, player = Threads(), Player()
    graph = rollout_graph(2, ((0, 1, 2), (3, 4, 5)))
    inner = Executor(graph, Player().entries(), {}, threads=threads)
    alone, _ = execute(graph, Player().entries(), {}, ((OBS, 2), {}))

    def infer(obs):
        inner_player = Executor(graph, Player().entries(), {}, threads=threads)
        assert np.array_equal(inner_player.run(((OBS, 2), {}))[0]["last"], alone["last"])
        return player.infer(obs)

    outer = Executor(graph, {**player.entries(), "rollout/chunk/infer": infer}, {}, threads=threads)
    before = set(threading.enumerate())
    assert np.array_equal(outer.run(((OBS, 2), {}))[0]["last"], alone["last"])
    inner.run(((OBS, 2), {}))
    inner.close()  # they are not its own
    assert set(threading.enumerate()) - before
    threads.close()
    assert not set(threading.enumerate()) - before
