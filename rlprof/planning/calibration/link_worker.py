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
from pathlib import Path
from typing import Any

from rlprof.planning.calibration.device import Clock
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
    sizes = sorted({key["ranks"] for _, key, _ in task["points"]})
    # every process makes every group, whether it is in it or not: that is what PyTorch asks for
    groups = {p: dist.new_group(list(range(p))) for p in sizes}
    for kind, key, number in task["points"]:
        found = _measure(kind, key, rank, groups[key["ranks"]], clock, task)
        if found is not None:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            _say(rank, {"kind": kind, "key": key, "round": number, "date": now, **found})
    dist.barrier()
    _say(rank, {"done": True})
    with contextlib.suppress(Exception):
        dist.destroy_process_group()
    return 0


def _say(rank: int, message: dict[str, Any]) -> None:
    if rank == 0:
        print(json.dumps(message), flush=True)


def _measure(
    kind: str, key: dict[str, Any], rank: int, group: Any, clock: Clock, task: dict[str, Any]
) -> dict[str, Any] | None:
    """Times of one collective as its slowest process sees it; None in processes that take no part."""
    torch = torch_module()
    dist = torch_module("distributed")

    ranks = key["ranks"]
    if rank < ranks:
        call = _call(kind, key["bytes"], ranks, rank, group, clock.device)
        for _ in range(3):
            call()
        one = torch.tensor([clock.once(call)], device=clock.device, dtype=torch.float64)
        dist.all_reduce(one, dist.ReduceOp.MAX, group=group)  # all take as many calls
        calls = max(1, min(200, round(task["section_s"] / max(float(one), 1e-7))))
        way = 2 if kind == "p2p" else 1  # there and back again

        def section() -> None:
            for _ in range(calls):
                call()

        times = torch.zeros(task["repeats"], device=clock.device, dtype=torch.float64)
        for n in range(task["repeats"]):
            dist.barrier(group=group)
            times[n] = clock.once(section) / calls / way
        dist.all_reduce(times, dist.ReduceOp.MAX, group=group)
        found = {"seconds": times.tolist()}
    dist.barrier()  # the others wait: measurements never run beside one another
    return found if rank < ranks else None


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
