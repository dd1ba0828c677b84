"""Transformer blocks that all policies are made of: those of Gemma, Llama, SigLIP and DiT at any size."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlprof.workloads.embodied.policies.sizes import StackSize as Size

#: Keys and values of one layer, shape (batch, kv_heads, tokens, head_dim) each.
KeyValue = tuple[Tensor, Tensor]


class Norm(nn.Module):
    """RMS norm; adaptive (scale, shift and gate from a condition) if `condition` is its width."""

    def __init__(self, width: int, condition: int | None = None) -> None:
        super().__init__()
        self.adapt: nn.Linear | None = None
        if condition is None:
            self.scale = nn.Parameter(torch.zeros(width))
            return
        self.adapt = nn.Linear(condition, 3 * width)
        nn.init.zeros_(self.adapt.weight)
        nn.init.zeros_(self.adapt.bias)

    def forward(self, x: Tensor, condition: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Normalise, shape (..., tokens, width); the gate of what follows, None if not adaptive."""
        wide = x.float()
        y = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        if self.adapt is None:
            return y * (1 + self.scale), None
        scale, shift, gate = self.adapt(condition)[:, None].chunk(3, dim=-1)
        return y * (1 + scale) + shift, gate


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary embedding of x, shape (batch, heads, tokens, head_dim), at positions, shape (tokens,)."""
    half = x.shape[-1] // 2
    frequency = torch.exp(
        torch.arange(half, device=x.device, dtype=torch.float32) * (-math.log(10_000.0) / half)
    )
    angle = positions[:, None].float() * frequency
    sin, cos = angle.sin().to(x.dtype), angle.cos().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Attention(nn.Module):
    """Multi-head attention with grouped keys and values, over itself, a cache before it, or a context."""

    def __init__(self, size: Size, context: int | None = None, *, rotary: bool = True) -> None:
        super().__init__()
        self.size, self.rotary = size, rotary
        self.query = nn.Linear(size.width, size.heads * size.head_dim, bias=False)
        self.key = nn.Linear(context or size.width, size.kv_heads * size.head_dim, bias=False)
        self.value = nn.Linear(context or size.width, size.kv_heads * size.head_dim, bias=False)
        self.out = nn.Linear(size.heads * size.head_dim, size.width, bias=False)

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(*x.shape[:2], heads, self.size.head_dim).transpose(1, 2)

    def forward(
        self,
        x: Tensor,
        *,
        past: KeyValue | None = None,
        context: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, KeyValue]:
        """Attend; x has shape (batch, tokens, width); a mask (tokens, all keys) is true where it may look."""
        size = self.size
        source = x if context is None else context
        query = self._split(self.query(x), size.heads)
        key, value = (self._split(f(source), size.kv_heads) for f in (self.key, self.value))
        before = 0 if past is None else past[0].shape[2]
        if self.rotary:
            positions = torch.arange(before, before + x.shape[1], device=x.device)
            query, key = rotate(query, positions), rotate(key, positions)
        own = (key, value)
        if past is not None:
            key, value = torch.cat([past[0], key], dim=2), torch.cat([past[1], value], dim=2)
        groups = size.heads // size.kv_heads
        if groups > 1:
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        y = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.out(y.transpose(1, 2).flatten(2)), own


def is_gelu(activation: nn.Module) -> bool:
    """Whether a module without weights computes GELU in its approximation by tanh."""
    x = torch.linspace(-4.0, 4.0, 33, dtype=torch.float64, device="cpu")
    with torch.no_grad():
        found = activation(x)
    return isinstance(found, Tensor) and torch.allclose(found, F.gelu(x, approximate="tanh"), atol=1e-12)


class Perceptron(nn.Module):
    """Gated perceptron, with GELU (Gemma) or SiLU (Llama)."""

    def __init__(self, width: int, inner: int, activation: str = "gelu") -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.silu = activation == "silu"

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., width) to (..., width)."""
        gate = self.gate(x)
        gate = F.silu(gate) if self.silu else F.gelu(gate, approximate="tanh")
        return self.down(gate * self.up(x))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and perceptron, each behind a norm."""

    def __init__(
        self,
        size: Size,
        *,
        condition: int | None = None,
        context: int | None = None,
        activation: str = "gelu",
        rotary: bool = True,
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = Norm(size.width, condition), Norm(size.width, condition)
        self.attention = Attention(size, context, rotary=rotary)
        self.mlp = Perceptron(size.width, size.mlp, activation)

    def forward(
        self,
        x: Tensor,
        *,
        past: KeyValue | None = None,
        context: Tensor | None = None,
        condition: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, KeyValue]:
        """Return the tokens, and their keys and values."""
        y, gate = self.norm1(x, condition)
        y, own = self.attention(y, past=past, context=context, mask=mask)
        x = x + (y if gate is None else y * (1 + gate))
        y, gate = self.norm2(x, condition)
        y = self.mlp(y)
        return x + (y if gate is None else y * (1 + gate)), own


class Stack(nn.Module):
    """Blocks one after another, and a norm."""

    def __init__(self, size: Size, *, condition: int | None = None, activation: str = "gelu") -> None:
        super().__init__()
        self.size = size
        self.blocks = nn.ModuleList(
            Block(size, condition=condition, activation=activation) for _ in range(size.depth)
        )
        self.norm = Norm(size.width, condition)

    def forward(
        self,
        x: Tensor,
        *,
        past: tuple[KeyValue, ...] | None = None,
        condition: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, tuple[KeyValue, ...]]:
        """Return normalised tokens, and keys and values of every block (of these tokens only)."""
        cache = []
        for k, block in enumerate(self.blocks):
            x, own = block(x, past=None if past is None else past[k], condition=condition, mask=mask)
            cache.append(own)
        return self.norm(x, condition)[0], tuple(cache)


class Vision(nn.Module):
    """A vision transformer (SigLIP's shape) on square images, one sequence of tokens for all cameras."""

    def __init__(self, size: Size, patch: int, image: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, size.width, patch, patch)
        self.tokens = (image // patch) ** 2
        self.position = nn.Parameter(0.02 * torch.randn(self.tokens, size.width))
        self.blocks = nn.ModuleList(Block(size, rotary=False) for _ in range(size.depth))
        self.norm = Norm(size.width)

    def forward(self, images: Tensor) -> Tensor:
        """Map images, shape (batch, cameras, height, width, 3), 0..1, to (batch, tokens, width)."""
        batch, cameras = images.shape[:2]
        x = self.patch(images.flatten(0, 1).permute(0, 3, 1, 2) * 2 - 1).flatten(2).transpose(1, 2)
        x = x + self.position
        for block in self.blocks:
            x, _ = block(x)
        out: Tensor = self.norm(x)[0]
        return out.reshape(batch, cameras * self.tokens, out.shape[-1])


def time_features(time: Tensor, width: int) -> Tensor:
    """Sines and cosines of a flow time 0..1, shape (batch,) to (batch, width); periods 0.004 to 4."""
    half = width // 2
    fraction = torch.linspace(0.0, 1.0, half, device=time.device)
    period = 4e-3 * torch.exp(fraction * math.log(4.0 / 4e-3))
    angle = time.float()[:, None] * (2 * math.pi / period)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


class LowRank(nn.Module):
    """A frozen linear layer and a trained correction of low rank (LoRA)."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False).to(base.weight)
        self.up = nn.Linear(rank, base.out_features, bias=False).to(base.weight)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        return self.base(x) + self.up(self.down(x))  # type: ignore[no-any-return]


def adapt(module: nn.Module, rank: int) -> None:
    """Put low-rank corrections around every linear layer of a module."""
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, name, LowRank(child, rank))
        else:
            adapt(child, rank)
