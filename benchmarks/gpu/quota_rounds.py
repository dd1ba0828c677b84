"""What rounds of `benchmarks.gpu.rollout_quota` say of each quota for the same chunks, by Algorithm 2.

    python -m benchmarks.gpu.quota_rounds RESULT --out FILE [--unmanaged RESULT]

Chunks of an episode take different times, so a median over rounds tells which chunks a quota had, too. A
quota's time is that of the mean chunk of an episode instead, the same work for all quotas: for each chunk
the median of the quota's rounds, and the mean of these medians over the chunks. For a chunk that a quota had
no round of counts all SMs' median, times the median of the quota's rounds, each over all SMs' median for the
same chunk. Chunks that were not measured with all SMs count nowhere.

The command makes `quotas` and `summary` of a stored result again. Earlier results do not tell which chunk a
round was: the simulator carried out some by itself, then one a round, warm-up rounds too. ``--unmanaged``
adds the time of both at once without a daemon, of a run of the same configuration (``--pair-only``).
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.common import save
from benchmarks.gpu.embodied_report import said_in_a_line
from rlprof.errors import UnreadableError, UsageError

#: Answers and chunks that are not counted: kernels are loaded, CUDA graphs captured.
WARM_UP = 1
#: The percentage of the rollout with all SMs.
ALL = 100
COMPARED_BY = (
    "seconds of the mean chunk of an episode: the mean over its chunks of the median of the quota's rounds"
    " with that chunk; for a chunk without rounds all SMs' median, times the median of the quota's rounds,"
    " each over all SMs' median for the same chunk"
)
AGAIN = (
    "quotas and summary were computed again from the stored rounds, as compared_by says; the chunk of a round"
    " is its own, or where it tells none its index among all rounds, warm-up rounds counted, plus the chunks"
    " that the simulator had carried out by itself before, modulo the chunks of an episode"
)
GIVE = "give rollout_quota_SIMULATOR.json"
TIMES = ("time_s", "rollout_ready_s", "simulator_ready_s")
Round = Mapping[str, Any]


def counted(rounds: Sequence[Round], percent: int, phase: str | None = None) -> list[Round]:
    """Rounds of a quota that are no warm-up."""
    return [r for r in rounds if r["percent"] == percent and not r["warm_up"] and phase in (None, r["phase"])]


def chunk_medians(rounds: Sequence[Round], percent: int, name: str = "time_s") -> dict[int, float]:
    """Median of a quota's rounds, by chunk of the episode, in seconds."""
    by_chunk: dict[int, list[float]] = {}
    for r in counted(rounds, percent):
        by_chunk.setdefault(r["chunk"], []).append(r[name])
    return {chunk: statistics.median(times) for chunk, times in sorted(by_chunk.items())}


def over_all(
    rounds: Sequence[Round], percent: int, name: str = "time_s", phase: str | None = None
) -> list[float]:
    """Each round of a quota over all SMs' median for the same chunk."""
    base = chunk_medians(rounds, ALL, name)
    return [r[name] / base[r["chunk"]] for r in counted(rounds, percent, phase) if r["chunk"] in base]


def time_s(rounds: Sequence[Round], percent: int, name: str = "time_s") -> float:
    """Time of a quota for the mean chunk of an episode, in seconds, as this module defines it.

    Raises
    ------
    statistics.StatisticsError
        If no round of the quota was a chunk that was measured with all SMs.
    """
    base, own = chunk_medians(rounds, ALL, name), chunk_medians(rounds, percent, name)
    ratio = statistics.median(over_all(rounds, percent, name))
    return statistics.fmean(own.get(chunk, ratio * all_sms) for chunk, all_sms in base.items())


def in_turn(percents: Sequence[int], rounds: Sequence[Round], first: int, chunks: int) -> list[int]:
    """Order in which quotas have one round each, so that each has had every chunk about equally often.

    Parameters
    ----------
    percents : sequence of int
        The quotas.
    rounds : sequence of mapping
        What was measured before.
    first, chunks : int
        The chunk of the first round, and chunks of an episode: the next round has the next chunk.
    """
    order = list(percents)
    had = {p: [r["chunk"] for r in counted(rounds, p)] for p in order}

    def cost(percent: int, place: int) -> int:
        return had[percent].count((first + place) % chunks)

    swapped = True
    while swapped:  # each swap makes the sum of costs less
        swapped = False
        for i in range(len(order)):
            for j in range(i + 1, len(order)):
                a, b = order[i], order[j]
                if cost(b, i) + cost(a, j) < cost(a, i) + cost(b, j):
                    order[i], order[j], swapped = b, a, True
    return order


def algorithm_2(
    rounds: Sequence[Round], levels: Sequence[Any], pair: Mapping[str, Any]
) -> dict[str, Any] | None:
    """What Algorithm 2 finds over the levels that were measured, and the whole curve, for a result.

    Parameters
    ----------
    rounds : sequence of mapping
        What was measured.
    levels : sequence of rlprof.overlap.quota.levels.Level
        By rising number of SMs; those without rounds are left out.
    pair : mapping
        Which of the two waits for the other.

    Returns
    -------
    dict or None
        ``quotas`` and ``summary``; None if not both all SMs and a quota were measured.
    """
    from rlprof.overlap.quota.search import Measurement, quota_search, sweep

    levels = [level for level in levels if over_all(rounds, level.setting)]
    if len(levels) < 2 or levels[-1].setting != ALL:  # all SMs alone are no search
        return None
    all_s = time_s(rounds, ALL)

    def measured(level: Any) -> Measurement:
        ratios = over_all(rounds, level.setting)
        spread = None if (found := _spread(ratios)) is None else found * all_s
        return Measurement(time_s(rounds, level.setting), spread, len(ratios))

    search = quota_search(levels, measured)
    top, best = levels[-1], search.best_level
    less = 100 * (1 - time_s(rounds, best.setting) / all_s)
    quotas = {
        "pair": pair,
        "quotas": {} if best == top else {"rollout": best.setting},
        "reason": "keep q0"
        if best == top
        else f"{best.setting} % takes {less:.1f} % less than all SMs for the same chunks",
        "compared_by": COMPARED_BY,
        "search": search.to_dict(),
        "sweep": [trial.to_dict() for trial in sweep(levels, measured)],
    }
    return {"quotas": quotas, "summary": {f"{v.setting} %": _summary(rounds, v) for v in reversed(levels)}}


def _summary(rounds: Sequence[Round], level: Any) -> dict[str, Any]:
    """A level: its times, their change against all SMs, and the rounds and median of each chunk."""
    percent = level.setting
    ratios, medians = over_all(rounds, percent), chunk_medians(rounds, percent)
    had = [r["chunk"] for r in counted(rounds, percent)]
    return {
        "sms": level.amount,
        "rounds": len(ratios),
        **{name: round(time_s(rounds, percent, name), 5) for name in TIMES},
        "over_all_sms": round(time_s(rounds, percent) / time_s(rounds, ALL), 5),
        "median_round_over_all_sms": round(statistics.median(ratios), 5),
        "chunks": {
            str(chunk): {"rounds": had.count(chunk), "time_s": round(medians[chunk], 5)} for chunk in medians
        },
    }


def _spread(values: Sequence[float]) -> float | None:
    """Distance of the quartiles."""
    if len(values) < 2:
        return None
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return high - low


# stored results -------------------------------------------------------------------------------------------


def with_chunks(document: Mapping[str, Any], where: Path) -> list[dict[str, Any]]:
    """Rounds of a stored result, each with its chunk of the episode.

    Raises
    ------
    UsageError
        If the result does not tell which chunk a round was: a round failed, or the simulator's alone did.
    """
    rounds = [dict(r) for r in document["rounds"]]
    if all("chunk" in r for r in rounds):
        return rounds
    steps, chunks = document["steps"], document["config"]["chunks"]
    for name, step in steps.items():
        started = step.get("started_s")
        lost = {str(p) for ones in step.get("failed", {}).values() for p in ones} & set(started or ())
        if lost or not (step["ok"] or started == {}):  # a round that failed is none, but its chunk was
            why = f"rounds of {', '.join(sorted(lost))} % failed" if lost else "the step failed"
            raise UsageError(
                f"which chunk a round was is not known: {why}",
                where=f"{where}: steps.{name}",
                hint="measure again: rounds tell their chunk now",
            )
    before = WARM_UP + len(steps["alone"]["simulator_each_s"])
    return [r | {"chunk": (before + index) % chunks} for index, r in enumerate(rounds)]


def again(document: Mapping[str, Any], where: Path = Path("RESULT")) -> dict[str, Any]:
    """A stored result with `quotas` and `summary` computed again from its rounds.

    Parameters
    ----------
    document : mapping
        As `benchmarks.gpu.rollout_quota` wrote it.
    where : pathlib.Path
        What it is called in errors.

    Returns
    -------
    dict
        Also ``computed_again``: the rule, and by chunk the seconds of the simulator alone (``alone_s``) and
        of rounds with all SMs (``all_sms_s``), by which it can be checked: both should have one order.

    Raises
    ------
    UsageError
        If it is no such result, or does not tell enough.
    """
    from rlprof.overlap.quota.levels import Level

    if not isinstance(document, Mapping) or document.get("command") != "rollout_quota":
        raise UsageError("this is no result of rollout quotas", where=where, hint=GIVE)
    try:
        rounds = with_chunks(document, where)
        for r in rounds:
            if not all(0 <= r[name] < math.inf for name in TIMES) or not r["time_s"]:
                raise ValueError(f"a round took {', '.join(str(r[name]) for name in TIMES)} s")
        amounts = ast.literal_eval(document["steps"]["levels"]["levels"])
        levels = [Level(amount, percent) for amount, percent in amounts]
        pair = document["quotas"]["pair"]
        found = algorithm_2(rounds, levels, pair)
        by = {k: v for k, v in document["quotas"].items() if k == "mechanism"}
        told = {"rule": AGAIN, **_by_chunk(document, rounds)}
    except (ArithmeticError, AttributeError, LookupError, SyntaxError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise UsageError(f"the result is not complete: {why}", where=where, hint="measure again") from error
    if found is None:
        raise UsageError(
            "no quota was measured beside all SMs", where=where, hint="measure again, with more time"
        )
    found["quotas"] |= by
    return {**document, "rounds": rounds, **found, "computed_again": told}


def _by_chunk(document: Mapping[str, Any], rounds: Sequence[Round]) -> dict[str, dict[str, list[float]]]:
    """Seconds of the simulator alone, and of rounds with all SMs, by chunk of the episode."""
    alone = document["steps"]["alone"].get("simulator_each_s", ())
    chunks = document["config"]["chunks"]
    found: dict[str, dict[str, list[float]]] = {"alone_s": {}, "all_sms_s": {}}
    for index, taken in enumerate(alone):
        found["alone_s"].setdefault(str((WARM_UP + index) % chunks), []).append(taken)
    for r in counted(rounds, ALL):
        found["all_sms_s"].setdefault(str(r["chunk"]), []).append(round(r["time_s"], 5))
    return {name: dict(sorted(rows.items())) for name, rows in found.items()}


def with_unmanaged(
    document: Mapping[str, Any], other: Mapping[str, Any], where: Path = Path("RESULT")
) -> dict[str, Any]:
    """A result whose `quotas` tell what both take at once without a daemon, as `unmanaged`.

    Parameters
    ----------
    document : mapping
        With a daemon, as of `again`.
    other : mapping
        Of a run of the same configuration, without a daemon.
    where : pathlib.Path
        What the other one is called in errors.

    Raises
    ------
    UsageError
        If it ran with a daemon or is of another configuration, or has not all chunks.
    """
    hint = "run rollout_quota with --pair-only, without --mps, and with the same --set"
    try:
        if str(other["argv"]["mps"]) != "False":  # values are kept as text
            raise UsageError("it ran under an MPS daemon", where=where, hint=hint)
        mine, own = document["config"], other["config"]  # a later version may have further fields
        if apart := sorted(name for name in mine.keys() & own.keys() if mine[name] != own[name]):
            raise UsageError(f"it has another {apart[0]}", where=where, hint=hint)
        chunks = chunk_medians(document["rounds"], ALL)
        each = {name: chunk_medians(other["rounds"], ALL, name) for name in TIMES}
        if set(each["time_s"]) < set(chunks):
            raise UsageError("it has no round of some chunk of the episode", where=where, hint=hint)
        told = {name: round(statistics.fmean(times[c] for c in chunks), 5) for name, times in each.items()}
        facts = {"rounds": len(counted(other["rounds"], ALL)), "date": other["machine"]["date"]}
    except (AttributeError, LookupError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise UsageError(f"the result is not complete: {why}", where=where, hint=hint) from error
    return {**document, "quotas": {**document["quotas"], "unmanaged": {**told, **facts}}}


def read(path: Path) -> Any:
    """The document of a stored result.

    Raises
    ------
    UnreadableError, UsageError
        If it cannot be read, or is no JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnreadableError("the result cannot be read", where=path) from error
    except ValueError as error:
        raise UsageError(f"this is no JSON: {error}", where=path, hint=GIVE) from error


def table(summary: Mapping[str, Mapping[str, Any]]) -> str:
    """The summary of a result as lines for a person."""
    chunks = list(summary[f"{ALL} %"]["chunks"])
    lines = [f"quota   SMs   change  seconds  rounds of chunks {', '.join(chunks)}"]
    for name, row in summary.items():
        had = ", ".join(str(row["chunks"].get(chunk, {"rounds": 0})["rounds"]) for chunk in chunks)
        change = 100 * (row["over_all_sms"] - 1)
        lines.append(f"{name:>5} {row['sms']:>5} {change:>+6.1f} % {row['time_s']:>8.3f}  {had}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("result", type=Path, metavar="RESULT", help="rollout_quota_SIMULATOR.json")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where to write it")
    parser.add_argument("--unmanaged", type=Path, metavar="RESULT", help="the same without a daemon")
    args = parser.parse_args()
    with said_in_a_line():
        found = again(read(args.result), args.result)
        if args.unmanaged is not None:
            found = with_unmanaged(found, read(args.unmanaged), args.unmanaged)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    save(args.out, found)
    print(table(found["summary"]))
    print(f"== {found['quotas']['reason']}")


if __name__ == "__main__":
    main()
