"""State objects of a program and how nodes declare their use (Rose, section 4.2.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rlprof.overlap.context import CallContext
from rlprof.overlap.errors import WrapError
from rlprof.overlap.specs import AccessSpec, Key, Mode

#: Names partitions of one call: gets its context (`index`, `indices`, `args`, `kwargs`, `samples`).
KeyFunction = Callable[[CallContext], Key | Iterable[Key]]


class State:
    """An object that lives longer than a call and that calls read or write.

    Parameters
    ----------
    name : str
        Unique in its program.
    obj : object, optional
        The object itself: an array, a structure of arrays, a component, a handle of a remote one. With it,
        arrays of the state that are passed to calls are recognised, and checks can look at its contents.
    component : str, optional
        Component worker that owns it. By default the one whose object `obj` is, or has as an attribute.
    partitions : int, optional
        It has cells ``0 .. partitions - 1``, named ``state[k]``.
    by_sample : bool
        Partition k belongs to sample k of a batch.
    copies : sequence of object
        Spare objects of the same kind: versions that can be alive beside the native one.
    rollout_weights : bool
        Weights that a rollout reads.
    separate : bool
        Each copy is a component worker of its own, such as a simulator with processes of its own: calls on
        distinct copies may run at once. Nothing but the object may be shared by the methods that are called.

    Raises
    ------
    WrapError
        If the name is no text, or the arguments contradict each other.
    """

    def __init__(
        self,
        name: str,
        obj: Any = None,
        *,
        component: str | None = None,
        partitions: int | None = None,
        by_sample: bool = False,
        copies: Sequence[Any] = (),
        rollout_weights: bool = False,
        separate: bool = False,
    ) -> None:
        if not isinstance(name, str) or not name.strip() or any(c in name for c in "[]/:@"):
            raise WrapError(f"{name!r} cannot name a state object", hint='use a name such as "ENV"')
        if partitions is not None and (not isinstance(partitions, int) or partitions < 1):
            raise WrapError(f"state {name} has {partitions!r} partitions", hint="give a number from 1 on")
        if by_sample and partitions is None:
            raise WrapError(
                f"state {name} is by sample, and the number of samples is missing", hint="give partitions=..."
            )
        if isinstance(copies, str) or not isinstance(copies, Sequence):
            raise WrapError(
                f"the copies of state {name} are a value of type {type(copies).__name__}",
                hint="give a list of spare objects",
            )
        if any(copy is obj for copy in copies):
            raise WrapError(
                f"a copy of state {name} is the object itself", hint="give spare objects as copies"
            )
        self.name = name
        self.obj = obj
        self.component = component
        self.partitions = partitions
        self.by_sample = by_sample
        self.copies = tuple(copies)
        self.rollout_weights = rollout_weights
        self.separate = separate

    def __repr__(self) -> str:
        return f"State({self.name!r})"

    def __getitem__(self, key: Key | KeyFunction) -> StatePart:
        """Return one partition; `key` may be a function that computes it (or several) for each call.

        Raises
        ------
        WrapError
            If the state has no such partition.
        """
        if not callable(key):
            self.check(key)
        return StatePart(self, key)

    def check(self, key: Any) -> None:
        """Raise WrapError unless `key` names a partition of this state."""
        if isinstance(key, bool) or not isinstance(key, (int, str)):
            raise WrapError(f"{key!r} is no partition of state {self.name}", hint="use a number or a name")
        if self.partitions is not None and not (isinstance(key, int) and 0 <= key < self.partitions):
            raise WrapError(
                f"state {self.name} has no partition {key!r}",
                hint=f"its partitions are 0 .. {self.partitions - 1}",
            )


@dataclass(frozen=True)
class StatePart:
    """One partition of a state object, fixed or computed for each call."""

    state: State
    key: Key | KeyFunction


@dataclass(frozen=True)
class Access:
    """A node's declaration for one state object, made by `reads`, `updates` and `refreshes`."""

    state: State | str
    mode: Mode
    key: Key | None = None
    key_function: KeyFunction | None = None

    @property
    def name(self) -> str:
        """Name of the state object."""
        return self.state if isinstance(self.state, str) else self.state.name

    @property
    def spec(self) -> AccessSpec:
        """What is kept of it in a node's spec."""
        return AccessSpec(self.name, self.mode, self.key, self.key_function is not None)


def _declare(mode: Mode, used: tuple[State | StatePart | str, ...]) -> tuple[Access, ...]:
    found = []
    for item in used:
        if isinstance(item, StatePart):
            if callable(item.key):
                found.append(Access(item.state, mode, None, item.key))
            else:
                found.append(Access(item.state, mode, item.key))
        elif isinstance(item, (State, str)):
            found.append(Access(item, mode))
        else:
            raise WrapError(
                f"a value of type {type(item).__name__} is no state object",
                hint="make a State of it and declare that",
            )
    return tuple(found)


def reads(*states: State | StatePart | str) -> tuple[Access, ...]:
    """Declare that a node uses the present value of these state objects and leaves it.

    Parameters
    ----------
    *states : State, StatePart or str
        Objects, partitions of them (``obj[k]``), or names known in the program.

    Raises
    ------
    WrapError
        If something else is given.
    """
    return _declare("read", states)


def updates(*states: State | StatePart | str) -> tuple[Access, ...]:
    """Declare that a node makes a new value from the old one; arguments as for `reads`."""
    return _declare("update", states)


def refreshes(*states: State | StatePart | str) -> tuple[Access, ...]:
    """Declare that a node makes a new value that inherits nothing; arguments as for `reads`."""
    return _declare("refresh", states)
