"""Checked mode: every wrong declaration is named, right ones are not, and nothing is left changed."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlprof.overlap import Batch, ExecutionNode, LoopNode, Program, State, reads, refreshes, updates, wrap
from rlprof.overlap.check_report import CheckReport
from rlprof.overlap.checked import check_declarations
from rlprof.overlap.contents import Contents
from rlprof.overlap.errors import UndeclaredReadError, UndeclaredWriteError, WrapError
from rlprof.overlap.specs import Mode
from tests.overlap.programs import Wrapped, final_state, wrapped

SIZES = {"samples": 2, "epochs": 1, "chunks": 2, "minibatches": 1}


def check(w: Wrapped, **options: Any) -> CheckReport:
    return check_declarations(w.program, lambda: w.trainer.train(2), **options)


def faults(report: CheckReport) -> set[tuple[str, str, str]]:
    return {(f.fault, f.node.rpartition("/")[2], f.state) for f in report.findings}


def test_right_declarations_have_no_fault() -> None:
    report = check(wrapped(**SIZES))
    assert report.findings == ()
    assert report.never_written == ()
    assert report.not_checked == ()
    ran = {path.rpartition("/")[2]: n for path, n in report.run_again.items()}
    assert ran == {"sync": 2, "reset": 2, "infer": 4, "step": 4, "advantage": 2, "shuffle": 2, "update": 2}
    assert "0 faults" in str(report)
    report.raise_first()


DECLARED = [(n, a.name) for n, node in wrapped(**SIZES).nodes.items() for a in node.accesses]


def declare(node: ExecutionNode, state: str, mode: Mode | None) -> None:
    """Change what a node declares of a state; None: nothing."""
    changed = (replace(a, mode=mode) if a.name == state else a for a in node.accesses)  # type: ignore[arg-type]
    node.accesses = tuple(a for a in changed if a.mode is not None)
    node.is_stateless = not node.accesses


@pytest.mark.parametrize(("name", "state"), DECLARED)
def test_every_removed_declaration_is_found(name: str, state: str) -> None:
    w = wrapped(**SIZES)
    mode = next(a.mode for a in w.nodes[name].accesses if a.name == state)
    declare(w.nodes[name], state, None)
    found = faults(check(w))
    expected = "undeclared read" if mode == "read" else "undeclared write"
    assert (expected, name, state) in found
    assert {(node, of) for _, node, of in found} == {(name, state)}, "and nothing else"


@pytest.mark.parametrize(("name", "state"), DECLARED)
@pytest.mark.parametrize("said", ["read", "update", "refresh"])
def test_every_wrong_mode_is_found(name: str, state: str, said: Mode) -> None:
    w = wrapped(**SIZES)
    mode = next(a.mode for a in w.nodes[name].accesses if a.name == state)
    declare(w.nodes[name], state, said)
    report = check(w)
    if said == mode or (mode, said) == ("refresh", "update"):
        assert not report.findings, "an update says more than a refresh: safe"
    elif mode == "read":
        expected = {"update": set(), "refresh": {("not a refresh", name, state)}}[said]
        assert faults(report) == expected
        assert (w.nodes[name].path, state) in report.never_written
    elif said == "read":
        assert ("undeclared write", name, state) in faults(report)
    else:
        assert ("not a refresh", name, state) in faults(report)


def test_training_goes_on_as_if_nobody_had_looked() -> None:
    plain, watched = wrapped(**SIZES), wrapped(**SIZES)
    plain.trainer.train(1)
    watched.trainer.train(1)
    check(watched)
    plain.trainer.train(2)
    watched.trainer.train(2)
    for name, array in final_state(plain.trainer).items():
        assert np.array_equal(array, final_state(watched.trainer)[name]), name


def snapshot(w: Wrapped) -> dict[str, bytes]:
    objects = {"t": w.trainer, "p": w.trainer.policy, "s": w.trainer.simulator, "l": w.trainer.learner}
    return {path: place.digest() for path, place in Contents(objects).places.items()}


@pytest.mark.parametrize("failing", ["run", "step"])
def test_everything_is_put_back_when_something_raises(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    w = wrapped(**SIZES)
    calls = {"n": 0}

    def boom(*_: Any, **__: Any) -> Any:
        calls["n"] += 1
        w.trainer.simulator.position += 1
        raise ValueError("boom")

    def run() -> None:
        w.trainer.train(1)
        if failing == "run":
            boom()
        w.nodes["step"]._entry = boom
        w.program.refresh()
        w.nodes["step"](np.zeros((2, 2)))

    before, theta, weights = snapshot(w), w.trainer.learner.theta, w.trainer.policy.weights
    randomness = random.getstate()
    with pytest.raises(ValueError, match="boom"):
        check_declarations(w.program, run)
    assert calls["n"] == 1
    assert snapshot(w) == before
    assert w.trainer.learner.theta is theta
    assert w.trainer.policy.weights is weights
    assert random.getstate() == randomness
    for node in w.program.nodes.values():
        assert node.is_marked or node.switch.target == node.entry, "natives run again"


class Counter:
    """Small objects for one fault each."""

    def __init__(self) -> None:
        self.value, self.other = np.zeros(2), np.ones(2)
        self.seen: list[float] = []
        self.outside: Any = None

    def bump(self) -> None:
        self.value += 1

    def bump_other(self) -> None:
        self.other += 1

    def sum(self) -> float:
        return float(self.value.sum())

    def sometimes(self) -> float:
        if self.value[0] > 2:
            self.other += 1
        return 0.0

    def fails_if_changed(self) -> None:
        if self.value[0] != int(self.value[0]):
            raise ValueError("other numbers")


def program_of(counter: Counter, *names: str, **declared: Any) -> tuple[Program, Any]:
    program = Program()

    def body() -> None:
        for name in names:
            getattr(counter, name)()

    iteration = LoopNode(None, program, body, name="iteration")
    value, other = State("VALUE", counter.value), State("OTHER", counter.other)
    program.add(value)
    program.add(other)
    known = {"VALUE": value, "OTHER": other}
    for name in names:
        accesses = [make(known[s]) for make, s in declared.get(name, ())]
        wrap(counter, name, iteration, *accesses, stateless=not accesses)
    return program, lambda: [iteration() for _ in range(4)]


def test_a_write_is_told_with_node_state_and_first_call() -> None:
    counter = Counter()
    program, run = program_of(counter, "bump", "sometimes", bump=[(updates, "VALUE")])
    report = check_declarations(program, run, reads=False)
    (finding,) = report.findings
    assert (finding.node, finding.state) == ("iteration/sometimes", "OTHER")
    assert finding.call == "iteration[2]/sometimes", "the first call that does it"
    with pytest.raises(UndeclaredWriteError, match=r"iteration/sometimes writes state OTHER.*iteration\[2\]"):
        report.raise_first()


def test_a_read_is_told() -> None:
    program, run = program_of(Counter(), "bump", "sum", bump=[(updates, "VALUE")])
    report = check_declarations(program, run)
    with pytest.raises(
        UndeclaredReadError, match=r"iteration/sum depends on state VALUE.*its result differs"
    ):
        report.raise_first()
    assert check_declarations(program, run, reads=False).findings == ()


def test_an_exception_is_a_result_too() -> None:
    program, run = program_of(Counter(), "bump", "fails_if_changed", bump=[(updates, "VALUE")])
    (finding,) = check_declarations(program, run).findings
    assert "raised ValueError" in finding.detail


def test_what_never_changes_need_not_be_declared() -> None:
    """One version only: no order can mix it up."""
    counter = Counter()
    program, run = program_of(counter, "sum", "bump_other", bump_other=[(updates, "OTHER")])
    assert check_declarations(program, run).findings == ()


def test_the_guilty_state_is_told_among_several() -> None:
    program, run = program_of(
        Counter(), "bump", "bump_other", "sum", bump=[(updates, "VALUE")], bump_other=[(updates, "OTHER")]
    )
    assert faults(check_declarations(program, run)) == {("undeclared read", "sum", "VALUE")}


def test_a_declared_write_that_never_happens_is_a_note() -> None:
    program, run = program_of(Counter(), "sum", sum=[(updates, "VALUE")])
    report = check_declarations(program, run)
    assert report.findings == ()
    assert report.never_written == (("iteration/sum", "VALUE"),)
    assert "never wrote VALUE" in str(report)


def test_writes_between_calls_are_told() -> None:
    counter, program = Counter(), Program()

    def body() -> None:
        counter.bump()
        counter.value *= 2

    iteration = LoopNode(None, program, body, name="iteration")
    wrap(counter, "bump", iteration, updates(State("VALUE", counter.value)))
    report = check_declarations(program, lambda: [iteration() for _ in range(2)])
    assert faults(report) == {("write between calls", "iteration", "VALUE")}
    assert "wrap that code" in str(report)
    assert check_declarations(program, iteration, opaque={"iteration"}).findings != ()


def test_one_unit_may_write_in_its_own_code_what_it_declares() -> None:
    counter, program = Counter(), Program()
    value = State("VALUE", counter.value)

    def body() -> None:
        counter.bump_other()
        counter.value += 1

    iteration = LoopNode(None, program, body, updates(value), name="iteration")
    wrap(counter, "bump_other", iteration, updates(State("OTHER", counter.other)))
    assert check_declarations(program, lambda: [iteration() for _ in range(2)]).findings == ()


class Bank:
    def __init__(self) -> None:
        self.cells = {"a": np.zeros(2), "b": np.zeros(2)}

    def put(self, key: str) -> None:
        self.cells[key] += 1

    def get(self, key: str) -> float:
        return float(self.cells[key].sum())


@pytest.mark.parametrize(("put", "get", "expected"), [
    ("a", "b", set()),
    ("b", "b", {("undeclared write", "put", "BANK")}),
    ("a", "a", {("undeclared read", "get", "BANK")}),
])  # fmt: skip
def test_partitions_are_told_apart(put: str, get: str, expected: set[tuple[str, str, str]]) -> None:
    """Declared: put writes a, get reads b."""
    bank, program = Bank(), Program()

    def body() -> None:
        bank.put(put)
        bank.get(get)
        bank.put2("b")  # type: ignore[attr-defined]

    bank.put2 = bank.put  # type: ignore[attr-defined]
    iteration = LoopNode(None, program, body, name="iteration")
    state = State("BANK", bank.cells)
    wrap(bank, "put2", iteration, updates(state["b"]))
    wrap(bank, "put", iteration, updates(state["a"]), name="put")
    wrap(bank, "get", iteration, reads(state["b"]))
    found = faults(check_declarations(program, lambda: [iteration() for _ in range(2)]))
    assert found == expected


def test_samples_are_told_apart() -> None:
    """A part of a batch that touches other samples' rows."""

    class Rows:
        def __init__(self) -> None:
            self.x = np.zeros((4, 2))

        def step(self, samples: Any, also: int | None = None) -> Any:
            self.x[samples] += 1
            return self.x[samples].sum() + (0 if also is None else self.x[also].sum())

        def touch(self) -> None:
            self.x += 1

    rows, program = Rows(), Program()
    iteration = LoopNode(None, program, lambda **also: rows.step(samples=np.array([0, 1]), **also), name="it")
    env = State("ENV", rows, partitions=4, by_sample=True)
    wrap(rows, "step", iteration, updates(env), batch=Batch(samples="samples"))
    everywhere = wrap(rows, "touch", program, updates(env))

    def run(**also: int) -> Any:
        return lambda: [(iteration(**also), everywhere()) for _ in range(2)]

    assert check_declarations(program, run()).findings == ()
    assert faults(check_declarations(program, run(also=3))) == {("undeclared read", "step", "ENV")}
    assert check_declarations(program, run(also=1)).findings == ()


def test_a_refresh_that_leaves_something_is_told() -> None:
    class Sim:
        def __init__(self) -> None:
            self.x, self.steps, self.size = np.zeros(3), 0, 3

        def reset(self) -> None:
            self.x[...] = np.arange(self.size)

        def step(self) -> None:
            self.x += 1
            self.steps += 1

    sim, program = Sim(), Program()

    def body() -> None:
        sim.reset()
        sim.step()

    iteration = LoopNode(None, program, body, name="iteration")
    env = State("ENV", sim)
    wrap(sim, "reset", iteration, refreshes(env))
    wrap(sim, "step", iteration, updates(env))
    (finding,) = check_declarations(program, lambda: [iteration() for _ in range(2)]).findings
    assert (finding.fault, finding.node) == ("not a refresh", "iteration/reset")
    assert "ENV.steps keeps its old value" in finding.detail, "size never changes, and is no fault"


def test_random_numbers_without_a_key_cannot_be_told_and_are_not_called_fine() -> None:
    counter, program = Counter(), Program()
    source = iter(np.random.default_rng(0).normal(size=100))
    values = [next(source) for _ in range(100)]

    class Hidden:
        taken = 0  # of the class: out of reach

        def draw(self) -> float:
            type(self).taken += 1
            return values[type(self).taken]

    hidden = Hidden()

    def body() -> None:
        counter.bump()
        hidden.draw()

    iteration = LoopNode(None, program, body, name="iteration")
    wrap(counter, "bump", iteration, updates(State("VALUE", counter.value)))
    wrap(hidden, "draw", iteration, stateless=True)
    report = check_declarations(program, lambda: [iteration() for _ in range(2)])
    assert report.findings == ()
    assert "iteration/draw" not in report.run_again
    reasons = {what: why.reason for what, why in report.not_checked}
    assert "not registered" in reasons["iteration/draw"]


def test_global_random_numbers_are_put_back() -> None:
    counter, program = Counter(), Program()
    counter.draw = lambda: np.random.random() + random.random()  # type: ignore[attr-defined]

    def body() -> None:
        counter.bump()
        counter.draw()  # type: ignore[attr-defined]

    iteration = LoopNode(None, program, body, name="iteration")
    wrap(counter, "bump", iteration, updates(State("VALUE", counter.value)))
    wrap(counter, "draw", iteration, stateless=True)
    report = check_declarations(program, lambda: [iteration() for _ in range(2)])
    assert report.not_checked == ()
    assert report.run_again["iteration/draw"] == 2


HELD: list[float] = []
filter = [0.0]  # like a built-in function


def test_what_functions_inside_an_entry_name_is_put_back() -> None:
    """Also variables of the module that are named like a built-in function."""
    counter, program = Counter(), Program()

    def draw() -> float:
        filter[0] += 1.0
        return sum(HELD.append(1.0) or float(len(HELD)) for _ in range(1))  # code of its own

    counter.draw = draw  # type: ignore[attr-defined]

    def body() -> None:
        counter.bump()
        counter.draw()  # type: ignore[attr-defined]

    iteration = LoopNode(None, program, body, name="iteration")
    wrap(counter, "bump", iteration, updates(State("VALUE", counter.value)))
    wrap(counter, "draw", iteration, stateless=True)
    report = check_declarations(program, lambda: [iteration() for _ in range(2)])
    assert report.run_again["iteration/draw"] == 2, "each call finds what it found natively"
    assert (HELD, filter) == ([], [0.0])


def test_the_program_draws_afterwards_what_it_would_have_drawn() -> None:
    """Generators that belong to everybody are where they were, and both runs see the same numbers."""
    counter, program = Counter(), Program()
    drawn: list[float] = []
    counter.draw = lambda: np.random.random() + random.random()  # type: ignore[attr-defined]

    def body() -> float:
        counter.bump()
        return counter.draw()  # type: ignore[attr-defined,no-any-return]

    iteration = LoopNode(None, program, body, name="iteration")
    wrap(counter, "bump", iteration, updates(State("VALUE", counter.value)))
    wrap(counter, "draw", iteration, stateless=True)
    random.seed(1)
    np.random.seed(1)
    expected = [np.random.random() + random.random() for _ in range(4)]
    random.seed(1)
    np.random.seed(1)
    check_declarations(program, lambda: drawn.extend([iteration() for _ in range(2)]))
    assert [np.random.random() + random.random() for _ in range(4)] == expected
    assert drawn == [*expected[:2], *expected[:2]]


def test_what_cannot_be_looked_into_is_told() -> None:
    counter = Counter()
    counter.outside = memoryview(b"abc")
    program, run = program_of(counter, "bump", "sum", bump=[(updates, "VALUE")])
    report = check_declarations(program, run)
    assert report.findings == ()
    assert report.run_again == {}
    reasons = {what: why.reason for what, why in report.not_checked}
    assert "memoryview" in reasons["iteration/sum"]


class Shared(Counter):
    def bump_both(self) -> None:
        self.value += 1


@pytest.mark.parametrize(
    ("written", "read", "expected"),
    [
        (("A", "B"), "A", set()),
        (("A", "B"), "B", set()),
        (("A", "B"), None, {"undeclared read"}),
        (("A",), "A", {"undeclared write"}),
    ],
)
def test_what_two_state_objects_hold(written: tuple[str, ...], read: str | None, expected: set[str]) -> None:
    """A write is one of both, so either is enough to wait for it."""
    counter, program = Shared(), Program()

    def body() -> None:
        counter.bump_both()
        counter.sum()

    states = {"A": State("A", {"x": counter.value}), "B": State("B", [counter.value])}
    for state in states.values():
        program.add(state)
    iteration = LoopNode(None, program, body, name="iteration")
    wrap(counter, "bump_both", iteration, updates(*(states[name] for name in written)))
    wrap(counter, "sum", iteration, *([reads(states[read])] if read else []), stateless=read is None)
    report = check_declarations(program, lambda: [iteration() for _ in range(2)])
    assert {f.fault for f in report.findings} == expected


@pytest.mark.parametrize(
    ("updated", "read", "expected"),
    [
        ("THETA OPT", "THETA", set()),
        ("THETA", "THETA", {("undeclared write", "update", "OPT"), ("undeclared read", "update", "OPT")}),
        ("OPT", "THETA", {("undeclared write", "update", "THETA"), ("undeclared read", "update", "THETA")}),
        ("THETA OPT", "OPT", {("undeclared read", "predict", "THETA")}),
    ],
)
def test_parameters_belong_to_the_module_and_not_to_its_optimiser(
    updated: str, read: str, expected: set[tuple[str, str, str]]
) -> None:
    torch = pytest.importorskip("torch")

    class Learner:
        def __init__(self) -> None:
            self.model = torch.nn.Linear(3, 2)
            self.optimiser = torch.optim.Adam(self.model.parameters(), lr=0.1)
            self.inputs = torch.arange(12.0).reshape(4, 3)

        def update(self) -> Any:
            self.optimiser.zero_grad()
            loss = self.model(self.inputs).square().mean()
            loss.backward()
            self.optimiser.step()
            return loss.detach()

        def predict(self) -> Any:
            with torch.no_grad():
                return self.model(self.inputs)

    learner, program = Learner(), Program()
    learner.update()  # the optimiser makes its state in the first step

    def body() -> None:
        learner.update()
        learner.predict()

    states = {"THETA": State("THETA", learner.model), "OPT": State("OPT", learner.optimiser)}
    for state in states.values():
        program.add(state)
    iteration = LoopNode(None, program, body, name="iteration")
    wrap(learner, "update", iteration, updates(*(states[name] for name in updated.split())))
    wrap(learner, "predict", iteration, reads(states[read]))
    before = learner.model.weight.clone()
    report = check_declarations(program, lambda: [iteration() for _ in range(2)])
    assert faults(report) == expected
    assert report.not_checked == ()
    assert torch.equal(learner.model.weight, before)


def test_what_talks_to_another_process_is_not_run_again() -> None:
    here, there = multiprocessing.Pipe()
    counter, program = Counter(), Program()

    class Remote:
        def __init__(self) -> None:
            self.connection = here

        def step(self) -> None:
            self.connection.send("step")

    def body() -> None:
        counter.bump()
        remote.step()

    remote = Remote()
    iteration = LoopNode(None, program, body, name="iteration")
    wrap(counter, "bump", iteration, updates(State("VALUE", counter.value)))
    wrap(remote, "step", iteration, stateless=True)
    try:
        report = check_declarations(program, lambda: [iteration() for _ in range(3)])
        messages = 0
        while there.poll():
            messages += there.recv() == "step"
    finally:
        here.close()
        there.close()
    assert messages == 2 * 3, "the native calls of two runs"
    assert "iteration/step" not in report.run_again
    reasons = {what: why.reason for what, why in report.not_checked}
    assert "Connection" in reasons["iteration/step"]


def test_a_fingerprint_sees_what_cannot_be_looked_into() -> None:
    class Compiled:
        """Stands for a compiled simulator: its contents are out of reach."""

        __slots__ = ("view",)

        def __init__(self) -> None:
            self.view = memoryview(bytearray(2))

        def step(self) -> None:
            self.view[0] += 1

    sim, program = Compiled(), Program()

    def body() -> None:
        step()

    iteration = LoopNode(None, program, body, name="iteration")
    program.add(State("ENV", sim))
    step = ExecutionNode(iteration, sim.step, stateless=True)

    def run() -> None:
        iteration()
        iteration()

    blind = check_declarations(program, run)
    assert blind.findings == ()
    assert any("memoryview" in why.reason for _, why in blind.not_checked), "not called fine"
    report = check_declarations(program, run, fingerprints={"ENV": lambda s: bytes(s.view)})
    assert faults(report) == {("undeclared write", "step", "ENV")}


def test_state_without_an_object_is_not_called_fine() -> None:
    program = Program()
    iteration = LoopNode(None, program, lambda: None, updates(State("REMOTE")), name="iteration")
    report = check_declarations(program, iteration)
    assert [what for what, _ in report.not_checked] == ["REMOTE"]
    assert report.never_written == (), "nobody can tell"


def test_calls_at_the_same_time_cannot_be_told_apart() -> None:
    counter, program = Counter(), Program()
    both = threading.Barrier(2, timeout=60)

    def wait() -> None:
        both.wait()
        both.wait()

    def body() -> None:
        import contextvars

        with ThreadPoolExecutor(2) as pool:
            for node in (one, two):
                pool.submit(contextvars.copy_context().run, node)

    iteration = LoopNode(None, program, body, name="iteration")
    one = ExecutionNode(iteration, wait, stateless=True, name="one")
    two = ExecutionNode(iteration, wait, stateless=True, name="two")
    program.add(State("VALUE", counter.value))
    report = check_declarations(program, iteration)
    told = {what for what, why in report.not_checked if "same time" in why.reason}
    assert told == {"iteration/one", "iteration/two"}


def test_coroutines_and_futures_are_checked_for_writes() -> None:
    counter, program = Counter(), Program()
    pool = ThreadPoolExecutor(1)

    async def later() -> None:
        await asyncio.sleep(0)
        counter.value += 1

    def submit() -> Future[None]:
        return pool.submit(counter.bump_other)

    async def body() -> None:
        await first()
        second().result()

    iteration = LoopNode(None, program, body, name="iteration")
    program.add(State("VALUE", counter.value))
    program.add(State("OTHER", counter.other))
    first = ExecutionNode(iteration, later, stateless=True)
    second = ExecutionNode(iteration, submit, stateless=True)
    try:
        report = check_declarations(program, lambda: asyncio.run(iteration()))
    finally:
        pool.shutdown()
    assert faults(report) == {("undeclared write", "later", "VALUE"), ("undeclared write", "submit", "OTHER")}
    assert {what for what, _ in report.not_checked} >= {"iteration/later", "iteration/submit"}


def test_a_program_with_a_replacement_is_not_checked() -> None:
    w = wrapped(**SIZES)
    w.program.install(w.rollout, lambda: None)
    with pytest.raises(WrapError, match="replacement"):
        check(w)
