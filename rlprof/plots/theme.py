"""Colours, names and text styles that all charts share.

Colours are from the palette of Okabe and Ito (2008), told apart by people with any of the common colour
deficiencies; greys in the middle of the scale stay readable on a white and on a dark background.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlprof.text import clean, shorten

TEXT = "#7a7f87"  # contrast of about 4:1 on white and on near-black
GRID = "#8a8f9840"
MEAN = "#0a7fc2"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"

#: What a node's mean activity means for it, in the order of the ranking.
TIER_1 = "tier 1: below 50 %"
TIER_2 = "tier 2: 50 to 80 %"
BUSY = "80 % or more: excluded"
UNKNOWN = "activity not known"
CATEGORY_COLOURS = {
    TIER_1: "#d55e00",
    TIER_2: "#e6a700",
    BUSY: "#3f97d1",
    UNKNOWN: "#9a9fa6",
}
#: Scale of mean activity: orange below 50 %, blue from 80 %, dark letters are readable on all of it.
ACTIVITY_DOMAIN = (0.0, 0.5, 0.8, 1.0)
ACTIVITY_RANGE = ("#d5640f", "#f3cd86", "#a9d0ea", "#3f97d1")

#: Colours of single windows marked over an activity chart.
WINDOW_COLOURS = ("#d55e00", "#009e73", "#cc79a7", "#e6a700", "#56b4e9", "#8c6bb1")


def category(activity_frac: float | None, tier: int | None) -> str:
    """Name of the class that a node's mean activity puts it into.

    Parameters
    ----------
    activity_frac : float or None
        Time-weighted mean activity, 0..1.
    tier : int or None
        Tier given by the ranking, if any.
    """
    if tier is not None:
        return TIER_1 if tier == 1 else TIER_2
    if activity_frac is None:
        return UNKNOWN
    if activity_frac >= 0.8:
        return BUSY
    return TIER_1 if activity_frac < 0.5 else TIER_2


def short_path(path: str, chars: int = 36) -> str:
    """The end of a node path in at most `chars` characters, as whole names where they fit.

    Labels come from captures and may have any length.
    """
    path = clean(path)
    if len(path) <= chars:
        return path
    parts = path.split("/")
    kept = parts[-1]
    if len(kept) > chars - 2:
        head = (chars - 2) // 3
        return f"{kept[:head]}…{kept[-(chars - 1 - head) :]}"
    for part in reversed(parts[:-1]):
        if len(part) + len(kept) + 3 > chars:
            break
        kept = f"{part}/{kept}"
    return f"…/{kept}"


def process_name(label: str) -> str:
    """A process label as a person calls it: a bare number is a pid."""
    return f"process {label}" if label.isdigit() else label


def window_label(node: str, process: str | None, chars: int = 40) -> str:
    """Label of a window: the end of its path, and its process where that is given."""
    suffix = f" ({shorten(process, 16)})" if process else ""
    return short_path(node, chars - len(suffix)) + suffix


def unique_labels(labels: Sequence[str]) -> list[str]:
    """`labels` made distinct by a count, so that two rows of an axis never fall together."""
    seen: dict[str, int] = {}
    out = []
    for label in labels:
        n = seen[label] = seen.get(label, 0) + 1
        out.append(label if n == 1 else f"{label} ({n})")
    return out


def style(chart: Any) -> Any:
    """`chart` with the shared look: transparent background, quiet axes."""
    return (
        chart.configure(background="transparent", font=FONT)
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=TEXT,
            titleColor=TEXT,
            gridColor=GRID,
            domainColor=TEXT,
            tickColor=TEXT,
            labelFontSize=11,
            titleFontSize=12,
            titleFontWeight="normal",
            titlePadding=8,
        )
        .configure_legend(
            labelColor=TEXT,
            titleColor=TEXT,
            labelFontSize=11,
            titleFontSize=11,
            titleFontWeight="normal",
            symbolStrokeWidth=0,
        )
        .configure_title(
            color=TEXT,
            subtitleColor=TEXT,
            anchor="start",
            fontSize=14,
            subtitleFontSize=11,
            offset=12,
        )
        .configure_header(labelColor=TEXT, titleColor=TEXT)
    )
