"""`rlprof calibrate`: measure a machine and write the constants of the cost model as a hardware file."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlprof.errors import UsageError

if TYPE_CHECKING:
    from rlprof.planning.calibration.calibrate import Calibration
    from rlprof.planning.cluster import Hardware


class Bandwidth(StrEnum):
    """Where BW_mem comes from."""

    COPIES = "copies"
    EVERYTHING = "everything"


class Formulas(StrEnum):
    """What is fitted."""

    EXTENDED = "extended"
    PRINTED = "printed"


class Format(StrEnum):
    """What is printed."""

    TABLE = "table"
    JSON = "json"


def calibrate(
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="The hardware file (.toml) to make.")
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="0,1",
            help="GPUs, or cpu:2 for two processes.",
            show_default="all GPUs, or cpu:2 without any",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes, fewer rounds.")] = False,
    limit: Annotated[
        str | None, typer.Option(metavar="TIME", help="Begin no measurement after so long, like 8min.")
    ] = None,
    raw: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Raw measurements (.jsonl), continued if they are there.",
            show_default="OUT with .raw.jsonl in place of .toml",
        ),
    ] = None,
    fit_only: Annotated[
        bool,
        typer.Option("--fit-only", help="Measure nothing: fit what --raw holds, from here or elsewhere."),
    ] = False,
    compare: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT",
            help="Also measure whole operators, and write them beside their predictions (.csv or .json).",
        ),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Hardware (h200, or a .toml) that has what cannot be measured here; nominal."
        ),
    ] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Most GPUs of a node.", show_default="the base's")
    ] = None,
    formulas: Annotated[
        Formulas,
        typer.Option(help="The printed formulas alone, or with what real machines need (see the docs)."),
    ] = Formulas.EXTENDED,
    bandwidth: Annotated[
        Bandwidth | None,
        typer.Option(
            help="What memory_bandwidth is fitted to: copies, or decode steps too.",
            show_default="everything; copies with printed formulas",
        ),
    ] = None,
    fit_operators: Annotated[
        bool,
        typer.Option(
            "--fit-operators", help="Fit also to half of the operators of --compare; the rest is held out."
        ),
    ] = False,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="TRACE", help="Take what a capture tells, in place of measuring."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Draw fitted over measured times: .png, .svg, .html, .json."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace results that are there.")] = False,
    format: Annotated[Format, typer.Option(help="What to print.")] = Format.TABLE,
) -> int:
    """Measure a machine and write a hardware file for rlprof plan.

    Takes minutes. Ctrl-C ends it; the same command goes on where it ended. What was not measured is never
    called calibrated.
    """
    from rlprof.planning.calibration.calibrate import calibrate as calibration
    from rlprof.planning.calibration.estimate import need_scipy
    from rlprof.planning.calibration.raw import read_raw
    from rlprof.trace.output import check_free

    for path in (output, compare, plot):
        if path is not None:
            check_free(path, force=force)
    if output is not None and output.suffix != ".toml":
        raise UsageError(f"{output} is no name of a hardware file", hint="give one that ends with .toml")
    if compare is not None and compare.suffix not in (".csv", ".json"):
        raise UsageError(f"{compare}: neither .csv nor .json", hint="name the file so")
    if source is not None:
        _from_trace(source, base, output, format)
        return 0
    if raw is None:
        if output is None:
            raise UsageError("no output is named", hint="rlprof calibrate -o hw.toml")
        raw = output.with_suffix(".raw.jsonl")
    hardware = _hardware(base)
    need_scipy()
    if not fit_only:
        interrupted = _measure(raw, devices, limit, quick=quick, operators=compare is not None)
        if interrupted:
            return 130
    usual = Bandwidth.EVERYTHING if formulas is Formulas.EXTENDED else Bandwidth.COPIES
    fitted = calibration(
        read_raw(raw),
        name=(output or raw).name.partition(".")[0],
        base=hardware,
        gpus_per_node=gpus_per_node,
        bandwidth=(bandwidth or usual).value,
        formulas=formulas.value,
        operators=fit_operators,
    )
    _show(fitted, raw, output, compare, plot, force=force, format=format)
    return 0


def _hardware(base: str | None) -> Hardware | None:
    from rlprof.planning.hardware_file import read_hardware

    return None if base is None else read_hardware(base)


def _measure(raw: Path, devices: str | None, limit: str | None, *, quick: bool, operators: bool) -> bool:
    """Measure; tell whether it was interrupted."""
    from rlprof.cli.console import progress_bar, say
    from rlprof.cli.values import duration_ns
    from rlprof.planning.calibration.device import parse_devices
    from rlprof.planning.calibration.measure import FITTED_PARTS, PARTS, measure

    seconds = None
    if limit is not None:
        seconds = duration_ns(limit, option="--limit", plain_unit="s", least_ns=1) / 1e9
    with progress_bar() as progress:
        outcome = measure(
            raw,
            parse_devices(devices),
            preset="quick" if quick else "full",
            parts=PARTS if operators else FITTED_PARTS,
            seconds=seconds,
            progress=progress,
        )
    for note in outcome.notes:
        say(f"note: {note}")
    if outcome.interrupted:
        say(f"interrupted: {raw} holds what was measured; the same command goes on from there")
    return outcome.interrupted


def _show(
    made: Calibration,
    raw: Path,
    output: Path | None,
    compare: Path | None,
    plot: Path | None,
    *,
    force: bool,
    format: Format,
) -> None:
    """Write files and print."""
    from rlprof.cli.console import say, write, write_json
    from rlprof.planning.calibration import tables
    from rlprof.planning.calibration.raw import read_raw
    from rlprof.planning.calibration.validate import compare as compared
    from rlprof.planning.hardware_file import write_hardware

    rows = compared(read_raw(raw), made.hardware) if compare is not None else []
    if format is Format.JSON:
        document: dict[str, Any] = tables.calibration_document(made)
        if rows:
            document["accuracy"] = tables.accuracy_document(tables.by_part(rows))
        write_json(document)
    else:
        parts = [tables.constants_table(made), tables.residuals_table(made.residuals)]
        parts += [tables.collectives_table(made)]
        parts += [tables.accuracy_table(tables.by_part(rows))] if rows else []
        write("\n\n".join(part for part in parts if part))
    for note in made.notes:
        say(f"note: {note}")
    if output is not None:
        write_hardware(made.hardware, output)
        say(f"written: {output}")
    if compare is not None:
        tables.write_comparisons(rows, compare, force=force)
        say(f"written: {compare}")
    if plot is not None:
        from rlprof.plots.calibration import agreement_chart, residual_rows
        from rlprof.plots.static import save

        chart = agreement_chart(
            residual_rows(made.residuals), title=f"{made.hardware.gpu}: fit of the constants"
        )
        save(chart, plot, force=force)
        say(f"written: {plot}")


def _from_trace(source: Path, base: str | None, output: Path | None, format: Format) -> None:
    """Take constants from a capture; the others are the base's."""
    from dataclasses import asdict

    from rlprof.cli.console import say, write, write_json
    from rlprof.planning.calibration import tables
    from rlprof.planning.calibration.calibrate import with_estimates
    from rlprof.planning.calibration.errors import CalibrationError
    from rlprof.planning.calibration.estimate import Estimate
    from rlprof.planning.calibration.from_trace import from_trace
    from rlprof.planning.hardware_file import write_hardware
    from rlprof.trace.read import read

    if output is not None and base is None:
        raise UsageError(
            "a capture does not tell every constant",
            hint="name a hardware file that has the others: --base h200",
        )
    hardware = _hardware(base)
    told = from_trace(read(source))
    if format is Format.JSON:
        values = {
            name: asdict(e) if isinstance(e, Estimate) else {"unavailable": e.reason}
            for name, e in told.found.items()
        }
        write_json({"gpu": told.gpu, "date": told.date, "constants": values})
    else:
        write(tables.found_table(told.found))
    if output is None or hardware is None:
        return
    if not told.estimates:
        raise CalibrationError(
            f"{source}: no constant can be told from it", hint="measure instead: rlprof calibrate -o hw.toml"
        )
    made = with_estimates(
        hardware,
        told.estimates,
        name=output.name.partition(".")[0],
        gpu=told.gpu,
        date=told.date,
        source=f"copies of the capture {source.name}",
    )
    write_hardware(made, output)
    say(f"written: {output}")
