"""A rollout worker in a process of its own: a CUDA context, and under MPS a share of the SMs, of its own.

Weights that training changes go to it through shared memory; the others are made there from the same seed,
which is checked. One call at a time.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rlprof.workloads.embodied import errors, noise
from rlprof.workloads.embodied.contracts import (
    NUMBERS,
    Floats,
    GlobalStep,
    Observation,
    PolicyOutput,
    PolicySpec,
    Samples,
    SimulatorSpec,
)
from rlprof.workloads.embodied.errors import (
    RolloutDiedError,
    RolloutError,
    RolloutTimeoutError,
    need,
)
from rlprof.workloads.embodied.rollout_serve import digest, layout, put, take
from rlprof.workloads.embodied.simulators.served import ServedProcess, surroundings

if TYPE_CHECKING:
    from rlprof.workloads.embodied.actor import Actor
    from rlprof.workloads.embodied.config import Config
    from rlprof.workloads.embodied.record import Watch

MODULE = "rlprof.workloads.embodied.rollout_serve"


class RemotePolicy:
    """What others may ask of a policy that is in another process: its sizes, and its trained weights."""

    def __init__(self, worker: RolloutProcess, spec: PolicySpec) -> None:
        self._worker, self.spec = worker, spec

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the trained weights."""
        return self._worker.weights()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take trained weights."""
        self._worker.load_weights(state)


class RolloutProcess:
    """See the module; methods are those of `rlprof.workloads.embodied.rollout_worker.RolloutWorker`.

    Parameters
    ----------
    config : Config
        Of the run.
    simulator : SimulatorSpec
        What the policy acts in.
    actor : Actor
        Whose weights it follows.
    environment : mapping of str to str, optional
        Variables beside those of this process, such as its MPS share.
    start_timeout_s : float
        Longest time for starting, in seconds.

    Raises
    ------
    RolloutError
        If it does not start, or has other weights than the actor.
    """

    def __init__(
        self,
        config: Config,
        simulator: SimulatorSpec,
        actor: Actor,
        *,
        environment: Mapping[str, str] | None = None,
        start_timeout_s: float = 300.0,
    ) -> None:
        self.timeout_s, self.version = config.timeout_s, 0
        self.watch: Watch | None = None
        #: Why denoise steps run eagerly there, where CUDA graphs were asked for.
        self.refused: str | None = None
        #: Why layers run eagerly there, where they were to be compiled.
        self.compile_refused: str | None = None
        self._lock = threading.Lock()
        self._broken: str | None = None
        self._failure: RolloutError | None = None
        self._weights = actor.policy.trainable()
        self._names = [n for n, p in actor.policy.named_parameters() if p.requires_grad]
        self._process = ServedProcess(0, sys.executable, surroundings(environment), MODULE)
        try:
            self._process.send({"config": config.to_dict(), "simulator": asdict(simulator)})
            facts = self._answer("start", start_timeout_s)
            self.policy = RemotePolicy(self, PolicySpec(**facts["policy"]))
            if facts["digest"] != digest(list(actor.policy.parameters())):
                raise RolloutError(
                    "the process of the rollout made other weights than the actor has",
                    hint="let both compute on devices of the same kind, or leave --rollout-process away",
                )
            self._process.share(layout(simulator, self.policy.spec, facts["weights_bytes"]))
        except BaseException:
            self._end("it did not start")
            raise

    @property
    def process_id(self) -> int:
        """Id of the process."""
        return self._process.process.pid

    # calls -------------------------------------------------------------------------------------------------

    def sync_model_from_actor(self, actor: Actor) -> None:
        """Take the weights of the actor that training changes."""
        with self._lock:
            put(self._weights, self._process.shared["weights"])
            self._call("take_weights")
        self.version = actor.updates

    def predict(
        self, observation: Observation, step: GlobalStep, epoch: int, chunk: int, samples: Samples = None
    ) -> PolicyOutput:
        """Answer an observation."""
        answer = self._answered("predict", observation, step, epoch, chunk, samples)
        if self.watch is not None:
            self.watch.predicted(answer, epoch, chunk, samples, self.version)
        return answer

    def predict_values(
        self, observation: Observation, step: GlobalStep, epoch: int, chunk: int, samples: Samples = None
    ) -> Floats:
        """Value of what is seen after the last chunk, shape (batch,)."""
        values = self._answered("predict_values", observation, step, epoch, chunk, samples).value
        if self.watch is not None:
            self.watch.valued(values, epoch, chunk, samples, self.version)
        return values

    def answer_again(
        self, observation: Observation, step: GlobalStep, epoch: int, chunk: int, samples: Samples = None
    ) -> PolicyOutput:
        """Answer an observation natively, and tell no watch."""
        return self._answered("answer_again", observation, step, epoch, chunk, samples)

    def offload(self, device: str = "cpu") -> None:  # noqa: ARG002 - as of the worker
        """Move the weights off the accelerator."""
        with self._lock:
            self._call("offload")

    def reload(self, device: str) -> None:
        """Move the weights back."""
        with self._lock:
            self._call("reload", device=device)

    def weights(self) -> dict[str, Any]:
        """Copies of the trained weights, by name."""
        torch = need("torch", why="a policy")
        copies = [torch.empty_like(w, device="cpu") for w in self._weights]
        with self._lock:
            self._call("put_weights")
            take(copies, self._process.shared["weights"])
        return dict(zip(self._names, copies, strict=True))

    def load_weights(self, state: dict[str, Any]) -> None:
        """Take trained weights by name."""
        with self._lock:
            put([state[name] for name in self._names], self._process.shared["weights"])
            self._call("take_weights")

    def close(self) -> None:
        """End the process; once is enough."""
        if self._broken is None:
            with suppress(RolloutError), self._lock:
                self._process.send({"call": "close"})
                self._answer("close", min(self.timeout_s, 5.0))
        self._end("it was closed")

    # messages ----------------------------------------------------------------------------------------------

    def _answered(
        self,
        call: str,
        observation: Observation,
        step: GlobalStep,
        epoch: int,
        chunk: int,
        samples: Samples,
    ) -> PolicyOutput:
        n, shared = len(observation.state), self._process.shared
        with self._lock:
            shared["rows"][:n] = noise.rows(n, samples)
            for name, values in observation._asdict().items():
                if values is not None:
                    shared[name][:n] = values
            self._call(call, count=n, step=step.index, epoch=epoch, chunk=chunk)
            return PolicyOutput(*(shared[name][:n].copy() for name in NUMBERS))

    def _call(self, call: str, **values: Any) -> None:
        if self._broken is not None:
            kind, hint = RolloutError, "make a new one"
            if self._failure is not None:
                kind, hint = type(self._failure), self._failure.hint or hint
            raise kind(f"the rollout's process is no more: {self._broken}", hint=hint)
        self._process.send({"call": call, **values})
        answer = self._answer(call, self.timeout_s)
        self.refused, self.compile_refused = answer.get("refused"), answer.get("compile_refused")

    def _answer(self, call: str, limit_s: float) -> dict[str, Any]:
        connection, interruption = self._process.connection, None
        try:
            try:
                there = connection.poll(limit_s)
            except KeyboardInterrupt as caught:  # an answer that nobody takes would be that to the next call
                interruption = caught
                try:
                    there = connection.poll(limit_s)
                except KeyboardInterrupt:  # again
                    self._end(f"{call} was interrupted")
                    raise
            if not there:
                error: RolloutError = RolloutTimeoutError(
                    f"the rollout's process did not answer to {call} within {limit_s:g} s and was ended",
                    hint="raise timeout_s",
                )
                self._fail(error)
                raise error
            answer: dict[str, Any] = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            error = RolloutDiedError(
                f"the rollout's process {self._process.how_it_ended()} during {call}",
                hint="look at its memory, and run without --rollout-process to see why",
            )
            self._fail(error)
            raise error from None
        if interruption is not None:
            raise interruption
        if "error" in answer:
            kind = getattr(errors, answer["error"], RolloutError)
            raise kind(f"the rollout's process: {answer['what']}", hint=answer["hint"])
        return answer

    def _fail(self, error: RolloutError) -> None:
        self._failure = error
        self._end(error.what)

    def _end(self, why: str) -> None:
        if self._broken is None:
            self._broken = why
            self._process.end()
