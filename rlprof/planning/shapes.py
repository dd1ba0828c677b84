"""Shapes of transformer models: dimensions, parameter counts, and named ones.

Counts leave out biases and norms, well under 0.1 % of a model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from rlprof.planning.errors import UnknownShapeError
from rlprof.planning.limits import MOST, is_count

#: What a model puts out: logits over the vocabulary, one number, or both (a shared actor and critic).
Head = Literal["lm", "scalar", "both"]
HEADS: tuple[str, ...] = get_args(Head)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Dimensions of a decoder-only transformer.

    Parameters
    ----------
    name : str
        What people call it.
    layers, hidden, ffn_hidden : int
        L_m, d and d_ff (of one expert, if there are several).
    heads, kv_heads : int
        n_h, and n_kv of grouped-query attention.
    vocabulary : int
        V_m, as stored in the checkpoint.
    head_dim : int
        d_h; hidden / heads if 0.
    gated : bool
        The FFN has a gate: three matrices in place of two.
    tied : bool
        The language-model head is the embedding.
    experts, active_experts : int
        Experts per layer, and how many each token uses; 1 and 1 for a dense model.

    Raises
    ------
    UnknownShapeError
        If a dimension is not positive or beyond all models, or the heads do not divide.
    """

    name: str
    layers: int
    hidden: int
    ffn_hidden: int
    heads: int
    kv_heads: int
    vocabulary: int
    head_dim: int = 0
    gated: bool = True
    tied: bool = False
    experts: int = 1
    active_experts: int = 1

    def __post_init__(self) -> None:
        sizes = (
            "layers",
            "hidden",
            "ffn_hidden",
            "heads",
            "kv_heads",
            "vocabulary",
            "experts",
            "active_experts",
        )
        for size in sizes:
            value = getattr(self, size)
            if not is_count(value):
                raise UnknownShapeError(
                    f"shape {self.name!r}: {size} is {value!r}",
                    hint=f"give a whole number from 1 to {MOST:,}",
                )
        if type(self.head_dim) is not int or (self.head_dim != 0 and not is_count(self.head_dim)):
            raise UnknownShapeError(
                f"shape {self.name!r}: head_dim is {self.head_dim!r}",
                hint=f"give a whole number from 1 to {MOST:,}, or 0 for hidden over heads",
            )
        if not self.head_dim:
            if self.hidden % self.heads:
                raise UnknownShapeError(
                    f"shape {self.name!r}: hidden size {self.hidden} is no multiple of {self.heads} heads",
                    hint="give head_dim",
                )
            object.__setattr__(self, "head_dim", self.hidden // self.heads)
        if self.heads % self.kv_heads:
            raise UnknownShapeError(
                f"shape {self.name!r}: {self.kv_heads} KV heads do not divide {self.heads} heads"
            )
        if self.active_experts > self.experts:
            raise UnknownShapeError(
                f"shape {self.name!r}: {self.active_experts} active experts of {self.experts}"
            )

    @property
    def query_dim(self) -> int:
        """Width of the queries, d_q = n_h d_h."""
        return self.heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Width of the keys, and of the values, d_kv = n_kv d_h."""
        return self.kv_heads * self.head_dim

    @property
    def ffn_matrices(self) -> int:
        """Matrices of an FFN, k: 3 if gated, else 2."""
        return 3 if self.gated else 2

    @property
    def attention_parameters(self) -> int:
        """Of one layer: 2 d d_q + 2 d d_kv."""
        return 2 * self.hidden * (self.query_dim + self.kv_dim)

    @property
    def expert_parameters(self) -> int:
        """Of one FFN: k d d_ff."""
        return self.ffn_matrices * self.hidden * self.ffn_hidden

    @property
    def router_parameters(self) -> int:
        """Of one layer: d for each expert, 0 for a dense model."""
        return self.hidden * self.experts if self.experts > 1 else 0

    @property
    def layer_parameters(self) -> int:
        """Of one layer, as stored: attention, router, all experts."""
        return self.attention_parameters + self.router_parameters + self.experts * self.expert_parameters

    @property
    def active_layer_parameters(self) -> int:
        """Of one layer, as used by one token."""
        return (
            self.attention_parameters + self.router_parameters + self.active_experts * self.expert_parameters
        )

    @property
    def embedding_parameters(self) -> int:
        """E_m = V_m d."""
        return self.vocabulary * self.hidden

    def head_parameters(self, head: Head) -> int:
        """E_m for language models, d for one number, E_m + d for both; tied or not."""
        lm, scalar = self.embedding_parameters, self.hidden
        return {"lm": lm, "scalar": scalar, "both": lm + scalar}[head]

    def outputs(self, head: Head) -> int:
        """Numbers put out for one token: V_m, 1 or V_m + 1."""
        return {"lm": self.vocabulary, "scalar": 1, "both": self.vocabulary + 1}[head]

    def parameters(self, head: Head = "lm") -> int:
        """All parameters, N_m = L_m layer + E_m + head; a tied head is counted once."""
        shared = self.embedding_parameters if self.tied and head != "scalar" else 0
        body = self.layers * self.layer_parameters + self.embedding_parameters
        return body + self.head_parameters(head) - shared

    def touched_layer_parameters(self, tokens: float) -> float:
        """Of one layer, as read from memory for so many tokens: few tokens leave some experts unread."""
        if self.experts == 1:
            return float(self.layer_parameters)
        experts = min(float(self.experts), tokens * self.active_experts)
        return self.attention_parameters + self.router_parameters + experts * self.expert_parameters


def _dense(
    name: str, layers: int, hidden: int, ffn: int, heads: int, kv: int, vocabulary: int, **more: bool
) -> ModelShape:
    return ModelShape(name, layers, hidden, ffn, heads, kv, vocabulary, **more)


#: By name. Dimensions are those of the published config.json of each model unless a comment says otherwise.
SHAPES: dict[str, ModelShape] = {
    shape.name: shape
    for shape in (
        # Touvron et al. 2023, table 1 and the published configurations
        _dense("llama2-7b", 32, 4096, 11008, 32, 32, 32000),
        _dense("llama2-13b", 40, 5120, 13824, 40, 40, 32000),
        # never released: dimensions of Code Llama 34B, vocabulary of LLaMA-2
        _dense("llama2-34b", 48, 8192, 22016, 64, 8, 32000),
        _dense("llama2-70b", 80, 8192, 28672, 64, 8, 32000),
        # the family of OpenLLaMA 3B, with the vocabulary of LLaMA-2
        _dense("llama2-3b", 26, 3200, 8640, 32, 32, 32000),
        # Brown et al. 2020, table 2.1: no gate, embeddings tied; counted untied
        _dense("gpt3-175b", 96, 12288, 49152, 96, 96, 50257, gated=False),
        # Llama Team 2024, table 3 and the published configurations
        _dense("llama3.1-8b", 32, 4096, 14336, 32, 8, 128256),
        _dense("llama3.3-70b", 80, 8192, 28672, 64, 8, 128256),
        # Qwen Team 2024 (Qwen2.5 technical report, table 1) and the published configurations
        _dense("qwen2.5-0.5b", 24, 896, 4864, 14, 2, 151936, tied=True),
        _dense("qwen2.5-1.5b", 28, 1536, 8960, 12, 2, 151936, tied=True),
        _dense("qwen2.5-3b", 36, 2048, 11008, 16, 2, 151936, tied=True),
        _dense("qwen2.5-7b", 28, 3584, 18944, 28, 4, 152064),
        _dense("qwen2.5-14b", 48, 5120, 13824, 40, 8, 152064),
        _dense("qwen2.5-32b", 64, 5120, 27648, 40, 8, 152064),
        # Allal et al. 2025, the published configuration
        _dense("smollm2-135m", 30, 576, 1536, 9, 3, 49152, tied=True),
        # Jiang et al. 2024, table 1: eight experts, two used by each token
        ModelShape("mixtral-8x7b", 32, 4096, 14336, 32, 8, 32000, experts=8, active_experts=2),
    )
}


def shape_named(name: str) -> ModelShape:
    """Return the shape of this name.

    Raises
    ------
    UnknownShapeError
        If there is none; lists those that there are.
    """
    key = name.strip().lower().replace("_", "-")
    if key not in SHAPES:
        raise UnknownShapeError(f"unknown model {name!r}", hint=f"use one of {', '.join(SHAPES)}")
    return SHAPES[key]


def renamed(shape: ModelShape, name: str) -> ModelShape:
    """Return the same dimensions under another name."""
    return replace(shape, name=name)
