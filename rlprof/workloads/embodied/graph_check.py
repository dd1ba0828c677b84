"""Whether a selected graph fits a run, as far as the configurations tell, before the run begins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlprof.overlap.optimize.graph_file import GraphFile
from rlprof.workloads.embodied.config import Config
from rlprof.workloads.embodied.errors import ConfigurationError
from rlprof.workloads.embodied.graph_facts import check_facts
from rlprof.workloads.embodied.levers import check_levers

#: What decides which calls an iteration has; the rest changes their work, not their number and order.
STRUCTURE = (
    "algorithm",
    "envs",
    "rollout_epochs",
    "chunks",
    "update_epochs",
    "global_batch",
    "minibatch_scope",
    "auto_reset",
    "phases",
    "whole_answers",
    "prefix_worker",
)
#: Switches of schedules that a graph takes the place of, with their options.
SWITCHES = {"train_pipe": "--train-pipe", "env_prefetch": "--env-prefetch"}


def check_graph(config: Config, graph: GraphFile, path: Path | None = None) -> None:
    """Refuse a graph that was selected for another program, or that this run cannot have.

    What is not told by the configurations is noticed after the recorded iterations, by the hash of the native
    graph.

    Parameters
    ----------
    config : Config
        Of the run.
    graph : GraphFile
        What `rlprof optimize` wrote.
    path : pathlib.Path, optional
        Where it was read from, for the error.

    Raises
    ------
    UnreadableError
        If the file says what no optimisation does.
    ConfigurationError
        If the schedule is none that is wrapped as nodes or has switches of its own, rollouts have a process
        of their own, the graph was selected with other levers, or for an iteration of other calls.
    """
    check_facts(graph, path)
    if config.schedule != "colocated":
        raise ConfigurationError(
            f"a graph runs in place of the schedule colocated, not of {config.schedule}",
            hint="leave --schedule away",
        )
    for name, option in SWITCHES.items():
        if getattr(config, name):
            raise ConfigurationError(
                f"a graph says what runs beside what, and {option} would do nothing",
                hint=f"leave {option} away" + (", or use --reset-ahead" if name == "env_prefetch" else ""),
            )
    if config.rollout_process:
        raise ConfigurationError(
            "a graph runs the phases of answers, and those of a rollout process cannot be told apart",
            hint="leave --rollout-process away",
        )
    check_levers(config, graph.facts.get("levers") or {})
    selected = graph.facts.get("config")
    if selected is None:
        return
    changed = differences(selected, config, spares=graph.facts.get("spares") or 0)
    if changed:
        options = " ".join(
            given_by(name, wanted) for name, (wanted, _) in changed.items() if name != "preset"
        )
        preset = f"--preset {selected.get('preset')}"
        told = "; ".join(f"{name} {wanted}, not {here}" for name, (wanted, here) in changed.items())
        raise ConfigurationError(
            f"the graph was selected for another program: {told}",
            where=path,
            hint=f"run with the options of that optimisation ({f'{preset} {options}'.strip()}), or optimise"
            " again",
        )


def differences(selected: Mapping[str, Any], config: Config, *, spares: int) -> dict[str, tuple[Any, Any]]:
    """Values that let an iteration have other calls: of the optimisation, and of the run, by name.

    Parameters
    ----------
    selected : mapping of str to value
        Configuration of the optimisation, as a document.
    config : Config
        Of the run.
    spares : int
        Spare simulators of the graph: they work apart from the first one if all are in their own processes.
    """
    wanted, here = structure(selected), structure(config.to_dict())
    found = {name: (value, here.get(name)) for name, value in wanted.items() if value != here.get(name)}
    before = _made(selected)
    if before is None:
        return found
    if before.policy_size.by_row != config.policy_size.by_row:  # samples of a batch by themselves, or not
        found["preset"] = (before.preset, config.preset)
    if _alike(before) != _alike(config):
        name = "device" if before.simulator == config.simulator else "simulator"
        found[name] = (getattr(before, name), getattr(config, name))
    if spares and before.own_processes != config.own_processes:
        found["workers"] = (before.workers, config.workers)
    return found


def _alike(config: Config) -> bool:
    """Whether an environment moves alike whatever others are beside it: on a GPU sums have no fixed order."""
    return not (config.simulator == "mujoco_warp" and config.device.startswith("cuda"))


def given_by(name: str, value: Any) -> str:
    """What gives a value on the command line."""
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return flag if value else f"without {flag}"
    return f"{flag} {value}"


def structure(values: Mapping[str, Any]) -> dict[str, Any]:
    """What decides which calls an iteration has, of a configuration as a document, as far as it is told."""
    found = {name: values[name] for name in STRUCTURE if name in values}
    made = _made(values)
    if made is not None:
        found["denoise_steps"] = made.policy_size.denoise_steps
    return found


def _made(values: Mapping[str, Any]) -> Config | None:
    """The configuration of a document; None: it is of another version."""
    try:
        return Config(**values)
    except (TypeError, ConfigurationError):
        return None
