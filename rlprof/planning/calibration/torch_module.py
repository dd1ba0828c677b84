"""PyTorch, imported on first use. It is only partly typed: values of it are `Any` here."""

from __future__ import annotations

from importlib import import_module
from typing import Any, TypeAlias

from rlprof.planning.calibration.errors import CalibrationError

Tensor: TypeAlias = Any


def torch_module(part: str = "") -> Any:
    """Import PyTorch, or a part of it such as ``nn.functional``.

    Raises
    ------
    CalibrationError
        If it is not installed.
    """
    try:
        return import_module(f"torch.{part}" if part else "torch")
    except ImportError as error:
        raise CalibrationError(
            f"measuring needs PyTorch ({error})", hint="pip install torch; fits of raw measurements do not"
        ) from error
