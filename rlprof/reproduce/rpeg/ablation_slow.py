"""Table IV with slow links, the cause nearest to the paper: do A1 to A3 dominate A4 to A9 there?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof.planning.evaluate import Problem
from rlprof.planning.search_options import SearchOptions
from rlprof.reproduce.compare import Compared, yes
from rlprof.reproduce.papers import Paper
from rlprof.reproduce.rpeg import ablation, ablation_causes
from rlprof.reproduce.rpeg.ablation_causes import SCENARIOS, SLOW_LINKS, problem_under
from rlprof.reproduce.rpeg.plans import constants_digest, options_document, searched, stale_plans
from rlprof.reproduce.rpeg.problems import ABLATION, Setting
from rlprof.reproduce.study import Study

if TYPE_CHECKING:
    import polars as pl

#: Evaluations of each search, seeds, scenarios. With so many, seeds of the specified machine agree.
PRESETS = {"smoke": (200, 1, 1), "full": (20_000, 2, len(SCENARIOS))}


def _rows(setting: Setting, change: str, chosen: SearchOptions) -> list[dict[str, Any]]:
    row, _ = searched(problem_under(setting, SLOW_LINKS, change), chosen)
    return [{"scenario": setting.name, "change": change, "guided": 0.5, "seed": chosen.seed, **row}]


def study(preset: str, seed: int, _: Path) -> Study:
    """Return the study: scenarios x (full, A1 to A9) x seeds."""
    evaluations, seeds, scenarios = PRESETS[preset]
    settings = {s.name: s for s in ABLATION if s.name in SCENARIOS[:scenarios]}
    base = ablation.base_options(evaluations, seed, preset)
    cases: dict[str, Callable[[], list[dict[str, Any]]]] = {
        f"{setting.name}, {change}, seed {seed + n}": partial(
            _rows, setting, change, ablation.changed(base, change, seed + n)
        )
        for n in range(seeds)
        for setting in settings.values()
        for change in ablation.CHANGES
    }

    def problem_of(row: Mapping[str, Any]) -> Problem:
        return problem_under(settings[row["scenario"]], SLOW_LINKS, row["change"])

    parameters = {
        "constants": constants_digest(),
        "search": options_document(base),
        "changes": ablation.CHANGES,
        "factors": ablation_causes.latencies(),
    }
    return Study(
        "rpeg/ablation_slow",
        preset,
        seed,
        parameters,
        cases,
        stale=partial(stale_plans, problem_of=problem_of),
    )


def compare(tables: Mapping[str, pl.DataFrame], paper: Paper) -> list[Compared]:
    """Table IV with all causes; and with slow links the average loss of each change, and which dominate."""
    mean = ablation.averages(ablation.losses(tables["ablation_slow"]))
    rows = ablation_causes.compare(tables, paper)
    for change, loss in mean.items():
        printed = (
            paper.value("table04", f"{change} loss", "average") if change in ablation.PRINTED else "below 1"
        )
        rows.append(Compared(f"{change}, average, {SLOW_LINKS}", "%", 100 * loss, printed))
    dominate = set(ablation.order(mean).split(", ")) == set(ablation.EXECUTION)
    rows.append(Compared(f"A1 to A3 lose most, {SLOW_LINKS}", "", yes(dominate), "yes"))
    return rows
