"""The cost model, the lowering and the schedule, written down a second time from their specification.

Plain and slow, GPU by GPU, with sets and dictionaries. It takes values (shapes, plans, constants) from
`rlprof.planning` and none of its functions, so that an error would have to be made twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise, product

from rlprof.planning.cluster import Cluster
from rlprof.planning.options import ModelOptions
from rlprof.planning.pipeline import Model, Pipeline
from rlprof.planning.plan import Assignment, Box, Plan
from rlprof.planning.workload import Workload

Gpu = tuple[int, int, int]
#: kind, invocation, step, phase, container, publishes, GPUs that it comes from
Key = tuple[str, str, int, int, str, bool, frozenset[Gpu]]


def gpus(box: Box) -> frozenset[Gpu]:
    """Rack, node and GPU of each."""
    racks, nodes, each = (range(o, o + e) for o, e in zip(box.origin, box.extent, strict=True))
    return frozenset(product(racks, nodes, each))


def level(found: frozenset[Gpu]) -> str:
    """Slowest level that a set of GPUs spans."""
    if len({rack for rack, _, _ in found}) > 1:
        return "inter_rack"
    return "inter_node" if len({node for _, node, _ in found}) > 1 else "intra_node"


class Machine:
    """Constants by name."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.of = {name: c.value for name, c in cluster.hardware.constants.items()}

    def link(self, kind: str, tier: str) -> tuple[float, float]:
        """Alpha, beta."""
        return self.of[f"{kind}.{tier}.alpha_s"], 1 / self.of[f"{kind}.{tier}.bandwidth"]

    def all_reduce(self, p: int, size: float) -> float:
        """Within a node."""
        alpha, beta = self.link("collective", "intra_node")
        return 0.0 if p == 1 else 2 * (p - 1) * alpha + 2 * (p - 1) / p * size * beta

    def gather(self, p: int, size: float, tier: str) -> float:
        """AllGather or ReduceScatter."""
        alpha, beta = self.link("collective", tier)
        return (p - 1) * alpha + (p - 1) / p * size * beta

    def p2p(self, size: float, tier: str) -> float:
        """One message."""
        alpha, beta = self.link("p2p", tier)
        return alpha + size * beta


@dataclass
class Sizes:
    """Parameter counts of a model, section 4."""

    model: Model
    layer: int = field(init=False)
    out: int = field(init=False)
    embedding: int = field(init=False)
    head: int = field(init=False)

    def __post_init__(self) -> None:
        s = self.model.shape
        d, d_q, d_kv = s.hidden, s.heads * s.head_dim, s.kv_heads * s.head_dim
        self.layer = 2 * d * d_q + 2 * d * d_kv + (3 if s.gated else 2) * d * s.ffn_hidden
        self.out = {"lm": s.vocabulary, "scalar": 1, "both": s.vocabulary + 1}[self.model.head]
        self.embedding = s.vocabulary * d
        self.head = self.out * d

    @property
    def total(self) -> int:
        """N_m."""
        s = self.model.shape
        tied = self.embedding if s.tied and self.model.head != "scalar" else 0
        return s.layers * self.layer + self.embedding + self.head - tied

    def forward(self, n: float, c: float, h: float) -> float:
        """FLOP."""
        s = self.model.shape
        queries = s.heads * s.head_dim
        return 2 * n * s.layers * self.layer + 4 * n * c * queries * s.layers + 2 * h * s.hidden * self.out


def kv_width(model: Model, tensor: int) -> int:
    """Of keys on one GPU."""
    return model.shape.head_dim * max(1, -(-model.shape.kv_heads // tensor))


@dataclass
class Operator:
    """Seconds."""

    prefill: float
    decode: float
    bubble: float


def operator(
    role: str, model: Model, work: Workload, at: Assignment, m: Machine, o: ModelOptions, part: float = 1.0
) -> Operator:
    """T_op of section 4; `part` of the sequences."""
    s, pi, mb = model.shape, at.parallelism, at.microbatches
    size = Sizes(model)
    p_d, p_p, p_t = pi.data, pi.pipeline, pi.tensor
    total = p_d * p_p * p_t
    sequences, s_b = work.prompts * work.rollouts_per_prompt * part, work.scalar_bytes
    l_p, l_r = work.prompt_tokens, work.response_tokens
    stage = s.layers / p_p
    tier = level(gpus(at.box))
    per_node = m.cluster.gpus_per_node

    def rate(work_of_device: float, rows: float, kv: float) -> float:
        moved = stage / p_t * size.layer * s_b + 2 * rows * s.hidden * stage * s_b + kv
        width = min(s.hidden / p_t, s.ffn_hidden / p_t)
        eta = rows / (rows + m.of["gamma_m"]) * width / (width + m.of["gamma_k"])
        return min(m.of["peak_flops"] * eta, work_of_device / moved * m.of["memory_bandwidth"])

    def tensor_parallel(tokens: float, microbatches: int, passes: int) -> float:
        message = sequences * tokens * s.hidden * s_b / (p_d * microbatches)
        return passes * stage * microbatches * m.all_reduce(p_t, message)

    def pipeline_parallel(tokens: float, microbatches: int, steps: int) -> float:
        if p_p == 1:
            return 0.0
        message = sequences * tokens * s.hidden * s_b / (p_d * p_t * microbatches)
        inter = max(0, math.ceil(p_p / (per_node / p_t)) - 1)
        intra = p_p - 1 - inter
        time = intra / (p_p - 1) * m.p2p(message, "intra_node") if intra else 0.0
        time += inter / (p_p - 1) * m.p2p(message, tier) if inter else 0.0
        return steps * time

    if role == "generation":
        mb_dec = 1 if o.decode == "batched" else mb
        prefill = size.forward(sequences * l_p, l_p / 2, sequences)
        rows = sequences / (p_d * mb) * l_p
        gemm = prefill / (total * rate(prefill / (total * mb), rows, 0.0))
        decode_gemm = 0.0
        if l_r > 1:
            tokens = sequences * (l_r - 1)
            decode = size.forward(tokens, l_p + l_r / 2, tokens)
            rows = sequences / (p_d * mb_dec)
            kv = 2 * s_b * rows * (l_p + l_r / 2) * stage * kv_width(model, p_t)
            per_step = decode / ((l_r - 1) * total * mb_dec)
            decode_gemm = decode / (total * rate(per_step, rows, kv if o.count_kv_traffic else 0.0))
        bubble, decode_bubble = gemm * (p_p - 1) / mb, decode_gemm * (p_p - 1) / mb_dec
        comm = tensor_parallel(l_p, mb, 2) + pipeline_parallel(l_p, mb, mb + p_p - 2)
        each = tensor_parallel(1, mb_dec, 2) + pipeline_parallel(1, mb_dec, mb_dec + p_p - 2)
        decoding = decode_gemm + decode_bubble + (l_r - 1) * each
        return Operator(gemm + bubble + comm, decoding, bubble + decode_bubble)
    length, training = l_p + l_r, role == "training"
    tokens = sequences * length
    flop = size.forward(tokens, length / 2, tokens)  # of one forward pass
    gemm = flop * (4 if training else 1) / (total * rate(flop / (total * mb), tokens / (p_d * mb), 0.0))
    bubble = gemm * (p_p - 1) / mb
    comm = tensor_parallel(length, mb, 6 if training else 2)
    comm += pipeline_parallel(length, mb, mb + (2 * p_p - 3 if training else p_p - 2))
    if training and p_d > 1:
        comm += 2 * m.gather(p_d, size.total * s_b / (p_p * p_t), tier)
    beside = stage * m.of["nongemm_s"] * (1 - 1 / p_t)
    beside *= sequences / (p_d * mb) / m.of["nongemm_sequences"]
    if o.nongemm == "scaled":
        beside *= mb * length / m.of["nongemm_tokens"]
    beside *= 4 if training else 1
    update = 18 * size.total / (total * m.of["memory_bandwidth"]) if training else 0.0
    return Operator(gemm + bubble + comm + beside + update, 0.0, bubble)


def needs(
    role: str, model: Model, work: Workload, at: Assignment, o: ModelOptions
) -> tuple[float, float, float]:
    """W_shard in parameters; A(v) without and with a working copy of the weights, in bytes (section 5)."""
    s, pi, mb = model.shape, at.parallelism, at.microbatches
    size, s_b, length = Sizes(model), work.scalar_bytes, work.prompt_tokens + work.response_tokens
    stages = []
    for p in range(1, pi.pipeline + 1):
        held = s.layers / pi.pipeline * size.layer / pi.tensor
        held += size.embedding if p == 1 else 0
        held += size.head if p == pi.pipeline else 0
        if pi.pipeline == 1 and s.tied and model.head != "scalar":
            held -= size.embedding
        stages.append(held)
    shard = max(stages)
    b_loc = work.prompts * work.rollouts_per_prompt / (pi.data * mb)
    k = 3 if s.gated else 2
    buffer = max(2 * s.hidden + 6 * s.hidden / pi.tensor, 2 * s.hidden + k * s.ffn_hidden / pi.tensor)
    if role == "training":
        stage = s.layers / pi.pipeline
        c = max(1, round(stage**0.5))
        kept = math.ceil(stage / c) * s.hidden + c * buffer
        transient = s_b * min(mb, pi.pipeline) * b_loc * length * kept + shard * s_b / pi.data
        return shard, transient, transient + shard * s_b
    tokens = work.prompt_tokens if role == "generation" else length
    logits = size.out / (tokens if role == "generation" and o.prefill_logits == "last" else 1)
    transient = s_b * b_loc * tokens * max(buffer, s.hidden + logits)
    if role == "generation":
        sequences = work.prompts * work.rollouts_per_prompt / pi.data
        transient += 2 * s_b * sequences * length * s.layers / pi.pipeline * kv_width(model, pi.tensor)
    return shard, transient, transient + shard * s_b


def peaks(pipeline: Pipeline, plan: Plan, work: Workload, o: ModelOptions) -> dict[Gpu, float]:
    """Peak of every GPU that the plan uses, in bytes."""
    where = {v.name: gpus(plan[v.name].box) for v in pipeline.invocations}
    trains = {v.model: v.name for v in pipeline.invocations if v.role == "training"}
    fused = fusions(pipeline, plan) if o.fuse_training else {}
    found = {}
    for gpu in frozenset().union(*where.values()):
        kept: dict[str, float] = {}
        most = {}
        for v in pipeline.invocations:
            if gpu not in where[v.name]:
                continue
            model, at = pipeline.model_by_name[v.model], plan[v.name]
            shard, without, with_weights = needs(v.role, model, work, at, o)
            trained = trains.get(v.model)
            if v.role == "training":
                kept[v.model] = 12 * shard / at.parallelism.data
                most[v.name] = with_weights
            elif trained is None or (pipeline.tau[v.model] > 0 and not where[v.name] & where[trained]):
                kept[v.model] = max(kept.get(v.model, 0.0), shard * work.scalar_bytes)
                most[v.name] = without
            else:
                kept.setdefault(v.model, 0.0)
                most[v.name] = with_weights
        for second, first in fused.items():
            if second in most:
                most[first] += most.pop(second)
        found[gpu] = sum(kept.values()) + max(most.values())
    return found


def fusions(pipeline: Pipeline, plan: Plan) -> dict[str, str]:
    """Training invocations that share a node with an earlier one."""
    training = [v.name for v in pipeline.invocations if v.role == "training"]
    pairs: dict[str, str] = {}
    for n, first in enumerate(training):
        for second in training[n + 1 :]:
            apart = not {first, second} & {*pairs, *pairs.values()}
            if apart and plan[first] == plan[second]:
                pairs[second] = first
    return pairs


@dataclass
class Graph:
    """Nodes with payloads in bytes, and edges between them."""

    payload: dict[Key, float] = field(default_factory=dict)
    edges: set[tuple[Key, Key]] = field(default_factory=set)


def lowered(pipeline: Pipeline, plan: Plan, work: Workload, o: ModelOptions) -> Graph:
    """Sections 2 and 3: every node and edge of K_eval steps."""
    g = Graph()
    where = {v.name: gpus(plan[v.name].box) for v in pipeline.invocations}
    role = {v.name: v.role for v in pipeline.invocations}
    model_of = {v.name: v.model for v in pipeline.invocations}
    trains = {v.model: v.name for v in pipeline.invocations if v.role == "training"}
    order = [pipeline.invocations[i].name for i in pipeline.topological_order]
    fused = fusions(pipeline, plan) if o.fuse_training else {}
    phases = work.quantiles if o.split_generation and len(work.quantiles) > 1 else ()
    streams = {
        (e.source, e.target)
        for e in pipeline.data
        if phases and role[e.source] == "generation" and role[e.target] == "inference"
        if not where[e.source] & where[e.target]
    }
    parts = {v: len(phases) if any(v in pair for pair in streams) else 1 for v in role}

    def op(v: str, k: int, q: int) -> Key:
        v = fused.get(v, v)
        return "op", v, k, q % parts[v], "", False, where[v]

    def same(u: str, v: str) -> bool:
        return where[u] == where[v]

    def layout(v: str) -> object:
        return plan[v].parallelism

    def weights(m: str) -> float:
        return float(Sizes(pipeline.model_by_name[m]).total * work.scalar_bytes)

    def moved(kind: str, u: tuple[str, int, int], v: tuple[str, int, int], what: str, n: float) -> Key:
        (source, j, q0), (target, k, q) = u, v
        node = kind, target, k, q if q0 >= 0 else 0, what, j != k, where[source]
        g.payload[node] = n
        g.edges |= {(op(source, j, q0), node), (node, op(target, k, q))}
        return node

    volume = {"B": work.prompts, "R": work.rollouts_per_prompt}
    volume |= {"L_p": work.prompt_tokens, "L_r": work.response_tokens}
    for k in range(o.steps):
        for v in role:
            for q in range(parts[v]):
                g.payload[op(v, k, q)] = 0.0
                if q:
                    g.edges.add((op(v, k, q - 1), op(v, k, q)))
        for e in pipeline.data:
            n = eval(pipeline.container_by_name[e.container].elements, {}, volume) * work.scalar_bytes
            if (e.source, e.target) in streams:
                before = 0.0
                for q, quantile in enumerate(phases):
                    share = n * (quantile.completed_frac - before)
                    moved("comm", (e.source, k, q), (e.target, k, q), e.container, share)
                    before = quantile.completed_frac
            elif same(e.source, e.target):
                g.edges.add((op(e.source, k, -1), op(e.target, k, 0)))
            else:
                moved("comm", (e.source, k, -1), (e.target, k, 0), e.container, n)
    # weights within a step
    put: list[tuple[str, int, frozenset[Gpu], object, Key, str]] = []
    for m, tau in pipeline.tau.items():
        chain = [v for v in order if model_of[v] == m]
        for u, v in pairwise(chain):
            for k in range(o.steps):
                if tau > 0 and not where[u] & where[v]:
                    continue
                if not same(u, v):
                    g.edges.add((op(u, k, -1), op(v, k, 0)))
                elif layout(u) != layout(v):
                    node = moved("reshard", (u, k, -1), (v, k, 0), f"weights of {m}", weights(m))
                    put.append((m, max(0, k - tau), where[v], layout(v), node, v))
    for k in range(o.steps):
        for e in pipeline.publications:
            m, v = model_of[e.source], e.target
            j = k - pipeline.tau[m] - 1
            if j < 0:
                continue
            if same(e.source, v) and layout(e.source) == layout(v):
                g.edges.add((op(e.source, j, -1), op(v, k, 0)))
                continue
            ready = [
                node
                for model, version, there, how, node, by in put
                if (model, version, there, how) == (m, j + 1, where[v], layout(v))
                # a copy made for training is overwritten; one made later in the step comes too late
                if role[by] != "training" and (node[5] or order.index(by) <= order.index(v))
            ]
            if ready:
                g.edges.add((ready[-1], op(v, k, 0)))
                continue
            both = max(len(where[e.source]), len(where[v]))
            share = (both - len(where[e.source] & where[v])) / both
            kind, n = ("reshard", 1.0) if same(e.source, v) else ("comm", share)
            node = moved(kind, (e.source, j, -1), (v, k, 0), e.container, n * weights(m))
            put.append((m, j + 1, where[v], layout(v), node, v))
        for v in trains.values():
            if k:
                g.edges.add((op(v, k - 1, -1), op(v, k, 0)))
    g.edges = {(a, b) for a, b in g.edges if a != b}
    return g


def duration(key: Key, payload: float, pipeline: Pipeline, plan: Plan, work: Workload, m: Machine,
             o: ModelOptions, parts: int, second: str = "") -> float:  # fmt: skip
    """Seconds of one node; `second` is fused with it."""
    kind, v, _, q, _, _, source = key
    target = gpus(plan[v].box)
    if kind == "comm":
        # an allocation is a box, and so is what spans two of them
        return m.p2p(payload / min(len(source), len(target)), level(source | target))
    if kind == "reshard":
        size = len(target)
        if size == 1:
            return 0.0
        alpha, beta = m.link("collective", level(target))
        return (size - 1) * alpha + payload / size * beta
    role = next(x.role for x in pipeline.invocations if x.name == v)
    model = pipeline.model_by_name[next(x.model for x in pipeline.invocations if x.name == v)]
    whole = operator(role, model, work, plan[v], m, o)
    if second:
        other = pipeline.model_by_name[next(x.model for x in pipeline.invocations if x.name == second)]
        b = operator("training", other, work, plan[second], m, o)
        total = whole.prefill + b.prefill - whole.bubble - b.bubble
        return total + max(whole.bubble, b.bubble)
    if parts == 1:
        return whole.prefill + whole.decode
    here, before = work.quantiles[q], work.quantiles[q - 1] if q else None
    if role == "generation":
        tokens = here.tokens - (before.tokens if before else 0.0) - (0 if before else 1)
        return (0.0 if before else whole.prefill) + whole.decode * tokens / (work.response_tokens - 1)
    part = here.completed_frac - (before.completed_frac if before else 0.0)
    return operator(role, model, work, plan[v], m, o, part).prefill


def scheduled(
    keys: list[Key], edges: set[tuple[int, int]], times: list[float], pipeline: Pipeline, plan: Plan,
    split: set[str], o: ModelOptions,
) -> list[float]:  # fmt: skip
    """Section 6: the start of every node. Of what is still equal the first one goes first."""
    count = len(keys)
    after: list[list[int]] = [[] for _ in keys]
    before: list[list[int]] = [[] for _ in keys]
    for a, b in edges:
        after[a].append(b)
        before[b].append(a)
    rank: dict[int, float] = {}

    def rank_of(i: int) -> float:
        if i not in rank:
            rank[i] = times[i] + max((rank_of(j) for j in after[i]), default=0.0)
        return rank[i]

    place = {v.name: n for n, v in enumerate(pipeline.invocations)}
    role = {v.name: v.role for v in pipeline.invocations}
    head = {
        i: keys.index(("op", key[1], key[2], 0, "", False, key[6]))
        if key[0] == "op" and key[1] in split and role[key[1]] == "generation"
        else i
        for i, key in enumerate(keys)
    }
    held = [
        gpus(plan[key[1]].box) | (key[6] if o.reserve_source and key[0] != "op" else frozenset())
        for key in keys
    ]
    # transfers first, then the longest way to the end, then invocation, step, phase
    tie = [(key[0] == "op", -rank_of(head[i]), place[key[1]], key[2], key[3]) for i, key in enumerate(keys)]
    free: dict[Gpu, float] = {}
    start, finish = [math.nan] * count, [math.nan] * count
    waiting = set(range(count))
    while waiting:
        ready = [i for i in waiting if all(j not in waiting for j in before[i])]
        earliest = {
            i: max([*(finish[j] for j in before[i]), *(free.get(x, 0.0) for x in held[i])]) for i in ready
        }
        _, _, pick = min((earliest[i], tie[i], i) for i in ready)
        start[pick], finish[pick] = earliest[pick], earliest[pick] + times[pick]
        for gpu in held[pick]:
            free[gpu] = finish[pick]
        waiting.remove(pick)
    return start
