"""Fig 3: SM activity over a training iteration, and how much of the time it is low.

First under the best of today's schedules in runs of complete iterations (`rlprof.reproduce.rose.over_time`),
which are of the paper's workload; then of the shipped captures, which are of a small program.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof.reproduce.compare import Compared, amount
from rlprof.reproduce.errors import ReproduceError
from rlprof.reproduce.papers import Paper
from rlprof.reproduce.rose.over_time import compare as before_and_after
from rlprof.reproduce.rose.over_time import course, pairs
from rlprof.reproduce.rose.results import PAPER_SIMULATORS, simulator_of
from rlprof.reproduce.study import Study
from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    import polars as pl

#: Parts of an iteration that the figure draws.
BINS = 400
#: How the loop between policy and simulator is called in captures.
LOOP = "/chunk"
#: How rows of Fig 12 end that are of the best of today's schedules.
BEFORE = ", before"


def captures(checkout: Path) -> list[Path]:
    """Return the shipped captures, small ones first.

    Raises
    ------
    ReproduceError
        If there are none.
    """
    found = sorted((checkout / "datasets").glob("*.rlprof"), key=lambda p: (p.stat().st_size, p.name))
    if not found:
        raise ReproduceError("no captures are shipped", where=checkout / "datasets")
    return found


def capture_rows(path: Path) -> list[dict[str, Any]]:
    """Return the low shares of every node of a capture, and activity over its first complete iteration.

    Rows of ``kind`` "share": ``scope``, ``below_half`` and ``below_most`` (shares of time below 50 and 80 %),
    ``active_frac``. Rows of "bin": ``at_s`` in the iteration and ``active_frac`` there.
    """
    import numpy as np

    from rlprof.analysis.intervals import StepIntegral
    from rlprof.trace.read import read

    report = read(path).windows()
    found = report.iteration
    if found is None or isinstance(report.signals, Unavailable) or not report.signals:
        return []
    base = {"capture": path.stem, "period_s": report.sample_period_s}
    below = {(r["scope"], r["threshold"]): r["fraction"] for r in report.low_activity.iter_rows(named=True)}
    nodes = dict(report.frame.select("node", "sm_activity").iter_rows())
    rows: list[dict[str, Any]] = [
        {
            **base,
            "kind": "share",
            "scope": scope,
            "below_half": fraction,
            "below_most": below.get((scope, 0.8)),
            "active_frac": nodes.get(scope),
            "at_s": None,
        }
        for (scope, threshold), fraction in below.items()
        if threshold == 0.5
    ]
    start, end = int(found.start_ns[0]), int(found.end_ns[0])
    edges = np.linspace(start, end, BINS + 1).astype(np.int64)
    signal = report.signals[0]
    ones = np.ones(len(signal.start_ns))
    sums = StepIntegral.of(signal.start_ns, signal.end_ns, ones, signal.active_frac).over(
        edges[:-1], edges[1:]
    )
    for n in range(BINS):
        covered, active = float(sums[0][n]), float(sums[1][n])
        if covered > 0:
            rows.append(
                {
                    **base,
                    "kind": "bin",
                    "scope": found.name,
                    "below_half": None,
                    "below_most": None,
                    "active_frac": active / covered,
                    "at_s": float(edges[n] - start) / 1e9,
                }
            )
    return rows


def capture_facts(path: Path) -> dict[str, Any]:
    """Return where and when a capture was made, and with what."""
    from rlprof.trace.read import read

    trace = read(path)
    gpus: list[str] = []
    if not isinstance(trace.devices, Unavailable):
        gpus = trace.devices["name"].drop_nulls().unique(maintain_order=True).to_list()
    facts: dict[str, Any] = {
        "gpu": " and ".join(gpus) or "an unknown GPU",
        "sampler": trace.meta.product,
        "sampling_hz": trace.meta.sampling_hz,
        "command": "python -m benchmarks.gpu.vla, captured as datasets/README.md says",
    }
    if trace.meta.utc_origin_ns is not None:
        facts["date"] = str(datetime.fromtimestamp(trace.meta.utc_origin_ns / 1e9, UTC).date())
    return facts


def study(preset: str, seed: int, checkout: Path) -> Study:
    """Return the study of the shipped captures; the smoke test takes one."""
    files = captures(checkout)[: 1 if preset == "smoke" else None]
    cases: dict[str, Callable[[], Sequence[dict[str, Any]]]] = {
        path.name: partial(capture_rows, path) for path in files
    }
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in files}
    measured = {path.name: capture_facts(path) for path in files}
    parameters = {"captures": digests, "bins": BINS}
    return Study("rose/activity", preset, seed, parameters, cases, reads=True, measured=measured)


def shares(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the share of low time of the iteration and of the interaction loop, by capture.

    Returns
    -------
    polars.DataFrame
        ``capture``, ``scope``, ``part`` ("iteration" or "interaction loop"), ``below_half``, ``below_most``.
    """
    import polars as pl

    loop = pl.col("scope").str.ends_with(LOOP)
    return (
        frame.filter(pl.col("kind") == "share")
        .with_columns(
            pl.when(loop)
            .then(pl.lit("interaction loop"))
            .when(pl.col("scope") == "iteration")
            .then(pl.lit("iteration"))
            .alias("part")
        )
        .filter(pl.col("part").is_not_null())
        .unique(["capture", "part"], keep="first", maintain_order=True)
        .select("capture", "scope", "part", "below_half", "below_most")
    )


def over_time(frame: pl.DataFrame) -> pl.DataFrame:
    """Return activity over the first iteration: ``capture``, ``at_s``, ``active_frac``."""
    import polars as pl

    return frame.filter(pl.col("kind") == "bin").select("capture", "at_s", "active_frac")


def compare(tables: Mapping[str, pl.DataFrame], paper: Paper) -> list[Compared]:
    """Fig 3: share of the interaction loop, and of the iteration, below 50 % SM activity."""
    rows = _of_runs(tables, paper) if "over_time" in tables else []
    return rows + _of_captures(tables["activity"], paper)


def _of_runs(tables: Mapping[str, pl.DataFrame], paper: Paper) -> list[Compared]:
    """Under the best of today's schedules without MPS, of runs that stand for LIBERO."""
    there = [p for p in pairs(tables["over_time"]) if not p.mps]
    there = [p for p in there if PAPER_SIMULATORS.get(simulator_of(p.workload)) == "LIBERO"]
    starts = {f"{p.label}: share of the": p.before.replace("native", "colocated", 1) for p in there}
    found = []
    for row in before_and_after(tables, paper):
        schedule = next((s for start, s in starts.items() if row.quantity.startswith(start)), None)
        if schedule is not None and row.quantity.endswith(BEFORE):
            found.append(replace(row, quantity=f"{row.quantity.removesuffix(BEFORE)}, {schedule}"))
    return found


def _of_captures(frame: pl.DataFrame, paper: Paper) -> list[Compared]:
    return [
        Compared(
            f"share of the {row['part']} below 50 %, capture {row['capture']}",
            "%",
            amount(row["below_half"], 100),
            paper.value("fig03", f"share of the {row['part']} below 50 % SM activity", "pi0.5, LIBERO"),
            "another program: a small policy that a GPU of this size does not fill (datasets/README.md);"
            " pi0.5 on LIBERO there",
        )
        for row in shares(frame).iter_rows(named=True)
    ]


def before(frame: pl.DataFrame) -> pl.DataFrame:
    """Return activity over an iteration under the best of today's schedules, of runs without MPS.

    Parameters
    ----------
    frame : polars.DataFrame
        The raw table `over_time`.

    Returns
    -------
    polars.DataFrame
        ``workload``, ``variant``, ``at_s``, ``active_frac``.
    """
    import polars as pl

    rows = [
        course(frame, pair)
        .filter(pl.col("variant") == pair.names[pair.before])
        .select(pl.lit(pair.workload).alias("workload"), "variant", "at_s", "active_frac")
        for pair in pairs(frame)
        if not pair.mps
    ]
    return pl.concat(rows) if rows else pl.DataFrame()
