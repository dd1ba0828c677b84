"""Denoise steps of a flow policy as CUDA graphs: one launch in place of hundreds of small ones.

A graph reads and writes buffers of its own. Chains that are alive at the same time (groups of a split batch,
stages) have a graph each; a chain keeps its graph from the first step to the last. Streams of another
priority, or with another share of the SMs, have graphs of their own.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlprof.workloads.embodied.errors import ConfigurationError
from rlprof.workloads.embodied.policies.base import Features, Prefix

if TYPE_CHECKING:
    from rlprof.workloads.embodied.policies.flow import FlowPolicy

#: Chains of one batch size and kind of stream that may be alive at once; of more, the first one is given up.
MOST_CHAINS = 8
_WARM_UP = 3


class CapturedSteps:
    """Denoise steps of a policy, captured at their first use for each size of batch.

    Parameters
    ----------
    policy : FlowPolicy
        On a CUDA device. Its weights must stay where they are; `forget` after they have moved.

    Raises
    ------
    ConfigurationError
        If the policy is on no CUDA device, or computes sample by sample.
    """

    def __init__(self, policy: FlowPolicy) -> None:
        if policy.device.type != "cuda":
            raise ConfigurationError(
                f"CUDA graphs need a CUDA device, and the policy is on {policy.device.type}",
                hint="leave --cuda-graph away, or use --device cuda:0",
            )
        if policy.size.by_row:
            raise ConfigurationError(
                "CUDA graphs are of whole batches, and this policy computes sample by sample",
                hint="leave --cuda-graph away, or use another preset than exact",
            )
        self._policy = policy
        self._lock = threading.Lock()
        self._chains: dict[tuple[Any, ...], list[_Chain]] = {}
        self._began = 0
        #: Why steps of streams with a part of the SMs, or (None) with all, run eagerly.
        self._refused: dict[tuple[int, int] | None, str] = {}

    @property
    def refused(self) -> str | None:
        """Why steps run eagerly after all, or those with some share of the SMs."""
        told = (why if of is None else f"with {of[1]} SMs {why}" for of, why in self._refused.items())
        return "; ".join(told) or None

    @property
    def graphs(self) -> int:
        """Graphs that there are."""
        return sum(len(chains) for chains in self._chains.values())

    def forget(self) -> None:
        """Drop all graphs: the weights have moved."""
        with self._lock:
            self._chains = {}

    def forget_share(self, device: int, sms: int) -> None:
        """Drop the graphs of streams with a part of the SMs, and what is known of them."""
        self._forget_all((device, sms))
        self._refused.pop((device, sms), None)

    def _forget_all(self, sms: tuple[int, int] | None) -> None:
        with self._lock:
            self._chains = {key: chains for key, chains in self._chains.items() if key[2] != sms}

    def step(
        self, point: Tensor, prefix: Prefix, features: Features, noise: Tensor, index: int
    ) -> Tensor | None:
        """Next point of a chain, as `FlowPolicy` makes it eagerly; None if that has to be done."""
        with torch.cuda.device(self._policy.device):
            sms = self._sms(torch.cuda.current_stream())
            if sms in self._refused:
                return None
            try:
                chain = self._chain(point, prefix, features, noise, index)
            except RuntimeError as error:  # whatever CUDA says of a capture
                first = (str(error).splitlines() or [""])[0][:200]
                self._refused[sms] = f"the capture failed ({first})"
                self._forget_all(sms)
                return None
            return chain.step(point, noise, index, last=index + 1 == self._policy.spec.denoise_steps)

    def _sms(self, stream: torch.cuda.Stream) -> tuple[int, int] | None:
        shares = self._policy.sm_shares
        return None if shares is None else shares.context_of(stream)

    def _chain(self, point: Tensor, prefix: Prefix, features: Features, noise: Tensor, index: int) -> _Chain:
        key = _identity(prefix)
        # kernels of a graph keep priority and SMs of the stream that they were captured from
        current, shares = torch.cuda.current_stream(), self._policy.sm_shares
        sms = self._sms(current)
        with self._lock:
            chains = self._chains.setdefault((len(point), current.priority, sms), [])
            chain = next((c for c in chains if c.key == key), None) if index else None
            if chain is None:
                chain = next((c for c in chains if c.key is None), None)
                if chain is None and len(chains) < MOST_CHAINS:
                    # one capture at a time; other threads may launch and allocate meanwhile, but not compile
                    compiled = getattr(self._policy, "compiled", None)
                    with nullcontext() if compiled is None else compiled.lock:
                        aside = None if shares is None else shares.beside(current)
                        chain = _Chain(self._policy, point, prefix, features, noise, aside)
                    chains.append(chain)
                elif chain is None:
                    chain = min(chains, key=lambda c: c.began)
                self._began += 1
                chain.begin(key, self._began, prefix, features)
            return chain


def _identity(prefix: Prefix) -> tuple[Any, ...]:
    """What tells one prefix from another, also where parts of it were put together anew."""
    first = prefix.cache[0][0] if prefix.cache else prefix.hidden
    return (first.data_ptr(), first.shape, first.stride(), first._version)


def _tensors(prefix: Prefix, features: Features) -> list[Tensor]:
    return [*(t for pair in prefix.cache for t in pair), prefix.hidden, prefix.summary, *features]


class _Chain:
    """One graph and its buffers."""

    def __init__(
        self,
        policy: FlowPolicy,
        point: Tensor,
        prefix: Prefix,
        features: Features,
        noise: Tensor,
        aside: torch.cuda.Stream | None,
    ) -> None:
        self.key: tuple[Any, ...] | None = None
        self.began = 0
        self._plan = policy.plan(point.device)
        self._prefix = Prefix(
            tuple((k.clone(), v.clone()) for k, v in prefix.cache),
            prefix.hidden.clone(),
            prefix.summary.clone(),
        )
        self._features = Features(*(t.clone() for t in features))
        self._point, self._noise = point.clone(), noise.clone()
        self._moment = self._plan[0].clone()
        self._held: Prefix | None = None

        def next_point() -> Tensor:
            return policy.advance(
                self._point, self._prefix, self._features, self._noise, self._moment[0], self._moment[1]
            )

        current = torch.cuda.current_stream()
        aside = aside or torch.cuda.Stream(priority=current.priority)  # type: ignore[no-untyped-call]
        aside.wait_stream(current)
        with torch.no_grad():
            with torch.cuda.stream(aside):
                for _ in range(_WARM_UP):
                    next_point()
            current.wait_stream(aside)
            self._graph = torch.cuda.CUDAGraph()
            # thread_local: threads that simulate or train go on calling CUDA meanwhile
            with torch.cuda.graph(self._graph, stream=aside, capture_error_mode="thread_local"):
                self._out = next_point()
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._done.record(current)

    def begin(self, key: tuple[Any, ...], number: int, prefix: Prefix, features: Features) -> None:
        """Take a prefix."""
        self.key, self.began = key, number
        self._held = prefix  # or its memory, and with it the key, could become another one's
        torch.cuda.current_stream().wait_event(self._done)
        with torch.no_grad():
            for mine, other in zip(
                _tensors(self._prefix, self._features), _tensors(prefix, features), strict=True
            ):
                mine.copy_(other)

    def step(self, point: Tensor, noise: Tensor, index: int, *, last: bool) -> Tensor:
        """Next point."""
        with torch.no_grad():
            self._point.copy_(point)
            self._noise.copy_(noise)
            self._moment.copy_(self._plan[index])
            self._graph.replay()
            out = self._out.clone()
        if last:
            self._done.record(torch.cuda.current_stream())
            self.key = self._held = None
        return out
