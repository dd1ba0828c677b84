"""The semantic record of a run: what must be equal exactly, whatever the bits.

Order of parameter updates, contents of every minibatch, and the version of the policy that every rollout call
used for every sample. A record is either what a graph says (`of_graph`), or what was seen: while one ran
(`Watch`), or of native calls (`watch_native`). What is seen follows the writes themselves.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson

from rlprof.errors import UsageError
from rlprof.overlap.bindings import Binding, Const, External, Gather, Pack, Ref, Slice
from rlprof.overlap.callgraph import INITIAL, Call, CallGraph, expect_graph
from rlprof.overlap.materialise import Arguments
from rlprof.overlap.specs import Cell, NodeSpec
from rlprof.overlap.structures import is_tensor
from rlprof.overlap.values import bytes_of, flatten, is_array
from rlprof.text import with_article

if TYPE_CHECKING:
    from rlprof.overlap.context import CallContext
    from rlprof.overlap.program import Program

#: The kind of equality that `compare` establishes.
EQUALITY = "semantic record"


@dataclass(frozen=True, slots=True)
class Update:
    """One update of parameters.

    Parameters
    ----------
    call : str
        Its native call.
    contents : str
        SHA-256 of where its arguments come from: native calls, paths in their outputs, native positions of
        samples, constants. The same however the work was cut.
    indices : str or None
        SHA-256 of the whole numbers among its arguments, such as the rows of a minibatch; None: not seen.
    bits : str or None
        SHA-256 of all arrays and numbers among its arguments; None: not seen.
    """

    call: str
    contents: str
    indices: str | None = None
    bits: str | None = None


class PolicyUse(NamedTuple):
    """A rollout call used a version of the policy for one sample (None: not by sample)."""

    call: str
    sample: int | None
    cell: str
    version: str


@dataclass(frozen=True)
class SemanticRecord:
    """See the module.

    Parameters
    ----------
    updates : tuple of Update
        In the order in which they were done.
    policy : frozenset of PolicyUse
        Versions are named by the native call that wrote them; ``""`` is what the region found.
    """

    updates: tuple[Update, ...]
    policy: frozenset[PolicyUse]


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing in which two records differ.

    Parameters
    ----------
    kind : {"update order", "minibatch contents", "minibatch bits", "policy version"}
        In what.
    where : str
        Call, and sample.
    native, other : str
        What the records say.
    """

    kind: str
    where: str
    native: str
    other: str

    def __str__(self) -> str:
        return f"{self.kind} of {self.where}: natively {self.native or 'none'}, here {self.other or 'none'}"


def compare(native: SemanticRecord, other: SemanticRecord, *, bits: bool = False) -> tuple[Difference, ...]:
    """Compare two semantic records; equality is exact.

    Parameters
    ----------
    native, other : SemanticRecord
        In `native` the order of updates is the one that counts.
    bits : bool
        Also compare the bits of minibatches: they are equal where every split node is batch-invariant.

    Returns
    -------
    tuple of Difference
        Empty if the records are equal.

    Raises
    ------
    UsageError
        If something else than records is given, such as graphs.
    """
    for given in (native, other):
        if not isinstance(given, SemanticRecord):
            raise UsageError(
                f"{with_article(type(given).__name__)} is no semantic record",
                hint="compare of_graph(graph), or what a Watch saw",
            )
    found = []
    for place in range(max(len(native.updates), len(other.updates))):
        a, b = (r.updates[place] if place < len(r.updates) else None for r in (native, other))
        if a is None or b is None or a.call != b.call:
            names = ("" if u is None else u.call for u in (a, b))
            found.append(Difference("update order", f"update {place}", *names))
    others = {update.call: update for update in other.updates}
    for a in native.updates:
        b = others.get(a.call)
        if b is None:
            continue
        if a.contents != b.contents or (a.indices and b.indices and a.indices != b.indices):
            pair = ((u.contents + (u.indices or ""))[:80] for u in (a, b))
            found.append(Difference("minibatch contents", a.call, *pair))
        elif bits and a.bits != b.bits:
            found.append(Difference("minibatch bits", a.call, str(a.bits), str(b.bits)))
    versions = ({(u.call, u.sample, u.cell): u.version for u in r.policy} for r in (native, other))
    mine, theirs = versions
    for use in sorted(mine.keys() | theirs.keys(), key=str):
        if mine.get(use) != theirs.get(use):
            call, sample, cell = use
            where = f"{call}, {cell}" + ("" if sample is None else f", sample {sample}")
            named = (_version(known.get(use)) for known in (mine, theirs))
            found.append(Difference("policy version", where, *named))
    return tuple(found)


def _version(version: str | None) -> str:
    return "none" if version is None else version or "the initial one"


def of_graph(graph: CallGraph) -> SemanticRecord:
    """Return what a graph says: of a native graph the truth, if its recording is."""
    expect_graph(graph)
    roles = _Roles(graph)
    updates = tuple(
        Update(call.origin, _contents(graph, call)) for call in graph.calls if call.node in roles.updates
    )
    uses = [
        PolicyUse(call.origin, sample, str(access.cell), access.sees)
        for call in graph.calls
        for access in call.accesses
        if access.cell.state in roles.weights and access.sees is not None
        for sample in _samples(call)
    ]
    return SemanticRecord(updates, frozenset(uses))


class Watch:
    """Sees the calls of one run and writes its semantic record.

    Give one to `execute`, or what makes one for each call to a replacement:
    ``program.install(graph, watch=make)``, where ``make()`` keeps the ``Watch(graph)`` that it returns.

    Parameters
    ----------
    graph : CallGraph
        What runs.
    """

    def __init__(self, graph: CallGraph) -> None:
        self._graph = graph
        self._roles = _Roles(graph)
        self._written: dict[tuple[Cell, int], str] = {}
        self._updates: list[Update] = []
        self._uses: list[PolicyUse] = []
        self._lock = threading.Lock()

    def started(self, call: Call, arguments: Arguments) -> None:
        """Take note of a call that is about to run."""
        with self._lock:
            for access in call.accesses:
                if access.cell.state in self._roles.weights and access.mode != "refresh":
                    version = self._written.get((access.cell, access.copy), INITIAL)
                    self._uses += [
                        PolicyUse(call.origin, s, str(access.cell), version) for s in _samples(call)
                    ]
            if call.node in self._roles.updates:
                contents = _contents(self._graph, call)
                self._updates.append(Update(call.origin, contents, *_digests(arguments)))

    def ended(self, call: Call) -> None:
        """Take note that a call is done."""
        with self._lock:
            for access in call.accesses:
                if access.mode != "read" and access.cell.state in self._roles.weights:
                    self._written[access.cell, access.copy] = call.origin

    @property
    def record(self) -> SemanticRecord:
        """What has been seen."""
        with self._lock:
            return SemanticRecord(tuple(self._updates), frozenset(self._uses))


@contextmanager
def watch_native(program: Program, graph: CallGraph) -> Iterator[list[Watch]]:
    """See native calls of a region while the block runs.

    Parameters
    ----------
    program : Program
        With nothing installed in place of the region.
    graph : CallGraph
        Its native graph: says which calls are units, and which cells they use.

    Yields
    ------
    list of Watch
        One for each call of the region so far.
    """
    name = graph.region.rpartition("/")[2]
    seen: list[Watch] = []
    running: dict[CallContext, Watch] = {}

    def unit(context: CallContext) -> tuple[Watch, Call] | None:
        above: CallContext | None = context
        while above is not None and above.node != graph.region:
            above = above.parent
        if above is None or above is context or above not in running:
            return None
        call = graph.by_id.get(name + context.label[len(above.label) :])
        return None if call is None else (running[above], call)

    def before(context: CallContext, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if context.node == graph.region:
            running[context] = Watch(graph)
            seen.append(running[context])
        elif (found := unit(context)) is not None:
            found[0].started(found[1], (args, kwargs))

    def after(context: CallContext, result: Any, error: BaseException | None) -> None:  # noqa: ARG001
        if (found := unit(context)) is not None:
            found[0].ended(found[1])
        running.pop(context, None)

    remove = program.add_hook(before=before, after=after)
    try:
        yield seen
    finally:
        remove()


class _Roles:
    """Nodes that update parameters, or hold one that does; states that a rollout reads as its policy."""

    def __init__(self, graph: CallGraph) -> None:
        self.weights = {name for name, spec in graph.states.items() if spec.rollout_weights}
        self.updates = _with_parents({p for p, s in graph.nodes.items() if s.role == "update"}, graph.nodes)


def _with_parents(paths: set[str], nodes: Mapping[str, NodeSpec]) -> set[str]:
    found = set()
    for path in paths:
        above: str | None = path
        while above is not None and above not in found:
            found.add(above)
            above = nodes[above].parent if above in nodes else None
    return found


def _samples(call: Call) -> tuple[int | None, ...]:
    if call.samples is not None:
        return call.samples
    return (None,) if call.batch_size is None else tuple(range(call.batch_size))


def _contents(graph: CallGraph, call: Call) -> str:
    document = _origin(graph, call.arguments)
    return hashlib.sha256(orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS)).hexdigest()


def _origin(graph: CallGraph, binding: Binding) -> list[Any]:
    """Where a value comes from, in native terms: a batch joined of all its parts is the native batch.

    Which view of an output is taken is left away: a part's is another than the whole's.
    """
    if isinstance(binding, Ref):
        call = graph.by_id[binding.call]
        samples = None if call.samples is None else list(call.samples)
        return ["output", call.origin, list(binding.path), samples]
    if isinstance(binding, External):
        return ["argument", list(binding.path)]
    if isinstance(binding, Const):
        return ["constant", binding.name]
    if isinstance(binding, Pack):
        items = [_origin(graph, item) for item in binding.items]
        return ["pack", binding.kind, list(binding.keys), items]
    if isinstance(binding, Slice):
        return ["samples", _origin(graph, binding.of), list(binding.samples)]
    parts = [_origin(graph, part) for part in binding.parts]
    return _joined(binding, parts)


def _joined(binding: Gather, parts: list[list[Any]]) -> list[Any]:
    first = parts[0]
    if all(
        part[0] == "output" and part[:3] == first[:3] and part[3] == list(samples)
        for part, samples in zip(parts, binding.samples, strict=True)
    ):
        return [*first[:3], None]
    pieces = zip(parts, binding.samples, strict=True)
    return ["joined", [[part, list(samples)] for part, samples in pieces]]


def _digests(arguments: Arguments) -> tuple[str, str]:
    """Hashes of the whole numbers and of everything that has bits."""
    whole, every = hashlib.sha256(), hashlib.sha256()
    for path, leaf in flatten(arguments):
        text = _bits(leaf)
        if text is None:
            continue
        head = orjson.dumps(list(path), option=orjson.OPT_NON_STR_KEYS)
        every.update(head + text)
        if isinstance(leaf, int) or (is_array(leaf) and _is_whole(leaf)):
            whole.update(head + text)
    return whole.hexdigest(), every.hexdigest()


def _is_whole(array: Any) -> bool:
    if is_tensor(array):
        return not (array.is_floating_point() or array.is_complex())
    return bool(array.dtype.kind in "biu")


def _bits(leaf: Any) -> bytes | None:
    """Type, shape and bits of an array or number; None for anything else."""
    if is_tensor(leaf):
        flat = bytes_of(leaf).to("cpu", copy=True).numpy()
        bits: bytes = flat.tobytes()
        return f"{leaf.dtype}{tuple(leaf.shape)}".encode() + bits
    if isinstance(leaf, np.ndarray | np.generic):
        array = np.asarray(leaf)
        return None if array.dtype.hasobject else f"{array.dtype}{array.shape}".encode() + array.tobytes()
    if isinstance(leaf, bool | int | float | complex | str | bytes):
        return repr(leaf).encode()
    return None
