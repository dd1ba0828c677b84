"""SigLIP's encoder layer by layer, so that what compiles a layer can stand in its place.

The modules, their weights and their names stay the library's (transformers); training runs the library's own
forward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rlprof.workloads.embodied.policies.layers import is_gelu

_LAYER = {"layer_norm1", "self_attn", "layer_norm2", "mlp"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "out_proj"}
_TOWER = {"embeddings", "encoder", "post_layernorm"}


def _names(module: Any) -> set[str]:
    return {name for name, _ in module.named_children()}


def _inner(tower: Any) -> Any:
    """The module that has the encoder: some versions of the library put one around it."""
    return getattr(tower, "vision_model", tower)


def known(vlm: Any) -> bool:
    """Whether a vision tower and its projector are ones that `forward` computes as the library does.

    Parameters
    ----------
    vlm : nn.Module
        PaliGemmaModel of transformers.
    """
    tower = _inner(getattr(vlm, "vision_tower", None))
    if tower is None or not hasattr(vlm, "multi_modal_projector") or _names(tower) != _TOWER:
        return False
    layers = getattr(tower.encoder, "layers", ())
    return len(layers) > 0 and all(_known_layer(layer) for layer in layers)


def _known_layer(layer: Any) -> bool:
    if type(layer).__name__ != "SiglipEncoderLayer" or _names(layer) != _LAYER:
        return False
    part = layer.self_attn
    if type(part).__name__ != "SiglipAttention" or _names(part) != _ATTENTION or part.dropout:
        return False
    if _names(layer.mlp) != {"fc1", "fc2", "activation_fn"} or not is_gelu(layer.mlp.activation_fn):
        return False
    return bool(part.scale == part.head_dim**-0.5)


def one_layer(layer: Any, x: Tensor) -> Tensor:
    """Compute a layer.

    Parameters
    ----------
    layer : nn.Module
        SiglipEncoderLayer of transformers.
    x : Tensor, shape (images, patches, width)
        Tokens.
    """
    part = layer.self_attn
    y = layer.layer_norm1(x)
    query, key, value = (
        projection(y).view(*y.shape[:-1], -1, part.head_dim).transpose(1, 2)
        for projection in (part.q_proj, part.k_proj, part.v_proj)
    )
    x = x + part.out_proj(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))
    inner = F.gelu(layer.mlp.fc1(layer.layer_norm2(x)), approximate="tanh")
    return x + layer.mlp.fc2(inner)  # type: ignore[no-any-return]


def forward(vlm: Any, pixels: Tensor, *, layer: Callable[..., Tensor] = one_layer) -> Tensor:
    """Compute features of images.

    Parameters
    ----------
    vlm : nn.Module
        PaliGemmaModel of transformers whose tower is `known`.
    pixels : Tensor, shape (images, 3, height, width)
        From -1 to 1.
    layer : callable
        `one_layer`, or the same compiled.

    Returns
    -------
    Tensor, shape (images, patches, width)
        As wide as the language model.
    """
    tower = _inner(vlm.vision_tower)
    x = tower.embeddings(pixels)
    for module in tower.encoder.layers:
        x = layer(module, x)
    return vlm.multi_modal_projector(tower.post_layernorm(x))  # type: ignore[no-any-return]


def difference(vlm: Any, pixels: Tensor) -> float:
    """Relative difference (of norms) between `forward` and the library's features of the same images.

    Parameters
    ----------
    vlm : nn.Module
        PaliGemmaModel of transformers whose tower is `known`.
    pixels : Tensor, shape (images, 3, height, width)
        From -1 to 1.
    """
    with torch.no_grad():
        wanted = vlm.get_image_features(pixels).pooler_output.double()
        found = forward(vlm, pixels).double().reshape(wanted.shape)
        return float((found - wanted).norm() / wanted.norm())
