"""Gemma's layers as the library transformers has them, computed with fewer kernels.

The modules, their weights and their names stay the library's; only what is computed between the linear layers
is put together otherwise. What is the same to rounding: norms (one fused kernel and one for the weight), the
rotary embedding (tables made once, two kernels for a tensor), and attention (query heads that share keys and
values are rows of one head, so that nothing is repeated).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rlprof.workloads.embodied.policies.layers import KeyValue, is_gelu

_LAYER = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj", "act_fn")
# more in an attention module (norms of queries, gates) would be another computation
_KINDS = {"GemmaModel", "GemmaDecoderLayer", "GemmaAttention", "GemmaRMSNorm"}
#: Rows of a mask begin at multiples of so many numbers, or attention copies it into one whose rows do.
_ALIGNED = 16


class Layout(NamedTuple):
    """What all layers of a forward pass share; see `layout`.

    Parameters
    ----------
    rotation : Tensor, shape (2, tokens, 1, 2, head_dim / 2)
        Factors of the rotary embedding, from half (first axis) to half (fourth) of a head's features.
    mask : Tensor or None, shape (1, 1, tokens * query heads of one key head, keys)
        Added to the scores.
    """

    rotation: Tensor
    mask: Tensor | None


def known(model: Any) -> bool:
    """Whether a language model is one that `forward` computes as the library does.

    Parameters
    ----------
    model : nn.Module
        GemmaModel of transformers.
    """
    layers = getattr(model, "layers", None)
    if type(model).__name__ not in _KINDS or not layers or not hasattr(model, "rotary_emb"):
        return False
    norms = [model.norm]
    for layer in layers:
        if type(layer).__name__ not in _KINDS or _names(layer) != set(_LAYER):
            return False
        attention = layer.self_attn
        if type(attention).__name__ not in _KINDS or _names(attention) != set(_PROJECTIONS):
            return False
        if _names(layer.mlp) != set(_MLP) or not is_gelu(layer.mlp.act_fn):
            return False
        if attention.attention_dropout or attention.scaling != attention.head_dim**-0.5:
            return False
        norms += [layer.input_layernorm, layer.post_attention_layernorm]
    return all(type(n).__name__ in _KINDS and hasattr(n, "eps") and hasattr(n, "weight") for n in norms)


def _names(module: Any) -> set[str]:
    return {name for name, _ in module.named_children()}


def layout(
    model: Any, positions: Tensor, mask: Tensor | None, dtype: torch.dtype, device: torch.device
) -> Layout:
    """Lay out a forward pass.

    It is made on the host and copied, so that every stream may use it at once; not during a capture.

    Parameters
    ----------
    model : nn.Module
        GemmaModel of transformers.
    positions : Tensor, shape (tokens,)
        Of the tokens, on the host.
    mask : Tensor or None, shape (tokens, keys)
        True where a token may look, on the host; None: everywhere.
    dtype, device : torch.dtype, torch.device
        Of the tokens.
    """
    # it is kept, and training uses it after an answer that was given in inference mode
    with torch.inference_mode(False), torch.no_grad():
        # the type and place are those of the first argument
        cos, sin = model.rotary_emb(torch.empty(0, dtype=dtype, device="cpu"), positions[None])
        cos, sin = (t[0].unflatten(-1, (2, -1))[:, None] for t in (cos, sin))
        first = torch.cat([cos[..., :1, :], sin[..., 1:, :]], -2)
        second = torch.cat([-sin[..., :1, :], cos[..., 1:, :]], -2)
        added = None
        if mask is not None:
            rows = mask.repeat_interleave(model.layers[0].self_attn.num_key_value_groups, 0)
            width = -(-rows.shape[1] // _ALIGNED) * _ALIGNED
            added = torch.zeros(len(rows), width, dtype=dtype, device="cpu")
            added[:, : rows.shape[1]].masked_fill_(~rows, float("-inf"))
            added = added.to(device)[None, None, :, : rows.shape[1]]
        return Layout(torch.stack([first, second]).to(device), added)


class _Scale(torch.autograd.Function):
    """``y * (1 + weight)``; gradients with fewer kernels than those of `addcmul`."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(y, weight)
        return torch.addcmul(y, y, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        y, weight = ctx.saved_tensors
        of_y = torch.addcmul(grad, grad, weight) if ctx.needs_input_grad[0] else None
        of_weight = (grad * y).flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        return of_y, of_weight


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    halves = x.view(*x.shape[:-1], 2, x.shape[-1] // 2)
    return halves[..., :1, :], halves[..., 1:, :]


def _rotated(x: Tensor, rotation: Tensor) -> Tensor:
    first, second = _halves(x)
    return torch.addcmul(first * rotation[0], second, rotation[1]).flatten(-2)


class _Rotate(torch.autograd.Function):
    """Rotary embedding; its gradient is the rotation back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rotation: Tensor) -> Tensor:
        ctx.save_for_backward(rotation)
        return _rotated(x, rotation)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        back = ctx.saved_tensors[0].transpose(0, 3)
        first, second = _halves(grad)
        return torch.addcmul(first * back[0], second, back[1]).flatten(-2), None


def norm(module: Any, x: Tensor) -> Tensor:
    """RMS norm of x, shape (..., width), scaled by 1 + weight.

    The library rounds to the type of x once, after it has scaled; here the norm is rounded too, and the two
    differ by a unit in the last place at most. A weight smaller than that is therefore not felt in 16 bits.
    `1 + weight` is never rounded by itself: its error would be the same for all tokens.
    """
    y = F.rms_norm(x, (x.shape[-1],), eps=module.eps)
    if not torch.is_grad_enabled():  # the same; a compiler sees through it
        return torch.addcmul(y, y, module.weight)
    return _Scale.apply(y, module.weight)  # type: ignore[no-any-return, no-untyped-call]


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotary embedding of x, shape (batch, tokens, heads, head_dim); for the factors see `Layout`."""
    if not torch.is_grad_enabled():
        return _rotated(x, rotation)
    return _Rotate.apply(x, rotation)  # type: ignore[no-any-return, no-untyped-call]


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of heads that share keys and values.

    Parameters
    ----------
    query : Tensor, shape (batch, tokens, heads, head_dim)
        Heads that share keys are neighbours.
    key, value : Tensor, shape (batch, kv_heads, keys, head_dim)
        Not repeated: query heads of a key head become rows (token by token) of it.
    mask : Tensor or None, shape (1, 1, tokens * heads / kv_heads, keys)
        Added to the scores.

    Returns
    -------
    Tensor, shape (batch, tokens, heads * head_dim)
    """
    batch, tokens, heads, dim = query.shape
    shape = (batch, tokens, key.shape[1], heads // key.shape[1], dim)
    rows = query.reshape(shape).transpose(1, 2).flatten(2, 3)
    out = F.scaled_dot_product_attention(rows, key, value, attn_mask=mask)
    return out.reshape(batch, shape[2], tokens, shape[3], dim).transpose(1, 2).flatten(2)


def one_layer(
    layer: Any, x: Tensor, rotation: Tensor, mask: Tensor | None, past: KeyValue | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute a layer.

    Parameters
    ----------
    layer : nn.Module
        GemmaDecoderLayer of transformers.
    x : Tensor, shape (batch, tokens, width)
        Tokens.
    rotation, mask : Tensor, Tensor or None
        Of their `Layout`.
    past : pair of Tensor or None
        Keys and values before these tokens.

    Returns
    -------
    tuple of Tensor
        Tokens, keys and values (of these tokens only).
    """
    part = layer.self_attn
    y = norm(layer.input_layernorm, x)
    query, key, value = (
        projection(y).view(*y.shape[:-1], -1, part.head_dim)
        for projection in (part.q_proj, part.k_proj, part.v_proj)  # or what stands in their place
    )
    query = rotate(query, rotation)
    own_key, own_value = rotate(key, rotation).transpose(1, 2), value.transpose(1, 2)
    key, value = own_key, own_value
    if past is not None:
        key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
    x = x + part.o_proj(attend(query, key, value, mask))
    y = norm(layer.post_attention_layernorm, x)
    # not the module of the activation: each layer has its own, and compiled code could be of one of them
    mlp = layer.mlp
    x = x + mlp.down_proj(F.gelu(mlp.gate_proj(y), approximate="tanh") * mlp.up_proj(y))
    return x, own_key, own_value


def forward(
    model: Any,
    x: Tensor,
    where: Layout,
    past: tuple[KeyValue, ...] | None = None,
    *,
    layer: Callable[..., tuple[Tensor, Tensor, Tensor]] = one_layer,
) -> tuple[Tensor, tuple[KeyValue, ...]]:
    """Compute a language model.

    Parameters
    ----------
    model : nn.Module
        GemmaModel of transformers that is `known`.
    x : Tensor, shape (batch, tokens, width)
        Embedded tokens.
    where : Layout
        Of the tokens.
    past : tuple of pairs, optional
        Keys and values before these tokens, layer by layer.
    layer : callable
        `one_layer`, or the same compiled.

    Returns
    -------
    tuple
        Normalised tokens, and keys and values of every layer (of these tokens only).
    """
    cache = []
    for k, module in enumerate(model.layers):
        x, *own = layer(module, x, where.rotation, where.mask, None if past is None else past[k])
        cache.append((own[0], own[1]))
    return norm(model.norm, x), tuple(cache)
