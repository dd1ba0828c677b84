"""`rlprof quota`: the quota with which commands that run at the same time are all done soonest."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlprof.errors import UsageError
from rlprof.trace.output import atomic_path, check_free

if TYPE_CHECKING:
    from rlprof.overlap.quota.branches import Branch
    from rlprof.overlap.quota.mechanism import Mechanism


class MechanismName(StrEnum):
    """What sets quotas."""

    MPS = "mps"
    CORES = "cores"
    NICE = "nice"


class Join(StrEnum):
    """What waits for which branches."""

    ALL = "all"


class Format(StrEnum):
    """What is printed."""

    TABLE = "table"
    JSON = "json"


def quota(
    *,
    branch: Annotated[
        list[str],
        typer.Option("--branch", metavar="NAME='COMMAND'", help="A branch; give two or more."),
    ],
    join: Annotated[Join, typer.Option(help="Where they meet: when all are ready.")] = Join.ALL,
    mechanism: Annotated[
        MechanismName,
        typer.Option(help="mps: SMs of a GPU. cores, nice: of the processor."),
    ] = MechanismName.MPS,
    gpu: Annotated[int, typer.Option(metavar="N", min=0, help="The GPU, as CUDA counts.")] = 0,
    step: Annotated[int, typer.Option(metavar="PERCENT", min=1, max=50, help="Step of levels (mps).")] = 2,
    pairs: Annotated[int, typer.Option(metavar="N", min=1, help="Pairs of runs for each level.")] = 6,
    final_pairs: Annotated[
        int, typer.Option("--final-pairs", metavar="N", min=1, help="Most pairs of the validation.")
    ] = 12,
    sweep: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Also measure every N-th level.", show_default="the search"),
    ] = None,
    confidence: Annotated[float, typer.Option(metavar="P", help="Of a clear difference.")] = 0.95,
    least_gain: Annotated[
        float, typer.Option("--least-gain", metavar="FRACTION", help="A gain that is worth a quota.")
    ] = 0.01,
    no_check_products: Annotated[
        bool,
        typer.Option("--no-check-products", help="Use levels that make matrix products wrong (mps)."),
    ] = False,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="End the search in time, like 5min.")
    ] = None,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="Longest set-up or round.")] = "10min",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="OUT", help="A JSON file, written after every step."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT.")] = False,
    format: Annotated[Format, typer.Option(help="What to print.")] = Format.TABLE,
) -> None:
    """Find the quota of one of several commands that run at the same time (Rose, Algorithm 2).

    Measures each branch alone and all together, who has slack, and the levels of its quota; a quota is chosen
    only if complete runs in new processes are clearly sooner done with it.
    """
    from rlprof.analysis.trials import Rule
    from rlprof.cli.console import json_bytes, progress_bar, say, write, write_json
    from rlprof.cli.values import duration_ns, fraction
    from rlprof.overlap.quota.machine import gpu_state
    from rlprof.overlap.quota.mechanism import Mps
    from rlprof.overlap.quota.report import tuning_document, tuning_text
    from rlprof.overlap.quota.tune import tune
    from rlprof.overlap.quota.tuning import Settings, Tuning
    from rlprof.unavailable import Unavailable

    del join  # there is one kind
    branches = [_branch(text) for text in branch]
    if output is not None:
        check_free(output, force=force)
    settings = Settings(
        rule=Rule(confidence, pairs),
        final=Rule(confidence, final_pairs, fraction(least_gain, option="--least-gain")),
        budget_s=None if budget is None else duration_ns(budget, option="--budget", least_ns=1) / 1e9,
        timeout_s=duration_ns(timeout, option="--timeout", least_ns=1) / 1e9,
        sweep=sweep,
        check_products=not no_check_products,
    )
    if settings.rule.least_pairs is None or settings.final.least_pairs is None:
        raise UsageError(
            f"{min(pairs, final_pairs)} pairs cannot give a clear difference at confidence {confidence:g}",
            hint="six are enough for 0.95, five for 0.9",
        )

    def keep(known: Tuning) -> None:
        if output is not None:
            with atomic_path(output, force=True) as temporary:
                temporary.write_bytes(json_bytes(tuning_document(known)))

    with _mechanism(mechanism, gpu, step) as chosen, progress_bar() as progress:
        state = None
        if isinstance(chosen, Mps):
            uuid = chosen.daemon.gpu.uuid

            def state() -> dict[str, Any]:
                found = gpu_state(uuid)
                return {"unavailable": found.reason} if isinstance(found, Unavailable) else found

        found = tune(branches, chosen, settings, progress=progress, watch=keep, state=state)
    if format is Format.JSON:
        write_json(tuning_document(found))
    else:
        write(tuning_text(found))
    if output is not None:
        say(f"written: {output}")


def _branch(text: str) -> Branch:
    from rlprof.overlap.quota.branches import Branch

    name, equals, command = text.partition("=")
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise UsageError(f"--branch {text!r}: {error}", hint="close the quotes of the command") from None
    if not equals or not name.strip() or not words:
        raise UsageError(f"--branch {text!r} is not NAME='COMMAND'", hint="write --branch A='python a.py'")
    return Branch(name.strip(), words)


@contextmanager
def _mechanism(name: MechanismName, gpu: int, step: int) -> Iterator[Mechanism]:
    """Give what sets quotas; an MPS daemon that is started for it ends with the body."""
    from rlprof.overlap.quota.daemon import mps
    from rlprof.overlap.quota.mechanism import Mps, processor
    from rlprof.trace.nsys_cache import cache_root

    if name is not MechanismName.MPS:
        yield processor(name.value)
        return
    with mps(gpu) as daemon:
        yield Mps(daemon, cache_root(), step)
