"""Where times and bytes come from: one row for each term of each invocation and transfer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlprof.planning.cost_memory import operator_memory, resident_invocations
from rlprof.planning.cost_time import GemmPass, OperatorTime, operator_time
from rlprof.planning.evaluate import Evaluation

if TYPE_CHECKING:
    import polars as pl

#: Name, formula and unit of the terms of a pass.
_PASS = (
    ("work_flop", "W", "FLOP"),
    ("intensity_flop_per_byte", "I = W_dev / bytes moved", "FLOP/byte"),
    ("efficiency_frac", "eta", "1"),
    ("rate_flops", "F_eff = min(F_peak eta, I BW_mem)", "FLOP/s"),
    ("gemm_s", "T_gemm = W / (P F_eff)", "s"),
    ("bubble_s", "T_bubble = (T_gemm and the three below) (P_p - 1) / mb", "s"),
    ("layers_s", "passes mb (L_m / P_p) layer_s", "s"),
    ("elementwise_s", "passes mb (elementwise_vectors, logits_moves: bytes) / (P_t BW_mem)", "s"),
    ("launch_s", "what lacks to mb (L_m / P_p) launch_s, of training training_launch_s", "s"),
)


@dataclass(frozen=True, slots=True)
class Term:
    """One term of the cost model.

    Parameters
    ----------
    invocation : str
        Of which invocation; for transfers and reshards the one they serve.
    quantity : {"time", "memory", "transfer"}
        What it is part of.
    term, formula, unit : str
        Name, how it is made, unit of the value.
    value : float
        Its value.
    """

    invocation: str
    quantity: str
    term: str
    formula: str
    value: float
    unit: str


def terms(evaluation: Evaluation) -> list[Term]:
    """Return every term of a plan's cost, invocation by invocation; then its transfers and reshards.

    Transfers are those of the last step, in which every publication takes place.
    """
    problem, plan = evaluation.problem, evaluation.plan
    pipeline, work, cluster = problem.pipeline, problem.workload, problem.cluster
    masks = [plan[v.name].box.mask(cluster) for v in pipeline.invocations]
    resident = resident_invocations(pipeline, masks)
    found: list[Term] = []
    for i, v in enumerate(pipeline.invocations):
        model, at = pipeline.model_of(i), plan[v.name]
        time = operator_time(v.role, model, work, at, cluster, problem.options)
        found += [Term(v.name, "time", *row) for row in _time_rows(time)]
        need = operator_memory(v.role, model, work, at, problem.options)
        keeps = need.weights_bytes if resident[i] else need.optimizer_bytes
        rows = (
            ("shard_parameters", "W_shard: largest stage on one GPU", need.shard_parameters, "parameter"),
            ("weights_bytes", "W_shard s_b", need.weights_bytes, "byte"),
            ("optimizer_bytes", "12 W_shard / P_d", need.optimizer_bytes, "byte"),
            ("gradient_bytes", "W_shard s_b / P_d", need.gradient_bytes, "byte"),
            ("activation_bytes", "M_act", need.activation_bytes, "byte"),
            ("kv_bytes", "KV cache", need.kv_bytes, "byte"),
            ("persistent_bytes", "S: kept between invocations", keeps, "byte"),
            ("transient_bytes", "A: while it runs", need.transient_bytes(resident=resident[i]), "byte"),
        )
        found += [Term(v.name, "memory", *row) for row in rows]
    last = problem.options.steps - 1
    for n, node in enumerate(evaluation.graph.nodes):
        if node.kind == "op" or node.step != last:
            continue
        name = pipeline.invocations[node.vertex].name
        label = evaluation.graph.label(n)
        time_s = evaluation.timeline.finish_s[n] - evaluation.timeline.start_s[n]
        formula = "alpha + bytes / min(GPUs) beta" if node.kind == "comm" else "AllToAll"
        found.append(Term(name, "transfer", label, "payload", node.payload_bytes, "byte"))
        found.append(Term(name, "transfer", label, formula, time_s, "s"))
    return found


def _time_rows(time: OperatorTime) -> Iterator[tuple[str, str, float, str]]:
    prefix = "prefill." if time.decode else ""
    yield from _pass_rows(time.main, prefix)
    if time.decode:
        yield from _pass_rows(time.decode, "decode.")
    yield f"{prefix}tp_s", "T_tp: AllReduces of tensor ranks", time.tp_s, "s"
    if time.decode:
        yield "decode.tp_s", "the same, of all decode steps", time.decode_tp_s, "s"
    yield f"{prefix}pp_s", "T_pp: transfers between stages", time.pp_s, "s"
    if time.decode:
        yield "decode.pp_s", "the same, of all decode steps", time.decode_pp_s, "s"
    yield "dp_s", "T_dp: ReduceScatter and AllGather", time.dp_s, "s"
    yield "nongemm_s", "T_nongemm: norms, residuals, activations", time.nongemm_s, "s"
    yield "optimizer_s", "T_opt = optimizer_bytes N_m / (P BW_mem)", time.optimizer_s, "s"
    yield "total_s", "T_op", time.total_s, "s"


def _pass_rows(of: GemmPass, prefix: str) -> Iterator[tuple[str, str, float, str]]:
    for name, formula, unit in _PASS:
        yield prefix + name, formula, getattr(of, name), unit


def explain(evaluation: Evaluation) -> pl.DataFrame:
    """Return `terms` as a table.

    Returns
    -------
    polars.DataFrame
        ``invocation``, ``quantity``, ``term``, ``formula``, ``value``, ``unit``.
    """
    import polars as pl

    rows = [(t.invocation, t.quantity, t.term, t.formula, float(t.value), t.unit) for t in terms(evaluation)]
    text = dict.fromkeys(("invocation", "quantity", "term", "formula"), pl.String)
    return pl.DataFrame(rows, schema={**text, "value": pl.Float64, "unit": pl.String}, orient="row")
