"""Runs iterations under a schedule: the same workers, called in the order of its task graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlprof.overlap.structures import is_tensor
from rlprof.taskgraph import RunRecord, Task, TaskFailedError, TaskGraph, ThreadBackend, Threads, run
from rlprof.workloads.embodied.contracts import (
    Array,
    GlobalStep,
    Observation,
    PolicyOutput,
    Samples,
    StepResult,
    Trajectory,
)
from rlprof.workloads.embodied.errors import need
from rlprof.workloads.embodied.schedule_graph import Shape, iteration_graph
from rlprof.workloads.embodied.schedules import StageSchedule
from rlprof.workloads.embodied.trainer import Trainer


def shape_of(trainer: Trainer) -> Shape:
    """Sizes of an iteration of a trainer."""
    return Shape(
        epochs=trainer.epochs,
        chunks=trainer.chunks,
        update_epochs=trainer.update_epochs,
        parts=trainer.parts,
        minibatches=trainer.minibatches,
        values=trainer.actor.algorithm.uses_value,
    )


class ScheduledTrainer:
    """Iterations of a trainer under a synchronous schedule.

    What is trained is the same as in `Trainer.iteration`: bit for bit if the policy is batch-invariant.

    Parameters
    ----------
    trainer : Trainer
        Its workers; nothing else may use them meanwhile.
    schedule : StageSchedule
        A synchronous one.
    device, rollout_device : str
        Where the weights of actor and rollout worker come back to after offloading; the latter by default
        where the former does.

    Attributes
    ----------
    graph : TaskGraph
        Of each iteration; without shares of GPUs, which are the model's: tasks that run at the same time
        share a GPU as the device has it.
    record : RunRecord or None
        Of the last one.
    """

    def __init__(
        self,
        trainer: Trainer,
        schedule: StageSchedule,
        device: str = "cpu",
        rollout_device: str | None = None,
    ) -> None:
        self.trainer, self.schedule = trainer, schedule
        self.graph: TaskGraph = unlimited(iteration_graph(schedule, shape_of(trainer)))
        self.record: RunRecord | None = None
        self._stages = np.array_split(np.arange(trainer.env.spec.envs), schedule.stages)
        self._threads = Threads()
        self._step = GlobalStep(0)
        # of the iteration that runs; tasks find each other's results in it, edges see to their order
        self._results: dict[str, Any] = {}
        # first observations of an iteration that was begun early: step and stage
        self._begun: dict[tuple[int, int], Observation | Exception] = {}
        self._last = False
        answers = rollout_device or device
        self._calls = {
            "sync_weights": self._sync,
            "reset": self._reset,
            "predict": self._predict,
            "env": self._env,
            "values": self._values,
            "adv": self._adv,
            "train": self._train,
            "prefetch": self._prefetch,
            "reload rollout": self._move(trainer.rollout.reload, answers),
            "offload rollout": self._move(trainer.rollout.offload, "cpu"),
            "reload actor": self._move(trainer.actor.reload, device),
            "offload actor": self._move(trainer.actor.offload, "cpu"),
            "reload-weights actor": self._move(trainer.actor.reload_weights, device),
            "offload-weights actor": self._move(trainer.actor.offload_weights, "cpu"),
            "reload env": self._nothing,
            "offload env": self._nothing,
        }

    def close(self) -> None:
        """End the threads that workers had; a further iteration starts others."""
        self._threads.close()

    def iteration(self, step: GlobalStep, *, last: bool = False) -> dict[str, Any]:
        """One iteration of training; its trajectories and what training logs.

        Parameters
        ----------
        step : GlobalStep
            Its number.
        last : bool
            No iteration follows: its first episodes are not begun.

        Raises
        ------
        Exception
            What a worker raised; what it raised while it began episodes for this iteration, ahead, too.
        """
        self._step, self._results, self._last = step, {}, last
        # of another iteration, which somebody else has done
        self._begun = {key: seen for key, seen in self._begun.items() if key[0] == step.index}
        try:
            done = run(self.graph, ThreadBackend(self._calls, threads=self._threads))
        except BaseException as error:
            self._begun, self._results = {}, {}  # where the environments are now is not known
            if not isinstance(error, TaskFailedError) or error.__cause__ is None:
                raise
            raise error.__cause__ from None
        self.record = done.record
        shape = shape_of(self.trainer)
        trajectories = [self._trajectory(e) for e in range(shape.epochs)]
        logs = [self._results[t.id] for t in self.graph.tasks if t.payload == "train"]
        self._results = {}
        return {"trajectories": trajectories, "training": logs}

    # tasks -------------------------------------------------------------------------------------------------

    def _where(self, task: Task) -> dict[str, Any]:
        return dict(task.provenance)

    def _rows(self, stage: int) -> Samples:
        return self._stages[stage] if len(self._stages) > 1 else None

    def _sync(self, _task: Task, _inputs: Mapping[str, Any]) -> None:
        self.trainer.rollout.sync_model_from_actor(self.trainer.actor)

    def _move(self, method: Any, device: str) -> Any:
        def call(_task: Task, _inputs: Mapping[str, Any]) -> None:
            method(device)

        return call

    def _nothing(self, _task: Task, _inputs: Mapping[str, Any]) -> None:
        """A simulator on the CPU has nothing to move."""

    def _reset(self, task: Task, _inputs: Mapping[str, Any]) -> None:
        epoch, stage = (self._where(task)[k] for k in ("epoch", "stage"))
        begun = self._begun.pop((self._step.index, stage), None) if epoch == 0 else None
        if isinstance(begun, Exception):
            raise begun
        if begun is None:
            begun = self.trainer.env.bootstrap_step(self._step, epoch, self._rows(stage))
        self._results[task.id] = begun

    def _prefetch(self, task: Task, _inputs: Mapping[str, Any]) -> None:
        if self._last:
            return
        stage = self._where(task)["stage"]
        following = GlobalStep(self._step.index + 1)
        seen: Observation | Exception
        try:
            seen = self.trainer.env.bootstrap_step(following, 0, self._rows(stage))
        except Exception as error:  # this iteration needs none of it: the one that does is told
            seen = error
        self._begun[following.index, stage] = seen

    def _seen(self, epoch: int, chunk: int, stage: int) -> Observation:
        if chunk == 0:
            first: Observation = self._results[f"reset/{epoch}.{stage}"]
            return first
        result: StepResult = self._results[f"env/{epoch}.{chunk - 1}.{stage}"]
        return result.observation

    def _predict(self, task: Task, _inputs: Mapping[str, Any]) -> None:
        e, c, s = (self._where(task)[k] for k in ("epoch", "chunk", "stage"))
        seen = self._seen(e, c, s)
        self._results[task.id] = self.trainer.rollout.predict(seen, self._step, e, c, self._rows(s))

    def _env(self, task: Task, _inputs: Mapping[str, Any]) -> None:
        e, c, s = (self._where(task)[k] for k in ("epoch", "chunk", "stage"))
        answer: PolicyOutput = self._results[f"predict/{e}.{c}.{s}"]
        self._results[task.id] = self.trainer.env.env_interact_step(answer.actions, self._rows(s))

    def _values(self, task: Task, _inputs: Mapping[str, Any]) -> None:
        e, s = (self._where(task)[k] for k in ("epoch", "stage"))
        chunks = self.trainer.chunks
        seen = self._seen(e, chunks, s)
        rollout = self.trainer.rollout
        self._results[task.id] = rollout.predict_values(seen, self._step, e, chunks, self._rows(s))

    def _adv(self, task: Task, _inputs: Mapping[str, Any]) -> None:
        part, trainer = self._where(task)["part"], self.trainer
        epochs = range(trainer.epochs) if trainer.parts == 1 else [part]
        self._results[task.id] = trainer.actor.compute_adv([self._trajectory(e) for e in epochs])

    def _train(self, task: Task, _inputs: Mapping[str, Any]) -> None:
        u, p, m = (self._where(task)[k] for k in ("update_epoch", "part", "minibatch"))
        batch, actor = self._results[f"adv/{p}"], self.trainer.actor
        order: Array = actor.shuffle(batch, self._step, p, u)
        self._results[task.id] = actor.training_step(batch, order, m)

    # the whole batch again ---------------------------------------------------------------------------------

    def _trajectory(self, epoch: int) -> Trajectory:
        stages, chunks = range(self.schedule.stages), range(self.trainer.chunks)
        results = [_join([self._results[f"env/{epoch}.{c}.{s}"] for s in stages]) for c in chunks]
        values = self.trainer.actor.algorithm.uses_value
        return Trajectory(
            observations=[_join([self._seen(epoch, c, s) for s in stages]) for c in chunks],
            outputs=[_join([self._results[f"predict/{epoch}.{c}.{s}"] for s in stages]) for c in chunks],
            rewards=[r.rewards for r in results],
            dones=[r.dones for r in results],
            success=[r.success for r in results],
            last_value=_join([self._results[f"values/{epoch}.{s}"] for s in stages]) if values else None,
        )


def _join(parts: Sequence[Any]) -> Any:
    """Parts of stages one after another, in the order of environments."""
    first = parts[0]
    if len(parts) == 1 or first is None:
        return first
    if isinstance(first, tuple):
        return type(first)(*(_join([p[k] for p in parts]) for k in range(len(first))))
    if is_tensor(first):
        return need("torch", why="a policy").cat(parts)
    return np.concatenate(parts)


def unlimited(graph: TaskGraph) -> TaskGraph:
    """Return a graph whose tasks hold nothing: dependencies and workers alone say what waits for what."""
    return replace(graph, tasks=tuple(replace(t, resources=()) for t in graph.tasks), capacities={})


def measured(graph: TaskGraph, record: RunRecord) -> TaskGraph:
    """Return a graph with the durations that a run of it had."""
    seconds = {t.task: (t.end_ns - t.start_ns) / 1e9 for t in record.tasks}
    return replace(graph, tasks=tuple(replace(t, duration_s=seconds[t.id]) for t in graph.tasks))
