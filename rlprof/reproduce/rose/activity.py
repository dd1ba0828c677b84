"""Fig 3: SM activity over a training iteration, and how much of the time it is low."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof.reproduce.compare import Compared, amount
from rlprof.reproduce.errors import ReproduceError
from rlprof.reproduce.papers import Paper
from rlprof.reproduce.study import Study
from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    import polars as pl

#: Parts of an iteration that the figure draws.
BINS = 400
#: How the loop between policy and simulator is called in captures.
LOOP = "/chunk"


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


def study(preset: str, seed: int, checkout: Path) -> Study:
    """Return the study of the shipped captures; the smoke test takes one."""
    files = captures(checkout)[: 1 if preset == "smoke" else None]
    cases: dict[str, Callable[[], Sequence[dict[str, Any]]]] = {
        path.name: partial(capture_rows, path) for path in files
    }
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in files}
    return Study("rose/activity", preset, seed, {"captures": digests, "bins": BINS}, cases, reads=True)


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
    rows: list[Compared] = []
    for r in shares(tables["activity"]).iter_rows(named=True):
        part = r["part"]
        rows.append(
            Compared(
                f"share of the {part} below 50 %, {r['capture']}",
                "%",
                amount(r["below_half"], 100),
                paper.value("fig03", f"share of the {part} below 50 % SM activity", "pi0.5, LIBERO"),
                "another program: a small policy that a GPU of this size does not fill (datasets/README.md);"
                " pi0.5 on LIBERO there",
            )
        )
    return rows
