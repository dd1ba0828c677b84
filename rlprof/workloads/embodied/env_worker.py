"""The environment worker: a simulator, and a chunk of actions as one call or as its phases."""

from __future__ import annotations

from typing import Any

from rlprof.workloads.embodied.contracts import (
    Floats,
    GlobalStep,
    Observation,
    Samples,
    Simulator,
    SimulatorSpec,
    StepResult,
)
from rlprof.workloads.embodied.errors import ConfigurationError
from rlprof.workloads.embodied.simulators.core_turns import CoreTurns

#: Calls that a chunk is made of, and a simulator that has phases has.
PHASES = ("physics", "reward", "render")


def told(samples: Samples) -> dict[str, Any]:
    """Return the keyword argument for some samples; nothing for all, so that parts of a batch can be told."""
    return {} if samples is None else {"samples": samples}


class EnvWorker:
    """See the module.

    Parameters
    ----------
    simulator : Simulator
        What it drives.
    phases : bool
        A chunk is carried out as physics, reward, reset and render, each a call of its own.
    auto_reset : bool
        The simulator begins new episodes by itself.
    cores : CoreTurns, optional
        Places of its processes: spare simulators, and others that take its place, have the same.

    Raises
    ------
    ConfigurationError
        If the simulator has no such phases.
    """

    def __init__(
        self,
        simulator: Simulator,
        *,
        phases: bool = False,
        auto_reset: bool = False,
        cores: CoreTurns | None = None,
    ) -> None:
        missing = [name for name in PHASES if not hasattr(simulator, name)]
        if phases and missing:
            raise ConfigurationError(
                f"the simulator {simulator.spec.name} has no {missing[0]} of its own",
                hint="leave --phases away",
            )
        self.simulator, self.phases, self.auto_reset = simulator, phases, auto_reset
        self.cores = cores

    @property
    def spec(self) -> SimulatorSpec:
        """Sizes of the simulator."""
        return self.simulator.spec

    def bootstrap_step(self, step: GlobalStep, epoch: int, samples: Samples = None) -> Observation:
        """Begin an epoch: new episodes, or the last observation where environments reset by themselves."""
        return self.simulator.reset(step, epoch, **told(samples))

    def env_interact_step(self, actions: Floats, samples: Samples = None) -> StepResult:
        """Carry out a chunk of actions."""
        simulator = self.simulator
        if not self.phases:
            return simulator.step(actions, **told(samples))
        simulator.physics(actions, **told(samples))
        rewards, dones, success = simulator.reward(**told(samples))
        if self.auto_reset:
            simulator.auto_reset(**told(samples))
        return StepResult(simulator.render(**told(samples)), rewards, dones, success)
