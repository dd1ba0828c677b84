"""Compiles the GPU kernels of the simulator mujoco_warp on a machine without a GPU.

    $RLPROF_WARP_PYTHON tools/warp_kernels.py CACHE [--arch 90] [--objects 4 8]

Runs the simulator on Warp's CPU device and compiles each kernel that is launched for the GPU too, into a
folder that is used as WARP_CACHE_PATH there: the first start on the GPU then compiles nothing, or
little. It takes some minutes of processor time, and goes on where it was stopped. What the GPU still
compiles is printed by `benchmarks.gpu.warp_probe` (modules in the cache before and after).

Warp has no public call for this (`compile_aot_module` leaves out the hashes that its cache is looked up
by), so it reaches into warp-lang 1.19; with another version, keep the cache of a first run on a GPU
instead.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


class Compiler:
    """Compiles modules as they come, each variant once."""

    def __init__(self, cache: Path, arch: int) -> None:
        self.cache, self.arch = cache, arch
        self.done: dict[tuple[str, int, bytes], float] = {}

    def compile(self, kernel: Any, block_dim: int) -> None:
        """Compile the module of a kernel, as it is now, for launches with this many threads in a block."""
        module = kernel.module
        digest = module.get_module_hash(block_dim)
        key = (module.name, block_dim, digest)
        if key in self.done:
            return
        began = time.monotonic()
        identifier = module.get_module_identifier(block_dim)
        module._compile(
            None,
            str(self.cache / identifier),
            f"{identifier}.sm{self.arch}.cubin",
            self.arch,
            False,
            module.resolved_options[block_dim],
        )
        self.done[key] = time.monotonic() - began
        print(f"{self.done[key]:6.1f} s {module.name} ({block_dim})", flush=True)


def main() -> None:
    """Read the command line, run, compile."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cache", type=Path)
    parser.add_argument("--arch", type=int, default=90)
    parser.add_argument("--objects", type=int, nargs="+", default=[4, 8])
    given = parser.parse_args()

    import warp as wp

    if not wp.__version__.startswith("1.19."):
        raise SystemExit(
            f"warp_kernels: warp-lang {wp.__version__}; this was made for 1.19. Next: install that one"
        )
    compiler = Compiler(given.cache / wp.__version__, given.arch)
    launch, launch_tiled, suggested = wp.launch, wp.launch_tiled, wp.get_suggested_block_size

    def noted_launch(kernel: Any, *arguments: Any, **options: Any) -> Any:
        answer = launch(kernel, *arguments, **options)
        compiler.compile(kernel, options.get("block_dim") or 256)  # what a GPU would have used
        return answer

    def noted_launch_tiled(kernel: Any, *arguments: Any, **options: Any) -> Any:
        answer = launch_tiled(kernel, *arguments, **options)
        compiler.compile(kernel, options["block_dim"])
        return answer

    def noted_suggested(kernel: Any, *arguments: Any) -> Any:
        compiler.compile(kernel, kernel.module.options["block_dim"])
        return suggested(kernel, *arguments)

    wp.launch, wp.launch_tiled, wp.get_suggested_block_size = (
        noted_launch,
        noted_launch_tiled,
        noted_suggested,
    )
    from rlprof.workloads.embodied.simulators.mujoco_warp import MujocoWarp

    for objects in given.objects:
        MujocoWarp(2, substeps=5, objects=objects, cameras=2, image=32, device="cpu")
        print(
            f"objects {objects}: {len(compiler.done)} modules, {sum(compiler.done.values()):.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
