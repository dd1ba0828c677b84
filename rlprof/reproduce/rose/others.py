"""Numbers of the paper that nothing here is compared with: of policies, GPUs, programs not measured."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from rlprof.reproduce.compare import Compared
from rlprof.reproduce.papers import Paper, PaperNumber
from rlprof.reproduce.rose.results import PAPER_POLICIES, PAPER_SIMULATORS
from rlprof.unavailable import Unavailable

#: Another system, which the paper compares with.
ASYNCHRONOUS = "RL-VLA3"
#: Another GPU that the paper measured on.
OTHER_GPU = "A800"


def not_measured(paper: Paper, figure: str, compared: Collection[tuple[str, str]]) -> Iterator[Compared]:
    """Give a row for each number of a figure that is of another policy, GPU or program, with the reason.

    Parameters
    ----------
    paper : Paper
        The paper's numbers.
    figure : str
        As in its file: "fig11".
    compared : collection of (str, str)
        Series and x of the numbers that have a row already.
    """
    for number in paper.of(figure):
        if number.value is None or (number.series, number.x) in compared:
            continue
        why = reason(number)
        if why:
            label = f"not measured: {number.series}, {number.x}"
            yield Compared(label, number.unit, Unavailable(why), number.value, why)


def reason(number: PaperNumber) -> str:
    """Say why there is no measurement beside a number; empty for what could be compared with ours."""
    if ASYNCHRONOUS in number.series:
        return (
            f"{ASYNCHRONOUS} is another program, whose asynchronous training is not the same training; the"
            " schedule async of rlprof has not been measured on a GPU either"
        )
    if OTHER_GPU in number.x:
        return f"no {OTHER_GPU} was at hand: one H200 was"
    policy = next((ours for ours, name in PAPER_POLICIES.items() if name in number.x), None)
    if policy is None or PAPER_POLICIES[policy] == "pi0.5":
        return ""
    simulator = next((s for s, name in PAPER_SIMULATORS.items() if name in number.x), "mujoco_warp")
    return (
        f"no run of {policy} on a GPU is stored: all time on one went to pi0;"
        f" POLICY={policy} benchmarks/gpu/optimize.sh OUT {simulator} makes one"
    )
