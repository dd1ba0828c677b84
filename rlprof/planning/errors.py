"""What can be wrong with a planning problem or its answer; each error names the culprit."""

from __future__ import annotations

from rlprof.errors import RlprofError


class PlanningError(RlprofError):
    """A planning problem that cannot be solved as it was given."""


class PipelineError(PlanningError):
    """A pipeline graph that is not well-formed; the message names the edge, container or invocation."""


class UnknownShapeError(PlanningError):
    """A model shape that is not known by this name, or whose dimensions cannot be."""


class WorkloadError(PlanningError):
    """A workload with a count that cannot be, or response-length quantiles that do not increase."""


class HardwareError(PlanningError):
    """A hardware file that is broken, or lacks a constant that is needed."""


class TopologyError(PlanningError):
    """A cluster that cannot be: no GPUs in it, or more per node than the hardware has."""


class PlanError(PlanningError):
    """A plan that does not fit its pipeline or cluster; the message names the invocation."""


class PlanFormatError(PlanningError):
    """A document that is no plan, one of a later version, or one that was changed after it was written."""


class InfeasibleError(PlanningError):
    """No plan fits into memory.

    Parameters
    ----------
    gpu : str
        The GPU that lacks most in the best plan found.
    lacking_bytes : int
        How much it lacks.
    """

    def __init__(self, what: str, *, gpu: str, lacking_bytes: int, hint: str | None = None) -> None:
        self.gpu, self.lacking_bytes = gpu, lacking_bytes
        super().__init__(what, hint=hint)
