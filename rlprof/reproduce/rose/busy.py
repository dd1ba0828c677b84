"""A branch that keeps cores busy, for `rlprof quota` on a processor: processes that each do as much.

rlprof quota --mechanism cores --branch A='python -m rlprof.reproduce.rose.busy 2 200000' --branch B=...
"""

from __future__ import annotations

import os
import sys

from rlprof.overlap.quota.rounds import rounds


def work(count: int) -> int:
    """Add up the squares of so many numbers."""
    total = 0
    for n in range(count):
        total += n * n
    return total


def round_of(processes: int, count: int) -> None:
    """Let so many processes do the work, and wait for all of them."""
    children = []
    for _ in range(processes - 1):
        child = os.fork()
        if not child:
            work(count)
            os._exit(0)
        children.append(child)
    work(count)
    for child in children:
        os.waitpid(child, 0)


def main(arguments: list[str]) -> None:
    """Do rounds of work: number of processes, numbers that each adds up."""
    processes, count = map(int, arguments)
    for _ in rounds():
        round_of(processes, count)


if __name__ == "__main__":
    main(sys.argv[1:])
