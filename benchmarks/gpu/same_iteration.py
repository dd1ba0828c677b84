"""The same iteration in every order: what training changes is put back, and what it trained is compared.

Simulators need nothing where each epoch begins with a reset of all environments: it depends on seed, step and
epoch alone. With `auto_reset` their state is put back too.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def trained(trainer: Any) -> dict[str, Any]:
    """Tensors that training changes, by name: weights of actor and rollout, copies of 32 bits, moments."""
    actor = trainer.actor
    found: dict[str, Any] = {}
    kinds = {"master": actor.masters, "rollout": trainer.rollout.policy.trainable()}
    if actor.copies():  # otherwise the weights are trained themselves
        kinds["weight"] = actor.policy.trainable()
    for kind, tensors in kinds.items():
        found |= {f"{kind} {k}": tensor for k, tensor in enumerate(tensors)}
    for k, master in enumerate(actor.masters):
        found |= {f"{name} {k}": value for name, value in actor.optimizer.state.get(master, {}).items()}
    return found


@dataclass(frozen=True)
class Outcome:
    """What an iteration trained.

    Parameters
    ----------
    weights : list of Tensor
        Copies of the trained weights.
    logs : list of dict of str to float
        What training logged of each update: losses, the norm of the gradient.
    record : IterationRecord
        What it did.
    """

    weights: list[Any]
    logs: list[dict[str, float]]
    record: Any


class Start:
    """Where each iteration begins: copies of all that training changes.

    Parameters
    ----------
    here : Embodied
        Its trainer, its counter and its simulators; between two iterations, weights on their device.
    free_bytes : float or None
        Memory of the GPU that may be taken; None: there is none. If what is kept takes more than a quarter,
        it lies in page-locked memory of the host.
    """

    def __init__(self, here: Any, free_bytes: float | None = None) -> None:
        self._here, trainer = here, here.trainer
        now = trained(trainer)
        #: Of the copies, without those of what an order trained.
        self.kept_bytes = sum(t.numel() * t.element_size() for t in now.values())
        #: The copies are in memory of the host, though the weights are not.
        self.on_host = free_bytes is not None and 4 * self.kept_bytes > free_bytes
        self._kept = {name: self._copy(tensor) for name, tensor in now.items()}
        self.step, self.updates = here.counter.step, trainer.actor.updates
        self._version = trainer.rollout.version
        simulators = (here.simulator, *here.simulator.beside) if here.config.auto_reset else ()
        self._simulators = [(one, one.state_dict()) for one in simulators]
        #: Outcome of native training, once there is one.
        self.native: Outcome | None = None
        #: Other orders train the same bits: policy and simulator are the same sample by sample.
        self.exact = trainer.rollout.policy.spec.invariant and trainer.env.spec.invariant

    def _copy(self, tensor: Any) -> Any:
        if self.on_host and tensor.device.type != "cpu":
            import torch

            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            return host.copy_(tensor.detach())
        return tensor.detach().clone()

    def restore(self) -> None:
        """Put everything back, in place: CUDA graphs of the weights stay right."""
        trainer = self._here.trainer
        now = trained(trainer)
        if now.keys() != self._kept.keys():  # no update had been done, so that there were no moments
            trainer.actor.optimizer.state.clear()
        for name, kept in self._kept.items():
            now[name].data.copy_(kept, non_blocking=True)
        if trainer.actor.replicas.others:
            trainer.actor.replicas.take_all()
        self._here.counter.step = self.step
        trainer.actor.updates, trainer.rollout.version = self.updates, self._version
        for simulator, state in self._simulators:
            simulator.load_state_dict(state)

    def save(self, path: Path) -> None:
        """Write what is kept to a file, whole, for another process."""
        import torch

        tensors = {name: kept.cpu() for name, kept in self._kept.items()}
        counts = {"step": self.step, "updates": self.updates, "version": self._version}
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            torch.save({"config": self._here.config.to_dict(), **counts, "tensors": tensors}, beside)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)

    def load(self, path: Path) -> None:
        """Begin where another process began, instead, and go there.

        Raises
        ------
        ConfigurationError
            If it trained something else, or environments that reset by themselves, which are not in the file.
        """
        import torch

        from rlprof.workloads.embodied.errors import ConfigurationError

        found = torch.load(path, map_location="cpu", weights_only=True)
        if found["config"] != self._here.config.to_dict() or found["tensors"].keys() != self._kept.keys():
            raise ConfigurationError(f"{path} is of another configuration", hint="give another --start")
        if self._simulators:
            raise ConfigurationError("a start holds no environments", hint="leave --start away")
        for name, tensor in found["tensors"].items():
            self._kept[name].copy_(tensor)
        self.step, self.updates, self._version = (found[name] for name in ("step", "updates", "version"))
        self.restore()

    def to_dict(self) -> dict[str, Any]:
        """Facts for a result."""
        return {
            "kept": True,
            "iteration": self.step,
            "updates": self.updates,
            "kept_bytes": self.kept_bytes,
            "on_host": self.on_host,
            "exact": self.exact,
        }

    def digest(self) -> str:
        """SHA-256 of the bits of all weights and moments as they are now, to compare processes."""
        from rlprof.workloads.embodied.offload import tensors_of
        from rlprof.workloads.embodied.rollout_serve import digest

        tensors = [*tensors_of(self._here.trainer.actor.policy), *trained(self._here.trainer).values()]
        return hashlib.sha256(json.dumps(digest(tensors)).encode()).hexdigest()

    def outcome(self, measured: Any) -> Outcome:
        """What has just been trained."""
        weights = [self._copy(w) for w in self._here.trainer.actor.masters]
        return Outcome(weights, measured.result["training"], measured.record)

    def against_native(self, measured: Any, *, exact: bool | None = None) -> dict[str, Any]:
        """Compare what has just been trained with what native training gave.

        Parameters
        ----------
        measured : Measured
            The iteration.
        exact : bool, optional
            Bits must be equal; by default where policy and simulator are the same sample by sample.

        Returns
        -------
        dict of str to object
            As of `weights_apart` and `logs_apart`, and ``semantic_differences``, ``minibatches_bitwise``.
            ``equality`` is ``bitwise`` (weights, what was logged, and contents of all minibatches),
            ``semantic record``, or ``none``; ``holds`` says whether it is what it must be.
        """
        from rlprof.workloads.embodied.record import differences

        native, exact = self.native, self.exact if exact is None else exact
        if native is None:
            return {"unknown": "native training has not trained this iteration yet"}
        before = [self._kept[f"master {k}"] for k in range(len(native.weights))]
        found = weights_apart(self._here.trainer.actor.masters, native.weights, before)
        found |= logs_apart(measured.result["training"], native.logs)
        found["semantic_differences"] = differences(native.record, measured.record)
        found["minibatches_bitwise"] = not differences(native.record, measured.record, bits=True)
        bits = found["weights_bitwise"] and found["logs_bitwise"] and found["minibatches_bitwise"]
        if found["semantic_differences"]:
            return {**found, "equality": "none", "holds": False}
        return {**found, "equality": "bitwise" if bits else "semantic record", "holds": bits or not exact}


def weights_apart(now: Sequence[Any], native: Sequence[Any], before: Iterable[Any]) -> dict[str, Any]:
    """How far weights are from native ones.

    Parameters
    ----------
    now, native, before : sequence of Tensor
        Weights after an iteration, after a native one, and before both; `native` and `before` may be
        elsewhere.

    Returns
    -------
    dict of str to object
        ``weights_bitwise``; ``weights_differ_frac`` of the numbers; ``weights_abs``, the largest difference,
        and ``weights_rel``, over the largest native weight; ``updates_rel``, the norm of the difference over
        the norm of what native training changed (None: nothing), and ``update_abs``, the most that it changed
        a weight by.
    """
    import torch

    sums: dict[str, Any] = {}

    def add(name: str, value: Any, how: Any = torch.add) -> None:
        value = value.double()
        sums[name] = value if name not in sums else how(sums[name], value)

    count = 0
    for weight, *others in zip(now, native, before, strict=True):
        mine = weight.detach()
        other, old = (t.to(mine.device, non_blocking=True) for t in others)
        whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[mine.element_size()]
        add("differ", (mine.contiguous().view(whole) != other.contiguous().view(whole)).sum())
        away, moved = (mine - other).float(), (other - old).float()
        add("abs", away.abs().max(), torch.maximum)
        add("largest", other.abs().max(), torch.maximum)
        add("update", moved.abs().max(), torch.maximum)
        add("away", away.square().sum(dtype=torch.float64))
        add("moved", moved.square().sum(dtype=torch.float64))
        count += mine.numel()
    told = {name: float(value) for name, value in sums.items()}
    return {
        "weights_bitwise": told["differ"] == 0,
        "weights_differ_frac": told["differ"] / count,
        "weights_abs": told["abs"],
        "weights_rel": told["abs"] / told["largest"] if told["largest"] else None,
        "updates_rel": math.sqrt(told["away"] / told["moved"]) if told["moved"] else None,
        "update_abs": told["update"],
    }


def logs_apart(now: Sequence[Mapping[str, float]], native: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """How far what training logged is from what native training did.

    Parameters
    ----------
    now, native : sequence of mapping of str to float
        Of each update.

    Returns
    -------
    dict of str to object
        ``logs_bitwise``; of losses ``losses_abs``, the largest difference, and ``losses_rel``, over the
        largest native one of that name (None: that is 0).
    """
    away, relative = 0.0, 0.0
    for name in (n for n in native[0] if n.endswith("loss")):
        far = max(abs(a[name] - b[name]) for a, b in zip(now, native, strict=True))
        away = max(away, far)
        largest = max(abs(log[name]) for log in native)
        relative = max(relative, far / largest if largest else math.inf if far else 0.0)
    return {
        "logs_bitwise": [dict(log) for log in now] == [dict(log) for log in native],
        "losses_abs": away,
        "losses_rel": relative if math.isfinite(relative) else None,
    }


def weakest(compared: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """What holds of all comparisons (`Start.against_native`), and the largest differences; None: of none."""
    if not compared:
        return None
    order = ("none", "semantic record", "bitwise")
    found: dict[str, Any] = {
        "iterations": len(compared),
        "equality": min((one["equality"] for one in compared), key=order.index),
        "holds": all(one["holds"] for one in compared),
    }
    for name in ("weights_abs", "weights_rel", "updates_rel", "losses_abs", "losses_rel"):
        found[name] = max((one[name] for one in compared if one[name] is not None), default=None)
    return found
