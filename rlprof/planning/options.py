"""Choices that the cost model and the schedule leave open, each of them an option."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlprof.errors import UsageError
from rlprof.planning.limits import MOST_STEPS, is_count


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How a plan is lowered, costed and scheduled.

    Parameters
    ----------
    steps : int
        K_eval, the steps that are unrolled.
    split_generation : bool
        Split generation into response-length phases where that allows overlap, if the workload has quantiles.
    fuse_training : bool
        Train two models in one composite node where placement, parallelism and microbatches agree.
    decode : {"batched", "microbatched"}
        All sequences of a replica decode together, or microbatch by microbatch.
    nongemm : {"scaled", "as_printed"}
        Norms, residuals and activations of every microbatch at its own length; or of one microbatch whatever
        its length, as the paper prints the term.
    count_kv_traffic : bool
        Decode steps read the KV cache.
    prefill_logits : {"all", "last"}
        Generation makes logits of all prompt tokens, as the formula of its memory has it; or of the last
        token of each prompt alone, as inference engines do.
    reserve_source : bool
        A transfer holds the GPUs that it comes from as well, as the runtime does.

    Raises
    ------
    UsageError
        If a value is none of those.
    """

    steps: int = 8
    split_generation: bool = True
    fuse_training: bool = False
    decode: Literal["batched", "microbatched"] = "batched"
    nongemm: Literal["scaled", "as_printed"] = "scaled"
    count_kv_traffic: bool = True
    prefill_logits: Literal["all", "last"] = "all"
    reserve_source: bool = False

    def __post_init__(self) -> None:
        if not is_count(self.steps, most=MOST_STEPS):
            raise UsageError(
                f"a horizon of {self.steps!r} steps", hint=f"plan over 1 to {MOST_STEPS:,} steps"
            )
        for name, allowed in (
            ("decode", ("batched", "microbatched")),
            ("nongemm", ("scaled", "as_printed")),
            ("prefill_logits", ("all", "last")),
        ):
            if getattr(self, name) not in allowed:
                raise UsageError(f"{name} is {getattr(self, name)!r}", hint=f"use {' or '.join(allowed)}")
