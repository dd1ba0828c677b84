"""From the parts of a session, finished or broken off, to one `.rlprof` capture.

Everything is put on the session's clock: nanoseconds of CLOCK_MONOTONIC since the session's start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof import __version__
from rlprof.capture.clock import Anchor, utc_shift_ns
from rlprof.capture.part_reader import ProcessParts, read_parts
from rlprof.errors import DamagedTraceError
from rlprof.progress import Progress, silent

if TYPE_CHECKING:
    import pyarrow as pa

SESSION_FILE = "session.json"
#: Tables of the parts that go into the capture with a process number and shifted times.
EVENTS = ("ranges", "kernels", "copies", "api")
#: Tables of samples, and the text column that they are sorted by first.
SAMPLES = {"activity": "source", "counters": "metric"}


@dataclass(frozen=True)
class SessionFacts:
    """What the session itself knows.

    Parameters
    ----------
    start_ns : int
        CLOCK_MONOTONIC at its start.
    anchor : Anchor
        UTC at its start.
    end_ns : int or None
        Its end; None while it runs, and for ever if it was killed.
    end_anchor : Anchor or None
        UTC at its end.
    backend : str
        Sampler that was taken.
    rate_hz : float or None
        Sampling rate.
    traced : tuple of str
        Out of ``nvtx``, ``cuda``, ``gpu_metrics``.
    keep_ns : tuple of (int or None, int or None)
        Only this span is wanted (``--start-on``, ``--stop-after``), CLOCK_MONOTONIC.
    notes : tuple of str
        For the capture's notes.
    """

    start_ns: int
    anchor: Anchor
    end_ns: int | None = None
    end_anchor: Anchor | None = None
    backend: str = "none"
    rate_hz: float | None = None
    traced: tuple[str, ...] = ("nvtx",)
    keep_ns: tuple[int | None, int | None] = (None, None)
    notes: tuple[str, ...] = field(default_factory=tuple)

    def write(self, folder: Path) -> None:
        """Write the session's file whole or not at all."""
        path = folder / SESSION_FILE
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(self), indent=1))
        temporary.replace(path)

    @classmethod
    def read(cls, folder: Path) -> SessionFacts:
        """Read the session's file.

        Raises
        ------
        DamagedTraceError
            If it is missing or not one.
        """
        try:
            d = json.loads((folder / SESSION_FILE).read_text())
            return cls(
                start_ns=int(d["start_ns"]),
                anchor=Anchor.from_dict(d["anchor"]),
                end_ns=d["end_ns"],
                end_anchor=Anchor.from_dict(d["end_anchor"]) if d["end_anchor"] else None,
                backend=str(d["backend"]),
                rate_hz=d["rate_hz"],
                traced=tuple(d["traced"]),
                keep_ns=tuple(d["keep_ns"]),
                notes=tuple(d["notes"]),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DamagedTraceError(
                "not the folder of a capture session (its session.json is missing or damaged)",
                where=folder.name,
                hint="give the .parts folder that stands beside the capture's output",
            ) from error


def assemble(folder: Path, out: Path, *, force: bool = False, progress: Progress = silent) -> Path:
    """Make a capture of the parts in a session's folder.

    Parameters
    ----------
    folder : pathlib.Path
        The ``.parts`` folder; it is read only. It may be that of a session that was killed.
    out : pathlib.Path
        The `.rlprof` file to make.
    force : bool
        Replace an existing file.
    progress : Progress
        Told the table being written.

    Returns
    -------
    pathlib.Path
        `out`.

    Raises
    ------
    UnreadableError, DamagedTraceError
        If the folder cannot be read or is none of a session.
    OutputError
        If `out` exists and `force` is not set, or cannot be written.
    """
    from rlprof.trace.archive import archive_meta, write_archive

    facts = SessionFacts.read(folder)
    parts = read_parts(folder)
    # a sampler measured the program and is not part of it
    program = [p for p in parts if "sampler" not in p.facts]
    samplers = [p for p in parts if "sampler" in p.facts]
    last = facts.end_ns or max([facts.start_ns + 1, *(_last_ns(p) for p in parts)])
    lo, hi = facts.keep_ns[0] or facts.start_ns, min(facts.keep_ns[1] or last, last)
    tables = {name: _events(name, program, facts.start_ns, (lo, hi)) for name in EVENTS}
    for name, first in SAMPLES.items():
        tables[name] = _samples(name, first, parts, facts.start_ns, (lo, hi))
    tables["loop_counts"] = _loop_counts(program)
    held = {name: t for name, t in tables.items() if t is not None}
    held["devices"] = _devices(samplers, held)
    held["processes"] = _processes(program, out.name)
    meta = archive_meta(
        start_ns=lo - facts.start_ns,
        end_ns=hi - facts.start_ns,
        files=[out.name],
        utc_origin_ns=facts.anchor.utc_of(facts.start_ns),
        clock_uncertainty_ns=_uncertainty_ns(samplers),
        sampling_hz=facts.rate_hz,
        product=f"rlprof {__version__}",
        traced=facts.traced,
        missing=_missing(held, facts),
        notes=_notes(parts, facts),
    )
    return write_archive(out, lambda: meta, held, force=force, progress=progress)


def _last_ns(part: ProcessParts) -> int:
    """Last sign of life of a process."""
    import pyarrow.compute as pc

    ends = [t["end_ns"] for t in part.tables.values() if "end_ns" in t.schema.names and t.num_rows]
    return max((int(pc.max(e).as_py() or 0) for e in ends), default=0)


def _events(
    name: str, program: Sequence[ProcessParts], origin_ns: int, keep: tuple[int, int]
) -> pa.Table | None:
    """One table of all processes, with their numbers, on the session's clock, inside the kept span."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from rlprof.trace.archive import ARROW_SCHEMAS

    schema = ARROW_SCHEMAS[name]
    found = []
    for number, part in enumerate(program):
        table = part.tables.get(name)
        if table is None:
            continue
        inside = pc.and_(pc.less(table["start_ns"], keep[1]), pc.greater_equal(table["end_ns"], keep[0]))
        table = table.filter(inside)
        if name == "ranges":
            # a range that reaches over an edge of the kept span has no duration of its own
            over = pc.or_(pc.less(table["start_ns"], keep[0]), pc.greater(table["end_ns"], keep[1]))
            table = table.set_column(
                table.schema.get_field_index("cut"), "cut", pc.or_(table["cut"].fill_null(False), over)
            )
        for column in ("start_ns", "end_ns"):
            clipped = pc.min_element_wise(pc.max_element_wise(table[column], keep[0]), keep[1])
            index = table.schema.get_field_index(column)
            table = table.set_column(index, column, pc.subtract(clipped, origin_ns))
        table = table.append_column("process", pa.array([number] * table.num_rows, pa.uint32()))
        found.append(table.select(schema.names).cast(schema))
    return pa.concat_tables(found).unify_dictionaries() if found else None


def _samples(
    name: str, first: str, parts: Sequence[ProcessParts], origin_ns: int, keep: tuple[int, int]
) -> pa.Table | None:
    """Samples of all devices, sorted as a trace wants them; those outside the kept span are left out."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = [p.tables[name] for p in parts if name in p.tables]
    if not found:
        return None
    table = pa.concat_tables(found).unify_dictionaries()
    table = table.filter(pc.and_(pc.less(table["start_ns"], keep[1]), pc.greater(table["end_ns"], keep[0])))
    for column in ("start_ns", "end_ns"):
        index = table.schema.get_field_index(column)
        table = table.set_column(index, column, pc.subtract(table[column], origin_ns))
    # dictionaries do not sort: by their text
    plain = table.append_column("text", table[first].cast(pa.string()))
    order = pc.sort_indices(plain, [(c, "ascending") for c in ("text", "device", "start_ns")])
    return table.take(order)


def _loop_counts(program: Sequence[ProcessParts]) -> pa.Table | None:
    import pyarrow as pa

    from rlprof.trace.archive import ARROW_SCHEMAS

    found = []
    for number, part in enumerate(program):
        if (table := part.tables.get("loop_counts")) is not None:
            table = table.append_column("process", pa.array([number] * table.num_rows, pa.uint32()))
            schema = ARROW_SCHEMAS["loop_counts"]
            found.append(table.select(schema.names).cast(schema))
    return pa.concat_tables(found) if found else None


def _devices(samplers: Sequence[ProcessParts], held: Mapping[str, pa.Table]) -> pa.Table:
    """GPUs that the samplers described, and those that only kernels or samples name."""
    import pyarrow as pa

    from rlprof.trace.archive import ARROW_SCHEMAS

    rows: dict[int, dict[str, Any]] = {}
    for part in samplers:
        if (described := part.tables.get("devices")) is not None:
            rows.update({int(row["device"]): row for row in described.to_pylist()})
    for name in ("kernels", "copies", *SAMPLES):
        if name in held:
            for number in held[name]["device"].unique().to_pylist():
                if number is not None and number >= 0:
                    rows.setdefault(number, {"device": number, "name": f"GPU {number}"})
    return pa.Table.from_pylist([rows[n] for n in sorted(rows)], schema=ARROW_SCHEMAS["devices"])


def _processes(program: Sequence[ProcessParts], file: str) -> pa.Table:
    import pyarrow as pa

    from rlprof.trace.archive import ARROW_SCHEMAS

    pids = [p.pid for p in program]
    rows = []
    for number, part in enumerate(program):
        kernels = part.tables.get("kernels")
        devices = (
            sorted({d for d in kernels["device"].unique().to_pylist() if d is not None}) if kernels else None
        )
        rank = part.facts.get("rank")
        # a pid can come around again within a long session
        plain = str(part.pid) if pids.count(part.pid) == 1 else f"{part.pid}.{number}"
        label = plain if rank is None else f"rank {rank}"
        rows.append(
            {
                "process": number,
                "pid": part.pid,
                "rank": rank,
                "label": label,
                "file": file,
                "devices": devices,
            }
        )
    return pa.Table.from_pylist(rows, schema=ARROW_SCHEMAS["processes"])


def _uncertainty_ns(samplers: Sequence[ProcessParts]) -> int:
    """Bound of the error between ranges and samples: that of the worst device clock."""
    clocks = [c for p in samplers for c in (p.facts["sampler"].get("clock") or {}).values()]
    return max([int(c.get("uncertainty_ns") or 0) for c in clocks], default=0)


def _early_end(sampler: ProcessParts, end_ns: int) -> list[str]:
    """That a sampler was gone before its session ended, which told nobody: it was killed."""
    if sampler.facts["sampler"].get("finished") is not False or _has_said_why(sampler):
        return []
    missing_s = (end_ns - _last_ns(sampler)) / 1e9
    backend = sampler.facts["sampler"].get("backend")
    return [f"the {backend} sampler was killed: the last {missing_s:.1f} s of the session have no samples"]


def _has_said_why(sampler: ProcessParts) -> bool:
    return any("sampler stopped early" in note for note in sampler.notes)


def _missing(held: Mapping[str, Any], facts: SessionFacts) -> dict[str, str]:
    reasons = {
        "ranges": "no range was recorded: annotate the program with rlprof.annotate(name)",
        "kernels": "kernels were not recorded; capture with --kernels",
        "copies": "copies were not recorded; capture with --kernels",
        "api": "API calls are not recorded by rlprof capture",
        "activity": f"no activity sample was recorded (sampler: {facts.backend})",
        "counters": "no further hardware counter was asked for: --metrics NAME",
        "loop_counts": "the program stated no loop count",
    }
    return {name: why for name, why in reasons.items() if name not in held}


def _notes(parts: Sequence[ProcessParts], facts: SessionFacts) -> list[str]:
    notes = [*facts.notes]
    if facts.end_ns is None:
        notes.append("the session was broken off: the capture ends with what its processes had written")
    if facts.end_anchor is not None:
        shift = utc_shift_ns(facts.anchor, facts.end_anchor)
        if abs(shift) > 1_000_000:
            notes.append(f"the host's wall clock was stepped by {shift / 1e6:.1f} ms during the session")
    for part in parts:
        notes += part.notes
        if facts.end_ns is not None and "sampler" in part.facts:
            notes += _early_end(part, facts.end_ns)
    return list(dict.fromkeys(notes))
