"""Objects in processes of their own: real processes."""

from __future__ import annotations

import copy
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np
import pytest

from rlprof.errors import RlprofError, UsageError
from rlprof.overlap import Batch, Draws, ExecutionNode, LocalWorker, State, updates
from rlprof.overlap.bindings import Ref
from rlprof.taskgraph.errors import TransferError
from tests.overlap.programs import Simulator


class Draw:
    """Draws keyed numbers wherever it runs."""

    def __init__(self) -> None:
        self.draws = Draws(3)

    def normal(self, rows: int, samples: object = None) -> np.ndarray:
        return np.asarray(self.draws.normal(rows, (2,)))

    def process(self) -> int:
        return os.getpid()

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def fail(self) -> None:
        raise KeyError("gone")


@pytest.fixture(scope="module")
def draw() -> Iterator[LocalWorker]:
    with LocalWorker("draw", Draw) as worker:
        yield worker


def test_methods_run_in_another_process(draw: LocalWorker) -> None:
    assert draw.process() == draw.process_id != os.getpid()
    future = draw.process.submit()
    assert isinstance(future, Future)
    assert future.result(50) == draw.process_id
    with pytest.raises(KeyError, match="gone"):
        draw.fail()


def test_draws_in_the_process_are_keyed_by_the_call_here(draw: LocalWorker) -> None:
    here = Draw()
    found = [
        ExecutionNode(None, lambda entry=entry: entry(3), name="main")()
        for entry in (here.normal, draw.normal)
    ]
    assert (found[0] == found[1]).all()


def test_methods_of_workers_are_nodes(draw: LocalWorker) -> None:
    env = State("ENV", draw, partitions=3, by_sample=True)
    root = ExecutionNode(None, lambda: use(node(3)), name="main")
    node = ExecutionNode(root, draw.normal, updates(env), batch=Batch(samples="samples"))
    use = ExecutionNode(root, lambda x: None, name="use", stateless=True)
    recording = root.program.record(root, run=lambda: [root(), root()])
    assert recording.runs[0][2].arguments.items[0].items == (Ref("main/normal"),)  # type: ignore[union-attr]
    assert node.parameters == ("rows", "samples")
    assert node.component == recording.states["ENV"].component == "draw"
    assert node.owner is draw


def test_a_spare_worker_takes_a_call(draw: LocalWorker) -> None:
    with LocalWorker("spare", Draw) as spare:
        env = State("ENV", draw, copies=[spare])
        node = ExecutionNode(None, draw.process, updates(env))
        assert node.rebind({"ENV": 1})() == spare.process_id


def test_a_worker_that_is_killed_is_named_soon() -> None:
    with LocalWorker("victim", Draw) as worker:
        future = worker.wait.submit(60)
        time.sleep(0.1)
        began = time.monotonic()
        os.kill(worker.process_id, signal.SIGKILL)
        with pytest.raises(RlprofError, match=r"worker victim: .* killed by signal 9"):
            future.result(50)
        assert time.monotonic() - began < 40
        with pytest.raises(RlprofError):
            worker.process()


def test_a_closed_worker_and_one_that_cannot_be_made() -> None:
    with pytest.raises(RlprofError, match="worker broken could not be made"):
        LocalWorker("broken", Simulator, "not a seed", "nor a number")
    with pytest.raises(UsageError, match="cannot be pickled"):
        LocalWorker("local", lambda: 3)
    worker = LocalWorker("short", Draw)
    process = worker.process_id
    worker.close()
    worker.close()
    with pytest.raises(UsageError, match="worker short is closed"):
        worker.process()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    with pytest.raises(UsageError, match="cannot be copied"):
        copy.copy(worker)


def test_an_argument_that_cannot_travel_costs_no_state(draw: LocalWorker) -> None:
    process = draw.process()
    with pytest.raises(TransferError, match="cannot be pickled"):
        draw.wait(lambda: 1)
    with pytest.raises(AttributeError, match="nothing"):
        draw.nothing()
    assert draw.process() == process
