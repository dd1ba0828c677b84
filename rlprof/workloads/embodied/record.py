"""What an iteration did, whatever its bits: versions of weights, order of updates, contents of minibatches.

Samples are told by the chain that their answer left: who answered which observation is seen where it is
answered, and what a minibatch holds is looked up there. So a sample that came from elsewhere is noticed.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlprof.errors import OutputError
from rlprof.workloads.embodied import noise
from rlprof.workloads.embodied.contracts import (
    NUMBERS,
    Array,
    Batch,
    Floats,
    GlobalStep,
    Observation,
    PolicyOutput,
    Samples,
    Trajectory,
)

if TYPE_CHECKING:
    from rlprof.workloads.embodied.trainer import Trainer

NAME = "semantic_record.jsonl"
#: A sample of the rollout: epoch, chunk, environment.
Sample = tuple[int, int, int]


@dataclass(frozen=True)
class Update:
    """One optimiser step.

    Parameters
    ----------
    number : int
        Updates before it.
    samples : str
        SHA-256 of its samples (epoch, chunk, environment, version of the weights), in their order.
    bits : str
        SHA-256 of what they hold, images and prefixes left out.
    """

    number: int
    samples: str
    bits: str


@dataclass(frozen=True)
class IterationRecord:
    """Of one iteration; two of equal `iteration` can be compared.

    Parameters
    ----------
    iteration : int
        Its number.
    versions : dict of str to int
        How many samples were answered, or valued, with which version of the weights: ``"predict 8"``.
    uses : str
        SHA-256 of which sample used which version, sorted.
    updates : tuple of Update
        In the order in which they were done.
    """

    iteration: int
    versions: dict[str, int]
    uses: str
    updates: tuple[Update, ...] = field(default=())


class Watch:
    """Sees the calls of rollout worker and actor, and writes the record of each iteration.

    Give it to `RolloutWorker.watch` and `Actor.watch`. Calls may come from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uses: list[tuple[str, Sample, int]] = []
        self._answered: dict[bytes, tuple[Sample, int]] = {}
        self._updates: list[Update] = []

    def predicted(self, output: PolicyOutput, epoch: int, chunk: int, samples: Samples, version: int) -> None:
        """Observations were answered."""
        ids = [(epoch, chunk, int(k)) for k in noise.rows(len(output.chain), samples)]
        with self._lock:
            for sample, chain in zip(ids, output.chain, strict=True):
                self._uses.append(("predict", sample, version))
                self._answered[_digest([chain])] = (sample, version)

    def valued(self, values: Floats, epoch: int, chunk: int, samples: Samples, version: int) -> None:
        """Last observations were valued."""
        with self._lock:
            for k in noise.rows(len(values), samples):
                self._uses.append(("values", (epoch, chunk, int(k)), version))

    def trained(self, batch: Batch, rows: Array, number: int) -> None:
        """An optimiser step was done on some rows of a batch."""
        with self._lock:
            found = [self._answered.get(_digest([chain])) for chain in batch.chain[rows]]
        told = json.dumps(found).encode()
        held = [batch.observation.state, batch.observation.task, *batch[1:-1]]
        bits = _digest([a[rows] for a in held]).hex()
        with self._lock:
            self._updates.append(Update(number, hashlib.sha256(told).hexdigest(), bits))

    def take(self, iteration: int) -> IterationRecord:
        """Return the record since the last one, and begin a new one."""
        with self._lock:
            uses, self._uses = sorted(self._uses), []
            updates, self._updates = tuple(self._updates), []
            self._answered = {}
        counts = Counter(f"{kind} {version}" for kind, _, version in uses)
        told = hashlib.sha256(json.dumps(uses).encode()).hexdigest()
        return IterationRecord(iteration, dict(counts), told, updates)


def _digest(arrays: Iterable[Any]) -> bytes:
    state = hashlib.sha256()
    for array in arrays:
        state.update(np.ascontiguousarray(array).tobytes())
    return state.digest()


def watch(trainer: Trainer) -> Watch:
    """Have the workers of a trainer tell a new watch what they do."""
    trainer.rollout.watch = trainer.actor.watch = seen = Watch()
    return seen


def native(trainer: Trainer, iteration: int, version: int) -> IterationRecord:
    """Return what the plain loop does in an iteration, by its order alone; bits are empty.

    Parameters
    ----------
    trainer : Trainer
        Its sizes and seed.
    iteration : int
        Number of the iteration.
    version : int
        Updates before it: all of its answers use these weights.
    """
    envs, epochs, chunks = trainer.env.spec.envs, range(trainer.epochs), range(trainer.chunks)
    uses = [("predict", (e, c, k), version) for e in epochs for c in chunks for k in range(envs)]
    if trainer.actor.algorithm.uses_value:
        uses += [("values", (e, trainer.chunks, k), version) for e in epochs for k in range(envs)]
    parts = [list(epochs)] if trainer.parts == 1 else [[e] for e in epochs]
    updates: list[Update] = []
    size = trainer.actor.global_batch
    for update_epoch in range(trainer.update_epochs):
        for part, of in enumerate(parts):
            samples = [((e, c, k), version) for e in of for c in chunks for k in range(envs)]
            order = trainer.actor.order(len(samples), GlobalStep(iteration), part, update_epoch)
            for m in range(trainer.minibatches):
                told = json.dumps([samples[row] for row in order[m * size : (m + 1) * size]]).encode()
                updates.append(Update(version + len(updates), hashlib.sha256(told).hexdigest(), ""))
    counts = Counter(f"{kind} {v}" for kind, _, v in uses)
    told = json.dumps(sorted(uses)).encode()
    return IterationRecord(iteration, dict(counts), hashlib.sha256(told).hexdigest(), tuple(updates))


def differences(wanted: IterationRecord, seen: IterationRecord, *, bits: bool = False) -> list[str]:
    """Compare two records of one iteration exactly; a sentence for each difference.

    Parameters
    ----------
    wanted, seen : IterationRecord
        For example `native` and what a `Watch` saw.
    bits : bool
        Also compare what minibatches hold.
    """
    found = []
    if wanted.iteration != seen.iteration:
        found.append(f"iteration {seen.iteration} is compared with {wanted.iteration}")
    if wanted.uses != seen.uses or wanted.versions != seen.versions:
        found.append(f"versions of weights: {seen.versions} instead of {wanted.versions}, or other samples")
    numbers = [[u.number for u in r.updates] for r in (wanted, seen)]
    if numbers[0] != numbers[1]:
        found.append(f"updates {numbers[1]} instead of {numbers[0]}")
    for a, b in zip(wanted.updates, seen.updates, strict=False):
        if a.samples != b.samples:
            found.append(f"update {b.number} is of other samples, or in another order")
        elif bits and a.bits != b.bits:
            found.append(f"samples of update {b.number} hold other numbers")
    return found


def append(path: Path, record: IterationRecord) -> None:
    """Add a line to a file of records.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")
    except OSError as error:
        raise OutputError(f"the record cannot be written ({error.strerror})", where=path) from error


@dataclass(frozen=True)
class Tolerance:
    """How far an answer may be from what the native policy says of it.

    Parameters
    ----------
    chain : float
        Largest absolute difference of a number of a chain, where the native policy answers once more.
    log_prob : float
        Largest absolute difference of the log-probability of a recorded chain, by the root of the numbers in
        it: if each number is off by this share of its standard deviation, independently of the others, the
        log-probability is off by this share times that root.
    """

    chain: float
    log_prob: float


#: By the type of the weights, fixed before anything is replayed. In 32 bits other kernels round in the last
#: of 24 binary places; a velocity is a sum of thousands of products, divided by little noise in late steps.
#: bfloat16 has 8 places: activations of a network of some tens of layers differ by a percent between kernels,
#: which moves a chain of length 1 by as much, and a number of it by up to a few percent of its noise.
TOLERANCES = {"float32": Tolerance(1e-4, 1e-4), "bfloat16": Tolerance(0.03, 0.03)}


@dataclass(frozen=True)
class Replayed:
    """Answers checked against the native policy: largest absolute differences, over all calls.

    Parameters
    ----------
    calls : int
        Native calls (one for all environments) that were replayed.
    actions, log_prob, value, chain : float
        Of each part of an answer that is given again from the same noise. `log_prob` of a flow policy is a
        function of that noise alone, so it says nothing about the answer.
    evaluated : float
        Of the recorded log-probability from that which the native policy gives to the recorded chain.
    numbers : int
        In a chain, without its start: what the log-probability is a sum over.
    dtype : str
        Type of the weights, a key of `TOLERANCES`.
    """

    calls: int
    actions: float
    log_prob: float
    value: float
    chain: float
    evaluated: float
    numbers: int
    dtype: str

    @property
    def bitwise(self) -> bool:
        """Answers that were given again have the same bits."""
        return self.actions == self.log_prob == self.value == self.chain == 0

    @property
    def tolerance(self) -> Tolerance:
        """How large differences may be: of chains, and of log-probabilities as they are."""
        of = TOLERANCES[self.dtype]
        return Tolerance(of.chain, of.log_prob * math.sqrt(self.numbers))

    @property
    def passed(self) -> bool:
        """Chains, and the log-probabilities of recorded chains, are within the tolerance."""
        limit = self.tolerance
        return self.chain <= limit.chain and self.evaluated <= limit.log_prob


def replay_answers(
    trainer: Trainer, trajectories: list[Trajectory], step: GlobalStep, *, most_calls: int | None = None
) -> Replayed:
    """Give the native policy what was observed, and the noise, once more: all environments in one call.

    It also says how probable the chains that were recorded are; that depends on every point of them.
    The rollout worker must have the weights that answered: call it after the iteration, on the device.

    Parameters
    ----------
    trainer : Trainer
        Whose rollout worker answers, eagerly and natively.
    trajectories : list of Trajectory
        Of the iteration.
    step : GlobalStep
        Its number.
    most_calls : int, optional
        Replay only so many calls, evenly spread.
    """
    calls = [(e, c) for e, t in enumerate(trajectories) for c in range(len(t.outputs))]
    if most_calls is not None and most_calls < len(calls):
        calls = [calls[int(k)] for k in np.linspace(0, len(calls) - 1, most_calls)]
    worst = dict.fromkeys(NUMBERS, 0.0)
    evaluated, numbers = 0.0, 0
    for epoch, chunk in calls:
        seen, given = trajectories[epoch].observations[chunk], trajectories[epoch].outputs[chunk]
        again = trainer.rollout.answer_again(seen, step, epoch, chunk)
        for name in worst:
            worst[name] = _most(worst[name], getattr(again, name), getattr(given, name))
        _, points, horizon, action_dim = given.chain.shape
        numbers = max(1, points - 1) * horizon * action_dim
        for rows in _parts(len(given.chain), trainer.actor.micro_batch):
            images = None if seen.images is None else seen.images[rows]
            part = Observation(seen.state[rows], images, seen.task[rows])
            log_prob = trainer.rollout.log_prob_again(part, given.chain[rows])
            evaluated = _most(evaluated, log_prob, given.log_prob[rows])
    dtype = str(trainer.actor.policy.dtype).removeprefix("torch.")
    return Replayed(len(calls), **worst, evaluated=evaluated, numbers=numbers, dtype=dtype)


def _parts(size: int, most: int) -> list[slice]:
    """Rows of a batch, so many at a time: as many as training evaluates at once."""
    return [slice(at, at + most) for at in range(0, size, most)]


def _most(before: float, a: Floats, b: Floats) -> float:
    """Largest absolute difference so far; infinite once one is no number."""
    here = float(np.abs(a - b).max(initial=0.0))
    return max(before, here) if math.isfinite(here) else math.inf
