"""Memory of one invocation, and the peak of every GPU (specification B, section 5). Bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rlprof.planning.cost_time import local_kv_dim
from rlprof.planning.options import ModelOptions
from rlprof.planning.pipeline import Model, Pipeline, Role
from rlprof.planning.plan import Assignment
from rlprof.planning.workload import Workload

#: fp32 master weights and two moments of Adam, per parameter.
OPTIMIZER_BYTES = 12


@dataclass(frozen=True, slots=True)
class OperatorMemory:
    """Memory that one invocation needs on each of its GPUs, term by term, in bytes.

    Parameters
    ----------
    shard_parameters : float
        W_shard, parameters of the largest stage on one GPU.
    weights_bytes : float
        Working copy of them.
    optimizer_bytes : float
        Master weights and moments; training alone, kept between steps.
    gradient_bytes : float
        Training alone.
    activation_bytes : float
        M_act.
    kv_bytes : float
        KV cache; generation alone.
    """

    shard_parameters: float
    weights_bytes: float
    optimizer_bytes: float
    gradient_bytes: float
    activation_bytes: float
    kv_bytes: float

    def transient_bytes(self, *, resident: bool) -> float:
        """A(v): what it takes while it runs; weights that are resident are not counted again."""
        weights = 0.0 if resident else self.weights_bytes
        return weights + self.gradient_bytes + self.activation_bytes + self.kv_bytes


def shard_parameters(model: Model, assignment: Assignment) -> float:
    """W_shard: the most parameters that one GPU holds; embedding and head are on each tensor rank."""
    shape, pi = model.shape, assignment.parallelism
    layers = shape.layers / pi.pipeline * shape.layer_parameters / pi.tensor
    embedding, head = shape.embedding_parameters, shape.head_parameters(model.head)
    if pi.pipeline > 1:
        return layers + max(embedding, head)
    shared = embedding if shape.tied and model.head != "scalar" else 0
    return layers + embedding + head - shared


def operator_memory(
    role: Role,
    model: Model,
    workload: Workload,
    assignment: Assignment,
    options: ModelOptions | None = None,
) -> OperatorMemory:
    """Return what one invocation needs on each GPU.

    Parameters
    ----------
    role, model, workload, assignment, options
        As for `rlprof.planning.cost_time.operator_time`.
    """
    shape, pi, mb = model.shape, assignment.parallelism, assignment.microbatches
    scalar = workload.scalar_bytes
    shard = shard_parameters(model, assignment)
    sequences = workload.sequences / (pi.data * mb)
    layers = shape.layers / pi.pipeline
    hidden = float(shape.hidden)
    ffn = shape.ffn_matrices * shape.ffn_hidden * shape.active_experts
    buffer = max(2 * hidden + 6 * hidden / pi.tensor, 2 * hidden + ffn / pi.tensor)
    kv = 0.0
    if role == "training":
        chunk = max(1, round(math.sqrt(layers)))
        kept = math.ceil(layers / chunk) * hidden + chunk * buffer
        activations = scalar * min(mb, pi.pipeline) * sequences * workload.sequence_tokens * kept
    else:
        length = workload.prompt_tokens if role == "generation" else workload.sequence_tokens
        logits = float(shape.outputs(model.head))
        if role == "generation" and options is not None and options.prefill_logits == "last":
            logits /= length
        activations = scalar * sequences * length * max(buffer, hidden + logits)
        if role == "generation":
            replica = workload.sequences / pi.data
            kv = 2.0 * scalar * replica * workload.sequence_tokens * layers * local_kv_dim(model, pi.tensor)
    trains = role == "training"
    return OperatorMemory(
        shard_parameters=shard,
        weights_bytes=shard * scalar,
        optimizer_bytes=OPTIMIZER_BYTES * shard / pi.data if trains else 0.0,
        gradient_bytes=shard * scalar / pi.data if trains else 0.0,
        activation_bytes=activations,
        kv_bytes=kv,
    )


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """GPUs that hold the same, and what.

    Parameters
    ----------
    mask : int
        The GPUs, as bits.
    invocations : tuple of int
        Positions of the invocations that run there.
    persistent : tuple of (str, float)
        By model: what is kept between invocations, in bytes.
    transient : tuple of (int, float)
        By position of the invocation: what it adds while it runs, in bytes.
    """

    mask: int
    invocations: tuple[int, ...]
    persistent: tuple[tuple[str, float], ...]
    transient: tuple[tuple[int, float], ...]

    @property
    def peak_bytes(self) -> float:
        """All that is kept, and the most that one invocation adds."""
        return sum(b for _, b in self.persistent) + max((b for _, b in self.transient), default=0.0)


def same_gpus(masks: Sequence[int], everything: int = 0) -> list[tuple[int, tuple[int, ...]]]:
    """Divide GPUs into groups that are in the same of the given sets.

    Parameters
    ----------
    masks : sequence of int
        Sets, as bits.
    everything : int
        Further GPUs, which may be in none of them.

    Returns
    -------
    list of (int, tuple of int)
        Each group as bits, and the positions of the sets that it is in; lowest GPU first.
    """
    union = everything
    for mask in masks:
        union |= mask
    groups: list[tuple[int, tuple[int, ...]]] = [(union, ())] if union else []
    for i, mask in enumerate(masks):
        divided = []
        for group, inside in groups:
            if group & mask:
                divided.append((group & mask, (*inside, i)))
            if group & ~mask:
                divided.append((group & ~mask, inside))
        groups = divided
    return sorted(groups, key=lambda g: g[0] & -g[0])


def resident_invocations(pipeline: Pipeline, masks: Sequence[int]) -> list[bool]:
    """Return whether the weights of each invocation stay: frozen, or a copy kept beside training."""
    resident = []
    for i, v in enumerate(pipeline.invocations):
        trained = pipeline.training.get(v.model)
        if trained is None:
            resident.append(True)
        else:
            resident.append(pipeline.tau[v.model] > 0 and not masks[i] & masks[trained])
    return resident


def group_memory(
    pipeline: Pipeline,
    masks: Sequence[int],
    memory: Sequence[OperatorMemory],
    fused: dict[int, int] | None = None,
) -> tuple[GroupMemory, ...]:
    """Return what every group of GPUs holds under a plan.

    Parameters
    ----------
    pipeline : Pipeline
        With its staleness budgets.
    masks : sequence of int
        GPUs of each invocation, as bits.
    memory : sequence of OperatorMemory
        Of each invocation.
    fused : dict of int to int, optional
        Invocations that run as one: their transient memory adds.
    """
    resident = resident_invocations(pipeline, masks)
    groups = []
    for mask, inside in same_gpus(masks):
        kept: dict[str, float] = {}
        for i in inside:
            model = pipeline.invocations[i].model
            if resident[i] and memory[i].weights_bytes > kept.get(model, 0.0):
                kept[model] = memory[i].weights_bytes
        for i in inside:  # training wins
            if pipeline.invocations[i].role == "training":
                kept[pipeline.invocations[i].model] = memory[i].optimizer_bytes
        adds = {i: memory[i].transient_bytes(resident=resident[i]) for i in inside}
        for first, second in (fused or {}).items():
            if first in adds:
                adds[first] += adds.pop(second)
        groups.append(GroupMemory(mask, inside, tuple(sorted(kept.items())), tuple(adds.items())))
    return tuple(groups)
