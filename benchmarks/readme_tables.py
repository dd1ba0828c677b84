"""Put the results under benchmarks/results into the tables of benchmarks/README.md.

python -m benchmarks.readme_tables
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.embodied_tables import iterations_table, optimised_table
from benchmarks.gpu.levers import levers_table
from benchmarks.gpu.mps_report import mps_table, quota_table
from benchmarks.kineto_vs_traceinsight import markdown as kineto_table
from benchmarks.part_tables import (
    answer_cost_table,
    drawing_table,
    overlap_probe_table,
    rollout_quota_table,
    warp_probe_table,
)
from benchmarks.planning_tables import calibration_table, large_table, speed_table, stability_table
from benchmarks.searches import search_table

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


def trace_overhead_table(result: dict[str, Any]) -> str:
    """Conditions and measurements of `benchmarks.trace_overhead`."""
    costs = {(cost["call"], cost["state"]): cost["cpu_ns"] for cost in result["costs"]}
    states = list(dict.fromkeys(state for _, state in costs))
    states.sort(key=lambda state: state != "off")
    out = [
        f"{result['date']}, {result['cores']} CPUs, Python {result['python']}, numpy {result['numpy']}; load"
        f" average {result['load_1_min']} at the start; {result['costs'][0]['batches']} batches. CPU us:"
        " median (quartiles).",
        "",
        f"| call | {' | '.join(states)} |",
        f"|---|{'---:|' * len(states)}",
    ]
    for call in dict.fromkeys(call for call, _ in costs):
        cells = []
        for state in states:
            times = [t / 1e3 for t in costs.get((call, state), ())]
            cells.append("{1:.2f} ({0:.2f}..{2:.2f})".format(*times) if times else "")
        out.append(f"| {call} | {' | '.join(cells)} |")
    return "\n".join(out)


def graph_run_table(result: dict[str, Any]) -> str:
    """Conditions and measurements of `benchmarks.graph_run`."""
    seconds, micros = result["seconds"], result["microseconds"]
    shown = "{median:.2f} ({min:.2f}..{max:.2f})".format
    out = [
        f"{result['date']}, {result['cpus']} CPUs, Python {result['python']}; load average"
        f" {result['load_average']:.1f} at the start. Median and range of {result['rounds']} rounds.",
        "",
        f"| of a graph of {result['calls']:,} calls | CPU s | target s |",
        "|---|---:|---:|",
        f"| find all dependencies | {shown(**seconds['dependencies'])} | |",
        f"| lower it to a task graph | {shown(**seconds['lower'])} | {result['targets']['lower_s']:g} |",
        f"| priorities of its tasks | {shown(**seconds['priorities'])} | |",
        "",
        "| a call that does nothing | CPU us | of these the task graph's | beside it | target beside it |",
        "|---|---:|---:|---:|---:|",
    ]
    out += [
        f"| {name} | {shown(**cost['call'])} | {shown(**cost['task graph'])} | {cost['beside']:.1f}"
        f" | {result['targets']['beside_us']:g} |"
        for name, cost in micros.items()
    ]
    return "\n".join(out)


def _machine(result: dict[str, Any]) -> str:
    """Conditions of a measurement on a GPU."""
    m = result["machine"]
    gpu, driver, *_ = m["gpu"].split(", ")
    versions = f"Python {m['python']}, torch {m['torch']}, CUPTI {m['nvidia-cuda-cupti']}"
    return f"{m['date']}, {gpu}, driver {driver}, {m['cores']} cores, {versions}"


def _points(share: float, digits: int = 1) -> str:
    return f"{100 * share:+.{digits}f} %"


def capture_overhead_table(result: dict[str, Any]) -> str:
    """Conditions and measurements of `benchmarks.gpu.capture_overhead`."""
    rates = ", ".join(f"{n} {k:,.0f}" for n, k in result["kernels_per_s"].items())
    out = [
        f"{_machine(result)}. Kernels a second, alone: {rates}. Programs: bound by the GPU, by the host.",
        "",
        "| captured by | bound by the GPU: median (quartiles) | bound by the host: median (quartiles)"
        " | host, fastest against fastest | rounds | sampler's CPU | private MB |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    names = dict.fromkeys(key.rpartition(", ")[0] for key in result["overhead"])
    for name in sorted(names, key=lambda n: n != "alone"):
        seen = {which: result["overhead"][f"{name}, {which}"] for which in ("gpu", "host")}
        sampler = result["samplers"].get(name, {})
        shown = ["nobody (twice, one after the other)" if name == "alone" else name]
        quantiles = ("lower_quartile", "median", "upper_quartile")
        for s, digits in ((seen["gpu"], 2), (seen["host"], 1)):
            low, median, high = (_points(s[k], digits) for k in quantiles)
            shown.append(f"{median} ({low}..{high})")
        shown += ["" if name == "alone" else _points(seen["host"]["fastest"]), str(seen["gpu"]["rounds"])]
        shown += [f"{100 * sampler['cpu_share']:.0f} %" if "cpu_share" in sampler else ""]
        shown += [f"{sampler['memory_bytes']['private'] / 1e6:.0f}" if "memory_bytes" in sampler else ""]
        out.append(f"| {' | '.join(shown)} |")
    return "\n".join(out)


def cupti_vs_nsys_table(result: dict[str, Any]) -> str:
    """Conditions and measurements of `benchmarks.gpu.cupti_vs_nsys`."""
    runs = [r for r in ("cupti", "cupti_again", "nsys_nvtx", "nsys_cuda") if r in result["nodes"][0]]
    titles = {
        "cupti": "CUPTI", "cupti_again": "CUPTI again", "nsys_nvtx": "nsys, NVTX", "nsys_cuda": "nsys, CUDA",
    }  # fmt: skip
    out = [
        f"{_machine(result)}; {result['rate_hz'] / 1000:g} kHz, {result['seconds']:g} s.",
        "",
        f"| node | samples | activity %: {' | '.join(titles[r] for r in runs)}"
        f" | mean ms: {' | '.join(titles[r] for r in runs)} | SM ms: {' | '.join(titles[r] for r in runs)}"
        " | rank |",
        f"|---|{'---:|' * (1 + 3 * len(runs))}---|",
    ]
    for node in result["nodes"]:
        shown = [node["node"], f"{node['samples']:,}"]
        shown += [f"{100 * node[r]:.2f}" if r in node else "" for r in runs]
        shown += [f"{1e3 * node[f'{r}_mean_s']:.2f}" if r in node else "" for r in runs]
        shown += [f"{1e3 * node[f'{r}_sm_s']:.3f}" if r in node else "" for r in runs]
        ranks = [node.get(f"rank_{r}") for r in runs]
        out.append(f"| {' | '.join([*shown, ', '.join('-' if r is None else str(r) for r in ranks)])} |")
    same = 100 * result["same_time_frac"]
    out += [
        "",
        f"| against CUPTI | largest difference, points | on nodes of equal duration (within {same:g} %)"
        " | of SM time per call | same ranking |",
        "|---|---:|---:|---:|---|",
    ]
    for run, most in result["largest_difference"].items():
        equal = most["points_at_same_duration"]
        few = f" ({most['nodes_of_same_duration']} of {most['nodes']})"
        shown = [titles[run], f"{most['points']:.2f}", ("-" if equal is None else f"{equal:.2f}") + few]
        shown += [f"{100 * most['sm_time_frac']:.1f} %", "yes" if most["same_ranking"] else "no"]
        out.append(f"| {' | '.join(shown)} |")
    return "\n".join(out)


def sampler_memory_table(result: dict[str, Any]) -> str:
    """Conditions and measurements of `benchmarks.gpu.sampler_memory`."""
    out = [
        f"{_machine(result)}; 10 kHz, after two seconds. MB = 10^6 bytes.",
        "",
        "| variant | private | proportional | resident |",
        "|---|---:|---:|---:|",
    ]
    for name, seen in result["variants"].items():
        m = seen["memory_mb"]["after two seconds"]
        out.append(f"| {name} | {m['RssAnon']:.0f} | {m['Pss']:.0f} | {m['VmRSS']:.0f} |")
    return "\n".join(out)


def decode_cost_table(result: dict[str, Any]) -> str:
    """Conditions and measurements of `benchmarks.gpu.decode_cost`."""
    out = [
        f"{_machine(result)}; an idle GPU, a core for each thread.",
        "",
        "| period and way of reading | samples | missing | CPU us a sample | of which CUPTI's decode"
        " | of a core |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, seen in result["cases"].items():
        if "samples" not in seen:
            continue
        cost = f"{seen['cpu_us_per_sample']:.1f}" if "cpu_us_per_sample" in seen else ""
        shown = [name, f"{seen['samples']:,}", f"{100 * seen['lost_frac']:.1f} %", cost]
        shown.append(f"{seen['us_per_sample']['pm_sampling_decode_data']:.1f}")
        shown.append(f"{100 * seen['cpu_share']:.0f} %")
        out.append(f"| {' | '.join(shown)} |")
    return "\n".join(out)


def sampler_soak_table(result: dict[str, Any]) -> str:
    """Conditions and measurements of the rates and the soak of `benchmarks.gpu.sampler_facts`."""
    rates = result.get("rates", {})
    runs = {f"{int(rate):,} Hz": r["sampler"] for rate, r in rates.items() if rate.isdecimal()}
    for step, title in (("soak", "soak"), ("stalled", "stopped for 5 s")):
        if "sampler" in (seen := result.get(step, {})):
            runs[f"{1e9 / seen['sampler']['period_ns']:,.0f} Hz, {title}"] = seen["sampler"]
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
    if workers := result.get("processes"):
        empty, array = (
            f"{m['median']:,.0f} us ({m['min']:,.0f}..{m['max']:,.0f})"
            for m in (workers["microseconds"][what] for what in ("empty", "array"))
        )
        size = workers["array_bytes"] >> 20
        out += ["", f"Worker processes, one task after another: {empty} for a task that does nothing,"]
        out += [f"{array} for an array of {size} MiB that one makes and the next gets."]
    return "\n".join(out)


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "read_speed": read_speed_table,
    "kineto_vs_traceinsight": kineto_table,
    "annotate_overhead": annotate_overhead_table,
    "gpu/capture_overhead": capture_overhead_table,
    "gpu/cupti_vs_nsys": cupti_vs_nsys_table,
    "gpu/sampler_soak": sampler_soak_table,
    "gpu/sampler_rates": sampler_soak_table,
    "gpu/sampler_memory": sampler_memory_table,
    "gpu/decode_cost": decode_cost_table,
    "gpu/four_numbers": four_numbers_table,
    "gpu/drawing": drawing_table,
    "gpu/embodied_libero": iterations_table,
    "gpu/embodied_libero_solo": iterations_table,
    "gpu/embodied_libero_mps_solo": iterations_table,
    "gpu/embodied_mujoco_warp": iterations_table,
    "gpu/embodied_mujoco_warp_off": iterations_table,
    "gpu/embodied_mujoco_warp_mps": iterations_table,
    "two_runs_at_once/optimize_libero_prefix_worker": optimised_table,
    "two_runs_at_once/optimize_libero_reset_ahead": optimised_table,
    "gpu/warp_probe": warp_probe_table,
    "gpu/answer_cost": answer_cost_table,
    "gpu/rollout_quota_mujoco_warp": rollout_quota_table,
    "gpu/overlap_probe": overlap_probe_table,
    "gpu/mps": mps_table,
    "gpu/mps_quota": quota_table,
    "planning/search_speed": speed_table,
    "planning/stability": stability_table,
    "planning/large": large_table,
    "planning/h200_calibration": calibration_table,
    "host_soak": host_soak_table,
    "taskgraph_schedule": taskgraph_schedule_table,
    "trace_overhead": trace_overhead_table,
    "graph_run": graph_run_table,
}


#: What a result has if the present version of its benchmark made it; others leave their table as it is.
PRESENT = {
    "gpu/capture_overhead": "orders",
    "gpu/cupti_vs_nsys": "same_time_frac",
    "gpu/sampler_memory": "variants",
    "gpu/decode_cost": "cases",
}


def main() -> None:
    readme = HERE / "README.md"
    text = readme.read_text()
    found = sorted((HERE / "results" / "gpu").glob("optimize_*.json"))
    runs = {f"gpu/{path.stem}": json.loads(path.read_text()) for path in found}
    tables = TABLES | {
        name: partial(optimised_table, beside=[run for other, run in runs.items() if other != name])
        for name in runs
    }
    alone = sorted((HERE / "results" / "levers").glob("*.json"))
    alone += sorted((HERE / "results" / "gpu").glob("levers_*.json"))
    tables |= {f"{path.parent.name}/{path.stem}": levers_table for path in alone}
    kept = sorted((HERE / "results" / "searches").glob("*.json"))
    tables |= {f"searches/{path.stem}": search_table for path in kept}
    for name, table in tables.items():
        path = HERE / "results" / f"{name}.json"
        if path.exists():
            result = json.loads(path.read_text())
            if PRESENT.get(name, "") not in ("", *result):
                print(f"{name}: made by an older version of the benchmark, its table was left as it is")
                continue
            if f"<!-- {name} -->" not in text:
                print(f"{name}: README.md has no place for it (<!-- {name} --> ... <!-- end -->)")
            block = f"<!-- {name} -->\n{table(result)}\n<!-- end -->"
            literal = block.replace("\\", r"\\")
            text = re.sub(rf"<!-- {name} -->.*?<!-- end -->", literal, text, flags=re.DOTALL)
    readme.write_text(text)


if __name__ == "__main__":
    main()
