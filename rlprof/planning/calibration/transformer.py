"""A plain decoder-only transformer: RMS norms, rotary grouped-query attention, gated FFN, KV cache.

Weights are random; what is measured depends on sizes alone. Written as functions over tensors, so that
PyTorch is imported only where something runs. Shapes: B sequences, T tokens, D hidden, H query heads, K KV
heads, E head size, F FFN, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlprof.errors import UsageError
from rlprof.planning.calibration.parallel import ALONE, Ranks, Scattered
from rlprof.planning.calibration.torch_module import Tensor, torch_module
from rlprof.planning.shapes import Head, ModelShape

#: Logits that become losses or log-probabilities at once: there is never a second copy of all.
LOSSES_AT_ONCE, LOG_PROBABILITIES_AT_ONCE = 2**26, 2**25


@dataclass
class Layer:
    """Weights of one layer.

    Parameters
    ----------
    qkv, out, up, down : Tensor
        (H E + 2 K E, D), (D, H E), (2 F, D), (D, F): projections; gate and up in one.
    attention_norm, ffn_norm : Tensor
        (D,): scales of the norms.
    """

    qkv: Tensor
    out: Tensor
    up: Tensor
    down: Tensor
    attention_norm: Tensor
    ffn_norm: Tensor

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """All of them."""
        return (self.qkv, self.out, self.up, self.down, self.attention_norm, self.ffn_norm)


@dataclass
class Decoder:
    """A model with its weights.

    Parameters
    ----------
    shape : ModelShape
        Its dimensions; with tensor parallelism those of the part that is here.
    embedding, head : Tensor
        (V, D) and (outputs, D); the same one if tied.
    layers : list of Layer
        From the input on.
    norm : Tensor
        (D,): scale of the last norm.
    cos, sin : Tensor
        (positions, 1, E): rotation of queries and keys; see `rotated`.
    ranks : Ranks
        Devices that it is spread over.
    """

    shape: ModelShape
    embedding: Tensor
    head: Tensor
    layers: list[Layer]
    norm: Tensor
    cos: Tensor
    sin: Tensor
    ranks: Ranks = ALONE

    @property
    def groups(self) -> list[tuple[Tensor, ...]]:
        """All weights, layer by layer; a tied head is not repeated."""
        ends: tuple[Tensor, ...] = (self.embedding, self.norm)
        if self.head is not self.embedding:
            ends += (self.head,)
        return [ends, *(layer.weights for layer in self.layers)]


def build(
    shape: ModelShape,
    *,
    device: str,
    dtype: str,
    positions: int,
    head: Head = "lm",
    trainable: bool = False,
    seed: int = 0,
    ranks: Ranks = ALONE,
) -> Decoder:
    """Make a model with random weights.

    Parameters
    ----------
    shape : ModelShape
        Dense and gated.
    device, dtype : str
        As PyTorch names them.
    positions : int
        Longest sequence.
    head : str
        What it puts out.
    trainable : bool
        Weights take gradients.
    seed : int
        Of the weights.
    ranks : Ranks
        Devices that it is spread over, this one among them.

    Raises
    ------
    UsageError
        If the shape cannot be spread so, or has experts or no gate, which this model has not.
    """
    torch = torch_module()

    if shape.experts > 1 or not shape.gated or shape.head_dim % 2:
        raise UsageError(
            f"shape {shape.name!r} has experts, no gate or an odd head size",
            hint="measure a dense, gated model",
        )
    shape = ranks.shard(shape)
    generator = torch.Generator(device=device).manual_seed(seed)
    number = getattr(torch, dtype)

    def weight(rows: int, columns: int) -> Tensor:
        made = torch.empty(rows, columns, device=device, dtype=number)
        return made.normal_(0.0, 1 / math.sqrt(columns), generator=generator).requires_grad_(trainable)

    def scale() -> Tensor:
        return torch.ones(shape.hidden, device=device, dtype=number, requires_grad=trainable)

    d, q, kv, f = shape.hidden, shape.query_dim, shape.kv_dim, shape.ffn_hidden
    embedding = weight(shape.vocabulary, d)
    layers = [
        Layer(weight(q + 2 * kv, d), weight(d, q), weight(2 * f, d), weight(d, f), scale(), scale())
        for _ in range(shape.layers)
    ]
    tied = shape.tied and head == "lm"
    frequency = 10_000.0 ** (-torch.arange(0, shape.head_dim, 2, device=device) / shape.head_dim)
    angle = torch.arange(positions, device=device)[:, None, None] * frequency
    return Decoder(
        shape,
        embedding,
        embedding if tied else weight(shape.outputs(head), d),
        layers,
        scale(),
        torch.cat((angle.cos(), angle.cos()), -1).to(number),
        torch.cat((-angle.sin(), angle.sin()), -1).to(number),
        ranks,
    )


@dataclass
class KVCache:
    """Keys and values of all layers: each (B, K, T, E)."""

    keys: list[Tensor]
    values: list[Tensor]


def kv_cache(model: Decoder, sequences: int, positions: int) -> KVCache:
    """Make an empty cache."""
    shape = model.shape
    size = (sequences, shape.kv_heads, positions, shape.head_dim)
    both = [[model.embedding.new_zeros(size) for _ in model.layers] for _ in range(2)]
    return KVCache(*both)


def norm(x_BTD: Tensor, scale_D: Tensor) -> Tensor:
    """RMS norm."""
    rms_norm = torch_module("nn.functional").rms_norm

    return rms_norm(x_BTD, scale_D.shape, scale_D, 1e-5)


def rotated(x_BTHE: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the two halves of every head by the angle of its position, in three kernels.

    cos has the cosine twice, sin the sine with a minus before the first half.
    """
    torch = torch_module()

    return torch.addcmul(x_BTHE * cos, x_BTHE.roll(x_BTHE.shape[-1] // 2, -1), sin)


def attend(q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor) -> Tensor:
    """Causal attention of whole sequences, or of one new token over all that came before."""
    scaled_dot_product_attention = torch_module("nn.functional").scaled_dot_product_attention

    if q_BHTE.shape[2] > 1:
        grouped = q_BHTE.shape[1] != k_BKTE.shape[1]
        return scaled_dot_product_attention(q_BHTE, k_BKTE, v_BKTE, is_causal=True, enable_gqa=grouped)
    # the queries of a group look at the same keys: they are rows of one product
    b, h, _, e = q_BHTE.shape
    rows = q_BHTE.reshape(b, k_BKTE.shape[1], -1, e)
    return scaled_dot_product_attention(rows, k_BKTE, v_BKTE).reshape(b, h, 1, e)


def projected(model: Decoder, x: Tensor, weight: Tensor) -> Tensor:
    """The last product of attention or FFN, summed over tensor ranks."""
    made = torch_module("nn.functional").linear(x, weight)
    return model.ranks.summed(made) if model.ranks.summed else made


def normed(model: Decoder, x_BTD: Tensor, scale_D: Tensor) -> Tensor:
    """The input of attention or FFN, on all tensor ranks."""
    made = norm(x_BTD, scale_D)
    return model.ranks.copied(made) if model.ranks.copied else made


def feed_forward(model: Decoder, layer: Layer, x_BTD: Tensor) -> Tensor:
    """Gated FFN."""
    linear = torch_module("nn.functional").linear
    silu = torch_module("nn.functional").silu

    gate, up = linear(x_BTD, layer.up).chunk(2, dim=-1)
    return projected(model, silu(gate) * up, layer.down)


def layer_forward(
    model: Decoder,
    number: int,
    x_BTD: Tensor,
    start: int = 0,
    cache: KVCache | None = None,
) -> Tensor:
    """One layer over tokens at positions `start` on; fills the cache if there is one."""
    linear = torch_module("nn.functional").linear

    shape, layer = model.shape, model.layers[number]
    b, t, _ = x_BTD.shape
    heads, kv = shape.heads, shape.kv_heads
    seen_BTD = normed(model, x_BTD, layer.attention_norm)
    qkv = linear(seen_BTD, layer.qkv).view(b, t, heads + 2 * kv, shape.head_dim)
    at = slice(start, start + t)
    turned = rotated(qkv[:, :, : heads + kv], model.cos[at], model.sin[at]).transpose(1, 2)
    q, k, v = turned[:, :heads], turned[:, heads:], qkv[:, :, heads + kv :].transpose(1, 2)
    if cache is not None:
        keys, values = cache.keys[number], cache.values[number]
        keys[:, :, at] = k
        values[:, :, at] = v
        if t == 1:
            k, v = keys[:, :, : start + 1], values[:, :, : start + 1]
    seen = attend(q, k, v).transpose(1, 2).reshape(b, t, -1)
    x_BTD = x_BTD + projected(model, seen, layer.out)
    return x_BTD + feed_forward(model, layer, normed(model, x_BTD, layer.ffn_norm))


def forward(model: Decoder, tokens_BT: Tensor, start: int = 0, cache: KVCache | None = None) -> Tensor:
    """All layers and the last norm; returns (B, T, D)."""
    embedding = torch_module("nn.functional").embedding

    x = embedding(tokens_BT, model.embedding)
    for number in range(len(model.layers)):
        x = layer_forward(model, number, x, start, cache)
    return norm(x, model.norm)


def log_probabilities(model: Decoder, tokens_BT: Tensor) -> Tensor:
    """Inference: of every token but the first, given those before; of a scalar head the values: (B, T - 1).

    All logits are made at once, as inference engines do; the normalisation goes by rows.
    """
    torch = torch_module()
    linear = torch_module("nn.functional").linear

    with torch.no_grad():
        logits = linear(forward(model, tokens_BT), model.head).flatten(0, 1)
        if logits.shape[-1] == 1:
            return logits.view(tokens_BT.shape)[:, :-1]
        target = tokens_BT.roll(-1, dims=1).flatten()
        rows = _rows(LOG_PROBABILITIES_AT_ONCE, model)
        parts = [
            part.gather(-1, wanted[:, None])[:, 0].float() - part.logsumexp(-1).float()
            for part, wanted in zip(logits.split(rows), target.split(rows), strict=True)
        ]
        return torch.cat(parts).view(tokens_BT.shape)[:, :-1]


def _rows(logits: int, model: Decoder) -> int:
    """Rows that have so many logits."""
    return max(1, logits // int(model.head.shape[0]))


def prefill(model: Decoder, tokens_BT: Tensor, cache: KVCache) -> Tensor:
    """Fill the cache with prompts and return the most likely next tokens, (B, 1)."""
    return next_token(model, forward(model, tokens_BT, 0, cache)[:, -1:])


def decode(model: Decoder, tokens_B1: Tensor, position: int, cache: KVCache) -> Tensor:
    """One decode step: a token of each sequence at `position` in, the most likely next ones out, (B, 1)."""
    return next_token(model, forward(model, tokens_B1, position, cache))


def next_token(model: Decoder, x_B1D: Tensor) -> Tensor:
    """The most likely token of each last hidden state."""
    linear = torch_module("nn.functional").linear

    return linear(x_B1D, model.head).argmax(-1)


def backward(model: Decoder, tokens_BT: Tensor) -> Tensor:
    """Forward and backward of the mean log-likelihood, with recomputation; returns the loss.

    Activations are kept at every round(sqrt(layers))-th layer and recomputed between. Logits and their
    gradients exist for `LOSSES_AT_ONCE` of them at a time.
    """
    torch = torch_module()
    cross_entropy = torch_module("nn.functional").cross_entropy
    embedding = torch_module("nn.functional").embedding
    linear = torch_module("nn.functional").linear
    checkpoint = torch_module("utils.checkpoint").checkpoint

    count = len(model.layers)
    chunk = max(1, round(math.sqrt(count)))
    x = embedding(tokens_BT, model.embedding)

    def layers_from(first: int) -> Callable[[Tensor], Tensor]:
        def run(hidden: Tensor) -> Tensor:
            for number in range(first, min(first + chunk, count)):
                hidden = layer_forward(model, number, hidden)
            return hidden

        return run

    for first in range(0, count, chunk):
        x = checkpoint(layers_from(first), x, use_reentrant=False)
    x = norm(x, model.norm)
    rows = x.detach().flatten(0, 1).requires_grad_()
    target = tokens_BT.roll(-1, dims=1).flatten()
    total = torch.zeros((), device=rows.device)
    at_once = _rows(LOSSES_AT_ONCE, model)
    for part, wanted in zip(rows.split(at_once), target.split(at_once), strict=True):
        logits = linear(part, model.head).float()
        if logits.shape[-1] == 1:
            loss = logits.square().sum() / rows.shape[0]
        else:
            loss = cross_entropy(logits, wanted, reduction="sum") / rows.shape[0]
        loss.backward()
        total += loss.detach()
    x.backward(rows.grad.view_as(x))
    return total


class Adam:
    """Mixed-precision Adam: master weights and two moments in float32, 12 bytes of each parameter.

    Parameters
    ----------
    groups : list of tuple of Tensor
        Weights; the gradients of one group at a time exist in float32.
    scattered : Scattered, optional
        Data ranks, each of which updates its part of every weight.
    """

    def __init__(self, groups: list[tuple[Tensor, ...]], scattered: Scattered | None = None) -> None:
        torch = torch_module()

        self.groups, self.scattered = groups, scattered
        self._masters = [[self._mine(w).to(torch.float32, copy=True) for w in group] for group in groups]
        self._steps: list[Any] = [torch.optim.Adam(masters, lr=1e-6, fused=True) for masters in self._masters]

    def _mine(self, weight: Tensor) -> Tensor:
        return self.scattered.part(weight) if self.scattered else weight.detach()

    def step(self) -> None:
        """Update all weights by their gradients, and forget those."""
        torch = torch_module()

        parts = self.scattered.parts if self.scattered else {}
        with torch.no_grad():
            for weights, masters, optimizer in zip(self.groups, self._masters, self._steps, strict=True):
                for weight, master in zip(weights, masters, strict=True):
                    gradient = parts.pop(id(weight), weight.grad)
                    master.grad = None if gradient is None else gradient.float()
                    weight.grad = gradient = None
                optimizer.step()
                for weight, master in zip(weights, masters, strict=True):
                    if self.scattered:
                        self.scattered.gather(weight, master.to(weight.dtype))
                    else:
                        weight.copy_(master)
                    master.grad = None
