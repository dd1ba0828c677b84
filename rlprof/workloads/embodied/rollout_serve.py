"""What runs in the process of the rollout worker: a policy that answers, with weights that it is given.

Started as ``python -m rlprof.workloads.embodied.rollout_serve SOCKET``. Orders are short JSON messages over a
socket; observations, answers and weights lie in a block of shared memory.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from rlprof.workloads.embodied.contracts import (
    NUMBERS,
    Array,
    GlobalStep,
    Observation,
    PolicySpec,
    SimulatorSpec,
)
from rlprof.workloads.embodied.errors import memory_of
from rlprof.workloads.embodied.simulators import block as blocks
from rlprof.workloads.embodied.simulators.serve import described, end_with, send

if TYPE_CHECKING:
    from rlprof.workloads.embodied.rollout_worker import RolloutWorker


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
    return sum(-(-t.numel() * t.element_size() // 16) * 16 for t in tensors)


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
        at += -(-size // 16) * 16
    return found


def digest(parameters: list[Any]) -> list[int]:
    """A sum over the bits of each parameter, computed where it is: equal for equal weights."""
    import torch

    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    sums = [p.detach().contiguous().view(kinds[p.element_size()]).sum(dtype=torch.int64) for p in parameters]
    return [int(x) for x in torch.stack(sums).tolist()]


def main(descriptor: int) -> None:
    """Serve until told to end, or the driver is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides, also when a person presses Ctrl-C
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    connection = Connection(descriptor)
    try:
        order = json.loads(connection.recv_bytes())
        spec = SimulatorSpec(**order["simulator"])
        try:
            worker = _worker(order["config"], spec)
        except Exception as error:
            send(connection, described(error))
            return
        weights = worker.policy.trainable()
        weights_bytes = size_bytes(weights)
        facts = {
            "policy": asdict(worker.policy.spec),
            "weights_bytes": weights_bytes,
            "digest": digest(list(worker.policy.parameters())),
        }
        send(connection, facts)
        with socket.socket(fileno=os.dup(descriptor)) as way:
            _, (memory,), _, _ = socket.recv_fds(way, 1, 1)
        shared = blocks.arrays(memory, layout(spec, worker.policy.spec, weights_bytes))
        os.close(memory)
        _serve(connection, worker, shared)
    except (EOFError, OSError):
        return


def _worker(values: dict[str, Any], simulator: SimulatorSpec) -> RolloutWorker:
    from rlprof.workloads.embodied.config import Config
    from rlprof.workloads.embodied.errors import need
    from rlprof.workloads.embodied.policies import make
    from rlprof.workloads.embodied.rollout_worker import RolloutWorker

    config = Config(**values)
    device = config.rollout_device or config.device
    if device == "cpu":
        need("torch", why="a policy").set_num_threads(1)
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
    if call in ("predict", "predict_values", "answer_again"):
        n = order["count"]
        images = shared["images"][:n].copy() if "images" in shared else None
        seen = Observation(shared["state"][:n].copy(), images, shared["task"][:n].copy())
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
    elif call == "put_weights":
        put(weights, shared["weights"])
    elif call == "offload":
        worker.offload("cpu")
    elif call == "reload":
        worker.reload(order["device"])
    else:
        raise ValueError(f"no call {call!r}")
    return {"ok": True, "refused": worker.refused, "compile_refused": worker.compile_refused}


if __name__ == "__main__":
    main(int(sys.argv[1]))
