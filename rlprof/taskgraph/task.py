"""Tasks and edges: the plain values that a `rlprof.taskgraph.graph.TaskGraph` is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, TypeVar, get_args

from rlprof.taskgraph.errors import GraphTypeError

#: Why a task waits for another: it needs its output; the version of a state object that the other wrote or
#: still reads; updated weights that the other publishes; or an order that was chosen, without any value.
EdgeKind = Literal["data", "state", "publication", "order"]
EDGE_KINDS: tuple[str, ...] = get_args(EdgeKind)
Scalar = str | int | float | bool | None

_Part = TypeVar("_Part")

#: The version of a cell that nobody has written yet.
INITIAL = ""


@dataclass(frozen=True, slots=True)
class Use:
    """What a task holds of a resource from its start to its end.

    Parameters
    ----------
    resource : str
        Name of the resource.
    amount : int
        Units held, in the unit of the resource's capacity; at least 1.
    exclusive : bool
        The whole resource is held, whatever its capacity.
    """

    resource: str
    amount: int = 1
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class CellAccess:
    """Which version of a state cell a task needs, and which it leaves behind.

    A cell is a state object or one partition of it. A read sees a version and makes none, an update sees one
    and makes one, a refresh makes one and sees none.

    Parameters
    ----------
    cell : str
        Name of the cell.
    sees : str or None
        Version whose value it needs: by convention the id of the task that wrote it natively, "" for the
        initial one. None: it needs no value.
    makes : str or None
        Version that is there when the task is done; None: it writes nothing.
    copy : int
        Storage copy in which the version lies that it reads or writes; each has versions of its own.
    """

    cell: str
    sees: str | None
    makes: str | None = None
    copy: int = 0

    @property
    def key(self) -> tuple[str, int]:
        """The storage: cell and copy."""
        return self.cell, self.copy


#: `CellAccess.key`, in fewer steps.
_storage = attrgetter("cell", "copy")


def worker_resource(worker: str) -> str:
    """Name of the resource that stands for a worker: its tasks hold it, so they run one at a time."""
    return f"worker {worker}"


@dataclass(frozen=True, slots=True)
class Task:
    """One unit of work.

    Parameters
    ----------
    id : str
        Unique in its graph.
    name : str
        What a person calls the kind of work; many tasks share one. The id if empty.
    duration_s : float or None
        Predicted or measured time in seconds; None if not known yet: such a graph can run, not be scheduled.
    resources : tuple of Use
        What is held while it runs; each resource at most once.
    payload : str or None
        Key of what a back end executes; None for a task that only takes part in the order.
    program_order : int
        Place in program order: of two tasks with equal priority the lower goes first, then the lower id.
    provenance : tuple of (str, scalar)
        Where it comes from (node, iteration indices, group, ...), sorted by key; a mapping is accepted.
    accesses : tuple of CellAccess
        State that it reads or writes, sorted by cell and copy; each at most once.
    worker : str or None
        The worker that must run it; None: any. A worker runs one task at a time.

    Raises
    ------
    GraphTypeError
        If its resources or accesses are something else.
    """

    id: str
    name: str = ""
    duration_s: float | None = None
    resources: tuple[Use, ...] = ()
    payload: str | None = None
    program_order: int = 0
    provenance: tuple[tuple[str, Scalar], ...] = ()
    accesses: tuple[CellAccess, ...] = ()
    worker: str | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        pairs = self.provenance.items() if isinstance(self.provenance, Mapping) else self.provenance
        if not self.name:
            put(self, "name", self.id)
        if self.resources != ():
            put(self, "resources", tuple_of(Use, self.resources, "resources", self.id))
        put(self, "provenance", tuple(sorted([(str(k), v) for k, v in pairs])) if pairs else ())
        if self.duration_s is not None:
            put(self, "duration_s", float(self.duration_s) + 0.0)  # -0.0 becomes 0.0
        if self.accesses:
            accesses = tuple_of(CellAccess, self.accesses, "accesses", self.id)
            put(self, "accesses", tuple(sorted(accesses, key=_storage)) if len(accesses) > 1 else accesses)

    @property
    def uses(self) -> tuple[Use, ...]:
        """What it holds: its resources, and its worker if one is named."""
        if self.worker is None:
            return self.resources
        return (*self.resources, Use(worker_resource(self.worker), exclusive=True))


@dataclass(frozen=True, slots=True)
class Edge:
    """`target` starts when `source` has completed.

    Parameters
    ----------
    source, target : str
        Ids of tasks.
    kind : {"data", "state", "publication", "order"}
        Why. Only over data edges does an output reach a consumer.
    item : str
        What is passed or protected: a tensor, a state object and its version; may be empty.
    """

    source: str
    target: str
    kind: EdgeKind = "data"
    item: str = ""


def tuple_of(kind: type[_Part], parts: Any, what: str, task: str | None = None) -> tuple[_Part, ...]:
    """Return the items of an iterable if all of them are of a type.

    Raises
    ------
    GraphTypeError
        If not; says `what` they are, of which task or of the graph.
    """
    whose = f"{what} of {'the graph' if task is None else f'task {task!r}'}"
    if isinstance(parts, kind | str) or not isinstance(parts, Iterable):
        raise GraphTypeError(
            f"the {whose} are {parts!r}", hint=f"give a tuple of {kind.__name__}; one item needs a comma"
        )
    found = tuple(parts)
    for part in found:
        if not isinstance(part, kind):
            raise GraphTypeError(f"{part!r} among the {whose} is no {kind.__name__}")
    return found


def check_types(tasks: Iterable[Task], capacities: Any) -> None:
    """Check that names are text and amounts whole numbers, as JSON will hold them.

    Raises
    ------
    GraphTypeError
        If one is something else; names it.
    """
    for task in tasks:
        if not (isinstance(task.id, str) and isinstance(task.name, str)):
            raise GraphTypeError(f"task {task.id!r} has an id or a name that is no text")
        for what, key in (("payload", task.payload), ("worker", task.worker)):
            if key is not None and not isinstance(key, str):
                raise GraphTypeError(
                    f"task {task.id!r} has the {what} {key!r}, which is no text",
                    hint="name it here, and give the calls or factories by name to the back end",
                )
        _check_whole(task.program_order, f"program order of task {task.id!r}")
        for use in task.resources:
            _check_whole(use.amount, f"amount of {use.resource!r} of task {task.id!r}")
    if not isinstance(capacities, Mapping):
        raise GraphTypeError(f"the capacities of the graph are {capacities!r}", hint='write {"cores": 8}')
    for name, capacity in capacities.items():
        _check_whole(capacity, f"capacity of {name!r}")


def _check_whole(value: Any, what: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise GraphTypeError(f"the {what} is {value!r}, which is no whole number", hint="give an int")
