"""State cells: what accesses must satisfy, the order they imply, which version is where during a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rlprof.taskgraph.errors import AccessError, storage_named
from rlprof.taskgraph.task import INITIAL, CellAccess, Edge, Task

Key = tuple[str, int]


class CellVersion(NamedTuple):
    """One version of a cell in one of its storage copies."""

    cell: str
    copy: int
    version: str


def place(access: CellAccess) -> str:
    """Name the storage of an access, for people."""
    return storage_named(*access.key)


def check_accesses(tasks: Iterable[Task]) -> None:
    """Check what can be known before a run.

    Raises
    ------
    AccessError
        If a task accesses a cell's copy twice, or neither sees nor makes a version; if two tasks make the
        same version in one copy, or one the initial version; if a task sees one that nobody makes there.
    """
    makers: dict[tuple[Key, str], str] = {}
    users = [task for task in tasks if task.accesses]
    for task in users:
        before = None
        for access in task.accesses:
            key, makes = access.key, access.makes
            if key == before:
                raise AccessError(
                    f"task {task.id!r} accesses {place(access)} twice",
                    hint="say what it sees first and makes last, in one access",
                )
            before = key
            if access.copy < 0 or (access.sees is None and makes is None):
                raise AccessError(f"task {task.id!r} neither sees nor makes a version of {place(access)}")
            if makes is None:
                continue
            if makes == INITIAL:
                raise AccessError(
                    f"task {task.id!r} makes the initial version of {place(access)}",
                    hint="that one is there before all tasks; call what a task writes by the task's id",
                )
            other = makers.setdefault((key, makes), task.id)
            if other != task.id:
                raise AccessError(
                    f"tasks {other!r} and {task.id!r} both make version {makes!r} of {place(access)}",
                    hint="give each its own partition of the cell, or its own version",
                )
    for task in users:
        for access in task.accesses:
            if access.sees and (access.key, access.sees) not in makers:
                raise AccessError(
                    f"task {task.id!r} sees version {access.sees!r} of {place(access)}, but no task makes it"
                )


def state_edges(tasks: Iterable[Task]) -> tuple[Edge, ...]:
    """Derive the edges of kind ``state`` that make every task see the version that it names.

    Whoever sees a version waits for its maker; whoever makes one waits for all that see the version it
    replaces, or for its maker if none does.

    Parameters
    ----------
    tasks : iterable of Task
        In any order; program order counts, then the id.

    Returns
    -------
    tuple of Edge
        Without repetition; the item is the cell.

    Raises
    ------
    AccessError
        As of `check_accesses`, or if a task does not see the version that is there in program order.
    """
    ordered = sorted(tasks, key=lambda t: (t.program_order, t.id))
    check_accesses(ordered)
    version: dict[Key, str] = {}
    maker: dict[Key, str] = {}
    viewers: dict[Key, list[str]] = {}
    found: dict[Edge, None] = {}
    for task in ordered:
        for access in task.accesses:
            key, current = access.key, version.get(access.key, INITIAL)
            sources: list[str] = []
            if access.sees is not None:
                if access.sees != current:
                    raise AccessError(
                        f"in program order task {task.id!r} finds version {current!r} of {place(access)},"
                        f" not {access.sees!r}"
                    )
                sources += [maker[key]] if key in maker else []
            if access.makes is None:
                viewers.setdefault(key, []).append(task.id)
            else:
                seen_by = viewers.pop(key, [])
                sources += seen_by or ([maker[key]] if key in maker else [])
                version[key], maker[key] = access.makes, task.id
            for source in sources:
                found[Edge(source, task.id, "state", place(access))] = None
    return tuple(found)


class WrongVersion(NamedTuple):
    """A task would see another version than the one it needs."""

    task: str
    access: CellAccess
    found: str


class InUse(NamedTuple):
    """A task would use a cell that another writes, or write one that others use."""

    task: str
    access: CellAccess
    users: tuple[str, ...]


class CellStates:
    """Which version every cell's copy holds during a run, and who uses it."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self._version: dict[Key, str] = {}
        self._users: dict[Key, list[int]] = {}
        self._written: set[Key] = set()

    def begin(self, position: int) -> WrongVersion | InUse | None:
        """Let a task start to use its cells; or say why it must not, and change nothing."""
        task = self._tasks[position]
        for access in task.accesses:
            users = self._users.get(access.key)
            if users and (access.makes is not None or access.key in self._written):
                return InUse(task.id, access, tuple(self._tasks[i].id for i in users))
            found = self._version.get(access.key, INITIAL)
            if access.sees is not None and access.sees != found:
                return WrongVersion(task.id, access, found)
        for access in task.accesses:
            self._users.setdefault(access.key, []).append(position)
            if access.makes is not None:
                self._written.add(access.key)
        return None

    def end(self, position: int, *, failed: bool) -> tuple[tuple[CellVersion, ...], tuple[CellVersion, ...]]:
        """Take note that a task is done; what it saw, and what it made: nothing if it failed."""
        seen, made = [], []
        for access in self._tasks[position].accesses:
            cell, copy = key = access.key
            self._users[key].remove(position)
            if access.sees is not None:
                seen.append(CellVersion(cell, copy, self._version.get(key, INITIAL)))
            if access.makes is not None:
                self._written.discard(key)
                if not failed:
                    self._version[key] = access.makes
                    made.append(CellVersion(cell, copy, access.makes))
        return tuple(seen), tuple(made)
