"""The one executable graph: tasks, resources, list schedule, slack, dispatch, verification of a run.

>>> from rlprof.taskgraph import Edge, Task, TaskGraph, Use, schedule
>>> graph = TaskGraph(
...     (Task("policy", duration_s=2.0, resources=(Use("gpu"),)), Task("simulator", duration_s=1.0)),
...     (Edge("policy", "simulator"),),
... )
>>> schedule(graph).makespan_s
3.0
"""

from rlprof.taskgraph.backend import Backend, Pending, SerialBackend, ThreadBackend
from rlprof.taskgraph.dispatch import Cancellation, RunResult, run
from rlprof.taskgraph.errors import (
    CycleError,
    DuplicateError,
    GraphError,
    GraphFormatError,
    ResourceError,
    RunCancelledError,
    RunError,
    TaskFailedError,
    UnknownDurationError,
    UnknownTaskError,
)
from rlprof.taskgraph.graph import Edge, EdgeKind, Task, TaskGraph, Use
from rlprof.taskgraph.record import RunRecord, TaskRun
from rlprof.taskgraph.schedule import CriticalPath, Schedule, critical_path, schedule, upward_rank, work_s
from rlprof.taskgraph.slack import Branch, Slack, branches, slack
from rlprof.taskgraph.verify import Violation, verify

__all__ = [
    "Backend",
    "Branch",
    "Cancellation",
    "CriticalPath",
    "CycleError",
    "DuplicateError",
    "Edge",
    "EdgeKind",
    "GraphError",
    "GraphFormatError",
    "Pending",
    "ResourceError",
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
    "UnknownDurationError",
    "UnknownTaskError",
    "Use",
    "Violation",
    "branches",
    "critical_path",
    "run",
    "schedule",
    "slack",
    "upward_rank",
    "verify",
    "work_s",
]
