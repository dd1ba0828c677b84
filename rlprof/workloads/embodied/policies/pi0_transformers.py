"""pi0 as the library transformers has it: PaliGemma and a Gemma action expert, with random weights."""

from __future__ import annotations

import inspect
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from rlprof.workloads.embodied.contracts import SimulatorSpec
from rlprof.workloads.embodied.errors import ConfigurationError, need
from rlprof.workloads.embodied.policies.base import Features, Prefix, value_head
from rlprof.workloads.embodied.policies.flow import FlowPolicy
from rlprof.workloads.embodied.policies.layers import KeyValue
from rlprof.workloads.embodied.policies.sizes import PolicySize, StackSize


def _stack(size: StackSize) -> dict[str, Any]:
    return {
        "hidden_size": size.width,
        "num_hidden_layers": size.depth,
        "intermediate_size": size.mlp,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.head_dim,
    }


class Pi0Transformers(FlowPolicy):
    """See the module; it needs cameras.

    Raises
    ------
    ConfigurationError
        If the simulator has no cameras.
    MissingPackageError
        If transformers is not installed, or has no pi0.
    """

    frozen_parts = ("vlm",)

    def __init__(self, size: PolicySize, simulator: SimulatorSpec, seed: int) -> None:
        super().__init__(size, simulator, seed)
        assert size.expert is not None
        if not simulator.cameras:
            raise ConfigurationError(
                "pi0 of transformers sees camera images, and the simulator has no cameras",
                hint="use --cameras 2, or a preset with a policy that also reads the state",
            )
        library = need("transformers", why="pi0 at full size")
        try:
            kind, configuration = library.PI0ForConditionalGeneration, library.PI0Config
        except AttributeError as error:
            need("transformers.models.pi0", why="pi0 at full size")
            raise ConfigurationError("this transformers has no pi0", hint="use 5.17 or later") from error
        patches = (size.image // size.patch) ** 2
        self._image_tokens = simulator.cameras * patches
        config = configuration(
            vlm_config={
                "model_type": "paligemma",
                "text_config": {
                    "model_type": "gemma",
                    "vocab_size": size.vocabulary,
                    **_stack(size.backbone),
                },
                "vision_config": {
                    "model_type": "siglip_vision_model",
                    "hidden_size": size.vision.width,
                    "intermediate_size": size.vision.mlp,
                    "num_hidden_layers": size.vision.depth,
                    "num_attention_heads": size.vision.heads,
                    "patch_size": size.patch,
                    "image_size": size.image,
                    "vision_use_head": False,
                },
                "projection_dim": size.backbone.width,
                "image_token_id": size.vocabulary,
            },
            dit_config={"model_type": "gemma", **_stack(size.expert)},
            chunk_size=self.spec.horizon,
            max_state_dim=self.spec.state_dim,
            max_action_dim=self.spec.action_dim,
            num_inference_steps=size.denoise_steps,
        )
        self.pi0 = kind(config)
        self._image_token = size.vocabulary
        # the name changed between versions
        parameters = inspect.signature(type(self.pi0).forward).parameters
        self._cache = "cache" if "cache" in parameters else "past_key_values"
        self._make_cache = library.DynamicCache
        if size.preconditioned:
            torch.nn.init.normal_(self.pi0.action_out_proj.weight, std=0.01)
            torch.nn.init.zeros_(self.pi0.action_out_proj.bias)
        self.value = value_head(size.backbone.width)

    def __repr__(self) -> str:
        return f"Pi0Transformers({asdict(self.size)})"

    @property
    def vlm(self) -> torch.nn.Module:
        """The part that expert-only training leaves as it is."""
        found: torch.nn.Module = self.pi0.model.vlm
        return found

    def _features(self, state: Tensor, task: Tensor, images: Tensor | None) -> Features:
        assert images is not None
        pixels = images.permute(0, 1, 4, 2, 3) * 2 - 1
        count = self.size.instruction_tokens
        words = (task[:, None] * count + torch.arange(count, device=task.device)) % self.size.vocabulary
        pictures = words.new_full((len(task), self._image_tokens), self._image_token)
        seen = torch.ones(pixels.shape[:2], dtype=torch.bool, device=task.device)
        tokens = self.pi0.model.embed_prefix(torch.cat([pictures, words], dim=1), pixels, seen)
        return Features(tokens, state, task)

    def _prefix(self, features: Features) -> Prefix:
        tokens = features.tokens
        answer = self.vlm(
            inputs_embeds=tokens,
            token_type_ids=torch.zeros(tokens.shape[:2], dtype=torch.long, device=tokens.device),
            use_cache=True,
        )
        layers = getattr(answer, self._cache).layers
        cache: tuple[KeyValue, ...] = tuple((layer.keys, layer.values) for layer in layers)
        hidden = answer.last_hidden_state
        return Prefix(cache, hidden[:, :0], hidden.mean(1))

    def _value(self, prefix: Prefix) -> Tensor:
        return self.value(prefix.summary)[:, 0]  # type: ignore[no-any-return]

    def velocity(self, point: Tensor, time: Tensor, prefix: Prefix, features: Features) -> Tensor:
        """Output of the action head."""
        cache = self._make_cache()
        for number, (key, value) in enumerate(prefix.cache):
            cache.update(key, value, number)
        answer = self.pi0(state=features.state, noise=point, timestep=time, **{self._cache: cache})
        return answer.logits  # type: ignore[no-any-return]
