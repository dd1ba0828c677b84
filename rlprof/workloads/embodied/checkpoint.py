"""Checkpoints of a training run: one file, replaced whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Container
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from rlprof.workloads.embodied.config import Config
from rlprof.workloads.embodied.errors import CheckpointError, need
from rlprof.workloads.embodied.trainer import Trainer

FORMAT = 1
NAME = "checkpoint.pt"


def save(path: Path, trainer: Trainer, configuration: dict[str, Any], iteration: int) -> None:
    """Write a checkpoint beside its place, then move it there.

    What was trained is saved also where a process of the simulator or of the rollout has failed: its own
    part is left out, and what it raised is raised in the end.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    trainer : Trainer
        What is saved: weights, optimiser, environments.
    configuration : dict
        Of the run.
    iteration : int
        Iterations done.

    Raises
    ------
    CheckpointError
        If it cannot be written; an earlier one is still there then.
    Exception
        What simulator or rollout raised; the checkpoint is there then.
    """
    torch = need("torch", why="a checkpoint")
    failures: list[Exception] = []

    def had(state: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        try:
            return state()
        except Exception as error:  # raised in the end
            failures.append(error)
            return None

    environments = had(trainer.env.simulator.state_dict)
    content = {
        "format": FORMAT,
        "configuration": configuration,
        "iteration": iteration,
        "updates": trainer.actor.updates,
        "version": trainer.rollout.version,
        "actor": trainer.actor.policy.state_dict(),
        "masters": trainer.actor.copies(),
        "optimizer": trainer.actor.optimizer.state_dict(),
        "rollout": had(trainer.rollout.policy.state_dict),
        "environments": environments and {k: torch.from_numpy(v) for k, v in environments.items()},
    }
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except (OSError, RuntimeError) as error:  # torch raises RuntimeError on a full disk
        raise CheckpointError(
            f"the checkpoint cannot be written ({error})",
            where=path,
            hint="make room; an earlier one is kept",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
    if failures:
        raise failures[0]


def check(path: Path, configuration: dict[str, Any], *, may_differ: Container[str] = ()) -> None:
    """Refuse a checkpoint that `load` would refuse, before there is a trainer; weights are not read.

    Parameters
    ----------
    path, configuration, may_differ
        As of `load`.

    Raises
    ------
    CheckpointError
        If there is none, it is damaged where configuration and shapes are, or of another configuration.
    """
    _content(path, configuration, may_differ, mmap=True)


def load(
    path: Path, trainer: Trainer, configuration: dict[str, Any], *, may_differ: Container[str] = ()
) -> int:
    """Put a trainer into the state of a checkpoint; the iterations done then.

    Where the rollout's weights could not be saved it has the actor's, which it takes before it answers;
    where environments could not be, they stay as they are: they begin anew.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    trainer : Trainer
        Of the same configuration.
    configuration : dict
        Of the run that goes on.
    may_differ : container of str
        Values of the configuration that play no part in what was trained.

    Raises
    ------
    CheckpointError
        If there is none, it is damaged, or of another configuration.
    """
    content = _content(path, configuration, may_differ)
    trainer.actor.policy.load_state_dict(content["actor"])
    trainer.actor.replicas.take_all()
    # a process of the rollout saves what is trained alone; the rest was made on another GPU, perhaps
    trainer.rollout.take_all(trainer.actor)
    for mine, other in zip(trainer.actor.copies(), content["masters"], strict=True):
        # of a table that nothing reads, an earlier version has more rows
        mine.copy_(other if other.shape == mine.shape else other[: len(mine)])
    trainer.actor.optimizer.load_state_dict(content["optimizer"])
    trainer.actor.updates, trainer.rollout.version = content["updates"], content["updates"]
    if content["rollout"] is not None:
        trainer.rollout.policy.load_state_dict(content["rollout"])
        trainer.rollout.version = content["version"]
    if content["environments"] is not None:
        trainer.env.simulator.load_state_dict({k: v.numpy() for k, v in content["environments"].items()})
    iteration: int = content["iteration"]
    return iteration


def _content(
    path: Path, configuration: dict[str, Any], may_differ: Container[str], *, mmap: bool = False
) -> dict[str, Any]:
    """What a checkpoint of this configuration holds; with `mmap` tensors are read when they are used."""
    torch = need("torch", why="a checkpoint")
    try:
        mmap = mmap and is_zipfile(path)  # else torch says what it cannot map, and not that it is damaged
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except FileNotFoundError:
        raise CheckpointError("there is no checkpoint", where=path, hint="run without --resume") from None
    except Exception as error:  # a damaged file makes zipfile, pickle or torch raise
        # torch goes on with advice, as to load it without checking what it holds
        said = str(error).split(". ")[0].strip(" .")
        raise CheckpointError(
            f"the checkpoint cannot be read ({type(error).__name__}: {said})",
            where=path,
            hint="begin anew, with --force in place of --resume",
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(
            "the file is no checkpoint of this version",
            where=path,
            hint="begin anew, with --force in place of --resume",
        )
    # of an earlier version: options that were not there yet are as if they had been left away
    absent = {f.name: f.default for f in fields(Config) if f.default is not MISSING}
    other = {k: v for k, v in absent.items() if k in configuration} | content["configuration"]
    changed = sorted(
        k
        for k in configuration.keys() | other.keys()
        if configuration.get(k) != other.get(k) and k not in may_differ
    )
    if changed:
        shown = ", ".join(f"{k} {other.get(k)} -> {configuration.get(k)}" for k in changed)
        raise CheckpointError(
            f"the checkpoint is of another configuration: {shown}",
            where=path,
            hint="give its values as options (--graph of an optimisation brings them), or use another --out",
        )
    found: dict[str, Any] = content
    return found
