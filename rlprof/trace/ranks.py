"""Who is who in several captures: ranks, labels of processes, and captures given twice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

import polars as pl

from rlprof.errors import RankError
from rlprof.trace.trace import Trace

RANK_FROM = ("auto", "file", "none")
# `rank-3`, `rank_3`, `rank3`, and `-r3` as AReaL writes it; a local rank is no rank
_RANK_IN_NAME = re.compile(
    r"(?<!local)(?<!local[-_.])rank[-_.=]?(\d+)|(?<=[-_.])r(\d+)(?=[-_.]|$)", re.IGNORECASE
)
_SAME_CAPTURE_HINT = "give each capture once, as a report or as an export of it"


@dataclass(frozen=True)
class Claim:
    """The rank of one capture.

    Parameters
    ----------
    rank : int
        The rank.
    group : str or None
        What else the file's name says: rank 0 of `actor` and rank 0 of `rollout` are two. None: the rank is
        of the whole run.
    """

    rank: int
    group: str | None


@dataclass(frozen=True)
class Identity:
    """Ranks of captures by position; None where a capture has none.

    Parameters
    ----------
    ranks : tuple of (int or None)
        The rank that a file's name gives to all its processes, by position.
    labels : tuple of str
        Names of the files in the merged trace.
    keep_own : bool
        Whether ranks that captures state themselves hold.
    notes : tuple of str
        Where ranks were taken from.
    """

    ranks: tuple[int | None, ...]
    labels: tuple[str, ...]
    keep_own: bool
    notes: tuple[str, ...]

    def apply(self, processes: pl.DataFrame) -> pl.DataFrame:
        """Set rank and label of the processes; labels are made distinct."""
        by_file = dict(zip(self.labels, self.ranks, strict=True))
        rows = processes.to_dicts()
        for row in rows:
            own = row["rank"] if self.keep_own else None
            rank = by_file.get(row["file"]) if own is None else own
            shown = str(row["label"])
            # a reader's label is the rank, a worker's name, or the pid
            if rank != row["rank"] or shown == str(row["pid"]):
                plain = re.fullmatch(r"rank \d+|\d+", shown)
                if plain:
                    shown = f"rank {rank}" if rank is not None else str(row["pid"])
            row["rank"], row["label"] = rank, shown
        for extra in ("file", "pid", "process"):
            twice = {r["label"] for r in rows if [o["label"] for o in rows].count(r["label"]) > 1}
            groups = {label: {r[extra] for r in rows if r["label"] == label} for label in twice}
            for row in rows:
                if len(groups.get(row["label"], ())) > 1:
                    tail = {"file": "{}", "pid": "pid {}", "process": "#{}"}[extra].format(row[extra])
                    row["label"] = f"{row['label']}, {tail}"
        return pl.DataFrame(rows, schema=processes.schema)


def identify(
    traces: Sequence[Trace], where: Sequence[str], labels: Sequence[str], rank_from: str
) -> Identity:
    """Find the rank of each capture.

    Parameters
    ----------
    traces : sequence of Trace
        The captures.
    where : sequence of str
        How the user named them.
    labels : sequence of str
        Their names in the merged trace.
    rank_from : {"auto", "file", "none"}
        See `rlprof.read`.

    Returns
    -------
    Identity

    Raises
    ------
    RankError
        If two captures claim one rank.
    """
    nothing = tuple(None for _ in traces)
    if len(traces) == 1 and rank_from == "auto":
        return Identity(nothing, tuple(labels), True, ())
    if rank_from == "none":
        return Identity(nothing, tuple(labels), False, ())
    from_name = [rank_in_name(w) for w in where]
    if rank_from == "file":
        claims: list[list[Claim]] = [[c] if c else [] for c in from_name]
        note = "ranks are taken from the names of the files"
        if not all(claims):
            claims = [[Claim(i, None)] for i in range(len(traces))]
            note = "ranks are the places of the files in the order given"
        _refuse_one_rank(claims, where)
        return Identity(tuple(c[0].rank for c in claims), tuple(labels), False, (note,))
    # a role in the file's name tells apart the ranks of several groups, whoever states the rank
    own = [
        [Claim(r, n.group if n and n.rank == r else None) for r in sorted(_ranks(t))]
        for t, n in zip(traces, from_name, strict=True)
    ]
    claims = [stated or ([named] if named else []) for stated, named in zip(own, from_name, strict=True)]
    _refuse_one_rank(claims, where)
    named_only = [n for s, n in zip(own, from_name, strict=True) if n and not s]
    notes = (f"the ranks of {len(named_only)} files are taken from their names",) if named_only else ()
    given = tuple(n.rank if n and not s else None for s, n in zip(own, from_name, strict=True))
    return Identity(given, tuple(labels), True, notes)


def _ranks(trace: Trace) -> set[int]:
    return {int(r) for r in trace.table("processes", ["rank"])["rank"] if r is not None}


def rank_in_name(name: str) -> Claim | None:
    """The rank that a file's name states, if any: ``rank-3``, ``rank_3``, ``traces-r3.jsonl``."""
    base = PurePath(name).name
    found = list(_RANK_IN_NAME.finditer(base))
    if not found:
        return None
    last = found[-1]
    number = last.group(1) or last.group(2)
    rest = base[: last.start()] + base[last.end() :]
    # a time stamp or a suffix does not make another group: only letters before the rank do
    group = re.sub(r"[\W\d_]+", " ", base[: last.start()]).strip().lower()
    return Claim(int(number), group if rest else None)


def _refuse_one_rank(claims: Sequence[Sequence[Claim]], where: Sequence[str]) -> None:
    seen: list[tuple[Claim, int]] = []
    for i, own in enumerate(claims):
        for claim in own:
            for other, j in seen:
                one_group = claim.group is None or other.group is None or claim.group == other.group
                if other.rank == claim.rank and one_group and i != j:
                    raise RankError(
                        f"{where[j]} and {where[i]} both claim rank {claim.rank}",
                        hint="give one of them, or number them with --rank-from file (by name or order), or "
                        "--rank-from none if they are not ranks",
                    )
            seen.append((claim, i))


def refuse_same_capture(traces: Sequence[Trace], where: Sequence[str]) -> None:
    """Refuse one capture given twice, such as a report and its SQLite export.

    Two captures are one if they have the same Unix time at zero (to the ns), a process in common, most of the
    shorter one's span in common, and no different ranks.

    Raises
    ------
    RankError
        Naming both.
    """
    for i, second in enumerate(traces):
        for j, first in enumerate(traces[:i]):
            a, b = first.meta, second.meta
            if a.utc_origin_ns != b.utc_origin_ns:
                continue
            common = min(a.end_ns, b.end_ns) - max(a.start_ns, b.start_ns)
            if a.utc_origin_ns is None and (a.start_ns, a.end_ns) != (b.start_ns, b.end_ns):
                continue
            if _ranks(first) != _ranks(second):
                continue
            pids = [set(t.table("processes", ["pid"])["pid"].drop_nulls()) for t in (first, second)]
            if 2 * common >= min(a.duration_ns, b.duration_ns) and (pids[0] & pids[1] or not any(pids)):
                raise RankError(
                    f"{where[j]} and {where[i]} hold the same capture session", hint=_SAME_CAPTURE_HINT
                )
