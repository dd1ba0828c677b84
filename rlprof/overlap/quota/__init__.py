"""Quotas: MPS daemon and levels, slack of a pair of processes, Algorithm 2 (Rose, section 4.4)."""

from __future__ import annotations

from rlprof.overlap.quota.branches import Branch
from rlprof.overlap.quota.daemon import mps
from rlprof.overlap.quota.daemons import Daemon
from rlprof.overlap.quota.levels import Level, distinct
from rlprof.overlap.quota.mechanism import Cores, Mechanism, Mps, Nice
from rlprof.overlap.quota.pair import EligiblePair, WorkerProcess, find_pair
from rlprof.overlap.quota.rounds import rounds
from rlprof.overlap.quota.search import Measurement, QuotaSearch, Trial, quota_search, sweep
from rlprof.overlap.quota.tune import tune
from rlprof.overlap.quota.tuning import Settings, Tuning
from rlprof.overlap.quota.validation import Validation, validate
from rlprof.overlap.quota.workers import QuotaBackend, started_with

__all__ = [
    "Branch",
    "Cores",
    "Daemon",
    "EligiblePair",
    "Level",
    "Measurement",
    "Mechanism",
    "Mps",
    "Nice",
    "QuotaBackend",
    "QuotaSearch",
    "Settings",
    "Trial",
    "Tuning",
    "Validation",
    "WorkerProcess",
    "distinct",
    "find_pair",
    "mps",
    "quota_search",
    "rounds",
    "started_with",
    "sweep",
    "tune",
    "validate",
]
