from __future__ import annotations

import sys

import pytest

from rlprof.overlap import LoopNode, Program, wrap
from rlprof.overlap.bindings import External, Pack, Ref, arguments
from rlprof.overlap.callgraph import Call, CallGraph
from rlprof.overlap.execute import execute
from rlprof.overlap.modes import TorchModes, current_modes, in_modes
from rlprof.overlap.specs import NodeSpec


def test_without_torch_there_are_no_modes(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert current_modes() is None
    with in_modes(None):
        pass


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.mark.parametrize(
    "modes",
    [
        TorchModes(True, False),
        TorchModes(False, False),
        TorchModes(False, True),
        TorchModes(True, False, (("cpu", "torch.bfloat16"),)),
        TorchModes(False, False, (("cpu", "torch.bfloat16"),), False),
    ],
)
def test_modes_are_entered_and_left(torch, modes):
    for around in (TorchModes(True, False), TorchModes(False, True), modes):
        with in_modes(around):
            before = current_modes()
            with in_modes(modes):
                assert current_modes() == modes
            assert current_modes() == before
    assert current_modes() == TorchModes(True, False)


def two_streams(modes: TorchModes | None) -> CallGraph:
    nodes = {n: NodeSpec(n, None if n == "r" else "r", component=n) for n in ("r", "r/a", "r/b")}
    x = arguments((External((0, 0)),), {})
    calls = (Call("r/a", "r/a", "r/a", 0, x), Call("r/b", "r/b", "r/b", 1, x, modes=modes))
    output = Pack("tuple", (0, 1), (Ref("r/a"), Ref("r/b")))
    return CallGraph("r", nodes, {}, calls, (("r/a",), ("r/b",)), output)


def test_calls_in_threads_have_the_modes_of_the_caller_or_their_own(torch):
    def double(x):
        return x * 2

    x = torch.ones(3, requires_grad=True)
    entries = {"r/a": double, "r/b": double}
    for own in (None, TorchModes(True, False), TorchModes(False, False)):
        for caller in (True, False):
            with torch.set_grad_enabled(caller):
                (a, b), _ = execute(two_streams(own), entries, {}, ((x,), {}))
            assert a.requires_grad == caller
            assert b.requires_grad == (caller if own is None else own.grad)


class Model:
    """The code around its calls says what is recorded for gradients."""

    def __init__(self, torch):
        self.torch = torch
        self.weight = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()

    def act(self, x):
        return self.torch.tanh(x @ self.weight)

    def score(self, y):
        return (y * y).sum()

    def region(self, x):
        with self.torch.no_grad():
            y = self.act(x)
        return y, self.score(self.act(y[:, :3]))


def test_what_the_code_around_a_call_sets_is_recorded_and_holds_in_a_graph(torch):
    model = Model(torch)
    program = Program()
    region = LoopNode(None, program, model.region)
    wrap(model, "act", region, stateless=True)
    wrap(model, "score", region, stateless=True)
    xs = [torch.full((5, 3), float(i)) for i in range(3)]
    with program.record(region) as recorder:
        native = [region(x) for x in xs[:2]]
    assert not native[0][0].requires_grad
    graph = program.graph(recorder.recording)
    assert [c.modes for c in graph.calls] == [TorchModes(False, False), None, None]
    wanted = region(xs[2])
    program.install(graph)
    got = region(xs[2])
    assert torch.equal(got[0], wanted[0])
    assert torch.equal(got[1], wanted[1])
    assert [t.requires_grad for t in got] == [False, True]
    got[1].backward()
    assert model.weight.grad is not None
