"""Runs a training: builds it, iterates, measures, saves, and ends what it started, whatever happens."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rlprof.errors import OutputError
from rlprof.interrupts import remembered
from rlprof.overlap.optimize.graph_file import GraphFile
from rlprof.progress import Progress, silent
from rlprof.workloads.embodied import checkpoint, metrics, record
from rlprof.workloads.embodied.activity import Activity, Span
from rlprof.workloads.embodied.build import make_trainer
from rlprof.workloads.embodied.config import Config
from rlprof.workloads.embodied.contracts import GlobalStep
from rlprof.workloads.embodied.drivers import Driver, make_driver
from rlprof.workloads.embodied.errors import ConfigurationError, memory_of, need
from rlprof.workloads.embodied.folder import OPTIMISATION, claimed, refuse_other
from rlprof.workloads.embodied.graph_check import check_graph
from rlprof.workloads.embodied.trainer import Trainer


@dataclass(frozen=True)
class RunSummary:
    """What a run did.

    Parameters
    ----------
    out : pathlib.Path
        Its folder: ``config.json``, ``metrics.jsonl``, ``semantic_record.jsonl``,
        ``checkpoint.pt``.
    iterations : int
        Done in all.
    rows : tuple of dict
        Metrics of the iterations of this run.
    """

    out: Path
    iterations: int
    rows: tuple[dict[str, Any], ...]


def run(
    config: Config,
    out: Path,
    iterations: int,
    *,
    resume: bool = False,
    force: bool = False,
    checkpoint_every: int = 10,
    capture: Path | None = None,
    activity: str = "off",
    graph: Path | None = None,
    progress: Progress = silent,
    finished: Callable[[Mapping[str, Any]], None] | None = None,
) -> RunSummary:
    """Train.

    Parameters
    ----------
    config : Config
        What.
    out : pathlib.Path
        Folder for configuration, metrics and checkpoint.
    iterations : int
        To have done in the end; with `resume`, those before the checkpoint count.
    resume : bool
        Go on from the checkpoint in `out`.
    force : bool
        Replace a run that is there.
    checkpoint_every : int
        Iterations between checkpoints; one is written at the end too.
    capture : pathlib.Path, optional
        The `.rlprof` file to record the iterations into.
    activity : {"auto", "off"}
        Measure SM activity (without a GPU: the share of busy cores) of each iteration and its phases.
    graph : pathlib.Path, optional
        A graph that `rlprof optimize` has selected for this configuration; the first two iterations are
        recorded, the others run by it.
    progress : callable
        Told how far it is.
    finished : callable, optional
        Told the metrics of each iteration, without activity, once it is done and, if it is to be, saved.

    Returns
    -------
    RunSummary
        What was done.

    Raises
    ------
    OutputError
        If `out` holds a run and neither `resume` nor `force` is set, or an optimisation and `resume` is not;
        if another process is at work in it, or it cannot be written.
    WorkloadError
        If a part cannot be made, a simulator fails, or the checkpoint does not fit. The last checkpoint is
        still there then.
    """
    if iterations < 1 or checkpoint_every < 1:
        raise ConfigurationError("a number of iterations below 1", hint="give at least 1")
    if (out / metrics.NAME).exists() and not (resume or force):
        raise OutputError("a run is there already", where=out, hint="use --resume, --force or another --out")
    if not resume:
        refuse_other(out, OPTIMISATION)
    chosen = None if graph is None else GraphFile.read(graph)
    if graph is not None and chosen is not None:
        check_graph(config, chosen, graph)
    _limit_threads(config)
    with ExitStack() as stack:
        stop_if_asked = stack.enter_context(remembered())
        there = out.is_dir()  # held before anything is started; one that is not there is not made for nothing
        if there:
            stack.enter_context(claimed(out))
        if resume:
            checkpoint.check(out / checkpoint.NAME, config.to_dict())
        progress("starting", 0.0)
        trainer = make_trainer(config)
        stack.callback(trainer.env.simulator.close)
        stack.callback(trainer.rollout.close)
        if not there:
            stack.enter_context(claimed(out))
        _prepare(out, config, resume=resume)  # only now: a run that cannot start replaces nothing
        done = checkpoint.load(out / checkpoint.NAME, trainer, config.to_dict()) if resume else 0
        for name in (metrics.NAME, record.NAME):
            metrics.cut(out / name, done)
        seen = record.watch(trainer)
        driver = make_driver(trainer, config, done, graph=chosen, iterations=iterations)
        stack.callback(driver.close)
        stack.enter_context(_capture(capture, force))
        sampler = Activity.off() if activity == "off" else Activity.start(out, *config.devices)
        stack.callback(sampler.close)
        rows = metrics.Rows(out / metrics.NAME, sampler)
        stack.callback(rows.flush)
        progress("training", done / max(done, iterations))
        for index in range(done, iterations):
            stop_if_asked()
            with memory_of(" or ".join(config.devices)):
                measured = measured_iteration(trainer, driver, config, seen, index)
            rows.add(measured.row, measured.spans)
            record.append(out / record.NAME, measured.record)
            if (index + 1) % checkpoint_every == 0 or index + 1 == iterations:
                with driver.paused():
                    rows.flush()  # a checkpoint counts on the lines before it
                    checkpoint.save(out / checkpoint.NAME, trainer, config.to_dict(), index + 1)
            shown = f"iteration {index + 1}: success {measured.row['success_frac']:.0%}"
            progress(shown, (index + 1) / iterations)
            if finished is not None:
                finished(measured.row)
    return RunSummary(out, max(done, iterations), tuple(rows.written))


class Measured(NamedTuple):
    """An iteration that was run.

    Parameters
    ----------
    row : dict
        Its metrics, without activity.
    spans : dict of str to Span
        The whole (``"iteration"``) and its phases.
    record : IterationRecord
        What it did.
    result : dict
        Trajectories, and what training logs.
    """

    row: dict[str, Any]
    spans: dict[str, Span]
    record: record.IterationRecord
    result: dict[str, Any]


def measured_iteration(
    trainer: Trainer, driver: Driver, config: Config, seen: record.Watch, index: int
) -> Measured:
    """Run an iteration under a driver and measure it.

    Parameters
    ----------
    trainer : Trainer
        What is driven.
    driver : Driver
        Of the trainer.
    config : Config
        Of the run.
    seen : Watch
        Of the trainer.
    index : int
        Number of the iteration.
    """
    gpu = need("torch", why="training").cuda if config.device.startswith("cuda") else None
    # where this process computes: a call for another GPU would set that one up
    here = config.actor_devices if config.rollout_process else config.devices
    if gpu is not None:
        for device in here:
            gpu.reset_peak_memory_stats(device)
    version = trainer.actor.updates
    started_ns, processor = time.monotonic_ns(), time.process_time()
    result, phases, further = driver.iteration(GlobalStep(index))
    if gpu is not None:
        gpu.synchronize(config.device)  # the last optimiser step may still be at work
        further = {**further, "gpu_peak_bytes": max(gpu.max_memory_allocated(d) for d in here)}
    whole = Span(started_ns, time.monotonic_ns())
    if config.cuda_graph:
        further = {**further, "cuda_graph_refused": trainer.rollout.refused}
    if config.compile_policy:
        further = {**further, "compile_refused": trainer.rollout.compile_refused}
    done = seen.take(index)
    if config.schedule != "async":  # what that one trains depends on timing
        wanted = record.native(trainer, index, version)
        further = {**further, "semantic_differences": record.differences(wanted, done)}
    row = {
        "iteration": index,
        "wall_s": whole.seconds,
        "processor_s": time.process_time() - processor,
        "simulator_steps": config.simulator_steps,
        "simulator_steps_per_s": config.simulator_steps / whole.seconds,
        "phases_s": {name: span.seconds for name, span in phases.items()},
        "schedule": config.schedule,
        "placement": driver.placement,
        **further,
        "updates": trainer.actor.updates,
        **metrics.of_trajectories(result["trajectories"]),
        **metrics.of_training(result["training"]),
    }
    return Measured(row, {"iteration": whole, **phases}, done, result)


def _limit_threads(config: Config) -> None:
    """One thread for tiny models on a CPU: more only wait for each other, and may change bits."""
    if config.device == "cpu":
        need("torch", why="a policy").set_num_threads(1)


def _prepare(out: Path, config: Config, *, resume: bool) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not resume:
            for name in (metrics.NAME, record.NAME, checkpoint.NAME):
                (out / name).unlink(missing_ok=True)
            (out / "config.json").write_text(json.dumps(config.to_dict(), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"the folder cannot be written ({error.strerror})", where=out) from error


def _capture(path: Path | None, force: bool) -> AbstractContextManager[Any]:
    if path is None:
        return nullcontext()
    from rlprof.capture.session import capture

    return capture(path, force=force)
