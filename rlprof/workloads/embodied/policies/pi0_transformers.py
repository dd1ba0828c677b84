"""pi0 as the library transformers has it: PaliGemma and a Gemma action expert, with random weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlprof.workloads.embodied.contracts import SimulatorSpec
from rlprof.workloads.embodied.errors import ConfigurationError, need
from rlprof.workloads.embodied.policies import gemma
from rlprof.workloads.embodied.policies.base import Features, Prefix, value_head
from rlprof.workloads.embodied.policies.flow import FlowPolicy
from rlprof.workloads.embodied.policies.layers import KeyValue
from rlprof.workloads.embodied.policies.sizes import PolicySize, StackSize

if TYPE_CHECKING:
    from rlprof.workloads.embodied.policies.compiled import CompiledLayers


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

    Attributes
    ----------
    lean : bool
        Language model and expert are computed with few kernels (`rlprof.workloads.embodied.policies.gemma`);
        else, as where a later transformers has other layers, by the library.

    Raises
    ------
    ConfigurationError
        If the simulator has no cameras.
    MissingPackageError
        If transformers is not installed, or has no pi0.
    """

    frozen_parts = ("vlm",)
    compiled: CompiledLayers | None = None

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
            # the expert reads no words, so it needs no table of them; later versions give it one all the same
            dit_config={
                "model_type": "gemma",
                "vocab_size": 1,
                "bos_token_id": None,
                "eos_token_id": None,
                **_stack(size.expert),
            },
            chunk_size=self.spec.horizon,
            max_state_dim=self.spec.state_dim,
            max_action_dim=self.spec.action_dim,
            num_inference_steps=size.denoise_steps,
        )
        self.pi0 = kind(config)
        _cut_table(self.pi0.model.dit)
        # the name changed between versions
        parameters = inspect.signature(type(self.pi0).forward).parameters
        self._cache = "cache" if "cache" in parameters else "past_key_values"
        # tokens of the prefix see each other: told so, it makes no mask, and attention takes its fast kernel
        self.vlm.language_model.config.is_causal = False
        self.lean = gemma.known(self.vlm.language_model) and gemma.known(self.pi0.model.dit)
        self._masks: dict[tuple[int, int, int, torch.device], tuple[Tensor, Tensor]] = {}
        self._layouts: dict[tuple[int, int, int, torch.dtype, torch.device], gemma.Layout] = {}
        if size.preconditioned:
            torch.nn.init.normal_(self.pi0.action_out_proj.weight, std=0.01)
            torch.nn.init.zeros_(self.pi0.action_out_proj.bias)
        self.value = value_head(size.backbone.width)

    def __repr__(self) -> str:
        return f"Pi0Transformers({asdict(self.size)})"

    def compile_layers(self, *, backend: str | Callable[..., Any] = "inductor") -> None:
        """Compile layers of answers from now on (`rlprof.workloads.embodied.policies.compiled`).

        Parameters
        ----------
        backend : str or callable
            Of `torch.compile`.

        Raises
        ------
        ConfigurationError
            If layers are left to the library.
        MissingPackageError
            If a compiler, or Triton, is missing.
        """
        from rlprof.workloads.embodied.policies.compiled import CompiledLayers

        self.compiled = CompiledLayers(self, backend=backend)

    @property
    def vlm(self) -> Any:
        """The part that expert-only training leaves as it is."""
        return self.pi0.model.vlm

    def _features(self, state: Tensor, task: Tensor, images: Tensor | None) -> Features:
        assert images is not None
        # as the library's `embed_prefix` puts them: pictures, then words. That one looks for the pictures'
        # places on the device and waits for the answer; here they are known.
        pixels = (images.permute(0, 1, 4, 2, 3) * 2 - 1).flatten(0, 1)
        seen = None if self.compiled is None else self.compiled.vision(pixels)
        if seen is None:
            seen = self.vlm.get_image_features(pixels).pooler_output
        pictures = seen.reshape(len(task), -1, seen.shape[-1])
        count = self.size.instruction_tokens
        words = (task[:, None] * count + torch.arange(count, device=task.device)) % self.size.vocabulary
        return Features(torch.cat([pictures, self.vlm.get_input_embeddings()(words)], 1), state, task)

    def _prefix(self, features: Features) -> Prefix:
        tokens = features.tokens
        if self.lean:
            where = self._lean_layout(tokens, 0, 1)
            hidden, cache = self._run("backbone", self.vlm.language_model, tokens, where)
            return Prefix(cache, hidden[:, :0], hidden.mean(1))
        # PaliGemma counts from 1
        positions = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)[None]
        answer = self.vlm.language_model(inputs_embeds=tokens, position_ids=positions, use_cache=True)
        layers = getattr(answer, self._cache).layers
        cache = tuple((layer.keys, layer.values) for layer in layers)
        hidden = answer.last_hidden_state
        return Prefix(cache, hidden[:, :0], hidden.mean(1))

    def _value(self, prefix: Prefix) -> Tensor:
        return self.value(prefix.summary)[:, 0]  # type: ignore[no-any-return]

    def velocity(self, point: Tensor, time: Tensor, prefix: Prefix, features: Features) -> Tensor:
        """Output of the action head."""
        return self._head(self.pi0.embed_action_time(features.state, point, time), prefix, 1)

    def velocities(self, points: Tensor, times: Tensor, prefix: Prefix, features: Features) -> Tensor:
        """Output of the action head for all steps: one sequence, whose steps do not see each other."""
        batch, steps = points.shape[:2]
        tokens = self.pi0.embed_action_time(
            features.state.repeat_interleave(steps, 0), points.flatten(0, 1), times.repeat(batch)
        )
        return self._head(tokens.reshape(batch, -1, tokens.shape[-1]), prefix, steps).view(points.shape)

    def _head(self, tokens: Tensor, prefix: Prefix, steps: int) -> Tensor:
        """Actions' part of the expert's answer, shape (batch, steps * horizon, action_dim)."""
        before, own = prefix.cache[0][0].shape[2], tokens.shape[1] // steps
        if self.lean:
            where = self._lean_layout(tokens, before, steps)
            seen: Any = self._run("expert", self.pi0.model.dit, tokens, where, prefix.cache)[0]
        else:
            mask, positions = self._layout(before, own, steps)
            seen = self.pi0.model.dit(
                inputs_embeds=tokens,
                attention_mask=mask,
                position_ids=positions,
                use_cache=False,
                **{self._cache: _Past(prefix.cache)},
            ).last_hidden_state
        hidden = seen.unflatten(1, (steps, -1))[:, :, 1:].flatten(1, 2)
        # in 32 bits, as in openpi: a rounding of the velocity is not small beside the noise of a late step
        out = self.pi0.action_out_proj
        return torch.nn.functional.linear(hidden.float(), out.weight.float(), out.bias.float())

    def _run(
        self, part: str, model: Any, x: Tensor, where: gemma.Layout, past: tuple[KeyValue, ...] | None = None
    ) -> tuple[Tensor, tuple[KeyValue, ...]]:
        """Layers that are compiled, or else run eagerly."""
        found = None if self.compiled is None else self.compiled.stack(part, model, x, where, past)
        return gemma.forward(model, x, where, past) if found is None else found

    def _lean_layout(self, tokens: Tensor, before: int, steps: int) -> gemma.Layout:
        """Layout of the expert's tokens behind a prefix, or (`before` 0) of the language model's."""
        key = (before, tokens.shape[1], steps, tokens.dtype, tokens.device)
        if key not in self._layouts:
            if before:
                model = self.pi0.model.dit
                mask, positions = _who_sees_whom(before, tokens.shape[1] // steps, steps)
            else:
                # PaliGemma counts from 1; tokens of the prefix see each other
                model, mask = self.vlm.language_model, None
                positions = torch.arange(1, tokens.shape[1] + 1, device="cpu")
            self._layouts[key] = gemma.layout(model, positions, mask, tokens.dtype, tokens.device)
        return self._layouts[key]

    def _layout(self, before: int, own: int, steps: int) -> tuple[Tensor, Tensor]:
        """Who sees whom, shape (1, 1, steps * own, before + steps * own), and positions, for the library."""
        key = (before, own, steps, self.device)
        if key not in self._masks:
            with torch.inference_mode(False):  # kept: see `gemma.layout`
                mask, positions = (t.to(self.device) for t in _who_sees_whom(before, own, steps))
                self._masks[key] = mask[None, None], positions[None]
        return self._masks[key]


def _cut_table(expert: Any) -> None:
    """Keep one row of a table of words that nothing reads, in weights and in what is loaded.

    The library makes it as long as PaliGemma's: at full size 0.26 B of numbers, with copies of 32 bits beside
    them and in checkpoints. It is cut once it is drawn, so that all other weights of a seed stay as they are.
    """
    table = expert.embed_tokens
    table.weight = torch.nn.Parameter(table.weight.detach()[:1].clone())
    table.num_embeddings = 1
    table.register_load_state_dict_pre_hook(_cut_loaded)


def _cut_loaded(_module: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Keep one row of a table in a checkpoint in which it is whole."""
    if (name := f"{prefix}weight") in state:
        state[name] = state[name][:1]


def _who_sees_whom(before: int, own: int, steps: int) -> tuple[Tensor, Tensor]:
    """Mask, shape (steps * own, before + steps * own), and positions, shape (steps * own,), on the host.

    All see the prefix; in each step the state sees itself, and actions see the state and each other.
    """
    block = torch.ones(own, own, dtype=torch.bool, device="cpu")
    block[0, 1:] = False
    mask = torch.block_diag(*[block] * steps).bool()  # type: ignore[no-untyped-call]
    seen = torch.ones(steps * own, before, dtype=torch.bool, device="cpu")
    return torch.cat([seen, mask], 1), torch.arange(before, before + own, device="cpu").repeat(steps)


class _Past:
    """Keys and values of the prefix, for one call of the expert; nothing is kept."""

    is_compileable = False

    def __init__(self, cache: tuple[KeyValue, ...]) -> None:
        self._cache = cache

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens of the prefix."""
        return self._cache[layer_idx][0].shape[2]

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> KeyValue:
        """Return all keys and values that a layer attends to."""
        before = self._cache[layer_idx]
        return torch.cat([before[0], keys], 2), torch.cat([before[1], values], 2)
