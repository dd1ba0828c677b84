"""What is kept of an iteration's activity samples: `rlprof.analysis.activity_summary`."""

from rlprof.analysis.activity_summary import BINS, DECIMALS, HALF, LEVELS, MIN_COVERAGE_FRAC, MOST, summary

__all__ = ["BINS", "DECIMALS", "HALF", "LEVELS", "MIN_COVERAGE_FRAC", "MOST", "summary"]
