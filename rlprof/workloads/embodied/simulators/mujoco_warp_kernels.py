"""Kernels of `mujoco_warp`; imported only where warp-lang is installed.

No postponed annotations here: Warp reads them.
"""

import warp as wp  # type: ignore[import-not-found,unused-ignore]


@wp.kernel  # type: ignore[untyped-decorator,unused-ignore]
def unpack_rgb(packed: wp.array2d(dtype=wp.uint32), out: wp.array3d(dtype=wp.uint8)) -> None:  # type: ignore[valid-type,unused-ignore]
    """Split pixels 0xAARRGGBB, shape (worlds, pixels), into bytes, shape (worlds, pixels, 3)."""
    world, pixel = wp.tid()
    value = packed[world, pixel]
    out[world, pixel, 0] = wp.uint8((value >> wp.uint32(16)) & wp.uint32(255))
    out[world, pixel, 1] = wp.uint8((value >> wp.uint32(8)) & wp.uint32(255))
    out[world, pixel, 2] = wp.uint8(value & wp.uint32(255))
