"""Which calls of a recording are the units of a graph, and which nodes hide their inner calls, and why.

Units are the innermost calls. The code around them is taken to route values only, and is not run when a graph
is. Where it does more, the node that holds it becomes *opaque*: one unit, with all calls inside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from rlprof.overlap.bindings import Binding, Const, External, Pack, Path, Ref, View
from rlprof.overlap.errors import RecordingError
from rlprof.overlap.recording import Invocation, Recording, Unknown
from rlprof.overlap.specs import Cell, Mode

_WRAP = "wrap that code as a node, or pass a value on that a node returned"


@dataclass(frozen=True)
class Fold:
    """A call whose code does more than route values, so that its node must be opaque."""

    call: str
    reason: str
    hint: str = _WRAP
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


def find_units(recording: Recording) -> tuple[Folded, ...]:
    """Find the units of a recording.

    Parameters
    ----------
    recording : Recording
        At least two runs.

    Returns
    -------
    tuple of Folded
        One for each run, with the same units in the same order; their `opaque` says which nodes hide calls.

    Raises
    ------
    RecordingError
        If the region itself would have to be opaque, a run raised, or there is only one run.
    """
    if len(recording.runs) < 2:
        raise RecordingError(
            f"{len(recording.runs)} run of {recording.region} cannot tell what is the same in every run",
            hint="record two runs",
        )
    for number, run in enumerate(recording.runs):
        if not run or run[0].node != recording.region:
            raise RecordingError(f"run {number} does not start with a call of {recording.region}")
        if run[0].failed:
            raise RecordingError(
                f"run {number} of {recording.region} raised", hint="record runs that end well"
            )
    opaque: dict[str, str] = {}
    varying: set[str] = set()
    while True:
        views = tuple(Folded(recording, run, opaque, varying) for run in range(len(recording.runs)))
        folds = [*_structure(recording, views)] or [*_values(recording, views)]
        if not folds:
            break
        depth = {fold: len([*_view(views, fold).above(fold.call)]) for fold in folds}
        fold = max(folds, key=depth.__getitem__)  # the first of the innermost
        node = _view(views, fold).by_id[fold.call].node
        if fold.call == views[0].region or node in opaque:
            raise RecordingError(f"{fold.call}: {fold.reason}", hint=fold.hint)
        opaque[node] = fold.reason
        if fold.varies:
            varying.add(node)
    if views[0].units == (views[0].region,):
        raise RecordingError(
            f"no node was called inside {recording.region}", hint="wrap the calls that it makes as nodes"
        )
    return views


def _view(views: tuple[Folded, ...], fold: Fold) -> Folded:
    return next(view for view in views if fold.call in view.by_id)


def _structure(recording: Recording, views: tuple[Folded, ...]) -> Iterator[Fold]:
    """Calls whose inner calls differ, whose loops differ, or that write state in their own code."""
    first: dict[tuple[str, int | None], tuple[str, list[tuple[str, str]]]] = {}
    for view in views:
        for call_id, inner in view.children.items():
            call = view.by_id[call_id]
            shape = [(child[len(call_id) :], view.by_id[child].node) for child in inner]
            key = (call.node, _iteration(recording, call))
            known, expected = first.setdefault(key, (f"{call_id} of run {view.run}", shape))
            if shape != expected:
                what = f"it makes other calls than {known}: {_difference(expected, shape)}"
                yield Fold(call_id, what, varies=True)
            for child in inner:
                if view.by_id[child].failed:
                    yield Fold(call_id, f"{child} raised, and its own code went on", varies=True)
            yield from _loops(recording, view, call_id)
            yield from _writes(recording, view, call_id)
    for view in views:
        for call_id in view.units:
            call = view.by_id[call_id]
            known, expected = first.get((call.node, _iteration(recording, call)), ("", []))
            if expected and call.node not in view.opaque:
                what = f"it makes other calls than {known}: {_difference(expected, [])}"
                yield Fold(call_id, what, varies=True)
    yield from _not_called(recording, views)


def _not_called(recording: Recording, views: tuple[Folded, ...]) -> Iterator[Fold]:
    """Calls in which nodes are declared that no run called: other runs may."""
    called = {call.node for view in views for call in view.by_id.values()}
    missing: dict[str, str] = {}
    for path, node in recording.nodes.items():
        above = node.parent
        while above is not None and recording.nodes[above].marked:
            above = recording.nodes[above].parent
        if path not in called and not node.marked and above is not None:
            missing.setdefault(above, path)
    for call_id in views[0].children:
        node_path = views[0].by_id[call_id].node
        if node_path in missing:
            yield Fold(
                call_id,
                f"{missing[node_path]} is declared inside it and was called in no run: others may call it",
                "record runs that call it, choose a smaller region, or do not wrap it",
                varies=True,
            )


def _iteration(recording: Recording, call: Invocation) -> int | None:
    """Of a loop that the call is an iteration of: iterations may make different calls, each the same."""
    return dict(call.indices).get(call.node) if recording.nodes[call.node].kind == "loop" else None


def _difference(expected: list[tuple[str, str]], found: list[tuple[str, str]]) -> str:
    for a, b in zip(expected, found, strict=False):
        if a != b:
            return f"{b[0].strip('/')} in place of {a[0].strip('/')}"
    longer = max(expected, found, key=len)
    more, what = ("", "does not call") if longer is expected else (" too", "calls")
    return f"{what} {longer[min(len(expected), len(found))][0].strip('/')}{more}"


def _loops(recording: Recording, view: Folded, call_id: str) -> Iterator[Fold]:
    """Loops directly inside a call whose number of iterations is not the declared one."""
    known = len(view.by_id[call_id].indices)
    seen: dict[tuple[str, tuple[tuple[str, int], ...]], int] = {}
    around = [*view.children[call_id], *(m for m in view.marked if view.parent[m] == call_id)]
    for child in around:
        indices = view.by_id[child].indices
        for depth in range(known, len(indices)):
            loop, index = indices[depth]
            key = (loop, indices[:depth])
            seen[key] = max(seen.get(key, 0), index + 1)
    for (loop, _), iterations in seen.items():
        count = recording.nodes[loop].count
        if count is None:
            why = f"loop {loop} inside it has no fixed count"
            yield Fold(call_id, why, "give the loop its count", varies=True)
        elif count != iterations:
            yield Fold(
                call_id,
                f"loop {loop} of count {count} inside it ran {iterations} iterations",
                "give the loop the count that it has in every call",
                varies=True,
            )


def _writes(recording: Recording, view: Folded, call_id: str) -> Iterator[Fold]:
    """State that a call's own code writes: it says so, or was seen to, and no call inside it does."""
    call = view.by_id[call_id]
    own = [*(call.accesses if recording.nodes[call.node].declared else ()), *call.memory]
    written = {cell for cell, mode in own if mode != "read"}
    if not written:
        return
    below: set[Cell] = set()
    stack = [*view.children[call_id]]
    while stack:
        child = stack.pop()
        if child in view.children:
            stack.extend(view.children[child])
        else:
            for inner in view.inside[child]:
                below.update(cell for cell, mode in (*inner.accesses, *inner.memory) if mode != "read")
    states = {cell.state for cell in below}
    for cell in sorted(written, key=str):
        covered = cell in below or Cell(cell.state) in below or (cell.key is None and cell.state in states)
        if not covered:
            yield Fold(call_id, f"it writes {cell} in its own code: no call inside it does", _WRAP)


def _values(recording: Recording, views: tuple[Folded, ...]) -> Iterator[Fold]:
    """Calls whose own code makes, chooses or hands over values in a way that is not known."""
    base = views[0]
    for unit in base.units:
        around = base.parent[unit]
        if around is None:
            continue
        for path, reason in unknown(recording, [_leaves(v, v.by_id[unit].arguments) for v in views]):
            yield Fold(around, f"{argument(path)} of {unit} {reason} {base.before(unit)}", _WRAP)
        for view in views:
            yield from _untold(view, unit, view.by_id[unit].arguments, argument)
        if len(base.inside[unit]) > 1:
            yield from _hidden(views, unit, around)
    for path, reason in unknown(recording, [_leaves(v, v.by_id[v.region].output) for v in views]):
        last = base.children[base.region][-1] if base.region in base.children else base.region
        yield Fold(base.region, f"the result at {spell(path)} {reason} after {last}")
    for view in views:
        if view.region in view.children:
            yield from _untold(
                view, view.region, view.by_id[view.region].output, lambda path: f"the result at {spell(path)}"
            )


def _leaves(view: Folded, binding: Binding) -> dict[Path, Ref | External | Const]:
    """Leaves of a binding by path, in terms of what units return where that can be said."""
    found: dict[Path, Ref | External | Const] = {}
    for path, leaf in leaves_at(binding):
        told = view.express(leaf) if isinstance(leaf, Ref) else leaf
        found[path] = leaf if isinstance(told, Fold) else told
    return found


def _untold(view: Folded, consumer: str, binding: Binding, name: Callable[[Path], str]) -> Iterator[Fold]:
    """Values of a consumer that no unit returns."""
    for path, leaf in leaves_at(binding):
        if not isinstance(leaf, Ref):
            continue
        told = view.express(leaf)
        if isinstance(told, Fold):
            place = f"{name(path)} of {consumer}"
            call, reason = told.call, f"{told.reason}; {place} needs it"
            if view.unit.get(told.call) == told.call:  # the unit keeps it to itself
                outer = set(view.above(view.parent[told.call]))
                call = next(c for c in view.above(consumer) if c in outer)
                reason = f"{told.reason}, and {place} is that value"
            yield Fold(call, reason)


def _hidden(views: tuple[Folded, ...], unit: str, around: str) -> Iterator[Fold]:
    """Values that come into an opaque call, and not through its arguments."""
    for view in views:
        calls = view.inside[unit]
        own = {call.id for call in calls}
        given = {_base(leaf) for _, leaf in leaves_at(calls[0].arguments)}
        for call in calls[1:]:
            for path, leaf in leaves_at(call.arguments):
                foreign = isinstance(leaf, External) or (isinstance(leaf, Ref) and leaf.call not in own)
                if foreign and _base(leaf) not in given:
                    yield Fold(
                        around,
                        f"{unit} runs as one unit ({view.opaque[calls[0].node]}), but {argument(path)} of"
                        f" {call.id} inside it is no argument of it",
                        "pass the value as an argument",
                    )


def _base(leaf: Ref | External | Const) -> tuple[str, Path]:
    if isinstance(leaf, Ref):
        return leaf.call, leaf.path
    return ("", leaf.path) if isinstance(leaf, External) else (leaf.name, ())


def unknown(
    recording: Recording, runs: list[dict[Path, Ref | External | Const]]
) -> Iterator[tuple[Path, str]]:
    """Yield where a value has no known origin or not the same in every run, and what is wrong.

    Parameters
    ----------
    recording : Recording
        For its table of constants.
    runs : list of dict
        Leaves of the same binding in each run, by path.
    """
    for path, leaf in runs[0].items():
        if isinstance(leaf, Const) and leaf.name.startswith("?"):
            value = recording.constants.get(leaf.name)
            what = value.what if isinstance(value, Unknown) else "a value"
            yield path, f"({what}) has no known origin: it was made"
            continue
        for number, other in enumerate(runs[1:], start=1):
            found = other.get(path)
            if found != leaf:
                yield path, f"{_changes(leaf, found, number)}: it was chosen"
                break
    for number, other in enumerate(runs[1:], start=1):
        extra = [path for path in other if path not in runs[0]]
        if extra:
            yield (
                extra[0],
                f"is {_name(other[extra[0]])} in run {number} and nothing in run 0: it was put together",
            )


def _changes(leaf: Ref | External | Const, found: Ref | External | Const | None, run: int) -> str:
    if isinstance(leaf, Const) and isinstance(found, Const):
        return "is not the same in every run"
    return f"is {_name(leaf)} in run 0 and {_name(found)} in run {run}"


def _name(leaf: Ref | External | Const | None) -> str:
    if leaf is None:
        return "nothing"
    if isinstance(leaf, Ref):
        return f"from {leaf.call}"
    if isinstance(leaf, External):
        return f"{argument(leaf.path)} of the region"
    return "of unknown origin" if leaf.name.startswith("?") else "a constant"


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
