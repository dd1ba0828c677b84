"""Draw the pictures of the documentation from the results under benchmarks/results.

python -m benchmarks.pictures
"""

from __future__ import annotations

import json
from pathlib import Path

from rlprof.plots import save
from rlprof.plots.gpu_use import gpu_use_chart, gpu_use_rows

ROOT = Path(__file__).resolve().parents[1]


def four_numbers() -> Path:
    """Utilisation, busy, SM activity and occupancy of five kinds of work."""
    measured = json.loads((ROOT / "benchmarks/results/gpu/four_numbers.json").read_text())
    gpu, driver, *_ = measured["machine"]["gpu"].split(", ")
    chart = gpu_use_chart(
        gpu_use_rows(measured["rows"]),
        title="Four numbers that are called GPU use",
        subtitle=[f"{gpu}, driver {driver}, {measured['machine']['date']}; means over seconds of each work"],
    )
    return save(chart, ROOT / "docs/images/four_numbers.png")


if __name__ == "__main__":
    print(four_numbers().relative_to(ROOT))
