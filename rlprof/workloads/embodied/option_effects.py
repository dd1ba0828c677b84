"""Options that a person gave and that would do nothing in a run: they are refused, and the reason is said.

Only what was given by name is looked at. What a preset sets holds where it can: its 16 processes of the
simulator are 8 where there are 8 environments. A flag that was switched off asks for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from rlprof.workloads.embodied.config import Config
from rlprof.workloads.embodied.errors import ConfigurationError


class Effect(NamedTuple):
    """When options have none.

    Parameters
    ----------
    options : tuple of str
        Fields of `Config`.
    missing : callable
        Says why a value has no effect in a configuration; None: it has one.
    hint : str
        What to do, beside leaving the option away.
    """

    options: tuple[str, ...]
    missing: Callable[[Config, Any], str | None]
    hint: str


def check_options(config: Config, given: Mapping[str, Any], effects: Iterable[Effect] | None = None) -> None:
    """Refuse options that would do nothing.

    Parameters
    ----------
    config : Config
        Of the run.
    given : mapping of str to value
        What a person asked for, by the fields of `Config`; not what a preset sets.
    effects : iterable of Effect, optional
        What is looked at: `EFFECTS` by default, or `WITHOUT_GRAPH`.

    Raises
    ------
    ConfigurationError
        If one of them has no effect with the others.
    """
    for effect in EFFECTS if effects is None else effects:
        for name in effect.options:
            if given.get(name) is None or given[name] is False:
                continue
            why = effect.missing(config, given[name])
            if why is not None:
                option = option_of(name)
                raise ConfigurationError(
                    f"{option} would do nothing: {why}",
                    hint=f"leave {option} away{f', or {effect.hint}' if effect.hint else ''}",
                )


def option_of(name: str) -> str:
    """The option of a field of `Config`."""
    return "--timeout" if name == "timeout_s" else f"--{name.replace('_', '-')}"


def _images(config: Config, _value: Any) -> str | None:
    return None if config.cameras else "there are no cameras, so that no images are drawn"


def _denoise_steps(config: Config, _value: Any) -> str | None:
    return None if config.policy_size.denoise_steps else f"{config.policy} has no denoise steps"


def _captured(config: Config, value: Any) -> str | None:
    if config.policy_size.by_row:
        return f"the preset {config.preset} computes sample by sample, and captures no steps"
    return _denoise_steps(config, value)


def _no_nodes(config: Config, of: str) -> str | None:
    for switch in ("train_pipe", "env_prefetch"):
        if getattr(config, switch):
            return f"with {option_of(switch)} the phases of {of} are no nodes"
    if config.schedule != "colocated":
        return f"with the schedule {config.schedule} the phases of {of} are no nodes"
    return None


def _answers(config: Config, _value: Any) -> str | None:
    return _no_nodes(config, "an answer")


def _chunks(config: Config, _value: Any) -> str | None:
    return _no_nodes(config, "a chunk")


def _workers(config: Config, value: Any) -> str | None:
    if config.simulator == "mujoco_warp" and value != 1:
        return "all environments of mujoco_warp are in one process of their own"
    if config.simulator == "libero" and value == 0:
        return "libero is always in processes of its own"
    if value > config.envs:
        return f"{config.envs} environments make no {value} processes"
    return None


def _tasks(config: Config, value: Any) -> str | None:
    groups = config.envs // config.group
    if value <= groups:
        return None
    return f"a group of environments has one task, and {groups} groups have no {value}"


def _next_epoch(config: Config, _value: Any) -> str | None:
    return None if config.rollout_epochs > 1 else "an iteration has one rollout epoch, and no next one"


def _time_limit(config: Config, _value: Any) -> str | None:
    if config.own_processes or config.rollout_process or config.schedule == "async":
        return None
    return "the simulator is in this process, where no call can be ended"


def _one_simulator(config: Config, value: Any) -> str | None:
    processes = min(max(config.workers, 1), config.envs)
    if not value or value < processes:
        return None
    many = "1 process does" if processes == 1 else f"{processes} processes do"
    return f"without a graph there is one simulator, whose {many} no more than {processes} at once"


_PLAIN = "use the schedule colocated without --train-pipe and --env-prefetch"
EFFECTS = (
    Effect(("image", "painters", "rendering", "shadows", "every_action"), _images, "use --cameras"),
    Effect(("denoise_steps",), _denoise_steps, "use another --policy"),
    Effect(("cuda_graph",), _captured, "use another --preset or --policy"),
    Effect(("whole_answers", "prefix_worker"), _answers, _PLAIN),
    Effect(("phases",), _chunks, _PLAIN),
    Effect(("workers",), _workers, ""),
    Effect(("tasks",), _tasks, "use more environments or smaller groups"),
    Effect(("train_pipe",), _next_epoch, "use --rollout-epochs 2"),
    Effect(("timeout_s",), _time_limit, "give the simulator processes with --workers"),
)
#: Of a run in which no graph lets further simulators compute beside the first one.
WITHOUT_GRAPH = (Effect(("simulator_cores",), _one_simulator, "give --graph FILE or fewer cores"),)
