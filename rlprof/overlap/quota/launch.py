"""Under a quota of the processor: ``launch.py cores 0,2 COMMAND...``, ``launch.py nice 5 COMMAND...``.

A script of the standard library alone, since it stands between every branch and its command. It runs in a
session of its own, which is what the kernel's autogroups share the processor between: with them, nice values
of processes count within a session only, and the session has one of its own.
"""

from __future__ import annotations

import os
import sys
import time

AUTOGROUP = "/proc/self/autogroup"


def main(kind: str, value: str, command: list[str]) -> None:
    """Set the quota of this process and become the command."""
    if kind == "cores":
        os.sched_setaffinity(0, {int(core) for core in value.split(",")})
    else:
        os.setpriority(os.PRIO_PROCESS, 0, int(value))
        _nice_of_session(value)
    os.execvp(command[0], command)


def _nice_of_session(value: str) -> None:
    """Set the nice value of the session, where the kernel has autogroups."""
    for _ in range(20):
        try:
            with open(AUTOGROUP, "w") as file:  # noqa: PTH123 - a script that starts at once
                file.write(value)
        except BlockingIOError:  # only so many changes a second are taken, of whomever
            time.sleep(0.1)
        except OSError:
            return  # there are none
        else:
            return
    sys.exit(f"the kernel does not take nice value {value} for this session")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
