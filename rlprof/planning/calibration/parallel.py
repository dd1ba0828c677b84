"""Tensor and data parallelism of the measured transformer: what several devices do together.

Tensor parallelism divides heads and FFN, and sums over devices behind the two projections of a layer; in the
backward pass also before them. Data parallelism divides sequences, and optimizer states by weights (ZeRO-2):
gradients are reduced and scattered as they come, and updated weights gathered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from rlprof.errors import UsageError
from rlprof.planning.calibration.torch_module import Tensor, torch_module
from rlprof.planning.shapes import ModelShape

Sum = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Ranks:
    """Devices that share one operator.

    Parameters
    ----------
    group : ProcessGroup or None
        As PyTorch has it; None for one device.
    tensor, data : int
        P_t and P_d; one of them is 1.
    """

    group: Any = None
    tensor: int = 1
    data: int = 1

    def shard(self, shape: ModelShape) -> ModelShape:
        """What one device holds of the layers.

        Raises
        ------
        UsageError
            If heads or FFN cannot be divided.
        """
        p = self.tensor
        if shape.heads % p or shape.kv_heads % p or shape.ffn_hidden % p:
            raise UsageError(f"shape {shape.name!r} is not divisible by {p}", hint="measure another shape")
        return replace(
            shape,
            heads=shape.heads // p,
            kv_heads=shape.kv_heads // p,
            ffn_hidden=shape.ffn_hidden // p,
        )

    @property
    def summed(self) -> Sum | None:
        """Sums partial results over tensor ranks; gradients pass as they are."""
        return None if self.tensor == 1 else lambda x: _functions()[0].apply(x, self.group)

    @property
    def copied(self) -> Sum | None:
        """Passes its argument to all tensor ranks; gradients are summed over them."""
        return None if self.tensor == 1 else lambda x: _functions()[1].apply(x, self.group)


ALONE = Ranks()


@cache
def _functions() -> tuple[Any, Any]:
    """Two autograd functions, made once PyTorch is there."""
    dist = torch_module("distributed")
    function: Any = torch_module("autograd").Function

    class Summed(function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
            dist.all_reduce(x, group=group)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(_: Any, *gradient: Tensor) -> tuple[Tensor, None]:
            return gradient[0], None

    class Copied(function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
            ctx.group = group
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None]:
            total = gradient[0].contiguous()
            dist.all_reduce(total, group=ctx.group)
            return total, None

    return Summed, Copied


class Scattered:
    """Gradients of data ranks, each of which keeps its part of every weight.

    Parameters
    ----------
    groups : list of tuple of Tensor
        Weights; those of the first group take gradients several times in one pass, and are scattered at its
        end.
    ranks : Ranks
        Whose.
    """

    def __init__(self, groups: list[tuple[Tensor, ...]], ranks: Ranks) -> None:
        self._dist, self._ranks = torch_module("distributed"), ranks
        self.rank = self._dist.get_rank(ranks.group)
        self._ends = groups[0]
        self.parts: dict[int, Tensor] = {}
        self._hooks = [
            weight.register_post_accumulate_grad_hook(self._scatter)
            for group in groups[1:]
            for weight in group
        ]

    def part(self, weight: Tensor) -> Tensor:
        """The part of a weight that this rank keeps, as one row."""
        return weight.detach().view(self._ranks.data, -1)[self.rank]

    def _scatter(self, weight: Tensor) -> None:
        torch = torch_module()
        with torch.no_grad():
            mine = torch.empty_like(self.part(weight))
            self._call("reduce_scatter")(mine, weight.grad.contiguous().view(-1), group=self._ranks.group)
            self.parts[id(weight)] = mine.div_(self._ranks.data)
            weight.grad = None

    def finish(self) -> None:
        """Scatter what was left, at the end of the backward pass."""
        for weight in self._ends:
            self._scatter(weight)

    def gather(self, weight: Tensor, part: Tensor) -> None:
        """Put the updated parts of all ranks into a weight."""
        self._call("all_gather")(weight.detach().view(-1), part, group=self._ranks.group)

    def remove(self) -> None:
        """Leave the weights alone."""
        for hook in self._hooks:
            hook.remove()

    def _call(self, name: str) -> Any:
        tensors = {"reduce_scatter": "reduce_scatter_tensor", "all_gather": "all_gather_into_tensor"}[name]
        return getattr(self._dist, f"{name}_single", None) or getattr(self._dist, tensors)
