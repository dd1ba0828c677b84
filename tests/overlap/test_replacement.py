from __future__ import annotations

import asyncio
import inspect
import threading
import time
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from rlprof.errors import UsageError
from rlprof.overlap import Program, wrap
from rlprof.overlap.bindings import Const, External, Pack, Ref, arguments
from rlprof.overlap.callgraph import Call, CallGraph
from rlprof.overlap.errors import ReplayError
from rlprof.overlap.forms import form_of
from rlprof.overlap.replacement import Replacement
from rlprof.overlap.semantics import Watch, of_graph
from rlprof.overlap.specs import NodeSpec
from rlprof.taskgraph import ThreadBackend
from tests.overlap.handmade import SAMPLES, Player, rollout_graph

OBS = np.linspace(-1, 1, SAMPLES * 3).reshape(SAMPLES, 3)


def replaced(player: Player, **options) -> Replacement:
    options.setdefault("form", form_of(((OBS, 3), {})))
    graph = rollout_graph(3, ((0, 1, 2), (3, 4, 5)))
    return Replacement(graph, player.entries(), {}, native=player.rollout, **options)


def test_it_has_the_signature_and_the_result_of_the_native_entry():
    native, player = Player(), Player()
    made = replaced(player)
    assert inspect.signature(made) == inspect.signature(player.rollout)
    assert made.__name__ == "rollout"
    assert made.__doc__ == player.rollout.__doc__
    for _ in range(3):
        a, b = native.rollout(OBS, 3), made(OBS, 3)
        assert a.keys() == b.keys()
        assert np.array_equal(a["last"], b["last"])
    assert made.last_record is not None
    assert len(made.last_record.tasks) == 12


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((OBS, 4), r"\[0\]\[1\] is 4, 3 was recorded"),
        ((OBS[:4], 3), r"shape \(4, 3\).*shape \(6, 3\) was recorded"),
        ((OBS.astype(np.float32), 3), "float32"),
        ((OBS,), r"\[0\] is tuple of 1, tuple of 2 was recorded"),
        ((OBS.tolist(), 3), "list"),
    ],
)
def test_other_arguments_than_recorded_are_refused_before_anything_runs(args, says):
    player = Player()
    made = replaced(player)
    with pytest.raises(ReplayError, match=says) as caught:
        made(*args)
    assert "uninstall" in caught.value.hint
    assert not player.position.any()


def test_other_arguments_can_go_to_the_native_entry():
    native, player = Player(), Player()
    made = replaced(player, on_mismatch="native")
    assert np.array_equal(made(OBS, 5)["last"], native.rollout(OBS, 5)["last"])
    with pytest.raises(UsageError):
        replaced(player, on_mismatch="ignore")


def test_without_a_form_an_argument_that_is_missing_is_still_found_first():
    player = Player()
    with pytest.raises(ReplayError, match=r"has no \[0\]\[0\]"):
        replaced(player, form=None)()


def test_a_node_without_an_entry_is_refused_when_the_graph_is_installed():
    player = Player()
    with pytest.raises(ReplayError, match=r"chunk/step of .* has no entry"):
        Replacement(rollout_graph(2), {"rollout/chunk/infer": player.infer}, {}, native=player.rollout)


def test_a_watcher_of_one_call_is_refused_when_the_graph_is_installed():
    player = Player()
    watcher = Watch(replaced(player).graph)
    with pytest.raises(UsageError, match=r"watch is a Watch.*watch=lambda: Watch\(graph\)"):
        replaced(player, watch=watcher)
    seen: list[Watch] = []
    made = replaced(player, watch=lambda: seen.append(Watch(made.graph)) or seen[-1])
    for _ in range(2):
        made(OBS, 3)
    assert [watch.record for watch in seen] == [of_graph(made.graph)] * 2


def test_calls_from_several_threads_go_one_after_another():
    player = Player()  # its methods fail if they are entered twice
    made = replaced(player)
    errors = []

    def work():
        try:
            for _ in range(5):
                made(OBS, 3)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


# asynchronous regions


class Async:
    """Two coroutines side by side, then a function."""

    def __init__(self) -> None:
        self.log: list[tuple[str, object]] = []
        self.started = asyncio.Event()
        self.wait_s = 0.0

    async def left(self, x):
        self.started.set()
        await asyncio.sleep(self.wait_s)
        self.log.append(("left", asyncio.get_running_loop()))
        return x + 1

    async def right(self, x):
        await asyncio.sleep(0.001)
        self.log.append(("right", asyncio.get_running_loop()))
        if x is None:
            raise KeyError("right")
        return x * 2

    def add(self, a, b):
        self.log.append(("add", threading.current_thread()))
        return a + b

    async def region(self, x):
        a, b = await asyncio.gather(self.left(x), self.right(x))
        return {"sum": self.add(a, b)}

    def graph(self) -> CallGraph:
        names = ["region", "region/left", "region/right", "region/add"]
        nodes = {n: NodeSpec(n, None if n == "region" else "region") for n in names}
        x = arguments((External((0, 0)),), {})
        calls = (
            Call("region/left", "region/left", "region/left", 0, x),
            Call("region/right", "region/right", "region/right", 1, x),
            Call(
                "region/add",
                "region/add",
                "region/add",
                2,
                arguments((Ref("region/left"),), {"b": Ref("region/right")}),
            ),
        )
        output = Pack("dict", ("sum",), (Ref("region/add"),))
        return CallGraph(
            "region", nodes, {}, calls, (("region/left",), ("region/right", "region/add")), output
        )

    def replacement(self, **options) -> Replacement:
        entries = {"region/left": self.left, "region/right": self.right, "region/add": self.add}
        return Replacement(self.graph(), entries, {}, native=self.region, **options)


def test_an_asynchronous_region_gives_an_awaitable_and_its_coroutines_run_in_the_callers_loop():
    async def main():
        program = Async()
        made = program.replacement()
        pending = made(5)
        assert inspect.isawaitable(pending)
        assert await pending == await Async().region(5)
        loop = asyncio.get_running_loop()
        assert {name: where is loop for name, where in program.log if name != "add"} == {
            "left": True,
            "right": True,
        }

    asyncio.run(main())


def test_coroutines_of_a_plain_region_run_in_a_loop_that_ends_with_it():
    program = Async()
    before = set(threading.enumerate())
    made = program.replacement(interface="value")
    assert made(5) == {"sum": 16}
    assert program.log[0][1].is_closed()
    made.executor.close()  # threads of its workers are kept
    assert not set(threading.enumerate()) - before


class HalfBroken(Async):
    """Its right side fails on None, its left side does not."""

    async def left(self, x):
        await asyncio.sleep(0.002)
        return x


@pytest.mark.parametrize("interface", ["coroutine", "value"])
def test_an_error_in_a_coroutine_is_raised_from_the_region_and_nothing_is_left(interface):
    before = set(threading.enumerate())
    made = HalfBroken().replacement(interface=interface)

    async def main():
        return await made(None)

    with pytest.raises(KeyError, match="right") as caught:
        made(None) if interface == "value" else asyncio.run(main())
    assert "raised by region/right" in caught.value.__notes__[0]
    made.executor.close()
    assert not set(threading.enumerate()) - before


def test_a_cancelled_region_stops_and_leaves_nothing_running():
    async def main():
        program = Async()
        program.wait_s = 0.05
        running = asyncio.create_task(program.replacement()(1))
        await program.started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        done = len(program.log)
        await asyncio.sleep(0.05)
        assert len(program.log) == done
        assert "add" not in {name for name, _ in program.log}

    asyncio.run(main())


def test_a_region_that_gives_futures_still_does():
    player, native = Player(), Player()
    future = replaced(player, interface="future")(OBS, 3)
    assert isinstance(future, Future)
    assert np.array_equal(future.result(5)["last"], native.rollout(OBS, 3)["last"])
    player.weights = None
    with pytest.raises(TypeError):
        replaced(player, interface="future")(OBS, 3).result(5)


def test_futures_that_entries_return_are_waited_for():
    def later(x):
        future: Future = Future()
        threading.Thread(target=lambda: (time.sleep(0.01), future.set_result(x + 1))).start()
        return future

    nodes = {n: NodeSpec(n, None if n == "r" else "r") for n in ("r", "r/a", "r/b")}
    calls = (
        Call("r/a", "r/a", "r/a", 0, arguments((Const("1"),), {})),
        Call("r/b", "r/b", "r/b", 1, arguments((Ref("r/a"),), {})),
    )
    graph = CallGraph("r", nodes, {}, calls, (("r/a", "r/b"),), Ref("r/b"))
    made = Replacement(graph, {"r/a": later, "r/b": later}, {"1": 1}, native=lambda: None)
    assert made() == 3


@pytest.mark.parametrize("streams", [1, 2])
def test_a_region_that_is_called_inside_of_itself_does_not_hang(streams: int) -> None:
    class Plain:
        deeper = False

        def infer(self, x: Any) -> Any:
            return self.iteration(x) if self.deeper else x + 1

        def iteration(self, x: Any) -> Any:
            return self.infer(x)

    plain, program = Plain(), Program()
    node = wrap(plain, "iteration", program)
    wrap(plain, "infer", node, stateless=True)
    graph = program.graph(program.record(node, run=lambda: [plain.iteration(np.ones(2)) for _ in range(2)]))
    how = {} if streams == 1 else {"backend": ThreadBackend}
    program.install(graph, **how)
    plain.deeper = True
    with pytest.raises(ReplayError, match="iteration was called inside of itself"):
        plain.iteration(np.ones(2))
    plain.deeper = False
    assert plain.iteration(np.ones(2)).tolist() == [2, 2]
