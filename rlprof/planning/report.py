"""A plan for people: tables of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlprof.planning.cost_memory import GroupMemory
from rlprof.planning.evaluate import Evaluation
from rlprof.planning.explain import Term
from rlprof.planning.gains import Loss, Rung, ladder, losses
from rlprof.planning.plan import Box
from rlprof.planning.timeline import gpu_ranges
from rlprof.text import clean, shorten

if TYPE_CHECKING:
    from rlprof.planning.plan_file import SavedPlan
    from rlprof.planning.search import SearchResult

#: Width of a Gantt chart in text, and most rows of it.
GANTT_COLUMNS, GANTT_ROWS = 72, 24
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
TRANSFER, IDLE = "~", "."


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Lay out rows in columns; those numbered in `right` end alike."""
    lines = [headings, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]

    def cell(i: int, text: str) -> str:
        return text.rjust(widths[i]) if i in right else text.ljust(widths[i])

    return "\n".join("  ".join(cell(i, text) for i, text in enumerate(line)).rstrip() for line in lines)


def percent(frac: float) -> str:
    """Write a change in percent, with its sign; what rounds to nothing is +0.0 %."""
    return f"{round(frac, 3) + 0.0:+.1%}"


def gigabytes(size_bytes: float) -> str:
    """Write a size in GB, of 10^9 bytes."""
    return f"{size_bytes / 1e9:.1f} GB"


def box_text(box: Box) -> str:
    """Write a box as "rack 1, nodes 0-7, GPUs 0-1"."""
    parts = []
    for name, first, count in zip(("rack", "node", "GPU"), box.origin, box.extent, strict=True):
        parts.append(f"{name} {first}" if count == 1 else f"{name}s {first}-{first + count - 1}")
    return ", ".join(parts)


def assignments_table(evaluation: Evaluation) -> str:
    """What runs where, how, and for how long."""
    seconds: dict[int, float] = {}
    nodes = enumerate(evaluation.graph.nodes)
    for n, node in nodes:
        if node.kind == "op" and node.step == 0:
            spent = evaluation.timeline.finish_s[n] - evaluation.timeline.start_s[n]
            seconds[node.vertex] = seconds.get(node.vertex, 0.0) + spent
    rows = []
    for i, v in enumerate(evaluation.problem.pipeline.invocations):
        a = evaluation.plan[v.name]
        rows.append(
            (
                clean(v.name),
                f"{a.box.size}",
                box_text(a.box),
                f"{a.parallelism.data} x {a.parallelism.pipeline} x {a.parallelism.tensor}",
                f"{a.microbatches}",
                f"{seconds[i]:.3f} s" if i in seconds else "fused",
            )
        )
    return table(("invocation", "GPUs", "which", "DP x PP x TP", "mb", "time"), rows, right=(1, 4, 5))


def memory_table(memory: Sequence[GroupMemory], usable_bytes: float, names: Sequence[str]) -> str:
    """Peak of every group of GPUs that hold the same, and what makes it."""
    rows = []
    for group in memory:
        kept = sum(size for _, size in group.persistent)
        most = max(group.transient, key=lambda t: t[1], default=None)
        rows.append(
            (
                shorten(gpu_ranges(group.mask), 32),
                gigabytes(kept),
                "nothing" if most is None else f"{gigabytes(most[1])} ({clean(names[most[0]])})",
                gigabytes(group.peak_bytes),
                f"{group.peak_bytes / usable_bytes:.0%}",
            )
        )
    return table(("GPUs", "kept", "most while running", "peak", "of usable"), rows, right=(1, 3, 4))


def comparison_table(named: Sequence[tuple[str, Evaluation]]) -> str:
    """Plans side by side; the gain is that of the first one over each."""
    best = named[0][1]
    rows = []
    for name, e in named:
        fits = "yes" if e.feasible else f"no ({e.memory_ratio:.2f} of usable)"
        gain = percent(best.score / e.score - 1) if e is not best else ""
        step_s = e.makespan_s / e.problem.options.steps
        figures = (
            f"{e.score:,.0f}",
            f"{step_s:.3f} s",
            f"{e.utilisation_frac:.1%}",
            f"{e.timeline.parallelism:.2f}",
        )
        rows.append((name, *figures, gigabytes(e.peak_bytes), fits, gain))
    headings = (
        "plan",
        "tokens/s",
        "step",
        "GPUs held",
        "P_eff",
        "peak",
        "fits",
        f"{named[0][0]} is faster by",
    )
    return table(headings, rows, right=(1, 2, 3, 4, 5, 7))


def ladder_table(rungs: Sequence[Rung]) -> str:
    """The way from the baseline to the plan."""
    rows = [(r.what, f"{r.score:,.0f}", percent(r.gain_frac) if n else "") for n, r in enumerate(rungs)]
    return table(("where the gain comes from", "tokens/s", "gain"), rows, right=(1, 2))


def losses_table(found: Sequence[Loss]) -> str:
    """What each mechanism is worth."""
    rows = [(x.what, f"{x.score:,.0f}", percent(x.loss_frac)) for x in found]
    return table(("this plan without", "tokens/s", "loss"), rows, right=(1, 2))


def terms_table(found: Sequence[Term]) -> str:
    """All terms of the cost model."""
    rows = [
        (clean(t.invocation), t.quantity, clean(t.term), f"{t.value:,.6g}", t.unit, t.formula) for t in found
    ]
    return table(("invocation", "of", "term", "value", "unit", "formula"), rows, right=(3,))


def gantt_text(evaluation: Evaluation, columns: int = GANTT_COLUMNS) -> str:
    """The schedule in letters: a row for GPUs that are held together, a column for a stretch of time.

    A column shows what holds the GPUs for the longest part of it.
    """
    timeline, pipeline = evaluation.timeline, evaluation.problem.pipeline
    span = timeline.makespan_s
    if not span:
        return "nothing takes time"
    letters = {i: LETTERS[i % len(LETTERS)] for i in range(len(pipeline.invocations))}
    groups = sorted(timeline.groups, key=lambda g: -g[0].bit_count())
    shown = sorted(groups[:GANTT_ROWS], key=lambda g: g[0] & -g[0])
    labels = [shorten(f"GPU {gpu_ranges(mask)}", 24) for mask, _ in shown]
    width = max(map(len, labels))
    lines = []
    for label, (_, held) in zip(labels, shown, strict=True):
        most: list[dict[str, float]] = [{} for _ in range(columns)]
        for n in held:
            node = timeline.graph.nodes[n]
            letter = letters[node.vertex] if node.kind == "op" else TRANSFER
            first, last = timeline.start_s[n] / span * columns, timeline.finish_s[n] / span * columns
            for column in range(int(first), min(columns, int(last) + 1)):
                part = min(last, column + 1) - max(first, column)
                if part > 0:
                    most[column][letter] = most[column].get(letter, 0.0) + part
        cells = []
        for there in most:
            idle = 1 - sum(there.values())
            letter = max(there, key=there.__getitem__, default=IDLE)
            cells.append(letter if there and there[letter] >= idle else IDLE)
        lines.append(f"{label.ljust(width)} |{''.join(cells)}|")
    if len(groups) > len(shown):
        lines.append(f"{len(groups) - len(shown)} more groups of GPUs are not shown")
    axis = f"0 s{f'{span:.2f} s'.rjust(columns - 3)}"
    legend = [f"{letters[i]} {clean(v.name)}" for i, v in enumerate(pipeline.invocations)]
    lines += [f"{' ' * width}  {axis}", f"{', '.join(legend)}, {TRANSFER} transfer or reshard, {IDLE} idle"]
    return "\n".join(lines)


def summary(saved: SavedPlan, result: SearchResult) -> str:
    """A search for people: the plan, its memory, the baselines, where the gain comes from, its schedule."""
    e = result.evaluation
    problem = e.problem
    baselines = saved.evaluate_baselines()
    tau = ", ".join(f"{m} {k}" for m, k in problem.pipeline.tau.items())
    rate = result.evaluations / result.seconds if result.seconds else math.nan
    head = [
        f"{problem.pipeline.name} on {problem.cluster} ({problem.cluster.size:,} GPUs): "
        f"{e.score:,.0f} tokens/s predicted, staleness {tau or 'none'}",
        f"{result.evaluations:,} plans evaluated in {result.seconds:.1f} s ({rate:,.0f} per second),"
        f" hash {saved.hash[:12]}",
    ]
    notes = []
    nominal = problem.cluster.hardware.nominal
    if nominal:
        notes.append(
            f"{len(nominal)} of {len(problem.cluster.hardware.constants)} constants of"
            f" {problem.cluster.hardware.name} are nominal, not measured: compare plans, do not trust times."
        )
    if not problem.workload.quantiles and any(v.role == "generation" for v in problem.pipeline.invocations):
        notes.append("No --quantiles of the response lengths: generation is not split into phases.")
    names = [v.name for v in problem.pipeline.invocations]
    parts = [
        "\n".join(head),
        assignments_table(e),
        memory_table(e.memory, problem.cluster.usable_bytes, names),
        comparison_table([("this plan", e), *baselines.items()]),
        ladder_table(ladder(e, baselines["concurrent"], saved.synchronous_score)),
        *([losses_table(lost)] if (lost := losses(e)) else []),
        gantt_text(e),
    ]
    return "\n\n".join([*parts, *(["\n".join(notes)] if notes else [])])
