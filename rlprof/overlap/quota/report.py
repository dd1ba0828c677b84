"""What `rlprof quota` and `rlprof mps` print: tables for people, documents for other programs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from rlprof.analysis.trials import PairedComparison, Spread
from rlprof.overlap.quota.clients import ProbedLevels
from rlprof.overlap.quota.daemons import Daemon
from rlprof.overlap.quota.foreign import Foreign
from rlprof.overlap.quota.levels import Level
from rlprof.overlap.quota.pair import EligiblePair
from rlprof.overlap.quota.products import Products
from rlprof.overlap.quota.search import QuotaSearch, Trial
from rlprof.overlap.quota.tuning import Tuning
from rlprof.overlap.quota.validation import Validation
from rlprof.planning.report import table
from rlprof.unavailable import Unavailable


def _duration(seconds: float) -> str:
    from rlprof.report.text import duration  # brings polars along, which documents do without

    return duration(seconds)


def tuning_document(tuning: Tuning) -> dict[str, Any]:
    """A tuning as a JSON document; what is not known is an object with the reason."""

    def part(value: Any) -> Any:
        if isinstance(value, Unavailable):
            return {"unavailable": value.reason}
        return value.to_dict() if hasattr(value, "to_dict") else _spread(value)

    levels = tuning.levels
    return {
        "mechanism": tuning.mechanism,
        "unit": tuning.unit,
        "setting": tuning.setting,
        "resource": tuning.resource,
        "branches": {b.name: shlex.join(b.command) for b in tuning.branches},
        "in_rounds": tuning.in_rounds,
        "alone": {name: _spread(found) for name, found in tuning.alone.items()},
        "ready": {name: _spread(found) for name, found in tuning.ready.items()},
        "together": _spread(tuning.together),
        "unmanaged": part(tuning.unmanaged),
        "pair": part(tuning.pair),
        "levels": part(levels) if isinstance(levels, Unavailable) else [x.to_dict() for x in levels],
        "sweep": [trial.to_dict() for trial in tuning.sweep],
        "search": part(tuning.search),
        "validation": part(tuning.validation),
        "quotas": {name: level.to_dict() for name, level in tuning.quotas.items()},
        "products": part(tuning.products),
        "reason": tuning.reason,
        "spent_s": tuning.spent_s,
        "states": list(tuning.states),
    }


def _spread(found: Spread) -> dict[str, Any]:
    return {"median_s": found.median_s, "low_s": found.low_s, "high_s": found.high_s, "runs": found.runs}


def tuning_text(tuning: Tuning) -> str:
    """A tuning for a person."""
    rows = []
    for name, alone in tuning.alone.items():
        ready = tuning.ready[name]
        rows.append((name, _times(alone), _times(ready), _quota(tuning, name)))
    serial_s = sum(s.median_s for s in tuning.alone.values())
    parts = [
        table(("branch", "alone", "ready together", "quota"), rows),
        f"all ready    {_times(tuning.together)} without quotas, {_duration(serial_s)} one after the other",
    ]
    if isinstance(tuning.unmanaged, Spread):
        parts.append(f"without MPS  {_times(tuning.unmanaged)}")
    if isinstance(tuning.pair, EligiblePair):
        parts.append(f"slack        {_duration(tuning.pair.slack_s)} of {tuning.pair.earlier}")
    lines = ["\n".join(parts[1:])]
    if isinstance(tuning.search, QuotaSearch):
        lines.append(_search_text(tuning, tuning.search))
    if isinstance(tuning.validation, Validation) and tuning.validation.comparison is not None:
        lines.append(f"validation   {_comparison(tuning.validation.comparison)}")
    whole = [name for name, there in tuning.in_rounds.items() if not there]
    if whole:
        lines.append(f"note: start and end of {', '.join(whole)} are in its times (no rounds)")
    lines.append(f"{_answer(tuning)} ({tuning.reason}; {_duration(tuning.spent_s)})")
    if tuning.quotas and tuning.setting == "%" and isinstance(tuning.products, Unavailable):
        lines.append(
            "note: nobody knows whether matrix products are right under it, as they are not under some shares"
            f" ({tuning.products.reason})"
        )
    return "\n\n".join([parts[0], *lines])


def _answer(tuning: Tuning) -> str:
    if not tuning.quotas:
        return "keep q0: no quota"
    return ", ".join(f"{name}: {_level(tuning, level)}" for name, level in tuning.quotas.items())


def _quota(tuning: Tuning, name: str) -> str:
    level = tuning.quotas.get(name)
    return "none" if level is None else _level(tuning, level)


def _level(tuning: Tuning, level: Level) -> str:
    if tuning.setting == "%":
        return f"{level.setting} % ({level.amount} {tuning.unit})"
    return f"{tuning.setting} {level.setting}"


def _times(found: Spread) -> str:
    return f"{_duration(found.median_s)} ({_duration(found.low_s)} to {_duration(found.high_s)})"


def _search_text(tuning: Tuning, search: QuotaSearch) -> str:
    found = {trial.k: trial for trial in (*tuning.sweep, *search.trials)}
    rows = []
    for trial in found.values():
        notes = [n for k, n in ((search.start, "q0"), (search.anchor, "anchor")) if k == trial.k]
        notes += ["best"] if trial.k == search.best else []
        rows.append(
            (str(trial.k), _level(tuning, trial.level), trial.phase, *_trial(trial), ", ".join(notes))
        )
    heads = ("level", "quota", "phase", "all ready", "against q0", "")
    return table(heads, rows, right=(0,)) + f"\nsearch: {search.reason}"


def _trial(trial: Trial) -> tuple[str, str]:
    found = trial.measurement
    if isinstance(found, Unavailable):
        return "–", found.reason[:80]
    compared = found.detail
    width = "" if found.spread_s is None else f" ± {_duration(found.spread_s / 2)}"
    text = f"{_duration(found.time_s)}{width}"
    return text, _comparison(compared) if isinstance(compared, PairedComparison) else ""


def _comparison(found: PairedComparison) -> str:
    ends = f"{_signed(found.low_s)} to {_signed(found.high_s)}"
    return f"{found.decision}, gain {_signed(found.gain_s)} ({found.gain_frac:+.1%}; {ends})"


def _signed(seconds: float) -> str:
    if seconds in (float("inf"), float("-inf")):
        return "∞" if seconds > 0 else "-∞"
    return _duration(seconds)


def levels_text(found: ProbedLevels, products: Sequence[Products | Unavailable] = ()) -> str:
    """Levels of a GPU for a person; with what was found of matrix products under each, where one looked."""
    rows = [(str(k), f"{x.setting} %", str(x.amount)) for k, x in enumerate(found.levels, start=1)]
    head = f"{found.gpu.name}, GPU {found.gpu.ordinal}: {len(rows)} levels, probed in steps of {found.step} %"
    names: tuple[str, ...] = ("level", "percentage", "SMs")
    told: list[tuple[str, ...]] = list(rows)
    if products:
        names = (*names, "wrong matrix products")
        told = [(*row, _wrong(one)) for row, one in zip(rows, products, strict=True)]
    return f"{head}\n{table(names, told, right=(0, 1, 2))}"


def _wrong(found: Products | Unavailable) -> str:
    if isinstance(found, Unavailable):
        return f"cannot tell: {found.reason}"
    return f"{len(found.wrong)} of {found.tried}" if found.wrong else f"none of {found.tried}"


def levels_document(found: ProbedLevels, products: Sequence[Products | Unavailable] = ()) -> dict[str, Any]:
    """The same as a JSON document."""
    document = found.to_dict()
    for level, one in zip(document["levels"], products, strict=False):
        level["products"] = {"unavailable": one.reason} if isinstance(one, Unavailable) else one.to_dict()
    return document


def status_document(
    ours: Sequence[tuple[Daemon, list[int] | Unavailable]], others: Sequence[Foreign], absent: str | None
) -> dict[str, Any]:
    """Daemons as a JSON document."""
    return {
        "daemons": [
            {
                **daemon.to_dict(),
                "processes": daemon.processes,
                "clients": {"unavailable": clients.reason} if isinstance(clients, Unavailable) else clients,
                "environment": daemon.environment(),
            }
            for daemon, clients in ours
        ],
        "foreign": [vars(other) for other in others],
        "absent": absent,
    }


def status_text(
    ours: Sequence[tuple[Daemon, list[int] | Unavailable]], others: Sequence[Foreign], absent: str | None
) -> str:
    """Daemons for a person."""
    lines = []
    for daemon, clients in ours:
        state = "runs" if daemon.alive else "has died"
        until = "until it is stopped" if daemon.owner is None else f"as long as process {daemon.owner}"
        served = clients.reason if isinstance(clients, Unavailable) else f"{len(clients)} clients"
        lines.append(
            f"GPU {daemon.gpu.ordinal} ({daemon.gpu.name}): {state}, {until}, since {daemon.started};"
            f" {served}; {daemon.pipe}"
        )
    lines += [f"not started by rlprof, left alone: {other}" for other in others]
    if absent is not None:
        lines.append(f"MPS cannot be used here: {absent}")
    return "\n".join(lines) if lines else "no MPS daemon runs"


def exports(daemon: Daemon) -> str:
    """Shell commands that make what is started afterwards a client."""
    wanted = {k: v for k, v in daemon.environment().items() if k != "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"}
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in wanted.items())
