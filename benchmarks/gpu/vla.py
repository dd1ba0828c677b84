"""A small program shaped like embodied RL: a policy with denoise steps, a simulator process, training.

`python -m benchmarks.gpu.vla --iterations 3` runs on one GPU with torch alone; weights are random. It is what
the captures in `datasets/` were taken of.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import time
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import nn

import rlprof

BATCH, TOKENS, CHUNKS, EPOCHS, DENOISE, MINIBATCHES = 16, 512, 6, 2, 10, 4


def simulator(pipe: Connection) -> None:
    """Steps on order: physics on the CPU, rendering on the GPU."""
    images = torch.zeros(2 * BATCH, 3, 224, 224, device="cuda")
    lights = torch.rand(3, 3, 5, 5, device="cuda")
    while True:
        order = pipe.recv()
        if order == "end":
            return
        with rlprof.annotate(f"simulator.{order}"):
            with rlprof.annotate("physics"):
                state, end = 0.5, time.monotonic() + (0.012 if order == "step" else 0.05)
                while time.monotonic() < end:
                    state = 3.9 * state * (1 - state)
            with rlprof.annotate("render"):
                for _ in range(4):
                    images = nn.functional.conv2d(images, lights, padding=2).clamp_(0, 1)
                torch.cuda.synchronize()
        pipe.send(state)


class Policy(nn.Module):
    """A backbone over image tokens and an action head that denoises a chunk of actions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 2048, 14, 14)
        self.backbone = nn.ModuleList(_layer(2048) for _ in range(8))
        self.head = nn.ModuleList(_layer(512) for _ in range(6))
        self.out = nn.Linear(512, 512)

    def see(self, images: torch.Tensor) -> torch.Tensor:
        tokens_bld = self.embed(images).flatten(2).transpose(1, 2).reshape(BATCH, -1, 2048)
        for layer in self.backbone:
            tokens_bld = layer(tokens_bld)
        context_bd: torch.Tensor = tokens_bld.mean(1)[:, :512]
        return context_bd

    def denoise(self, context_bd: torch.Tensor, noise_bld: torch.Tensor) -> torch.Tensor:
        actions_bld = noise_bld + context_bd[:, None]
        for layer in self.head:
            actions_bld = layer(actions_bld)
        denoised_bld: torch.Tensor = self.out(actions_bld)
        return denoised_bld


def _layer(width: int) -> nn.Module:
    return nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)


def rollout(policy: Policy, pipe: Connection, images: torch.Tensor) -> None:
    for _ in range(EPOCHS):
        with rlprof.annotate("epoch"):
            order(pipe, "reset")
            for _ in range(CHUNKS):
                with rlprof.annotate("chunk"):
                    with rlprof.annotate("policy"), torch.no_grad():
                        with rlprof.annotate("vlm"):
                            context_bd = policy.see(images)
                            torch.cuda.synchronize()
                        with rlprof.annotate("denoise"):
                            actions_bld = torch.randn(BATCH, 16, 512, device="cuda", dtype=torch.bfloat16)
                            for _ in range(DENOISE):
                                actions_bld = policy.denoise(context_bd, actions_bld)
                            torch.cuda.synchronize()
                    order(pipe, "step")


def train(policy: Policy, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(MINIBATCHES):
        with rlprof.annotate("minibatch"):
            with rlprof.annotate("forward"):
                noise_bld = torch.randn(256, 16, 512, device="cuda", dtype=torch.bfloat16)
                loss = policy.denoise(noise_bld[:, 0], noise_bld).float().square().mean()
                torch.cuda.synchronize()
            with rlprof.annotate("backward"):
                torch.autograd.backward(loss)
                torch.cuda.synchronize()
            with rlprof.annotate("optimizer"):
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                torch.cuda.synchronize()


def order(pipe: Connection, what: str) -> Any:
    pipe.send(what)
    return pipe.recv()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    ours, theirs = mp.Pipe()
    process = mp.get_context("spawn").Process(target=simulator, args=(theirs,), daemon=True)
    process.start()
    policy = Policy().to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW([*policy.head.parameters(), *policy.out.parameters()], lr=1e-4)
    images = torch.rand(2 * BATCH, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
    with rlprof.annotate("warm_up"):
        with torch.no_grad():
            policy.denoise(
                policy.see(images), torch.zeros(BATCH, 16, 512, device="cuda", dtype=torch.bfloat16)
            )
        train(policy, optimizer)
        order(ours, "reset")
    for _ in range(options.iterations):
        with rlprof.annotate("iteration"):
            with rlprof.annotate("rollout"):
                rollout(policy, ours, images)
            with rlprof.annotate("training"):
                train(policy, optimizer)
    ours.send("end")
    process.join(10)


if __name__ == "__main__":
    main()
