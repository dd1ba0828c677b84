"""The one executable graph: tasks, resources, list schedule, slack, dispatch, verification of a run.

>>> from rlprof.taskgraph import Edge, Task, TaskGraph, Use, schedule
>>> graph = TaskGraph(
...     (Task("policy", duration_s=2.0, resources=(Use("gpu"),)), Task("simulator", duration_s=1.0)),
...     (Edge("policy", "simulator"),),
... )
>>> schedule(graph).makespan_s
3.0
"""

from rlprof.taskgraph.backend import Backend, Call, Pending, RemoteOutput, SerialBackend, ThreadBackend
from rlprof.taskgraph.dispatch import Cancellation, RunResult, run
from rlprof.taskgraph.errors import (
    AccessError,
    CellInUseError,
    CycleError,
    DuplicateError,
    GraphError,
    GraphFormatError,
    GraphTypeError,
    RemoteError,
    ResourceError,
    RestoreError,
    RunCancelledError,
    RunError,
    TaskFailedError,
    TransferError,
    UnknownDurationError,
    UnknownTaskError,
    VersionMismatchError,
    WorkerDownError,
    WorkerLostError,
    WorkerStartError,
)
from rlprof.taskgraph.graph import TaskGraph
from rlprof.taskgraph.record import RunRecord, TaskRun
from rlprof.taskgraph.schedule import CriticalPath, Schedule, critical_path, schedule, upward_rank, work_s
from rlprof.taskgraph.slack import Branch, Slack, branches, slack
from rlprof.taskgraph.state import CellVersion, state_edges
from rlprof.taskgraph.task import CellAccess, Edge, EdgeKind, Task, Use
from rlprof.taskgraph.threads import Threads
from rlprof.taskgraph.trial import Restorable, restored
from rlprof.taskgraph.verify import verify
from rlprof.taskgraph.violations import Violation

__all__ = [
    "AccessError",
    "Backend",
    "Branch",
    "Call",
    "Cancellation",
    "CellAccess",
    "CellInUseError",
    "CellVersion",
    "CriticalPath",
    "CycleError",
    "DuplicateError",
    "Edge",
    "EdgeKind",
    "GraphError",
    "GraphFormatError",
    "GraphTypeError",
    "Pending",
    "RemoteError",
    "RemoteOutput",
    "ResourceError",
    "Restorable",
    "RestoreError",
    "RunCancelledError",
    "RunError",
    "RunRecord",
    "RunResult",
    "Schedule",
    "SerialBackend",
    "Slack",
    "Task",
    "TaskFailedError",
    "TaskGraph",
    "TaskRun",
    "ThreadBackend",
    "Threads",
    "TransferError",
    "UnknownDurationError",
    "UnknownTaskError",
    "Use",
    "VersionMismatchError",
    "Violation",
    "WorkerDownError",
    "WorkerLostError",
    "WorkerStartError",
    "branches",
    "critical_path",
    "restored",
    "run",
    "schedule",
    "slack",
    "state_edges",
    "upward_rank",
    "verify",
    "work_s",
]
