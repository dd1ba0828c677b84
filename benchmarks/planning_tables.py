"""Tables of the results under benchmarks/results/planning."""

from __future__ import annotations

from typing import Any


def _machine(result: dict[str, Any]) -> str:
    return f"{result['date']}, {result['cores']} CPUs with other work beside, Python {result['python']}"


def speed_table(result: dict[str, Any]) -> str:
    """Conditions and measurements of `benchmarks.plan_search`."""
    out = [
        f"{_machine(result)}; load average {result['load_average']:.1f} at the start;"
        f" {result['rounds']} rounds, seconds of processor time.",
        "",
        "| GPUs | evaluations/s, one core: median (min..max) | target | plain evaluation |",
        "|---:|---:|---:|---:|",
    ]
    for row in result["rows"]:
        median, low, high = row["per_second"]
        out.append(
            f"| {row['gpus']:,} | {median:,.0f} ({low:,.0f}..{high:,.0f}) | {row['target_per_second']:,}"
            f" | {row['plain_evaluation_ms']:.1f} ms |"
        )
    return "\n".join(out)


def stability_table(result: dict[str, Any]) -> str:
    """Conditions and measurements of `benchmarks.plan_stability`."""
    out = [
        f"{_machine(result)}. The paper: {result['paper']}.",
        "",
        "| GPUs | models | seeds | annealing | with polishing | CPU s | mean tokens/s | CV | worst below best"
        " | target CV |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in result["rows"]:
        target = "" if row["target_cv_frac"] is None else f"{100 * row['target_cv_frac']:.0f} %"
        out.append(
            f"| {row['gpus']:,} | {row['models']} | {row['seeds']} | {row['evaluations']:,}"
            f" | {row['spent_median']:,.0f} | {row['cpu_s_median']:.1f} | {row['mean_tokens_per_s']:,.0f}"
            f" | {100 * row['cv_frac']:.2f} % | {100 * row['worst_below_best_frac']:.2f} % | {target} |"
        )
    return "\n".join(out)


def large_table(result: dict[str, Any]) -> str:
    """Conditions and measurements of `benchmarks.plan_large`."""
    long = result["long"]
    out = [
        f"{_machine(result)}. The long search: {long['wall_s']:,.0f} s, in which two processes got"
        f" {long['cpu_s']:,.0f} s of processor time, {long['evaluations']:,} evaluations,"
        f" {long['tokens_per_s']:,.0f} tokens/s: two idle cores would have given {2 * long['wall_s']:,.0f} s."
        f" Best of all runs: {result['best_of_all_tokens_per_s']:,.0f} tokens/s.",
        "",
        "| limit s | seeds | CPU s got of two cores | evaluations | behind the long one, by seed | target |",
        "|---:|---:|---:|---:|---|---:|",
    ]
    for row in result["short"]:
        losses = ", ".join(f"{100 * x:.2f} %" for x in row["loss_to_long_frac"])
        out.append(
            f"| {row['seconds']:g} | {row['seeds']} | {row['cpu_s_median']:.1f} of {2 * row['seconds']:g}"
            f" | {row['evaluations_median']:,.0f} | {losses} | {100 * row['target_loss_frac']:.0f} % |"
        )
    return "\n".join(out)


def calibration_table(result: dict[str, Any]) -> str:
    """Conditions and accuracy of `benchmarks.gpu.calibrate`, of every way to fit."""
    machine = result["machine"]
    out = [
        f"{machine['name']}, {machine['count']} of them, {machine['dtype']}, PyTorch"
        f" {machine['versions']['torch']}, driver {machine['versions'].get('driver', 'unknown')}. Shipped"
        f" constants: {result['way']} (chosen by the half that a fit may see).",
        "",
        "| fit | held out | number | time MAPE | bias | Spearman | pairs in order | peak memory MAPE |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for way, parts in result["accuracy"].items():
        several = "several devices, held out"
        roles = [f"held out, {r}" for r in ("inference", "generation", "training")]
        for name in ["held out", *(roles if way == result["way"] else []), several]:
            a = parts[name]
            what = {"held out": "one GPU", several: "two GPUs"}.get(name, name.partition(", ")[2])
            out.append(
                f"| {way} | {what} | {a['configurations']} | {100 * a['mape']:.1f} %"
                f" | {100 * a['bias']:+.1f} % | {a['spearman']:.3f}"
                f" | {100 * a['ordered_pairs_frac']:.1f} % | {100 * a['memory_mape']:.1f} % |"
            )
    return "\n".join(out)
