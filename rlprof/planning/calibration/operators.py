"""Measuring operators of a real model: inference, generation with a KV cache, training; and parts of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlprof.planning.calibration import transformer
from rlprof.planning.calibration.device import Clock, PeakMemory, captured
from rlprof.planning.calibration.parallel import ALONE, Ranks, Scattered
from rlprof.planning.calibration.raw import Measurement, Point
from rlprof.planning.calibration.sweeps import Effort
from rlprof.planning.calibration.torch_module import torch_module
from rlprof.planning.shapes import ModelShape


class Bench:
    """A model on a device, kept as long as points of the same model follow one another.

    Parameters
    ----------
    clock : Clock
        Of the device.
    dtype : str
        Of weights and activations.
    effort : Effort
        How often.
    group : ProcessGroup, optional
        Devices that share operators with this one; then all of them call everything.
    """

    def __init__(self, clock: Clock, dtype: str, effort: Effort, group: Any = None) -> None:
        self.clock, self.dtype, self.effort, self._group = clock, dtype, effort, group
        self._held: tuple[str, int] | None = None
        self._scattered: Scattered | None = None
        self._model: transformer.Decoder | None = None
        self._adam: transformer.Adam | None = None
        self._memory = PeakMemory(clock.device)

    def measure(self, point: Point, longest: int) -> Measurement:
        """Measure one operator.

        Parameters
        ----------
        point : Point
            A whole operator, a forward or a decode step.
        longest : int
            Most tokens of any sequence of this model, so that it is built once.
        """
        training = point.kind == "training"
        ranks = ALONE
        if self._group is not None:
            ranks = Ranks(self._group, point.key.get("tensor", 1), point.key.get("data", 1))
        self._prepare(ModelShape(**point.key["shape"]), longest, ranks, training=training)
        self._memory.reset()
        run = getattr(self, f"_{point.kind}")
        times: dict[str, list[float]] = run(point.key)
        seconds = times.pop("total")
        parts = {name: tuple(values) for name, values in times.items()}
        return Measurement(point.kind, point.key, 0, tuple(seconds), parts, self._memory.peak_bytes())

    def drop(self) -> None:
        """Forget the model."""
        from rlprof.planning.calibration.device import freed

        with freed(self.clock.device):
            if self._scattered is not None:
                self._scattered.remove()
            self._model = self._adam = self._held = self._scattered = None

    def _prepare(self, shape: ModelShape, longest: int, ranks: Ranks, *, training: bool) -> None:
        wanted = (f"{shape} {training} {ranks.tensor} {ranks.data}", longest)
        if self._held == wanted:
            return
        self.drop()
        self._memory = PeakMemory(self.clock.device)
        self._model = transformer.build(
            shape, device=self.clock.device, dtype=self.dtype, positions=longest, trainable=training,
            ranks=ranks,
        )  # fmt: skip
        if training:
            if ranks.data > 1:
                self._scattered = Scattered(self._model.groups, ranks)
            self._adam = transformer.Adam(self._model.groups, self._scattered)
        self._held = wanted

    @property
    def model(self) -> transformer.Decoder:
        """The model at hand."""
        assert self._model is not None
        return self._model

    def _tokens(self, sequences: int, length: int) -> Any:
        torch = torch_module()

        generator = torch.Generator(device=self.clock.device).manual_seed(length)
        high = self.model.shape.vocabulary
        return torch.randint(high, (sequences, length), device=self.clock.device, generator=generator)

    def _times(self, call: Any, *, warm: bool = True) -> list[float]:
        if warm:
            self.clock.once(call)
        return [self.clock.once(call) for _ in range(self.effort.operator_repeats)]

    def _inference(self, key: Mapping[str, Any]) -> dict[str, list[float]]:
        """Log-probabilities of all tokens."""
        tokens = self._tokens(key["sequences"], key["prompt_tokens"] + key["response_tokens"])
        return {"total": self._times(lambda: transformer.log_probabilities(self.model, tokens))}

    _forward = _inference

    def _forward_graph(self, key: Mapping[str, Any]) -> dict[str, list[float]]:
        """The same, replayed as one CUDA graph: what the device does while nobody waits for the host."""
        tokens = self._tokens(key["sequences"], key["prompt_tokens"] + key["response_tokens"])
        transformer.log_probabilities(self.model, tokens)
        return {"total": self._times(captured(lambda: transformer.log_probabilities(self.model, tokens)))}

    def _training(self, key: Mapping[str, Any]) -> dict[str, list[float]]:
        """Forward, recomputation, backward, optimizer."""
        adam = self._adam
        assert adam is not None
        sequences = key["sequences"] // key.get("data", 1)
        tokens = self._tokens(sequences, key["prompt_tokens"] + key["response_tokens"])

        def passed() -> None:
            transformer.backward(self.model, tokens)
            if self._scattered is not None:
                self._scattered.finish()

        passes, updates = [], []
        for turn in range(self.effort.operator_repeats + 1):
            taken = (
                self.clock.once(passed),
                self.clock.once(adam.step),
            )
            if turn:
                passes.append(taken[0])
                updates.append(taken[1])
        total = [a + b for a, b in zip(passes, updates, strict=True)]
        return {"total": total, "passes_s": passes, "optimizer_s": updates}

    def _generation(self, key: Mapping[str, Any]) -> dict[str, list[float]]:
        """Prefill of the prompts, then one decode step for each further token."""
        torch = torch_module()

        b, prompt, response = key["sequences"], key["prompt_tokens"], key["response_tokens"]
        tokens, cache = self._tokens(b, prompt), transformer.kv_cache(self.model, b, prompt + response)
        current = self._tokens(b, 1)

        def fill() -> None:
            current.copy_(transformer.prefill(self.model, tokens, cache))

        with torch.no_grad():
            first = self._times(fill)
            steps = self._decode_calls(prompt, response - 1, current, cache)

            def generate() -> None:
                for call, times in steps:
                    for _ in range(times):
                        call()

            rest = self._times(generate, warm=not self.clock.cuda)  # what was captured is warm
        total = [a + b for a, b in zip(first, rest, strict=True)]
        return {"total": total, "prefill_s": first, "decode_s": rest}

    def _decode_step_eager(self, key: Mapping[str, Any]) -> dict[str, list[float]]:
        """The same, launched kernel by kernel by the host."""
        return self._decode_step(key, graph=False)

    def _decode_step(self, key: Mapping[str, Any], *, graph: bool = True) -> dict[str, list[float]]:
        """One decode step that attends to `prompt_tokens` before it."""
        torch = torch_module()

        b, length = key["sequences"], key["prompt_tokens"]
        cache, current = transformer.kv_cache(self.model, b, length + 1), self._tokens(b, 1)
        with torch.no_grad():

            def call() -> None:
                transformer.decode(self.model, current, length, cache)

            return {
                "total": self.clock.repeated(
                    call,
                    repeats=self.effort.repeats,
                    section_s=4 * self.effort.section_s,
                    graph=graph,
                )
            }

    def _decode_calls(self, start: int, steps: int, current: Any, cache: Any) -> list[tuple[Any, int]]:
        """Calls that together do `steps` decode steps, and how often each is to be called.

        On a GPU each is a CUDA graph, as inference engines launch them; of `decode_stride` steps the middle
        one stands for all.
        """

        def step_at(position: int) -> Any:
            def step() -> None:
                current.copy_(transformer.decode(self.model, current, position, cache))

            return step

        if not self.clock.cuda:
            return [(step_at(start + n), 1) for n in range(steps)]
        torch = torch_module()

        pool, calls = torch.cuda.graph_pool_handle(), []
        for first in range(0, steps, self.effort.decode_stride):
            times = min(self.effort.decode_stride, steps - first)
            calls.append((captured(step_at(start + first + times // 2), pool), times))
        return calls
