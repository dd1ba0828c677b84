"""Generated programs wrapped through the public interface, as a user would wrap them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlprof.overlap import (
    Batch,
    Draws,
    ExecutionNode,
    LoopNode,
    Program,
    State,
    reads,
    refreshes,
    updates,
    wrap,
)
from rlprof.overlap.context import CallContext
from tests.overlap.declarations import Generated, Site, Use
from tests.overlap.interpreter import World, build
from tests.overlap.runtime import rows_of_keys

_DECLARE = {"read": reads, "update": updates, "refresh": refreshes}


@dataclass(frozen=True)
class Wrapped:
    """A program under rlprof.

    Parameters
    ----------
    world : World
        Its objects; their code calls the nodes.
    program : Program
        Nodes and state.
    region : ExecutionNode
        The one that is recorded and replaced.
    states : dict of str to State
        By name.
    """

    world: World
    program: Program
    region: ExecutionNode
    states: dict[str, State]


def wrapped(generated: Generated) -> Wrapped:
    """Build a program and wrap it."""
    draws = Draws(generated.seed)

    def noise(count: int, samples: Any = None) -> np.ndarray:
        return rows_of_keys(draws.keys(count, samples))

    world = build(generated, noise)
    states = {}
    for made in generated.states:
        component = made.component.capitalize()
        if made.kind == "rows":
            states[made.name] = State(
                made.name,
                getattr(world.main, made.component),
                component=component,
                partitions=generated.batch,
                by_sample=True,
                copies=[world.classes[made.component]() for _ in range(made.copies)],
            )
        else:
            states[made.name] = State(
                made.name,
                getattr(world.boxes, made.name),
                component=component,
                partitions=made.partitions or None,
                rollout_weights=made.weights,
            )
    program = Program()
    nodes: dict[str | None, Any] = {None: program}
    for site in generated.sites:
        nodes[site.name] = _node(world, site, nodes[site.parent], states)
    return Wrapped(world, program, nodes[generated.region], states)


def _node(world: World, site: Site, parent: Any, states: dict[str, State]) -> ExecutionNode:
    owner = world.main if site.owner == "main" else getattr(world.main, site.owner)
    if site.parent is None:
        node = LoopNode(None, parent, owner.iteration)
        owner.iteration = node
        return node
    if site.kind == "loop":
        marked = LoopNode(site.count, parent, name=site.name)
        setattr(owner, site.name, marked)
        return marked
    if site.kind == "body":
        return wrap(owner, site.name, parent, count=site.count)
    if site.kind == "plain":
        return wrap(owner, site.name, parent)
    batch = None
    if site.batched is not None:
        batch = Batch(
            parameters=site.batched,
            sequences=site.sequences,
            unit=site.unit,
            shared_outputs=site.shared_outputs,
            samples="samples" if site.takes_samples else None,
            invariant=True,
        )
    accesses = [_access(use, states) for use in site.uses] if site.declared else []
    return wrap(
        owner,
        site.name,
        parent,
        *accesses,
        stateless=site.stateless,
        batch=batch,
        role=site.role,
    )


def _access(use: Use, states: dict[str, State]) -> Any:
    state = states[use.state]
    if use.key is None:
        return _DECLARE[use.mode](state)

    def partition(call: CallContext) -> int:
        given = call.kwargs[use.key] if use.key in call.kwargs else call.args[use.position]
        return int(given)

    return _DECLARE[use.mode](state[partition])
