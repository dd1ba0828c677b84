"""The truth: generated programs run as they are, without rlprof."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.overlap.declarations import Generated
from tests.overlap.runtime import Log, Probe, digest, names, rows_of_keys, start

_POOL = ThreadPoolExecutor(2, thread_name_prefix="future of a generated program")


@dataclass(frozen=True)
class World:
    """A program that can be run.

    Parameters
    ----------
    program : Generated
        Its text.
    main : object
        An instance of its class ``Main``.
    boxes : SimpleNamespace
        State objects that are no component, by name.
    probe, log : Probe, Log
        What its methods call.
    classes : dict of str to type
        Classes of the components.
    """

    program: Generated
    main: Any
    boxes: SimpleNamespace
    probe: Probe
    log: Log
    classes: dict[str, type]

    def iterate(self, iteration: int) -> Any:
        """Run one iteration on its data."""
        output = self.main.iteration(data_of(self.program, iteration))
        return asyncio.run(output) if inspect.isawaitable(output) else output

    def state(self) -> dict[str, Any]:
        """Contents of all state, by name, buffers included."""
        main = self.main
        found: dict[str, Any] = {}
        for name in self.program.components:
            for attribute, value in vars(getattr(main, name)).items():
                if isinstance(value, np.ndarray):
                    found[f"{name}.{attribute}"] = digest(value)
        for state in self.program.states:
            if state.kind != "rows":
                found[state.name] = digest(getattr(self.boxes, state.name).v)
        return found

    def record(self) -> tuple[list[tuple[str, int, bytes]], list[tuple[str, bytes]]]:
        """Weights that each rollout call used, and minibatches in the order of updates; starts a new one."""
        seen = sorted(self.log.rollouts), list(self.log.updates)
        self.log.rollouts.clear()
        self.log.updates.clear()
        return seen


def build(program: Generated, noise: Callable[..., Any]) -> World:
    """Execute the program's text and make its objects; `noise` is what its methods draw with."""
    space = names() | {"asyncio": asyncio, "pool": _POOL, "noise": noise}
    exec(compile(program.source, f"<program {program.seed}>", "exec"), space)
    classes = {name: space[name.capitalize()] for name in program.components}
    return World(program, space["Main"](), space["boxes"], space["probe"], space["log"], classes)


def data_of(program: Generated, iteration: int) -> np.ndarray:
    """Data of an iteration, shape (batch, WIDTH), a new array each time."""
    return start(program.seed * 1000 + iteration, program.batch)


@dataclass(frozen=True)
class Outcome:
    """What one iteration did.

    Parameters
    ----------
    output : object
        As `digest` gives it.
    state : dict
        Afterwards.
    rollouts, updates : list
        The semantic record.
    units : list of (str, int)
        Each unit of work, in order.
    """

    output: Any
    state: dict[str, Any]
    rollouts: list[tuple[str, int, bytes]]
    updates: list[tuple[str, bytes]]
    units: list[tuple[str, int]]


def interpret(program: Generated, iterations: int) -> list[Outcome]:
    """Run iterations and tell what each of them did."""
    labels = _Labels(program.seed)
    world = build(program, labels.noise)
    if "noise(" in program.source:
        labels.follow(world)
    outcomes = []
    for iteration in range(iterations):
        world.probe.seen = []
        output = digest(world.iterate(iteration))
        rollouts, updates = world.record()
        outcomes.append(Outcome(output, world.state(), rollouts, updates, world.probe.seen))
    return outcomes


class _Labels:
    """Names of the running calls, which random draws are keyed by, followed in the simplest way."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        # of each running call: its label, calls of each node inside it so far, draws so far
        self.running: list[tuple[str, dict[str, int], list[int]]] = [("", {}, [0])]

    def noise(self, count: int, samples: Sequence[int] | None = None) -> np.ndarray:
        """One random number for each row, shape (count, 1)."""
        label, _, draws = self.running[-1]
        text = f"{self.seed}\0\0{label}\0{draws[0]}\0"
        draws[0] += 1
        keys = [
            hashlib.blake2b((text + str(row)).encode(), digest_size=16).digest()
            for row in (range(count) if samples is None else samples)
        ]
        return rows_of_keys(keys)

    def follow(self, world: World) -> None:
        """Have the methods and loops of a program tell when they start and end."""
        for site in world.program.sites:
            owner = world.main if site.owner == "main" else getattr(world.main, site.owner)
            native = getattr(owner, site.name)
            if site.kind == "loop":
                setattr(owner, site.name, self._marked(site.name))
            elif inspect.iscoroutinefunction(native):
                setattr(owner, site.name, self._coroutine(site.name, native, site.kind == "body"))
            else:
                setattr(owner, site.name, self._called(site.name, native, site.kind == "body"))

    def _enter(self, name: str, loop: bool) -> None:
        above, counts, _ = self.running[-1]
        place = counts.get(name, 0)
        counts[name] = place + 1
        step = f"{name}[{place}]" if loop else f"{name}#{place}" if place else name
        self.running.append((f"{above}/{step}" if above else step, {}, [0]))

    def _called(self, name: str, native: Callable[..., Any], loop: bool) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._enter(name, loop)
            try:
                return native(*args, **kwargs)
            finally:
                self.running.pop()

        return call

    def _coroutine(self, name: str, native: Callable[..., Any], loop: bool) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            self._enter(name, loop)
            try:
                return await native(*args, **kwargs)
            finally:
                self.running.pop()

        return call

    def _marked(self, name: str) -> Callable[[Iterable[int]], Iterator[int]]:
        def loop(iterations: Iterable[int]) -> Iterator[int]:
            for item in iterations:
                self._enter(name, True)
                try:
                    yield item
                finally:
                    self.running.pop()

        return loop
