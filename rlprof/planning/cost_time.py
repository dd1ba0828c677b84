"""Time of one invocation, one transfer, one reshard (specification B, section 4). Seconds, bytes, FLOP.

What real machines need beyond the printed formulas (`rlprof.planning.cluster.EXTRA_UNITS`) is 0 with
constants that do not have it: fixed time of each layer's kernels, elementwise kernels between the products,
reads of the head, slow reads of the KV cache, a host that launches too slowly.

Every term is kept, so that `rlprof.planning.explain` can show where a time comes from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlprof.planning.cluster import Cluster, LinkRate
from rlprof.planning.options import ModelOptions
from rlprof.planning.pipeline import Model, Role
from rlprof.planning.plan import Assignment, Box, tier_between
from rlprof.planning.workload import Workload


def all_reduce_s(size_bytes: float, ranks: int, link: LinkRate) -> float:
    """2 (p - 1) alpha + 2 (p - 1) / p M beta, M the buffer of each GPU; 0 for one rank."""
    return 2 * (ranks - 1) * link.alpha_s + 2 * (ranks - 1) / ranks * size_bytes * link.beta_s


def all_gather_s(size_bytes: float, ranks: int, link: LinkRate) -> float:
    """(p - 1) alpha + (p - 1) / p M beta, M the gathered buffer; 0 for one rank."""
    return (ranks - 1) * link.alpha_s + (ranks - 1) / ranks * size_bytes * link.beta_s


def reduce_scatter_s(size_bytes: float, ranks: int, link: LinkRate) -> float:
    """(p - 1) alpha + (p - 1) / p M beta, M the buffer of each GPU; 0 for one rank."""
    return all_gather_s(size_bytes, ranks, link)


def all_to_all_s(size_bytes: float, ranks: int, link: LinkRate) -> float:
    """(p - 1) alpha + M beta, M the bytes that each GPU exchanges; 0 for one rank."""
    return (ranks - 1) * link.alpha_s + size_bytes * link.beta_s if ranks > 1 else 0.0


def p2p_s(size_bytes: float, link: LinkRate) -> float:
    """Alpha + M beta."""
    return link.alpha_s + size_bytes * link.beta_s


def transfer_s(payload_bytes: float, source: Box, target: Box, cluster: Cluster) -> float:
    """Time of a Comm: all pairs of GPUs move their part at once, over the slowest level between them."""
    link = cluster.hardware.link("p2p", tier_between(source, target))
    return p2p_s(payload_bytes / min(source.size, target.size), link)


def reshard_s(payload_bytes: float, box: Box, cluster: Cluster) -> float:
    """Time of a Reshard: an AllToAll of each GPU's share of the weights."""
    if box.size == 1:
        return 0.0
    return all_to_all_s(payload_bytes / box.size, box.size, cluster.hardware.link("collective", box.tier))


def forward_flop(model: Model, tokens: float, attended: float, outputs: float) -> float:
    """FLOP of a forward pass.

    Parameters
    ----------
    model : Model
        Shape and head.
    tokens : float
        n, tokens that go through the layers.
    attended : float
        c, mean length that each of them attends to.
    outputs : float
        h, tokens of which the head is computed.
    """
    shape = model.shape
    layers = 2.0 * tokens * shape.layers * shape.active_layer_parameters
    attention = 4.0 * tokens * attended * shape.query_dim * shape.layers
    return layers + attention + 2.0 * outputs * shape.hidden * shape.outputs(model.head)


@dataclass(frozen=True, slots=True)
class GemmPass:
    """The matrix products of one kind of pass: a roofline of compute and memory, and the pipeline's bubble.

    Parameters
    ----------
    work_flop : float
        W, of all GPUs and microbatches.
    intensity_flop_per_byte : float
        I, FLOP per byte moved, of one GPU.
    efficiency_frac : float
        eta, share of the peak that products of this shape reach.
    rate_flops : float
        F_eff, what one GPU does.
    gemm_s, bubble_s : float
        Time with all stages busy, and of waiting for the pipeline to fill and drain.
    layers_s, elementwise_s : float
        Fixed time of the kernels of all layers, and what kernels beside the products move: hidden vectors
        and logits.
    launch_s : float
        Waiting for the host, which launches more slowly than the device computes.
    """

    work_flop: float
    intensity_flop_per_byte: float
    efficiency_frac: float
    rate_flops: float
    gemm_s: float
    bubble_s: float
    layers_s: float = 0.0
    elementwise_s: float = 0.0
    launch_s: float = 0.0

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.gemm_s + self.bubble_s + self.layers_s + self.elementwise_s + self.launch_s


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """T_op of one invocation, term by term, in seconds.

    Parameters
    ----------
    main : GemmPass
        Inference and training: everything; generation: the prefill.
    decode : GemmPass or None
        Generation: all decode steps.
    tp_s, pp_s, dp_s : float
        Collectives of tensor parallelism, transfers between stages, gradients. Generation: of the prefill.
    decode_tp_s, decode_pp_s : float
        The same of the decode steps.
    nongemm_s : float
        Norms, residuals, activations.
    optimizer_s : float
        Adam's update.
    """

    main: GemmPass
    decode: GemmPass | None
    tp_s: float
    pp_s: float
    dp_s: float
    decode_tp_s: float
    decode_pp_s: float
    nongemm_s: float
    optimizer_s: float

    @property
    def bubble_s(self) -> float:
        """T_bubble of all passes."""
        return self.main.bubble_s + (self.decode.bubble_s if self.decode else 0.0)

    @property
    def prefill_s(self) -> float:
        """All but the decode steps."""
        return self.main.total_s + self.tp_s + self.pp_s + self.dp_s + self.nongemm_s + self.optimizer_s

    @property
    def decode_s(self) -> float:
        """All decode steps; 0 for inference and training."""
        if self.decode is None:
            return 0.0
        return self.decode.total_s + self.decode_tp_s + self.decode_pp_s

    @property
    def total_s(self) -> float:
        """T_op."""
        return self.prefill_s + self.decode_s


@dataclass(frozen=True, slots=True)
class _Setting:
    """What all terms of one invocation need."""

    model: Model
    workload: Workload
    at: Assignment
    cluster: Cluster
    sequences: float

    @property
    def layers_per_stage(self) -> float:
        return self.model.shape.layers / self.at.parallelism.pipeline


def operator_time(
    role: Role,
    model: Model,
    workload: Workload,
    assignment: Assignment,
    cluster: Cluster,
    options: ModelOptions | None = None,
    *,
    sequence_frac: float = 1.0,
) -> OperatorTime:
    """Return the time of one invocation, T_op = T_gemm + T_bubble + T_comm + T_nongemm + T_opt.

    Parameters
    ----------
    role, model : str, Model
        What is done, of which model.
    workload : Workload
        B, R, L_p, L_r, s_b.
    assignment : Assignment
        Box (only its size and tier count), parallelism, microbatches.
    cluster : Cluster
        Constants, and N_g.
    options : ModelOptions, optional
        Choices of the cost model.
    sequence_frac : float
        Only this share of the sequences is processed: a response-length phase of an inference.
    """
    options = options or ModelOptions()
    s = _Setting(model, workload, assignment, cluster, workload.sequences * sequence_frac)
    if role == "generation":
        return _generation(s, options)
    training = role == "training"
    length, mb = workload.sequence_tokens, assignment.microbatches
    tokens = s.sequences * length
    passes = 4 if training else 1
    work = passes * forward_flop(model, tokens, length / 2, tokens)
    stages = assignment.parallelism.pipeline
    return OperatorTime(
        main=_gemm(
            s, work, passes, mb, length, length, launch="training_launch_s" if training else "launch_s"
        ),
        decode=None,
        tp_s=_tensor_parallel(s, mb, length, all_reduces=6 if training else 2),
        pp_s=_pipeline_parallel(s, mb, length, mb + (2 * stages - 3 if training else stages - 2)),
        dp_s=_data_parallel(s) if training else 0.0,
        decode_tp_s=0.0,
        decode_pp_s=0.0,
        nongemm_s=_nongemm(s, options) * passes,
        optimizer_s=_optimizer(s) if training else 0.0,
    )


def _generation(s: _Setting, options: ModelOptions) -> OperatorTime:
    """Prefill of all prompts, then L_r - 1 decode steps."""
    w, pi, mb = s.workload, s.at.parallelism, s.at.microbatches
    work = forward_flop(s.model, s.sequences * w.prompt_tokens, w.prompt_tokens / 2, s.sequences)
    mb_decode = 1 if options.decode == "batched" else mb
    steps = w.response_tokens - 1
    made = s.sequences * steps
    decode_work = forward_flop(s.model, made, w.prompt_tokens + w.response_tokens / 2, made)
    rows = s.sequences / (pi.data * mb_decode)
    kv_bytes = 0.0
    if options.count_kv_traffic:
        attended = w.prompt_tokens + w.response_tokens / 2
        kv_bytes = (
            2.0 * w.scalar_bytes * rows * attended * s.layers_per_stage * local_kv_dim(s.model, pi.tensor)
        )
    return OperatorTime(
        main=_gemm(s, work, 1, mb, w.prompt_tokens, 1, launch="launch_s"),
        # decode steps are replayed as graphs, which no host holds up
        decode=_gemm(s, decode_work, steps, mb_decode, 1, 1, kv_bytes),
        tp_s=_tensor_parallel(s, mb, w.prompt_tokens, all_reduces=2),
        pp_s=_pipeline_parallel(s, mb, w.prompt_tokens, mb + pi.pipeline - 2),
        dp_s=0.0,
        decode_tp_s=steps * _tensor_parallel(s, mb_decode, 1, all_reduces=2, replayed=True),
        decode_pp_s=steps * _pipeline_parallel(s, mb_decode, 1, mb_decode + pi.pipeline - 2),
        nongemm_s=0.0,
        optimizer_s=0.0,
    )


def local_kv_dim(model: Model, tensor: int) -> int:
    """Width of the keys that one GPU holds: groups that cannot be divided are replicated."""
    return model.shape.head_dim * max(1, math.ceil(model.shape.kv_heads / tensor))


def _gemm(
    s: _Setting,
    work: float,
    passes: int,
    microbatches: int,
    length: float,
    outputs: float,
    kv_bytes: float = 0.0,
    *,
    launch: str = "",
) -> GemmPass:
    """T_gemm and T_bubble of `work` FLOP in so many passes over all microbatches, and what goes with them.

    A pass takes `length` tokens of each sequence through the layers, and `outputs` of them through the head.
    `launch` names the constant of the host, if it launches kernel by kernel.
    """
    pi, shape, hardware = s.at.parallelism, s.model.shape, s.cluster.hardware
    scalar, memory = s.workload.scalar_bytes, hardware.value("memory_bandwidth")
    rows = s.sequences / (pi.data * microbatches) * length
    weights = s.layers_per_stage / pi.tensor * shape.touched_layer_parameters(rows) * scalar
    head = shape.head_parameters(s.model.head) / (pi.pipeline * pi.tensor) * scalar
    weights += hardware.value("head_reads_frac") * head
    vector_bytes = rows * shape.hidden * s.layers_per_stage * scalar
    moved = weights + 2.0 * vector_bytes + hardware.value("kv_reads_factor") * kv_bytes
    intensity = work / max(passes, 1) / (pi.gpus * microbatches) / moved
    width = min(shape.hidden, shape.ffn_hidden) / pi.tensor
    efficiency = rows / (rows + hardware.value("gamma_m")) * width / (width + hardware.value("gamma_k"))
    rate = min(hardware.value("peak_flops") * efficiency, intensity * memory)
    gemm_s = work / (pi.gpus * rate) if work else 0.0
    # of one GPU: a layer and microbatch at a time, in every pass
    kernels = passes * microbatches * s.layers_per_stage
    layers_s = kernels * hardware.value("layer_s")
    logits_bytes = rows / length * outputs * shape.outputs(s.model.head) / pi.pipeline * scalar
    beside_bytes = hardware.value("elementwise_vectors") * vector_bytes
    beside_bytes += hardware.value("logits_moves") * logits_bytes
    elementwise_s = passes * microbatches * beside_bytes / (pi.tensor * memory)
    busy_s = gemm_s + layers_s + elementwise_s
    least_s = microbatches * s.layers_per_stage * hardware.value(launch) if launch else 0.0
    launch_s = max(0.0, least_s - busy_s)
    bubble_s = (busy_s + launch_s) * (pi.pipeline - 1) / microbatches
    return GemmPass(work, intensity, efficiency, rate, gemm_s, bubble_s, layers_s, elementwise_s, launch_s)


def _tensor_parallel(
    s: _Setting, microbatches: int, length: float, *, all_reduces: int, replayed: bool = False
) -> float:
    """AllReduces of each layer and microbatch within a node."""
    pi, w = s.at.parallelism, s.workload
    if pi.tensor == 1:
        return 0.0
    size = s.sequences * length * s.model.shape.hidden * w.scalar_bytes / (pi.data * microbatches)
    link = s.cluster.hardware.link("collective", "intra_node")
    if replayed:
        link = LinkRate(link.alpha_s * s.cluster.hardware.value("graph_alpha_frac"), link.beta_s)
    each = all_reduce_s(size, pi.tensor, link)
    return all_reduces * s.layers_per_stage * microbatches * each


def _pipeline_parallel(s: _Setting, microbatches: int, length: float, steps: int) -> float:
    """Activations passed between stages, some of which lie on different nodes."""
    pi, w, hardware = s.at.parallelism, s.workload, s.cluster.hardware
    if pi.pipeline == 1:
        return 0.0
    size = s.sequences * length * s.model.shape.hidden * w.scalar_bytes
    size /= pi.data * pi.tensor * microbatches
    inter = max(0, math.ceil(pi.pipeline * pi.tensor / s.cluster.gpus_per_node) - 1)
    intra = pi.pipeline - 1 - inter
    total = 0.0
    if intra:
        total += intra / (pi.pipeline - 1) * p2p_s(size, hardware.link("p2p", "intra_node"))
    if inter:
        total += inter / (pi.pipeline - 1) * p2p_s(size, hardware.link("p2p", s.at.box.tier))
    return steps * total


def _data_parallel(s: _Setting) -> float:
    """ReduceScatter of gradients and AllGather of weights."""
    pi = s.at.parallelism
    if pi.data == 1:
        return 0.0
    size = s.model.parameters * s.workload.scalar_bytes / (pi.pipeline * pi.tensor)
    link = s.cluster.hardware.link("collective", s.at.box.tier)
    return reduce_scatter_s(size, pi.data, link) + all_gather_s(size, pi.data, link)


def _nongemm(s: _Setting, options: ModelOptions) -> float:
    """Norms, residuals and activations of one forward pass."""
    pi, hardware = s.at.parallelism, s.cluster.hardware
    sequences = s.sequences / (pi.data * s.at.microbatches)
    each = hardware.value("nongemm_s") * (1 - 1 / pi.tensor) * sequences / hardware.value("nongemm_sequences")
    if options.nongemm == "scaled":
        length = s.workload.sequence_tokens / hardware.value("nongemm_tokens")
        each *= s.at.microbatches * length
    return s.layers_per_stage * each


def _optimizer(s: _Setting) -> float:
    """Adam reads and writes 18 bytes of each parameter, or as many as were measured."""
    hardware = s.cluster.hardware
    moved = hardware.value("optimizer_bytes") * s.model.parameters
    return moved / (s.at.parallelism.gpus * hardware.value("memory_bandwidth"))
