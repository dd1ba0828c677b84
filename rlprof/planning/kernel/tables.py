"""What the compiled evaluator works on.

Every step of an unrolled graph has the same nodes, so one step is lowered, with edges that say how many
steps back they come from, and scheduled for all steps.

Legend: V invocations, C candidates of all invocations, Q phases, E data edges, P publications, W weight
pairs, N nodes and X edges of one step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Tables(NamedTuple):
    """All that does not depend on the state.

    Parameters
    ----------
    limits : int64 (3,)
        Racks, nodes per rack, GPUs per node.
    order, rank : int64 (V,)
        A topological order, and the place of each invocation in the pipeline's own.
    first : int64 (V,)
        Position of the first candidate of each invocation.
    extent : int64 (C, 3)
    layout, microbatches : int64 (C,)
        Number of the parallelism (equal ones have equal numbers), and mb.
    time_s, bubble_s : float64 (C,)
    phase_s : float64 (C, Q)
        Of each response-length phase.
    weights, optimizer, transient : float64 (C,)
        Bytes; transient without weights.
    model, tau, trains : int64 (V,)
        Of each invocation: number of its model in order of names, staleness, and whether it trains.
    trained : int64 (V,)
        The training invocation of its model; -1 for a frozen one.
    data : int64 (E, 3)
        Source, target, and whether it may run phase by phase.
    volume : float64 (E,)
        Bytes.
    fractions : float64 (Q,)
        Cumulative fraction of sequences at the end of each phase.
    pairs : int64 (W, 2)
        Consecutive invocations of one trainable model.
    publications : int64 (P, 2)
    weight_bytes : float64 (V,)
        Of the model of each invocation.
    fusable : int64 (V, V)
        Whether two training invocations may fuse, upper triangle.
    p2p, collective : float64 (3, 2)
        alpha and beta by tier.
    steps, reserve_source : int
    usable_bytes, step_tokens, gpus : float
    """

    limits: Ints
    order: Ints
    rank: Ints
    first: Ints
    extent: Ints
    layout: Ints
    microbatches: Ints
    time_s: Floats
    bubble_s: Floats
    phase_s: Floats
    weights: Floats
    optimizer: Floats
    transient: Floats
    model: Ints
    tau: Ints
    trains: Ints
    trained: Ints
    data: Ints
    volume: Floats
    fractions: Floats
    pairs: Ints
    publications: Ints
    weight_bytes: Floats
    fusable: Ints
    p2p: Floats
    collective: Floats
    steps: int
    reserve_source: int
    usable_bytes: float
    step_tokens: float
    gpus: float


class Boxes(NamedTuple):
    """Where the invocations of one state lie.

    Parameters
    ----------
    at : int64 (V,)
        Position of the chosen candidate in the tables.
    origin, extent : int64 (V, 3)
    share : int64 (V, V)
        GPUs that two boxes have in common; on the diagonal their size.
    fused, fused_into : int64 (V,)
        The other half of a fused pair, for the first and for the second one; -1 for all others.
    """

    at: Ints
    origin: Ints
    extent: Ints
    share: Ints
    fused: Ints
    fused_into: Ints


class StepGraph(NamedTuple):
    """Nodes and edges of one step.

    Parameters
    ----------
    nodes, edges : int
        How many of the arrays' rows are in use.
    vertex, source : int64 (N,)
        The invocation that a node is or serves, and the one that a transfer comes from (-1 for operators).
    phase, is_op, head : int64 (N,)
        Response-length phase; whether it is an operator; the node whose rank it takes.
    least_step : int64 (N,)
        First step in which the node is there.
    time_s : float64 (N,)
    tail, tip, back : int64 (X,)
        From which node to which, and how many steps back the tail lies.
    since : int64 (X,)
        First step (of the tip) in which the edge is there.
    """

    nodes: int
    edges: int
    vertex: Ints
    source: Ints
    phase: Ints
    is_op: Ints
    head: Ints
    least_step: Ints
    time_s: Floats
    tail: Ints
    tip: Ints
    back: Ints
    since: Ints
