"""The four uses of transformations that Rose shows (figure 9, a to d), by name, on graphs of any program."""

from __future__ import annotations

from collections.abc import Sequence

from rlprof.overlap.callgraph import Call, CallGraph, expect_graph
from rlprof.overlap.errors import IllegalTransformationError
from rlprof.overlap.transforms.common import Reach, beside, calls_below, exclusive, loop_calls
from rlprof.overlap.transforms.interleave import interleave
from rlprof.overlap.transforms.rewire import rewire
from rlprof.overlap.transforms.split import split_chained, split_spatial


def split_and_interleave(
    graph: CallGraph,
    loop: str,
    groups: int = 2,
    *,
    cuts: Sequence[int] | None = None,
    downstream: Sequence[str] = (),
) -> CallGraph:
    """Figure 9a: the simulator steps for one half of the batch while the policy infers for the other.

    Parameters
    ----------
    graph : CallGraph
        Before.
    loop : str
        The loop of policy and simulator.
    groups, cuts, downstream
        As for `split_spatial`.

    Raises
    ------
    IllegalTransformationError
        As `split_spatial` and `interleave`.
    """
    expect_graph(graph)
    return interleave(split_spatial(graph, loop, groups, cuts=cuts, downstream=downstream), loop)


def train_beside_next_epoch(graph: CallGraph, epochs: str, training: str) -> CallGraph:
    """Figure 9b: training on the data of one rollout epoch runs beside the next epoch.

    The loop over minibatches is cut where its iterations begin to need a further epoch. What lies between
    rollout and training (advantages) goes along, in streams of its own.

    Parameters
    ----------
    graph : CallGraph
        Before.
    epochs : str
        The loop of rollout epochs.
    training : str
        The loop over minibatches. Of several passes only the first can move.

    Raises
    ------
    IllegalTransformationError
        If the first minibatch depends on the last epoch: minibatches or statistics of advantages span epochs,
        or training writes the weights that the rollout reads.
    """
    expect_graph(graph)
    rule = "figure 9b"
    rollouts = next(iter(loop_calls(graph, epochs).values()))
    passes = loop_calls(graph, training)
    first = next(iter(passes.values()))
    reach = Reach(graph)
    bits = {epoch: reach.bits(calls) for epoch, calls in rollouts.items()}
    last = max(bits)
    if not last:
        raise IllegalTransformationError(
            f"{epochs} has one iteration: there is no next one", rule=rule, calls=(epochs,)
        )
    needed: dict[int, int] = {}
    for i, calls in first.items():
        before = 0
        for call in calls:
            before |= reach.before[reach.index[call.id]]
        needed[i] = max((epoch for epoch in bits if before & bits[epoch]), default=0)
    if needed[0] >= last:
        blocked = next(c for c in first[0] if reach.before[reach.index[c.id]] & bits[last])
        names, way = reach.path(bits[last], blocked.id)
        raise IllegalTransformationError(
            f"training needs all epochs from its first minibatch on: {way}",
            rule=rule,
            calls=names,
            hint="form minibatches and advantage statistics from one epoch at a time, and let the rollout"
            " read weights that training does not write",
        )
    cuts = [i for i in sorted(needed) if i and needed[i] > needed[i - 1]]
    trained = [call for iterations in passes.values() for calls in iterations.values() for call in calls]
    between = _between(graph, reach, [c for calls in rollouts.values() for c in calls], trained)
    if cuts:
        graph = split_chained(graph, training, cuts=cuts)
    for node in between:
        graph = rewire(graph, node, stream="own")
    early = [c for i, calls in first.items() if needed[i] < last for c in calls]
    if beside(graph, [graph.by_id[c.id] for c in early], [graph.by_id[c.id] for c in rollouts[last]]) is None:
        raise IllegalTransformationError(
            f"no call of {training} may run beside epoch {last} of {epochs}: they are ordered by streams or"
            " serve the same component",
            rule=rule,
            calls=(early[0].id, rollouts[last][0].id),
        )
    return graph


def _between(graph: CallGraph, reach: Reach, rollouts: list[Call], trained: list[Call]) -> list[str]:
    """Nodes that come after the rollout and that training needs."""
    end, wanted = rollouts[-1].order, 0
    inside = {call.id for call in trained}
    for call in trained:
        wanted |= reach.before[reach.index[call.id]]
    nodes = {
        call.node: None
        for i, call in enumerate(graph.calls)
        if call.order > end and wanted >> i & 1 and call.id not in inside
    }
    return list(nodes)


def transfer_beside_compute(graph: CallGraph, transfers: Sequence[str], compute: Sequence[str]) -> CallGraph:
    """Figure 9c: observations and actions are carried while something else computes.

    Parameters
    ----------
    graph : CallGraph
        Before; after a split, transfers of one group run beside the compute of the other.
    transfers : sequence of str
        Nodes that carry data, on a component or resource of their own.
    compute : sequence of str
        Nodes that they should run beside.

    Raises
    ------
    IllegalTransformationError
        If each transfer lies on a path between all calls of compute: nothing could run beside it.
    """
    expect_graph(graph)
    for node in transfers:
        graph = rewire(graph, node, stream="own")
    others = [call for node in compute for call in calls_below(graph, node)]
    for node in transfers:
        moved = calls_below(graph, node)
        if beside(graph, moved, others) is None:
            raise _no_compute(graph, node, moved[len(moved) // 2], others)
    return graph


def _no_compute(
    graph: CallGraph, node: str, transfer: Call, compute: list[Call]
) -> IllegalTransformationError:
    """Name what comes before and after a transfer."""
    reach = Reach(graph)
    at = reach.index[transfer.id]
    before = [c for c in compute if reach.before[at] >> reach.index[c.id] & 1]
    after = [c for c in compute if reach.before[reach.index[c.id]] >> at & 1]
    names, way = reach.path(reach.bits(before), transfer.id) if before else ((transfer.id,), transfer.id)
    if after:
        further, rest = reach.path(1 << at, after[0].id)
        names, way = (*names, *further[1:]), way + rest[len(transfer.id) :]
    return IllegalTransformationError(
        f"all compute comes before or after {node}, or serves the same worker: {way}",
        rule="figure 9c",
        calls=names,
        hint="split the loop first, so that another group computes meanwhile",
    )


def backbone_beside_denoise(
    graph: CallGraph,
    loop: str,
    *,
    backbone: str,
    denoise: str,
    reward: str | None = None,
    groups: int = 2,
) -> CallGraph:
    """Figure 9d: the backbone of one group runs in the denoise window of another; rewards wait their turn.

    Parameters
    ----------
    graph : CallGraph
        Before.
    loop : str
        The interaction loop around all these nodes.
    backbone, denoise : str
        Nodes of the policy, on different component workers.
    reward : str, optional
        A node that nothing in the loop waits for; it leaves the critical path.
    groups : int
        Of samples.

    Raises
    ------
    IllegalTransformationError
        As `split_spatial` and `interleave`; or if backbone and denoise serve one call at a time together.
    """
    expect_graph(graph)
    rule = "figure 9d"
    front, window = calls_below(graph, backbone)[0], calls_below(graph, denoise)[0]
    held = exclusive(graph)
    shared = sorted(set(held[front.node]) & set(held[window.node]))
    if shared:
        raise IllegalTransformationError(
            f"{backbone} and {denoise} both hold {shared[0]}, which serves one call at a time",
            rule="L5",
            calls=(front.id, window.id),
        )
    graph = split_spatial(graph, loop, groups)
    if reward is not None:
        graph = rewire(graph, reward, stream="own")
    graph = interleave(graph, loop)
    behind = [call for call in calls_below(graph, backbone) if call.group]
    ahead = [call for call in calls_below(graph, denoise) if not call.group]
    if beside(graph, behind, ahead) is None:
        raise IllegalTransformationError(
            f"{backbone} of one group is always before or after {denoise} of the other",
            rule=rule,
            calls=(behind[0].id, ahead[0].id),
        )
    return graph


#: By the letter in the figure.
FIGURE_9 = {
    "a": split_and_interleave,
    "b": train_beside_next_epoch,
    "c": transfer_beside_compute,
    "d": backbone_beside_denoise,
}
