"""Two devices compute what one computes: values, gradients and updates, in two processes over Gloo."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlprof.errors import UsageError
from rlprof.planning.calibration.parallel import Ranks
from rlprof.planning.shapes import SHAPES, ModelShape
from tests.conftest import python_path

pytest.importorskip("torch")

#: One process that becomes two: PyTorch is loaded once.
PROGRAM = """
import os
import sys
import torch
import torch.distributed as dist
import torch.fx.experimental.symbolic_shapes  # a backward pass does
from rlprof.planning.calibration import transformer
from rlprof.planning.calibration.parallel import Ranks, Scattered
from rlprof.planning.shapes import ModelShape

torch.set_num_threads(1)
other = os.fork()
rank = 0 if other else 1
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
group = dist.new_group([0, 1])
shape = ModelShape("grouped", 5, 32, 48, 4, 2, 50)


def build(r):
    return transformer.build(shape, device="cpu", dtype="float32", positions=16, trainable=True, ranks=r)


def rows(weight, sizes):
    return torch.cat([part.chunk(2)[rank] for part in weight.split(sizes)])


def columns(weight):
    return weight.chunk(2, dim=1)[rank]


def shard(layer):
    e = shape.head_dim
    return (rows(layer.qkv, [4 * e, 2 * e, 2 * e]), columns(layer.out), rows(layer.up, [48, 48]),
            columns(layer.down), layer.attention_norm, layer.ffn_norm)


def near(a, b, rtol=1.3e-6, atol=1e-5):
    assert a.shape == b.shape and a.dtype == b.dtype
    assert torch.allclose(a, b, rtol=rtol, atol=atol), float((a - b).abs().max())


def compare(way):
    ranks = Ranks(group, **{way: 2})
    whole, mine = build(Ranks()), build(ranks)
    with torch.no_grad():
        for x, y in zip(mine.groups[0], whole.groups[0]):
            x.copy_(y)
        for a, b in zip(mine.layers, whole.layers):
            for x, y in zip(a.weights, shard(b) if way == "tensor" else b.weights):
                x.copy_(y)
    seen = torch.randint(50, (4, 9), generator=torch.Generator().manual_seed(1))
    if way == "tensor":
        near(transformer.log_probabilities(mine, seen), transformer.log_probabilities(whole, seen))
        caches = [transformer.kv_cache(m, 4, 16) for m in (mine, whole)]
        with torch.no_grad():
            first = [transformer.prefill(m, seen, c) for m, c in zip((mine, whole), caches)]
            steps = [transformer.decode(m, t, 9, c) for m, t, c in zip((mine, whole), first, caches)]
        assert torch.equal(*first) and torch.equal(*steps)
        for m in (mine, whole):
            transformer.backward(m, seen)
        near(mine.embedding.grad, whole.embedding.grad)
        for a, b in zip(mine.layers, whole.layers):
            wanted = type(b)(*(w.grad for w in b.weights))
            for x, y in zip(a.weights, shard(wanted)):
                near(x.grad, y)
    else:
        scattered = Scattered(mine.groups, ranks)
        ours, other = transformer.Adam(mine.groups, scattered), transformer.Adam(whole.groups)
        for step in range(2):
            transformer.backward(mine, seen.chunk(2)[rank])
            scattered.finish()
            transformer.backward(whole, seen)
            ours.step()
            other.step()
            assert all(w.grad is None for g in mine.groups for w in g) and not scattered.parts
        for a, b in zip(sum(mine.groups, ()), sum(whole.groups, ())):
            near(a, b, rtol=1e-5, atol=2e-6)  # updates are of 1e-6


for way in ("tensor", "data"):
    compare(way)
    os.write(1, f"{rank} {way}\\n".encode())
dist.barrier()
dist.destroy_process_group()
if other:
    assert os.waitpid(other, 0)[1] == 0
"""


def test_two_processes_compute_what_one_does(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "store")]
    # in a group of their own: when the first one ends or is ended, so is the second
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            done, said = process.communicate(timeout=300)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said[-2000:]
    assert sorted(done.splitlines()) == ["0 data", "0 tensor", "1 data", "1 tensor"]


def test_what_cannot_be_divided_is_refused() -> None:
    assert Ranks(None, tensor=2).shard(SHAPES["llama2-7b"]).kv_dim == 2048
    for shape in (ModelShape("odd heads", 2, 30, 8, 3, 3, 10), ModelShape("one group", 2, 32, 8, 4, 1, 10)):
        with pytest.raises(UsageError, match="not divisible by 2"):
            Ranks(None, tensor=2).shard(shape)
