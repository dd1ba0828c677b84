"""What the optimiser decided and why: one JSON document a line, and the same for people to read."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof.errors import OutputError

if TYPE_CHECKING:
    from rlprof.analysis.trials import PairedComparison

#: A comparison tells how far it is where nobody was told anything for so long, seconds.
SILENT_S = 15.0
Entry = dict[str, Any]
#: Paths of nodes and ids of calls.
_PATH = re.compile(r"[A-Za-z_][\w#]*(?:\[\d+\])?(?:/[A-Za-z_][\w#]*(?:\[\d+\])?(?:@\d+)?)+")


class DecisionLog:
    """Entries in the order in which they were made.

    Parameters
    ----------
    path : pathlib.Path, optional
        A file to which each entry is appended at once.
    listen : callable, optional
        Told every line for people.
    clock : callable, optional
        Seconds.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """

    def __init__(
        self,
        path: Path | None = None,
        listen: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.entries: list[Entry] = []
        #: Number of the session that is logged.
        self.session = 1
        self._path, self._listen, self._clock, self._start = path, listen, clock, clock()
        self._told = self._start
        if path is not None:
            _end_last_line(path)

    def add(self, what: str, **facts: Any) -> None:
        """Add an entry."""
        entry: Entry = {"at_s": round(self._clock() - self._start, 3), "session": self.session}
        entry |= {"what": what, **facts}
        self.entries.append(entry)
        if self._path is not None:
            try:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(entry) + "\n")
            except OSError as error:
                raise OutputError(f"cannot be written ({error.strerror})", where=self._path) from error
        if self._listen is not None:
            self._told = self._clock()
            for line in lines(entry):
                self._listen(line)

    def measuring(self, result: PairedComparison) -> None:
        """Tell how far a comparison is, if nothing was told for some time; that is no entry."""
        if self._listen is None or self._clock() - self._told < SILENT_S:
            return
        self._told = self._clock()
        count = len(result.pairs)
        self._listen(
            f"  measuring, {count} pair{'' if count == 1 else 's'} so far: medians"
            f" {_seconds(result.reference.median_s)} -> {_seconds(result.candidate.median_s)}"
        )

    def text(self) -> str:
        """All entries for people."""
        return text(self.entries)


def _end_last_line(path: Path) -> None:
    """End a line that was cut off, which would take the next entry with it."""
    try:
        if path.exists() and path.stat().st_size:
            with path.open("rb+") as file:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
    except OSError as error:
        raise OutputError(f"cannot be written ({error.strerror})", where=path) from error


def text(entries: Iterable[Mapping[str, Any]]) -> str:
    """Entries for people, a line or a few each."""
    return "\n".join(line for entry in entries for line in lines(entry)) + "\n"


def lines(entry: Mapping[str, Any]) -> list[str]:
    """One entry for people; of paths their last part, of calls what tells them apart."""
    made = _WORDS.get(entry["what"])
    return [str(dict(entry))] if made is None else [shortened(line) for line in made(entry)]


def shortened(line: str) -> str:
    """A line with the last part of each path in it, of calls what tells them apart."""
    return _PATH.sub(_name, line)


def _name(found: re.Match[str]) -> str:
    steps = found[0].split("/")
    first = next((i for i, part in enumerate(steps) if "[" in part), len(steps) - 1)
    return "/".join(steps[first:])


def _seconds(value: float | None) -> str:
    if value is None:
        return "?"
    return f"{value * 1e3:.3g} ms" if abs(value) < 1 else f"{value:.3g} s"


def _percent(value: float | None) -> str:
    return "?" if value is None else f"{value:.0%}"


def _started(e: Mapping[str, Any]) -> list[str]:
    o = e["options"]
    return [
        f"{e['calls']} calls in {e['region']}; K={o['targets']} targets, L={o['alternatives']} alternatives,"
        f" R={o['rounds']} rounds, eps={o['epsilon']}"
    ]


def _ranking(e: Mapping[str, Any]) -> list[str]:
    found = [f"round {e['round']}: one iteration profiled, {_seconds(e['time_s'])}; activity: {e['source']}"]
    for w in e["windows"]:
        found.append(
            f"  {w['rank'] or '-':>2} {w['node']}: {_seconds(w['total_s'])}, activity"
            f" {_percent(w['sm_activity'])}, score {_seconds(w['score_s'])}"
        )
    names = ", ".join(e["targets"]) or "none"
    return [*found, f"  targets: {names}"]


def _candidates(e: Mapping[str, Any]) -> list[str]:
    found = [f"round {e['round']}, {e['target']}:"]
    for c in e["candidates"]:
        kept = "tried" if c["kept"] else "not tried, others come first"
        if c.get("tried"):
            kept = "tried for another window"
        basis = "a guess" if c["guess"] else c.get("basis")
        guess = f" ({basis})" if basis else ""
        found.append(
            f"  {c['steps']}: {c['partner']} beside it, difference {_seconds(c['delta_s'])}{guess}; {kept}"
        )
    found += [f"  {r['steps']}: refused, {r['reason']}" for r in e["refused"]]
    if not e["candidates"]:
        found.append("  nothing may run in this window")
    return found


def _times(c: Mapping[str, Any]) -> str:
    """Both times of a comparison, and its gain.

    The gain is the median over pairs, not the difference of the medians: on a machine that drifts, one can be
    above zero and the other below. What is decided rests on the pairs.
    """
    before, after = (_seconds(c[name]["median_s"]) for name in ("reference", "candidate"))
    return f"medians {before} -> {after}; gain pair by pair {c['gain_frac']:+.1%} ({len(c['pairs'])} pairs)"


def _doubts(c: Mapping[str, Any]) -> list[str]:
    """What the machine's state puts in doubt."""
    return [f"    doubtful: {said}" for said in c.get("doubts", ())]


def _compared(e: Mapping[str, Any]) -> list[str]:
    c = e["result"]
    again = " (measured before)" if e.get("reused") else ""
    return [
        f"  {e['steps']}: on {e['comparison']}, {_times(c)}: {c['decision']}, {c['reason']}{again};"
        f" {e['outcome']}",
        *_doubts(c),
    ]


def _failed(e: Mapping[str, Any]) -> list[str]:
    return [f"  {e['steps']}: not measured, {e['reason']}"]


def _combined(e: Mapping[str, Any]) -> list[str]:
    found = [f"round {e['round']}: {len(e['combinations'])} combinations"]
    for c in e["combinations"]:
        note = f"; {c['reason']}" if c.get("reason") else ""
        found.append(f"  {c['steps']}: estimated gain {_seconds(c['gain_s'])} an iteration{note}")
    found += [f"  {r['steps']} cannot join {r['others']}: {r['reason']}" for r in e["refused"]]
    return found


def _validated(e: Mapping[str, Any]) -> list[str]:
    c = e["result"]
    again = " (measured before)" if e.get("reused") else ""
    which = "in all" if e["round"] is None else f"round {e['round']}"
    return [f"{which}: complete iterations, {_times(c)}, {c['reason']}{again}: {e['outcome']}", *_doubts(c)]


def not_accepted(number: int, c: Mapping[str, Any]) -> str:
    """Say of a round that what came of it was not accepted, and what was measured.

    Parameters
    ----------
    number : int
        Of the round, from 1 on.
    c : mapping
        The comparison of complete iterations, as a document.
    """
    least_s = c.get("least_gain_s") or 0.0
    few = 0 < c["gain_s"] <= least_s
    why = f", less than the {least_s / c['reference']['median_s']:.1%} that count" if few else ""
    why += f", {c['reason']}" if c.get("reason") else ""
    return f"round {number} was not accepted: complete iterations, {_times(c)}{why}"


def _ended(e: Mapping[str, Any]) -> list[str]:
    return [f"{e['reason']}; {len(e['steps'])} steps kept" + "".join(f"\n  {s}" for s in e["steps"])]


def _session(e: Mapping[str, Any]) -> list[str]:
    known = f"{e['measurements']} measurement{' is' if e['measurements'] == 1 else 's are'} there"
    if "reusable" in e and e["measurements"]:  # logs of before do not tell
        known += f", {e['reusable'] or 'none'} of them of sessions under the same conditions"
    found = [f"session {e['number']}, {e['date']}: {known}"]
    return found + [f"  {why}" for why in e["not_reused"]]


def _lever(e: Mapping[str, Any]) -> list[str]:
    c, what = e["result"], f"lever {e['lever']}"
    if e["outcome"] == "does not apply":
        return [f"{what}: does not apply, {e['reason']}"]
    what += f", {setting(e['before'])} -> {setting(e['value'])}"
    if c is None:
        return [f"{what}: {e['outcome']}, {e['reason']}"]
    return [f"{what}: complete iterations, {_times(c)}, {e['reason']}: {e['outcome']}", *_doubts(c)]


def _quota_pair(e: Mapping[str, Any]) -> list[str]:
    pair, again = e["pair"], " (measured before)" if e.get("reused") else ""
    if "unavailable" in pair:
        return [f"quotas: q0, all SMs, is kept: {pair['unavailable']}{again}"]
    return [
        f"quotas: {pair['earlier']} is ready {_seconds(pair['slack_s'])} before {pair['later']} (after"
        f" {_seconds(pair['earlier_ready_s'])} and {_seconds(pair['later_ready_s'])}), {pair['occurrences']}"
        f" times an iteration{again}",
        *(f"  not taken: {other}" for other in pair["others"]),
    ]


def _quota_level(e: Mapping[str, Any]) -> list[str]:
    what = f"level {e['k']}, {e['amount']} SMs ({e['setting']} %), {e['phase']}"
    again = " (measured before)" if e.get("reused") else ""
    if e["time_s"] is None:
        return [f"{what}: not measured, {e['unavailable']}"]
    if e.get("comparison") is None:
        return [f"{what}: {_seconds(e['time_s'])} on {e['comparison_of']}, {e['runs']} runs{again}"]
    return [
        f"{what}: {_seconds(e['time_s'])}; beside q0 in pairs, {_times(e['comparison'])}{again}",
        *_doubts(e["comparison"]),
    ]


def _quota_found(e: Mapping[str, Any]) -> list[str]:
    level = e["level"]
    return [
        f"quotas: {e['trials']} of {e['levels']} levels measured, the least time is under"
        f" {level['amount']} SMs ({level['setting']} %): {e['reason']}"
    ]


def _quota_validated(e: Mapping[str, Any]) -> list[str]:
    again = " (measured before)" if e.get("reused") else ""
    if e["result"] is None:
        return [f"quotas: {e['reason']}: {e['outcome']}"]
    times = f"complete iterations, {_times(e['result'])}"
    said = f"quota of {e['level']['setting']} %: {times}: {e['reason']}{again}: {e['outcome']}"
    return [said, *_doubts(e["result"])]


def _quota_ended(e: Mapping[str, Any]) -> list[str]:
    kept = ", ".join(f"{name} {percent} %" for name, percent in e["quotas"].items()) or "none, q0 is kept"
    cost = e["cost"]
    if cost is None:
        return [f"quotas: {kept}: {e['reason']}"]
    return [
        f"quotas: {kept}: {e['reason']}; {_seconds(cost['total_s'])} for that, apart,"
        f" {_seconds(cost['retained_training_s'])} of it training that counts ({cost['iterations']}"
        f" iterations), {cost['trials']} local trials"
    ]


def setting(value: bool | int | str | None) -> str:
    """Value of a lever, for people."""
    return "none" if value is None else ("off", "on")[value] if isinstance(value, bool) else str(value)


_WORDS: dict[str, Callable[[Mapping[str, Any]], list[str]]] = {
    "started": _started,
    "ranking": _ranking,
    "candidates": _candidates,
    "compared": _compared,
    "not measured": _failed,
    "combined": _combined,
    "validated": _validated,
    "lever": _lever,
    "session": _session,
    "ended": _ended,
    "quota pair": _quota_pair,
    "quota level": _quota_level,
    "quota found": _quota_found,
    "quota validated": _quota_validated,
    "quotas": _quota_ended,
}
