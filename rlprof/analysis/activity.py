"""Activity of the GPUs while each node of the hierarchy runs.

``a_v = sum a_i |inv ∩ i| / sum |inv ∩ i|`` over the invocations of v and the steps i of a signal
(specification A, section 4): time-weighted, never interpolated, device-wide. It holds the work of everybody
who used the device meanwhile, so it is the room in the window and not v's own demand.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from rlprof.analysis.intervals import F64, I64, StepIntegral, cut_steps, union
from rlprof.analysis.iteration import Iteration, find_iteration
from rlprof.analysis.signals import Signal, blind_times, signals
from rlprof.errors import UsageError
from rlprof.trace.hierarchy import Hierarchy, hierarchy
from rlprof.trace.trace import Trace
from rlprof.unavailable import Unavailable

#: Shares of time below these activities are reported.
THRESHOLDS = (0.5, 0.8)
#: A node of which less than this share of time is covered by samples has no activity.
MIN_COVERAGE_FRAC = 0.5
#: Counters give whole percents: a node all of whose samples say 80 % is at 0.8, not a rounding below it.
ACTIVITY_DECIMALS = 9
CHUNK = 1_000_000


@dataclass(frozen=True)
class NodeSums:
    """Per node (row: node number) and device, sums over its invocations, nanoseconds.

    Parameters
    ----------
    duration_ns : ndarray of float64, shape (nodes,)
        Time of the invocations that counts: inside iterations, or all of it for a node never inside one.
    inside_ns : ndarray of float64, shape (nodes,)
        Time inside iterations.
    covered_ns, active_ns : ndarray of float64, shape (devices, nodes)
        Time covered by the signal, and its integral.
    below_ns : ndarray of float64, shape (thresholds, devices, nodes)
        Covered time in steps below each of `THRESHOLDS`.
    devices : tuple of int
        Device of each row of the arrays above.
    used : ndarray of bool, shape (devices, nodes)
        Whether the node's process uses the device.
    """

    duration_ns: F64
    inside_ns: F64
    covered_ns: F64
    active_ns: F64
    below_ns: F64
    devices: tuple[int, ...]
    used: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]

    def activity(self) -> tuple[F64, F64]:
        """Activity and coverage of each node on each device, shape (devices, nodes); NaN: unavailable."""
        with np.errstate(invalid="ignore", divide="ignore"):
            coverage = self.covered_ns / self.duration_ns
            active = np.round(self.active_ns / self.covered_ns, ACTIVITY_DECIMALS)
        coverage = np.where(self.duration_ns > 0, np.minimum(coverage, 1.0), 0.0)
        active = np.where(self.used & (coverage >= MIN_COVERAGE_FRAC), active, np.nan)
        return active, coverage


def process_devices(trace: Trace, present: tuple[int, ...]) -> dict[int, frozenset[int]]:
    """Devices that each process uses, among those with a signal.

    From the capture's list of CUDA contexts, else from the process' kernels; a process of which neither is
    known may use any.
    """
    listed = trace.table("processes", ["process", "devices"])
    ran = trace.table("kernels", ["process", "device"]).unique() if trace.has("kernels") else None
    by_kernel: dict[int, set[int]] = {}
    for p, d in ran.drop_nulls().iter_rows() if ran is not None else ():
        by_kernel.setdefault(p, set()).add(d)
    out = {}
    for p, devices in listed.iter_rows():
        own = set(devices or ()) or by_kernel.get(p, set()) or set(present)
        # the host stands for every process where no GPU was measured
        out[int(p)] = frozenset(own) if present != (-1,) else frozenset(present)
    return out


def node_sums(
    trace: Trace, tree: Hierarchy, iteration: Iteration | None, found: tuple[Signal, ...]
) -> NodeSums:
    """Integrate every signal over the invocations of every node.

    Parameters
    ----------
    trace : Trace
        For the devices of each process.
    tree : Hierarchy
        Nodes and invocations.
    iteration : Iteration or None
        Only time inside its invocations counts; None: all of it does.
    found : tuple of Signal
        Activity of each device; may be empty.
    """
    n = len(tree.nodes)
    inv = tree.invocations.select("node", "start_ns", "end_ns")
    node = inv["node"].to_numpy().astype(np.int64)
    start, end = inv["start_ns"].to_numpy(), inv["end_ns"].to_numpy()
    process_of = tree.nodes["process"].to_numpy().astype(np.int64)
    owner = process_of[node]
    whole = np.bincount(node, weights=end - start, minlength=n).astype(np.float64)
    inside = np.zeros(n)
    scopes: dict[int, tuple[I64, I64]] = {}
    if iteration is None:
        inside = whole.copy()
    else:
        for p in np.unique(process_of).tolist():
            scopes[p] = union(*iteration.of(p))
            mine = owner == p
            part = StepIntegral.of(*scopes[p]).over(start[mine], end[mine])[0]
            inside += np.bincount(node[mine], weights=part, minlength=n)
    never = inside <= 0
    devices = tuple(s.device for s in found)
    k = len(THRESHOLDS)
    sums = np.zeros((2 + k, len(found), n))
    used = np.zeros((len(found), n), dtype=bool)
    users = process_devices(trace, devices)
    for d, signal in enumerate(found):
        for p in np.unique(process_of).tolist():
            if signal.device not in users.get(p, frozenset(devices)):
                continue
            used[d, process_of == p] = True
            mine = owner == p
            in_scope = mine & ~never[node]
            if iteration is None:
                sums[:, d] += _integrate(signal, None, node[mine], start[mine], end[mine], n)
                continue
            sums[:, d] += _integrate(signal, scopes[p], node[in_scope], start[in_scope], end[in_scope], n)
            rest = mine & never[node]
            if rest.any():
                sums[:, d] += _integrate(signal, None, node[rest], start[rest], end[rest], n)
    duration = np.where(never, whole, inside)
    return NodeSums(duration, inside, sums[0], sums[1], sums[2:], devices, used)


def _integrate(
    signal: Signal, scope: tuple[I64, I64] | None, node: I64, start: I64, end: I64, nodes: int
) -> F64:
    """Covered time, integral, and time below each threshold, per node: shape (2 + thresholds, nodes)."""
    s, e, a = signal.start_ns, signal.end_ns, signal.active_frac
    if scope is not None:
        s, e, a = cut_steps(s, e, a, *scope)
    rows = [np.ones(len(a)), a, *((a < t).astype(np.float64) for t in THRESHOLDS)]
    integral = StepIntegral.of(s, e, *rows)
    out = np.zeros((len(rows), nodes))
    for at in range(0, len(node), CHUNK):
        part = slice(at, at + CHUNK)
        values = integral.over(start[part], end[part])
        for i, v in enumerate(values):
            out[i] += np.bincount(node[part], weights=v, minlength=nodes)
    return out


def blind_nodes(
    trace: Trace, tree: Hierarchy
) -> tuple[np.ndarray[tuple[int], np.dtype[np.bool_]], str | None]:
    """Which nodes hold a CUDA-graph launch whose device work was not recorded, and why."""
    times, reason = blind_times(trace)
    hit = np.zeros(len(tree.nodes), dtype=bool)
    if reason is None:
        return hit, None
    inv = tree.invocations
    a = np.searchsorted(times, inv["start_ns"].to_numpy(), side="left")
    b = np.searchsorted(times, inv["end_ns"].to_numpy(), side="left")
    hit[np.unique(inv["node"].to_numpy()[b > a])] = True
    return hit, reason


@dataclass(frozen=True)
class NodeActivity:
    """Activity of the GPUs while one node runs.

    Parameters
    ----------
    node, process : str
        Path of the node and label of its process.
    source : str
        What was measured: ``sm_counters``, ``kernel_union`` or ``host_cores``.
    sm_activity : float
        ``a_v``, mean over the devices of the node's process, 0..1.
    coverage_frac : float
        Share of the node's time that the source covers.
    by_device : tuple of (int, float)
        ``a_v`` on each device.
    below_frac : tuple of (float, float)
        For each threshold: share of the covered time in steps of lower activity. It depends on the period.
    period_s : float or None
        Median sampling period.
    """

    node: str
    process: str
    source: str
    sm_activity: float
    coverage_frac: float
    by_device: tuple[tuple[int, float], ...]
    below_frac: tuple[tuple[float, float], ...]
    period_s: float | None


def node_activity(trace: Trace, node: str, *, exact_names: bool = False) -> NodeActivity | Unavailable:
    """Activity of the GPUs while a node runs, inside the training iteration if it ever is.

    Parameters
    ----------
    trace : Trace
        Any capture.
    node : str
        Path of a node, or the last part of one.
    exact_names : bool
        Whether ids inside labels are kept.

    Returns
    -------
    NodeActivity or Unavailable
        Unavailable where the capture cannot tell.

    Raises
    ------
    UsageError
        If there is no such node.
    """
    found = signals(trace)
    tree = hierarchy(trace, exact_names=exact_names)
    paths = tree.nodes.filter((pl.col("path") == node) | pl.col("path").str.ends_with("/" + node))
    if paths.is_empty():
        raise UsageError(f"no node is called {node!r}", hint="see trace.windows().frame for their paths")
    if isinstance(found, Unavailable):
        return found
    at = int(paths.sort("depth")["node"][0])
    sums = node_sums(trace, tree, find_iteration(tree), found)
    active, coverage = sums.activity()
    blind, reason = blind_nodes(trace, tree)
    if blind[at] and reason and found[0].source == "kernel_union":
        return Unavailable(reason)
    good = ~np.isnan(active[:, at])
    if not good.any():
        return Unavailable(f"samples cover less than {MIN_COVERAGE_FRAC:.0%} of the time of {node}")
    labels = dict(trace.table("processes", ["process", "label"]).iter_rows())
    row = tree.nodes.row(at, named=True)
    below = sums.below_ns[:, good, at].sum(axis=1) / sums.covered_ns[good, at].sum()
    periods = [s.period_ns for s in found if s.period_ns]
    return NodeActivity(
        node=row["path"],
        process=str(labels.get(row["process"], row["process"])),
        source=found[0].source,
        sm_activity=float(active[good, at].mean()),
        coverage_frac=float(coverage[good, at].mean()),
        by_device=tuple((d, float(active[i, at])) for i, d in enumerate(sums.devices) if good[i]),
        below_frac=tuple((t, float(b)) for t, b in zip(THRESHOLDS, below, strict=True)),
        period_s=max(periods) / 1e9 if periods else None,
    )
