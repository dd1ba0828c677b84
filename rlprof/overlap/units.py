"""One run of a recording in units: the calls of a graph, and values in terms of what they return."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from rlprof.overlap.bindings import Binding, Const, External, Pack, Path, Ref, View
from rlprof.overlap.recording import Invocation, Recording
from rlprof.overlap.specs import Mode

WRAP = "wrap that code as a node, or pass a value on that a node returned"
EFFECT = (
    "wrap the code that does it as a node, do it outside of the region, or record with ignore=[...] if it"
    " need not happen"
)
MAKE_ONCE = (
    "make it once, before the region, if it can never differ; else wrap the code that makes it as a node"
)


@dataclass(frozen=True)
class Fold:
    """A call whose code does more than route values, so that its node must be opaque."""

    call: str
    reason: str
    hint: str = WRAP
    varies: bool = False  # which calls it makes, or how often, is not always the same


class Folded:
    """One run, seen with some nodes opaque.

    Parameters
    ----------
    recording : Recording
        What was recorded.
    run : int
        Which of its runs.
    opaque : mapping of str to str
        Opaque nodes and why.
    varying : set of str
        Those of them that do not always make the same calls.

    Attributes
    ----------
    by_id : dict of str to Invocation
        All calls of the run.
    parent : dict of str to str or None
        Enclosing call with an entry: iterations of marked loops are left out.
    unit : dict of str to str or None
        The unit that a call is, or is inside of; None for one that only routes values.
    children : dict of str to list of str
        Of each call with an entry that is not inside an opaque one, in order.
    """

    def __init__(self, recording: Recording, run: int, opaque: dict[str, str], varying: set[str]) -> None:
        nodes = recording.nodes
        self.run, self.opaque, self.varying = run, opaque, varying
        self.by_id = {call.id: call for call in recording.runs[run]}
        self.region = recording.runs[run][0].id
        self.marked = {c.id for c in recording.runs[run][1:] if nodes[c.node].marked}
        self.parent: dict[str, str | None] = {}
        inner: dict[str, list[str]] = defaultdict(list)
        for call in recording.runs[run]:
            above = call.parent
            while above in self.marked:
                above = self.by_id[above].parent
            self.parent[call.id] = above
            if above is not None and call.id not in self.marked:
                inner[above].append(call.id)
        self.unit: dict[str, str | None] = {}
        self.children: dict[str, list[str]] = {}
        for call in recording.runs[run]:
            above = self.parent[call.id]
            around = None if above is None else self.unit[above]
            if around is not None or call.id in self.marked:
                self.unit[call.id] = around
            elif call.node in opaque or not inner[call.id]:
                self.unit[call.id] = call.id
            else:
                self.unit[call.id] = None
                self.children[call.id] = inner[call.id]

    @cached_property
    def units(self) -> tuple[str, ...]:
        """Ids of the units, in native order."""
        return tuple(call for call, unit in self.unit.items() if call == unit)

    @cached_property
    def inside(self) -> dict[str, tuple[Invocation, ...]]:
        """The calls inside each unit, itself first, in native order."""
        found: dict[str, list[Invocation]] = defaultdict(list)
        for call, unit in self.unit.items():
            if unit is not None:
                found[unit].append(self.by_id[call])
        return {unit: tuple(calls) for unit, calls in found.items()}

    def above(self, call: str | None) -> Iterator[str]:
        """Yield a call and all calls around it, innermost first."""
        while call is not None:
            yield call
            call = self.parent[call]

    def before(self, call: str) -> str:
        """The call before `call` in the code around it, in words."""
        around = self.parent[call]
        siblings = [] if around is None else self.children.get(around, [])
        position = siblings.index(call) if call in siblings else 0
        return f"between {siblings[position - 1]} and {call}" if position else f"before {call}"

    def express(self, leaf: Ref) -> Ref | Fold:
        """Say a value in terms of what units return.

        Returns
        -------
        Ref or Fold
            The fold names the call that cannot stay as it is; for a value that a unit holds and does not
            return, the call that has to be folded is around unit and consumer, and its `call` is that unit.
        """
        if leaf.call not in self.unit:
            return Fold(self.region, f"a value comes from {leaf.call}, which is no call of this run")
        unit = self.unit[leaf.call]
        if unit == leaf.call:
            return leaf
        if unit is None:
            return Fold(leaf.call, f"its own code makes the value at {spell(leaf.path)} of what it returns")
        for path, returned in leaves_at(self.by_id[unit].output):
            if isinstance(returned, Ref) and (returned.call, returned.path) == (leaf.call, leaf.path):
                inside, view = within(leaf.view, returned.view)
                if inside:
                    return Ref(unit, path, view)
        return Fold(unit, f"{unit} does not return the value that {leaf.call} inside it made")


def leaves_at(binding: Binding, path: Path = ()) -> Iterator[tuple[Path, Ref | External | Const]]:
    """Yield the leaves of a recorded binding with the path at which each lies."""
    if isinstance(binding, Pack):
        for key, item in zip(binding.keys, binding.items, strict=True):
            yield from leaves_at(item, (*path, key))
    elif isinstance(binding, Ref | External | Const):
        yield path, binding


def within(view: View | None, outer: View | None) -> tuple[bool, View | None]:
    """Say whether `view` lies in `outer`, both views of one array, and give it as a view of `outer`."""
    if outer is None:
        return True, view
    if view is None or view.dtype != outer.dtype:
        return False, None
    if (view.offset, view.shape, view.strides) == (outer.offset, outer.shape, outer.strides):
        return True, None
    offset = view.offset - outer.offset
    backwards = min((*view.strides, *outer.strides), default=0) < 0
    if backwards or offset < 0 or offset + _span(view) > _span(outer):
        return False, None
    return True, View(offset, view.shape, view.strides, view.dtype, outer.shape, outer.strides)


def _span(view: View) -> int:
    return sum((n - 1) * stride for n, stride in zip(view.shape, view.strides, strict=True) if n)


def spell(path: Path) -> str:
    """A path, as Python would write it."""
    return "".join(f"[{key!r}]" for key in path) or "the top"


def argument(path: Path) -> str:
    """The place of a leaf in a binding of ``(args, kwargs)``, as Python would write it."""
    if not path:
        return "the arguments"
    rest = path[2:]
    return f"argument {path[1]}" + (spell(rest) if rest else "") if len(path) > 1 else "the arguments"


def combined(modes: list[Mode]) -> Mode:
    """How a cell is used by uses one after another: by the first, and by whether any writes.

    Parameters
    ----------
    modes : list of {"read", "update", "refresh"}
        In order; not empty.
    """
    if modes[0] == "refresh":
        return "refresh"
    return "read" if all(mode == "read" for mode in modes) else "update"
