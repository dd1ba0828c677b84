"""`rlprof plan`: search for the best plan, and ask questions of one."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlprof.cli.values import Seed
from rlprof.errors import UsageError

if TYPE_CHECKING:
    from rlprof.planning.pipeline import Pipeline
    from rlprof.planning.plan_file import SavedPlan
    from rlprof.planning.workload import LengthQuantile

app = typer.Typer(
    help="Search for placement, parallelism, microbatches and staleness of an RL training step.",
    invoke_without_command=True,
    no_args_is_help=True,
)


#: A search that evaluated fewer plans within its budget of time has hardly begun.
FEW_PLANS = 500


class Objective(StrEnum):
    """What is maximised."""

    THROUGHPUT = "throughput"
    EFFICIENCY = "efficiency"


class Format(StrEnum):
    """What is printed."""

    TABLE = "table"
    JSON = "json"


class Stage(StrEnum):
    """Which graph is drawn."""

    COMPACT = "compact"
    UNROLLED = "unrolled"
    EXECUTABLE = "executable"
    SCHEDULE = "schedule"


Shape = Annotated[str | None, typer.Option(metavar="SHAPE", help="Shape of the model, like llama2-13b.")]
PlanArgument = Annotated[Path, typer.Argument(metavar="PLAN", help="A file that rlprof plan -o wrote.")]
FormatOption = Annotated[Format, typer.Option(help="What to print.")]


@app.callback()
def plan(
    context: typer.Context,
    *,
    algorithm: Annotated[
        str | None, typer.Option(metavar="NAME", help="ppo, grpo, dpo, or a pipeline file (.toml).")
    ] = None,
    actor: Shape = None,
    critic: Shape = None,
    reward: Shape = None,
    reference: Shape = None,
    hardware: Annotated[
        str | None,
        typer.Option(metavar="NAME:RxNxG", help="Racks, nodes, GPUs: gh200:2x8x4 or ./hw.toml:1x1x8."),
    ] = None,
    batch: Annotated[int | None, typer.Option(metavar="N", help="Prompts per step.")] = None,
    rollouts: Annotated[int, typer.Option(metavar="N", help="Responses per prompt; of dpo 2.")] = 1,
    prompt: Annotated[int | None, typer.Option(metavar="TOKENS", help="Mean length of a prompt.")] = None,
    response: Annotated[int | None, typer.Option(metavar="TOKENS", help="Mean length of a response.")] = None,
    quantiles: Annotated[
        str | None,
        typer.Option(
            metavar="F:TOKENS,...",
            help="Response lengths, like 0.5:96,0.85:192,1:384; or three: half of them done at a quarter of "
            "the length, 85 % at a half.",
        ),
    ] = None,
    staleness: Annotated[
        str, typer.Option(metavar="N,...", help="Steps by which weights may lag, tried for each model.")
    ] = "0,1",
    share: Annotated[
        bool, typer.Option("--share-actor-critic", help="Also try one backbone for actor and critic.")
    ] = False,
    fuse: Annotated[
        bool, typer.Option("--fuse-training", help="Interleave training of two models where they agree.")
    ] = False,
    steps: Annotated[int, typer.Option(metavar="N", help="Steps that are scheduled.")] = 8,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time to search, like 60s or 5min.", show_default="60s")
    ] = None,
    evaluations: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Plans to evaluate, and polishing on top: then a seed gives the same plan on any machine.",
        ),
    ] = None,
    objective: Annotated[
        Objective, typer.Option(help="efficiency: throughput times GPUs held, losing little throughput.")
    ] = Objective.THROUGHPUT,
    most_loss: Annotated[
        float, typer.Option(metavar="FRACTION", help="Most throughput that efficiency gives up.")
    ] = 0.10,
    seed: Seed = 0,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Processes.", show_default="all cores")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="PLAN", help="Start from the plans of an earlier search.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="The plan file to make.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Search for the best plan of one training step on a cluster.

    Ctrl-C ends the search early with the best plan so far, and exit code 130.
    """
    if context.invoked_subcommand is not None:
        return
    from rlprof.cli.console import progress_bar, say, write, write_json
    from rlprof.planning.evaluate import Problem
    from rlprof.planning.hardware_file import cluster_named
    from rlprof.planning.options import ModelOptions
    from rlprof.planning.plan_file import read_plan, saved_search, saved_to_document, write_plan
    from rlprof.planning.report import summary
    from rlprof.planning.search import search
    from rlprof.planning.search_options import SearchOptions
    from rlprof.planning.workload import Workload
    from rlprof.trace.output import check_free

    given = {"--algorithm": algorithm, "--hardware": hardware, "--batch": batch}
    given |= {"--prompt": prompt, "--response": response}
    if lost := [name for name, value in given.items() if value is None]:
        raise UsageError(
            f"{', '.join(lost)} {'is' if len(lost) == 1 else 'are'} not given", hint="rlprof plan --help"
        )
    if output is not None:
        check_free(output, force=force)
    shapes = {"actor": actor, "critic": critic, "reward": reward, "reference": reference}
    pipeline = _pipeline(str(algorithm), {name: s for name, s in shapes.items() if s is not None})
    if share:
        _check_share(pipeline)
    lengths = _quantiles(quantiles, int(response or 0))
    workload = Workload(batch or 0, prompt or 0, response or 0, rollouts, quantiles=lengths)
    problem = Problem(
        pipeline, workload, cluster_named(str(hardware)), ModelOptions(steps, fuse_training=fuse)
    )
    options = SearchOptions(
        seconds=_seconds(budget) if budget or evaluations is None else None,
        evaluations=evaluations,
        seed=seed,
        objective=objective.value,
        most_loss_frac=most_loss,
        staleness=_whole_numbers(staleness, "--staleness"),
        share_actor_critic=share,
    )
    start = read_plan(resume).elites if resume is not None else ()
    with progress_bar() as progress:
        result = search(problem, options, start=start, workers=workers, progress=progress)
    if result.interrupted:
        say("interrupted: this is the best plan so far")
    elif options.seconds is not None and result.seconds >= options.seconds and result.evaluations < FEW_PLANS:
        say(
            f"only {result.evaluations:,} plans were evaluated within the budget of {options.seconds:g} s:"
            " the plan may be far from the best. Next: give a longer --budget"
        )
    saved = saved_search(problem, options, result)
    if output is not None:
        write_plan(saved, output, force=force)
    if format is Format.JSON:
        write_json(saved_to_document(saved))
    else:
        write(summary(saved, result))
    if output is not None:
        say(f"written: {output}")
    if result.interrupted:
        raise typer.Exit(130)


@app.command()
def explain(plan: PlanArgument, *, format: FormatOption = Format.TABLE) -> None:
    """Show every term of a plan's predicted time and memory."""
    from rlprof.cli.console import write, write_json
    from rlprof.planning.explain import terms
    from rlprof.planning.plan_file import read_plan
    from rlprof.planning.report import terms_table

    found = terms(read_plan(plan).evaluate())
    if format is Format.JSON:
        write_json([asdict(term) for term in found])
    else:
        write(terms_table(found))


@app.command()
def compare(
    plans: Annotated[list[Path], typer.Argument(metavar="PLAN", help="Files that rlprof plan -o wrote.")],
    *,
    format: FormatOption = Format.TABLE,
) -> None:
    """Compare a plan with its baselines and with other plans, and say where its gain comes from."""
    from rlprof.cli.console import write, write_json
    from rlprof.planning.gains import ladder, losses
    from rlprof.planning.plan_file import prediction, read_plan
    from rlprof.planning.report import comparison_table, ladder_table, losses_table

    read = [(path, read_plan(path)) for path in plans]
    first = read[0][1]
    baselines = first.evaluate_baselines()
    called = {path: path.stem if len(read) > 1 else "this plan" for path in plans}
    if len(set(called.values()) | set(baselines)) < len(called) + len(baselines):
        called = {path: str(path) for path in plans}  # plan.json of several folders
    named = [(called[path], saved.evaluate()) for path, saved in read]
    named += list(baselines.items())
    way = ladder(named[0][1], baselines["concurrent"], first.synchronous_score) if baselines else []
    worth = losses(named[0][1])
    if format is Format.JSON:
        document: dict[str, Any] = {name: prediction(e) for name, e in named}
        rungs, lost = [asdict(rung) for rung in way], [asdict(loss) for loss in worth]
        write_json({"plans": document, "ladder": rungs, "losses": lost})
        return
    parts = [comparison_table(named)]
    parts += [ladder_table(way)] if way else []
    write("\n\n".join([*parts, *([losses_table(worth)] if worth else [])]))


@app.command()
def draw(
    plan: PlanArgument,
    *,
    stage: Annotated[Stage, typer.Option(help="Which graph.")] = Stage.SCHEDULE,
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=1000,
            help="Steps that are drawn.",
            show_default="3 unrolled, 1 executable, all",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="A .png, .svg, .html or .json file.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
) -> None:
    """Draw a plan: its pipeline, the pipeline unrolled, the executable graph, or the schedule."""
    from rlprof.cli.console import say, write
    from rlprof.planning.plan_file import read_plan
    from rlprof.planning.report import gantt_text
    from rlprof.plots.static import save

    saved = read_plan(plan)
    if output is None:
        if stage is not Stage.SCHEDULE:
            raise UsageError(
                "no output is named", hint=f"rlprof plan draw {plan} --stage {stage.value} -o graph.svg"
            )
        write(gantt_text(saved.evaluate()))
        return
    save(_chart(saved, stage, steps), output, force=force)
    say(f"written: {output}")


def _chart(saved: SavedPlan, stage: Stage, steps: int | None) -> Any:
    """The chart of one stage."""
    from dataclasses import replace

    from rlprof.planning.evaluate import evaluate
    from rlprof.planning.layout import compact_drawing, executable_drawing, unrolled_drawing
    from rlprof.planning.unroll import unroll
    from rlprof.plots.dag import dag_chart
    from rlprof.plots.gantt import gantt_chart, lay_out

    problem = saved.problem
    if stage is Stage.COMPACT:
        return dag_chart(compact_drawing(problem.pipeline))
    if stage is Stage.UNROLLED:
        return dag_chart(unrolled_drawing(unroll(problem.pipeline, steps or 3)))
    if steps is not None or stage is Stage.EXECUTABLE:
        problem = replace(problem, options=replace(problem.options, steps=steps or 1))
    evaluation = evaluate(problem, saved.plan)
    if stage is Stage.EXECUTABLE:
        return dag_chart(executable_drawing(evaluation.graph, saved.plan))
    gantt = lay_out(evaluation.timeline.to_frame())
    title = f"{problem.pipeline.name} on {problem.cluster}: {evaluation.score:,.0f} tokens/s predicted"
    return gantt_chart(gantt, title=title, subtitle=gantt.notes)


def _pipeline(algorithm: str, shapes: dict[str, str]) -> Pipeline:
    """A built-in algorithm with these shapes, or one from a file."""
    from rlprof.planning.algorithms import algorithm_named
    from rlprof.planning.pipeline_file import read_pipeline

    if not algorithm.endswith(".toml"):
        return algorithm_named(algorithm, shapes)
    if shapes:
        raise UsageError(
            f"--{next(iter(shapes))} is given beside a pipeline file", hint="name shapes in the file"
        )
    return read_pipeline(algorithm)


def _check_share(pipeline: Pipeline) -> None:
    """Refuse to share what cannot be shared: the search would leave it out without a word."""
    from rlprof.planning.algorithms import can_share

    if not can_share(pipeline):
        raise UsageError(
            f"--share-actor-critic: {pipeline.name} has no actor and critic of one shape",
            hint="give --actor and --critic the same shape, or leave the option out",
        )


def _quantiles(text: str | None, response: int) -> tuple[LengthQuantile, ...]:
    from rlprof.planning.workload import LengthQuantile, three_phases

    if text is None:
        return ()
    if text.strip() == "three":
        return three_phases(response)
    try:
        pairs = [part.split(":") for part in text.split(",")]
        return tuple(LengthQuantile(float(frac), float(tokens)) for frac, tokens in pairs)
    except ValueError:
        raise UsageError(
            f"--quantiles: {text!r} is no list of fractions and lengths",
            hint="write it like 0.5:96,0.85:192,1:384",
        ) from None


def _whole_numbers(text: str, option: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"{option}: {text!r} is no list of whole numbers", hint="write it like 0,1"
        ) from None


def _seconds(text: str | None) -> float:
    from rlprof.cli.values import duration_ns

    return duration_ns(text or "60s", option="--budget", plain_unit="s", least_ns=1) / 1e9
