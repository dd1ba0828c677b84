"""Modes of torch that belong to a thread: gradients, inference, autocast.

``with torch.no_grad():`` around calls is part of what the program does, and holds in the thread that says it;
calls of a graph run in others.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

_DEVICES = ("cpu", "cuda")


class TorchModes(NamedTuple):
    """Modes of one thread.

    Parameters
    ----------
    grad : bool
        Gradients are recorded.
    inference : bool
        Inference mode.
    autocast : tuple of (str, str)
        Kind of device and type, where autocast is on.
    autocast_cache : bool
        Casts of weights are kept while autocast is on.
    """

    grad: bool
    inference: bool
    autocast: tuple[tuple[str, str], ...] = ()
    autocast_cache: bool = True


#: Modes of most calls, by `grad` and `inference`: made once, since every recorded call asks.
_WITHOUT_AUTOCAST = {(g, i): TorchModes(g, i) for g in (False, True) for i in (False, True)}


def current_modes() -> TorchModes | None:
    """Return the modes of this thread; None if the program has not imported torch."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "is_inference_mode_enabled"):  # it may be importing
        return None
    is_on = torch.is_autocast_enabled
    modes = _WITHOUT_AUTOCAST[torch.is_grad_enabled(), torch.is_inference_mode_enabled()]
    if not is_on("cpu") and not is_on("cuda"):
        return modes
    on = tuple((d, str(torch.get_autocast_dtype(d))) for d in _DEVICES if is_on(d))
    return TorchModes(modes.grad, modes.inference, on, torch.is_autocast_cache_enabled())


@contextmanager
def in_modes(modes: TorchModes | None) -> Iterator[None]:
    """Run a block in these modes; None: as it is."""
    if modes is None or modes == current_modes():
        yield
        return
    import torch

    wanted = dict(modes.autocast)
    with ExitStack() as stack:
        if modes.inference != torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(modes.inference))
        stack.enter_context(torch.set_grad_enabled(modes.grad))
        for device in _DEVICES:
            dtype = wanted.get(device)
            if dtype is not None:
                kind = getattr(torch, dtype.removeprefix("torch."))
                cast = torch.autocast(device, dtype=kind, cache_enabled=modes.autocast_cache)
                stack.enter_context(cast)
            elif torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield
