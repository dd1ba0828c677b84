"""Replay call by call: parts of a split call get the native inputs, and must give the native output.

Where a split changes the size of a batch, other kernels may run and the last bits differ. So every split call
is checked by itself, on the inputs of a native run, against a stated tolerance; differences do not add up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from rlprof.overlap.batches import cut, join
from rlprof.overlap.bindings import sources
from rlprof.overlap.callgraph import Call, CallGraph, expect_graph
from rlprof.overlap.completion import Completer
from rlprof.overlap.contents import Contents
from rlprof.overlap.context import at_call
from rlprof.overlap.equality import Distance, distance
from rlprof.overlap.errors import ReplayError
from rlprof.overlap.execute import Executable, native_entry, region_context, sample_arguments
from rlprof.overlap.materialise import Arguments, materialise
from rlprof.overlap.state import State
from rlprof.overlap.structures import is_tensor, put_together
from rlprof.overlap.values import take_apart
from rlprof.taskgraph.trial import Restorable, restored
from rlprof.text import with_article

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True)
class ReplayedCall:
    """One native call and its parts.

    Parameters
    ----------
    call, node : str
        The native call.
    parts : tuple of int
        Samples of each part.
    output, state : Distance
        Of the joined output, and of the state that was written, from the native ones.
    exact : bool
        Bits must be equal: the node is declared batch-invariant.
    """

    call: str
    node: str
    parts: tuple[int, ...]
    output: Distance
    state: Distance
    exact: bool

    @property
    def bitwise(self) -> bool:
        """All bits are equal."""
        return self.output.bitwise and self.state.bitwise

    @property
    def passed(self) -> bool:
        """As equal as it has to be."""
        return self.bitwise if self.exact else self.output.within and self.state.within


@dataclass(frozen=True)
class ReplayReport:
    """All split calls of a graph.

    Parameters
    ----------
    calls : tuple of ReplayedCall
        In native order.
    unsplit : int
        Calls that are not split: they run with unchanged shapes.
    rtol, atol : float
        The tolerance.
    """

    calls: tuple[ReplayedCall, ...]
    unsplit: int
    rtol: float
    atol: float

    @property
    def passed(self) -> bool:
        """Every call is as equal as it has to be."""
        return all(call.passed for call in self.calls)

    @property
    def equality(self) -> str:
        """Kind of equality that holds: ``bitwise``, or ``replay within ...``, or ``none``."""
        if all(call.bitwise for call in self.calls):
            return "bitwise"
        return f"replay within rtol={self.rtol:g}, atol={self.atol:g}" if self.passed else "none"

    def to_frame(self) -> pl.DataFrame:
        """Return one row for each split call.

        Returns
        -------
        polars.DataFrame
            ``call``, ``node``, ``parts`` (samples of each), ``max_abs``, ``max_rel`` (of output and state),
            ``bitwise``, ``exact`` (bits must be equal), ``passed``.
        """
        import polars as pl

        rows = [
            (
                c.call,
                c.node,
                list(c.parts),
                max(c.output.max_abs, c.state.max_abs),
                max(c.output.max_rel, c.state.max_rel),
                c.bitwise,
                c.exact,
                c.passed,
            )
            for c in self.calls
        ]
        schema: dict[str, Any] = {
            "call": pl.String,
            "node": pl.String,
            "parts": pl.List(pl.Int64),
            "max_abs": pl.Float64,
            "max_rel": pl.Float64,
            "bitwise": pl.Boolean,
            "exact": pl.Boolean,
            "passed": pl.Boolean,
        }
        return pl.DataFrame(rows, schema=schema, orient="row")


def replay(
    native: CallGraph,
    graph: CallGraph,
    entries: Mapping[str, Executable | Callable[..., Any]],
    constants: Mapping[str, Any],
    external: Arguments = ((), {}),
    *,
    states: Mapping[str, Any] | None = None,
    rtol: float = 1e-5,
    atol: float = 1e-8,
) -> ReplayReport:
    """Run a region natively, one call after another, and each split call also in its parts.

    The program goes on with the native results: it ends where a native call of the region leaves it.

    Parameters
    ----------
    native : CallGraph
        The recorded graph.
    graph : CallGraph
        A transformed one.
    entries : mapping of str to Executable or callable
        Native entries by node.
    constants : mapping of str to object
        Of the recording.
    external : tuple of (tuple, dict)
        Arguments of the region.
    states : mapping of str to object
        What State objects stand for, by name, or these themselves (``program.states``). Those that split
        calls write are put back between the parts and the native call, by methods ``snapshot()`` and
        ``restore(snapshot)`` of their own if they have them.
    rtol, atol : float
        Tolerance: ``|part - native| <= atol + rtol |native|``.

    Returns
    -------
    ReplayReport
        Equality of bits where nodes are declared batch-invariant, within the tolerance elsewhere.

    Raises
    ------
    ReplayError
        If a state that a split call writes is not in `states` or cannot be put back, or outputs cannot be cut
        or joined.
    """
    expect_graph(native, "the native graph")
    expect_graph(graph)
    objects = {k: s.obj if isinstance(s, State) else s for k, s in (states or {}).items()}
    known = {k: obj for k, obj in objects.items() if obj is not None}
    run = _Replay(native, graph, entries, constants, external, known, rtol, atol)
    try:
        return run.report()
    finally:
        run.completer.close()


class _Replay:
    def __init__(
        self,
        native: CallGraph,
        graph: CallGraph,
        entries: Mapping[str, Executable | Callable[..., Any]],
        constants: Mapping[str, Any],
        external: Arguments,
        states: Mapping[str, Any],
        rtol: float,
        atol: float,
    ) -> None:
        self.native, self.graph, self.entries = native, graph, entries
        self.constants, self.external, self.states = constants, external, states
        self.rtol, self.atol = rtol, atol
        self.completer = Completer()
        self.region = region_context(native.region)
        self.outputs: dict[str, Any] = {}

    def report(self) -> ReplayReport:
        left = dict.fromkeys(self.native.by_id, 0)
        for call in self.native.calls:
            for source in sources(call.arguments):
                left[source] += 1
        found, unsplit = [], 0
        for call in self.native.calls:
            parts = [part for part in self.graph.parts.get(call.origin, ()) if part.samples is not None]
            arguments = materialise(call.arguments, self.outputs, self.external, self.constants)
            if parts:
                found.append(self._compare(call, parts, arguments))
            else:
                unsplit += 1
                self.outputs[call.id] = self._call(call, arguments)
            for source in sources(call.arguments):
                left[source] -= 1
                if not left[source]:
                    del self.outputs[source]
        return ReplayReport(tuple(found), unsplit, self.rtol, self.atol)

    def _call(self, call: Call, arguments: Arguments, extra: Mapping[str, Any] | None = None) -> Any:
        entry = native_entry(self.entries[call.node])
        args, kwargs = arguments
        with at_call(self.region, call):
            return self.completer.value(entry(*args, **kwargs, **(extra or {})))

    def _compare(self, call: Call, parts: list[Call], arguments: Arguments) -> ReplayedCall:
        batch = self.graph.nodes[call.node].batch
        if batch is None:
            raise ReplayError(f"{call.id} is split and its node declares no batch")
        touched: list[Restorable] = [
            _Held("inputs", (arguments, self.outputs), strict=False),
            *self._written(call),
        ]
        before = [(state, state.snapshot()) for state in touched]
        output = self._call(call, arguments)
        self.outputs[call.id] = output
        result = _Held("output", output, strict=False)
        native = result.snapshot().values, _contents(touched[1:])
        with restored([*touched, result]):  # the program goes on as natively
            for state, saved in before:
                state.restore(saved)
            got = [self._part(part) for part in parts]
            samples = tuple(part.samples or () for part in parts)
            joined = join(got, samples, batch.axis, batch.shared_outputs)
            joined_values = _Held("output", joined, strict=False).snapshot().values
            here = joined_values, _contents(touched[1:])
        how = {"rtol": self.rtol, "atol": self.atol}
        return ReplayedCall(
            call.id,
            call.node,
            tuple(len(s) for s in samples),
            distance(here[0], native[0], **how),
            distance(here[1], native[1], **how),
            batch.invariant,
        )

    def _part(self, part: Call) -> Any:
        """Run a part on the native inputs: what other parts would give it is cut from native outputs."""
        outputs = {source: self._native_output(source) for source in sources(part.arguments)}
        arguments = materialise(part.arguments, outputs, self.external, self.constants, part.batch_size)
        return self._call(part, arguments, sample_arguments(self.graph, part))

    def _native_output(self, source: str) -> Any:
        call = self.graph.by_id[source]
        whole = self.outputs[call.origin]
        batch = self.graph.nodes[call.node].batch
        if call.samples is None or batch is None:
            return whole
        return cut_output(whole, call.samples, batch.axis, batch.shared_outputs)

    def _written(self, call: Call) -> list[Restorable]:
        found = []
        for name in dict.fromkeys(a.cell.state for a in call.accesses if a.mode != "read"):
            if self.native.states[name].memory:
                continue  # an array among the arguments
            if name not in self.states:
                raise ReplayError(
                    f"{call.id} writes {name}, of which there is no object here",
                    hint=f'give State("{name}", obj, ...) its object',
                )
            obj = self.states[name]
            own = hasattr(obj, "snapshot") and hasattr(obj, "restore")
            found.append(obj if own else _Held(name, obj))
        return found


def cut_output(output: Any, samples: tuple[int, ...], axis: int, shared: tuple[int | str, ...]) -> Any:
    """What a part with these samples would have returned, by its native call's output."""
    whole = take_apart(output) if shared else None
    if whole is None:
        return cut(output, samples, axis)
    named = isinstance(output, tuple)
    items = tuple(
        item if key in shared or (named and place in shared) else cut(item, samples, axis)
        for place, (key, item) in enumerate(zip(whole.keys, whole.items, strict=True))
    )
    return put_together(whole.kind, whole.keys, items)


class _Taken(NamedTuple):
    contents: Contents
    values: dict[str, Any]


class _Held:
    """What an object of this process holds, as a trial needs it."""

    def __init__(self, name: str, obj: Any, *, strict: bool = True) -> None:
        self._name, self._obj, self._strict = name, obj, strict

    def snapshot(self) -> _Taken:
        contents = Contents({self._name: self._obj})
        if self._strict and contents.sealed:
            path, kind = next(iter(contents.sealed.items()))
            raise ReplayError(
                f"{path} is {with_article(kind)}, which cannot be put back after a trial",
                hint="give the state object methods snapshot() and restore(snapshot)",
            )
        values = {
            path: _copied(place.value) if place.kind == "array" else place.value
            for path, place in contents.places.items()
            if place.kind in ("array", "number", "other", "keys")
        }
        hidden = {path: p.digest() for path, p in contents.places.items() if p.kind == "random"}
        return _Taken(contents, values | hidden)

    def restore(self, snapshot: _Taken) -> None:
        snapshot.contents.restore()


def _copied(array: Any) -> Any:
    return array.detach().clone() if is_tensor(array) else array.copy()


def _contents(states: list[Restorable]) -> tuple[Any, ...]:
    taken = [state.snapshot() for state in states]
    return tuple(saved.values if isinstance(saved, _Taken) else saved for saved in taken)
