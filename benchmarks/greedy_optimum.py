"""How near Algorithm 1 comes to the best it could have reached, on programs whose optimum is known.

`python -m benchmarks.greedy_optimum --cases 500` makes programs (`benchmarks.rl_programs`), simulates their
time, enumerates every legal composition that can be reached with K targets and R rounds, and compares the
best of them with what the optimiser selects. One seed is one case; the result file has a row for each.

Reachable in one round from a graph: its ranked targets are those of the algorithm; for each any feasible
candidate of the search, or none; of these any choice with at most one candidate a target, in any order in
which all steps are legal. Every graph so reached is the start of a next round, faster or not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from itertools import permutations, product
from pathlib import Path

from benchmarks.rl_programs import Program, make
from rlprof.analysis.batch_time import BatchTimes
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.errors import OverlapError
from rlprof.overlap.optimize import Options, Step, optimize
from rlprof.overlap.optimize.search import search
from rlprof.overlap.optimize.simulated import SimulatedWorkload
from rlprof.overlap.optimize.steps import apply
from rlprof.overlap.optimize.windows import targets

WITHIN = 0.05


@dataclass(frozen=True)
class Case:
    """One program.

    Parameters
    ----------
    seed, calls : int
        Of the program.
    native_s, greedy_s, optimum_s : float
        Iteration natively, by the optimiser's graph, by the best reachable graph; seconds.
    reachable : int
        Graphs that were enumerated.
    steps, optimum_steps : tuple of str
        Of the optimiser, and of the optimum.
    taken_s : float
        Time of the enumeration, seconds.
    """

    seed: int
    calls: int
    native_s: float
    greedy_s: float
    optimum_s: float
    reachable: int
    steps: tuple[str, ...]
    optimum_steps: tuple[str, ...]
    taken_s: float

    @property
    def excess_frac(self) -> float:
        """How much longer the optimiser's iteration is than the optimum."""
        return self.greedy_s / self.optimum_s - 1


class Space:
    """All graphs that can be reached, with their simulated times."""

    def __init__(self, workload: SimulatedWorkload, options: Options) -> None:
        self.workload, self.options = workload, options
        self.found: dict[str, tuple[CallGraph, tuple[Step, ...], float]] = {}
        self._applied: dict[tuple[str, Step], CallGraph | None] = {}

    def explore(self) -> None:
        """Go through all rounds."""
        native = self.workload.native
        level: dict[str, tuple[CallGraph, tuple[Step, ...]]] = {native.hash: (native, ())}
        self._note(native, ())
        for _ in range(self.options.rounds):
            following: dict[str, tuple[CallGraph, tuple[Step, ...]]] = {}
            for graph, steps in level.values():
                for reached, more in self._round(graph):
                    if reached.hash not in self.found:
                        self._note(reached, (*steps, *more))
                        following[reached.hash] = (reached, (*steps, *more))
            level = following

    def _note(self, graph: CallGraph, steps: tuple[Step, ...]) -> None:
        self.found[graph.hash] = (graph, steps, self.workload.simulated(graph).makespan_s)

    def _round(self, graph: CallGraph) -> list[tuple[CallGraph, tuple[Step, ...]]]:
        profile = self.workload.profile(graph)
        times = BatchTimes()
        for node, batch, duration_s in profile.alone:
            times = times.with_observation(node, batch, duration_s)
        durations = {w.node: w.mean_s for w in profile.windows}
        offers: list[list[tuple[Step, ...]]] = []
        for window in targets(profile.windows, graph.region, self.options.targets):
            found = search(graph, window.node, durations, estimate=times.share, groups=self.options.groups)
            offers.append([(), *(c.steps for c in found.candidates)])
        reached: dict[str, tuple[CallGraph, tuple[Step, ...]]] = {}
        seen: set[frozenset[tuple[Step, ...]]] = set()
        for choice in product(*offers):
            chosen = frozenset(steps for steps in choice if steps)
            if not chosen or chosen in seen:
                continue
            seen.add(chosen)
            for order in permutations(sorted(chosen, key=lambda steps: tuple(map(str, steps)))):
                more = tuple(one for steps in order for one in steps)
                made = self._derive(graph, more)
                if made is not None:
                    reached.setdefault(made.hash, (made, more))
        return list(reached.values())

    def _derive(self, graph: CallGraph, steps: tuple[Step, ...]) -> CallGraph | None:
        for one in steps:
            key = (graph.hash, one)
            if key not in self._applied:
                try:
                    self._applied[key] = apply(graph, one)
                except OverlapError:
                    self._applied[key] = None
            found = self._applied[key]
            if found is None:
                return None
            graph = found
        return graph


def solve(program: Program, options: Options) -> Case:
    """Enumerate, optimise and compare."""
    workload = SimulatedWorkload(program.graph, program.model)
    began = time.process_time()
    space = Space(workload, options)
    space.explore()
    taken_s = time.process_time() - began
    _, best, optimum_s = min(space.found.values(), key=lambda item: (item[2], len(item[1])))
    result = optimize(workload, options)
    greedy_s = workload.simulated(result.graph).makespan_s
    return Case(
        program.seed,
        len(program.graph),
        workload.simulated(program.graph).makespan_s,
        greedy_s,
        optimum_s,
        len(space.found),
        tuple(map(str, result.steps)),
        tuple(map(str, best)),
        taken_s,
    )


def summary(cases: list[Case]) -> dict[str, object]:
    """Shares and quantiles over all cases."""
    excess = sorted(c.excess_frac for c in cases)
    gains = [c for c in cases if c.optimum_s < c.native_s * 0.99]
    return {
        "cases": len(cases),
        "within_5_percent_frac": sum(e <= WITHIN for e in excess) / len(excess),
        "optimal_frac": sum(e <= 1e-9 for e in excess) / len(excess),
        "excess_frac_median": statistics.median(excess),
        "excess_frac_p95": excess[min(len(excess) - 1, int(0.95 * len(excess)))],
        "excess_frac_worst": excess[-1],
        "cases_with_a_gain_of_1_percent": len(gains),
        "within_5_percent_frac_of_those": sum(c.excess_frac <= WITHIN for c in gains) / max(1, len(gains)),
        "speedup_mean_of_optimum": statistics.fmean(c.native_s / c.optimum_s for c in cases),
        "speedup_mean_of_greedy": statistics.fmean(c.native_s / c.greedy_s for c in cases),
        "reachable_median": statistics.median(c.reachable for c in cases),
        "reachable_most": max(c.reachable for c in cases),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--targets", type=int, default=3)
    parser.add_argument("--alternatives", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--combinations", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    options = Options(
        targets=given.targets,
        alternatives=given.alternatives,
        rounds=given.rounds,
        combinations=given.combinations,
    )
    cases = []
    for seed in range(given.first, given.first + given.cases):
        cases.append(solve(make(seed), options))
        if cases[-1].excess_frac > WITHIN:
            print(f"seed {seed}: {cases[-1].excess_frac:+.1%} above the optimum", flush=True)
    found = summary(cases)
    print(json.dumps(found, indent=2))
    if given.out is not None:
        rows = [
            {
                "seed": c.seed,
                "calls": c.calls,
                "native_s": round(c.native_s, 6),
                "greedy_s": round(c.greedy_s, 6),
                "optimum_s": round(c.optimum_s, 6),
                "reachable": c.reachable,
                "steps": c.steps,
                "optimum_steps": c.optimum_steps,
            }
            for c in cases
        ]
        given.out.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"options": options.to_dict(), "summary": found, "cases": rows}, indent=1)
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
