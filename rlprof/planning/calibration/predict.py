"""What the cost model says of a measured operator: the calls, and the terms that its constants enter.

What constants are fitted to ran on one device, P_d = P_p = P_t = 1, in one microbatch: then an operator is
passes of matrix products, and the optimizer.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlprof.planning.calibration.observation import Observation
from rlprof.planning.cluster import LINK_KINDS, LINK_UNITS, UNITS, Cluster, Constant, Hardware, unit_of
from rlprof.planning.cost_memory import operator_memory
from rlprof.planning.cost_time import OperatorTime, operator_time
from rlprof.planning.pipeline import Model, Role
from rlprof.planning.plan import Assignment, Box, Parallelism
from rlprof.planning.workload import Workload

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
    memory = operator_memory(role, model, workload, assignment_of(observed))
    return memory.optimizer_bytes + memory.transient_bytes(resident=False)


@dataclass(frozen=True, slots=True)
class Pass:
    """Matrix products of one shape: T = work / min(F_peak eta, I BW_mem), eta by rows and width.

    Parameters
    ----------
    work_flop, intensity_flop_per_byte : float
        W and I.
    rows, width : float
        What gamma_M and gamma_K are compared with.
    """

    work_flop: float
    intensity_flop_per_byte: float
    rows: float
    width: float


def passes_of(observed: Observation, scalar_bytes: int) -> tuple[list[Pass], float]:
    """Return the passes of an operator, and the bytes that its optimizer moves."""
    if observed.kind == "gemm":
        rows, inner, columns = (float(observed.key[name]) for name in ("rows", "inner", "columns"))
        moved = scalar_bytes * (inner * columns + rows * (inner + columns))
        work = 2 * rows * inner * columns
        return [Pass(work, work / moved, rows, min(inner, columns))], 0.0
    time = predicted_time(observed, hardware_of({}), scalar_bytes)
    role, model, workload = question(observed, scalar_bytes)
    width = float(min(model.shape.hidden, model.shape.ffn_hidden))
    length = workload.prompt_tokens if role == "generation" else workload.sequence_tokens
    found = []
    if not observed.kind.startswith("decode_step"):
        main = time.main
        found.append(Pass(main.work_flop, main.intensity_flop_per_byte, workload.sequences * length, width))
    if time.decode is not None:
        decode = time.decode
        found.append(Pass(decode.work_flop, decode.intensity_flop_per_byte, workload.sequences, width))
    return found, time.optimizer_s  # at 1 byte/s
