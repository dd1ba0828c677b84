"""Why ours differ from the paper's, in sentences: from the raw table `rlprof.reproduce.rose.reasons`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof.reproduce.rose.reasons import BOTH, CORES, IN_TURN, READ
from rlprof.reproduce.rose.results import simulator_of

if TYPE_CHECKING:
    import polars as pl

Row = Mapping[str, Any]
#: Calls between which nothing else runs, in the order that they are told in.
SERIAL = ("reset", "values", "training")
#: Times of two runs that are not of the same iteration are no pair.
DRIFT = (
    "iterations of two runs are not the same ones: as training goes on other actions make physics take longer"
)


def drift(ours: Row, other: Row) -> str:
    """Say what is to be said of times of two rows, by ``file`` and ``same_iteration``; empty of one run."""
    if ours["file"] == other["file"]:
        return ""
    one, two = ours["same_iteration"], other["same_iteration"]
    if one is None or two is None or one.partition(",")[0] != two.partition(",")[0]:
        return f": {DRIFT}"
    if same_bits(ours, other):
        return f": both are {one}"
    return f": both are {one.partition(',')[0]} of training, by weights that are not the same bits"


def same_bits(ours: Row, other: Row) -> bool:
    """Whether two runs trained the same iteration, and began it with weights of the same digest."""
    one, two = ours["same_iteration"], other["same_iteration"]
    return one is not None and one == two and "weights" in one


def _found(rows: list[Row], **wanted: Any) -> Row | None:
    """The first row with these values."""
    return next((r for r in rows if all(r[k] == v for k, v in wanted.items())), None)


def _rows(reasons: pl.DataFrame | None, workload: str, *, mps: bool | None = None) -> list[Row]:
    rows = [] if reasons is None else list(reasons.iter_rows(named=True))
    return [r for r in rows if r["workload"] == workload and mps in (None, r["mps"])]


def _native_s(rows: list[Row], file: str) -> float | None:
    """The best order of today's that ran, by median iteration, of one run."""
    from rlprof.reproduce.rose.schedules import is_todays

    times = [
        r["seconds"] for r in rows if r["file"] == file and r["kind"] == "order" and is_todays(r["order"])
    ]
    return min(times, default=None)


def by_hand(reasons: pl.DataFrame | None, workload: str, file: str, *, cores: int) -> str:
    """Say that the graph that counts as the optimised one of a run is by hand; empty if it is not known.

    ``cores`` are those on which simulators take turns, 0 without turns.
    """
    rows = _rows(reasons, workload)
    orders = {r["order"] for r in rows if r["file"] == file and r["kind"] == "order"}
    if "by hand" not in orders or "optimised" in orders:
        return ""
    return f"; the graph {'and turns on the cores are' if cores else 'is'} by hand: no search ran there"


def bounds(reasons: pl.DataFrame | None, workload: str, *, mps: bool) -> str:
    """Say by how much any graph could be faster than the best of today's schedules, run by run.

    The number of each limit is computed from the run's own iterations. Readings of one iteration come before
    a mean over all that was watched.
    """
    rows = _rows(reasons, workload, mps=mps)
    told = []
    for file in dict.fromkeys(r["file"] for r in rows if r["kind"] == "limit"):
        limits = {r["what"]: r["seconds"] for r in rows if r["file"] == file and r["kind"] == "limit"}
        native = _native_s(rows, file)
        if native is None:
            continue
        said = []
        if mps:
            most = max(limits.values())
            by = next(name for name, seconds in limits.items() if seconds == most)
            said.append(f"{native / most:.2f} ({by}, {most:.3g} of {native:.3g} s)")
        elif (turn := limits.get(READ, limits.get(IN_TURN))) is not None:
            coarse = "" if READ in limits else ", from a mean utilisation alone"
            said.append(f"{native / turn:.2f} if calls take turns on the GPU{coarse}")
            if BOTH in limits:
                hard = [BOTH, CORES] if limits.get(CORES, 0.0) > limits[BOTH] else [BOTH]
                each = " and ".join(f"{native / limits[name]:.2f} by {name}" for name in hard)
                said.append(f"{each}, whatever the graph")
        if said:
            told.append(f"{' and '.join(said)} in {Path(file).stem}")
    return f"at most so many times as fast: {'; '.join(told)}" if told else ""


def drawing(reasons: pl.DataFrame | None, workload: str) -> str:
    """Say how drawing and compute stretch each other, and how long drawing has the GPU."""
    rows = [r for r in _rows(reasons, workload, mps=False) if r["kind"] in ("call", "use", "profile")]
    pairs = []
    for what, name in (("answer", "an answer"), ("simulation", "a chunk of simulation")):
        alone, beside = (_found(rows, kind="call", what=what, order=o) for o in ("native", "graph"))
        if alone and beside:
            pairs.append(f"{name} takes {beside['seconds']:.3f} s ({alone['seconds']:.3f} s by itself)")
    if not pairs:
        return ""
    text = f"drawing takes the GPU in turn with compute: beside each other {' and '.join(pairs)}"
    of = {r["what"]: r["seconds"] for r in _rows(reasons, workload, mps=False) if r["kind"] == "limit"}
    if of.get(CORES, 0.0) > of.get(BOTH, float("inf")):
        text = f"two simulators at once want the same cores, and {text}"
    executes, draws = (_found(rows, kind="use", what=f"the GPU {w}") for w in ("executes", "draws"))
    profile = executes and _found(rows, kind="profile", file=executes["file"], what="native iteration")
    if executes and draws and profile:
        text += (
            f"; natively the GPU executes for {executes['seconds']:.2f} of {profile['seconds']:.2f} s,"
            f" {draws['seconds']:.2f} s of them drawing, which SM activity does not count"
        )
    return text


def idle(reasons: pl.DataFrame | None, workload: str) -> str:
    """Say how much of a native iteration SMs wait for a simulator that computes on the processor."""
    rows = [r for r in _rows(reasons, workload, mps=False) if r["order"] == "native"]
    waits = [_found(rows, kind="call", what=what) for what in ("simulation", "reset")]
    whole = _found(rows, kind="profile")
    part = _active(reasons, workload, mps=False)
    if None in waits or whole is None or part is None:
        return ""
    seconds = sum(w["alone_s"] for w in waits if w is not None)
    return (
        f"natively simulation and resets, at {100 * part:.1f} % SM activity, take {seconds:.2f} of"
        f" {whole['seconds']:.2f} s"
    )


def serial(reasons: pl.DataFrame | None, workload: str) -> str:
    """Say what of an iteration by the graph has nothing beside it."""
    rows = [r for r in _rows(reasons, workload, mps=False) if r["order"] == "graph"]
    parts = [
        f"{what} {found['alone_s']:.2f} s"
        for what in SERIAL
        if (found := _found(rows, kind="call", what=what)) and found["alone_s"] >= 0.005
    ]
    whole = _found(rows, kind="profile")
    if not parts or whole is None:
        return ""
    return f"with nothing beside it, of {whole['seconds']:.2f} s by the graph: {', '.join(parts)}"


def turns(reasons: pl.DataFrame | None, workload: str) -> str:
    """Say how much of a native iteration without MPS something executes."""
    rows = _rows(reasons, workload, mps=False)
    found = _found(rows, kind="use", what="the GPU executes")
    profile = found and _found(rows, kind="profile", file=found["file"], what="native iteration")
    if not found or not profile:
        return ""
    return (
        "without MPS kernels of two processes take turns: natively something executes for"
        f" {found['seconds']:.2f} of {profile['seconds']:.2f} s, and an overlap gains no more than the rest"
    )


def room(reasons: pl.DataFrame | None, workload: str) -> str:
    """Say how few of the SMs a simulator on the GPU holds by itself."""
    if simulator_of(workload) != "mujoco_warp":  # others compute elsewhere, or draw outside of MPS
        return ""
    active = _active(reasons, workload)
    if active is None:
        return ""
    return f"simulation alone has {100 * active:.0f} % SM activity, so under MPS there is room"


def _active(reasons: pl.DataFrame | None, workload: str, *, mps: bool | None = None) -> float | None:
    """SM activity of simulation alone."""
    for row in _rows(reasons, workload, mps=mps):
        if (row["kind"], row["what"]) == ("part", "simulation") and row["active_frac"] is not None:
            return float(row["active_frac"])
    return None


def cost_of_mps(reasons: pl.DataFrame | None, workload: str) -> str:
    """Say what a daemon costs the native order, from profiled iterations of runs that trained the same.

    Two runs that began with the same bits come before others.
    """
    rows = [r for r in _rows(reasons, workload) if r["kind"] == "profile" and r["what"] == "native iteration"]
    pairs = [
        (on, off) for on in rows for off in rows if on["mps"] > off["mps"] and on["setup"] == off["setup"]
    ]
    if not pairs:
        return ""
    on, off = next((pair for pair in pairs if same_bits(*pair)), pairs[0])
    change = f"{100 * (on['seconds'] / off['seconds'] - 1):+.1f} %"
    weights = "the same weights" if same_bits(on, off) else "weights that need not have the same bits"
    return (
        f"a daemon by itself changes the native iteration by {change}"
        f" ({on['seconds']:.2f} against {off['seconds']:.2f} s, each the first one after the"
        f" recording, by {weights})"
    )


def measured(reasons: pl.DataFrame | None, workload: str, *, mps: bool) -> str:
    """Return all that is known of why runs of a workload are as fast as they are; empty if nothing is."""
    if mps:
        parts = [room(reasons, workload), cost_of_mps(reasons, workload)]
    else:
        drawn = drawing(reasons, workload)
        parts = [drawn or turns(reasons, workload), idle(reasons, workload), serial(reasons, workload)]
    parts.append(bounds(reasons, workload, mps=mps))
    told = "; ".join(p for p in parts if p)
    return f"; measured: {told}" if told else ""
