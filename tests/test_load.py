"""What other programs take: the time of this one's children, and of theirs, is not other programs'."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.load import OthersLoad

SPIN = "import time\nwhile time.process_time() < {0}: pass\nprint('spun', flush=True)\ninput()"


def test_time_of_a_childs_child_is_ones_own_while_it_runs_and_afterwards() -> None:
    _, before = OthersLoad._look()
    command = ["sh", "-c", f'"{sys.executable}" -c "{SPIN.format(0.4)}"; true']
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "spun\n"
        _, during = OthersLoad._look()
        child.communicate("\n")
    _, after = OthersLoad._look()
    assert during - before >= 0.35
    assert after >= during
