"""What runs in a process of a simulator: makes a part of its environments and serves calls on them.

Started as ``python -m rlprof.workloads.embodied.simulators.serve SOCKET``; the interpreter may be that of
another environment, which needs numpy and what the simulator needs. Orders are short JSON messages over a
socket; arrays lie in a block of shared memory.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from rlprof.errors import RlprofError
from rlprof.interrupts import leave_to_parent
from rlprof.workloads.embodied.contracts import Array, GlobalStep, Observation
from rlprof.workloads.embodied.simulators import block as blocks
from rlprof.workloads.embodied.simulators.core_turns import take_turns


def main(descriptor: int) -> None:
    """Serve until told to end, or the driver is gone."""
    leave_to_parent()  # the driver decides, also where the whole group is told to end
    threading.Thread(target=end_with, args=(os.getppid(), driver_of(descriptor)), daemon=True).start()
    connection = Connection(descriptor)
    try:
        order = json.loads(connection.recv_bytes())
        be_nicer(order["nice"])
        try:
            module, name = order["make"].split(":")
            simulator = getattr(importlib.import_module(module), name)(**order["options"])
            for cores in order["cores"]:
                take_turns(simulator, cores, order["options"]["first"])
        except Exception as error:
            send(connection, described(error))
            return
        send(connection, {"spec": asdict(simulator.spec)})
        with socket.socket(fileno=os.dup(descriptor)) as way:
            _, (memory,), _, _ = socket.recv_fds(way, 1, 1)
        shared = blocks.arrays(memory, simulator.spec)
        os.close(memory)
        _serve(connection, simulator, shared)
    except (EOFError, ConnectionError):  # the driver is gone
        return


def be_nicer(by: int) -> None:
    """Lower the priority of this process, and of what it will start.

    Linux has a nice value for each thread, and libraries may have started some already.

    Parameters
    ----------
    by : int
        How much to add to the nice value; the sum is 19 at most.
    """
    if not by:
        return
    tasks = Path("/proc/self/task")
    for task in [int(found.name) for found in tasks.iterdir()] if tasks.is_dir() else [0]:
        with suppress(ProcessLookupError):  # a thread that has just ended
            os.setpriority(os.PRIO_PROCESS, task, min(19, os.getpriority(os.PRIO_PROCESS, task) + by))


def end_with(parent: int, driver: int) -> None:
    """End this process once its driver is gone, even in the middle of a call.

    Parameters
    ----------
    parent : int
        Of this process: the driver, what started it for the driver, or, if the driver was gone before this
        process could ask, somebody else.
    driver : int
        As of `driver_of`.
    """
    while os.getppid() == parent and _runs(driver):
        time.sleep(0.5)
    os._exit(1)


def driver_of(descriptor: int) -> int:
    """Process id of who made a socket; 0 if it cannot be told."""
    with socket.socket(fileno=os.dup(descriptor)) as way:
        found = way.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", found)[0])


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)  # process 0 means the group of this one
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _serve(connection: Connection, simulator: Any, shared: Mapping[str, Array]) -> None:
    while True:
        order = json.loads(connection.recv_bytes())
        if order["call"] == "close":
            simulator.close()
            send(connection, {"ok": True})
            return
        try:
            if order["call"] == "load_state_dict":
                data = np.load(io.BytesIO(connection.recv_bytes()), allow_pickle=False)
                simulator.load_state_dict({k: data[k] for k in data.files})
                send(connection, {"ok": True})
            elif order["call"] == "state_dict":
                stream = io.BytesIO()
                np.savez(stream, **simulator.state_dict())
                send(connection, {"ok": True})
                connection.send_bytes(stream.getvalue())
            else:
                _perform(simulator, shared, order)
                send(connection, {"ok": True})
        except Exception as error:
            send(connection, described(error))


def _perform(simulator: Any, shared: Mapping[str, Array], order: dict[str, Any]) -> None:
    n = order["count"]
    rows = shared["rows"][:n].copy()
    call = order["call"]
    if call == "reset":
        _show(simulator.reset(GlobalStep(order["step"]), order["epoch"], rows), simulator, shared, rows)
    elif call == "step":
        result = simulator.step(shared["actions"][:n].copy(), rows)
        _show(result.observation, simulator, shared, rows)
        _reward((result.rewards, result.dones, result.success), shared, n)
    elif call == "physics":
        simulator.physics(shared["actions"][:n].copy(), rows)
    elif call == "reward":
        _reward(simulator.reward(rows), shared, n)
    elif call == "auto_reset":
        simulator.auto_reset(rows)
    elif call == "render":
        _show(simulator.render(rows), simulator, shared, rows)
    elif call == "paint":
        shared["images"][:n] = simulator.paint(shared["views"][:n].copy(), rows)
    else:
        raise ValueError(f"no call {call!r}")


def _show(observation: Observation, simulator: Any, shared: Mapping[str, Array], rows: Array) -> None:
    n = len(rows)
    shared["state"][:n] = observation.state
    shared["task"][:n] = observation.task
    if observation.images is not None:
        shared["images"][:n] = observation.images
    if "views" in shared:  # who draws needs them next: they go along
        shared["views"][:n] = simulator.views(rows)


def _reward(found: tuple[Array, Array, Array], shared: Mapping[str, Array], n: int) -> None:
    for name, value in zip(("rewards", "dones", "success"), found, strict=True):
        shared[name][:n] = value


def described(error: Exception) -> dict[str, Any]:
    """Return what an error is, as an answer."""
    what, hint = f"{type(error).__name__}: {error}", None
    if isinstance(error, RlprofError):
        what, hint = error.what, error.hint
    return {"error": type(error).__name__, "what": what, "hint": hint}


def send(connection: Connection, answer: dict[str, Any]) -> None:
    """Send an answer."""
    connection.send_bytes(json.dumps(answer).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]))
