"""Comparison graphs: the same work for all forms, and what they compute is what natively is computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.rl_programs import make
from rlprof.overlap.callgraph import INITIAL
from rlprof.overlap.execute import execute
from rlprof.overlap.optimize.comparison import (
    RestrictionError,
    affected,
    before,
    common_ancestor,
    comparison,
    restrict,
)
from rlprof.overlap.optimize.search import search
from rlprof.overlap.optimize.simulated import simulate
from rlprof.overlap.optimize.steps import derive, step
from rlprof.overlap.transforms import interleave, split_spatial
from tests.overlap.handmade import SAMPLES, Player, rollout_graph

EPOCH = "iteration/rollout/epoch"
CHUNK = f"{EPOCH}/chunk"


def test_the_lowest_common_ancestor() -> None:
    assert common_ancestor(["i/a/b/c", "i/a/b/d"], "i") == "i/a/b"
    assert common_ancestor(["i/a/b", "i/a/b/d"], "i") == "i/a/b"
    assert common_ancestor(["i/a", "i/b"], "i") == "i"
    assert common_ancestor(["i/abc", "i/abd"], "i") == "i"


def test_what_steps_affect() -> None:
    steps = [
        step("split_spatial", "i/a", groups=2, downstream=("i/b",)),
        step("rewire", "i/c", after="i/d"),
        step("rewire", "i/e", stream="own"),
        step("train_beside_next_epoch", "i/f", training="i/g"),
    ]
    assert set(affected(steps)) == {"i/a", "i/b", "i/c", "i/d", "i/e", "i/f", "i/g"}


def test_a_loop_is_compared_by_four_iterations() -> None:
    program = next(p for p in map(make, range(60)) if p.shape["chunks"] == 4 and p.shape["epochs"] == 2
                   and not p.shape["mixes"])  # fmt: skip
    graph = interleave(split_spatial(program.graph, CHUNK, 2), CHUNK)
    found = comparison(program.graph, [program.graph, graph], [CHUNK])
    assert (found.path, found.iterations, found.windows) == (CHUNK, 4, 2.0)
    fewer = comparison(program.graph, [program.graph, graph], [CHUNK], iterations=2)
    assert (fewer.iterations, fewer.windows) == (2, 4.0)
    assert len(fewer.origins) * 2 == len(found.origins)


def test_a_loop_around_the_interaction_may_be_shorter() -> None:
    program = next(p for p in map(make, range(60)) if p.shape["chunks"] == 4 and p.shape["epochs"] == 2
                   and not p.shape["mixes"])  # fmt: skip
    graphs = [program.graph, split_spatial(program.graph, EPOCH, 2)]
    whole = comparison(program.graph, graphs, [EPOCH])
    one = comparison(program.graph, graphs, [EPOCH], outer_iterations=1)
    assert (whole.iterations, one.iterations) == (2, 1)
    assert (whole.windows, one.windows) == (1.0, 2.0)
    chunk = comparison(program.graph, graphs[:1], [CHUNK], outer_iterations=1)
    assert chunk.iterations == 4


def test_groups_of_epochs_are_compared_together() -> None:
    program = next(p for p in map(make, range(99)) if p.shape["copies"] == 2 and p.shape["epochs"] == 3
                   and not p.shape["auto_reset"])  # fmt: skip
    graph = derive(program.graph, [step("split_temporal", EPOCH, groups=2), step("interleave", EPOCH)])
    found = comparison(program.graph, [program.graph, graph], [EPOCH], iterations=2)
    assert found.path == EPOCH
    # one epoch of each group, not two of the first
    assert {dict(c.indices)[EPOCH] for c in program.graph.calls if c.origin in found.origins} == {0, 1}
    # cutting chunks of such a graph concerns both groups at once
    both = split_spatial(graph, CHUNK, 2)
    wider = comparison(program.graph, [graph, both], [CHUNK])
    assert wider.path == EPOCH


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10_000), st.integers(1, 4))
def test_all_forms_do_the_same_work(seed: int, iterations: int) -> None:
    program = make(seed)
    node = next(c.node for c in program.graph.calls if c.node.endswith("/step"))
    candidates = search(program.graph, node, {}).candidates
    for candidate in candidates:
        paths = [node, candidate.partner, *affected(candidate.steps)]
        graphs = [program.graph, candidate.graph]
        work = comparison(program.graph, graphs, paths, iterations=iterations)
        native, form = (restrict(graph, work.origins) for graph in graphs)
        assert {c.origin for c in native.graph.calls} == {c.origin for c in form.graph.calls} == work.origins
        for origin in work.origins:
            whole = native.graph.by_id[origin]
            parts = form.graph.parts[origin]
            samples = [s for p in parts if p.samples is not None for s in p.samples]
            assert not samples or sorted(samples) == list(range(whole.batch_size or 0))
        # what versions are needed from outside lies in the object itself
        for part in (native, form):
            made = {(a.cell, c.origin) for c in part.graph.calls for a in c.accesses}
            for call in part.graph.calls:
                for access in call.accesses:
                    if access.sees is not None and (access.cell, access.sees) not in made:
                        assert (access.sees, access.copy) == (INITIAL, 0)
        assert work.windows >= 1
        # both can be run: every call gets its turn
        assert len(simulate(form.graph, program.model).times) == len(form.graph.calls)


@pytest.mark.parametrize("groups", [(), ((0, 1, 2), (3, 4, 5))])
def test_a_part_computes_what_it_computes_in_the_whole(groups) -> None:
    chunks, middle = 4, frozenset(f"rollout/chunk[{c}]/{n}" for c in (1, 2) for n in ("infer", "step"))
    native = rollout_graph(chunks)
    graph = rollout_graph(chunks, groups)
    obs = np.linspace(-1, 1, SAMPLES * 3).reshape(SAMPLES, 3)
    whole = Player().rollout(obs, chunks)

    player = Player()
    last, _ = player.step(player.infer(obs)["action"])  # chunk 0 runs before
    part = restrict(graph, middle)
    outside = {}
    for name in part.outside:
        call = graph.by_id[name]
        rows = slice(None) if call.samples is None else list(call.samples)
        outside[name] = (last[rows], None)
    output, _ = execute(part.graph, player.entries(), {}, (((obs,), {}, outside), {}))
    rewards = [value for value in output if getattr(value, "shape", ()) == (SAMPLES,)]
    assert any(np.array_equal(r, whole["rewards"][1]) for r in rewards)
    assert any(np.array_equal(r, whole["rewards"][2]) for r in rewards)
    assert before(native, middle, [graph.by_id[n].origin for n in part.outside]) == {
        "rollout/chunk[0]/infer",
        "rollout/chunk[0]/step",
    }


def test_a_version_that_is_gone_by_then_is_refused() -> None:
    native = rollout_graph(3)
    first = frozenset({"rollout/chunk[0]/step"})
    # the last step needs all others before; the first one cannot come after them
    with pytest.raises(RestrictionError, match="writes it before"):
        before(native, first, ["rollout/chunk[2]/step"])


def test_state_in_two_copies_is_refused() -> None:
    program = next(p for p in map(make, range(99)) if p.shape["copies"] == 2 and not p.shape["auto_reset"]
                   and p.shape["epochs"] == 2)  # fmt: skip
    graph = derive(program.graph, [step("split_temporal", EPOCH, groups=2), step("interleave", EPOCH)])
    middle = frozenset(c.origin for c in graph.calls if c.node == f"{CHUNK}/step")
    with pytest.raises(RestrictionError, match="2 copies"):
        restrict(graph, middle)


def test_dependencies_from_outside_do_not_order_a_part() -> None:
    native = rollout_graph(3)
    part = restrict(native, frozenset({"rollout/chunk[1]/infer"}))
    assert part.graph.streams == (("rollout/chunk[1]/infer",),)
    assert part.outside == ("rollout/chunk[0]/step",)
    assert replace(part.graph, history=()).hash == part.graph.hash
