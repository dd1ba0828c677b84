"""From what was recorded to the native graph of a region."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from rlprof.expect import expect
from rlprof.overlap.bindings import Binding, Const, External, Pack, Ref, substitute
from rlprof.overlap.callgraph import INITIAL, Access, Call, CallGraph
from rlprof.overlap.errors import RecordingError
from rlprof.overlap.folding import find_units
from rlprof.overlap.modes import TorchModes
from rlprof.overlap.recording import Recording
from rlprof.overlap.specs import Cell, Key, Mode, NodeSpec, StateSpec
from rlprof.overlap.units import Fold, Folded, combined


def call_graph(recording: Recording) -> CallGraph:
    """Build the native graph of a region: its units in program order, in one stream.

    Parameters
    ----------
    recording : Recording
        At least two runs, of equal structure.

    Returns
    -------
    CallGraph
        Every access sees its native version. Durations are medians over runs. `opaque` says which nodes run
        as one unit with the calls inside them, and why.

    Raises
    ------
    RecordingError
        If the region's own code makes or chooses a value that a call needs or that it returns, writes state,
        or does not make the same calls in every run. The message names the value, the calls and what to wrap.

    Notes
    -----
    Code between calls is not run when a graph is: it may only route values (tuples, lists, dicts, views).
    What it does to registered state is found by `rlprof.overlap.checked`.

    Where the partitions that a call uses differ between runs, it counts as a user of the whole object; a
    refresh counts as an update then, for what it leaves alone lives on.
    """
    expect(
        recording, Recording, "the recording", "give what Program.record returns; without run=, its recording"
    )
    views = find_units(recording)
    base = views[0]
    used = _accesses(recording, views)
    current: dict[Cell, str] = {}
    calls = []
    for order, unit in enumerate(base.units):
        call = base.by_id[unit]
        accesses = []
        for cell, mode in used[unit]:
            sees = None if mode == "refresh" else current.get(cell, INITIAL)
            accesses.append(Access(cell, mode, sees))
            if mode != "read":
                current[cell] = unit
        sizes = {view.by_id[unit].batch_size for view in views}
        arguments = _told(base, call.arguments)
        if not isinstance(arguments, Pack):
            raise RecordingError(f"the arguments of {unit} are no pair of positional and named ones")
        calls.append(
            Call(
                id=unit,
                node=call.node,
                origin=unit,
                order=order,
                arguments=arguments,
                accesses=tuple(accesses),
                indices=call.indices,
                batch_size=sizes.pop() if len(sizes) == 1 else None,
                duration_s=median(view.by_id[unit].duration_s for view in views),
                modes=_modes(views, unit),
            )
        )
    return CallGraph(
        region=recording.region,
        nodes=recording.nodes,
        states=_states(recording, calls),
        calls=tuple(calls),
        streams=(base.units,),
        output=_told(base, base.by_id[base.region].output),
        opaque=dict(base.opaque),
        not_joined=recording.not_joined,
    )


def _modes(views: Sequence[Folded], unit: str) -> TorchModes | None:
    """Modes of torch in which a call runs, where they are not those of the region's own call."""
    found = set()
    for view in views:
        own = view.by_id[unit].modes
        found.add(None if own == view.by_id[view.region].modes else own)
    if len(found) > 1:
        raise RecordingError(
            f"{unit} ran with other modes of torch (gradients, inference, autocast) in another run",
            hint="set them in the same way in every run",
        )
    return found.pop()


def _told(view: Folded, binding: Binding) -> Binding:
    """A recorded binding in terms of what units return."""

    def tell(leaf: Ref | External | Const) -> Binding:
        if not isinstance(leaf, Ref):
            return leaf
        told = view.express(leaf)
        if isinstance(told, Fold):  # find_units leaves none of these
            raise RecordingError(f"{told.call}: {told.reason}", hint=told.hint)
        return told

    return substitute(binding, tell)


def _states(recording: Recording, calls: list[Call]) -> dict[str, StateSpec]:
    """All state objects; what undeclared calls update besides is one more for each component."""
    states = dict(recording.states)
    for call in calls:
        for access in call.accesses:
            name = access.cell.state
            if name not in states:
                states[name] = StateSpec(name, component=name.partition(":")[2])
    return states


def _accesses(recording: Recording, views: tuple[Folded, ...]) -> dict[str, tuple[tuple[Cell, Mode], ...]]:
    """For each unit the cells that it uses and how, in every run."""
    keys: dict[str, dict[Key, None]] = defaultdict(dict)
    for name, state in recording.states.items():
        keys[name].update(dict.fromkeys(range(state.partitions or 0)))
    for view in views:
        for call in view.by_id.values():
            for cell, _ in (*call.accesses, *call.memory):
                if cell.key is not None:
                    keys[cell.state][cell.key] = None
    found: dict[str, tuple[tuple[Cell, Mode], ...]] = {}
    for unit in views[0].units:
        runs = [_run_accesses(view, unit, keys) for view in views]
        seen = runs[0] if all(run == runs[0] for run in runs) else _widened(runs, keys)
        found[unit] = _with_unseen(recording, views, unit, seen, keys)
    return found


def _with_unseen(
    recording: Recording,
    views: tuple[Folded, ...],
    unit: str,
    seen: tuple[tuple[Cell, Mode], ...],
    keys: dict[str, dict[Key, None]],
) -> tuple[tuple[Cell, Mode], ...]:
    """Add what nodes inside a unit declare, if it does not always make the same calls.

    Whether such a unit refreshes a cell before it reads it is not known either, unless it says so itself.
    """
    path = views[0].by_id[unit].node
    inner = [node for name, node in recording.nodes.items() if name.startswith(path + "/")]
    called = {call.node for view in views for call in view.inside[unit]}
    varying = views[0].varying & {path, *(node.path for node in inner)}
    if not varying and all(node.marked or node.path in called for node in inner):
        return seen
    own = {a.state for a in recording.nodes[path].accesses if a.mode == "refresh" and a.key is None}
    found: dict[Cell, Mode] = {
        cell: "update" if mode == "refresh" and cell.state not in own else mode for cell, mode in seen
    }
    for node in inner:
        for state, mode in _declared(recording, node):
            for key in keys.get(state) or (None,):
                cell = Cell(state, key)
                if found.get(cell, "read") == "read":
                    found[cell] = "read" if mode == "read" else "update"
    return tuple(sorted(found.items(), key=_by_cell))


def _declared(recording: Recording, node: NodeSpec) -> list[tuple[str, Mode]]:
    """State objects that a node declares; all of its component if it declares nothing."""
    if node.declared:
        return [(access.state, access.mode) for access in node.accesses]
    owned = [name for name, s in recording.states.items() if s.component == node.component and not s.memory]
    return [(name, "update") for name in (f"component:{node.component}", *owned)]


def _run_accesses(view: Folded, unit: str, keys: dict[str, dict[Key, None]]) -> tuple[tuple[Cell, Mode], ...]:
    """Uses of each cell by a unit and the calls inside it in one run."""
    first, *inner = view.inside[unit]
    modes: dict[Cell, list[Mode]] = {}
    for call in inner:
        _add(modes, (*call.accesses, *call.memory), keys)
    own: dict[Cell, list[Mode]] = {}
    _add(own, (*first.accesses, *first.memory), keys)
    for cell, declared in own.items():
        # a node's own declaration says nothing of when: what the calls inside it inherit, it inherits
        before: list[Mode] = modes.get(cell, [])
        late = bool(before) and combined(before) != "refresh"
        modes[cell] = [*before, *declared] if late else [*declared, *before]
    return tuple((cell, combined(uses)) for cell, uses in sorted(modes.items(), key=_by_cell))


def _by_cell(item: tuple[Cell, object]) -> tuple[str, bool, int, str]:
    key = item[0].key
    return item[0].state, isinstance(key, str), key if isinstance(key, int) else 0, str(key)


def _add(
    modes: dict[Cell, list[Mode]], accesses: tuple[tuple[Cell, Mode], ...], keys: dict[str, dict[Key, None]]
) -> None:
    for cell, mode in accesses:
        every = keys.get(cell.state)
        for key in every if cell.key is None and every else (cell.key,):
            modes.setdefault(Cell(cell.state, key), []).append(mode)


def _widened(
    runs: list[tuple[tuple[Cell, Mode], ...]], keys: dict[str, dict[Key, None]]
) -> tuple[tuple[Cell, Mode], ...]:
    """Uses that differ between runs: what holds for every run, and for runs not seen."""
    by_state: dict[str, list[dict[Cell, Mode]]] = defaultdict(lambda: [{} for _ in runs])
    for number, run in enumerate(runs):
        for cell, mode in run:
            by_state[cell.state][number][cell] = mode
    found: dict[Cell, Mode] = {}
    for state, uses in by_state.items():
        if all(use == uses[0] for use in uses):
            found.update(uses[0])
            continue
        writes = any(mode != "read" for use in uses for mode in use.values())
        for key in keys.get(state) or (None,):
            found[Cell(state, key)] = "update" if writes else "read"
    return tuple(sorted(found.items(), key=_by_cell))
