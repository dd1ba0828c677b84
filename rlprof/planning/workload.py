"""What one training step processes: prompts, rollouts, lengths, and how response lengths are spread."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from rlprof.planning.errors import WorkloadError
from rlprof.planning.limits import MOST, is_count


@dataclass(frozen=True, slots=True)
class LengthQuantile:
    """A fraction of the responses that is complete once so many tokens are generated.

    Parameters
    ----------
    completed_frac : float
        Cumulative fraction of sequences, above 0 and up to 1.
    tokens : float
        Generated tokens at which that fraction is complete; at least 1.
    """

    completed_frac: float
    tokens: float


@dataclass(frozen=True, slots=True)
class Workload:
    """Work of one step.

    Parameters
    ----------
    prompts : int
        Prompts per step, B. For preference data: pairs.
    prompt_tokens, response_tokens : int
        Mean lengths, L_p and L_r.
    rollouts_per_prompt : int
        R. For preference data 2: the chosen and the rejected response.
    scalar_bytes : int
        Bytes of a weight, activation or token, s_b.
    quantiles : tuple of LengthQuantile
        Breakpoints of the response lengths, both coordinates strictly increasing, the last one
        (1, response_tokens). Empty: generation is never split.

    Raises
    ------
    WorkloadError
        If a count is not positive, or the quantiles do not increase from at least one token to
        (1, response_tokens).
    """

    prompts: int
    prompt_tokens: int
    response_tokens: int
    rollouts_per_prompt: int = 1
    scalar_bytes: int = 2
    quantiles: tuple[LengthQuantile, ...] = ()

    def __post_init__(self) -> None:
        for name in ("prompts", "prompt_tokens", "response_tokens", "rollouts_per_prompt", "scalar_bytes"):
            value = getattr(self, name)
            if not is_count(value):
                raise WorkloadError(f"{name} is {value!r}", hint=f"give a whole number from 1 to {MOST:,}")
        object.__setattr__(self, "quantiles", tuple(self.quantiles))
        _check(self.quantiles, self.response_tokens)

    @property
    def sequences(self) -> int:
        """Sequences per step, B R."""
        return self.prompts * self.rollouts_per_prompt

    @property
    def sequence_tokens(self) -> int:
        """Mean length of prompt and response, L_p + L_r."""
        return self.prompt_tokens + self.response_tokens

    @property
    def step_tokens(self) -> int:
        """Tokens per step, B R (L_p + L_r): what the throughput counts."""
        return self.sequences * self.sequence_tokens


def _check(quantiles: tuple[LengthQuantile, ...], response_tokens: int) -> None:
    if not quantiles:
        return
    start = LengthQuantile(0.0, 0.0)
    for before, here in pairwise((start, *quantiles)):
        if not (here.completed_frac > before.completed_frac and here.tokens > before.tokens):
            raise WorkloadError(
                f"response-length quantiles do not increase: ({here.completed_frac:g}, {here.tokens:g}"
                f" tokens) comes after ({before.completed_frac:g}, {before.tokens:g} tokens)",
                hint="give fractions and lengths that both increase strictly from 0",
            )
    if quantiles[0].tokens < 1:
        raise WorkloadError(
            f"the first response-length quantile is at {quantiles[0].tokens:g} tokens",
            hint="give lengths of at least one token",
        )
    last = quantiles[-1]
    if last.completed_frac != 1 or last.tokens != response_tokens:
        raise WorkloadError(
            f"the last response-length quantile is ({last.completed_frac:g}, {last.tokens:g} tokens)",
            hint=f"end with the fraction 1 at {response_tokens} tokens, the response length",
        )


def three_phases(response_tokens: int) -> tuple[LengthQuantile, ...]:
    """Half of the responses done at a quarter of the length, 85 % at a half, all at the end.

    The phases of the schedules that the paper predicts (Appendix B).
    """
    lengths = ((0.5, response_tokens / 4), (0.85, response_tokens / 2), (1.0, float(response_tokens)))
    return tuple(LengthQuantile(f, t) for f, t in lengths)
