"""The asynchronous schedule: rollouts go on while the actor trains, with weights that may be behind.

As in RLinf's asynchronous runner: the actor waits for enough epochs that are fresh enough, trains,
and publishes its weights, which the rollout worker takes between two chunks. Data whose weights are more than
`staleness` versions behind is dropped and counted. What is trained depends on timing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from rlprof.taskgraph.threads import take_torch_threads
from rlprof.workloads.embodied.activity import Span
from rlprof.workloads.embodied.contracts import GlobalStep, Trajectory
from rlprof.workloads.embodied.errors import SimulatorTimeoutError, WorkloadError
from rlprof.workloads.embodied.trainer import Trainer

#: Epochs that are kept for the actor; older ones are dropped.
KEPT_EPOCHS = 64


class _Epoch(NamedTuple):
    version: int
    trajectory: Trajectory


class AsynchronousTrainer:
    """Iterations of a trainer whose rollouts never stop; close it.

    Parameters
    ----------
    trainer : Trainer
        Its workers; nothing else may use them meanwhile.
    staleness : int
        Versions by which the weights of data may be behind.
    timeout_s : float
        Longest time without a new epoch, in seconds.
    first : int
        Number of the first rollout, which keys its random numbers.
    """

    def __init__(
        self, trainer: Trainer, *, staleness: int = 1, timeout_s: float = 600.0, first: int = 0
    ) -> None:
        self.trainer, self.staleness, self.timeout_s = trainer, staleness, timeout_s
        self.version = 0
        self.dropped = self._told_dropped = 0
        self._ready: deque[_Epoch] = deque()
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        # the rollout worker holds `turn` during a chunk; who holds `following` gets it next
        self._turn, self._following = threading.Lock(), threading.Lock()
        self._native = trainer.chunk
        trainer.rollout.sync_model_from_actor(trainer.actor)
        trainer.chunk = self._chunks
        self._thread = threading.Thread(
            target=self._rollouts, args=(first,), name="rlprof rollout", daemon=True
        )
        self._thread.start()

    def iteration(self, step: GlobalStep) -> dict[str, Any]:
        """One iteration of training: trajectories, what training logs, versions of data, epochs dropped.

        Raises
        ------
        Exception
            What the rollout raised.
        SimulatorTimeoutError
            If no fresh epoch came in time.
        """
        phases: dict[str, Span] = {}
        with _timed(phases, "generate_rollouts"):  # what the actor waits
            fresh = self._fresh()
        trajectories = [epoch.trajectory for epoch in fresh]
        with _timed(phases, "cal_adv_and_returns"):
            batches = self.trainer.cal_adv_and_returns(trajectories)
        with _timed(phases, "actor_training"):
            training = self.trainer.actor_training(batches, step)
        with _timed(phases, "sync_weights"), self.paused():
            self._publish()
            lag = [self.version - epoch.version for epoch in fresh]
            self.version += 1
        dropped = self.dropped  # between iterations too
        since, self._told_dropped = dropped - self._told_dropped, dropped
        return {
            "trajectories": trajectories,
            "training": training,
            "phases": phases,
            "staleness": lag,
            "dropped_epochs": since,
        }

    def _publish(self) -> None:
        """Give the rollout the weights; what it raises is of the next iteration: this one is trained."""
        try:
            self.trainer.rollout.sync_model_from_actor(self.trainer.actor)
        except Exception as error:
            with self._changed:
                self._failure = error
                self._ready.clear()  # which weights it has is not known
            self._stop.set()

    def _fresh(self) -> list[_Epoch]:
        wanted = self.trainer.epochs
        until = time.monotonic() + self.timeout_s
        with self._changed:
            while True:
                while self._ready and self._ready[0].version < self.version - self.staleness:
                    self._ready.popleft()
                    self.dropped += 1
                if len(self._ready) >= wanted:  # also where the rollout has failed since
                    return [self._ready.popleft() for _ in range(wanted)]
                if self._failure is not None:
                    raise self._failure
                if not self._changed.wait(max(0.0, until - time.monotonic())):
                    raise SimulatorTimeoutError(
                        f"no {wanted} fresh rollout epochs within {self.timeout_s:g} s",
                        hint="raise the staleness, or the time limit",
                    )

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Between two chunks of the rollout, which goes on after the block."""
        with self._following:
            self._turn.acquire()
        try:
            yield
        finally:
            self._turn.release()

    def close(self) -> None:
        """Stop the rollout after its present chunk."""
        self._stop.set()
        self._thread.join(self.timeout_s)
        self.trainer.chunk = self._native
        if self._thread.is_alive():
            raise WorkloadError("the rollout does not end", hint="end this process")

    # the rollout's thread ----------------------------------------------------------------------------------

    def _rollouts(self, number: int) -> None:
        take_torch_threads()
        try:
            while not self._stop.is_set():
                for epoch in range(self.trainer.epochs):
                    with self._turn:
                        version = self.version
                        made = self.trainer.rollout_epoch(GlobalStep(number), epoch)
                    self._put(_Epoch(version, made))
                number += 1
        except _Stopped:
            return
        except BaseException as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _put(self, epoch: _Epoch) -> None:
        with self._changed:
            self._ready.append(epoch)
            if len(self._ready) > KEPT_EPOCHS:
                self._ready.popleft()
                self.dropped += 1
            self._changed.notify_all()
        with self._following:
            pass

    def _chunks(self, chunks: Iterable[int]) -> Iterator[int]:
        for chunk in self._native(chunks):
            if self._stop.is_set():
                raise _Stopped
            self._turn.release()
            try:
                with self._following:  # whoever wants to come in between does so now
                    pass
            finally:
                self._turn.acquire()
            yield chunk


class _Stopped(Exception):
    """The rollout was told to end."""


@contextmanager
def _timed(spans: dict[str, Span], name: str) -> Iterator[None]:
    from rlprof.capture.annotate import annotate

    started = time.monotonic_ns()
    with annotate(name):
        yield
    spans[name] = Span(started, time.monotonic_ns())
