"""Put the results under benchmarks/results into the tables of benchmarks/README.md.

python -m benchmarks.readme_tables
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.kineto_vs_traceinsight import markdown as kineto_table

HERE = Path(__file__).resolve().parent


def read_speed_table(result: dict[str, Any]) -> str:
    """Conditions and measurements of `benchmarks.read_speed`."""
    rows = result["rows"]
    out = [
        f"{result['date']}, {result['cpus']} CPUs ({result['cpu']}), {result['memory_gb']} GB, Python"
        f" {result['python']}, polars {result['polars']}, SQLite {result['sqlite']};"
        f" load average {result['load_average_at_start']} at the start. Synthetic capture:"
        f" {rows['kernels']:,} kernels with as many API calls, {rows['ranges']:,} ranges, {rows['samples']:,}"
        " samples.",
        "",
        "| case | wall s: median (min..max) | CPU s | peak MB | target s | runs |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for case in result["cases"]:
        target = "" if case["target_s"] is None else f"{case['target_s']:g}"
        if "wall_s" not in case:
            out.append(f"| {case['name']} | {case['note']} | | | {target} | |")
            continue
        wall = case["wall_s"]
        out.append(
            f"| {case['name']} | {wall['median']:.2f} ({wall['min']:.2f}..{wall['max']:.2f})"
            f" | {case['cpu_s_median']:.2f} | {case['peak_mb']} | {target} | {len(case['runs'])} |"
        )
    return "\n".join(out)


def annotate_overhead_table(result: dict[str, Any]) -> str:
    """Conditions and measurements of `benchmarks.annotate_overhead`."""
    out = [
        f"{result['date']}, {result['cores']} CPUs, Python {result['python']}, nvtx {result['nvtx']} with no"
        f" tool attached, {result['uses_per_round']:,} uses a round; load average {result['load_1_min']} at"
        " the end.",
        "",
        "| construct | session | CPU ns: median (quartiles) | wall ns: median (quartiles) | rounds |",
        "|---|---|---:|---:|---:|",
    ]
    for cost in result["costs"]:
        times = ["{1} ({0}..{2})".format(*map(round, t)) for t in (cost["cpu_ns"], cost["wall_ns"])]
        out.append(f"| {cost['construct']} | {cost['state']} | {' | '.join(times)} | {cost['rounds']} |")
    return "\n".join(out)


def _machine(result: dict[str, Any]) -> str:
    """Conditions of a measurement on a GPU."""
    m = result["machine"]
    gpu, driver, *_ = m["gpu"].split(", ")
    versions = f"Python {m['python']}, torch {m['torch']}, CUPTI {m['nvidia-cuda-cupti']}"
    return f"{m['date']}, {gpu}, driver {driver}, {m['cores']} cores, {versions}"


def _points(share: float) -> str:
    return f"{100 * share:+.1f} %"


def capture_overhead_table(result: dict[str, Any]) -> str:
    """Conditions and measurements of `benchmarks.gpu.capture_overhead`."""
    out = [
        f"{_machine(result)}. The program alone launches {result['kernels_per_s']:,.0f} kernels a second.",
        "",
        "| captured by | fastest against fastest | median (quartiles) | measurements | sampler's CPU"
        " | private MB |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, seen in result["overhead"].items():
        sampler = result["samplers"].get(name)
        cost = (
            [f"{100 * sampler['cpu_share']:.0f} %", f"{sampler['memory_bytes']['private'] / 1e6:.0f}"]
            if sampler
            else ["", ""]
        )
        spread = f"({_points(seen['lower_quartile'])}..{_points(seen['upper_quartile'])})"
        shown = [
            "nobody" if name == "alone" else name,
            "" if name == "alone" else _points(seen["fastest"]),
            f"{_points(seen['median'])} {spread}",
            str(len(result["walls_s"][name])),
        ]
        out.append(f"| {' | '.join([*shown, *cost])} |")
    return "\n".join(out)


def cupti_vs_nsys_table(result: dict[str, Any]) -> str:
    """Conditions and measurements of `benchmarks.gpu.cupti_vs_nsys`."""
    runs = ("cupti", "nsys_nvtx", "nsys_cuda")
    largest = result["largest_difference_points_at_1000_samples"]
    out = [
        f"{_machine(result)}; {result['rate_hz'] / 1000:g} kHz, {result['seconds']:g} s."
        f" Largest difference in activity: {largest['nsys_nvtx']:.1f} points with NVTX and counters alone,"
        f" {largest['nsys_cuda']:.1f} points with the tracing of CUDA.",
        "",
        "| node | samples | activity %: cupti | nsys, NVTX | nsys, CUDA | mean ms: cupti | nsys, NVTX"
        " | nsys, CUDA | SM ms: cupti | nsys, NVTX | nsys, CUDA | rank |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for node in result["nodes"]:
        activity = [node[run] for run in runs]
        mean_ms = [1e3 * node[f"{run}_mean_s"] for run in runs]
        shown = [f"{100 * a:.2f}" for a in activity]
        shown += [f"{t:.2f}" for t in mean_ms]
        shown += [f"{a * t:.3f}" for a, t in zip(activity, mean_ms, strict=True)]
        ranks = [node[f"rank_{run}"] for run in runs]
        rank = ", ".join("-" if r is None else str(r) for r in ranks)
        out.append(f"| {node['node']} | {node['samples']:,} | {' | '.join(shown)} | {rank} |")
    return "\n".join(out)


def sampler_soak_table(result: dict[str, Any]) -> str:
    """Conditions and measurements of the rates and the soak of `benchmarks.gpu.sampler_facts`."""
    runs = {f"{int(rate):,} Hz": r["sampler"] for rate, r in result["rates"].items() if rate.isdecimal()}
    soak = result["soak"]["sampler"]
    runs[f"{1e9 / soak['period_ns']:,.0f} Hz, soak"] = soak
    stalled = result["stalled"]["sampler"]
    runs[f"{1e9 / stalled['period_ns']:,.0f} Hz, stopped for 5 s"] = stalled
    out = [
        f"{_machine(result)}.",
        "",
        "| rate | seconds | samples | lost | gaps | sampler's CPU | private MB | MB a minute"
        " | clock within us |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, run in runs.items():
        lost = run["losses"]["lost_samples"]
        clock_us = max(c["uncertainty_ns"] for c in run["clock"].values()) / 1e3
        out.append(
            f"| {name} | {run['wall_s']:.1f} | {run['samples']:,}"
            f" | {100 * lost / (lost + run['samples']):.1f} %"
            f" | {run['losses']['gaps']} | {100 * run['cpu_share']:.0f} %"
            f" | {run['memory_bytes']['private'] / 1e6:.0f} | {run['bytes_per_minute'] / 1e6:.1f}"
            f" | {clock_us:.1f} |"
        )
    return "\n".join(out)


def host_soak_table(result: dict[str, Any]) -> str:
    """Conditions and measurements of `benchmarks.host_soak`."""
    per_minute = result["parts_bytes_per_minute"] / 1e6
    return "\n".join(
        [
            f"{result['date']}, {result['cores']} CPUs, Python {result['python']}.",
            "",
            "| seconds | samples | ranges | sampler's CPU | sampler's peak MB | program's peak MB"
            " | parts MB a minute | capture MB |",
            "|---:|---:|---:|---:|---:|---:|---:|---:|",
            f"| {result['seconds']:.0f} | {result['samples']:,} | {result['ranges']:,}"
            f" | {100 * result['sampler_cpu_share']:.1f} % | {result['peak_sampler_rss_bytes'] / 1e6:.0f}"
            f" | {result['peak_program_rss_bytes'] / 1e6:.0f} | {per_minute:.2f}"
            f" | {result['capture_bytes'] / 1e6:.2f} |",
        ]
    )


def four_numbers_table(result: dict[str, Any]) -> str:
    """Conditions and measurements of `benchmarks.gpu.four_numbers`."""
    columns = ("utilisation", "busy", "sm_activity", "occupancy")
    out = [
        f"{_machine(result)}; {result['seconds']:g} s of each work. In per cent.",
        "",
        "| work | utilisation (NVML) | busy | SM activity | occupancy |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in result["rows"]:
        out.append(f"| {row['work']} | {' | '.join(f'{100 * row[c]:.3g}' for c in columns)} |")
    return "\n".join(out)


def taskgraph_schedule_table(result: dict[str, Any]) -> str:
    """Conditions and measurements of `benchmarks.taskgraph_schedule`."""
    dispatch = [what for what in result["shapes"][0]["seconds"] if what.startswith("run")]
    whole = [what for what in result["shapes"][0]["seconds"] if what not in dispatch]
    out = [
        f"{result['date']}, {result['cores']} CPUs, Python {result['python']}, numpy {result['numpy']};"
        f" load average {result['load_average_at_start']} at the start. Median (min..max) of"
        f" {result['shapes'][0]['rounds']} rounds.",
        "",
        f"| graph | tasks | edges | {' | '.join(f'{what} (s)' for what in whole)}"
        f" | {' | '.join(f'{what} (us a task)' for what in dispatch)} |",
        f"|---|{'---:|' * (2 + len(whole) + len(dispatch))}",
    ]
    for shape in result["shapes"]:
        shown = [shape["shape"], f"{shape['tasks']:,}", f"{shape['edges']:,}"]
        for what in [*whole, *dispatch]:
            scale, digits = (1e6 / shape["tasks"], 1) if what in dispatch else (1.0, 2)
            median, least, most = (scale * shape["seconds"][what][k] for k in ("median", "min", "max"))
            shown.append(f"{median:.{digits}f} ({least:.{digits}f}..{most:.{digits}f})")
        out.append(f"| {' | '.join(shown)} |")
    return "\n".join(out)


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "read_speed": read_speed_table,
    "kineto_vs_traceinsight": kineto_table,
    "annotate_overhead": annotate_overhead_table,
    "gpu/capture_overhead": capture_overhead_table,
    "gpu/cupti_vs_nsys": cupti_vs_nsys_table,
    "gpu/sampler_soak": sampler_soak_table,
    "gpu/four_numbers": four_numbers_table,
    "host_soak": host_soak_table,
    "taskgraph_schedule": taskgraph_schedule_table,
}


def main() -> None:
    readme = HERE / "README.md"
    text = readme.read_text()
    for name, table in TABLES.items():
        path = HERE / "results" / f"{name}.json"
        if path.exists():
            block = f"<!-- {name} -->\n{table(json.loads(path.read_text()))}\n<!-- end -->"
            text = re.sub(rf"<!-- {name} -->.*?<!-- end -->", lambda _, b=block: b, text, flags=re.DOTALL)
    readme.write_text(text)


if __name__ == "__main__":
    main()
