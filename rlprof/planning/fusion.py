"""Stage fusion: training of two models interleaved in one composite node (specification B, section 3)."""

from __future__ import annotations

from collections.abc import Sequence

from rlprof.planning.pipeline import Pipeline
from rlprof.planning.plan import Assignment


def fused_pairs(pipeline: Pipeline, assignments: Sequence[Assignment]) -> dict[int, int]:
    """Return training invocations that can share a node, by position: the second one of a pair by the first.

    Two training invocations fuse if they share GPUs, parallelism and microbatches and neither leads to the
    other. Each is in one pair at most; earlier invocations come first.

    Parameters
    ----------
    pipeline : Pipeline
        The graph.
    assignments : sequence of Assignment
        In the order of its invocations.
    """
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    training = sorted(pipeline.training.values())
    reach = pipeline.descendants
    for i in training:
        for j in training:
            if j <= i or i in taken or j in taken or assignments[i] != assignments[j]:
                continue
            if j not in reach[i] and i not in reach[j]:
                pairs[i] = j
                taken |= {i, j}
    return pairs
