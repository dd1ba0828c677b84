"""What other programs take of the machine while something is measured."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path


class OthersLoad:
    """Share of the host's cores that other programs keep busy: /proc/stat less this program's own time."""

    def __init__(self) -> None:
        self.shares: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        cores = os.cpu_count() or 1
        busy, own, at = *self._look(), time.monotonic()
        while not self._ended.wait(2.0):
            now_busy, now_own, now = *self._look(), time.monotonic()
            span = (now - at) * cores
            self.shares.append(min(1.0, max(0.0, (now_busy - busy - (now_own - own)) / span)))
            busy, own, at = now_busy, now_own, now

    @staticmethod
    def _look() -> tuple[float, float]:
        first = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        ticks = os.sysconf("SC_CLK_TCK")
        user, nice, system, _, _, irq, soft = (int(n) for n in first[:7])
        times = os.times()
        # of children that have ended, and of those at work
        own = times.user + times.system + times.children_user + times.children_system
        waiting = ["self"]
        while waiting:
            for children in Path("/proc", waiting.pop(), "task").glob("*/children"):
                with contextlib.suppress(OSError):  # one may end meanwhile
                    for pid in children.read_text().split():
                        fields = Path("/proc", pid, "stat").read_text().rsplit(")", 1)[1].split()
                        own += sum(int(field) for field in fields[11:15]) / ticks
                        waiting.append(pid)
        return (user + nice + system + irq + soft) / ticks, own

    def end(self) -> list[float]:
        self._ended.set()
        self._thread.join()
        return self.shares
