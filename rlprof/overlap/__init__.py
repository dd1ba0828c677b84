"""Overlap of work in a training iteration: wrap, record, find dependencies, transform, run (Rose)."""

from __future__ import annotations

from rlprof.overlap.checked import check_declarations
from rlprof.overlap.context import CallContext, at_call, current
from rlprof.overlap.draws import Draws
from rlprof.overlap.node import ExecutionNode, LoopNode
from rlprof.overlap.program import Program
from rlprof.overlap.recording import Recording
from rlprof.overlap.specs import BatchSpec as Batch
from rlprof.overlap.state import State, reads, refreshes, updates
from rlprof.overlap.worker import LocalWorker
from rlprof.overlap.wrapping import wrap

__all__ = [
    "Batch",
    "CallContext",
    "Draws",
    "ExecutionNode",
    "LocalWorker",
    "LoopNode",
    "Program",
    "Recording",
    "State",
    "at_call",
    "check_declarations",
    "current",
    "reads",
    "refreshes",
    "updates",
    "wrap",
]
