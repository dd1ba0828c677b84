"""Ray actors' methods as nodes; with a real Ray on this machine."""

# ruff: noqa: PLW0108  (lambdas call what is defined after them)
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rlprof.overlap import ExecutionNode, Program, State, reads, updates, wrap
from rlprof.overlap.bindings import Ref
from rlprof.overlap.errors import WrapError

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow


class Policy:
    def infer(self, obs: Any) -> dict[str, Any]:
        return {"action": obs * 2.0, "value": obs.sum(axis=1)}

    def fail(self) -> None:
        raise ValueError("no")


class Simulator:
    def __init__(self, start: float) -> None:
        self.position = np.full((4, 3), start)

    def step(self, action: Any) -> Any:
        self.position = self.position + action
        return self.position.copy()


@pytest.fixture(scope="module")
def actors() -> Iterator[tuple[Any, Any, Any]]:
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, configure_logging=False)
    policy = ray.remote(Policy).remote()
    yield policy, ray.remote(Simulator).remote(1.0), ray.remote(Simulator).remote(2.0)
    ray.shutdown()


def test_remote_methods_are_wrapped_where_they_are_called(actors: tuple[Any, Any, Any]) -> None:
    policy, simulator, spare = actors
    w, env = State("W", policy), State("ENV", simulator, copies=[spare])

    def rollout() -> Any:
        obs = np.random.default_rng().normal(size=(4, 3))
        obs = make(obs)
        action = ray.get(policy.infer.remote(obs))["action"]
        first = simulator.step.remote(action)
        obs = ray.get(first)
        second = policy.infer.remote(first)  # the reference, not what it stands for
        return ray.get([second, simulator.step.remote(obs)])

    program = Program()
    root = ExecutionNode(program, rollout, name="rollout")
    make = ExecutionNode(root, lambda x: x.copy(), name="make", stateless=True)
    before = policy.infer
    infer = wrap(policy, "infer", root, reads(w))
    step = wrap(simulator, "step", root, updates(env))
    assert rollout()[0]["value"].shape == (4,)
    recording = program.record(root, run=lambda: [root(), root()])
    assert ray.get.__module__.startswith("ray")
    for run in recording.runs:
        args = {i.id: i.arguments.items[0].items for i in run}  # type: ignore[union-attr]
        assert args["rollout/step"] == (Ref("rollout/infer", ("action",)),)
        assert args["rollout/infer#1"] == (Ref("rollout/step"),)
        assert args["rollout/step#1"] == (Ref("rollout/step"),)
        assert run[0].output.items == (Ref("rollout/infer#1"), Ref("rollout/step#1"))  # type: ignore[union-attr]
        assert all(i.return_ns > i.start_ns for i in run)
    assert (infer.component, step.component) == ("Policy", "Simulator")
    moved = ray.get(step.rebind({"ENV": 1})(np.zeros((4, 3))))
    assert float(moved[0, 0]) == 2.0
    program.unwrap()
    assert type(policy.infer) is type(before)


def test_a_failing_remote_call_closes_its_record(actors: tuple[Any, Any, Any]) -> None:
    policy, _, _ = actors
    root = ExecutionNode(None, lambda: rollout(), name="rollout")
    fail = ExecutionNode(root, policy.fail)

    def rollout() -> None:
        with pytest.raises(ValueError, match="no"):
            ray.get(fail())

    recording = root.program.record(root, run=lambda: [root(), root()])
    assert [i.failed for i in recording.runs[0]] == [False, True]


def test_nothing_is_to_be_called_on_something_else() -> None:
    with pytest.raises(WrapError, match="entry of node x"):
        ExecutionNode(None, object(), name="x")  # type: ignore[arg-type]
