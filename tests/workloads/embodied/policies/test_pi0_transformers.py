"""pi0 of the library transformers at tiny size. Loading the library takes most of the time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlprof.overlap.equality import equal_bits
from rlprof.workloads.embodied import checkpoint
from rlprof.workloads.embodied.actor import Actor
from rlprof.workloads.embodied.algorithms import Ppo
from rlprof.workloads.embodied.contracts import Batch, GlobalStep
from rlprof.workloads.embodied.errors import ConfigurationError
from rlprof.workloads.embodied.policies import make
from rlprof.workloads.embodied.policies.sizes import PolicySize, size_of
from tests.workloads.embodied.made import observation, spec

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'rlprof[workloads]'")
torch = pytest.importorskip("torch")
pi0_transformers = pytest.importorskip("rlprof.workloads.embodied.policies.pi0_transformers")

SIZE = replace(size_of("pi0", "tiny"), transformers=True, image=32)


def test_it_samples_as_the_library_does_and_evaluates_what_it_answers() -> None:
    seen = observation(3, cameras=2)
    policy = make(replace(SIZE, noise_level=1e-9, preconditioned=False), spec(3, cameras=2), seed=1)
    noise = policy.noise(seen, GlobalStep(0), 0, 0)
    count = SIZE.instruction_tokens
    words = (torch.from_numpy(seen.task)[:, None] * count + torch.arange(count)) % SIZE.vocabulary
    pictures = torch.full((3, 2 * (32 // SIZE.patch) ** 2), SIZE.vocabulary)
    native = policy.pi0.sample_actions(
        state=torch.from_numpy(seen.state),
        input_ids=torch.cat([pictures, words], dim=1),
        pixel_values=torch.from_numpy(seen.images).permute(0, 1, 4, 2, 3) / 255 * 2 - 1,
        noise=torch.from_numpy(noise[:, 0]),
        pixel_attention_mask=torch.ones(3, 2, dtype=torch.bool),
        num_steps=SIZE.denoise_steps,
    )
    assert np.allclose(policy.act(seen, noise).chain[:, -1], native, atol=1e-6)

    policy = make(SIZE, spec(3, cameras=2), seed=1)
    answer = policy.act(seen, noise)
    evaluation = policy.evaluate(seen, answer.chain)
    assert np.allclose(evaluation.log_prob.detach(), answer.log_prob, atol=1e-4)
    evaluation.log_prob.sum().backward()
    expert = make(replace(SIZE, train="expert"), spec(3, cameras=2), seed=1)
    trained = {n for n, p in expert.named_parameters() if p.requires_grad}
    assert any(".dit." in n for n in trained)
    assert not any(".vlm." in n for n in trained)
    expert.keeps_prefix = True
    answer = expert.act(seen, noise)
    anew = expert.evaluate(seen, answer.chain)
    kept = expert.evaluate(seen._replace(images=None), answer.chain, answer.prefix)
    assert torch.allclose(kept.log_prob, anew.log_prob, atol=1e-4)
    assert torch.allclose(kept.value, anew.value, atol=1e-6)
    kept.log_prob.sum().backward()
    assert all(p.grad is None for n, p in expert.named_parameters() if n not in trained)
    with pytest.raises(ConfigurationError, match="no cameras"):
        make(SIZE, spec(3))


def actor(size: PolicySize) -> Actor:
    policy = make(size, spec(4, cameras=2), seed=1)
    return Actor(policy, Ppo(), learning_rate=1e-3, global_batch=4, micro_batch=4)


def trained(one: Actor) -> dict[str, torch.Tensor]:
    """Weights after an optimiser step."""
    seen = observation(4, cameras=2)
    answer = one.policy.act(seen, one.policy.noise(seen, GlobalStep(0), 0, 0))
    drawn = np.linspace(-1, 1, 4, dtype=np.float32)
    samples = Batch(seen, answer.chain, answer.log_prob, answer.value, drawn, drawn + 1)
    one.training_step(samples, np.arange(4), 0)
    return dict(one.policy.state_dict())


def test_the_table_of_words_that_the_expert_does_not_read_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = "pi0.model.dit.embed_tokens.weight"
    size = replace(SIZE, dtype="bfloat16", train="expert")
    one = actor(size)
    with monkeypatch.context() as patched:
        patched.setattr(pi0_transformers, "_cut_table", lambda _: None)
        whole = actor(size)
    assert one.policy.state_dict()[table].shape == (1, size.expert.width)
    # answers and what is trained of all other weights of a seed are the same
    mine, library = trained(one), trained(whole)
    assert mine.keys() == library.keys()
    assert all(torch.equal(mine[name], library[name]) for name in mine if name != table)
    assert torch.equal(mine[table], library[table][:1])
    # and a checkpoint in which the table is whole can be gone on with
    path = tmp_path / checkpoint.NAME
    state = {"actor": library, "masters": whole.copies(), "optimizer": whole.optimizer.state_dict()}
    rest = {"iteration": 1, "updates": 1, "version": 1, "rollout": None, "environments": None}
    torch.save({"format": checkpoint.FORMAT, "configuration": {}, **state, **rest}, path)
    again = actor(size)
    rollout = SimpleNamespace(take_all=lambda _: None, version=0)
    trainer: Any = SimpleNamespace(actor=again, rollout=rollout)
    with torch.no_grad():
        checkpoint.load(path, trainer, {})
    assert equal_bits(trained(again), trained(one))
