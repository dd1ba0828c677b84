"""Transformations of call graphs: pure functions that keep what a graph computes, or refuse and say why."""

from __future__ import annotations

from rlprof.overlap.transforms.interleave import interleave
from rlprof.overlap.transforms.split import split_spatial

__all__ = ["interleave", "split_spatial"]
