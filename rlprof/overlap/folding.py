"""Which calls of a recording are the units of a graph, and which nodes hide their inner calls, and why.

Units are the innermost calls. The code around them is taken to route values only, and is not run when a graph
is. Where it does more, the node that holds it becomes *opaque*: one unit, with all calls inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rlprof.overlap.bindings import Binding, Const, External, Path, Ref
from rlprof.overlap.errors import RecordingError
from rlprof.overlap.recording import Invocation, Recording, Unknown
from rlprof.overlap.specs import Cell
from rlprof.overlap.units import EFFECT, MAKE_ONCE, WRAP, Fold, Folded, argument, leaves_at, spell
from rlprof.text import counted


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
        # what varies is found first: it also says that calls that were not seen may be made
        folds = [*_structure(recording, views), *_effects(recording, views)] or [*_values(recording, views)]
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
    """Calls whose inner calls differ, or whose loops differ."""
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
                f"loop {loop} of count {count} inside it ran {counted(iterations, 'iteration')}",
                "give the loop the count that it has in every call",
                varies=True,
            )


def _effects(recording: Recording, views: tuple[Folded, ...]) -> Iterator[Fold]:
    """Calls that change something in their own code."""
    for view in views:
        for call_id in view.children:
            for effect in view.by_id[call_id].effects:
                yield Fold(call_id, f"its own code changes {effect}, and is not run when a graph is", EFFECT)
    for view in views:
        for call_id in view.children:
            yield from _writes(recording, view, call_id)


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
            yield Fold(call_id, f"it writes {cell} in its own code: no call inside it does", WRAP)


def _values(recording: Recording, views: tuple[Folded, ...]) -> Iterator[Fold]:
    """Calls whose own code makes, chooses or hands over values in a way that is not known."""
    base = views[0]
    for unit in base.units:
        around = base.parent[unit]
        if around is None:
            continue
        for path, reason, hint in unknown(recording, [_leaves(v, v.by_id[unit].arguments) for v in views]):
            yield Fold(around, f"{argument(path)} of {unit} {reason} {base.before(unit)}", hint)
        for view in views:
            yield from _untold(view, unit, view.by_id[unit].arguments, argument)
        if len(base.inside[unit]) > 1:
            yield from _hidden(views, unit, around)
    for path, reason, hint in unknown(recording, [_leaves(v, v.by_id[v.region].output) for v in views]):
        last = base.children[base.region][-1] if base.region in base.children else base.region
        yield Fold(base.region, f"the result at {spell(path)} {reason} after {last}", hint)
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
) -> Iterator[tuple[Path, str, str]]:
    """Yield where a value has no known origin or not the same in every run, what is wrong, and a hint.

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
            equal = isinstance(value, Unknown) and value.equal
            if equal:
                what += ", the same bits in every recorded run"
            yield path, f"({what}) has no known origin: it was made", MAKE_ONCE if equal else WRAP
            continue
        for number, other in enumerate(runs[1:], start=1):
            found = other.get(path)
            if found != leaf:
                yield path, f"{_changes(leaf, found, number)}: it was chosen", WRAP
                break
    for number, other in enumerate(runs[1:], start=1):
        extra = [path for path in other if path not in runs[0]]
        if extra:
            yield (
                extra[0],
                f"is {_name(other[extra[0]])} in run {number} and nothing in run 0: it was put together",
                WRAP,
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
