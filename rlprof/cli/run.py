"""`rlprof run`: run a workload and measure it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlprof.cli.embodied import Given, with_workload
from rlprof.errors import UsageError
from rlprof.progress import Progress

if TYPE_CHECKING:
    from rlprof.workloads.embodied.config import Config

app = typer.Typer(help="Run a training workload and measure it.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Run a training workload and measure it."""


class SmActivity(StrEnum):
    """Whether SM activity is measured."""

    AUTO = "auto"
    OFF = "off"


@app.command()
@with_workload
def embodied(
    *,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for configuration, metrics and checkpoint.")
    ],
    given: Given,
    iterations: Annotated[int, typer.Option(metavar="N", min=1, help="To have done in the end.")] = 10,
    sm_activity: Annotated[
        SmActivity, typer.Option(help="Measure SM activity; without a GPU the share of busy cores.")
    ] = SmActivity.AUTO,
    checkpoint_every: Annotated[
        int, typer.Option(metavar="N", min=1, help="Iterations between checkpoints.")
    ] = 10,
    graph: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A graph.json that rlprof optimize has selected.")
    ] = None,
    levers: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A graph.json whose settings are used, without its graph."),
    ] = None,
    quotas: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A quotas.json that rlprof optimize has written.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in DIR.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a run that is there.")] = False,
    capture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The .rlprof file to record the iterations into.")
    ] = None,
) -> None:
    """Train a vision-language-action policy in a robot simulator.

    DIR/metrics.jsonl has a line for each iteration; a run that was ended goes on with --resume.
    """
    from rlprof.cli.console import say, write
    from rlprof.workloads.embodied.graph_driver import RECORDED
    from rlprof.workloads.embodied.levers import kept_levers
    from rlprof.workloads.embodied.option_effects import WITHOUT_GRAPH, check_options
    from rlprof.workloads.embodied.runner import run

    if graph is not None and iterations <= RECORDED and not resume:
        raise UsageError(
            f"--graph would do nothing: {RECORDED} iterations are recorded before it can run",
            hint=f"use --iterations {RECORDED + 1} or more",
        )
    if levers is not None and not kept_levers(levers):
        say(f"{levers} has no levers: nothing was settled")
    config = given.config(**kept_levers(graph, levers))
    if graph is None and levers is None:
        check_options(config, given.values, WITHOUT_GRAPH)
    if config.reset_ahead and graph is None:
        raise UsageError(
            "--reset-ahead begins episodes where a graph runs, and none is given",
            hint="give --graph FILE, use --env-prefetch, or leave it away",
        )
    if resume and force and capture is None:
        raise UsageError(
            "--resume goes on with a run that is there, and --force replaces it", hint="give one of them"
        )
    if quotas is not None:
        config = _with_quotas(config, quotas, given)
    with _shown(iterations) as (progress, finished):
        summary = run(
            config,
            out,
            iterations,
            resume=resume,
            force=force,
            checkpoint_every=checkpoint_every,
            capture=capture,
            graph=graph,
            activity=sm_activity.value,
            progress=progress,
            finished=finished,
        )
    for row in summary.rows[-1:]:
        for what, key in (("denoise steps", "cuda_graph_refused"), ("layers", "compile_refused")):
            if row.get(key):
                say(f"{what} ran eagerly: {row[key]}")
    if graph is not None and summary.rows and not any(row["graph"] for row in summary.rows):
        say(f"{graph} ran in no iteration: the first {RECORDED} after a start are recorded")
    if not summary.rows:
        write(f"{out}: {summary.iterations} iterations are done already")
        return
    last = summary.rows[-1]
    rate = sum(r["simulator_steps"] for r in summary.rows) / sum(r["wall_s"] for r in summary.rows)
    write(
        f"{out}: {summary.iterations} iterations, return {last['return_mean']:.3f},"
        f" success {last['success_frac']:.1%}, {rate:,.0f} simulator steps/s"
    )


def _with_quotas(config: Config, path: Path, given: Given) -> Config:
    """Take over the shares of a file, which are none that were given otherwise."""
    from rlprof.cli.console import say
    from rlprof.workloads.embodied.option_effects import option_of
    from rlprof.workloads.embodied.quota_file import QuotaFile

    file = QuotaFile.read(path)
    made = file.apply(config)
    for name, value in given.values.items():
        if getattr(made, name) != value:
            option = option_of(name)
            raise UsageError(
                f"{option} {value} would do nothing: --quotas gives {getattr(made, name)}",
                hint=f"leave {option} or --quotas away",
            )
    if not file.quotas:
        say(f"{path} has no quotas: {file.reason}")
    return made


@contextmanager
def _shown(iterations: int) -> Iterator[tuple[Progress, Callable[[Mapping[str, Any]], None] | None]]:
    """Give what is told how far a run is: a bar on a terminal, else a line for each iteration."""
    from rlprof.cli.console import draws_bars, progress_bar
    from rlprof.cli.lines import IterationLines

    if draws_bars():
        with progress_bar() as progress:
            yield progress, None
    else:
        with IterationLines(iterations) as lines:
            yield lines.progress, lines.finished
