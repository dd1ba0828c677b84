"""A stand-in for nvidia-cuda-mps-control, where there is no GPU: the same orders, answers and files, no MPS.

FAKE_MPS chooses what goes wrong: "refuses" (does not start), "deaf" (does not answer, and does not quit),
"old" (knows no `quit -t`), "limit" (takes no client), "shy" (the daemon does not keep its environment),
"leaves" (nor that, and it ends before its server does).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from pathlib import Path

PIPE = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
LOG = Path(os.environ.get("CUDA_MPS_LOG_DIRECTORY", "/tmp"))
FAULT = os.environ.get("FAKE_MPS", "")


def alive() -> bool:
    try:
        os.kill(int((PIPE / "nvidia-cuda-mps-control.pid").read_text()), 0)
    except (OSError, ValueError):
        return False
    return True


def start() -> int:
    if FAULT == "refuses":
        print("Failed to start MPS control daemon")
        return 1
    if alive():
        print("An instance of this daemon is already running")
        return 1
    if os.fork():
        until = time.monotonic() + 60
        while not (PIPE / "control").exists() and time.monotonic() < until:
            time.sleep(0.005)
        return 0
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    (PIPE / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))
    if FAULT in ("shy", "leaves"):
        kept = {k: v for k, v in os.environ.items() if not k.startswith("RLPROF")}
        os.execve(sys.argv[0], [sys.argv[0], "--serve"], kept)
    serve()
    os._exit(0)


def serve() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN if FAULT == "deaf" else signal.SIG_DFL)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(PIPE / "control"))
    listener.listen()
    server = 0
    clients: list[tuple[int, socket.socket]] = []
    (LOG / "control.log").write_text("[stand-in] started\n")
    while True:
        connection, _ = listener.accept()
        try:
            order = connection.recv(100).decode().strip()
        except OSError:
            continue
        clients = [(pid, way) for pid, way in clients if Path(f"/proc/{pid}").exists()]
        if order.startswith("client"):
            if FAULT == "limit":
                answer_to(connection, "808")
                connection.close()
                continue
            if not server:
                server = os.fork()
                if server == 0:
                    while True:
                        time.sleep(60)
            clients.append((int(order.split()[1]), connection))
            answer_to(connection, "0")
            continue
        if FAULT == "deaf":
            time.sleep(1)
            continue
        answer = f"unknown order {order}"
        if order == "get_server_list":
            answer = str(server or "")
        elif order.startswith("get_client_list"):
            answer = "\n".join(str(pid) for pid, _ in clients)
        elif order == "quit" or (order.startswith("quit -t") and FAULT != "old"):
            until = time.monotonic() + int(order.split()[2] if "-t" in order else 0)
            while any(running(pid) for pid, _ in clients) and time.monotonic() < until:
                time.sleep(0.02)
            if server and FAULT != "leaves":
                os.kill(server, signal.SIGKILL)
            (PIPE / "control").unlink()
            return
        answer_to(connection, answer)
        connection.close()


def answer_to(connection: socket.socket, answer: str) -> None:
    """One that was killed while it asked gets none, and is no reason to end."""
    with contextlib.suppress(OSError):
        connection.sendall(answer.encode())


def running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def ask() -> int:
    for order in sys.stdin.read().splitlines():
        with socket.socket(socket.AF_UNIX) as way:
            try:
                way.connect(str(PIPE / "control"))
            except OSError:
                print("Cannot find MPS control daemon process")
                return 1
            way.sendall(order.encode())
            print(way.recv(10000).decode())
    return 0


if __name__ == "__main__":
    sys.exit(serve() if "--serve" in sys.argv else start() if "-d" in sys.argv else ask())
