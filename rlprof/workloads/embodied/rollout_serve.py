"""What runs in the process of the rollout worker: a policy that answers, with weights that it is given.

Started as ``python -m rlprof.workloads.embodied.rollout_serve SOCKET``. Orders are short JSON messages over a
socket; observations, answers and weights lie in a block of shared memory.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

from rlprof.interrupts import leave_to_parent
from rlprof.workloads.embodied.contracts import (
    NUMBERS,
    Array,
    GlobalStep,
    Observation,
    PolicySpec,
    SimulatorSpec,
)
from rlprof.workloads.embodied.errors import memory_of
from rlprof.workloads.embodied.offload import tensors_of
from rlprof.workloads.embodied.simulators import block as blocks
from rlprof.workloads.embodied.simulators.serve import described, driver_of, end_with, send

if TYPE_CHECKING:
    from rlprof.workloads.embodied.rollout_worker import RolloutWorker

#: Most bytes of weights that are handed over at once, if those that are trained do not need more.
PIECE_BYTES = 64 << 20
#: Tensors in the block begin at multiples of so many bytes.
_ALIGN = 16
#: Of a table of the numbers of a tensor: 64 MiB of rows, in 64 bits, at once.
_COLUMNS, _ROWS = 4096, 2048


class Piece(NamedTuple):
    """A part of a tensor.

    Parameters
    ----------
    which : int
        Index of the tensor.
    first, numbers : int
        Where it begins in the tensor, and how many numbers it has.
    """

    which: int
    first: int
    numbers: int


def layout(simulator: SimulatorSpec, policy: PolicySpec, weights_bytes: int) -> blocks.Layout:
    """Type and shape of every array in the block."""
    n, seen = simulator.envs, blocks.layout(simulator)
    points = (policy.draws, policy.horizon, policy.action_dim)
    return {
        **{name: seen[name] for name in ("rows", "state", "task", "images") if name in seen},
        "actions": ("float32", (n, policy.chunk_steps, policy.action_dim)),
        "log_prob": ("float32", (n,)),
        "value": ("float32", (n,)),
        "chain": ("float32", (n, *points)),
        "weights": ("uint8", (max(weights_bytes, 1),)),
    }


def size_bytes(tensors: list[Any]) -> int:
    """Bytes of tensors that lie one after the other."""
    return sum(_aligned(t.numel() * t.element_size()) for t in tensors)


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def room_bytes(policy: Any) -> int:
    """Bytes of the block for weights: all that are trained at once, others in pieces."""
    return max(size_bytes(policy.trainable()), min(size_bytes(tensors_of(policy)), PIECE_BYTES))


def put(tensors: list[Any], memory: Array) -> None:
    """Copy tensors into memory, one after the other."""
    for tensor, place in zip(tensors, _places(tensors, memory), strict=True):
        place.copy_(tensor.detach())


def take(tensors: list[Any], memory: Array) -> None:
    """Copy tensors from memory, as `put` laid them."""
    for tensor, place in zip(tensors, _places(tensors, memory), strict=True):
        tensor.data.copy_(place)


def _places(tensors: list[Any], memory: Array) -> list[Any]:
    import torch

    whole, at, found = torch.from_numpy(memory), 0, []
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        found.append(whole[at : at + size].view(tensor.dtype).view(tensor.shape))
        at += _aligned(size)
    return found


def pieces(sizes: Sequence[tuple[int, int]], room_bytes: int) -> list[list[Piece]]:
    """Cut tensors into pieces that lie one after the other in a block, as few blocks as that takes.

    Parameters
    ----------
    sizes : sequence of (int, int)
        Numbers of each tensor, and bytes of a number.
    room_bytes : int
        Size of the block; a tensor may be larger.

    Returns
    -------
    list of list of Piece
        What each block holds. All numbers of each tensor are in one piece, in order.
    """
    loads: list[list[Piece]] = []
    left = 0
    for which, (count, size) in enumerate(sizes):
        first = 0
        while first < count:
            if left < _ALIGN:
                loads.append([])
                left = room_bytes // _ALIGN * _ALIGN
            part = min(count - first, left // size)
            loads[-1].append(Piece(which, first, part))
            first += part
            left -= _aligned(part * size)
    return loads


def cut(tensors: list[Any], load: Sequence[Sequence[int]]) -> list[Any]:
    """Pieces of tensors, which share their memory."""
    found = []
    for which, first, numbers in load:
        tensor = tensors[which]
        if not tensor.is_contiguous():
            tensor.data = tensor.data.contiguous()
        found.append(tensor.data.view(-1)[first : first + numbers])
    return found


def kinds(tensors: list[Any]) -> list[list[Any]]:
    """Type and shape of each tensor."""
    return [[str(t.dtype), list(t.shape)] for t in tensors]


def digest(tensors: list[Any]) -> list[int]:
    """A number for the bits of each tensor and their order, computed where it is: equal for equal ones."""
    import torch

    found = [_digest(t) for t in tensors]
    device = next((t.device for t in found), "cpu")
    return [int(x) for x in torch.stack([t.to(device) for t in found]).tolist()] if found else []


def _digest(tensor: Any) -> Any:
    """Sums of the rows and columns of a table of the bits, weighted by their places.

    PyTorch sums in 64 bits what it has copied to that type: so some rows at a time.
    """
    import torch

    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = tensor.detach().contiguous().view(-1).view(whole[tensor.element_size()])
    full = bits.numel() // _COLUMNS * _COLUMNS
    device = {"device": bits.device}
    columns = torch.zeros(_COLUMNS, dtype=torch.int64, **device)
    total = (bits[full:].to(torch.int64) * torch.arange(1, bits.numel() - full + 1, **device)).sum()
    total = total * 1_000_000_007
    for number, block in enumerate(bits[:full].view(-1, _COLUMNS).split(_ROWS)):
        wide = block.to(torch.int64)
        first = number * _ROWS + 1
        total += (wide.sum(1) * torch.arange(first, first + len(wide), **device)).sum()
        columns += wide.sum(0)
    return total + (columns * torch.arange(1, _COLUMNS + 1, **device)).sum() * 1_000_003


def main(descriptor: int) -> None:
    """Serve until told to end, or the driver is gone."""
    leave_to_parent()  # the driver decides, also where the whole group is told to end
    threading.Thread(target=end_with, args=(os.getppid(), driver_of(descriptor)), daemon=True).start()
    connection = Connection(descriptor)
    try:
        order = json.loads(connection.recv_bytes())
        spec = SimulatorSpec(**order["simulator"])
        try:
            worker = _worker(order["config"], spec)
        except Exception as error:
            send(connection, described(error))
            return
        weights_bytes, everything = room_bytes(worker.policy), tensors_of(worker.policy)
        facts = {
            "policy": asdict(worker.policy.spec),
            "weights_bytes": weights_bytes,
            "kinds": kinds(everything),
            "digest": digest(everything),
        }
        send(connection, facts)
        with socket.socket(fileno=os.dup(descriptor)) as way:
            _, (memory,), _, _ = socket.recv_fds(way, 1, 1)
        shared = blocks.arrays(memory, layout(spec, worker.policy.spec, weights_bytes))
        os.close(memory)
        _serve(connection, worker, shared)
    except (EOFError, ConnectionError):  # the driver is gone
        return


def _worker(values: dict[str, Any], simulator: SimulatorSpec) -> RolloutWorker:
    from rlprof.workloads.embodied.config import Config
    from rlprof.workloads.embodied.errors import need
    from rlprof.workloads.embodied.policies import make
    from rlprof.workloads.embodied.rollout_worker import RolloutWorker
    from rlprof.workloads.embodied.sharing import check_share

    config = Config(**values)
    device = config.rollout_device or config.device
    if device == "cpu":
        need("torch", why="a policy").set_num_threads(1)
    check_share(device)
    policy = make(config.policy_size, simulator, seed=config.seed, device=device)
    if config.compile_policy:
        policy.compile_layers()
    if config.cuda_graph:
        policy.capture()
    return RolloutWorker(policy)


def _serve(connection: Connection, worker: RolloutWorker, shared: Mapping[str, Array]) -> None:
    while True:
        order = json.loads(connection.recv_bytes())
        if order["call"] == "close":
            send(connection, {"ok": True})
            return
        try:
            with memory_of(str(worker.policy.device)):
                answer = _perform(worker, shared, order)
            send(connection, answer)
        except Exception as error:
            send(connection, described(error))


def _perform(worker: RolloutWorker, shared: Mapping[str, Array], order: dict[str, Any]) -> dict[str, Any]:
    from rlprof.capture.annotate import annotate

    call, weights = order["call"], worker.policy.trainable()
    found: dict[str, Any] = {}
    if call in ("predict", "predict_values", "answer_again", "log_prob_again"):
        n = order["count"]
        images = shared["images"][:n].copy() if "images" in shared else None
        seen = Observation(shared["state"][:n].copy(), images, shared["task"][:n].copy())
    if call == "log_prob_again":
        shared["log_prob"][:n] = worker.log_prob_again(seen, shared["chain"][:n].copy())
    elif call in ("predict", "predict_values", "answer_again"):
        rows = shared["rows"][:n].copy()
        with annotate(call):
            step = GlobalStep(order["step"])
            answer = getattr(worker, call)(seen, step, order["epoch"], order["chunk"], rows)
        if call == "predict_values":
            shared["value"][:n] = answer
        else:
            for name, values in zip(NUMBERS, answer, strict=False):
                shared[name][:n] = values
    elif call == "take_weights":
        take(weights, shared["weights"])
    elif call == "take_pieces":
        take(cut(tensors_of(worker.policy), order["pieces"]), shared["weights"])
    elif call == "digest":
        found = {"digest": digest(tensors_of(worker.policy))}
    elif call == "put_weights":
        put(weights, shared["weights"])
    elif call == "offload":
        worker.offload("cpu")
    elif call == "reload":
        worker.reload(order["device"])
    else:
        raise ValueError(f"no call {call!r}")
    told = {"refused": worker.refused, "compile_refused": worker.compile_refused}
    return {"ok": True, **told, **found}


if __name__ == "__main__":
    main(int(sys.argv[1]))
