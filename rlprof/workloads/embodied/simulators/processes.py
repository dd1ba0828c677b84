"""A simulator whose environments live in processes of their own, with arrays in shared memory.

Environments are dealt to the processes in turn (process w has w, w + W, ...), so that any part of a batch in
a row keeps all of them busy. No answer within the time limit, or a process that ends by itself, ends them all
and is an error that says which environments were concerned.
"""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Any

import numpy as np

from rlprof.errors import RlprofError
from rlprof.interrupts import postponed
from rlprof.text import counted
from rlprof.workloads.embodied import errors, noise
from rlprof.workloads.embodied.contracts import (
    Array,
    Floats,
    GlobalStep,
    Observation,
    Samples,
    SimulatorSpec,
    StepResult,
)
from rlprof.workloads.embodied.errors import (
    ConfigurationError,
    SimulatorDiedError,
    SimulatorError,
    SimulatorTimeoutError,
)
from rlprof.workloads.embodied.simulators import block as blocks
from rlprof.workloads.embodied.simulators.core_turns import CoreTurns
from rlprof.workloads.embodied.simulators.served import STOPPED, ServedProcess, is_stopped, surroundings

#: Of a step's answer.
_REWARD = ("rewards", "dones", "success")


class SimulatorProcesses:
    """A simulator in processes; see `rlprof.workloads.embodied.contracts.Simulator`.

    Parameters
    ----------
    make : str
        ``"module:Class"`` of the simulator, whose options are `envs`, `first`, `stride` and `options`.
    envs : int
        Environments, all together.
    workers : int
        Processes; at most one for each environment.
    timeout_s : float
        Longest time of a call, in seconds.
    start_timeout_s : float
        Longest time for starting, in seconds.
    python : str, optional
        Interpreter; by default this one. It needs numpy and the simulator's packages, not rlprof.
    environment : mapping of str to str, optional
        Environment variables beside those of this process, such as ``MUJOCO_GL``.
    nice : int
        How much nicer than this process they are, 0 to 19. They stay in its session, so that it counts also
        where Linux shares cores out between sessions first (``sched_autogroup_enabled``).
    cores : CoreTurns, optional
        Places that its processes share with those of other simulators: who has none waits with its physics.
    **options
        Further options of the simulator.

    Raises
    ------
    ConfigurationError
        If the numbers do not fit together.
    SimulatorError
        If a process does not start, or cannot make its environments.
    """

    def __init__(
        self,
        make: str,
        envs: int,
        *,
        workers: int = 2,
        timeout_s: float = 60.0,
        start_timeout_s: float = 120.0,
        python: str | None = None,
        environment: Mapping[str, str] | None = None,
        nice: int = 0,
        cores: CoreTurns | None = None,
        **options: Any,
    ) -> None:
        if not 1 <= workers <= envs:
            raise ConfigurationError(
                f"{workers} processes for {envs} environments", hint="use at most one for each environment"
            )
        self.timeout_s = timeout_s
        self._cores = cores
        self._lock = threading.Lock()
        self._broken: str | None = None
        self._failure: SimulatorError | None = None
        self._processes: list[ServedProcess] = []
        self._worker_of = np.arange(envs) % workers
        self._row_of = np.arange(envs) // workers
        around = surroundings(environment)
        inherits = () if cores is None else (cores.descriptor,)
        try:
            for number in range(workers):
                process = ServedProcess(number, python or sys.executable, around, inherits=inherits)
                self._processes.append(process)
                mine = {"envs": len(range(number, envs, workers)), "first": number, "stride": workers}
                order = {"make": make, "nice": nice, "cores": inherits, "options": {**options, **mine}}
                process.send(order)
            answers = self._answers(self._processes, "start", start_timeout_s)
            for process in self._processes:
                process.share(SimulatorSpec(**answers[process.number]["spec"]))
            self.spec = replace(SimulatorSpec(**answers[0]["spec"]), envs=envs)
            if envs % self.spec.group:
                raise ConfigurationError(
                    f"{envs} environments do not make groups of {self.spec.group}",
                    hint="use a multiple of the group",
                )
        except BaseException:
            self._end("it did not start")
            raise

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Ids of the processes."""
        return tuple(p.process.pid for p in self._processes)

    # calls -------------------------------------------------------------------------------------------------

    def reset(self, step: GlobalStep, epoch: int, samples: Samples = None) -> Observation:
        """Begin new episodes."""
        return self._observed(self._call("reset", samples, self._seen, step=step.index, epoch=epoch))

    def reset_views(
        self, step: GlobalStep, epoch: int, samples: Samples = None
    ) -> tuple[Observation, Floats]:
        """Begin new episodes; besides what there is to draw, shape (batch, view_dim), for `paint`."""
        names = (*self._seen, "views")
        found = self._call("reset", samples, names, step=step.index, epoch=epoch)
        return self._observed(found), found["views"]

    def step(self, actions: Floats, samples: Samples = None) -> StepResult:
        """Carry out a chunk of actions, shape (batch, chunk_steps, action_dim)."""
        found = self._call("step", samples, (*self._seen, *_REWARD), {"actions": actions})
        return StepResult(self._observed(found), *(found[name] for name in _REWARD))

    def step_views(self, actions: Floats, samples: Samples = None) -> tuple[StepResult, Floats]:
        """Carry out a chunk of actions; besides what there is to draw, as of `reset_views`."""
        found = self._call("step", samples, (*self._seen, *_REWARD, "views"), {"actions": actions})
        return StepResult(self._observed(found), *(found[name] for name in _REWARD)), found["views"]

    def physics(self, actions: Floats, samples: Samples = None) -> None:
        """Move the environments."""
        self._call("physics", samples, given={"actions": actions})

    def reward(self, samples: Samples = None) -> tuple[Floats, Array, Array]:
        """Rewards of the last chunk, dones, success so far."""
        found = self._call("reward", samples, _REWARD)
        return found["rewards"], found["dones"], found["success"]

    def auto_reset(self, samples: Samples = None) -> None:
        """Begin new episodes where one has ended, if set to."""
        self._call("auto_reset", samples)

    def render(self, samples: Samples = None) -> Observation:
        """What the policy sees now."""
        return self._observed(self._call("render", samples, self._seen))

    def render_views(self, samples: Samples = None) -> tuple[Observation, Floats]:
        """What the policy sees now; besides what there is to draw, as of `reset_views`."""
        found = self._call("render", samples, (*self._seen, "views"))
        return self._observed(found), found["views"]

    def paint(self, views: Floats, samples: Samples = None) -> Array:
        """Draw what views say; images of shape (batch, cameras, height, width, 3)."""
        return self._call("paint", samples, ("images",), {"views": views})["images"]

    def state_dict(self) -> dict[str, Array]:
        """All that the environments are, in the order of the whole batch."""
        with self._lock:
            parts = self._all("state_dict", reads=True)
            found = {}
            for name, first in parts[0].items():
                whole = np.empty((self.spec.envs, *first.shape[1:]), first.dtype)
                for number, part in enumerate(parts):
                    whole[number :: len(parts)] = part[name]
                found[name] = whole
            return found

    def load_state_dict(self, state: dict[str, Array]) -> None:
        """Go back to a checkpoint."""
        with self._lock:
            count = len(self._processes)
            parts = [{k: v[n::count] for k, v in state.items()} for n in range(count)]
            self._all("load_state_dict", parts)

    def close(self) -> None:
        """End the processes; once is enough. A call of another thread is waited for, unless interrupted."""
        try:
            if self._broken is None:
                with suppress(SimulatorError), self._lock, self._exchange("close"):
                    for process in self._processes:
                        process.send({"call": "close"})
                    self._answers(self._processes, "close", min(self.timeout_s, 5.0))
        finally:
            self._end("it was closed")

    def end(self) -> None:
        """End the processes at once, also in the middle of a call of another thread, which fails then."""
        self._end("it was ended")

    def __enter__(self) -> SimulatorProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # messages ----------------------------------------------------------------------------------------------

    def _call(
        self,
        call: str,
        samples: Samples,
        wanted: Sequence[str] = (),
        given: Mapping[str, Array] | None = None,
        **arguments: int,
    ) -> dict[str, Array]:
        """Have every process do its part; copies of the arrays that are wanted of its answer.

        They are made before another thread's call may write its own answer in their place.
        """
        rows, given = noise.rows(self.spec.envs, samples), given or {}
        for name, array in given.items():
            shape = (len(rows), *blocks.layout(self.spec)[name][1][1:])
            if array.shape != shape:
                raise SimulatorError(f"{name} of shape {array.shape} for environments that take {shape}")
        with self._lock:
            self._check()
            parts = [(p, np.flatnonzero(self._worker_of[rows] == p.number)) for p in self._processes]
            parts = [(process, at) for process, at in parts if len(at)]
            for process, at in parts:
                if len(at) > (most := len(process.shared["rows"])):
                    raise SimulatorError(f"{len(at)} rows for {self._name(process)}, which takes {most}")
            with self._exchange(call):
                for process, at in parts:
                    process.shared["rows"][: len(at)] = self._row_of[rows[at]]
                    for name, array in given.items():
                        process.shared[name][: len(at)] = array[at]
                    process.send({"call": call, "count": len(at), **arguments})
                self._answers([p for p, _ in parts], call, self.timeout_s)
            return {name: self._gather(parts, name) for name in wanted}

    def _all(self, call: str, data: Sequence[dict[str, Array]] = (), reads: bool = False) -> list[Any]:
        self._check()
        with self._exchange(call):
            for process in self._processes:
                process.send({"call": call})
                if data:
                    stream = io.BytesIO()
                    np.savez(stream, **data[process.number])  # type: ignore[arg-type]
                    process.connection.send_bytes(stream.getvalue())
            answers = self._answers(self._processes, call, self.timeout_s, reads=reads)
        if not reads:
            return []
        sent = (io.BytesIO(answers[p.number]["sent"]) for p in self._processes)
        found = [np.load(stream, allow_pickle=False) for stream in sent]
        return [{k: part[k] for k in part.files} for part in found]

    def _check(self) -> None:
        if self._broken is not None:
            # another thread may have met the failure: the kind is that of what happened
            kind, hint = SimulatorError, "make a new one"
            if self._failure is not None:
                kind, hint = type(self._failure), self._failure.hint or hint
            raise kind(f"the simulator is no more: {self._broken}", hint=hint)

    @contextmanager
    def _exchange(self, call: str) -> Iterator[None]:
        """From orders to their answers: an answer that nobody takes would be that to the next call.

        An interruption waits for the answers; a second one, or whatever else comes between, ends them all.
        """
        with postponed():
            try:
                yield
            except RlprofError:
                raise
            except (OSError, ValueError):  # another thread has ended it, and what is waited for is closed
                self._check()
                self._end(f"{call} was interrupted")
                raise
            except BaseException:
                self._end(f"{call} was interrupted")
                raise

    def _answers(
        self, processes: Sequence[ServedProcess], call: str, limit_s: float, *, reads: bool = False
    ) -> dict[int, dict[str, Any]]:
        """Wait for all, and for what they send with it (`reads`).

        The first error is raised after all have answered, so that none is left in the middle.
        """
        until = time.monotonic() + limit_s
        waiting: dict[Any, ServedProcess] = {p.connection: p for p in processes}
        answers: dict[int, dict[str, Any]] = {}
        while waiting:
            ready = wait(list(waiting), max(0.0, until - time.monotonic()))
            if not ready:
                failure: SimulatorError = self._late(list(waiting.values()), call, limit_s)
                self._fail(failure)
                raise failure
            for connection in ready:
                process = waiting.pop(connection)
                try:
                    answer = json.loads(process.connection.recv_bytes())
                    if reads and "error" not in answer:
                        answer["sent"] = process.connection.recv_bytes()
                    answers[process.number] = answer
                except (EOFError, OSError):
                    self._check()  # another thread has ended it
                    failure = SimulatorDiedError(
                        f"{self._name(process)} {process.how_it_ended()} during {call}",
                        hint="look at its memory, and run the simulator in one process to see why",
                    )
                    self._fail(failure)
                    raise failure from None
        for process in processes:
            answer = answers[process.number]
            if "error" in answer:
                kind = getattr(errors, answer["error"], SimulatorError)
                raise kind(f"{self._name(process)}: {answer['what']}", hint=answer["hint"])
        return answers

    def _late(self, late: Sequence[ServedProcess], call: str, limit_s: float) -> SimulatorTimeoutError:
        """What is wrong with processes that have not answered in time, before they are ended."""
        slow = next((p for p in late if is_stopped(p.process.pid)), late[0])
        what = f"{self._name(slow)} did not answer to {call} within {limit_s:g} s and was ended"
        if is_stopped(slow.process.pid):
            return SimulatorTimeoutError(f"{what}: it was stopped (process {slow.process.pid})", hint=STOPPED)
        holders = [] if self._cores is None else [self._cores.holder(p.number) for p in late]
        for holder in holders:
            if holder is not None and is_stopped(holder):
                why = f"process {holder}, which has its place on the cores, is stopped"
                return SimulatorTimeoutError(f"{what}: {why}", hint=STOPPED)
        hint = "raise timeout_s, or use fewer environments in a process"
        if self._cores is not None and self._cores.places:
            hint += f", or more than {counted(self._cores.places, 'place')} on the cores"
        return SimulatorTimeoutError(what, hint=hint)

    def _name(self, process: ServedProcess) -> str:
        mine = np.flatnonzero(self._worker_of == process.number)
        shown = ", ".join(map(str, mine[:4])) + (", ..." if len(mine) > 4 else "")
        return f"simulator process {process.number} (environments {shown})"

    def _fail(self, error: SimulatorError) -> None:
        self._failure = error
        self._end(error.what)

    def _end(self, why: str) -> None:
        if self._broken is None:
            self._broken = why
            for process in self._processes:
                process.end()

    def _gather(self, parts: list[tuple[ServedProcess, Array]], name: str) -> Array:
        first = self._processes[0].shared[name]
        whole = np.empty((sum(len(at) for _, at in parts), *first.shape[1:]), first.dtype)
        for process, at in parts:
            whole[at] = process.shared[name][: len(at)]
        return whole

    @property
    def _seen(self) -> tuple[str, ...]:
        return ("state", "task", "images") if self.spec.cameras else ("state", "task")

    def _observed(self, found: Mapping[str, Array]) -> Observation:
        return Observation(found["state"], found.get("images"), found["task"])
