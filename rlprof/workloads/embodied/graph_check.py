"""Whether a selected graph fits a run, as far as the configurations tell, before the run begins."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlprof.overlap.optimize.graph_file import GraphFile
from rlprof.workloads.embodied.config import Config
from rlprof.workloads.embodied.errors import ConfigurationError
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
    ConfigurationError
        If the schedule is none that is wrapped as nodes or has switches of its own, rollouts have a process
        of their own, the graph was selected with other levers, or for an iteration of other calls.
    """
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
    if not isinstance(selected, Mapping):
        return
    wanted, here = structure(selected), structure(config.to_dict())
    changed = [f"{k} {v}, not {here[k]}" for k, v in wanted.items() if v != here.get(k)]
    if changed:
        preset = selected.get("preset")
        raise ConfigurationError(
            f"the graph was selected for another program: {'; '.join(changed)}",
            where=path,
            hint=f"run with the options of that optimisation (--preset {preset}), or optimise again",
        )


def structure(values: Mapping[str, Any]) -> dict[str, Any]:
    """What decides which calls an iteration has, of a configuration as a document, as far as it is told."""
    found = {name: values[name] for name in STRUCTURE if name in values}
    with contextlib.suppress(TypeError, ConfigurationError):  # of another version
        found["denoise_steps"] = Config(**values).policy_size.denoise_steps
    return found
