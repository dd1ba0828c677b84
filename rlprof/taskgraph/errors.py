"""What can be wrong with a task graph or its run; each error names the culprit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlprof.errors import RlprofError

if TYPE_CHECKING:
    from rlprof.taskgraph.record import RunRecord


class GraphError(RlprofError):
    """A task graph that cannot be used."""


class GraphTypeError(GraphError, TypeError):
    """A part of a graph that is not of the type that it has to be."""


class GraphFormatError(GraphError):
    """A document that is no task graph, or one of a later version."""


class DuplicateError(GraphError):
    """Two tasks with one id, or two equal edges."""


class UnknownTaskError(GraphError):
    """An edge or an argument names a task that is not in the graph."""


class ResourceError(GraphError):
    """A task needs more of a resource than there is."""


class AccessError(GraphError):
    """Accesses to state that no order of tasks can satisfy."""


class UnknownDurationError(GraphError):
    """A question about time, asked of a graph whose tasks have no duration yet."""


class CycleError(GraphError):
    """Tasks that wait for each other.

    Parameters
    ----------
    path : tuple of str
        Ids of the tasks, each before the one it precedes; the last precedes the first.
    """

    def __init__(self, path: tuple[str, ...]) -> None:
        self.path = path
        shown = path if len(path) <= 8 else (*path[:6], f"… {len(path) - 7} more …", path[-1])
        super().__init__(
            f"tasks wait for each other: {' -> '.join((*shown, path[0]))}",
            hint="remove one of these edges",
        )


class TransferError(RlprofError):
    """A value that cannot be brought from one process to another."""


class WorkerStartError(RlprofError):
    """A worker that could not be made: its factory raised, or its process ended."""


class WorkerDownError(RlprofError):
    """A worker that ended or was ended, and its state with it; the error of the task that ran there."""


class EndedError(RlprofError):
    """A task that was ended, or not begun, because its run was to stop.

    Parameters
    ----------
    begun : bool
        It had begun.
    """

    def __init__(self, what: str, *, begun: bool) -> None:
        self.begun = begun
        super().__init__(what)


class RemoteError(RlprofError):
    """An exception of a worker that cannot be brought here as it is: its text, the traceback as a note."""


class RestoreError(RlprofError):
    """State that a trial used could not be brought back."""


class RunError(RlprofError):
    """A run that did not end well.

    Parameters
    ----------
    record : RunRecord
        What had run until then.
    """

    def __init__(self, what: str, record: RunRecord, *, hint: str | None = None) -> None:
        self.record = record
        super().__init__(what, hint=hint)


class TaskFailedError(RunError):
    """A task raised; nothing was started after it. The exception itself is ``__cause__``.

    Parameters
    ----------
    task, worker : str
        Which task failed, and where.
    """

    _what = "task {task} failed on {worker}: {kind}: {error}"
    _hint: str | None = None

    def __init__(self, task: str, worker: str, error: BaseException, record: RunRecord) -> None:
        self.task, self.worker = task, worker
        what = self._what.format(task=task, worker=worker, kind=type(error).__name__, error=error)
        super().__init__(what, record, hint=self._hint)


class WorkerLostError(TaskFailedError):
    """The worker of a task ended in the middle of it, or did not answer in time and was ended."""

    _what = "task {task} lost its worker {worker}: {error}"
    _hint = "what the worker printed may say why; the kernel sends signal 9 when memory runs out"


class VersionMismatchError(RunError):
    """A task was about to see another version of a state cell than the graph says: an edge is missing.

    Parameters
    ----------
    task, cell : str
        Which task, and the cell.
    copy : int
        Storage copy of the cell.
    expected, found : str
        Version that the task needs, and the one that was there; "" is the initial one.
    """

    def __init__(self, task: str, cell: str, copy: int, expected: str, found: str, record: RunRecord) -> None:
        self.task, self.cell, self.copy = task, cell, copy
        self.expected, self.found = expected, found
        super().__init__(
            f"task {task} needs {version_named(expected)} of {cell!r}, copy {copy},"
            f" and found {version_named(found)}",
            record,
            hint="an edge is missing in the graph: between the task and who wrote the one or the other",
        )


class CellInUseError(RunError):
    """A task was about to write a state cell that others used, or to use one that another wrote.

    Parameters
    ----------
    task, cell : str
        Which task, and the cell.
    copy : int
        Storage copy of the cell.
    users : tuple of str
        Tasks that used it at that time.
    """

    def __init__(self, task: str, cell: str, copy: int, users: tuple[str, ...], record: RunRecord) -> None:
        self.task, self.cell, self.copy, self.users = task, cell, copy, users
        super().__init__(
            f"task {task} was to start while {', '.join(users)} used {cell!r}, copy {copy}",
            record,
            hint="an edge between them is missing in the graph",
        )


def version_named(version: str) -> str:
    """Say which version of a cell, for people."""
    return f"version {version!r}" if version else "the initial version"


def storage_named(cell: str, copy: int) -> str:
    """Say which storage copy of a cell, for people."""
    return f"{cell!r}, copy {copy}" if copy else repr(cell)


class RunCancelledError(RunError):
    """A run was cancelled; tasks that had started were waited for."""
