"""RLinf-like training programs of any size, made from a seed: graphs of calls with durations and demands.

Structure and sizes are drawn: rollout epochs of chunks of policy and simulator, with or without transfers,
reward, values, spare simulators and episodes that go on; advantages and training by rollout or by epoch.
Nothing runs: a graph is what recording such a program would give.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal

from rlprof.overlap.bindings import Binding, External, Pack, Ref, arguments
from rlprof.overlap.callgraph import INITIAL, Access, Call, CallGraph
from rlprof.overlap.optimize.simulated import DeviceModel, NodeModel
from rlprof.overlap.specs import AccessSpec, BatchSpec, Cell, Mode, NodeSpec, Role, StateSpec


@dataclass(frozen=True)
class Program:
    """A program.

    Parameters
    ----------
    seed : int
        What it was made from.
    graph : CallGraph
        Its native graph.
    model : DeviceModel
        Durations and demands.
    shape : dict
        What was drawn, for people.
    """

    seed: int
    graph: CallGraph
    model: DeviceModel
    shape: dict[str, object]


@dataclass
class _Builder:
    samples: int
    nodes: dict[str, NodeSpec] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    models: dict[str, NodeModel] = field(default_factory=dict)
    versions: dict[Cell, str] = field(default_factory=dict)

    def node(
        self,
        path: str,
        *,
        loop: int | None = None,
        root: bool = False,
        component: str = "",
        accesses: tuple[tuple[str, Mode], ...] = (),
        batched: bool = False,
        role: Role = "",
    ) -> str:
        parent = path.rpartition("/")[0] or None
        level = 0
        if parent is not None:
            above = self.nodes[parent]
            level = above.loop_level
            if loop is not None:
                level += 1
        kind: Literal["plain", "loop"] = "loop" if loop is not None or root else "plain"
        self.nodes[path] = NodeSpec(
            path,
            parent,
            kind,
            loop,
            level,
            component=component,
            accesses=tuple(AccessSpec(s, m) for s, m in accesses),
            declared=True,
            batch=BatchSpec(samples="samples", invariant=True) if batched else None,
            role=role,
            marked=loop is not None,
        )
        return path

    def call(
        self,
        path: str,
        origin: str,
        inputs: tuple[Binding, ...],
        states: dict[str, StateSpec],
        indices: tuple[tuple[str, int], ...],
    ) -> Ref:
        spec = self.nodes[path]
        accesses = []
        for access in spec.accesses:
            state = states[access.state]
            cells = range(state.partitions) if state.by_sample and state.partitions else [None]
            for key in cells:
                cell = Cell(access.state, key)
                sees = None if access.mode == "refresh" else self.versions.get(cell, INITIAL)
                accesses.append(Access(cell, access.mode, sees))
                if access.mode != "read":
                    self.versions[cell] = origin
        self.calls.append(
            Call(
                origin,
                path,
                origin,
                len(self.calls),
                arguments(inputs, {}),
                tuple(accesses),
                indices,
                batch_size=self.samples if spec.batch is not None else None,
            )
        )
        return Ref(origin)


def make(seed: int) -> Program:
    """Make a program from a seed; equal seeds make equal programs."""
    draw = random.Random(seed)
    samples = draw.choice((2, 4))
    epochs, chunks = draw.choice(((2, 2), (2, 3), (1, 4), (3, 2), (2, 4)))
    by_epoch = draw.random() < 0.5
    auto_reset = draw.random() < 0.25
    copies = draw.choice((1, 1, 2))
    transfers, reward, values = draw.random() < 0.3, draw.random() < 0.3, draw.random() < 0.6
    two_policies = draw.random() < 0.25  # backbone and action head serve apart
    mixes = draw.random() < 0.1  # the policy mixes samples: it is never cut
    passes, minibatches = draw.choice((1, 1, 2)), draw.choice((1, 2))

    b = _Builder(samples)
    states = {
        "ENV": StateSpec("ENV", "env", partitions=samples, by_sample=True, copies=copies),
        "W": StateSpec("W", "rollout", rollout_weights=True),
        "THETA": StateSpec("THETA", "actor"),
    }
    top = b.node("iteration", root=True)
    b.node("iteration/sync", component="rollout", accesses=(("THETA", "read"), ("W", "refresh")), role="sync")
    b.node("iteration/rollout")
    epoch = b.node("iteration/rollout/epoch", loop=epochs)
    b.node(f"{epoch}/reset", component="env", accesses=(("ENV", "update" if auto_reset else "refresh"),),
           batched=True)  # fmt: skip
    chunk = b.node(f"{epoch}/chunk", loop=chunks)
    reads: tuple[tuple[str, Mode], ...] = (("W", "read"),)
    if two_policies:
        b.node(f"{chunk}/backbone", component="vlm", accesses=reads, batched=not mixes)
        b.node(f"{chunk}/head", component="rollout", accesses=reads, batched=True)
    else:
        b.node(f"{chunk}/predict", component="rollout", accesses=reads, batched=not mixes)
    if transfers:
        b.node(f"{chunk}/send", component="link", batched=True)
    b.node(f"{chunk}/step", component="env", accesses=(("ENV", "update"),), batched=True)
    if reward:
        b.node(f"{chunk}/reward", component="judge", batched=True)
    if values:
        b.node(f"{epoch}/values", component="rollout", accesses=reads, batched=True)
    b.node("iteration/advantages", component="actor")
    b.node("iteration/training")
    update_epoch = b.node("iteration/training/pass", loop=passes)
    part = b.node(f"{update_epoch}/part", loop=epochs if by_epoch else 1)
    batch = b.node(f"{part}/minibatch", loop=minibatches)
    b.node(f"{batch}/update", component="actor", accesses=(("THETA", "update"),), role="update")

    b.call("iteration/sync", "iteration/sync", (), states, ())
    of_epochs: list[Binding] = []
    observation: Binding | None = None
    for e in range(epochs):
        here = f"iteration/rollout/epoch[{e}]"
        at_epoch = ((epoch, e),)
        observation = b.call(f"{epoch}/reset", f"{here}/reset", (External((0, 0)),), states, at_epoch)
        kept: list[Binding] = []
        for c in range(chunks):
            inside, at = f"{here}/chunk[{c}]", (*at_epoch, (chunk, c))
            answer: Binding = observation
            for name in ("backbone", "head") if two_policies else ("predict",):
                answer = b.call(f"{chunk}/{name}", f"{inside}/{name}", (answer,), states, at)
            kept.append(answer)
            if transfers:
                answer = b.call(f"{chunk}/send", f"{inside}/send", (answer,), states, at)
            observation = b.call(f"{chunk}/step", f"{inside}/step", (answer,), states, at)
            if reward:
                kept.append(b.call(f"{chunk}/reward", f"{inside}/reward", (observation,), states, at))
        kept.append(observation)
        if values:
            kept.append(b.call(f"{epoch}/values", f"{here}/values", (observation,), states, at_epoch))
        of_epochs.append(Pack("list", tuple(range(len(kept))), tuple(kept)))
    whole = Pack("list", tuple(range(len(of_epochs))), tuple(of_epochs))
    batches = []
    for n, given in enumerate(of_epochs if by_epoch else [whole]):
        name = "iteration/advantages" + (f"#{n}" if n else "")
        batches.append(b.call("iteration/advantages", name, (given,), states, ()))
    for p in range(passes):
        for n, given in enumerate(batches):
            for m in range(minibatches):
                origin = f"iteration/training/pass[{p}]/part[{n}]/minibatch[{m}]/update"
                b.call(f"{batch}/update", origin, (given,), states,
                       ((update_epoch, p), (part, n), (batch, m)))  # fmt: skip
    output = Pack("list", tuple(range(len(batches))), tuple(batches))
    graph = CallGraph(top, b.nodes, states, tuple(b.calls), (tuple(c.id for c in b.calls),), output)
    shape: dict[str, object] = {
        "samples": samples, "epochs": epochs, "chunks": chunks, "copies": copies, "auto_reset": auto_reset,
        "by_epoch": by_epoch, "transfers": transfers, "reward": reward, "values": values,
        "two_policies": two_policies, "mixes": mixes, "passes": passes, "minibatches": minibatches,
        "calls": len(b.calls),
    }  # fmt: skip
    return Program(seed, graph, _model(draw, b, samples), shape)


def _model(draw: random.Random, b: _Builder, samples: int) -> DeviceModel:
    """Durations in seconds and demands, in the proportions of embodied training."""

    def node(low: float, high: float, fixed: tuple[float, float], demand: tuple[float, float]) -> NodeModel:
        whole, share = draw.uniform(low, high), draw.uniform(*fixed)
        return NodeModel(whole * share, whole * (1 - share) / samples, draw.uniform(*demand))

    gpu_simulator = draw.random() < 0.4
    kinds = {
        "sync": NodeModel(draw.uniform(0.01, 0.1), 0.0, 0.3),
        "reset": node(0.1, 1.0, (0.3, 0.9), (0.0, 0.3)),
        "predict": node(0.3, 1.5, (0.05, 0.5), (0.2, 0.9)),
        "backbone": node(0.2, 0.8, (0.05, 0.4), (0.5, 0.95)),
        "head": node(0.2, 0.8, (0.3, 0.8), (0.1, 0.5)),
        "send": node(0.02, 0.1, (0.1, 0.5), (0.0, 0.0)),
        "step": node(0.3, 1.5, (0.6, 0.9), (0.4, 0.8)) if gpu_simulator
        else node(0.3, 1.5, (0.05, 0.3), (0.0, 0.2)),
        "reward": node(0.05, 0.4, (0.1, 0.5), (0.1, 0.6)),
        "values": node(0.1, 0.5, (0.1, 0.5), (0.3, 0.9)),
        "advantages": NodeModel(draw.uniform(0.01, 0.1), 0.0, 0.1),
        "update": NodeModel(draw.uniform(0.3, 2.0), 0.0, draw.uniform(0.4, 0.95)),
    }  # fmt: skip
    names = {path: path.rpartition("/")[2] for path in b.nodes}
    models = {path: kinds[name] for path, name in names.items() if name in kinds}
    return DeviceModel(models, friction=draw.uniform(0.0, 0.15), dispatch_s=0.001)
