"""Transformations of call graphs: pure functions that keep what a graph computes, or refuse and say why."""

from __future__ import annotations

from rlprof.overlap.transforms.interleave import interleave
from rlprof.overlap.transforms.merge import merge
from rlprof.overlap.transforms.rewire import rewire
from rlprof.overlap.transforms.split import split_chained, split_spatial, split_temporal

__all__ = ["interleave", "merge", "rewire", "split_chained", "split_spatial", "split_temporal"]
