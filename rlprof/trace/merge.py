"""Several captures of one run as one trace: one clock, distinct processes, distinct devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TypeVar

import polars as pl

from rlprof.errors import UsageError
from rlprof.trace.clock import Clock, common_clock
from rlprof.trace.ranks import RANK_FROM, Identity, identify, refuse_same_capture
from rlprof.trace.tables import TABLE_NAMES, TableName, conform, empty, schema
from rlprof.trace.trace import Loaded, Loader, Trace, TraceMeta

T = TypeVar("T")
#: Device numbers at which those of the n-th file begin that its `devices` table does not list.
_UNLISTED = 1000
_HOST_DEVICE = -1
_SHIFTED = ("start_ns", "end_ns")


@dataclass(frozen=True)
class Part:
    """One capture among several, and how its rows are renumbered.

    Parameters
    ----------
    trace : Trace
        The capture.
    label : str
        The name that reports show; distinct for each capture.
    where : str
        How the user named it, for errors.
    shift_ns : int
        Added to its times to bring them onto the common clock.
    first_process : int
        Added to its process numbers.
    devices : mapping of int to int
        Its device numbers and those in the merged trace.
    unlisted : int
        Added to device numbers that are not in `devices`.
    """

    trace: Trace
    label: str
    where: str
    shift_ns: int = 0
    first_process: int = 0
    devices: Mapping[int, int] | None = None
    unlisted: int = 0

    def device(self, number: int) -> int:
        """Number of one of its devices in the merged trace."""
        if number == _HOST_DEVICE:
            return number
        return (self.devices or {}).get(number, number + self.unlisted)


def merge(
    traces: Sequence[Trace],
    *,
    names: Sequence[str] | None = None,
    rank_from: str = "auto",
    anchors: Mapping[str, int] | None = None,
) -> Trace:
    """Put several captures of one run into one trace.

    Clocks are aligned by what each capture says of Unix time at its zero, or by `anchors`. Processes of
    different captures stay different, whatever their pids. GPUs are the same if their UUIDs are.

    Parameters
    ----------
    traces : sequence of Trace
        The captures.
    names : sequence of str, optional
        How the user named them, for errors; their file names if not given.
    rank_from : {"auto", "file", "none"}
        See `rlprof.read`.
    anchors : mapping of file to int, optional
        See `rlprof.read`.

    Returns
    -------
    Trace
        Format ``merged``; ``meta.clock_uncertainty_ns`` and the notes say how well the clocks agree.

    Raises
    ------
    ClockError
        If a capture states no Unix time and has no anchor, or their times do not overlap.
    RankError
        If two captures claim one rank or hold one session.
    UsageError
        If an anchor or `rank_from` cannot be used.
    """
    where = list(names) if names is not None else ["+".join(t.meta.files) for t in traces]
    if not traces or len(where) != len(traces):
        raise UsageError(f"{len(where)} names for {len(traces)} captures to merge")
    labels = short_labels(where)
    if rank_from not in RANK_FROM:
        raise UsageError(f"rank_from: {rank_from!r} is none of {', '.join(RANK_FROM)}")
    refuse_same_capture(traces, where)
    identity = identify(traces, where, labels, rank_from)
    clock = common_clock(traces, where, labels, anchors or {})
    parts, device_notes = _renumber(traces, where, labels, clock)
    if len(parts) == 1:
        (only,) = parts
        return replace(only.trace, meta=_meta(parts, clock), loaders=_loaders(parts, identity))
    notes = [*clock.notes, *identity.notes, *device_notes, *_absent(parts)]
    notes += _together({p.label: p.trace.base_notes for p in parts})
    return Trace(_meta(parts, clock), _loaders(parts, identity), _missing(parts), tuple(notes))


def short_labels(names: Sequence[str]) -> list[str]:
    """Name each file by the end of its path, as short as keeps all different.

    Parameters
    ----------
    names : sequence of str
        Paths.

    Returns
    -------
    list of str
        File names; with folders in front where several files have one name.
    """
    parts = [PurePath(n).parts or (n,) for n in names]
    labels = []
    for i, own in enumerate(parts):
        others = [p for j, p in enumerate(parts) if j != i]
        depth = next((d for d in range(1, len(own)) if all(o[-d:] != own[-d:] for o in others)), len(own))
        labels.append("/".join(own[-depth:]).lstrip("/") if depth < len(own) else own[-1])
    for i, label in enumerate(labels):
        if labels.count(label) > 1:
            labels[i] = f"{label} #{i + 1}"
    return labels


# --- renumbering ---------------------------------------------------------------------------------------


def _renumber(
    traces: Sequence[Trace], where: Sequence[str], labels: Sequence[str], clock: Clock
) -> tuple[list[Part], list[str]]:
    parts: list[Part] = []
    by_uuid: dict[str, int] = {}
    taken: set[int] = set()
    kept_apart: list[str] = []
    unknown = False
    first_process = 0
    for i, trace in enumerate(traces):
        rows = list(trace.table("devices", ["device", "uuid"]).iter_rows())
        numbers = {d: by_uuid[u] for d, u in rows if u and u in by_uuid}
        # keep numbers where they are free, so that `cuda:1` of one file stays 1 if no other file has a 1
        fresh = [(d, u) for d, u in rows if d not in numbers]
        for device, _ in fresh:
            if device not in taken:
                numbers[device] = device
        for device, _ in fresh:
            if device not in numbers:
                free = max(taken | set(numbers.values()), default=-1) + 1
                numbers[device] = free
                kept_apart.append(f"GPU {device} of {labels[i]} is GPU {free} here")
        unknown |= any(not u for _, u in rows)
        by_uuid |= {u: numbers[d] for d, u in rows if u}
        taken |= set(numbers.values())
        parts.append(
            Part(trace, labels[i], where[i], clock.shift_ns[i], first_process, numbers, i * _UNLISTED)
        )
        first_process += _process_count(trace)
    notes = []
    if kept_apart:
        why = (
            "the captures do not identify their GPUs (no UUID): those of different files count as different"
            if unknown
            else "different GPUs had one number"
        )
        notes.append(f"{why}: {_few(kept_apart)}")
    return parts, notes


def _process_count(trace: Trace) -> int:
    listed: tuple[TableName, ...] = ("processes",)
    rows: tuple[TableName, ...] = ("ranges", "kernels", "api")
    tables = listed if trace.has("processes") else rows
    used = [trace.table(name, ["process"])["process"].max() for name in tables]
    return max((int(u) + 1 for u in used if u is not None), default=1)  # type: ignore[arg-type]


# --- tables --------------------------------------------------------------------------------------------


def _loaders(parts: Sequence[Part], identity: Identity) -> dict[TableName, Loader]:
    loaders: dict[TableName, Loader] = {}
    for name in TABLE_NAMES:
        if any(p.trace.has(name) for p in parts):
            loaders[name] = _loader(parts, name, identity)
    return loaders


def _loader(parts: Sequence[Part], name: TableName, identity: Identity) -> Loader:
    special: dict[TableName, Callable[[pl.DataFrame], pl.DataFrame]] = {
        "processes": identity.apply,
        "devices": lambda frame: frame.unique("device", keep="first", maintain_order=True),
    }

    def load(columns: Sequence[str] | None) -> Loaded:
        whole = name in special or name == "activity"
        frames, notes = [], {}
        for part in parts:
            if not part.trace.has(name):
                continue
            loaded = part.trace.loaders[name](None if whole else columns)
            frames.append(_moved(loaded.frame, name, part))
            notes[part.label] = loaded.notes
        more: tuple[str, ...] = ()
        if name == "activity":
            frame, more = _one_sample_at_a_time(frames)
        else:
            frame = pl.concat(frames) if frames else empty(name)
        if name in special:
            frame = special[name](frame)
        return Loaded(frame.select(list(schema(name, columns))), (*_together(notes), *more))

    return load


def _moved(frame: pl.DataFrame, name: TableName, part: Part) -> pl.DataFrame:
    """Rows of one part in the merged trace's clock and numbers."""
    changes = [pl.col(c) + part.shift_ns for c in _SHIFTED if c in frame.columns and part.shift_ns]
    if "process" in frame.columns and part.first_process:
        changes.append(pl.col("process") + pl.lit(part.first_process, dtype=pl.UInt32))
    if "device" in frame.columns:
        old = frame["device"].unique().drop_nulls().to_list()
        changes.append(
            pl.col("device").replace_strict(
                old, [part.device(d) for d in old], default=None, return_dtype=pl.Int32
            )
        )
    frame = frame.with_columns(changes)
    if name == "processes":
        seen = [None if ds is None else [part.device(d) for d in ds] for ds in frame["devices"].to_list()]
        frame = frame.with_columns(
            pl.lit(part.label).alias("file"), pl.Series("devices", seen, dtype=pl.List(pl.Int32))
        )
    return conform(frame, name, frame.columns)


def _one_sample_at_a_time(frames: Sequence[pl.DataFrame]) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Samples of all files; where two files sampled one device at one time, those of the first file."""
    dropped = 0
    kept: list[pl.DataFrame] = []
    for frame in frames:
        fresh = frame
        for earlier in kept:
            spans = earlier.group_by("source", "device").agg(
                pl.col("start_ns").min().alias("_from"), pl.col("end_ns").max().alias("_to")
            )
            fresh = (
                fresh.join(spans, on=["source", "device"], how="left", maintain_order="left")
                .filter(
                    pl.col("_from").is_null()
                    | (pl.col("end_ns") <= pl.col("_from"))
                    | (pl.col("start_ns") >= pl.col("_to"))
                )
                .drop("_from", "_to")
            )
        dropped += frame.height - fresh.height
        kept.append(fresh)
    merged = pl.concat(kept).sort("source", "device", "start_ns", maintain_order=True)
    if not dropped:
        return merged, ()
    return merged, (
        f"{dropped:,} activity samples dropped: another file sampled the same device at the same time",
    )


def _meta(parts: Sequence[Part], clock: Clock) -> TraceMeta:
    metas = [p.trace.meta for p in parts]
    modes = {m.graph_mode for m in metas}
    traced = [m.traced for m in metas if m.traced is not None]
    return TraceMeta(
        format="merged" if len(parts) > 1 else metas[0].format,
        files=tuple(p.label for p in parts),
        start_ns=min(p.trace.meta.start_ns + p.shift_ns for p in parts),
        end_ns=max(p.trace.meta.end_ns + p.shift_ns for p in parts),
        utc_origin_ns=clock.utc_origin_ns,
        clock_uncertainty_ns=clock.uncertainty_ns,
        graph_mode="graph" if "graph" in modes else _same(m.graph_mode for m in metas),
        sampling_hz=_same(m.sampling_hz for m in metas),
        product=_same(m.product for m in metas),
        schema_version=_same(m.schema_version for m in metas),
        traced=frozenset().union(*traced) if traced else None,
        overhead_ns=max((m.overhead_ns for m in metas if m.overhead_ns is not None), default=None),
    )


def _same(values: Iterable[T]) -> T | None:
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _missing(parts: Sequence[Part]) -> dict[TableName, str]:
    out: dict[TableName, str] = {}
    for name in TABLE_NAMES:
        if any(p.trace.has(name) for p in parts):
            continue
        reasons = dict.fromkeys(p.trace.missing[name] for p in parts if name in p.trace.missing)
        if reasons:
            out[name] = "; ".join(reasons)
    return out


def _absent(parts: Sequence[Part]) -> list[str]:
    """Tables that only some of the files hold."""
    notes = []
    for name in ("ranges", "kernels", "activity"):
        lacking = [p.label for p in parts if not p.trace.has(name)]
        if lacking and len(lacking) < len(parts):
            notes.append(f"no {name} in {_few(lacking)}")
    return notes


def _together(notes: Mapping[str, Sequence[str]]) -> list[str]:
    """Notes of several files; one that several files share is given once, with how many."""
    files: dict[str, list[str]] = {}
    for label, own in notes.items():
        for note in own:
            files.setdefault(note, []).append(label)
    return [f"{_few(labels)}: {note}" for note, labels in files.items()]


def _few(names: Sequence[str], limit: int = 3) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
