"""How a run drives its trainer under each schedule, and how long the phases of an iteration took."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rlprof.workloads.embodied.activity import Span
from rlprof.workloads.embodied.asynchronous import AsynchronousTrainer
from rlprof.workloads.embodied.config import Config
from rlprof.workloads.embodied.contracts import GlobalStep, Simulator
from rlprof.workloads.embodied.nodes import Wrapped, wrap_trainer
from rlprof.workloads.embodied.schedule_run import ScheduledTrainer
from rlprof.workloads.embodied.schedules import schedule_named
from rlprof.workloads.embodied.sharing import sharing
from rlprof.workloads.embodied.trainer import Trainer

if TYPE_CHECKING:
    from rlprof.overlap.optimize.graph_file import GraphFile
    from rlprof.overlap.program import Program

#: Phases of an iteration whose time is measured, and the tasks that belong to them.
PHASES = {
    "sync_weights": ("sync_weights",),
    "generate_rollouts": ("reset", "predict", "env", "values"),
    "cal_adv_and_returns": ("adv",),
    "actor_training": ("train",),
}


class Iteration(NamedTuple):
    """What an iteration gave.

    Parameters
    ----------
    result : dict
        Trajectories and what training logs.
    phases : dict of str to Span
        Each phase: from its first start to its last end.
    further : dict
        What only this schedule measures.
    """

    result: dict[str, Any]
    phases: dict[str, Span]
    further: dict[str, Any]


class Driver(Protocol):
    """Drives a trainer."""

    #: What really shares what, for people.
    placement: str

    def iteration(self, step: GlobalStep) -> Iteration:
        """One iteration."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """Nothing runs in the block."""
        ...

    def close(self) -> None:
        """Let go of the trainer."""
        ...


class PhaseHooks:
    """Sees when the phases of a native iteration begin and end.

    Parameters
    ----------
    program : Program
        Of a trainer that is wrapped.
    region : str
        Path of its iteration.
    """

    def __init__(self, program: Program, region: str = "iteration") -> None:
        self._started: dict[int, int] = {}
        self._phases: dict[str, Span] = {}
        self._remove = [
            program.add_hook(node=f"{region}/{name}", before=self._before, after=self._after(name))
            for name in PHASES
        ]

    def _before(self, context: Any, _args: Any, _kwargs: Any) -> None:
        self._started[id(context)] = time.monotonic_ns()

    def _after(self, name: str) -> Callable[[Any, Any, BaseException | None], None]:
        def after(context: Any, _result: Any, _error: BaseException | None) -> None:
            started = self._started.pop(id(context))
            began = self._phases[name].start_ns if name in self._phases else started
            self._phases[name] = Span(began, time.monotonic_ns())

        return after

    def take(self) -> dict[str, Span]:
        """Phases since the last call: each from its first start to its last end."""
        found, self._phases = self._phases, {}
        return found

    def close(self) -> None:
        """See no more."""
        for remove in self._remove:
            remove()


class LoopDriver:
    """The training loop itself, as nodes: colocated."""

    def __init__(self, trainer: Trainer, placement: str, spares: Sequence[Simulator] = ()) -> None:
        self.trainer, self.placement = trainer, placement
        self.wrapped: Wrapped = wrap_trainer(trainer, spares)
        self._hooks = PhaseHooks(self.wrapped.program)

    def iteration(self, step: GlobalStep) -> Iteration:
        """One iteration."""
        self._hooks.take()
        result = self.trainer.iteration(step)
        return Iteration(result, self._hooks.take(), {})

    def paused(self) -> AbstractContextManager[None]:
        """Nothing runs between iterations."""
        return nullcontext()

    def close(self) -> None:
        """Put the trainer back."""
        self.wrapped.unwrap()


class GraphDriver:
    """Iterations as task graphs: the other synchronous schedules."""

    def __init__(
        self, trainer: Trainer, config: Config, placement: str, iterations: int | None = None
    ) -> None:
        self.placement, self._iterations = placement, iterations
        self.scheduled = ScheduledTrainer(
            trainer, config.stage_schedule, config.device, config.rollout_device
        )

    def iteration(self, step: GlobalStep) -> Iteration:
        """One iteration."""
        from rlprof.capture.annotate import annotate

        with annotate("iteration"):
            result = self.scheduled.iteration(step, last=step.index + 1 == self._iterations)
        record = self.scheduled.record
        assert record is not None
        kind = {t.id: t.payload for t in self.scheduled.graph.tasks}
        phases = {}
        for name, payloads in PHASES.items():
            runs = [t for t in record.tasks if kind[t.task] in payloads]
            phases[name] = Span(min(t.start_ns for t in runs), max(t.end_ns for t in runs))
        every = {p for payloads in PHASES.values() for p in payloads}
        moves = sum((t.end_ns - t.start_ns) / 1e9 for t in record.tasks if kind[t.task] not in every)
        return Iteration(result, phases, {"moves_s": moves})

    def paused(self) -> AbstractContextManager[None]:
        """Nothing runs between iterations."""
        return nullcontext()

    def close(self) -> None:
        """End the threads of the workers."""
        self.scheduled.close()


class AsynchronousDriver:
    """Rollouts that never stop."""

    def __init__(self, trainer: Trainer, config: Config, first: int, placement: str) -> None:
        self.placement = placement
        schedule = schedule_named(config.schedule)
        # an epoch may take as long as all its calls
        limit_s = config.timeout_s * (2 * config.chunks + 2) * config.rollout_epochs
        self.trainer = AsynchronousTrainer(
            trainer, staleness=schedule.staleness, timeout_s=limit_s, first=first
        )

    def iteration(self, step: GlobalStep) -> Iteration:
        """One iteration."""
        result = self.trainer.iteration(step)
        phases, lag = result.pop("phases"), result.pop("staleness")
        further = {"staleness_max": max(lag), "dropped_epochs": result.pop("dropped_epochs")}
        return Iteration(result, phases, further)

    def paused(self) -> AbstractContextManager[None]:
        """Between two chunks."""
        return self.trainer.paused()

    def close(self) -> None:
        """Stop the rollout."""
        self.trainer.close()


def make_driver(
    trainer: Trainer,
    config: Config,
    first: int = 0,
    *,
    graph: GraphFile | None = None,
    iterations: int | None = None,
) -> Driver:
    """Make what drives a trainer under the configuration's schedule.

    Parameters
    ----------
    trainer : Trainer
        What is driven.
    config : Config
        Says the schedule.
    first : int
        Number of the first iteration.
    graph : GraphFile, optional
        Runs in place of the training loop.
    iterations : int, optional
        How many there are in the end: for one after them nothing is begun. None: that is not known.
    """
    if graph is not None:
        from rlprof.workloads.embodied.graph_driver import GraphFileDriver

        return GraphFileDriver(trainer, config, graph, iterations)
    placement = sharing(config).label
    if config.schedule == "async":
        return AsynchronousDriver(trainer, config, first, placement)
    switched = config.train_pipe or config.env_prefetch or config.rollout_process
    if config.schedule == "colocated" and not switched:
        return LoopDriver(trainer, placement)
    return GraphDriver(trainer, config, placement, iterations)
