"""How to record what a capture lacks, in the words of the tool that made it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Remedies:
    """Advice of `rlprof doctor` that depends on the tool.

    Parameters
    ----------
    everything : str
        Command that records all that the analyses use.
    annotate, kernels, counters : str
        How to get ranges, kernels and SM-activity counters.
    refused : str
        What to do where the counters are refused.
    faster : callable
        Gets the sampling rate that there was, in hertz; returns how to sample faster.
    """

    everything: str
    annotate: str
    kernels: str
    counters: str
    refused: str
    faster: Callable[[float], str]


def _faster_nsys(hertz: float) -> str:
    return f"--gpu-metrics-frequency={min(200_000, round(10 * hertz))}"


def _faster_own(hertz: float) -> str:
    wanted = min(200_000, round(10 * hertz))
    return f"--backend {'cupti' if wanted <= 25_000 else 'nsys'} --rate {wanted}Hz"


_NSYS_COUNTERS = (
    "nsys profile --trace=cuda,nvtx --gpu-metrics-devices=all --gpu-metrics-frequency=2000 (older versions: "
    "--gpu-metrics-device=all)"
)

#: For captures of Nsight Systems, PyTorch's profiler and others.
NSYS = Remedies(
    everything=(
        "nsys profile --trace=cuda,nvtx --cuda-graph-trace=node --gpu-metrics-devices=all "
        "--gpu-metrics-frequency=2000 --sample=none --cpuctxsw=none --output=run python train.py"
    ),
    annotate=(
        "name the parts of the program: `with torch.cuda.nvtx.range('rollout'):` under nsys, "
        "`with torch.profiler.record_function('rollout'):` under the PyTorch profiler; and record with "
        "nsys profile --trace=cuda,nvtx"
    ),
    kernels=(
        "nsys profile --trace=cuda,nvtx; PyTorch profiler: "
        "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
    ),
    counters=_NSYS_COUNTERS,
    refused=(
        "if that is refused (ERR_NVGPUCTRPERM), run as root or ask for NVreg_RestrictProfilingToAdminUsers=0"
    ),
    faster=_faster_nsys,
)

#: For captures of `rlprof capture`.
OWN = Remedies(
    everything="rlprof capture --backend nsys -o run.rlprof -- python train.py",
    annotate="name the parts of the program: `with rlprof.annotate('rollout'):`",
    kernels="rlprof capture --kernels",
    counters="rlprof capture --backend cupti, on the machine with the GPU",
    refused="if that is refused, rlprof capture --check says what stands in the way",
    faster=_faster_own,
)


def remedies(product: str | None) -> Remedies:
    """Return the advice for a capture by the program that wrote it (`TraceMeta.product`)."""
    return OWN if product is not None and product.startswith("rlprof ") else NSYS
