"""A rollout worker in a process of its own: a CUDA context, and under MPS a share of the SMs, of its own.

Weights that training changes go to it through shared memory. All are made there from the same seed first;
those that differ from the actor's are handed over, once, in pieces: random numbers of a GPU depend on its
kind, and on the SMs that a process has of it. One call at a time.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rlprof.errors import RlprofError
from rlprof.interrupts import postponed
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
from rlprof.workloads.embodied.offload import tensors_of
from rlprof.workloads.embodied.rollout_serve import (
    PIECE_BYTES,
    cut,
    digest,
    kinds,
    layout,
    pieces,
    put,
    take,
)
from rlprof.workloads.embodied.simulators.served import STOPPED, ServedProcess, is_stopped, surroundings

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
        Longest time until its policy is made, in seconds.
    piece_bytes : int
        Most bytes of weights that are handed over at once.

    Attributes
    ----------
    handed_over_bytes : int
        Weights that were handed over in pieces so far, because it had other ones.

    Raises
    ------
    RolloutError
        If it does not start, or does not have the weights of the actor then.
    """

    def __init__(
        self,
        config: Config,
        simulator: SimulatorSpec,
        actor: Actor,
        *,
        environment: Mapping[str, str] | None = None,
        start_timeout_s: float = 300.0,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self.timeout_s, self.version = config.timeout_s, 0
        self.handed_over_bytes, self._piece_bytes = 0, piece_bytes
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
            if facts["kinds"] != kinds(tensors_of(actor.policy)):
                raise RolloutError(
                    "the process of the rollout made a policy of other sizes than the actor's",
                    hint="start it with the configuration that the actor was made with",
                )
            self._process.share(layout(simulator, self.policy.spec, facts["weights_bytes"]))
            with self._lock:
                self._hand_over(actor, facts["digest"])
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

    def take_all(self, actor: Actor) -> None:
        """Take all weights of the actor that are others here, also those that training leaves as they are.

        Raises
        ------
        RolloutError
            If they are other ones still.
        """
        with self._lock:
            self._hand_over(actor, self._call("digest")["digest"])
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

    def log_prob_again(self, observation: Observation, chain: Floats) -> Floats:
        """Log-probability of chains that were answered, shape (batch,)."""
        n, shared = len(chain), self._process.shared
        with self._lock:
            for name, values in (*observation._asdict().items(), ("chain", chain)):
                if values is not None:
                    shared[name][:n] = values
            self._call("log_prob_again", count=n)
            found: Floats = shared["log_prob"][:n].copy()
            return found

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
        try:
            if self._broken is None:
                with suppress(RolloutError), self._lock:
                    self._exchange({"call": "close"}, min(self.timeout_s, 5.0))
        finally:
            self._end("it was closed")

    # messages ----------------------------------------------------------------------------------------------

    def _hand_over(self, actor: Actor, there: list[int]) -> None:
        """Let it have the weights of the actor, given the digests of its own."""
        tensors = tensors_of(actor.policy)
        wanted = digest(tensors)
        # numbers of a tensor that it has already are not cut into pieces
        sizes = [
            (0 if a == b else t.numel(), t.element_size())
            for t, a, b in zip(tensors, wanted, there, strict=True)
        ]
        memory = self._process.shared["weights"]
        for load in pieces(sizes, min(self._piece_bytes, len(memory))):
            put(cut(tensors, load), memory)
            self._call("take_pieces", pieces=load)
            self.handed_over_bytes += sum(piece.numbers * sizes[piece.which][1] for piece in load)
        if any(count for count, _ in sizes) and self._call("digest")["digest"] != wanted:
            raise RolloutError(
                "the process of the rollout has other weights than the actor, also after it was given them",
                hint="let nothing train while it starts, or leave --rollout-process away",
            )

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

    def _call(self, call: str, **values: Any) -> dict[str, Any]:
        if self._broken is not None:
            kind, hint = RolloutError, "make a new one"
            if self._failure is not None:
                kind, hint = type(self._failure), self._failure.hint or hint
            raise kind(f"the rollout's process is no more: {self._broken}", hint=hint)
        answer = self._exchange({"call": call, **values}, self.timeout_s)
        self.refused, self.compile_refused = answer.get("refused"), answer.get("compile_refused")
        return answer

    def _exchange(self, order: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Send an order and take its answer: one that nobody takes would be that to the next call.

        An interruption waits for the answer; a second one, or whatever else comes between, ends the process.
        """
        with postponed():
            try:
                self._process.send(order)
                return self._answer(order["call"], limit_s)
            except RlprofError:
                raise
            except BaseException:
                self._end(f"{order['call']} was interrupted")
                raise

    def _answer(self, call: str, limit_s: float) -> dict[str, Any]:
        connection = self._process.connection
        try:
            there = connection.poll(limit_s)
            if not there:
                process = self._process.process.pid
                stopped = is_stopped(process)
                why = f": it was stopped (process {process})" if stopped else ""
                error: RolloutError = RolloutTimeoutError(
                    f"the rollout's process did not answer to {call} within {limit_s:g} s and was ended{why}",
                    hint=STOPPED if stopped else "raise timeout_s",
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
