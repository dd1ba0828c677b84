"""One process of a collective: `python -m rlprof.planning.calibration.link_worker RANK FOLDER`.

The first one prints a JSON line for each measurement. Each ends when its standard input closes, so that none
outlives the process that started it.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from rlprof.planning.calibration.device import Clock, captured, settled
from rlprof.planning.calibration.operators import Bench
from rlprof.planning.calibration.raw import Point
from rlprof.planning.calibration.sweeps import REPLAYED, VALIDATED, Effort
from rlprof.planning.calibration.torch_module import torch_module

#: A collective that takes longer than this has lost a partner.
LIMIT_S = 45


def main(rank: int, folder: Path) -> int:
    """Take part in all measurements of a task."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    task = json.loads((folder / "task.json").read_text())
    try:
        torch = torch_module()
        dist = torch_module("distributed")

        cuda, numbers = task["kind"] == "cuda", task["numbers"]
        device = f"cuda:{numbers[rank]}" if cuda else "cpu"
        clock = Clock(device)
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            init_method=f"file://{folder / 'store'}",
            rank=rank,
            world_size=len(numbers),
            timeout=datetime.timedelta(seconds=LIMIT_S),
            **({"device_id": torch.device(device)} if cuda else {}),
        )
    except Exception as error:
        _say(rank, {"failed_to_start": f"{type(error).__name__}: {error}"})
        raise
    sizes = sorted({_ranks(key) for _, key, _ in task["points"]})
    # every process makes every group, whether it is in it or not: that is what PyTorch asks for
    groups = {p: dist.new_group(list(range(p))) for p in sizes}
    effort = Effort(**task["effort"])
    benches = {p: Bench(clock, task["dtype"], effort, group) for p, group in groups.items() if rank < p}
    with settled(task["kind"]):
        for kind, key, number in task["points"]:
            p = _ranks(key)
            found = None
            if rank < p and kind in VALIDATED:
                found = _operator(Point(kind, key), benches[p], task, groups[p])
            elif rank < p:
                found = _collective(kind, key, rank, groups[p], clock, effort)
            dist.barrier()  # the others wait: measurements never run beside one another
            if found is not None:
                now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
                _say(rank, {"kind": kind, "key": key, "round": number, "date": now, **found})
    _say(rank, {"done": True})
    with contextlib.suppress(Exception):
        dist.destroy_process_group()
    return 0


def _say(rank: int, message: dict[str, Any]) -> None:
    if rank == 0:
        print(json.dumps(message), flush=True)


def _ranks(key: dict[str, Any]) -> int:
    """Processes that take part."""
    return int(key.get("ranks") or key.get("tensor", 1) * key.get("data", 1))


def _collective(
    kind: str, key: dict[str, Any], rank: int, group: Any, clock: Clock, effort: Effort
) -> dict[str, Any]:
    """Times of one collective as its slowest process sees it."""
    torch = torch_module()
    dist = torch_module("distributed")

    call = _call(kind, key["bytes"], key["ranks"], rank, group, clock.device)
    for _ in range(3):
        call()
    one = torch.tensor([clock.once(call)], device=clock.device, dtype=torch.float64)
    dist.all_reduce(one, dist.ReduceOp.MAX, group=group)  # all take as many calls
    calls = max(1, min(200, round(effort.section_s / max(float(one), 1e-7))))
    way = 2 if kind == "p2p" else 1  # there and back again

    def section() -> None:
        for _ in range(calls):
            call()

    run = captured(section) if kind == REPLAYED else section
    times = torch.zeros(effort.repeats, device=clock.device, dtype=torch.float64)
    for n in range(effort.repeats):
        dist.barrier(group=group)
        times[n] = clock.once(run) / calls / way
    dist.all_reduce(times, dist.ReduceOp.MAX, group=group)
    return {"seconds": times.tolist()}


def _operator(point: Point, bench: Bench, task: dict[str, Any], group: Any) -> dict[str, Any]:
    """Times and peak memory of one operator, as the slowest and the fullest of its devices see it."""
    torch = torch_module()
    dist = torch_module("distributed")

    name = point.key["shape"]["name"]
    lengths = [
        key["prompt_tokens"] + key["response_tokens"] + 1
        for kind, key, _ in task["points"]
        if kind in VALIDATED and key["shape"]["name"] == name
    ]
    try:
        found = bench.measure(point, max(lengths))
    except Exception as error:
        traceback.print_exc()
        bench.drop()
        return {"failed": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]}
    rows = [list(found.seconds), *(list(part) for part in found.parts.values())]
    times = torch.tensor(rows, device=bench.clock.device, dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX, group=group)
    peak = torch.tensor([found.peak_bytes or 0], device=bench.clock.device)
    dist.all_reduce(peak, dist.ReduceOp.MAX, group=group)
    seconds, *parts = times.tolist()
    names = list(found.parts)
    return {
        "seconds": seconds,
        "parts": dict(zip(names, parts, strict=True)),
        "peak_bytes": int(peak) or None,
    }


def _call(kind: str, size: int, ranks: int, rank: int, group: Any, device: str) -> Any:
    """One collective over `size` bytes: M of specification B, section 4, in 4-byte numbers."""
    torch = torch_module()
    dist = torch_module("distributed")

    count = size // 4
    whole = torch.zeros(count, device=device)
    part = torch.zeros(count // ranks, device=device)
    whole = whole[: part.numel() * ranks] if kind != "p2p" else whole
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    other = torch.zeros_like(whole)

    def ping_pong() -> None:
        if rank == 0:
            dist.send(whole, 1, group=group)
            dist.recv(other, 1, group=group)
        else:
            dist.recv(other, 0, group=group)
            dist.send(whole, 0, group=group)

    return {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        REPLAYED: lambda: dist.all_reduce(whole, group=group),
        "all_gather": lambda: gather(whole, part, group=group),
        "reduce_scatter": lambda: scatter(part, whole, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
        "p2p": ping_pong,
    }[kind]


def _end_with_parent() -> None:
    """End this process, whatever it does, once its parent has closed our input or is gone."""
    with contextlib.suppress(OSError):
        while os.read(0, 1024):
            pass
    os._exit(3)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2])))
