"""What ``nsys stats`` printed for a capture, and the same out of a trace, as comparable dictionaries."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import polars as pl

Row = dict[str, float]

CAPTURES = [
    "h200_vla",
    "long_init_range",
    "range_text_only_in_textid",
    "ranges_without_names",
    "schema_3_25_windows",
    "training_autograd_thread",
]
#: Names of network layers look like paths and were taken out of this capture after nsys had printed them.
LAYERS_REMOVED = "range_text_only_in_textid"
OWN = "vla_chunk_and_training"

SUMMARY = {
    "total_ns": "Total Time (ns)", "count": "Instances", "min_ns": "Min (ns)", "max_ns": "Max (ns)",
    "mean_ns": "Avg (ns)", "median_ns": "Med (ns)", "std_ns": "StdDev (ns)",
}  # fmt: skip
PROJECTION = {
    "projected_ns": "Total Proj Time (ns)", "range_ns": "Total Range Time (ns)", "count": "Range Instances",
    "operations": "Total GPU Ops", "min_ns": "Proj Min (ns)", "max_ns": "Proj Max (ns)",
    "mean_ns": "Proj Avg (ns)", "median_ns": "Proj Med (ns)", "std_ns": "Proj StdDev (ns)",
    "mean_operations": "Avg GPU Ops", "mean_level": "Avg Range Lvl", "mean_children": "Avg Num Child",
}  # fmt: skip
#: Whole numbers, equal to the unit; the others are printed with one decimal.
EXACT = {"total_ns", "projected_ns", "range_ns", "count", "operations", "min_ns", "max_ns"}
STYLES = {"PushPop": "push_pop", "StartEnd": "start_end"}


def printed(path: Path, label: str, columns: Mapping[str, str]) -> dict[tuple[str, str], Row]:
    """(Label, style) -> values of a CSV of ``nsys stats``; a nameless range is printed as an empty label."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = {
        (r[label], STYLES.get(r.get("Style", ""), "")): {
            ours: int(r[theirs]) if ours in EXACT else float(r[theirs]) for ours, theirs in columns.items()
        }
        for r in rows
    }
    assert len(found) == len(rows)
    return found


def ours(frame: pl.DataFrame, label: str, columns: Mapping[str, str]) -> dict[tuple[str, str], Row]:
    """The same of a frame, floats as nsys prints them."""
    styles = frame["style"].cast(pl.String).to_list() if columns is PROJECTION else [""] * frame.height
    keys = zip(frame[label].fill_null("").to_list(), styles, strict=True)
    rounded = frame.select(pl.col(c) if c in EXACT else pl.col(c).cast(pl.Float64).round(1) for c in columns)
    return dict(zip(keys, rounded.to_dicts(), strict=True))


def without_layers(rows: Mapping[tuple[str, str], Row]) -> dict[tuple[str, str], Row]:
    """Rows of labels that are alike once layer names are taken out, put together; exact columns only."""
    put: dict[str, Callable[[list[float]], float]] = {"min_ns": min, "max_ns": max}
    groups: dict[tuple[str, str], list[Row]] = {}
    for (label, style), row in rows.items():
        groups.setdefault((re.sub(r"(?<![\w])/\S+|(?<=after_)/\S+", "<path>", label), style), []).append(row)
    return {
        key: {c: put.get(c, sum)([r[c] for r in group]) for c in group[0] if c in EXACT}
        for key, group in groups.items()
    }


def assert_equal(capture: str, got: dict[tuple[str, str], Row], want: dict[tuple[str, str], Row]) -> None:
    if capture == LAYERS_REMOVED:
        got, want = without_layers(got), without_layers(want)
    assert got.keys() == want.keys()
    for key, row in want.items():
        for column, value in row.items():
            mine = got[key][column]
            # halves are rounded up by one program and to even by the other
            assert mine == value or (column not in EXACT and abs(mine - value) < 0.11), (key, column)
