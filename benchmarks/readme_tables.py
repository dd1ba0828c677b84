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


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "read_speed": read_speed_table,
    "kineto_vs_traceinsight": kineto_table,
    "annotate_overhead": annotate_overhead_table,
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
