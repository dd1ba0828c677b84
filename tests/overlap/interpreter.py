"""The truth: generated programs run as they are, without rlprof."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.overlap.declarations import Generated
from tests.overlap.runtime import Log, Probe, digest, names, start

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
    probe, log : Probe, Log
        What its methods call.
    """

    program: Generated
    main: Any
    probe: Probe
    log: Log

    def iterate(self, iteration: int) -> Any:
        """Run one iteration on its data."""
        return self.main.iteration(data_of(self.program, iteration))

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
                found[state.name] = digest(getattr(main, state.name).v)
        return found

    def record(self) -> tuple[list[tuple[str, int, bytes]], list[tuple[str, bytes]]]:
        """Weights that each rollout call used, and minibatches in the order of updates; starts a new one."""
        seen = sorted(self.log.rollouts), list(self.log.updates)
        self.log.rollouts.clear()
        self.log.updates.clear()
        return seen


def build(program: Generated) -> World:
    """Execute the program's text and make its objects."""
    space = names() | {"asyncio": asyncio, "pool": _POOL}
    exec(compile(program.source, f"<program {program.seed}>", "exec"), space)
    return World(program, space["Main"](), space["probe"], space["log"])


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
    world = build(program)
    outcomes = []
    for iteration in range(iterations):
        world.probe.seen = []
        output = digest(world.iterate(iteration))
        rollouts, updates = world.record()
        outcomes.append(Outcome(output, world.state(), rollouts, updates, world.probe.seen))
    return outcomes
