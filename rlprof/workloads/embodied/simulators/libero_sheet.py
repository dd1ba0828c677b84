"""A buffer on the GPU that collects images, so that one wait reads them all."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from rlprof.workloads.embodied.contracts import Array


class Sheet:
    """Places for the images of several environments, read back together.

    Every image is drawn at the same place of MuJoCo's own offscreen buffer and copied from there to its place
    here, on the GPU and without waiting. Drawing it right at its place would be simpler, but what
    rasterisation rounds depends on the place, and pixels would differ. The copy also averages the samples of
    a multisampled buffer, as MuJoCo's reading back does.

    It belongs to the GL context that is current when it is made.

    Parameters
    ----------
    context : mujoco.MjrContext
        Whose offscreen buffer images come from; any of the same GL context, with images of the same kind.
    rows : int
        Environments that are wanted; there are fewer where GL has no buffers so large, but at least one.
    cameras, size : int
        Images of an environment, and height and width of each in pixels.

    Raises
    ------
    OpenGL.error.GLError, RuntimeError
        If GL does not do it.
    """

    def __init__(self, context: Any, *, rows: int, cameras: int, size: int) -> None:
        # which GL that is depends on what MuJoCo was set to, so it is not imported before
        self._gl = gl = importlib.import_module("OpenGL.GL")
        most = int(gl.glGetIntegerv(gl.GL_MAX_RENDERBUFFER_SIZE))
        self.rows = max(1, min(rows, most // size))
        self._cameras, self._size = cameras, size
        gl.glBindRenderbuffer(gl.GL_RENDERBUFFER, context.offColor)
        kind = gl.glGetRenderbufferParameteriv(gl.GL_RENDERBUFFER, gl.GL_RENDERBUFFER_INTERNAL_FORMAT)
        self._colors = gl.glGenRenderbuffers(1)
        gl.glBindRenderbuffer(gl.GL_RENDERBUFFER, self._colors)
        gl.glRenderbufferStorage(gl.GL_RENDERBUFFER, int(kind), cameras * size, self.rows * size)
        self._buffer = gl.glGenFramebuffers(1)
        gl.glBindFramebuffer(gl.GL_FRAMEBUFFER, self._buffer)
        gl.glFramebufferRenderbuffer(
            gl.GL_FRAMEBUFFER, gl.GL_COLOR_ATTACHMENT0, gl.GL_RENDERBUFFER, self._colors
        )
        state = gl.glCheckFramebufferStatus(gl.GL_FRAMEBUFFER)
        if state != gl.GL_FRAMEBUFFER_COMPLETE:
            raise RuntimeError(
                f"GL makes no buffer of {cameras * size} x {self.rows * size} pixels ({state})"
            )
        self._pixels = np.empty((self.rows * size, cameras * size, 3), dtype=np.uint8)

    def take(self, context: Any, row: int, camera: int) -> None:
        """Copy what was just drawn in MuJoCo's offscreen buffer; nothing waits for it.

        GL's buffers are other ones afterwards: call `mjr_setBuffer` before the next image is drawn.
        """
        gl, size = self._gl, self._size
        gl.glBindFramebuffer(gl.GL_READ_FRAMEBUFFER, context.offFBO)
        gl.glBindFramebuffer(gl.GL_DRAW_FRAMEBUFFER, self._buffer)
        left, low = camera * size, row * size
        gl.glBlitFramebuffer(
            *(0, 0, size, size),
            *(left, low, left + size, low + size),
            *(gl.GL_COLOR_BUFFER_BIT, gl.GL_NEAREST),
        )

    def read(self, rows: int) -> Array:
        """Wait for the first rows, and read them.

        Returns
        -------
        ndarray of uint8, shape (rows, cameras, size, size, 3)
            Images as `Picture` wants them, of the lines that GL counts from below: each from its last pixel
            to its first. A view, valid until the next call.
        """
        gl, size = self._gl, self._size
        found = self._pixels[: rows * size]
        gl.glBindFramebuffer(gl.GL_READ_FRAMEBUFFER, self._buffer)
        gl.glPixelStorei(gl.GL_PACK_ALIGNMENT, 1)
        # lines come from below; with colours the other way round too, turning is to read bytes backwards
        gl.glReadPixels(0, 0, self._cameras * size, rows * size, gl.GL_BGR, gl.GL_UNSIGNED_BYTE, found)
        images = found.reshape(rows, size, self._cameras, size, 3).swapaxes(1, 2)
        return images[:, :, ::-1, ::-1, ::-1]

    def close(self) -> None:
        """Free the buffer; its GL context is current."""
        self._gl.glDeleteFramebuffers(1, [self._buffer])
        self._gl.glDeleteRenderbuffers(1, [self._colors])
