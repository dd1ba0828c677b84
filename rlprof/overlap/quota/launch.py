"""Under a quota of the processor: ``launch.py cores 0,2 COMMAND...``, ``launch.py nice 5 COMMAND...``.

A script of the standard library alone, since it stands between every branch and its command.
"""

from __future__ import annotations

import os
import sys


def main(kind: str, value: str, command: list[str]) -> None:
    """Set the quota of this process and become the command."""
    if kind == "cores":
        os.sched_setaffinity(0, {int(core) for core in value.split(",")})
    else:
        os.setpriority(os.PRIO_PROCESS, 0, int(value))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
