"""A small search of a quota on this processor: cores in place of a GPU's SMs."""

from __future__ import annotations

import sys
from typing import Any

#: The two branches: processes, and numbers that each adds up. The first one is ready first.
BRANCHES = {"A": (2, 600_000), "B": (2, 1_200_000)}
#: Few pairs, for it shows that everything runs: three that agree are clear.
CONFIDENCE, PAIRS, BUDGET_S = 0.6, 3, 20.0
#: Beside other work a search may find no clear slack, and no level is measured: it is then done again.
ATTEMPTS = 3


def settings() -> dict[str, Any]:
    """Return what the search depends on, plain values."""
    return {
        "mechanism": "cores",
        "branches": {name: list(work) for name, work in BRANCHES.items()},
        "confidence": CONFIDENCE,
        "pairs": PAIRS,
        "budget_s": BUDGET_S,
    }


def search_here() -> dict[str, Any]:
    """Run Algorithm 2 on two commands, small; return a document as `rlprof quota` writes.

    Raises
    ------
    UsageError
        If there is one core only.
    QuotaError
        If a branch does not run.
    """
    from rlprof.analysis.trials import Rule
    from rlprof.cores import usable_cores
    from rlprof.overlap.quota.branches import Branch
    from rlprof.overlap.quota.mechanism import processor
    from rlprof.overlap.quota.report import tuning_document
    from rlprof.overlap.quota.tune import tune
    from rlprof.overlap.quota.tuning import Settings
    from rlprof.reproduce.raw import now, versions

    command = (sys.executable, "-m", "rlprof.reproduce.rose.busy")
    branches = [Branch(name, (*command, *map(str, work))) for name, work in BRANCHES.items()]
    wanted = Settings(
        Rule(CONFIDENCE, PAIRS), Rule(CONFIDENCE, PAIRS, 0.01), budget_s=BUDGET_S, timeout_s=60, sweep=1
    )
    document: dict[str, Any] = {}
    for _ in range(ATTEMPTS):
        document = tuning_document(tune(branches, processor("cores"), wanted))
        if document["search"].get("trials"):
            break
    document["branches"] = {  # where Python lies is of no interest
        name: text.replace(sys.executable, "python", 1) for name, text in document["branches"].items()
    }
    machine = {"date": now()[:10], "cores": usable_cores(), "python": versions()["python"]}
    return {"command": "rlprof quota --mechanism cores", "machine": machine, **document}
