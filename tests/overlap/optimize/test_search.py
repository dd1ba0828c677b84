"""Search: order of candidates, refusals that name what forbids, legality of everything that is offered."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.rl_programs import make
from rlprof.overlap.legality import check
from rlprof.overlap.optimize.search import Candidate, Found, search
from rlprof.overlap.optimize.simulated import simulate
from rlprof.overlap.optimize.windows import rank

EPOCH = "iteration/rollout/epoch"
CHUNK = f"{EPOCH}/chunk"


def program_with(**wanted: object):
    """The first program whose shape has these values."""
    return next(p for p in map(make, range(2_000)) if all(p.shape[k] == v for k, v in wanted.items()))


PLAIN = {"transfers": False, "reward": False, "two_policies": False, "mixes": False, "auto_reset": False}


def names(found: Found) -> list[str]:
    return ["; ".join(f"{s.kind} {s.target.rpartition('/')[2]}" for s in c.steps) for c in found.candidates]


def test_epochs_come_before_parts_of_a_batch() -> None:
    program = program_with(**PLAIN, copies=2, epochs=2, values=True)
    found = search(program.graph, f"{CHUNK}/step", {f"{CHUNK}/step": 1.0, f"{CHUNK}/predict": 0.8})
    assert names(found)[:3] == [
        "split_temporal epoch; interleave epoch",
        "split_spatial chunk; interleave chunk",
        "split_spatial chunk; interleave chunk",
    ]
    first, second, third = found.candidates[:3]
    assert (first.partner, first.guess) == (f"{CHUNK}/predict", False)
    assert first.delta_s is not None
    assert abs(first.delta_s - 0.2) < 1e-9
    assert second.guess  # half of a batch was never measured
    assert dict(third.steps[0].options)["downstream"] == (f"{EPOCH}/values",)
    refused = {r.name: r.reason for r in found.refused}
    chunks = next(reason for name, reason in refused.items() if name.startswith(f"split_temporal {CHUNK} "))
    assert "is dependent" in chunks
    assert "ENV[0]" in chunks


def test_without_a_spare_simulator_epochs_cannot_overlap() -> None:
    program = program_with(**PLAIN, copies=1, epochs=2)
    found = search(program.graph, f"{CHUNK}/step", {})
    assert not any(name.startswith("split_temporal") for name in names(found))
    reasons = [r.reason for r in found.refused if f"split_temporal {EPOCH} " in r.name]
    assert reasons == [
        "split: 2 groups of iteration/rollout/epoch write ENV at once, of which there is 1 copy"
    ]


def test_a_policy_that_mixes_samples_is_not_cut() -> None:
    program = program_with(mixes=True, copies=1, two_policies=False)
    found = search(program.graph, f"{CHUNK}/predict", {})
    assert not any(s.kind == "split_spatial" for c in found.candidates for s in c.steps)
    assert any("declares no batch axis: it may mix samples" in r.reason for r in found.refused)


def test_training_may_run_beside_the_next_epoch_only_on_its_own_samples() -> None:
    found = search(program_with(by_epoch=True, epochs=2, passes=1).graph, f"{CHUNK}/step", {})
    assert any(s.kind == "train_beside_next_epoch" for c in found.candidates for s in c.steps)
    whole = search(program_with(by_epoch=False, epochs=2, passes=1).graph, f"{CHUNK}/step", {})
    assert not any(s.kind == "train_beside_next_epoch" for c in whole.candidates for s in c.steps)
    assert any("training needs all epochs from its first minibatch on" in r.reason for r in whole.refused)


def test_one_worker_serves_one_call() -> None:
    program = program_with(**PLAIN, values=True)
    found = search(program.graph, f"{EPOCH}/values", {})
    assert any(r.reason.startswith("L5: both are of component worker rollout") for r in found.refused)


def test_memory_refuses() -> None:
    program = program_with(**PLAIN, copies=1)
    found = search(program.graph, f"{CHUNK}/step", {}, check=lambda graph: "L7: too much")
    assert not found.candidates
    assert any(r.reason == "L7: too much" for r in found.refused)


def test_the_nearest_durations_come_first() -> None:
    def candidate(order: int, delta_s: float | None) -> Candidate:
        graph = make(0).graph
        return Candidate("v", "w", (), graph, delta_s, None, False, order)

    found = Found(tuple(candidate(n, d) for n, d in enumerate((0.5, None, 0.1, 0.1, 0.3))), ())
    assert [c.order for c in found.best(4)] == [2, 3, 4, 0]
    assert [c.order for c in found.best(9)][-1] == 1


def test_more_parts_are_tried_if_asked_for() -> None:
    program = program_with(**PLAIN, samples=4, copies=1)
    found = search(program.graph, f"{CHUNK}/step", {}, groups=(2, 4))
    parts = {dict(s.options).get("groups") for c in found.candidates for s in c.steps} - {None}
    assert parts == {2, 4}


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10_000), st.data())
def test_everything_offered_is_legal_and_lets_two_workers_run_at_once(seed: int, data: st.DataObject) -> None:
    program = make(seed)
    run = simulate(program.graph, program.model)
    windows = rank(program.graph, run.times, run.activity)
    node = data.draw(st.sampled_from([w.node for w in windows if w.node != "iteration"]))
    found = search(program.graph, node, {w.node: w.mean_s for w in windows})
    for candidate in found.candidates:
        assert not check(program.graph, candidate.graph)
        assert len(candidate.graph.streams) > 1
    for refused in found.refused:
        assert refused.reason
        assert refused.target == node
        if "dependencies order them all" in refused.reason or "dependencies and" in refused.reason:
            assert paths(refused.reason)


def paths(reason: str) -> list[str]:
    """Dependency paths that a refusal names."""
    return [way for way in reason.rpartition(" order them all: ")[2].split(", and ") if " -> " in way]


def test_more_than_two_parts_are_offered_where_batch_epochs_and_copies_allow_it() -> None:
    program = program_with(**PLAIN, copies=2, epochs=3, samples=4)
    found = search(program.graph, f"{CHUNK}/step", {}, groups=(2, 3, 4))
    parts = {
        kind: {dict(c.steps[0].options)["groups"] for c in found.candidates if c.steps[0].kind == kind}
        for kind in ("split_spatial", "split_temporal")
    }
    assert parts["split_spatial"] == {2, 3, 4}
    assert parts["split_temporal"] == {2}
    assert all(not check(program.graph, c.graph) for c in found.candidates)
    refused = {
        r.name.split(";")[0]: r.reason for r in found.refused if r.name.startswith(f"split_temporal {EPOCH} ")
    }
    # three epochs at once need three simulators, and four parts need four epochs
    assert "there are 2 copies" in refused[f"split_temporal {EPOCH} groups=3"]
    assert "cannot be divided into 4 groups" in refused[f"split_temporal {EPOCH} groups=4"]
