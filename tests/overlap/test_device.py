"""Device work of calls, on a real GPU: nothing here can be seen without one."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from rlprof.overlap.bindings import Binding, External, Pack, Ref, arguments
from rlprof.overlap.callgraph import Call, CallGraph
from rlprof.overlap.execute import Executor, execute
from rlprof.overlap.specs import NodeSpec

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch can use"),
]
CYCLES_PER_S = 1.5e9  # about; `_sleep` counts cycles of a clock near 2 GHz


@pytest.fixture(autouse=True)
def cuda():
    torch.cuda.init()
    torch.ones(1, device="cuda").sum().item()
    torch.cuda._sleep(1000)
    torch.cuda.synchronize()


def graph(calls: list[tuple[str, str, tuple[Binding, ...]]], output: Binding, streams=None) -> CallGraph:
    """Calls of (name, component, arguments), each in a stream of its component."""
    nodes = {"r": NodeSpec("r", None)}
    made, own = [], {}
    for place, (name, component, args) in enumerate(calls):
        node = f"r/{name.split('#')[0]}"
        nodes[node] = NodeSpec(node, "r", component=component)
        made.append(Call(f"r/{name}", node, f"r/{name}", place, arguments(args, {})))
        own.setdefault(component, []).append(f"r/{name}")
    return CallGraph("r", nodes, {}, tuple(made), tuple(streams or own.values()), output)


def sleep_s(seconds: float) -> None:
    torch.cuda._sleep(int(seconds * CYCLES_PER_S))


def slow_fill(value: float, n: int = 1 << 20):
    sleep_s(0.05)
    return torch.full((n,), value, device="cuda")


def test_a_call_is_complete_when_its_device_work_is():
    made = graph([("fill", "A", ()), ("add", "B", (Ref("r/fill"),))], Ref("r/add"))
    entries = {"r/fill": lambda: slow_fill(3.0), "r/add": lambda x: x + 1}
    output, record = execute(made, entries, {})
    assert bool((output == 4).all())
    runs = {run.task: run for run in record.tasks}
    assert runs["r/fill"].returned_ns - runs["r/fill"].start_ns < 20e6
    assert runs["r/fill"].end_ns - runs["r/fill"].returned_ns > 20e6
    assert runs["r/add"].start_ns >= runs["r/fill"].end_ns


def test_components_overlap_on_the_device():
    made = graph([("a", "A", ()), ("b", "B", ())], Pack("tuple", (0, 1), (Ref("r/a"), Ref("r/b"))))
    entries = {"r/a": lambda: slow_fill(1.0, 4), "r/b": lambda: slow_fill(2.0, 4)}
    executor = Executor(made, entries, {})
    executor.run(((), {}))

    def timed(function) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    one = timed(lambda: slow_fill(1.0, 4))
    both = timed(lambda: executor.run(((), {})))
    assert both < 1.5 * one
    streams = {id(stream) for stream in executor._streams._streams.values()}
    executor.run(((), {}))
    assert {id(stream) for stream in executor._streams._streams.values()} == streams  # kept, as their memory


def test_work_of_the_caller_is_waited_for_on_the_device():
    side = torch.cuda.Stream()
    made = graph([("add", "A", (External((0, 0)),))], Ref("r/add"))
    for stream in (side, torch.cuda.default_stream()):
        with torch.cuda.stream(stream):
            x = slow_fill(5.0)
            output, _ = execute(made, {"r/add": lambda x: x + 1}, {}, ((x,), {}))
            total = output.sum()
        stream.synchronize()
        assert float(total) == 6.0 * (1 << 20)


def test_device_and_stream_are_those_of_the_component_in_every_thread():
    seen = {}

    def note(name):
        seen[name] = (
            torch.cuda.current_device(),
            torch.cuda.current_stream().cuda_stream,
            threading.get_ident(),
        )
        return torch.ones(2, device="cuda")

    made = graph(
        [("a", "A", ()), ("b", "B", ()), ("a#1", "A", ())], Pack("tuple", (0, 1), (Ref("r/a"), Ref("r/b")))
    )
    caller = torch.cuda.current_stream().cuda_stream
    executor = Executor(made, {"r/a": lambda: note("a"), "r/b": lambda: note("b")}, {})
    executor.run(((), {}))
    first = dict(seen)
    executor.run(((), {}))
    assert {name: where[:2] for name, where in seen.items()} == {n: w[:2] for n, w in first.items()}
    assert len({first["a"][1], first["b"][1], caller}) == 3


def test_the_stream_of_a_component_has_its_priority_in_every_copy():
    seen = {}

    def note(name):
        seen[name] = torch.cuda.current_stream().priority
        return torch.ones(2, device="cuda")

    made = graph(
        [("a", "policy", ()), ("b", "simulator", ())], Pack("tuple", (0, 1), (Ref("r/a"), Ref("r/b")))
    )
    calls = {"r/a": lambda: note("a"), "r/b": lambda: note("b")}
    for first, wanted in ((None, (0, 0)), ("policy", (-1, 0)), ("simulator", (0, -1))):
        priorities = {} if first is None else {first: -1}
        output, _ = Executor(made, calls, {}, stream_priorities=priorities).run(((), {}))
        assert (seen["a"], seen["b"]) == wanted
        assert all(bool((x == 1).all()) for x in output)


def test_a_component_that_goes_first_waits_less_for_another_ones_blocks():
    """Small kernels of A beside ones of B that fill the device many times over."""
    small, large = torch.ones(1 << 16, device="cuda"), torch.ones(6144, 6144, device="cuda")

    def light():
        x = small
        for _ in range(50):
            x = x * 1.0
        torch.cuda.current_stream().synchronize()
        return x

    def heavy():
        y = large
        for _ in range(20):
            y = y @ large * 1e-4
        return y

    made = graph([("a", "A", ()), ("b", "B", ())], Pack("tuple", (0, 1), (Ref("r/a"), Ref("r/b"))))
    taken = {}
    for first in ("B", "A"):
        executor = Executor(made, {"r/a": light, "r/b": heavy}, {}, stream_priorities={first: -1})
        times = []
        for _ in range(7):
            _, record = executor.run(((), {}))
            times += [run.end_ns - run.start_ns for run in record.tasks if run.task == "r/a"]
        taken[first] = sorted(times)[len(times) // 2] / 1e6
    print("small kernels last, first:", taken, "ms")
    assert taken["A"] < 1.1 * taken["B"]


def test_memory_that_another_component_still_reads_is_not_given_away():
    """B reads what A made in a kernel that waits, and drops it; A makes more on the host meanwhile."""
    n, steps = 1 << 22, 8
    dropped = [threading.Event() for _ in range(steps)]
    sums = []

    class Keeper:
        kept = None

        def take(self, i, x):
            if self.kept is not None:
                sleep_s(0.02)
                sums.append(self.kept.double().mean())
            self.kept = x  # the other is free, on the host, from now on
            dropped[i].set()
            return x.new_zeros(1)

    def fill(i):
        if i > 1:
            assert dropped[i - 1].wait(10)
        return torch.full((n,), float(i), device="cuda")

    calls, entries, keeper = [], {}, Keeper()
    for i in range(steps):
        calls += [(f"fill{i}", "A", ()), (f"take{i}", "B", (Ref(f"r/fill{i}"),))]
        entries |= {f"r/fill{i}": partial(fill, i), f"r/take{i}": partial(keeper.take, i)}
    made = graph(calls, Ref(f"r/take{steps - 1}"))
    execute(made, entries, {})
    assert [float(s) for s in sums] == [float(i) for i in range(steps - 1)]


def test_memory_of_the_output_is_not_given_away_while_the_caller_uses_it():
    made = graph([("fill", "A", (External((0, 0)),))], Ref("r/fill"))
    executor = Executor(made, {"r/fill": lambda v: torch.full((1 << 22,), v, device="cuda")}, {})
    streams, sums = [torch.cuda.Stream(), torch.cuda.Stream()], []
    for i in range(8):
        with torch.cuda.stream(streams[i % 2]):
            output, _ = executor.run(((float(i),), {}))
            sleep_s(0.02)  # on the caller's stream, which the next run does not know of
            sums.append(output.double().mean())
            del output
    torch.cuda.synchronize()
    assert [float(s) for s in sums] == [float(i) for i in range(8)]


def test_coroutines_are_complete_when_their_device_work_is():
    async def later():
        return slow_fill(2.0)

    made = graph([("fill", "A", ()), ("host", "B", (Ref("r/fill"),))], Ref("r/host"))
    done = {}

    def host(x):
        done["on stream"] = torch.cuda.current_stream().query()
        return x.cpu()

    output, _ = execute(made, {"r/fill": later, "r/host": host}, {})
    assert bool((output == 2).all())
    assert done["on stream"]


def test_cuda_that_comes_into_use_in_a_run_is_waited_for(tmp_path):
    code = """
import torch
from rlprof.overlap.execute import execute
from tests.overlap.test_device import graph
from rlprof.overlap.bindings import Ref
assert not torch.cuda.is_initialized()
def first():
    x = torch.zeros(4, device="cuda") + 1
    torch.cuda._sleep(1_000_000_000)
    return x
made = graph([("a", "A", ()), ("b", "B", (Ref("r/a"),))], Ref("r/b"))
output, record = execute(made, {"r/a": first, "r/b": lambda x: torch.cuda.default_stream().query()}, {})
assert output is True
"""
    import subprocess
    import sys

    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


class Network:
    """A policy whose bits depend on the size of the batch, and a simulator in state by sample, on one GPU."""

    SAMPLES = 48

    def __init__(self):
        draw = torch.Generator(device="cuda").manual_seed(1)
        shapes = [(64, 257), (257, 129), (129, 64)]
        self.weights = [torch.randn(s, generator=draw, device="cuda") / s[0] ** 0.5 for s in shapes]
        self.position = torch.zeros(self.SAMPLES, 64, device="cuda")

    def infer(self, obs):
        for weight in self.weights:
            obs = torch.tanh(obs @ weight)
        return obs

    def step(self, action, samples=None):
        rows = torch.arange(self.SAMPLES) if samples is None else torch.from_numpy(samples)
        rows = rows.cuda()
        self.position[rows] = 0.9 * self.position[rows] + action
        return self.position[rows].clone()

    def rollout(self, obs):
        seen = []
        with torch.no_grad():
            for _ in range(4):
                obs = self.step(self.infer(obs))
                seen.append(obs)
        return seen


def wrapped_network():
    from rlprof.overlap import Batch, ExecutionNode, Program, State, reads, updates, wrap

    net = Network()
    program = Program()
    region = ExecutionNode(program, net.rollout)
    weights = State("W", net.weights, component="policy", rollout_weights=True)
    env = State("ENV", net.position, component="simulator", partitions=net.SAMPLES, by_sample=True)
    wrap(net, "infer", region, reads(weights), component="policy", batch=Batch())
    wrap(net, "step", region, updates(env), component="simulator", batch=Batch(samples="samples"))
    return net, program, region


def test_a_split_rollout_on_the_gpu_equals_the_native_one_within_a_tolerance():
    from rlprof.overlap.equality import distance
    from rlprof.overlap.replay import replay
    from rlprof.overlap.semantics import Watch, compare, of_graph
    from rlprof.overlap.transforms import interleave, split_spatial
    from rlprof.taskgraph import verify

    net, program, region = wrapped_network()
    start = torch.linspace(-1, 1, net.SAMPLES * 64, device="cuda").reshape(net.SAMPLES, 64)
    with program.record(region) as recorder:
        for _ in range(2):
            region(start)
    graph = program.graph(recorder.recording)
    split = interleave(split_spatial(graph, "rollout", 3), "rollout")
    entries = {path: node for path, node in program.nodes.items() if not node.is_marked}
    states = {"ENV": net.position, "W": net.weights}
    how = {"rtol": 1e-4, "atol": 1e-5}
    report = replay(graph, split, entries, recorder.recording.constants, ((start,), {}), states=states, **how)
    assert report.passed
    assert len(report.calls) == 8
    print(report.equality, report.to_frame() if not _without_polars() else "")
    kept = net.position.clone()
    wanted = region(start)
    net.position.copy_(kept)
    watches = []
    program.install(split, watch=lambda: watches.append(Watch(split)) or watches[-1])
    got = region(start)
    far = distance(got, wanted, rtol=1e-3, atol=1e-4)
    print("installed, from the native run:", far)
    assert far.within
    assert not compare(of_graph(graph), watches[0].record)
    replacement = program.table["rollout"]
    assert not verify(replacement.executor.tasks, replacement.last_record)
    assert {run.worker for run in replacement.last_record.tasks} == {"policy", "simulator"}


def _without_polars() -> bool:
    from importlib.util import find_spec

    return find_spec("polars") is None


def test_device_work_of_a_failed_run_is_over_when_the_error_is_raised():
    x = torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()  # the side stream does not wait for the one that fills it
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # loading a kernel for the first time waits for all work
        x.add_(0)
        x.sum().item()
    torch.cuda.synchronize()

    def broken():
        sleep_s(0.1)
        x.add_(1)
        raise ValueError("after the launch")

    made = graph([("a", "A", ()), ("b", "B", ())], Ref("r/a"))
    with pytest.raises(ValueError, match="after the launch"):
        execute(made, {"r/a": broken, "r/b": lambda: None}, {})
    with torch.cuda.stream(side):
        total = float(x.sum())  # waits for nothing but itself
    assert total == 1 << 20
