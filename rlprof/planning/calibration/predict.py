"""What the cost model says of a measured operator: the calls, and the terms that its constants enter.

What constants are fitted to ran on one device, P_d = P_p = P_t = 1, in one microbatch: then an operator is
passes of matrix products, and the optimizer.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlprof.planning.calibration.observation import Observation
from rlprof.planning.cluster import LINK_KINDS, LINK_UNITS, UNITS, Cluster, Constant, Hardware, unit_of
from rlprof.planning.cost_memory import operator_memory
from rlprof.planning.cost_time import OperatorTime, forward_flop, local_kv_dim, operator_time
from rlprof.planning.options import ModelOptions
from rlprof.planning.pipeline import Model, Role
from rlprof.planning.plan import Assignment, Box, Parallelism
from rlprof.planning.workload import Workload

#: How the measured transformer does what the cost model leaves open.
MEASURED = ModelOptions(prefill_logits="last")
ROLES: dict[str, Role] = {
    "forward": "inference",
    "forward_graph": "inference",
    "decode_step": "generation",
    "decode_step_eager": "generation",
    "inference": "inference",
    "generation": "generation",
    "training": "training",
}


def hardware_of(values: dict[str, float], name: str = "trial") -> Hardware:
    """Hardware of some constants, the others 1, or 0 where that leaves a term out."""
    neutral = dict.fromkeys(UNITS, 1.0) | {
        "gamma_m": 0.0,
        "gamma_k": 0.0,
        "nongemm_s": 0.0,
        "reserved_frac": 0.0,
    }
    neutral |= {f"{kind}.intra_node.{what}": 1.0 for kind in LINK_KINDS for what in LINK_UNITS}
    made = {
        key: Constant(value, unit_of(key) or "", source="trial") for key, value in (neutral | values).items()
    }
    return Hardware(name, name, 1, made)


def assignment_of(observed: Observation) -> Assignment:
    """Where it ran: on one device, or on several of one node by tensor or data parallelism."""
    tensor, data = int(observed.key.get("tensor", 1)), int(observed.key.get("data", 1))
    return Assignment(Box((0, 0, 0), (1, 1, tensor * data)), Parallelism(data, 1, tensor))


def question(observed: Observation, scalar_bytes: int) -> tuple[Role, Model, Workload]:
    """What the cost model is to be asked about a measured operator.

    A forward over n tokens is an inference of n tokens; a decode step after n tokens is a generation with a
    prompt of n tokens and one step, of which only the decode counts.
    """
    key = observed.key
    prompt, response = int(key["prompt_tokens"]), int(key["response_tokens"])
    if observed.kind.startswith("forward"):
        prompt, response = prompt - 1, 1
    elif observed.kind.startswith("decode_step"):
        response = 2
    workload = Workload(int(key["sequences"]), prompt, response, scalar_bytes=scalar_bytes)
    role = ROLES[observed.kind]
    return role, Model("measured", observed.shape, trainable=role == "training"), workload


def predicted_time(observed: Observation, hardware: Hardware, scalar_bytes: int) -> OperatorTime:
    """Every term of what the cost model says."""
    role, model, workload = question(observed, scalar_bytes)
    at = assignment_of(observed)
    return operator_time(role, model, workload, at, Cluster(hardware, 1, 1, at.box.size))


def predicted_s(observed: Observation, hardware: Hardware, scalar_bytes: int) -> float:
    """The time that the cost model says, in seconds."""
    time = predicted_time(observed, hardware, scalar_bytes)
    return time.decode_s if observed.kind.startswith("decode_step") else time.total_s


def predicted_peak_bytes(observed: Observation, scalar_bytes: int) -> float:
    """The peak memory that the cost model says, of a GPU that does nothing else."""
    role, model, workload = question(observed, scalar_bytes)
    memory = operator_memory(role, model, workload, assignment_of(observed), MEASURED)
    return memory.optimizer_bytes + memory.transient_bytes(resident=False)


@dataclass(frozen=True, slots=True)
class Pass:
    """One kind of pass of an operator, on one device: the terms that its constants enter.

    Parameters
    ----------
    times : int
        How many there are.
    work_flop, moved_bytes, head_bytes, kv_bytes : float
        W of one, and what it moves: Omega_W + Omega_A, the head, the KV cache.
    rows, width : float
        What gamma_M and gamma_K are compared with.
    layers : int
        L_m; 0 for a single product.
    vector_bytes, logits_bytes : float
        One hidden vector of every token in every layer; all logits.
    launched : {"", "launch_s", "training_launch_s"}
        Which constant of the host holds it up, if it is launched kernel by kernel.
    """

    times: int
    work_flop: float
    moved_bytes: float
    head_bytes: float
    kv_bytes: float
    rows: float
    width: float
    layers: int
    vector_bytes: float
    logits_bytes: float
    launched: str


def passes_of(observed: Observation, scalar_bytes: int) -> tuple[list[Pass], int]:
    """Return the passes of an operator on one device, and the parameters that its optimizer updates."""
    if observed.kind == "gemm":
        rows, inner, columns = (float(observed.key[name]) for name in ("rows", "inner", "columns"))
        moved = scalar_bytes * (inner * columns + rows * (inner + columns))
        work = 2 * rows * inner * columns
        return [Pass(1, work, moved, 0.0, 0.0, rows, min(inner, columns), 0, 0.0, 0.0, "")], 0
    if observed.kind == "nongemm":  # of one layer, without the products: elementwise kernels alone
        tokens = float(observed.key["sequences"] * observed.key["tokens"])
        vector = scalar_bytes * tokens * observed.shape.hidden
        return [Pass(1, 0.0, 0.0, 0.0, 0.0, tokens, float(observed.shape.hidden), 0, vector, 0.0, "")], 0
    role, model, workload = question(observed, scalar_bytes)
    prompt, response, sequences = workload.prompt_tokens, workload.response_tokens, workload.sequences
    eager = "" if observed.kind == "forward_graph" else "launch_s"
    found = []
    if role == "generation":
        if not observed.kind.startswith("decode_step"):
            work = forward_flop(model, sequences * prompt, prompt / 2, sequences)
            found.append(_pass(model, scalar_bytes, 1, work, sequences * prompt, sequences, 0.0, eager))
        attended = prompt + response / 2
        kv = 2.0 * scalar_bytes * sequences * attended * model.shape.layers * local_kv_dim(model, 1)
        work = forward_flop(model, sequences, attended, sequences)
        step = "launch_s" if observed.kind == "decode_step_eager" else ""
        found.append(_pass(model, scalar_bytes, response - 1, work, sequences, sequences, kv, step))
        return found, 0
    length = workload.sequence_tokens
    tokens = sequences * length
    work = forward_flop(model, tokens, length / 2, tokens)
    trains = role == "training"
    launched = "training_launch_s" if trains else eager
    found.append(_pass(model, scalar_bytes, 4 if trains else 1, work, tokens, tokens, 0.0, launched))
    return found, model.parameters if trains else 0


def _pass(
    model: Model,
    scalar_bytes: int,
    times: int,
    work: float,
    rows: float,
    outputs: float,
    kv_bytes: float,
    launched: str,
) -> Pass:
    shape = model.shape
    vectors = scalar_bytes * rows * shape.hidden * shape.layers
    weights = scalar_bytes * shape.layers * shape.touched_layer_parameters(rows)
    return Pass(
        times,
        work,
        weights + 2.0 * vectors,
        float(scalar_bytes * shape.head_parameters(model.head)),
        kv_bytes,
        rows,
        float(min(shape.hidden, shape.ffn_hidden)),
        shape.layers,
        vectors,
        float(scalar_bytes * outputs * shape.outputs(model.head)),
        launched,
    )
