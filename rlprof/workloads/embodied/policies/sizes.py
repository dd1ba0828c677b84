"""Sizes of policies: a family and a preset name one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Train = Literal["full", "expert", "lora"]
FAMILIES = ("pi0", "pi05", "openvla_oft", "gr00t")


@dataclass(frozen=True)
class StackSize:
    """Size of a stack of transformer blocks.

    Parameters
    ----------
    depth, width, mlp : int
        Blocks, features of a token, features inside the perceptron.
    heads, kv_heads, head_dim : int
        Of attention.
    """

    depth: int
    width: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class PolicySize:
    """Size of a policy.

    Parameters
    ----------
    family : str
        One of `FAMILIES`.
    vision : StackSize
        Vision tower.
    patch, image : int
        Size of its patches and of its images, in pixels.
    backbone : StackSize
        Language model; of gr00t, what is left of it below the cut.
    expert : StackSize or None
        Action expert, or diffusion transformer; None: the head reads the backbone.
    vocabulary, instruction_tokens : int
        Tokens that there are, and tokens of an instruction.
    scene_tokens : int
        Tokens made of the state where there are no images.
    horizon : int
        Actions that the head makes.
    denoise_steps : int
        Steps of a flow head; 0 for another head.
    noise_level : float
        Scale of the noise of the stochastic flow (Flow-SDE), or of the actions of another head.
    preconditioned : bool
        The flow head predicts the actions and derives the velocity from them, so that an untrained one makes
        small actions instead of noise. Released weights predict the velocity.
    transformers : bool
        The model of the library transformers (family pi0).
    dtype : str
        Of weights and computation.
    by_row : bool
        Answers are computed sample by sample, so that their bits do not depend on the batch.
    train : {"full", "expert", "lora"}
        What is trained.
    lora_rank : int
        Of adapters.
    """

    family: str
    vision: StackSize
    patch: int
    image: int
    backbone: StackSize
    expert: StackSize | None
    vocabulary: int
    instruction_tokens: int
    scene_tokens: int
    horizon: int
    denoise_steps: int
    noise_level: float
    preconditioned: bool = False
    transformers: bool = False
    dtype: str = "float32"
    by_row: bool = False
    train: Train = "full"
    lora_rank: int = 32


_TINY_PI = PolicySize(
    family="pi0",
    vision=StackSize(1, 32, 64, 2, 2, 16),
    patch=16,
    image=64,
    backbone=StackSize(1, 64, 128, 2, 1, 32),
    expert=StackSize(1, 64, 128, 2, 1, 32),
    vocabulary=256,
    instruction_tokens=2,
    scene_tokens=2,
    horizon=5,
    denoise_steps=3,
    noise_level=0.5,
    preconditioned=True,
)
_SIGLIP = StackSize(27, 1152, 4304, 16, 16, 72)
_GEMMA_2B = StackSize(18, 2048, 16384, 8, 1, 256)
_GEMMA_300M = StackSize(18, 1024, 4096, 8, 1, 256)
_FULL_PI = PolicySize(
    family="pi0",
    vision=_SIGLIP,
    patch=14,
    image=224,
    backbone=_GEMMA_2B,
    expert=_GEMMA_300M,
    vocabulary=257152,
    instruction_tokens=48,
    scene_tokens=16,
    horizon=10,
    denoise_steps=10,
    noise_level=0.5,
    transformers=True,
    dtype="bfloat16",
    train="expert",
)
_TINY = {
    "pi0": _TINY_PI,
    "pi05": replace(_TINY_PI, family="pi05"),
    "openvla_oft": replace(
        _TINY_PI, family="openvla_oft", expert=None, denoise_steps=0, preconditioned=False, noise_level=0.3
    ),
    # blocks look at the backbone and at themselves in turn: two at least
    "gr00t": replace(_TINY_PI, family="gr00t", denoise_steps=4, expert=StackSize(2, 64, 128, 2, 1, 32)),
}
_FULL = {
    "pi0": _FULL_PI,
    "pi05": replace(_FULL_PI, family="pi05", transformers=False),
    # Llama-2-7B
    "openvla_oft": replace(
        _FULL_PI,
        family="openvla_oft",
        backbone=StackSize(32, 4096, 11008, 32, 32, 128),
        expert=None,
        vocabulary=32064,
        horizon=8,
        denoise_steps=0,
        noise_level=0.1,
        transformers=False,
        train="lora",
    ),
    # the lower 16 layers of a language model of 1.7 B, and a diffusion transformer of 32 layers
    "gr00t": replace(
        _FULL_PI,
        family="gr00t",
        backbone=StackSize(16, 2048, 6144, 16, 8, 128),
        expert=StackSize(32, 1536, 6144, 32, 32, 48),
        vocabulary=151936,
        horizon=16,
        denoise_steps=4,
        transformers=False,
    ),
}


def size_of(family: str, preset: str) -> PolicySize:
    """Return the size of a policy.

    Parameters
    ----------
    family : str
        One of `FAMILIES`.
    preset : {"tiny", "exact", "h200"}
        `exact` is `tiny` computed sample by sample.

    Raises
    ------
    KeyError
        If there is no such family or preset.
    """
    if preset == "exact":
        return replace(_TINY[family], by_row=True)
    return {"tiny": _TINY, "h200": _FULL}[preset][family]
