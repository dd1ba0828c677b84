"""The checks of `rlprof doctor`: each looks at one thing that makes questions unanswerable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import polars as pl

from rlprof.findings import Case, Finding

NODES = "nsys profile --trace=cuda,nvtx --cuda-graph-trace=node"
LIMIT = (
    "record a few iterations: torch.cuda.profiler.start() and stop() around them, and "
    "nsys profile --capture-range=cudaProfilerApi --capture-range-end=stop"
)

#: Time that the profiler itself takes, above which durations are doubtful.
MAX_OVERHEAD_FRAC = 0.05
#: Rows above which reading takes long and viewers give up.
MANY_ROWS = 20_000_000
#: A node shorter than this many sampling periods has a coarse activity.
SHORT_PERIODS = 2
#: Events that cover less of the capture's span than this were cut out of it.
MIN_COVERED_FRAC = 0.5
#: Kernels without the call that launched them, above which calls were lost.
MAX_ORPHAN_FRAC = 0.01


# --- ranges --------------------------------------------------------------------------------------------


def _ranges(case: Case) -> Iterator[Finding]:
    if not case.has_ranges():
        yield Finding(
            "ranges",
            "missing",
            case.trace.missing.get("ranges", "the capture has no ranges"),
            "idle time cannot be assigned to parts of the program, so no window can be ranked",
            case.remedies.annotate,
        )
        return
    tree = case.tree
    styles = tree.nodes["style"].value_counts()
    counts = dict(styles.iter_rows())
    own = sum(n for s, n in counts.items() if s != "operator")
    detail = f"{tree.invocations.height:,} ranges, {tree.nodes.height:,} nodes of the hierarchy"
    if own:
        yield Finding("ranges", "ok", detail)
    else:
        yield Finding(
            "ranges",
            "suspect",
            f"{detail}, all of them operators of the framework",
            "windows are single operators; phases such as rollout or training have no name",
            case.remedies.annotate,
        )


def _iteration(case: Case) -> Iterator[Finding]:
    if not case.has_ranges():
        return
    from rlprof.analysis.iteration import find_iteration

    found = find_iteration(case.tree)
    if found is None:
        yield Finding(
            "iteration",
            "missing",
            "no range looks like a training iteration",
            "times are of the whole capture, not per iteration; start-up and warm-up count too",
            "wrap each training step in a range called `iteration` (PyTorch profiler: prof.step()), or name "
            "the range with --iteration",
        )
    elif found.count < 2:
        yield Finding(
            "iteration",
            "suspect",
            f"{found.name} ran once in the capture",
            "one iteration may be a slow first one; nothing tells how much iterations differ",
            "record three iterations or more after the warm-up",
        )
    else:
        yield Finding("iteration", "ok", f"{found.name}, {found.count} times")


def _range_order(case: Case) -> Iterator[Finding]:
    if not case.has_ranges():
        return
    inv = case.tree.invocations
    cut = int(inv["cut"].sum())
    if cut:
        yield Finding(
            "ranges cut at the capture's end",
            "suspect",
            f"{cut:,} of {inv.height:,} were open when it stopped",
            "their true duration is unknown; they count to the end of the capture",
            "stop the capture between iterations (torch.cuda.profiler.stop()), and let the program end",
        )
    crossing = int(inv["crossing"].sum())
    if crossing:
        names = _names(case.tree.nodes, inv.filter(pl.col("crossing"))["node"])
        yield Finding(
            "crossing ranges",
            "suspect",
            f"{crossing:,} of {inv.height:,} overlap without nesting ({names})",
            "their place in the hierarchy is a guess, so their self time may be wrong",
            "do not hold a push/pop range across an await or a generator; use start/end ranges there "
            "(nvtx.start_range, nvtx.end_range)",
        )


def _processes_without_ranges(case: Case) -> Iterator[Finding]:
    if not case.trace.has("kernels"):
        return
    marked = set(case.tree.nodes["process"])
    silent_ones = [p for p in case.kernels["process"].unique().sort() if p not in marked]
    if silent_ones and marked:
        counts = dict(case.kernels["process"].value_counts().iter_rows())
        shown = ", ".join(f"{case.labels.get(p, p)} ({counts[p]:,} kernels)" for p in silent_ones[:5])
        yield Finding(
            "processes with kernels but no ranges",
            "suspect",
            f"{len(silent_ones)}: {shown}{' and more' if len(silent_ones) > 5 else ''}",
            "their GPU work cannot be named; it counts as activity in the windows of others",
            "annotate the inference engine's workers too (vLLM, SGLang: enable their NVTX option), or mark "
            "the calls into them",
        )


# --- GPU work ------------------------------------------------------------------------------------------


def _kernels(case: Case) -> Iterator[Finding]:
    trace = case.trace
    if trace.has("kernels") and case.kernels.height:
        whole = case.kernels.filter(pl.col("kind") == "graph").height
        plain = case.kernels.height - whole
        yield Finding(
            "kernels",
            "ok",
            f"{plain:,} kernels on {case.kernels['device'].n_unique()} GPU(s)",
        )
        if whole:
            yield Finding(
                "CUDA graphs",
                "suspect",
                f"{whole:,} launches were recorded as a whole (graph mode)",
                "the GPU counts as busy while one runs; its kernels and its idle gaps are unknown",
                NODES,
            )
        return
    calls = trace.table("api", ["process"]).height
    if calls:
        yield Finding(
            "kernels",
            "missing",
            f"{calls:,} CUDA API calls were recorded, but no kernel",
            "whether the GPU was busy is unknown (it is not idle for that)",
            "let the program end by itself, so that the profiler can write what it buffered (Ray: shut the "
            "workers down before the driver); check that no other profiler (CUPTI) is attached",
        )
    else:
        yield Finding(
            "kernels",
            "missing",
            trace.missing.get("kernels", "no GPU work was recorded"),
            "what the GPU ran is unknown (it is not idle for that)",
            case.remedies.kernels,
        )


def _graph_launches(case: Case) -> Iterator[Finding]:
    from rlprof.analysis.signals import blind_times

    times, reason = blind_times(case.trace)
    if reason is not None:
        yield Finding(
            "CUDA-graph launches without GPU records",
            "missing",
            reason.split("; ")[0],
            f"activity from kernels is unavailable for parts that hold one of these {len(times):,} launches",
            NODES,
        )


def _orphans(case: Case) -> Iterator[Finding]:
    if not (case.trace.has("kernels") and case.trace.has("api")):
        return
    calls = case.trace.table("api", ["process", "correlation_id"])
    work = case.kernels.filter(pl.col("correlation_id").is_not_null())
    lone = work.join(calls, on=["process", "correlation_id"], how="anti").height
    if lone > MAX_ORPHAN_FRAC * max(1, work.height):
        yield Finding(
            "kernels without the call that launched them",
            "suspect",
            f"{lone:,} of {work.height:,}",
            "they cannot be projected onto the ranges that launched them; activity is not affected",
            "start the capture before the program launches work, and do not trim the export",
        )


# --- SM activity ---------------------------------------------------------------------------------------


def _counters(case: Case) -> Iterator[Finding]:
    from rlprof.analysis.signals import HOST

    found = case.signals if isinstance(case.signals, tuple) else ()
    measured = [s for s in found if s.source == "sm_counters"]
    if not measured:
        has_kernels = case.trace.has("kernels")
        yield Finding(
            "SM-activity counters",
            "missing",
            case.trace.missing.get("activity", "the capture holds no counters"),
            "how full the SMs are is unknown"
            + ("; kernel intervals give busy time, an upper bound" if has_kernels else ""),
            f"{case.remedies.counters}; {case.remedies.refused}",
        )
        return
    period = max((s.period_ns for s in measured if s.period_ns), default=0)
    samples = sum(len(s.start_ns) for s in measured)
    yield Finding(
        "SM-activity counters",
        "ok",
        f"{samples:,} samples of {len(measured)} GPU(s), one every {period / 1e6:g} ms (median)",
    )
    sampled = {s.device for s in measured}
    unsampled = [d for d in case.kernels["device"].unique().drop_nulls().sort() if d not in sampled | {HOST}]
    if unsampled:
        yield Finding(
            "GPUs without counters",
            "missing",
            f"GPU {', '.join(map(str, unsampled))} ran kernels and was not sampled",
            "the activity of windows on it is unavailable",
            case.remedies.counters,
        )
    yield from _coarse(case, period)


def _coarse(case: Case, period_ns: int) -> Iterator[Finding]:
    tree = case.tree
    if not period_ns or tree.nodes.is_empty():
        return
    mean = tree.invocations.group_by("node").agg((pl.col("end_ns") - pl.col("start_ns")).mean().alias("mean"))
    short = mean.filter(pl.col("mean") < SHORT_PERIODS * period_ns)
    if short.height:
        hertz = 1e9 / period_ns
        yield Finding(
            "sampling period",
            "suspect",
            f"{short.height:,} of {tree.nodes.height:,} nodes last less than {SHORT_PERIODS} periods of "
            f"{period_ns / 1e6:g} ms on average ({_names(tree.nodes, short['node'])})",
            "their activity mixes with that of their neighbours",
            f"sample faster, on fewer iterations: {case.remedies.faster(hertz)} (it was {hertz:.0f} Hz)",
        )


# --- the capture as a whole ----------------------------------------------------------------------------


def _trimmed(case: Case) -> Iterator[Finding]:
    meta = case.trace.meta
    spans = [case.trace.table(t, ["start_ns", "end_ns"]) for t in ("ranges", "kernels", "api")]
    spans.append(case.trace.table("activity", ["start_ns", "end_ns"]))
    rows = pl.concat(spans)
    if rows.is_empty() or meta.duration_ns <= 0:
        return
    lo, hi = rows.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    if hi - lo < MIN_COVERED_FRAC * meta.duration_ns:
        yield Finding(
            "span of the events",
            "suspect",
            f"events lie between {lo / 1e9:.3f} s and {hi / 1e9:.3f} s of a session of "
            f"{meta.duration_ns / 1e9:.3f} s",
            "the rest holds start-up, or was not recorded or cut away: it does not count as idle",
            "nothing, if that was meant (--capture-range); otherwise export the whole report again",
        )


def _overhead(case: Case) -> Iterator[Finding]:
    meta = case.trace.meta
    if meta.overhead_ns is None or meta.duration_ns <= 0:
        return
    share = meta.overhead_ns / meta.duration_ns
    detail = f"the profiler held up some thread for {share:.1%} of the capture"
    if share <= MAX_OVERHEAD_FRAC:
        yield Finding("profiler overhead", "ok", detail)
    else:
        yield Finding(
            "profiler overhead",
            "suspect",
            detail,
            "idle time is partly the profiler's; compare the iteration time with that of a run without it",
            "trace less, after the warm-up: --trace=cuda,nvtx (no osrt), --sample=none, --cpuctxsw=none",
        )


def _devices(case: Case) -> Iterator[Finding]:
    devices = case.trace.table("devices", ["device", "name", "sm_count"])
    unknown = devices.filter(pl.col("sm_count").is_null())
    if devices.is_empty() and not case.trace.has("kernels"):
        return
    if devices.is_empty() or unknown.height:
        which = ", ".join(str(d) for d in unknown["device"]) or "any"
        yield Finding(
            "GPU description",
            "missing",
            f"model or number of SMs of GPU {which} is not recorded",
            "busy time cannot be tightened by grid sizes to a bound of SM activity",
            "do not trim the export; PyTorch profiler: record on the machine with the GPU (deviceProperties)",
        )
    else:
        names = devices["name"].drop_nulls().unique(maintain_order=True)
        yield Finding("GPU description", "ok", f"{devices.height} GPU(s): {', '.join(names)}")


def _clock(case: Case) -> Iterator[Finding]:
    meta = case.trace.meta
    if meta.utc_origin_ns is None:
        yield Finding(
            "wall clock",
            "missing",
            "the capture does not say when its clock started",
            "it cannot be put on one clock with captures of other ranks or processes",
            "export the whole report again with `nsys export`, or state the time with --anchor FILE=TIME",
        )
    elif meta.clock_uncertainty_ns:
        yield Finding(
            "wall clock",
            "suspect" if meta.clock_uncertainty_ns > 1_000_000 else "ok",
            f"times of different clocks (files, GPU, host) agree to {meta.clock_uncertainty_ns / 1e6:g} ms",
            "what is shorter cannot be compared between them"
            if meta.clock_uncertainty_ns > 1_000_000
            else "",
            "keep hosts on one clock (PTP, chrony), or record a common collective: it bounds the difference"
            if meta.clock_uncertainty_ns > 1_000_000
            else "",
        )
    else:
        yield Finding("wall clock", "ok", "the capture states Unix time at the zero of its clock")


def _size(case: Case) -> Iterator[Finding]:
    tables: tuple[Any, ...] = ("ranges", "kernels", "copies", "api", "activity")
    first = {"api": "start_ns", "copies": "start_ns"}
    rows = sum(case.trace.table(t, [first.get(t, "start_ns")]).height for t in tables)
    if rows > MANY_ROWS:
        yield Finding(
            "size",
            "suspect",
            f"{rows:,} rows",
            "reading takes long and viewers of the timeline give up",
            f"{LIMIT}; cut this one with `rlprof export --window A:B --to rlprof`",
        )


def _names(nodes: pl.DataFrame, chosen: pl.Series, limit: int = 3) -> str:
    wanted = nodes.filter(pl.col("node").is_in(chosen.unique().implode()))["path"].unique(maintain_order=True)
    more = f" and {len(wanted) - limit} more" if len(wanted) > limit else ""
    return ", ".join(wanted.head(limit)) + more


CHECKS: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    _ranges,
    _iteration,
    _range_order,
    _processes_without_ranges,
    _kernels,
    _graph_launches,
    _orphans,
    _counters,
    _trimmed,
    _overhead,
    _devices,
    _clock,
    _size,
)
