"""The graph that transformations act on: calls with bindings and versions, in streams.

A `CallGraph` stands for one call of a *region* (a node of the hierarchy). Its calls are the units that run
natively; two things order them. What they need: data through bindings, and versions of state cells
(`rlprof.overlap.dependencies`). And the streams: the calls of one stream run one after another. A native
graph is one stream in program order; overlap comes from more streams.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from rlprof.expect import expect
from rlprof.overlap.bindings import Binding, Pack, Path, to_document
from rlprof.overlap.errors import OverlapError
from rlprof.overlap.modes import TorchModes
from rlprof.overlap.specs import Cell, Mode, NodeSpec, StateSpec
from rlprof.text import counted

if TYPE_CHECKING:
    from rlprof.overlap.explain import Explanation

#: The version of a cell that the region finds when it starts.
INITIAL = ""


class Access(NamedTuple):
    """Use of one cell by one call.

    Parameters
    ----------
    cell : Cell
        Which.
    mode : {"read", "update", "refresh"}
        How.
    sees : str or None
        Version whose value it needs: `origin` of the call that wrote it natively, `INITIAL` for what is there
        when the region starts, None for a refresh.
    copy : int
        Storage copy in which the version lies that it reads or writes.
    """

    cell: Cell
    mode: Mode
    sees: str | None
    copy: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """One execution of a node, on all of its batch or on a part.

    Parameters
    ----------
    id : str
        ``origin``, and for a part ``@`` and its group.
    node : str
        Path of the node.
    origin : str
        The native call: the path from the region on, with the index of each loop's iteration in brackets, and
        ``#k`` for the k-th (from 1 on) further call of a node in the same parent:
        ``iteration/rollout/epoch[0]/chunk[3]/policy``. It also names the versions that the call writes.
    order : int
        Place in native program order; equal for the parts of one call.
    arguments : Pack
        Binding of ``(args, kwargs)``.
    accesses : tuple of Access
        At most one for each cell.
    indices : tuple of (str, int)
        Loop node and iteration, outermost first, inside the region.
    samples : tuple of int or None
        Positions of its samples in the native batch; None: all.
    batch_size : int or None
        Samples of the native call; None: not known, or it has no batch.
    group : int
        Which part or group of iterations it belongs to; 0 if nothing was split.
    duration_s : float or None
        Measured or estimated, in seconds.
    modes : TorchModes or None
        Modes of torch that the code around the call sets; None: those in which the region is called.
    """

    id: str
    node: str
    origin: str
    order: int
    arguments: Pack
    accesses: tuple[Access, ...] = ()
    indices: tuple[tuple[str, int], ...] = ()
    samples: tuple[int, ...] | None = None
    batch_size: int | None = None
    group: int = 0
    duration_s: float | None = None
    modes: TorchModes | None = None

    @property
    def iteration(self) -> dict[str, int]:
        """Iteration by loop node."""
        return dict(self.indices)


@dataclass(frozen=True, eq=False)
class CallGraph:
    """What one call of a region does.

    Parameters
    ----------
    region : str
        Path of the node whose call this is.
    nodes : mapping of str to NodeSpec
        By path; all nodes of the program, so that loops and parents are known.
    states : mapping of str to StateSpec
        By name.
    calls : tuple of Call
        Kept sorted by (order, group, id).
    streams : tuple of tuple of str
        Every call in exactly one.
    output : Binding
        What the region returns.
    order_edges : tuple of (str, str)
        Chosen order between calls of different streams: (earlier, later).
    history : tuple of str
        Transformations so far, one readable line each.
    opaque : mapping of str to str
        Nodes whose calls hold other nodes and yet run as one unit, and why; no part of what the graph is.
    not_joined : mapping of str to tuple of path
        Where outputs of native calls hold what could not be joined of parts of a batch; likewise.

    Raises
    ------
    OverlapError
        If ids repeat, a stream or an edge names no call, or a call is in no stream or in two.
    """

    region: str
    nodes: Mapping[str, NodeSpec]
    states: Mapping[str, StateSpec]
    calls: tuple[Call, ...]
    streams: tuple[tuple[str, ...], ...]
    output: Binding
    order_edges: tuple[tuple[str, str], ...] = ()
    history: tuple[str, ...] = field(default=())
    opaque: Mapping[str, str] = field(default_factory=dict)
    not_joined: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        calls = tuple(sorted(self.calls, key=lambda c: (c.order, c.group, c.id)))
        object.__setattr__(self, "calls", calls)
        object.__setattr__(self, "streams", tuple(tuple(s) for s in self.streams if s))
        object.__setattr__(self, "order_edges", tuple(sorted(set(self.order_edges))))
        if len(self.by_id) != len(calls):
            raise OverlapError("two calls of a graph have one id")
        placed = [call for stream in self.streams for call in stream]
        if sorted(placed) != sorted(self.by_id):
            wrong = set(self.by_id).symmetric_difference(placed) or {c for c in placed if placed.count(c) > 1}
            raise OverlapError(f"call {min(wrong)!r} is not in exactly one stream")
        for pair in self.order_edges:
            for call in pair:
                if call not in self.by_id:
                    raise OverlapError(f"an order edge names {call!r}, no call of the graph")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CallGraph):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.hash)

    def __len__(self) -> int:
        return len(self.calls)

    def __repr__(self) -> str:
        done = "".join(f"; {line}" for line in self.history)
        size = f"{counted(len(self.calls), 'call')}, {counted(len(self.streams), 'stream')}"
        return f"<CallGraph of {self.region}: {size}{done}>"

    @cached_property
    def by_id(self) -> dict[str, Call]:
        """Calls by id."""
        return {call.id: call for call in self.calls}

    @cached_property
    def parts(self) -> dict[str, tuple[Call, ...]]:
        """Calls by origin: one, or the parts of a split call."""
        found: dict[str, list[Call]] = {}
        for call in self.calls:
            found.setdefault(call.origin, []).append(call)
        return {origin: tuple(calls) for origin, calls in found.items()}

    def of_node(self, path: str) -> tuple[Call, ...]:
        """Calls of a node, in order."""
        return tuple(call for call in self.calls if call.node == path)

    def below(self, path: str) -> tuple[Call, ...]:
        """Calls of a node and of all its descendants, in order."""
        return tuple(c for c in self.calls if c.node == path or c.node.startswith(path + "/"))

    def explain(self, path: str) -> Explanation:
        """Say in words why a loop is free or dependent, or what a node or call waits for.

        Parameters
        ----------
        path : str
            Path of a node, or id of a call; see `rlprof.overlap.explain.explain`.
        """
        from rlprof.overlap.explain import explain

        return explain(self, path)

    def changed(self, note: str, **changes: Any) -> CallGraph:
        """Return a copy with fields replaced and a line of history added."""
        return replace(self, **changes, history=(*self.history, note))

    def to_dict(self) -> dict[str, Any]:
        """Return the graph as a JSON document; history is no part of what it is."""
        return {
            "region": self.region,
            "nodes": [asdict(self.nodes[path]) for path in sorted(self.nodes)],
            "states": [_state_document(self.states[name]) for name in sorted(self.states)],
            "calls": [_call_document(call) for call in self.calls],
            "streams": sorted([list(s) for s in self.streams]),
            "output": to_document(self.output),
            "order_edges": [list(pair) for pair in self.order_edges],
        }

    @cached_property
    def hash(self) -> str:
        """SHA-256 of `to_dict` without durations: the same for equal graphs, on every machine."""
        document = self.to_dict()
        for call in document["calls"]:
            del call["duration_s"]
        return hashlib.sha256(orjson.dumps(document, option=orjson.OPT_SORT_KEYS)).hexdigest()


def expect_graph(graph: object, what: str = "the graph") -> None:
    """Raise UsageError unless something is a graph of calls; `what` it stands for."""
    expect(graph, CallGraph, what, "give a graph of calls, such as Program.graph(recording) returns")


def _state_document(state: StateSpec) -> dict[str, Any]:
    """Fields of a state; one that few have is left away elsewhere, so that older graphs keep their hashes."""
    found = asdict(state)
    if not state.separate:
        del found["separate"]
    return found


def _call_document(call: Call) -> dict[str, Any]:
    return {
        "id": call.id,
        "node": call.node,
        "origin": call.origin,
        "order": call.order,
        "arguments": to_document(call.arguments),
        "accesses": [[a.cell.state, a.cell.key, a.mode, a.sees, a.copy] for a in call.accesses],
        "indices": [list(pair) for pair in call.indices],
        "samples": None if call.samples is None else list(call.samples),
        "batch_size": call.batch_size,
        "group": call.group,
        "duration_s": call.duration_s,
        "modes": None if call.modes is None else list(call.modes),
    }
