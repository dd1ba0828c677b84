"""What can be reproduced: figures and tables of papers, each with its studies, comparison and notebook."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof.reproduce.errors import UnknownFigureError
from rlprof.reproduce.study import Study

if TYPE_CHECKING:
    import polars as pl

    from rlprof.reproduce.compare import Compared
    from rlprof.reproduce.papers import Paper

PAPERS = {"rpeg": "RPEG, arXiv 2611.09207", "rose": "Rose, arXiv 2611.02705"}
PACKAGE = "rlprof.reproduce"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure or table.

    Parameters
    ----------
    name : str
        "rpeg/fig06".
    title : str
        What it shows, in one line.
    studies : tuple of str
        Modules of the studies whose raw tables it draws, below `rlprof.reproduce`: "rpeg.weak_scaling". Each
        has ``study(preset, seed, checkout)``.
    compare : str
        "module:function" that puts the raw tables beside the paper's numbers.
    presets : tuple of str
        Sizes that it can be run in, the quick one first.
    """

    name: str
    title: str
    studies: tuple[str, ...]
    compare: str
    presets: tuple[str, ...] = ("smoke", "full")

    @property
    def paper(self) -> str:
        """Short name of the paper."""
        return self.name.partition("/")[0]

    @property
    def short(self) -> str:
        """The name within the paper, "fig06"."""
        return self.name.partition("/")[2]

    def notebook(self, checkout: Path) -> Path:
        """Where its notebook is."""
        return checkout / "reproductions" / f"{self.name}.ipynb"

    def make_studies(self, preset: str, seed: int, checkout: Path) -> dict[str, Study]:
        """Return its studies by the last part of their name.

        Raises
        ------
        UnknownFigureError
            If it has no such preset.
        """
        if preset not in self.presets:
            raise UnknownFigureError(
                f"{self.name} has no preset {preset!r}", hint=f"use {' or '.join(self.presets)}"
            )
        made: dict[str, Study] = {}
        for module in self.studies:
            study: Study = import_module(f"{PACKAGE}.{module}").study(preset, seed, checkout)
            made[study.name.rpartition("/")[2]] = study
        return made

    def compared(self, tables: Mapping[str, pl.DataFrame], paper: Paper) -> Sequence[Compared]:
        """Return ours beside the paper's.

        Parameters
        ----------
        tables : mapping of str to polars.DataFrame
            Raw tables by the last part of the study's name.
        paper : Paper
            The paper's numbers.
        """
        module, _, function = self.compare.partition(":")
        compare: Callable[..., Any] = getattr(import_module(f"{PACKAGE}.{module}"), function)
        return list(compare(tables, paper))


#: A small run or table, and what was measured on the GPU.
MEASURED = ("smoke", "h200")

FIGURES: tuple[Figure, ...] = (
    Figure(
        "rpeg/fig04",
        "predicted beside measured times of operators",
        ("rpeg.validation",),
        "rpeg.validation:compare_time",
    ),
    Figure(
        "rpeg/fig05",
        "predicted beside measured peak memory of operators",
        ("rpeg.validation",),
        "rpeg.validation:compare_memory",
    ),
    Figure(
        "rpeg/fig06",
        "weak scaling: predicted throughput beside the baselines",
        ("rpeg.weak_scaling", "rpeg.weak_causes"),
        "rpeg.weak_scaling:compare_throughput",
    ),
    Figure(
        "rpeg/fig07",
        "weak scaling: predicted utilisation with and without the utilisation objective",
        ("rpeg.weak_scaling",),
        "rpeg.weak_scaling:compare_utilisation",
    ),
    Figure(
        "rpeg/fig08",
        "strong scaling of 13B models, and why eight GPUs differ",
        ("rpeg.strong_scaling", "rpeg.causes"),
        "rpeg.strong_scaling:compare",
    ),
    Figure(
        "rpeg/fig09",
        "operators one by one: effective parallelism and makespan",
        ("rpeg.case_study",),
        "rpeg.case_study:compare",
    ),
    Figure(
        "rpeg/fig12",
        "convergence of the search up to 2,048 GPUs, and its spread over seeds",
        ("rpeg.convergence", "rpeg.stability"),
        "rpeg.convergence:compare",
    ),
    Figure(
        "rpeg/table04",
        "ablation: what each mechanism is worth",
        ("rpeg.ablation", "rpeg.ablation_causes", "rpeg.ablation_slow"),
        "rpeg.ablation_slow:compare",
    ),
    Figure(
        "rpeg/table10",
        "stability workloads: plans evaluated, spread over seeds",
        ("rpeg.stability",),
        "rpeg.stability:compare",
    ),
    Figure(
        "rose/fig03",
        "SM activity over a training iteration, and how much of the time it is low",
        ("rose.over_time", "rose.activity", "rose.reasons"),
        "rose.activity:compare",
        MEASURED,
    ),
    Figure(
        "rose/table01",
        "inference and simulation alone, one after the other, and at the same time",
        ("rose.alone",),
        "rose.alone:compare_table",
        MEASURED,
    ),
    Figure(
        "rose/fig04",
        "the same without MPS: does overlap help?",
        ("rose.alone",),
        "rose.alone:compare_figure",
        MEASURED,
    ),
    Figure(
        "rose/fig11",
        "throughput of complete iterations under each schedule",
        ("rose.schedules", "rose.alone", "rose.reasons"),
        "rose.schedules:compare",
        MEASURED,
    ),
    Figure(
        "rose/table02",
        "mean SM activity of complete iterations",
        ("rose.schedules", "rose.reasons"),
        "rose.schedules:compare_activity",
        MEASURED,
    ),
    Figure(
        "rose/fig12",
        "SM activity over an iteration, before and after, and how much of the time it is low",
        ("rose.over_time", "rose.reasons"),
        "rose.over_time:compare",
        MEASURED,
    ),
    Figure(
        "rose/fig14a",
        "ablation: the graph alone, with MPS, with MPS and a quota",
        ("rose.ablation", "rose.reasons"),
        "rose.ablation:compare_levers",
        MEASURED,
    ),
    Figure(
        "rose/fig14b",
        "ablation: one round of optimisation, two rounds",
        ("rose.ablation", "rose.reasons"),
        "rose.ablation:compare_rounds",
        MEASURED,
    ),
    Figure(
        "rose/overhead",
        "what optimising costs beside training, of a complete run",
        ("rose.overhead",),
        "rose.overhead:compare",
        MEASURED,
    ),
    Figure(
        "rose/fig10",
        "two branches without MPS, with it, and with the best quota for the one that waits",
        ("rose.quota",),
        "rose.quota:compare_best",
        MEASURED,
    ),
    Figure(
        "rose/fig15",
        "latency against the quota of the branch that waits",
        ("rose.quota",),
        "rose.quota:compare_sweep",
        MEASURED,
    ),
)


def figure_named(name: str) -> Figure:
    """Return the figure of this name.

    Raises
    ------
    UnknownFigureError
        If there is none; names those that are near.
    """
    by_name = {f.name: f for f in FIGURES}
    key = name.strip().lower().removesuffix(".ipynb")
    if key in by_name:
        return by_name[key]
    near = difflib.get_close_matches(key, by_name, n=3, cutoff=0.5)
    raise UnknownFigureError(
        f"no reproduction is called {name!r}",
        hint=f"did you mean {' or '.join(near)}?" if near else "rlprof reproduce list shows all",
    )
