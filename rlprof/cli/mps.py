"""`rlprof mps`: an MPS daemon for a GPU, its quota levels, its end."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rlprof.overlap.quota.products import Products
    from rlprof.unavailable import Unavailable

app = typer.Typer(help="Start, look at and stop an MPS daemon of a GPU.", no_args_is_help=True)


class Format(StrEnum):
    """What is printed."""

    TABLE = "table"
    JSON = "json"


_GPU = Annotated[int, typer.Option("--gpu", metavar="N", min=0, help="The GPU, as CUDA counts.")]
_FORMAT = Annotated[Format, typer.Option("--format", help="What to print.")]


@app.callback()
def _root() -> None:
    """Start, look at and stop an MPS daemon of a GPU."""


@app.command()
def start(
    *,
    gpu: _GPU = 0,
    while_: Annotated[
        int | None,
        typer.Option("--while", metavar="PID", min=1, help="End the daemon when this process is gone."),
    ] = None,
    format: _FORMAT = Format.TABLE,
) -> None:
    """Start a daemon and print the variables that make a process its client.

    eval "$(rlprof mps start)" sets them in a shell. It runs until rlprof mps stop, or with --while.
    """
    from rlprof.cli.console import write, write_json
    from rlprof.overlap.quota.daemon import start as start_daemon
    from rlprof.overlap.quota.report import exports, status_document
    from rlprof.unavailable import Unavailable

    daemon = start_daemon(gpu, owner=while_)
    if format is Format.JSON:
        write_json(status_document([(daemon, Unavailable("just started"))], [], None)["daemons"][0])
    else:
        write(exports(daemon))


@app.command()
def status(*, format: _FORMAT = Format.TABLE) -> None:
    """Say which daemons run, whose they are, and whether MPS can be used here."""
    from rlprof.cli.console import write, write_json
    from rlprof.errors import RlprofError
    from rlprof.overlap.quota.clients import list_gpus
    from rlprof.overlap.quota.daemons import Daemon, daemons, find_binary, foreign_daemons
    from rlprof.overlap.quota.report import status_document, status_text
    from rlprof.unavailable import Unavailable

    def clients(daemon: Daemon) -> list[int] | Unavailable:
        try:
            return daemon.clients() if daemon.alive else Unavailable("rlprof mps stop removes what it left")
        except RlprofError as error:
            return Unavailable(error.what)

    ours = [(daemon, clients(daemon)) for daemon in daemons()]
    absent = None
    try:
        find_binary()
        list_gpus()
    except RlprofError as error:
        absent = str(error)
    others = foreign_daemons()
    if format is Format.JSON:
        write_json(status_document(ours, others, absent))
    else:
        write(status_text(ours, others, absent))


@app.command()
def levels(
    *,
    gpu: _GPU = 0,
    step: Annotated[int, typer.Option(metavar="PERCENT", min=1, max=50, help="Step of percentages.")] = 2,
    refresh: Annotated[bool, typer.Option("--refresh", help="Probe again what is known.")] = False,
    check_products: Annotated[
        bool,
        typer.Option(
            "--check-products", help="Look whether matrix products are right under each; seconds a level."
        ),
    ] = False,
    format: _FORMAT = Format.TABLE,
) -> None:
    """Find the quota levels of a GPU: distinct numbers of SMs, and the smallest percentage giving each.

    A daemon is started for as long as that takes, unless rlprof runs one.
    """
    from rlprof.cli.console import progress_bar, write, write_json
    from rlprof.overlap.quota.clients import choose_gpu, list_gpus, read_cached
    from rlprof.overlap.quota.daemon import mps
    from rlprof.overlap.quota.mechanism import Mps
    from rlprof.overlap.quota.report import levels_document, levels_text
    from rlprof.trace.nsys_cache import cache_root

    found = None if refresh else read_cached(cache_root(), choose_gpu(list_gpus(), gpu), step)
    products: list[Products | Unavailable] = []
    if found is None or check_products:
        with mps(gpu) as daemon, progress_bar() as progress:
            mechanism = Mps(daemon, cache_root(), step)
            found = mechanism.probed(progress, refresh=refresh)
            for count, level in enumerate(found.levels if check_products else (), start=1):
                products.append(mechanism.products(level))
                progress("looking at matrix products", count / len(found.levels))
    if format is Format.JSON:
        write_json(levels_document(found, products))
    else:
        write(levels_text(found, products))


@app.command()
def stop(
    *,
    gpu: Annotated[
        int | None, typer.Option("--gpu", metavar="N", min=0, help="The GPU.", show_default="all")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Even if clients are at work: they fail.")] = False,
) -> None:
    """Stop daemons that rlprof started, and remove what dead ones left. Others' are never touched."""
    from rlprof.cli.console import write
    from rlprof.errors import UsageError
    from rlprof.overlap.quota.daemons import daemons, foreign_daemons

    chosen = [daemon for daemon in daemons() if gpu is None or daemon.gpu.ordinal == gpu]
    if not chosen:
        others = foreign_daemons()
        left = f"; not started by rlprof, left alone: {others[0]}" if others else ""
        raise UsageError(
            f"rlprof runs no MPS daemon{'' if gpu is None else f' on GPU {gpu}'}{left}",
            hint="rlprof mps status lists what runs",
        )
    for daemon in chosen:
        daemon.stop(even_with_clients=force)
        write(f"GPU {daemon.gpu.ordinal}: stopped")
