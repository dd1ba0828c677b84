"""Figs 10 and 15: the time of two overlapping branches against the quota of the one that waits.

Of SMs, by MPS or by green contexts; the preset `smoke` searches a small quota of a processor's cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof.reproduce.compare import Compared, amount, yes
from rlprof.reproduce.papers import Paper
from rlprof.reproduce.rose.cores import search_here, settings
from rlprof.reproduce.rose.others import not_measured
from rlprof.reproduce.rose.products import BY_GREEN, WRONG, labelled, looked_at
from rlprof.reproduce.rose.provenance import run_facts
from rlprof.reproduce.rose.results import (
    Document,
    documents,
    is_optimisation,
    is_rollout_quota,
    on_gpu,
    stored_study,
)
from rlprof.reproduce.study import Study

if TYPE_CHECKING:
    import polars as pl

#: What a document of `rlprof quota` has.
MARKS = {"mechanism", "branches", "alone", "together", "search"}
ALL_PERCENT = 100
#: Mechanisms that give shares of the SMs.
OF_SMS = ("mps", BY_GREEN)
#: Levels whose times are as near to the least one, as a share of it, are told: rounds scatter as much.
NEAR = 0.03


def tunings(document: Any, path: str = "") -> Iterator[tuple[str, Document]]:
    """Give every result of `rlprof quota` inside of a document, with where it is."""
    if not isinstance(document, Mapping):
        return
    if set(document) >= MARKS:
        yield path, dict(document)
        return
    for key, value in document.items():
        yield from tunings(value, f"{path}/{key}" if path else str(key))


def trial_rows(file: str, document: Document) -> list[dict[str, Any]]:
    """Return one row for each level that was measured, and for the branches alone and together.

    ``kind`` is "trial", "alone", "ready" (until a branch is ready, both running), "together", or "unmanaged"
    (without MPS); ``percent`` is the quota of the branch that waits, of all SMs or cores, and ``amount`` how
    many ``unit`` that is. A level that a sweep and the search measured counts once. ``simulator`` is null for
    two commands; else the branches are processes of embodied training, and the time is that of a comparison
    of the selected graph, or of an answer beside the mean chunk of an episode.
    """
    base = {"file": file, **run_facts(document)}
    rows: list[dict[str, Any]] = []
    if is_optimisation(document) or is_rollout_quota(document):
        return _embodied_rows(base, document) if on_gpu(document) else []
    for path, found in tunings(document):
        if found["mechanism"] == "nice":  # a priority is no share
            continue
        pair = found.get("pair") or {}
        facts = {
            **base,
            "run": path,
            "mechanism": found["mechanism"],
            "unit": found.get("unit", "SMs"),
            "simulator": None,
            "reason": found.get("reason"),
            "branches": "; ".join(f"{name}: {command}" for name, command in found["branches"].items()),
            "waits": pair.get("earlier"),
        }
        for kind in ("alone", "ready"):
            rows += [_row(facts, kind, name, time, None) for name, time in (found.get(kind) or {}).items()]
        rows.append(_row(facts, "together", "all", found["together"], float(ALL_PERCENT)))
        if "median_s" in (found.get("unmanaged") or {}):
            rows.append(_row(facts, "unmanaged", "all", found["unmanaged"], None))
        rows += _trials(facts, found)
    return rows


def _embodied_rows(base: Mapping[str, Any], document: Document) -> list[dict[str, Any]]:
    """Rows of Algorithm 2 on a graph of embodied training."""
    found = document.get("quotas")
    if not isinstance(found, Mapping) or not found.get("search") or not found.get("pair"):
        return []
    pair, config = found["pair"], document["config"]
    facts = {
        **base,
        "run": "quotas",
        "mechanism": found.get("mechanism", "mps"),
        "unit": "SMs",
        "simulator": config["simulator"],
        "branches": f"{pair['earlier']}; {pair['later']}: {config['policy']}, {config['envs']} environments",
        "reason": _reason(document),
        "waits": pair["earlier"],
    }
    trials = _trials(facts, found)
    ready = [
        _row(facts, "ready", pair[branch], {"time_s": pair[f"{branch}_ready_s"]}, None)
        for branch in ("earlier", "later")
    ]
    all_sms = [{**t, "kind": "together"} for t in trials if t["percent"] == ALL_PERCENT]
    unmanaged = found.get("unmanaged") or {}
    return [
        *ready,
        *all_sms,
        *([_row(facts, "unmanaged", "all", unmanaged, None)] if unmanaged.get("time_s") is not None else []),
        *trials,
    ]


def _reason(document: Document) -> str | None:
    """Why a search ended so; earlier ones of a rollout compared quotas by whatever chunks they had."""
    found = document["quotas"]
    reason: str | None = found.get("reason")
    if is_rollout_quota(document) and reason and "compared_by" not in found:
        reason += " (medians over unequal chunks of an episode)"
    return reason


def _trials(facts: Mapping[str, Any], found: Mapping[str, Any]) -> list[dict[str, Any]]:
    search = found.get("search") or {}
    measured = {t["setting"]: t for t in (*(found.get("sweep") or ()), *search.get("trials", ()))}
    whole = ALL_PERCENT
    if facts["mechanism"] == "cores":  # their setting is a number
        whole = max(
            (level["setting"] for level in found.get("levels") or () if "setting" in level), default=1
        )
    return [
        _row(facts, "trial", "all", trial, ALL_PERCENT * setting / whole)
        for setting, trial in sorted(measured.items(), reverse=True)
        if trial.get("time_s") is not None
    ]


def _row(
    facts: Mapping[str, Any], kind: str, what: str, time: Mapping[str, Any], percent: float | None
) -> dict[str, Any]:
    return {
        **facts,
        "kind": kind,
        "what": what,
        "percent": percent,
        "amount": time.get("amount"),
        "seconds": time.get("median_s", time.get("time_s")),
        "least_s": time.get("low_s"),
        "most_s": time.get("high_s"),
        "runs": time.get("runs"),
        "products": None,
    }


def study(preset: str, seed: int, checkout: Path) -> Study:
    """Return the study of stored quota searches, or of a small one on this processor's cores."""
    if preset == "smoke":
        cases: dict[str, Callable[[], Sequence[dict[str, Any]]]] = {
            "here": lambda: labelled(trial_rows("here", search_here()), {})
        }
        return Study("rose/quota", preset, seed, settings(), cases)
    stored = documents(checkout, lambda d: any(row["mechanism"] in OF_SMS for row in trial_rows("", d)))
    looked = looked_at(checkout)

    def rows(file: str, document: Document) -> list[dict[str, Any]]:
        return labelled(trial_rows(file, document), looked)

    return stored_study("rose/quota", preset, seed, stored, rows, {"products": looked})


def chosen(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the search that is shown.

    Of embodied training if there is one; of these one without levels by which products are wrong, if there is
    one; and then the one with most levels.
    """
    import polars as pl

    trial = pl.col("kind") == "trial"
    runs = frame.group_by("file", "run", maintain_order=True).agg(
        trial.sum().alias("levels"),
        pl.col("simulator").first(),
        (trial & (pl.col("products") == WRONG)).any().alias("wrong"),
    )
    of_training = pl.col("simulator").is_not_null()
    order = (of_training, of_training & ~pl.col("wrong").fill_null(value=False), "levels")
    runs = runs.sort(*order, descending=True, maintain_order=True)
    file, run, *_ = runs.row(0)
    return frame.filter(pl.col("file") == file, pl.col("run") == run)


def sweep(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the time of each level that was measured, of the search that is shown.

    Returns
    -------
    polars.DataFrame
        ``percent``, ``amount``, ``seconds``, ``over_all`` (over the time at 100 %); by falling quota.
    """
    import polars as pl

    one = chosen(frame).filter(pl.col("kind") == "trial").sort("percent", descending=True)
    base = one["seconds"][0] if one.height else None
    return one.select(
        "percent", "amount", "seconds", (pl.col("seconds") / pl.lit(base, pl.Float64)).alias("over_all")
    )


def best(table: pl.DataFrame) -> dict[str, Any] | None:
    """Return the level of least time; None if nothing was measured."""
    return table.sort("seconds").row(0, named=True) if table.height else None


def compare_sweep(tables: Mapping[str, pl.DataFrame], paper: Paper) -> list[Compared]:
    """Fig 15: where the minimum lies, and whether a lower quota beats all SMs."""
    table, why = sweep(tables["quota"]), cause(tables["quota"])
    found = best(table)
    shape = "not measured"
    if found is not None:
        lowest = table["over_all"].to_list()[-1]
        shape = yes(found["percent"] < ALL_PERCENT and lowest > found["over_all"])
    return [
        Compared(
            "quota of least latency",
            "%",
            amount(found and found["percent"], missing="no level was measured"),
            paper.value("fig15", "quota of least latency", "pi0.5"),
            why,
        ),
        Compared("a minimum below 100 %, and slower again below it", "", shape, "yes", why),
        Compared(
            "least latency",
            "s",
            amount(found and found["seconds"], missing="no level was measured"),
            paper.value("fig15", "least latency", "pi0.5"),
            why,
        ),
        *not_measured(paper, "fig15", ()),
    ]


def cause(frame: pl.DataFrame) -> str:
    """Say what the branches are, and how much slack there was to use, from the raw table."""
    import polars as pl

    shown = chosen(frame)
    ready = shown.filter(pl.col("kind") == "ready")["seconds"].to_list()
    levels = shown.filter(pl.col("kind") == "trial").height
    slack = f"{100 * (1 - min(ready) / max(ready)):.0f} %" if len(ready) > 1 else "an unknown share"
    first = shown.row(0, named=True)
    simulator = first["simulator"]
    what = f"{simulator} and its policy" if simulator else "two commands of a benchmark"
    where = f"one {first['gpu']}"
    if first["mechanism"] == "cores":
        what, where = "two commands that only add up", f"{first['cores']} cores of a processor"
    text = (
        f"slack: the branch that waits is ready {slack} of the join before it here, 63 % in the paper"
        f" (Table 1, 2.661 of 7.192 s); levels measured: {levels}, on {where}; {what} (column"
        " branches of the raw table) here, pi0.5 and ManiSkill there"
    )
    times = sweep(frame)
    if (least := best(times)) is not None:
        near = times.filter(pl.col("seconds") <= (1 + NEAR) * least["seconds"])["percent"]
        text += f"; within {100 * NEAR:.0f} % of the least time: {', '.join(f'{p:.0f}' for p in near)} %"
    ended = dict.fromkeys(reason for reason in shown["reason"] if reason)
    return "; ".join([text, *(f"the search says: {reason}" for reason in ended), *_products(shown)])


def _products(shown: pl.DataFrame) -> list[str]:
    """Say under which levels that were measured matrix products are wrong, and where nobody looked."""
    import polars as pl

    trials = shown.filter(pl.col("kind") == "trial").sort("percent", descending=True)
    levels: dict[str | None, list[str]] = {}
    for row in trials.iter_rows(named=True):
        levels.setdefault(row.get("products"), []).append(f"{row['percent']:.0f}")
    if WRONG not in levels:
        return []
    wrong = ", ".join(levels[WRONG])
    told = f"matrix products are wrong with {wrong} %, which are therefore no quotas of a policy"
    return [told + (f" (nobody looked at {', '.join(levels[None])} %)" if None in levels else "")]


def compare_best(tables: Mapping[str, pl.DataFrame], paper: Paper) -> list[Compared]:
    """Fig 10: the join without MPS, with it, and with the best quota; each over the time with MPS alone."""
    import polars as pl

    frame = tables["quota"]
    table, why = sweep(frame), cause(chosen(frame))
    found = best(table)
    off, off_why = None, why
    for run in (chosen(frame), *frame.partition_by("file", "run", maintain_order=True)):
        times = {kind: run.filter(pl.col("kind") == kind)["seconds"] for kind in ("unmanaged", "together")}
        if all(len(t) for t in times.values()):
            off, off_why = float(times["unmanaged"][0]) / float(times["together"][0]), cause(run)
            break
    on_cores = frame["mechanism"][0] == "cores"
    missing = "a processor has no MPS" if on_cores else "not measured without MPS"
    printed = {
        "off": paper.value("fig04", "simulation overlapped", "ManiSkill, MPS off"),
        "on": paper.value("table01", "simulation overlapped", "ManiSkill, batch 80, MPS on"),
        "best": paper.value("fig10", "simulation", "policy 91 %, simulator 100 %"),
    }

    def over(value: Any) -> Any:
        on = printed["on"]
        return value / on if isinstance(value, float) and isinstance(on, float) else value

    best_of = "join with the best quota over that with "
    return [
        Compared(
            "join without MPS over that with MPS",
            "1",
            amount(off, missing=missing),
            over(printed["off"]),
            off_why if off is not None else missing,
        ),
        Compared(
            best_of + ("all cores" if on_cores else "MPS alone"),
            "1",
            amount(found and found["over_all"], missing="no level was measured"),
            over(printed["best"]),
            why,
        ),
    ]


def joins(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the bars of Fig 10: ``how`` the branches ran, ``seconds`` until both are done."""
    import polars as pl

    shown, found = chosen(frame), best(sweep(frame))
    cores = shown["mechanism"][0] == "cores"
    names = {"unmanaged": "without MPS", "together": "all cores for both" if cores else "MPS, 100/100"}
    rows = [
        (name, seconds)
        for kind, name in names.items()
        for seconds in shown.filter(pl.col("kind") == kind)["seconds"][:1]
    ]
    if found and found["percent"] < ALL_PERCENT:
        how = "" if cores else "MPS, "
        rows.append((f"{how}{found['percent']:.0f} % for the one that waits", found["seconds"]))
    schema = {"how": pl.String, "seconds": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")
