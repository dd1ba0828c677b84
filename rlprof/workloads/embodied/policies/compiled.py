"""Layers of a policy's answers compiled by TorchInductor: what lies between matrix products is fused.

One layer is compiled for each shape, and all layers of a stack run that code: their weights are inputs.
Training runs eagerly, and so do answers whose layers do not compile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlprof.workloads.embodied.errors import ConfigurationError, MissingPackageError, no_memory
from rlprof.workloads.embodied.policies import gemma, siglip
from rlprof.workloads.embodied.policies.layers import KeyValue

if TYPE_CHECKING:
    from rlprof.workloads.embodied.policies.pi0_transformers import Pi0Transformers

#: Shapes that one function may be compiled for; torch's own limit, 8, is for programs that do not expect any.
MOST_SHAPES = 64
#: Graphs of the first run of a stack, after which layers do not share them: other programs may compile too.
MOST_GRAPHS = 2
#: Of bfloat16 and float32: between a tower that is put together here and the library's.
_AGREES = {torch.bfloat16: 0.02, torch.float32: 1e-4}
HINT = "leave --compile-policy away"


@dataclass(frozen=True)
class Compilation:
    """Code that was made for a shape.

    Parameters
    ----------
    part : str
        Of the policy: ``vision``, ``backbone`` or ``expert``.
    shape : tuple of int
        Of the tokens.
    seconds : float
        The first run of all layers, compilation included.
    graphs : int
        Graphs that were compiled: 1, or 0 if the same shape was compiled before.
    """

    part: str
    shape: tuple[int, ...]
    seconds: float
    graphs: int


class CompiledLayers:
    """Layers of a policy, compiled at their first use for each shape.

    Parameters
    ----------
    policy : Pi0Transformers
        Whose answers run them.
    backend : str or callable
        Of `torch.compile`.

    Attributes
    ----------
    lock : RLock
        Held while anything is compiled: no CUDA graph may be captured meanwhile.
    compilations : list of Compilation
        One for each part and shape.

    Raises
    ------
    ConfigurationError
        If the policy computes sample by sample, or its layers are left to the library.
    MissingPackageError
        If nothing can be compiled here: a compiler, or Triton, is missing.
    """

    def __init__(self, policy: Pi0Transformers, *, backend: str | Callable[..., Any] = "inductor") -> None:
        if policy.size.by_row:
            raise ConfigurationError(
                "compiled layers are of whole batches, and this policy computes sample by sample",
                hint=f"{HINT}, or use another preset than exact",
            )
        if not policy.lean:
            raise ConfigurationError(
                "this transformers has layers of Gemma that are left to the library, and are not compiled",
                hint=HINT,
            )
        self._policy, self._backend = policy, backend
        self.lock = threading.RLock()
        self.compilations: list[Compilation] = []
        self._ready: set[Any] = set()
        self._refused: dict[str, str] = {}
        self._gemma, self._siglip = (self._compile(f) for f in (gemma.one_layer, siglip.one_layer))
        self._try()
        if not siglip.known(policy.vlm):
            self._refused["vision"] = "this transformers has another vision tower"

    @property
    def refused(self) -> str | None:
        """Why parts of an answer run eagerly."""
        return "; ".join(f"{part}: {why}" for part, why in self._refused.items()) or None

    @property
    def seconds(self) -> float:
        """Time spent on first runs."""
        return sum(c.seconds for c in self.compilations)

    def vision(self, pixels: Tensor) -> Tensor | None:
        """Features of images, shape (images, patches, width); None if that has to be done eagerly."""
        vlm = self._policy.vlm
        return self._run(  # type: ignore[no-any-return]
            "vision",
            (pixels,),
            self._siglip,
            lambda layer: siglip.forward(vlm, pixels, layer=layer),
            self._check_vision,
        )

    def stack(
        self, part: str, model: Any, x: Tensor, where: gemma.Layout, past: tuple[KeyValue, ...] | None = None
    ) -> tuple[Tensor, tuple[KeyValue, ...]] | None:
        """As `gemma.forward`; None if that has to be done eagerly."""
        tensors = (x, where.rotation, where.mask, *(past[0] if past else ()))
        return self._run(  # type: ignore[no-any-return]
            part, tensors, self._gemma, lambda layer: gemma.forward(model, x, where, past, layer=layer)
        )

    def _run(
        self,
        part: str,
        tensors: tuple[Tensor | None, ...],
        layer: Callable[..., Any],
        function: Callable[[Callable[..., Any]], Any],
        check: Callable[[Tensor], str | None] = lambda _: None,
    ) -> Any:
        if torch.is_grad_enabled() or part in self._refused:
            return None
        key = (part, torch.is_inference_mode_enabled(), *(_kind(t) for t in tensors))
        if key in self._ready:
            try:
                return function(layer)
            except Exception as error:
                # a guard refuses, say: not all that dynamo raises has a class in common
                if type(error).__module__ != "torch._dynamo.exc":
                    raise
                self._refuse(part, error)
                return None
        with self.lock:
            if key in self._ready or part in self._refused:  # another thread was first
                return self._run(part, tensors, layer, function)
            assert tensors[0] is not None
            why = check(tensors[0])
            if why is not None:
                self._refused[part] = why
                return None
            graphs, began = _graphs(), time.monotonic()

            def watched(*values: Any) -> Any:
                found = layer(*values)
                if _graphs() - graphs > MOST_GRAPHS:  # or it would take minutes
                    raise RuntimeError("layers of a stack do not share their code")
                return found

            try:
                with _limits():
                    answer = function(watched)
            except Exception as error:
                if no_memory(error):
                    raise
                self._refuse(part, error)
                return None
            spent = time.monotonic() - began
            self.compilations.append(Compilation(part, tuple(tensors[0].shape), spent, _graphs() - graphs))
            self._ready.add(key)
            return answer

    def _check_vision(self, pixels: Tensor) -> str | None:
        """Why the tower that is put together here is not the library's."""
        if any(c.part == "vision" for c in self.compilations):
            return None
        found = siglip.difference(self._policy.vlm, pixels[:1])
        limit = _AGREES.get(self._policy.dtype, 0.02)
        return None if found <= limit else f"features differ from the library's by {found:.2g}"

    def _refuse(self, part: str, error: BaseException) -> None:
        self._refused[part] = f"the compilation failed ({_said(error)})"

    def _compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        # fullgraph: what is not compiled raises in place of running eagerly without a word. In this process:
        # a layer has a handful of kernels, and a pool of compilers would stay beside the simulators.
        options: Any = {"compile_threads": 1} if self._backend == "inductor" else None
        return torch.compile(function, fullgraph=True, dynamic=False, backend=self._backend, options=options)

    def _try(self) -> None:
        """Compile a little, to see whether anything can be."""
        device = self._policy.device
        x = torch.ones(2, 8, device=device)
        try:
            with self.lock, _limits(), torch.no_grad():
                self._compile(_little)(x)
        except Exception as error:
            if no_memory(error):
                raise
            needs = "Triton, a C compiler and Python's headers" if device.type == "cuda" else "a C++ compiler"
            raise MissingPackageError(
                f"nothing can be compiled for {device.type} here ({_said(error)})",
                hint=f"{HINT}, or install what it needs: {needs}",
            ) from error


def _little(x: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x, approximate="tanh") * x


def _kind(tensor: Tensor | None) -> Any:
    """What compiled code is made for."""
    if tensor is None:
        return None
    return (tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.is_inference())


def _graphs() -> int:
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _limits() -> AbstractContextManager[Any]:
    import torch._dynamo

    return torch._dynamo.config.patch(recompile_limit=MOST_SHAPES)  # type: ignore[no-any-return]


def _said(error: BaseException) -> str:
    """First words of an error and of what was behind it."""
    inner = getattr(error, "inner_exception", None) or error.__cause__
    lines = [line.strip() for line in str(inner or error).splitlines() if line.strip()]
    return f"{type(inner or error).__name__}: {' '.join(lines)[:200]}"
