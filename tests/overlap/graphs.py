"""Native graphs made from a short description, and a small machine that runs a graph in any allowed order.

The machine computes with integers that wrap around, so that every bit of a result depends on every input, on
the sample, and on the state that was there. It knows nothing of how a graph was made.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from rlprof.overlap.bindings import Binding, External, Pack, Ref, View, arguments
from rlprof.overlap.callgraph import INITIAL, Access, Call, CallGraph
from rlprof.overlap.dependencies import dependencies
from rlprof.overlap.materialise import materialise
from rlprof.overlap.specs import AccessSpec, BatchSpec, Cell, Mode, NodeSpec, Role, StateSpec

WIDTH = 3
Array = np.ndarray


@dataclass(frozen=True)
class Node:
    """A call of a node.

    Parameters
    ----------
    name : str
        Of the node.
    reads : tuple of str
        Variables that it is given, each a positional argument p0, p1, ...; ``x:col`` is a view of a column,
        ``x:row`` of the row of sample 1, ``x:flat`` of all as one row of numbers, ``x:turned`` the transpose;
        ``x+y`` a list of several; ``x[]`` the variable x0, x1, ... of the innermost iteration.
    out : str
        The variable that holds its output, shape (batch, WIDTH); the name by default; ``x[]`` as above.
    states : mapping of str to mode
        What it accesses: whole objects, by sample where the object is.
    mixes : bool
        It has no batch axis.
    pair : bool
        Its output is a dict of a batch ``"x"`` and ``"info"``, shared by all samples; the variable is its x.
    """

    name: str
    component: str = ""
    reads: tuple[str, ...] = ()
    states: Mapping[str, Mode] = field(default_factory=dict)
    mixes: bool = False
    unit: int = 1
    role: Role = ""
    movable: bool = True
    pair: bool = False
    duration_s: float = 1.0
    resources: tuple[str, ...] = ()
    samples: bool = True
    out: str = ""


@dataclass(frozen=True)
class Loop:
    name: str
    count: int
    body: tuple[Node | Loop | Block, ...]
    fixed: bool = True


@dataclass(frozen=True)
class Block:
    """A plain node with children."""

    name: str
    body: tuple[Node | Loop | Block, ...]


def state(name: str, *, batch: int = 0, copies: int = 1, weights: bool = False) -> StateSpec:
    """`batch` cells by sample, or one cell."""
    return StateSpec(name, "", batch or None, bool(batch), copies, weights)


def graph_of(
    body: Sequence[Node | Loop | Block], states: Sequence[StateSpec], batch: int = 4, region: str = "it"
) -> CallGraph:
    """The native graph of a program that runs `body` once."""
    maker = _Maker({s.name: s for s in states}, batch, region)
    maker.specs[region] = NodeSpec(region, None)
    maker.block(body, region, region, ())
    last = {name: maker.value(name) for name in sorted(maker.variables)}
    output = Pack("dict", tuple(last), tuple(last.values()))
    names = tuple(call.id for call in maker.calls)
    return CallGraph(region, maker.specs, maker.states, tuple(maker.calls), (names,), output)


@dataclass
class _Maker:
    states: dict[str, StateSpec]
    batch: int
    region: str
    specs: dict[str, NodeSpec] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    variables: dict[str, Ref] = field(default_factory=dict)
    versions: dict[Cell, str] = field(default_factory=dict)

    def block(
        self,
        body: Sequence[Node | Loop | Block],
        path: str,
        origin: str,
        indices: tuple[tuple[str, int], ...],
    ) -> None:
        for item in body:
            inner = f"{path}/{item.name}"
            if isinstance(item, Loop):
                count = item.count if item.fixed else None
                self.specs[inner] = NodeSpec(inner, path, "loop", count, len(indices) + 1)
                for i in range(item.count):
                    self.block(item.body, inner, f"{origin}/{item.name}[{i}]", (*indices, (inner, i)))
            elif isinstance(item, Block):
                self.specs[inner] = NodeSpec(inner, path, loop_level=len(indices))
                self.block(item.body, inner, f"{origin}/{item.name}", indices)
            else:
                self.node(item, inner, path, f"{origin}/{item.name}", indices)

    def value(self, name: str) -> Binding:
        if "+" in name:
            items = tuple(self.value(n) for n in name.split("+"))
            return Pack("list", tuple(range(len(items))), items)
        name, _, kind = name.partition(":")
        leaf = self.variables.get(name, External((0, 0)))
        if not kind:
            return leaf
        whole = (self.batch, WIDTH)
        view = {
            "col": View(1, (self.batch, 1), (WIDTH, 1), "uint64", whole, (WIDTH, 1)),
            "row": View(WIDTH, (WIDTH,), (1,), "uint64", whole, (WIDTH, 1)),
            "flat": View(0, (self.batch * WIDTH,), (1,), "uint64", whole, (WIDTH, 1)),
            "turned": View(0, (WIDTH, self.batch), (1, WIDTH), "uint64", whole, (WIDTH, 1)),
        }[kind]
        return replace(leaf, view=view)

    def node(
        self, item: Node, path: str, parent: str, origin: str, indices: tuple[tuple[str, int], ...]
    ) -> None:
        at = str(indices[-1][1]) if indices else ""
        item = replace(
            item, reads=tuple(n.replace("[]", at) for n in item.reads), out=item.out.replace("[]", at)
        )
        batched = tuple(
            f"p{i}" for i, n in enumerate(item.reads) if n.partition(":")[2] in ("", "col") and not item.mixes
        )
        batch = BatchSpec(
            parameters=batched,
            unit=item.unit,
            invariant=True,
            samples="samples" if item.samples else None,
            shared_outputs=("info",) if item.pair else (),
        )
        declared = tuple(AccessSpec(name, mode) for name, mode in item.states.items())
        self.specs[path] = NodeSpec(
            path,
            parent,
            loop_level=len(indices),
            component=item.component,
            accesses=declared,
            declared=True,
            batch=None if item.mixes else batch,
            resources=item.resources,
            role=item.role,
            movable=item.movable,
            parameters=tuple(f"p{i}" for i in range(len(item.reads))),
        )
        accesses = []
        for name, mode in sorted(item.states.items()):
            for key in range(self.batch) if self.states[name].by_sample else (None,):
                cell = Cell(name, key)
                accesses.append(
                    Access(cell, mode, None if mode == "refresh" else self.versions.get(cell, INITIAL))
                )
                if mode != "read":
                    self.versions[cell] = origin
        call = Call(
            origin,
            path,
            origin,
            len(self.calls),
            arguments(tuple(self.value(name) for name in item.reads), {}),
            tuple(accesses),
            indices,
            None,
            self.batch,
            0,
            item.duration_s,
        )
        self.calls.append(call)
        self.variables[item.out or item.name] = Ref(origin, ("x",) if item.pair else ())


# -- running


def mix(*arrays: Any) -> Array:
    """Combine arrays elementwise; the order matters."""
    out = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        for i, array in enumerate(arrays):
            out = (out ^ np.asarray(array, dtype=np.uint64)) * np.uint64(0xD1B54A32D192ED03 + 2 * i)
            out = out ^ (out >> np.uint64(29))
    return np.asarray(out)


def summary(array: Array) -> Array:
    """A row of numbers that depends on every element of an array and its place."""
    places = np.arange(array.size, dtype=np.uint64).reshape(array.shape)
    return mix(mix(array, places).sum(dtype=np.uint64), np.arange(WIDTH))


@dataclass
class Run:
    """What a graph left behind.

    Parameters
    ----------
    output : object
        Of the region.
    state : dict of Cell to array
        What lies in copy 0.
    given : dict of (str, int) to bytes
        What each sample of each native call computed; -1 for a call that mixes samples.
    """

    output: Any
    state: dict[Cell, Array]
    given: dict[tuple[str, int], bytes]


def run(graph: CallGraph, seed: int | None = None) -> Run:
    """Run the calls one by one, in native order or in a random order that the graph allows."""
    batch = graph.calls[0].batch_size or 1
    storage: dict[tuple[Cell, int], Array] = {}
    for call in graph.calls:
        for access in call.accesses:
            for copy in range(graph.states[access.cell.state].copies):
                salt = sum(map(ord, str(access.cell))) + 7919 * copy
                storage[access.cell, copy] = mix(salt, np.arange(WIDTH))
    outputs: dict[str, Any] = {}
    given: dict[tuple[str, int], bytes] = {}
    external = ((mix(5, np.arange(batch * WIDTH).reshape(batch, WIDTH)),), {})
    for name in allowed_order(graph, seed):
        call = graph.by_id[name]
        (args, _) = materialise(call.arguments, outputs, external, {})
        outputs[name] = _execute(graph, call, args, storage, given)
    output = materialise(graph.output, outputs, external, {})
    return Run(output, {cell: value for (cell, copy), value in storage.items() if not copy}, given)


def _execute(
    graph: CallGraph,
    call: Call,
    args: Sequence[Any],
    storage: dict[tuple[Cell, int], Array],
    given: dict[tuple[str, int], bytes],
) -> Any:
    node = graph.nodes[call.node]
    rows = range(call.batch_size or 1) if call.samples is None else call.samples
    salt = sum(ord(c) * (i + 1) for i, c in enumerate(call.origin))
    shared = [storage[a.cell, a.copy] for a in call.accesses if a.mode != "refresh" and a.cell.key is None]
    by_sample: dict[int, list[Array]] = {}
    for a in call.accesses:
        if a.mode != "refresh" and a.cell.key is not None:
            by_sample.setdefault(int(a.cell.key), []).append(storage[a.cell, a.copy])
    lists = [arg if isinstance(arg, list) else [arg] for arg in args]
    batched = set() if node.batch is None else set(node.batch.parameters or ())
    own = [x for i, arrays in enumerate(lists) if f"p{i}" in batched for x in arrays]
    alone = [summary(x) for i, arrays in enumerate(lists) if f"p{i}" not in batched for x in arrays]
    out = np.empty((len(rows), WIDTH), dtype=np.uint64)
    for place, sample in enumerate(rows):
        mine = [np.resize(x[place], WIDTH) for x in own]
        out[place] = mix(salt, sample, *mine, *alone, *shared, *by_sample.get(sample, []))
    if node.batch is None:
        out = mix(out, summary(out))
        _once(given, (call.origin, -1), out)
    else:
        for place, sample in enumerate(rows):
            _once(given, (call.origin, sample), out[place])
    for a in call.accesses:
        if a.mode != "read":
            value = out[list(rows).index(a.cell.key)] if a.cell.key is not None else summary(out)
            storage[a.cell, a.copy] = mix(3, value)
    if node.batch is not None and node.batch.shared_outputs:
        return {"x": out, "info": mix(salt, *shared) if shared else mix(salt)}
    return out


def _once(given: dict[tuple[str, int], bytes], key: tuple[str, int], value: Array) -> None:
    assert key not in given, f"{key} runs twice"
    given[key] = value.tobytes()


def allowed_order(graph: CallGraph, seed: int | None) -> list[str]:
    """Names of the calls in native order, or in a random order of all that the graph allows."""
    draw = random.Random(seed)
    before: dict[str, set[str]] = {call.id: set() for call in graph.calls}
    for d in dependencies(graph):
        before[d.target].add(d.source)
    for stream in graph.streams:
        for a, b in pairwise(stream):
            before[b].add(a)
    for a, b in graph.order_edges:
        before[b].add(a)
    after: dict[str, list[str]] = {}
    for name, sources in before.items():
        for source in sources:
            after.setdefault(source, []).append(name)
    waiting = {name: len(sources) for name, sources in before.items()}
    ready = [call.id for call in graph.calls if not waiting[call.id]]
    done: list[str] = []
    while ready:
        at = 0 if seed is None else draw.randrange(len(ready))
        name = ready.pop(at)
        done.append(name)
        for target in after.get(name, ()):
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    assert len(done) == len(graph.calls), "calls wait for each other"
    return done


def same(a: Run, b: Run) -> bool:
    """Equal bit for bit: everything computed, what is returned, what is left in state."""

    def equal(x: Any, y: Any) -> bool:
        if isinstance(x, dict):
            return x.keys() == y.keys() and all(equal(x[k], y[k]) for k in x)
        return bool(np.array_equal(x, y))

    state = (
        all(np.array_equal(v, b.state[c]) for c, v in a.state.items()) and a.state.keys() == b.state.keys()
    )
    return a.given == b.given and state and equal(a.output, b.output)


# -- programs


def rollout(
    *, batch: int = 4, epochs: int = 2, chunks: int = 3, copies: int = 1, whole: tuple[Node, ...] = ()
) -> CallGraph:
    """Epochs of reset and a loop of policy and simulator, then advantages; `whole`: more in the loop."""
    policy = Node("policy", "policy", ("obs",), {"W": "read"}, duration_s=2.0)
    step = Node("step", "simulator", ("policy",), {"ENV": "update"}, duration_s=2.0, out="obs")
    return graph_of(
        (
            Loop(
                "epoch",
                epochs,
                (
                    Node("reset", "simulator", (), {"ENV": "refresh"}, out="obs"),
                    Loop(
                        "chunk",
                        chunks,
                        (policy, step, *whole),
                    ),
                    Node("reward", "simulator", ("obs",), duration_s=0.5),
                ),
            ),
            Node("advantage", "learner", ("reward",), mixes=True),
        ),
        (state("ENV", batch=batch, copies=copies), state("W", weights=True)),
        batch,
    )
