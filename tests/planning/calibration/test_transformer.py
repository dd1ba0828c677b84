"""The transformer that is measured computes what a transformer computes."""

from __future__ import annotations

from typing import Any

import pytest

from rlprof.errors import UsageError
from rlprof.planning.calibration import transformer
from rlprof.planning.shapes import ModelShape, shape_named

torch = pytest.importorskip("torch")

GROUPED = ModelShape("grouped", 5, 32, 48, 4, 2, 50)
WHOLE = ModelShape("whole", 4, 32, 48, 4, 4, 50, tied=True)


def model(shape: ModelShape, **more: Any) -> transformer.Decoder:
    return transformer.build(shape, device="cpu", dtype="float32", positions=24, **more)


def tokens(sequences: int, length: int) -> Any:
    return torch.randint(50, (sequences, length), generator=torch.Generator().manual_seed(1))


def logits(m: transformer.Decoder, seen: Any) -> Any:
    return torch.nn.functional.linear(transformer.forward(m, seen), m.head)


@pytest.mark.parametrize("shape", [GROUPED, WHOLE])
def test_decoding_with_a_cache_gives_what_the_whole_sequence_gives(shape: ModelShape) -> None:
    m, prompt = model(shape), tokens(3, 7)
    cache = transformer.kv_cache(m, 3, 24)
    with torch.no_grad():
        current = transformer.prefill(m, prompt, cache)
        seen = torch.cat([prompt, current], 1)
        for position in range(7, 14):
            current = transformer.decode(m, current, position, cache)
            seen = torch.cat([seen, current], 1)
        assert torch.equal(logits(m, seen).argmax(-1)[:, 6:-1], seen[:, 7:])


def test_rotated_products_depend_on_the_distance_of_positions_alone() -> None:
    m, random = model(GROUPED), torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1, 1, GROUPED.head_dim, generator=random) for _ in range(2))

    def product(at: int, other: int) -> float:
        turned = [
            transformer.rotated(x, m.cos[p : p + 1], m.sin[p : p + 1]) for x, p in ((q, at), (k, other))
        ]
        return float((turned[0] * turned[1]).sum())

    assert product(3, 0) == pytest.approx(product(17, 14), rel=1e-4)
    assert product(0, 0) == pytest.approx(float((q * k).sum()), rel=1e-5)
    assert abs(product(3, 0) - product(4, 0)) > 1e-3


def test_no_token_sees_a_later_one() -> None:
    m, first = model(GROUPED), tokens(2, 9)
    second = first.clone()
    second[:, 5:] = (second[:, 5:] + 1) % 50
    a, b = logits(m, first), logits(m, second)
    torch.testing.assert_close(a[:, :5], b[:, :5])
    assert not torch.allclose(a[:, 5:], b[:, 5:])


def test_the_weights_are_those_that_the_shape_counts() -> None:
    for shape in (GROUPED, WHOLE):
        norms = (2 * shape.layers + 1) * shape.hidden  # left out of the counts
        held = sum(w.numel() for group in model(shape).groups for w in group)
        assert held - norms == shape.parameters("lm")


def test_log_probabilities_are_those_of_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "LOG_PROBABILITIES_AT_ONCE", 4 * 50)  # 4 rows: not a divisor of 18
    m, seen = model(GROUPED), tokens(3, 6)
    expected = logits(m, seen).log_softmax(-1)[:, :-1].gather(-1, seen[:, 1:, None])[..., 0]
    torch.testing.assert_close(transformer.log_probabilities(m, seen), expected)


@pytest.mark.parametrize("shape", [GROUPED, WHOLE])
def test_recomputation_and_loss_by_rows_give_the_plain_gradients(
    shape: ModelShape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformer, "LOSSES_AT_ONCE", 5 * 50)
    seen = tokens(2, 6)
    ours, plain = model(shape, trainable=True), model(shape, trainable=True)
    loss = transformer.backward(ours, seen)
    expected = torch.nn.functional.cross_entropy(
        logits(plain, seen).flatten(0, 1), seen.roll(-1, dims=1).flatten()
    )
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    for mine, other in zip(sum(ours.groups, ()), sum(plain.groups, ()), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


def test_the_optimizer_is_adam_on_master_weights() -> None:
    weight = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    master = weight.detach().float().clone().requires_grad_()
    ours, other = transformer.Adam([(weight,)]), torch.optim.Adam([master], lr=1e-6)
    for step in range(3):
        weight.grad, master.grad = torch.full_like(weight, step + 1), torch.full_like(master, step + 1)
        ours.step()
        other.step()
        assert weight.grad is None
    torch.testing.assert_close(weight, master.bfloat16())


def test_training_lowers_the_loss_and_a_scalar_head_gives_one_value_per_token() -> None:
    m, seen = model(GROUPED, trainable=True), tokens(2, 8)
    adam = transformer.Adam(m.groups)
    for optimizer in adam._steps:
        optimizer.param_groups[0]["lr"] = 1e-2
    losses = []
    for _ in range(5):
        losses.append(float(transformer.backward(m, seen)))
        adam.step()
    assert losses[-1] < losses[0] / 2
    critic = model(GROUPED, head="scalar", trainable=True)
    assert critic.head.shape == (1, 32)
    assert transformer.log_probabilities(critic, seen).shape == (2, 7)
    assert float(transformer.backward(critic, seen)) > 0


def test_shapes_that_it_cannot_be_are_refused() -> None:
    for name in ("mixtral-8x7b", "gpt3-175b"):
        with pytest.raises(UsageError, match="dense, gated"):
            model(shape_named(name))
