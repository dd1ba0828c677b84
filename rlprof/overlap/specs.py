"""What is known of nodes and state objects without running anything: the static facts of a wrapped program.

These are values: they hold no callable and no object of the program, and can be hashed, compared and stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from rlprof.overlap.errors import WrapError

#: How a call uses a cell: `read` the present value; `update`: a new value made from the old one; `refresh`: a
#: new value that inherits nothing (Rose, section 4.2.2).
Mode = Literal["read", "update", "refresh"]
Key = int | str
#: Positions in a batch.
Samples = tuple[int, ...]


class Cell(NamedTuple):
    """The unit of state that has versions: a state object, or one partition of it.

    Parameters
    ----------
    state : str
        Name of the state object.
    key : int or str or None
        Which partition; None for an object that is not partitioned.
    """

    state: str
    key: Key | None = None

    def __str__(self) -> str:
        return self.state if self.key is None else f"{self.state}[{self.key}]"


@dataclass(frozen=True, slots=True)
class StateSpec:
    """A state object.

    Parameters
    ----------
    name : str
        Unique in its program.
    component : str
        Component worker that owns it; a node of that component that declares nothing updates it.
    partitions : int or None
        Cells 0 .. partitions - 1; None: one cell, or cells that are named as they are used.
    by_sample : bool
        Partition k belongs to sample k of a batch: a call on some samples touches only their cells.
    copies : int
        Versions that can be stored at once, the native object included. Only a refresh moves to another.
    rollout_weights : bool
        Weights that a rollout reads: their readers never cross a weight synchronisation (rule L6).
    memory : bool
        Not declared by anybody: an array that calls were seen to write in place.
    separate : bool
        Each copy is a component worker of its own: calls on distinct copies may run at once.
    """

    name: str
    component: str = ""
    partitions: int | None = None
    by_sample: bool = False
    copies: int = 1
    rollout_weights: bool = False
    memory: bool = False
    separate: bool = False


@dataclass(frozen=True, slots=True)
class AccessSpec:
    """A node's declaration for one state object.

    Parameters
    ----------
    state : str
        Its name.
    mode : {"read", "update", "refresh"}
        How.
    key : int, str or None
        One partition. None: the whole object, or, for one that is partitioned by sample, the cells of the
        samples that the call works on.
    keyed : bool
        The partition is computed for each call, from its arguments and iteration indices; recorded calls
        hold it.
    """

    state: str
    mode: Mode
    key: Key | None = None
    keyed: bool = False


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """A node works on each sample of a batch by itself, so that a batch may be cut.

    Parameters
    ----------
    axis : int
        Axis of samples in every batched array, in and out.
    parameters : tuple of str or None
        Parameters whose arrays have that axis; None: all parameters.
    sequences : tuple of str
        Parameters that are lists or tuples of one item for each sample.
    shared_outputs : tuple of int or str
        First-level keys of the output that have no such axis and are the same in every part; of a named
        tuple names or positions.
    unit : int
        Samples that belong together (a GRPO group, a simulator worker): cuts fall between units.
    invariant : bool
        The bits of a sample's result do not depend on the size of the batch.
    samples : str or None
        Parameter that is given the indices of the samples (a numpy array of int64, shape (samples,)) when a
        part of a batch is run; the native call leaves it away. A node with state by sample needs it.

    Raises
    ------
    WrapError
        If an argument is of another type, or `unit` is below 1.
    """

    axis: int = 0
    parameters: tuple[str, ...] | None = None
    sequences: tuple[str, ...] = ()
    shared_outputs: tuple[int | str, ...] = ()
    unit: int = 1
    invariant: bool = False
    samples: str | None = None

    def __post_init__(self) -> None:
        for name, of in (("parameters", str), ("sequences", str), ("shared_outputs", (int, str))):
            value = getattr(self, name)
            if name == "parameters" and value is None:
                continue
            if not isinstance(value, list | tuple) or not all(isinstance(item, of) for item in value):
                raise WrapError(
                    f"a batch with {name}={value!r}", hint=f'give a tuple, such as {name}=("obs",)'
                )
            object.__setattr__(self, name, tuple(value))
        if not isinstance(self.axis, int) or isinstance(self.axis, bool):
            raise WrapError(f"a batch with axis={self.axis!r}", hint="give the number of an axis")
        if not isinstance(self.unit, int) or isinstance(self.unit, bool) or self.unit < 1:
            raise WrapError(f"a batch with unit={self.unit!r}", hint="give a number of samples from 1 on")
        if self.samples is not None and not isinstance(self.samples, str):
            raise WrapError(
                f"a batch with samples={self.samples!r}",
                hint="give the name of the parameter that takes them",
            )


#: Boundaries that nothing crosses (rule L6): `sync` publishes trained weights to the rollout, `update` is a
#: step of the optimiser.
Role = Literal["", "sync", "update"]
ROLES: tuple[str, ...] = get_args(Role)


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node of the execution hierarchy.

    Parameters
    ----------
    path : str
        Names from the root, joined by ``/``: the path of its ranges in a capture.
    parent : str or None
        Path of the parent; None for the root.
    kind : {"plain", "loop"}
        A loop node's calls are the iterations of a loop.
    count : int or None
        Iterations of a loop node in one call of its parent; None: not fixed, such a loop is dependent.
    loop_level : int
        Loops around its body: 0 for the root loop, that of the nearest enclosing loop plus one for another
        loop node; of a plain node, that of its nearest enclosing loop (0 without one).
    component : str
        Component worker that runs it; it serves one call at a time.
    accesses : tuple of AccessSpec
        What it declares.
    declared : bool
        It declares its accesses, or that it has none; otherwise it counts as an update of all its component.
    batch : BatchSpec or None
        How its batch may be cut; None: it may mix samples, and is never cut.
    resources : tuple of str
        Further things that serve one call at a time, such as the buffers of a captured CUDA graph.
    role : {"", "sync", "update"}
        A boundary of training.
    movable : bool
        Rewire may move it.
    marked : bool
        The native code marks its iterations; there is no entry that could be called, so its work can only
        run as part of a call of a node above it or as the calls inside it.
    parameters : tuple of str
        Names of the parameters that positional arguments go to, in order, without ``self``: what
        `BatchSpec` names is found among positional arguments by them.
    """

    path: str
    parent: str | None
    kind: Literal["plain", "loop"] = "plain"
    count: int | None = None
    loop_level: int = 0
    component: str = ""
    accesses: tuple[AccessSpec, ...] = ()
    declared: bool = False
    batch: BatchSpec | None = None
    resources: tuple[str, ...] = ()
    role: Role = ""
    movable: bool = True
    marked: bool = False
    parameters: tuple[str, ...] = ()
