"""Does a call depend on state that it does not declare? Run it again with that state changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rlprof.overlap.contents import Contents
from rlprof.overlap.context import CallContext
from rlprof.overlap.generators import GlobalRandom
from rlprof.overlap.perturbation import perturb
from rlprof.overlap.specs import Cell, Mode
from rlprof.overlap.values import flatten, is_array, memory_key
from rlprof.overlap.variables import reachable


#: Where something lies in a state object: its name, its partition if that can be told, and the path.
class Piece(NamedTuple):
    """A thing that a state object holds."""

    state: str
    key: int | str | None
    path: str


def pieces(
    states: Mapping[str, Any], partitions: Mapping[str, int | None], contents: Contents
) -> dict[Piece, bytes]:
    """Digests of everything that state objects hold, rows of partitioned arrays one by one.

    Parameters
    ----------
    states : mapping of str to object
        Roots of `contents` that are state objects.
    partitions : mapping of str to int or None
        Of each. An array with as many rows holds one row for each partition; in a dict, list or tuple an item
        is a partition.
    contents : Contents
        What is there now.
    """
    found: dict[Piece, bytes] = {}
    for path, place in contents.places.items():
        state = place.root
        if state not in states:
            continue
        key = _item(states[state], path.removeprefix(state))
        rows = partitions.get(state)
        if key is None and rows and place.kind == "array" and place.value.ndim and len(place.value) == rows:
            for row in range(rows):
                found[Piece(state, row, path)] = place.digest(row)
        else:
            found[Piece(state, key, path)] = place.digest()
    return found


def _item(root: Any, rest: str) -> int | str | None:
    """Key of the item of a root container that a path leads into."""
    if not isinstance(root, dict | list | tuple) or not rest.startswith("["):
        return None
    for key in root if isinstance(root, dict) else range(len(root)):
        if isinstance(key, int | str) and rest.startswith(f"[{key!r}]"):
            return key
    return None


def paths_in_memory(contents: Contents, values: Any) -> set[str]:
    """Paths of arrays that share memory with an array in `values`, nested containers of them."""
    shared = {memory_key(leaf) for _, leaf in flatten(values) if is_array(leaf)}
    if not shared:
        return set()
    return {
        path
        for path, place in contents.places.items()
        if place.kind == "array" and is_array(place.value) and memory_key(place.value) in shared
    }


def uses_of(piece: Piece, uses: Iterable[tuple[Cell, Mode]]) -> set[Mode]:
    """How a call uses a piece by its declaration; what belongs to no partition belongs to all."""
    return {
        mode
        for cell, mode in uses
        if cell.state == piece.state and (cell.key is None or piece.key is None or cell.key == piece.key)
    }


def uses_of_holders(
    piece: Piece, uses: Iterable[tuple[Cell, Mode]], shared: Mapping[str, frozenset[str]]
) -> set[Mode]:
    """How a call uses a piece by its declaration for any of the state objects that hold it.

    A write has to be declared for all of them; so it is enough for a reader to declare one.
    """
    found = uses_of(piece, uses)
    for other in shared.get(piece.path, frozenset()) - {piece.state}:
        found |= uses_of(Piece(other, None, piece.path), uses)
    return found


@dataclass
class Before:
    """Everything that a call finds, so that it can be run again.

    Parameters
    ----------
    states : mapping of str to object
        Registered state objects.
    partitions : mapping of str to int or None
        Of each.
    entry : callable
        Native entry.
    args, kwargs : tuple, dict
        Of the call.
    context : CallContext or None
        In which it runs.
    """

    states: Mapping[str, Any]
    partitions: Mapping[str, int | None]
    entry: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    context: CallContext | None

    def __post_init__(self) -> None:
        self.contents = Contents(self._roots())
        self.random = GlobalRandom()
        self.draws = 0 if self.context is None else self.context.draws

    def _roots(self) -> dict[str, Any]:
        taken = {id(obj) for obj in self.states.values()}
        hidden = {n: o for n, o in reachable(self.entry).items() if id(o) not in taken}
        return {**self.states, **hidden, "arguments": (self.args, self.kwargs)}


class Depends(NamedTuple):
    """A state object on which a call was seen to depend.

    Parameters
    ----------
    state : str
        Its name.
    refreshed : bool
        The call declares to refresh it, and something of the old value lives on.
    what : str
        What came out differently.
    """

    state: str
    refreshed: bool
    what: str


class Reread:
    """Runs of one call again, on changed state.

    Parameters
    ----------
    before : Before
        Taken before the native run.
    uses : tuple of (Cell, mode)
        Declared.
    changing : set of Piece
        What was seen to change in the program: the rest has one version only, and need not be declared.
    result : object
        Of the native run.
    returned : set of str
        Paths of arrays that calls return without a copy: their memory is followed when calls are recorded,
        and no declaration says anything of it.
    """

    def __init__(
        self,
        before: Before,
        uses: tuple[tuple[Cell, Mode], ...],
        changing: set[Piece],
        result: Any,
        returned: set[str],
    ) -> None:
        self.before, self.uses, self.result = before, uses, result
        self._after = Contents({**before._roots(), "result": result})
        self._wanted = _digests(result)
        self._pieces = pieces(before.states, before.partitions, self._after)
        self._targets: dict[Piece, bool] = {}
        given = paths_in_memory(before.contents, (before.args, before.kwargs))
        for piece in sorted(changing, key=str):
            modes = uses_of_holders(piece, uses, before.contents.shared)
            if piece.path in given or (modes and piece.path in returned):
                continue
            if not modes or modes == {"refresh"}:
                self._targets[piece] = bool(modes)

    @property
    def targets(self) -> dict[Piece, bool]:
        """What is changed; True for what the call declares to refresh."""
        return self._targets

    def find(self, seed: int) -> tuple[Depends, ...] | str:
        """Return on which states the call depends, or why that cannot be told."""
        if not self._targets:
            return ()
        difference = self._attempt(tuple(self._targets), seed)
        if difference is None:
            return ()
        again = self._attempt((), seed)
        if again is not None:
            return f"run again on equal inputs and state, {again}: it uses something that is not registered"
        found = []
        groups = dict.fromkeys((piece.state, refreshed) for piece, refreshed in self._targets.items())
        for state, refreshed in groups:
            chosen = tuple(p for p, r in self._targets.items() if (p.state, r) == (state, refreshed))
            alone = self._attempt(chosen, seed)
            if alone is not None:
                found.append(Depends(state, refreshed, alone))
        if not found:  # only together
            found = [Depends(state, refreshed, difference) for state, refreshed in groups]
        return tuple(found)

    def _attempt(self, targets: tuple[Piece, ...], seed: int) -> str | None:
        """Run the call once more on state changed at `targets`; say what comes out differently."""
        before, context = self.before, self.before.context
        draw = np.random.default_rng(seed)
        draws = None if context is None else (context.draws, context.counts)
        now_random = GlobalRandom()
        try:
            before.contents.restore()
            before.random.restore()
            for piece in targets:
                place = before.contents.places.get(piece.path)
                if place is not None:
                    whole = piece.key is None or _is_item(before.states[piece.state], piece)
                    perturb(place, draw, None if whole else int(piece.key or 0))
            changed = pieces(before.states, before.partitions, Contents(before._roots())) if targets else {}
            if context is not None:
                context.draws = before.draws
            try:
                result = before.entry(*before.args, **before.kwargs)
            except Exception as error:
                return f"it raised {type(error).__name__}: {error}"
            if _digests(result) != self._wanted:
                return "its result differs"
            return self._state_difference(set(targets), changed)
        finally:
            self._after.restore()
            now_random.restore()
            if context is not None and draws is not None:
                context.draws, context.counts = draws

    def _state_difference(self, targets: set[Piece], changed: dict[Piece, bytes]) -> str | None:
        """Declared writes have to come out the same."""
        before = self.before
        now = pieces(before.states, before.partitions, Contents(before._roots()))
        for piece in sorted(self._pieces.keys() | now.keys(), key=str):
            modes = uses_of(piece, self.uses)
            if not modes & {"update", "refresh"} or now.get(piece) == self._pieces.get(piece):
                continue
            if piece in targets and now.get(piece) == changed.get(piece):
                return f"{_place(piece)} keeps its old value"
            return f"{_place(piece)} comes out differently"
        return None


def _place(piece: Piece) -> str:
    return (
        piece.path if piece.key is None or f"[{piece.key!r}]" in piece.path else f"{piece.path}[{piece.key}]"
    )


def _is_item(root: Any, piece: Piece) -> bool:
    return _item(root, piece.path.removeprefix(piece.state)) is not None


def _digests(result: Any) -> dict[str, bytes]:
    return {path: place.digest() for path, place in Contents({"result": result}).places.items()}
