"""`rlprof optimize`: find a faster order of the same work and prove the gain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlprof.cli.embodied import Given, with_workload
from rlprof.cli.optimize_report import report

app = typer.Typer(help="Find overlap in a training workload and measure what it gains.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Find overlap in a training workload and measure what it gains."""


app.command()(report)


@app.command()
@with_workload
def embodied(
    *,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the graph, the report and the log.")],
    given: Given,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="Rounds at most.")] = 2,
    targets: Annotated[int, typer.Option(metavar="N", min=1, help="Windows in a round.")] = 3,
    alternatives: Annotated[int, typer.Option(metavar="N", min=1, help="Tried for each window.")] = 2,
    epsilon: Annotated[float, typer.Option(metavar="FRAC", help="Least gain of a round.")] = 0.01,
    budget: Annotated[str, typer.Option(metavar="TIME", help="Measure no longer than this.")] = "15m",
    groups: Annotated[str, typer.Option(metavar="N,N", help="Parts to split into.")] = "2",
    pairs: Annotated[
        int, typer.Option(metavar="N", min=1, help="Pairs of complete iterations in a validation at most.")
    ] = 8,
    local_pairs: Annotated[
        int, typer.Option(metavar="N", min=1, help="Pairs of local trials of an alternative at most.")
    ] = 9,
    spares: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, help="Spare simulators, which let epochs overlap.", show_default="1"
        ),
    ] = None,
    activity: Annotated[
        str, typer.Option(metavar="SOURCE", help="auto, program, host or off: where activity comes from.")
    ] = "auto",
    levers: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME",
            help="Settings to try alone, such as workers=8/16,rendering; none: none.",
            show_default="those that apply and are not given as options",
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where one in DIR was stopped.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace one that is there.")] = False,
) -> None:
    """Optimise a vision-language-action policy's training in a robot simulator.

    DIR/graph.json and DIR/quotas.json are what rlprof run embodied uses from then on; DIR/report.html shows
    what was tried and what it gains. Ctrl-C ends with the best so far, and exit code 130; --resume goes on.
    """
    _refuse(given, resume=resume, force=force)
    from rlprof.cli.console import say, write
    from rlprof.errors import UsageError
    from rlprof.workloads.embodied.levers import chosen_values, wanted_levers
    from rlprof.workloads.embodied.optimize_run import Request, optimize_embodied

    chosen = chosen_values(given.config(), given.values)
    config = given.config(**chosen)
    if activity not in ("auto", "program", "host", "off"):
        raise UsageError(f"no activity is called {activity!r}", hint="use auto, program, host or off")
    if spares and spares >= config.rollout_epochs:
        raise UsageError(
            f"{spares} spare simulators, which let {config.rollout_epochs} rollout epochs overlap: at most"
            f" {config.rollout_epochs - 1} would have something to do",
            hint="give fewer --spares, or more --rollout-epochs",
        )
    try:
        parts = tuple(int(part) for part in groups.split(","))
    except ValueError:
        raise UsageError(f"--groups {groups}", hint="give numbers, such as 2,3") from None
    request = Request(
        config=config,
        out=out,
        spares=1 if spares is None else spares,
        activity=activity,
        resume=resume,
        force=force,
        rounds=rounds,
        targets=targets,
        alternatives=alternatives,
        epsilon=epsilon,
        budget_s=seconds(budget, option="--budget"),
        groups=parts,
        pairs=pairs,
        local_pairs=local_pairs,
        levers=wanted_levers(levers, given.values),
        chosen=chosen,
    )
    rules = {"--pairs": request.options.validation, "--local-pairs": request.options.local}
    for option, rule in rules.items():
        if rule.least_pairs is None:  # else "nothing pays" would be said of what cannot be told
            raise UsageError(
                f"{option}: {rule.most_pairs} pairs cannot give a clear difference", hint="five are enough"
            )
    done = optimize_embodied(request, say=say)
    write(done.summary)
    if done.interrupted:
        say("interrupted: this is the best so far; --resume goes on")
        raise typer.Exit(130)


def _refuse(given: Given, *, resume: bool, force: bool) -> None:
    """Refuse options that an optimisation can do nothing with."""
    from rlprof.errors import UsageError

    if given.values.get("reset_ahead"):
        raise UsageError(
            "--reset-ahead would do nothing: nothing is begun ahead in what the optimiser measures",
            hint="leave it away, and give it to rlprof run embodied --graph",
        )
    if resume and force:
        raise UsageError(
            "--resume goes on with an optimisation that is there, and --force replaces it",
            hint="give one of them",
        )


def seconds(text: str, *, option: str) -> float:
    """Parse a time such as ``90s``, ``15m`` or ``2h``; a plain number is seconds.

    Raises
    ------
    UsageError
        If it is none, or not above zero.
    """
    from rlprof.errors import UsageError

    factors = {"s": 1.0, "m": 60.0, "h": 3600.0}
    text = text.strip()
    number, unit = (text[:-1], text[-1]) if text[-1:] in factors else (text, "s")
    try:
        value = float(number) * factors[unit]
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"{option}: {text!r} is no time", hint="write 90s, 15m or 2h")
    return value
