"""Physics and rendering of a batch of worlds by mujoco-warp, as captured graphs.

Between calls the state of the worlds lies on the host: it is a few kilobytes for each, and a call works on
any of them. A batch size has buffers and graphs of its own, made when it first occurs.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from rlprof.workloads.embodied.contracts import Array, Floats
from rlprof.workloads.embodied.errors import (
    MissingPackageError,
    SimulatorDeviceError,
    SimulatorError,
    need,
)
from rlprof.workloads.embodied.simulators.arm_task import CAMERAS, CONTROLS
from rlprof.workloads.embodied.simulators.mujoco_warp_model import room

_PACKAGES = "mujoco-warp==4.0.0 mujoco==4.0.0 warp-lang==1.19.0"
#: Most physics steps in one captured graph; an action launches it as often as it takes.
_LONGEST_GRAPH = 20


class Engine:
    """A model on a device.

    Parameters
    ----------
    model : mujoco.MjModel
        What moves.
    objects : int
        Of the model, for which there is room for contacts.
    substeps, chunk_steps : int
        Physics steps of an action, actions of a chunk.
    cameras, image : int
        Cameras, and height and width of their images in pixels.
    device : str
        Warp's name: ``cpu``, ``cuda``, ``cuda:0``.
    deterministic : bool
        Orders of contacts, constraints and sums are fixed, at some cost.

    Attributes
    ----------
    state_size : int
        Numbers of a world's state: positions, velocities, and accelerations that the solver starts from.

    Raises
    ------
    MissingPackageError
        If mujoco-warp or warp-lang is missing.
    SimulatorDeviceError
        If the device is not there, or has too little memory.
    """

    def __init__(
        self,
        model: Any,
        objects: int,
        *,
        substeps: int,
        chunk_steps: int,
        cameras: int,
        image: int,
        device: str,
        deterministic: bool,
    ) -> None:
        self._wp, self._mjw = load()
        self._device = self._find(device)
        self._model, self._room = model, room(objects)
        self._substeps, self._chunk_steps = substeps, chunk_steps
        self._cameras, self._image = cameras, image
        self._batches: dict[int, _Batch] = {}
        self.state_size = model.nq + 2 * model.nv
        with self._wp.ScopedDevice(self._device):
            self._on_device = self._mjw.put_model(model)
        self._on_device.opt.warn_overflow = 0  # looked at after each chunk
        self._on_device.opt.deterministic = deterministic

    @property
    def device(self) -> str:
        """Name of the device."""
        return str(self._device)

    def _find(self, device: str) -> Any:
        wp = self._wp
        there = [str(d) for d in wp.get_devices()]  # "cpu" only where Warp has its compiler for CPUs
        with suppress(Exception):
            if str(found := wp.get_device(device)) in there:
                return found
        raise SimulatorDeviceError(
            f"Warp has no device {device!r} here, only {', '.join(there) or 'none'}",
            hint="look at the GPU with nvidia-smi, or use --device cpu (slow)",
        )

    def prepare(self, worlds: int) -> None:
        """Make what a batch size needs: kernels are compiled or loaded, graphs captured."""
        self._batch(worlds)

    def _batch(self, worlds: int) -> _Batch:
        if worlds not in self._batches:
            try:
                with self._wp.ScopedDevice(self._device):
                    self._batches[worlds] = _Batch(self, worlds)
            except Exception as error:
                raise self._described(error, f"{worlds} worlds") from error
        return self._batches[worlds]

    def move(self, state: Floats, control: Floats) -> tuple[Floats, Floats]:
        """Carry out a chunk.

        Parameters
        ----------
        state : ndarray of float32, shape (worlds, state_size)
            Before.
        control : ndarray, shape (worlds, chunk_steps, 5)
            For each action.

        Returns
        -------
        tuple of ndarray of float32
            State after the chunk, and sensors after each action, shape (worlds, chunk_steps, sensors).

        Raises
        ------
        SimulatorError
            If there is no room for all contacts, or the device fails.
        """
        return self._run(len(state), "physics", lambda batch: batch.move(state, control))  # type: ignore[no-any-return]

    def images(self, state: Floats) -> Array:
        """Render states: uint8, shape (worlds, cameras, height, width, 3), RGB."""
        return self._run(len(state), "rendering", lambda batch: batch.images(state))  # type: ignore[no-any-return]

    def _run(self, worlds: int, what: str, call: Any) -> Any:
        batch = self._batch(worlds)
        try:
            with self._wp.ScopedDevice(self._device):
                return call(batch)
        except SimulatorError:
            raise
        except Exception as error:
            raise self._described(error, what) from error

    def _described(self, error: Exception, what: str) -> SimulatorError:
        if isinstance(error, SimulatorError):
            return error
        text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        if "alloc" in text.lower() or "out of memory" in text.lower():
            return SimulatorDeviceError(
                f"{what} of mujoco_warp do not fit into the memory of {self._device} ({text})",
                hint="use fewer environments, smaller images or fewer objects, or let the policy take less",
            )
        return SimulatorError(f"mujoco_warp fails on {self._device} with {what} ({text})")


class _Batch:
    """Buffers and graphs of one batch size. The current device is the engine's."""

    def __init__(self, engine: Engine, worlds: int) -> None:
        wp, mjw, model = engine._wp, engine._mjw, engine._model
        self._wp, self._mjw, self._model = wp, mjw, model
        self._m, self._worlds = engine._on_device, worlds
        contacts, rows = engine._room
        self._data = mjw.make_data(model, nworld=worlds, nconmax=contacts, njmax=rows)
        self._control = wp.zeros((engine._chunk_steps, worlds, CONTROLS), dtype=float)
        self._sensors = wp.zeros((engine._chunk_steps, worlds, model.nsensordata), dtype=float)
        inner = max(k for k in range(1, _LONGEST_GRAPH + 1) if engine._substeps % k == 0)
        self._launches = engine._substeps // inner
        for _ in range(3):  # kernels are loaded at their first launch; those of contacts need one
            mjw.step(self._m, self._data)
        self._steps = self._captured(lambda: [mjw.step(self._m, self._data) for _ in range(inner)])
        if engine._cameras:
            self._prepare_images(engine)

    def _captured(self, work: Any) -> Any:
        with self._wp.ScopedCapture() as capture:
            work()
        return capture.graph

    def move(self, state: Floats, control: Floats) -> tuple[Floats, Floats]:
        wp, data = self._wp, self._data
        self._put(state)
        data.overflow.zero_()
        self._control.assign(np.ascontiguousarray(control.transpose(1, 0, 2), dtype=np.float32))
        for k in range(len(control[0])):
            wp.copy(data.ctrl, self._control[k])
            for _ in range(self._launches):
                wp.capture_launch(self._steps)
            wp.copy(self._sensors[k], data.sensordata)
        after = np.concatenate([data.qpos.numpy(), data.qvel.numpy(), data.qacc_warmstart.numpy()], axis=1)
        self._check(data.overflow.numpy(), after)
        return after, self._sensors.numpy().transpose(1, 0, 2)

    def _put(self, state: Floats) -> None:
        nq, nv = self._model.nq, self._model.nv
        for name, part in zip(
            ("qpos", "qvel", "qacc_warmstart"), np.split(state, [nq, nq + nv], axis=1), strict=True
        ):
            getattr(self._data, name).assign(np.ascontiguousarray(part, dtype=np.float32))

    def _check(self, overflow: Array, after: Floats) -> None:
        kinds = self._mjw.OverflowType
        full = kinds.NEFC | kinds.BROADPHASE | kinds.NARROWPHASE | kinds.CCD
        found = int(np.bitwise_or.reduce(overflow))
        if found & int(full):
            names = ", ".join(k.name for k in kinds if k.name != "ALL" and found & int(k))
            raise SimulatorError(
                f"more contacts than there is room for ({names}): physics would be wrong",
                hint="use fewer objects",
            )
        if not np.isfinite(after).all():
            raise SimulatorError(
                "physics became unstable (a state is not finite)",
                hint="use more substeps: a shorter time step",
            )

    # images ------------------------------------------------------------------------------------------------

    def _prepare_images(self, engine: Engine) -> None:
        wp = self._wp
        from rlprof.workloads.embodied.simulators.mujoco_warp_kernels import unpack_rgb

        size = engine._image
        self._shape = (self._worlds, engine._cameras, size, size, 3)
        pixels = engine._cameras * size * size
        context = self._mjw.create_render_context(
            self._model,
            nworld=self._worlds,
            cam_res=(size, size),
            render_rgb=True,
            render_depth=False,
            render_seg=False,
            use_textures=False,
            enable_specular=False,
            cam_active=list(CAMERAS[: engine._cameras]),
        )
        self._bytes = wp.zeros((self._worlds, pixels, 3), dtype=wp.uint8)
        # page-locked: copies from the device run at full speed
        self._host = wp.empty(self._bytes.shape, dtype=wp.uint8, device="cpu", pinned=wp.get_device().is_cuda)

        def draw() -> None:
            self._mjw.kinematics(self._m, self._data)
            self._mjw.camlight(self._m, self._data)
            self._mjw.refit_bvh(self._m, self._data, context)
            self._mjw.render(self._m, self._data, context)
            wp.launch(unpack_rgb, dim=(self._worlds, pixels), inputs=[context.rgb_data, self._bytes])

        draw()
        self._context = context  # the graph uses its buffers
        self._draw = self._captured(draw)

    def images(self, state: Floats) -> Array:
        wp = self._wp
        self._data.qpos.assign(np.ascontiguousarray(state[:, : self._model.nq], dtype=np.float32))
        wp.capture_launch(self._draw)
        wp.copy(self._host, self._bytes)
        wp.synchronize_stream()
        found: Array = self._host.numpy().reshape(self._shape)
        return found.copy()  # the buffer is used again


def load() -> tuple[Any, Any]:
    """Import warp and mujoco_warp; what is missing is an error that names all that belongs together."""
    why = "the simulator mujoco_warp"
    try:
        warp = need("warp", why=why)
        warp.config.cuda_output = "cubin"  # machine code at once, so that a cache made elsewhere is found
        warp.config.log_level = warp.LOG_ERROR  # what it prints would be in the middle of a person's output
        return warp, need("mujoco_warp", why=why)
    except MissingPackageError as error:
        raise MissingPackageError(
            error.what,
            hint="make an environment with tools/setup_warp.sh and name its Python:"
            f" RLPROF_WARP_PYTHON=VENV/bin/python; or pip install {_PACKAGES}",
        ) from error
    except AttributeError as error:  # an older MuJoCo was found first
        raise MissingPackageError(
            f"mujoco_warp does not load ({error}): MuJoCo is another version than it wants",
            hint=f"keep MuJoCo of other simulators out of PYTHONPATH, and: pip install {_PACKAGES}",
        ) from error
