"""Rule L7 on the embodied program: a metered iteration knows the memory of every call of a candidate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'rlprof[workloads]'")
pytest.importorskip("mujoco", reason="mujoco is not installed: pip install 'rlprof[workloads]'")

from rlprof.overlap.memory import beyond_memory, peak_memory_bytes
from rlprof.overlap.optimize.steps import Step, derive, step
from rlprof.workloads.embodied.config import configure
from rlprof.workloads.embodied.optimize import CallBytes, Embodied, embodied

EPOCH = "iteration/generate_rollouts/rollout_epoch"
CHUNK = f"{EPOCH}/chunk"
#: Bytes that the allocator below says at first, and by how much a call exceeds them.
BEFORE, MORE = 1_000, 250


class Allocator:
    """Stands in for `torch.cuda`, which says the same of every call."""

    def __init__(self) -> None:
        self.waits = self.resets = 0

    def synchronize(self, _device: str) -> None:
        self.waits += 1

    def reset_peak_memory_stats(self, _device: str) -> None:
        self.resets += 1

    def memory_allocated(self, _device: str) -> int:
        return BEFORE

    def max_memory_allocated(self, _device: str) -> int:
        return BEFORE + MORE

    def memory_reserved(self, _device: str) -> int:
        return BEFORE + 50

    def mem_get_info(self, _device: str) -> tuple[int, int]:
        return 5_000, 10_000


@pytest.fixture(scope="module")
def metered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Embodied, CallBytes, Allocator]]:
    cuda = Allocator()
    meter = CallBytes(SimpleNamespace(cuda=cuda), "cuda:0")
    config = configure("tiny", chunks=2, episode_steps=10, envs=4, global_batch=8, micro_batch=4, workers=0)
    with embodied(config, Path(tmp_path_factory.mktemp("out")), spares=1, activity="off") as here:
        here.workload._meter = meter.watch
        assert meter.estimates() is None  # nothing was seen
        here.workload.measure_memory()
        yield here, meter, cuda


@pytest.mark.parametrize(
    "steps",
    [
        (),
        (step("split_temporal", EPOCH, groups=2), step("interleave", EPOCH)),
        (step("split_spatial", CHUNK, groups=2), step("interleave", CHUNK)),
        (step("split_spatial", EPOCH, groups=2), step("interleave", EPOCH)),
    ],
)
def test_whether_a_candidate_fits_is_known(
    metered: tuple[Embodied, CallBytes, Allocator], steps: tuple[Step, ...]
) -> None:
    here, meter, _ = metered
    graph = derive(here.workload.native, steps)
    known = meter.estimates()
    assert known is not None
    peak: Any = peak_memory_bytes(graph, known)
    # a call, and what may run beside it: at most one of each other component
    assert MORE <= peak <= 5 * MORE
    assert beyond_memory(graph, peak, known) is None
    assert (why := beyond_memory(graph, peak - 1, known)) is not None
    assert why.startswith("L7: up to")


def test_each_call_waits_for_the_device_on_both_sides(
    metered: tuple[Embodied, CallBytes, Allocator],
) -> None:
    here, meter, cuda = metered
    calls = len(here.workload.native.calls)
    assert (cuda.waits, cuda.resets) == (2 * calls, calls)
    assert meter.free() == 5_050.0


def test_native_iterations_follow(metered: tuple[Embodied, CallBytes, Allocator]) -> None:
    here, _, cuda = metered
    before = cuda.waits
    assert here.workload.iteration(None).time_s > 0
    assert here.counter.whole
    assert cuda.waits == before  # the meter is gone
