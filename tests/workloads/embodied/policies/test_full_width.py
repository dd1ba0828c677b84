"""Policy families at full width and little depth, with 16-bit weights: what sizes of `tiny` do not show."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from rlprof.workloads.embodied.contracts import GlobalStep
from rlprof.workloads.embodied.policies import make
from rlprof.workloads.embodied.policies.sizes import FAMILIES, PolicySize, size_of
from rlprof.workloads.embodied.record import TOLERANCES
from tests.workloads.embodied.made import observation, spec

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'rlprof[workloads]'")

pytestmark = pytest.mark.slow
#: The library makes the expert a table of words, of which one row is left, and nothing reads it.
UNREAD = {"pi0.model.dit.embed_tokens.weight"}


def shallow(family: str) -> PolicySize:
    """The size of the preset h200 with one block in each stack; two where blocks take turns."""
    size = size_of(family, "h200")
    expert = None if size.expert is None else replace(size.expert, depth=2 if family == "gr00t" else 1)
    return replace(
        size,
        vision=replace(size.vision, depth=1),
        backbone=replace(size.backbone, depth=1),
        expert=expert,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_it_answers_evaluates_what_it_answered_and_trains(family: str) -> None:
    size = shallow(family)
    if size.transformers:
        pytest.importorskip(
            "transformers", reason="transformers is not installed: pip install 'rlprof[workloads]'"
        )
    policy = make(size, spec(2, cameras=2, image=224), seed=1)
    assert {p.dtype for p in policy.parameters()} == {torch.bfloat16}
    seen = observation(2, cameras=2, image=224)
    answer = policy.act(seen, policy.noise(seen, GlobalStep(2), 0, 1))
    horizon, dim = policy.spec.horizon, policy.spec.action_dim
    assert answer.actions.shape == (2, policy.spec.chunk_steps, dim)
    assert answer.chain.shape == (2, size.denoise_steps + 1, horizon, dim)
    assert all(np.isfinite(x).all() for x in (answer.actions, answer.chain, answer.log_prob, answer.value))

    evaluation = policy.evaluate(seen, answer.chain)
    log_prob = evaluation.log_prob.detach().numpy()
    most = TOLERANCES["bfloat16"].log_prob * math.sqrt(max(1, size.denoise_steps) * horizon * dim)
    assert np.abs(log_prob - answer.log_prob).max() <= most
    assert np.allclose(evaluation.value.detach(), answer.value, atol=0.03)
    (evaluation.log_prob.sum() + evaluation.value.sum()).backward()
    trained = {n for n, p in policy.named_parameters() if p.requires_grad}
    gradients = {n: p.grad for n, p in policy.named_parameters() if p.grad is not None}
    assert set(gradients) == trained - UNREAD
    assert all(torch.isfinite(g).all() for g in gradients.values())
    assert sum(bool(g.any()) for g in gradients.values()) > len(gradients) / 2  # some begin at zero

    moved = answer.chain.copy()
    moved[:, -1] += 0.5
    with torch.no_grad():
        other = policy.evaluate(seen, moved).log_prob.numpy()
    assert np.abs(other - answer.log_prob).min() > most  # the density is of this chain, not of any
