"""Quotas: MPS daemon and levels, slack of a pair of processes, Algorithm 2 (Rose, section 4.4)."""

from __future__ import annotations

from rlprof.overlap.quota.levels import Level, distinct
from rlprof.overlap.quota.pair import EligiblePair, WorkerProcess, find_pair
from rlprof.overlap.quota.search import Measurement, QuotaSearch, Trial, quota_search
from rlprof.overlap.quota.validation import Validation, validate

__all__ = [
    "EligiblePair",
    "Level",
    "Measurement",
    "QuotaSearch",
    "Trial",
    "Validation",
    "WorkerProcess",
    "distinct",
    "find_pair",
    "quota_search",
    "validate",
]
