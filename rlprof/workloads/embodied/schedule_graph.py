"""An iteration under a schedule as a task graph, with RLinf's stage semantics.

The environment worker serves stages in turn within each chunk, and so does the rollout worker. Within an
epoch, a stage's next answer needs its last observation. A new epoch begins when the last values of the one
before are there. Weight synchronisation, reloading and offloading are tasks of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlprof.taskgraph import CellAccess, Edge, EdgeKind, Task, TaskGraph, Use
from rlprof.workloads.embodied.errors import ConfigurationError
from rlprof.workloads.embodied.schedules import StageSchedule

#: Units of a GPU's capacity: per cent of its SMs.
CAPACITY = 100
ENV, ROLLOUT, ACTOR = "env", "rollout", "actor"


@dataclass(frozen=True)
class Shape:
    """Sizes of an iteration.

    Parameters
    ----------
    epochs, chunks, update_epochs : int
        Rollout epochs, chunks of an epoch, passes over the samples.
    parts : int
        Parts that are shuffled and normalised by themselves: 1, or one for each epoch.
    minibatches : int
        Optimiser steps in one pass over one part.
    values : bool
        The algorithm needs the value after the last chunk.
    """

    epochs: int
    chunks: int
    update_epochs: int = 1
    parts: int = 1
    minibatches: int = 1
    values: bool = True


@dataclass(frozen=True)
class Costs:
    """Durations in seconds of each kind of task, of one stage where it has stages; None: not known.

    Parameters
    ----------
    sync_s, reset_s, predict_s, env_s, values_s, adv_s, train_s : float or None
        Weight synchronisation; of one stage: reset, answer, chunk, last values; advantages of one part; one
        optimiser step.
    move_s : mapping of str to float
        Reloading and offloading of ``"env"``, ``"rollout"`` and ``"actor"``.
    env_sm, predict_sm, train_sm : int
        Per cent of a GPU's SMs that a task holds.
    """

    sync_s: float | None = None
    reset_s: float | None = None
    predict_s: float | None = None
    env_s: float | None = None
    values_s: float | None = None
    adv_s: float | None = None
    train_s: float | None = None
    move_s: Mapping[str, float] = field(default_factory=dict)
    env_sm: int = CAPACITY
    predict_sm: int = CAPACITY
    train_sm: int = CAPACITY


def iteration_graph(schedule: StageSchedule, shape: Shape, costs: Costs | None = None) -> TaskGraph:
    """Return one iteration under a synchronous schedule.

    Parameters
    ----------
    schedule : StageSchedule
        Which.
    shape : Shape
        Sizes.
    costs : Costs, optional
        Durations; without them the graph runs, and cannot be scheduled.

    Returns
    -------
    TaskGraph
        Tasks are named ``predict/E.C.S`` and so on (epoch, chunk, stage); payloads are what comes before the
        slash. With a prefetch of episodes the first ``reset`` takes no time: the iteration before did it.
        Each task is of the worker env, rollout or actor, and holds per cent of a GPU's SMs. State is in
        accesses: ENV of a stage, W (rollout weights), THETA (trained weights).

    Raises
    ------
    ConfigurationError
        If the schedule is asynchronous, asks to train on parts that there are not, or to begin episodes in a
        simulator that is offloaded.
    """
    if schedule.env_prefetch and schedule.offload:
        raise ConfigurationError(
            f"the schedule {schedule.name} offloads the simulator while training runs",
            hint="leave the prefetch of episodes away, or use colocated or colocated-pipe",
        )
    if schedule.asynchronous:
        raise ConfigurationError(
            f"the schedule {schedule.name} is asynchronous: it has no graph of one iteration",
            hint="use asynchronous_graph",
        )
    if schedule.train_pipe and shape.parts != shape.epochs:
        raise ConfigurationError(
            "training on an epoch before the next one is there needs minibatches of single epochs",
            hint="set the minibatch scope to epoch",
        )
    return _Iteration(schedule, shape, costs or Costs()).graph()


class _Iteration:
    """Puts the graph together, in program order."""

    def __init__(self, schedule: StageSchedule, shape: Shape, costs: Costs) -> None:
        self.schedule, self.shape, self.costs = schedule, shape, costs
        self.tasks: list[Task] = []
        self.edges: dict[tuple[str, str], Edge] = {}
        together = schedule.placement == "colocated"
        self.gpus: dict[str, tuple[str, ...]] = dict.fromkeys((ENV, ROLLOUT, ACTOR), ("gpu",))
        if not together:
            self.gpus = {ENV: ("gpu env",), ROLLOUT: ("gpu rollout",), ACTOR: ("gpu env", "gpu rollout")}

    def graph(self) -> TaskGraph:
        after = self._begin()
        ends, finished = self._rollouts(after)
        self._train(ends, finished)
        capacities = {gpu: CAPACITY for names in self.gpus.values() for gpu in names}
        return TaskGraph(tuple(self.tasks), tuple(self.edges.values()), capacities)

    # tasks -------------------------------------------------------------------------------------------------

    def _add(
        self,
        task: str,
        worker: str,
        duration_s: float | None,
        *,
        sm: int = CAPACITY,
        gpus: tuple[str, ...] | None = None,
        accesses: tuple[CellAccess, ...] = (),
        after: Mapping[str, EdgeKind] | None = None,
        **where: int,
    ) -> str:
        held = self.gpus[worker] if gpus is None else gpus
        kind = task.split("/", maxsplit=1)[0]
        self.tasks.append(
            Task(
                id=task,
                name=kind,
                duration_s=duration_s,
                resources=tuple(Use(gpu, sm) for gpu in held) if sm else (),
                payload=kind,
                program_order=len(self.tasks),
                provenance=tuple(where.items()),
                accesses=accesses,
                worker=worker,
            )
        )
        for source, kind in (after or {}).items():
            self._edge(source, task, kind)
        return task

    def _edge(self, source: str, target: str, kind: EdgeKind) -> None:
        """One edge between two tasks: data before order."""
        known = self.edges.get((source, target))
        if known is None or (known.kind == "order" and kind != "order"):
            self.edges[source, target] = Edge(source, target, kind)

    def _move(self, what: str, worker: str, after: Mapping[str, EdgeKind] | None = None) -> str:
        """A reload or an offload: a copy, which holds no SMs."""
        return self._add(f"{what} {worker}", worker, self._move_s(worker), sm=0, after=after)

    def _move_s(self, worker: str) -> float | None:
        known = self.costs.sync_s is not None
        return self.costs.move_s.get(worker, 0.0 if known else None)

    # an iteration ------------------------------------------------------------------------------------------

    def _begin(self) -> str:
        """Weights go to the rollout worker; what was offloaded comes back."""
        offload, ready = self.schedule.offload, None
        if offload:
            ready = self._move("reload-weights", ACTOR)
        every = tuple(dict.fromkeys(g for w in (ROLLOUT, ACTOR) for g in self.gpus[w]))
        sync = self._add(
            "sync_weights",
            ROLLOUT,
            self.costs.sync_s,
            gpus=every,
            accesses=(CellAccess("THETA", ""), CellAccess("W", None, "sync_weights")),
            after=None if ready is None else {ready: "order"},
        )
        if offload:
            self._move("offload-weights", ACTOR, {sync: "order"})
            self._move("reload", ROLLOUT, {sync: "order"})
            self._move("reload", ENV, {sync: "order"})
        return sync

    def _rollouts(self, sync: str) -> tuple[list[list[str]], list[str]]:
        """All epochs; for each the tasks that finish its data, and the last tasks of the workers."""
        shape, costs, stages = self.shape, self.costs, range(self.schedule.stages)
        env_before = "reload env" if self.schedule.offload else sync
        rollout_before = "reload rollout" if self.schedule.offload else sync
        w = CellAccess("W", "sync_weights")
        version = dict.fromkeys(stages, "")
        begun = self.schedule.env_prefetch
        epoch_ends: list[list[str]] = []
        begins: dict[str, EdgeKind] = {}
        for e in range(shape.epochs):
            seen: dict[int, str] = {}
            for s in stages:
                cell = CellAccess(f"ENV.{s}", None, f"reset/{e}.{s}")
                task = self._add(
                    f"reset/{e}.{s}",
                    ENV,
                    0.0 if costs.reset_s is not None and begun and not e else costs.reset_s,
                    sm=costs.env_sm,
                    accesses=(cell,),
                    after={env_before: "order", **begins},
                    epoch=e,
                    stage=s,
                )
                env_before = seen[s] = version[s] = task
            ends = []
            for c in range(shape.chunks):
                for s in stages:
                    rollout_before = self._add(
                        f"predict/{e}.{c}.{s}",
                        ROLLOUT,
                        costs.predict_s,
                        sm=costs.predict_sm,
                        accesses=(w,),
                        after={rollout_before: "order", seen[s]: "data"},
                        epoch=e,
                        chunk=c,
                        stage=s,
                    )
                    ends.append(rollout_before)
                for s in stages:
                    task = f"env/{e}.{c}.{s}"
                    env_before = seen[s] = self._add(
                        task,
                        ENV,
                        costs.env_s,
                        sm=costs.env_sm,
                        accesses=(CellAccess(f"ENV.{s}", version[s], task),),
                        after={env_before: "order", f"predict/{e}.{c}.{s}": "data"},
                        epoch=e,
                        chunk=c,
                        stage=s,
                    )
                    version[s] = task
                    ends.append(task)
            begins = {}
            for s in stages if shape.values else ():
                rollout_before = self._add(
                    f"values/{e}.{s}",
                    ROLLOUT,
                    costs.values_s if costs.values_s is not None else costs.predict_s,
                    sm=costs.predict_sm,
                    accesses=(w,),
                    after={rollout_before: "order", seen[s]: "data"},
                    epoch=e,
                    stage=s,
                )
                ends.append(rollout_before)
                begins[rollout_before] = "order"
            epoch_ends.append(ends)
        finished = [env_before, rollout_before]
        for s in stages if begun else ():
            task = f"prefetch/{s}"
            env_before = self._add(
                task,
                ENV,
                costs.reset_s,
                sm=costs.env_sm,
                accesses=(CellAccess(f"ENV.{s}", None, task),),
                after=dict.fromkeys((*finished, env_before), "order"),
                stage=s,
            )
        return epoch_ends, finished

    def _train(self, ends: list[list[str]], finished: list[str]) -> None:
        shape, costs, pipe = self.shape, self.costs, self.schedule.train_pipe
        last: list[str] = list(finished)
        if self.schedule.offload:
            moves = [self._move("offload", w, dict.fromkeys(finished, "order")) for w in (ENV, ROLLOUT)]
            last = [self._move("reload", ACTOR, {**dict.fromkeys(moves, "order")})]
        adv = []
        for p in range(shape.parts):
            needs = ends[p] if shape.parts > 1 else [t for epoch in ends for t in epoch]
            after: dict[str, EdgeKind] = {} if pipe else dict.fromkeys(finished, "order")
            after.update(dict.fromkeys(needs, "data"))
            adv.append(self._add(f"adv/{p}", ACTOR, costs.adv_s, sm=0, after=after, part=p))
        before, version = list(last) if not pipe else [], ""
        for u in range(shape.update_epochs):
            for p in range(shape.parts):
                for m in range(shape.minibatches):
                    task = f"train/{u}.{p}.{m}"
                    orders: dict[str, EdgeKind] = dict.fromkeys(before, "order")
                    if u == 0 and m == 0 and pipe:
                        orders["sync_weights"] = "order"  # which reads the weights that this one writes
                    self._add(
                        task,
                        ACTOR,
                        costs.train_s,
                        sm=costs.train_sm,
                        accesses=(CellAccess("THETA", version, task),),
                        after={**orders, adv[p]: "data"},
                        update_epoch=u,
                        part=p,
                        minibatch=m,
                    )
                    before, version = [task], task
        if self.schedule.offload:
            self._move("offload", ACTOR, dict.fromkeys(before, "order"))


def asynchronous_graph(
    iterations: int, *, generate_s: float, train_s: float, sync_s: float, staleness: int = 1
) -> TaskGraph:
    """Return iterations of the asynchronous disaggregated schedule: each worker on GPUs of its own.

    Parameters
    ----------
    iterations : int
        How many.
    generate_s, train_s, sync_s : float
        Seconds of a whole rollout, of training on it, and of publishing weights, which the actor waits for.
    staleness : int
        Versions by which the weights of a rollout may be behind those that are trained with its data.

    Returns
    -------
    TaskGraph
        Rollout i needs the weights that training i - 1 - staleness left.
    """
    tasks, edges = [], []
    for i in range(iterations):
        for k, (name, worker, duration_s) in enumerate(
            (("generate", ROLLOUT, generate_s), ("train", ACTOR, train_s), ("publish", ACTOR, sync_s))
        ):
            tasks.append(
                Task(f"{name}/{i}", name, duration_s, program_order=3 * i + k, worker=worker, payload=name)
            )
        edges += [Edge(f"generate/{i}", f"train/{i}"), Edge(f"train/{i}", f"publish/{i}", "publication")]
        if i:
            edges.append(Edge(f"publish/{i - 1}", f"train/{i}", "order"))
            edges.append(Edge(f"generate/{i - 1}", f"generate/{i}", "order"))
        if (published := i - 1 - staleness) >= 0:
            edges.append(Edge(f"publish/{published}", f"generate/{i}", "publication"))
    return TaskGraph(tuple(tasks), tuple(edges))
