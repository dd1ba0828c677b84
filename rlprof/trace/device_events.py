"""Names and plausibility of work on a device, as profilers that write Chrome traces record it."""

from __future__ import annotations

import re

import polars as pl

from rlprof.trace.chrome_events import counted

#: Times may look odd in many harmless ways; only device work this long is suspected to be impossible.
SUSPECT_NS = 1_000_000_000
_DAY_NS = 86_400_000_000_000
_COPY = re.compile(r"\b([HDPUA]to[HDPUA])\b")
_ROCM_COPY = re.compile(r"Copy(Host|Device)To(Host|Device)", re.IGNORECASE)


def copy_kind(name: str) -> str:
    """Kind of a copy from its event's name.

    >>> copy_kind("Memcpy HtoD (Pageable -> Device)"), copy_kind("Memset (Device)")
    ('HtoD', 'memset')
    >>> copy_kind("CopyDeviceToHost")
    'DtoH'
    """
    if m := _COPY.search(name):
        return m[1]
    if "memset" in name.lower() or "fill" in name.lower():
        return "memset"
    if m := _ROCM_COPY.search(name):
        return f"{m[1][0].upper()}to{m[2][0].upper()}"
    return "other"


def short_name(name: str) -> str:
    """Name of a kernel without return type, namespaces, template arguments and parameters.

    >>> short_name("void at::native::(anonymous namespace)::cat<unsigned int, 1>(int*, long)")
    'cat'
    >>> short_name("volta_sgemm_128x64_nn"), short_name("std::enable_if<!(false), void>::type k<int>(int)")
    ('volta_sgemm_128x64_nn', 'k')
    """
    text = name.replace("(anonymous namespace)", "anonymous").removesuffix(" [clone .kd]").strip()
    out: list[str] = []
    depth = 0
    for i, char in enumerate(text):
        if char in "<([{":
            # the first parenthesis at the top opens the parameters, unless it belongs to a call operator
            if char == "(" and depth == 0 and not text.startswith("()(", i):
                break
            depth += 1
        elif char in ">)]}" and depth:
            depth -= 1
        elif depth == 0:
            out.append(char)
    base = "".join(out).strip().rpartition("::")[2].strip().rpartition(" ")[2]
    return base or name


def covered_ns(intervals: pl.DataFrame) -> int:
    """Length of the union of intervals, ns.

    Parameters
    ----------
    intervals : polars.DataFrame
        Columns ``start_ns``, ``end_ns``; any order.
    """
    reached = pl.col("end_ns").cum_max().shift(1)
    gained = pl.col("end_ns") - pl.max_horizontal("start_ns", reached)
    return int(intervals.sort("start_ns").select(gained.clip(lower_bound=0).sum()).item())


def suspect_times(raw: dict[str, pl.DataFrame]) -> tuple[dict[str, pl.DataFrame], list[str]]:
    """Set aside events whose times cannot be true.

    * Events at time 0 or before in a capture whose clock is a day or more from 0.
    * Kernels and copies of 0 ns where the clock resolves ns. With a clock of 1 us they are real: they took
      less than 1 us, and are kept.
    * Kernels and copies longer than `SUSPECT_NS` that overlap the next one of their stream by as much (work
      of one stream runs in order), or that last ten times longer than all of the host's events together span.

    Parameters
    ----------
    raw : dict of str to polars.DataFrame
        Tables ``kernels``, ``copies``, ``api``, ``ranges`` with ``start_ns`` and ``end_ns``; the first two
        also with ``device`` and ``stream``.

    Returns
    -------
    raw : dict
        The same tables without those events.
    notes : list of str
        Counts of what was set aside.
    """
    out = dict(raw)
    notes = []
    starts = pl.concat([f["start_ns"] for f in out.values()])
    real = starts.filter(starts > 0)
    if len(real) and len(real) < len(starts) and int(real.sort()[0]) > _DAY_NS:
        out = {name: frame.filter(pl.col("start_ns") > 0) for name, frame in out.items()}
        notes.append(f"{counted(len(starts) - len(real), 'event')} at time 0 or before set aside")
    work = ("kernels", "copies")
    duration = pl.col("end_ns") - pl.col("start_ns")
    fine = any(
        f.select((pl.col(c) % 1000 != 0).any()).item() for f in out.values() for c in ("start_ns", "end_ns")
    )
    empty = {name: int(out[name].select((duration == 0).sum()).item() or 0) for name in work}
    if total := sum(empty.values()):
        if fine:
            out |= {name: out[name].filter(duration > 0) for name in work}
            notes.append(f"{counted(total, 'kernel or copy event')} of 0 ns set aside")
        else:
            notes.append(
                f"{counted(total, 'kernel or copy event')} shorter than the clock's 1 us taken as 0 ns"
            )
    if dropped := _impossible(out, work):
        notes.append(f"{counted(dropped, 'kernel or copy event')} of impossible length set aside")
    return out, notes


def _impossible(out: dict[str, pl.DataFrame], work: tuple[str, ...]) -> int:
    duration = pl.col("end_ns") - pl.col("start_ns")
    if not any(len(out[name]) and out[name].select(duration.max()).item() > SUSPECT_NS for name in work):
        return 0
    host = [out[name].select("start_ns", "end_ns") for name in ("api", "ranges") if len(out[name])]
    span: int | None = None
    if host:
        both = pl.concat(host)
        span = int(both.select(pl.col("end_ns").max() - pl.col("start_ns").min()).item())
    lanes = pl.concat(
        [
            out[n].select("start_ns", "end_ns", "device", "stream", table=pl.lit(n)).with_row_index("row")
            for n in work
        ]
    ).sort("device", "stream", "start_ns")
    following = pl.col("start_ns").shift(-1).over("device", "stream")
    # a predecessor that is itself impossible says nothing, so only the next start counts, not earlier ends
    overlap = (pl.col("end_ns") - following).fill_null(0)
    wrong = (duration > SUSPECT_NS) & (overlap > SUSPECT_NS)
    if span:
        wrong |= (duration > SUSPECT_NS) & (duration > 10 * span)
    bad = lanes.filter(wrong)
    for name in work:
        rows = bad.filter(pl.col("table") == name)["row"]
        if len(rows):
            out[name] = (
                out[name].with_row_index("row").filter(~pl.col("row").is_in(rows.implode())).drop("row")
            )
    return len(bad)
