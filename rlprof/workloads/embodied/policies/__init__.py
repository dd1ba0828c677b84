"""Vision-language-action policies with random weights; `make` finds one by name."""

from __future__ import annotations

from typing import Any

from rlprof.workloads.embodied.contracts import SimulatorSpec
from rlprof.workloads.embodied.errors import ConfigurationError, DeviceError, need, no_memory
from rlprof.workloads.embodied.policies.sizes import FAMILIES, PolicySize


def make(size: PolicySize, simulator: SimulatorSpec, *, seed: int = 0, device: str = "cpu") -> Any:
    """Make a policy with random weights.

    Parameters
    ----------
    size : PolicySize
        How large.
    simulator : SimulatorSpec
        What it acts in.
    seed : int
        Of weights and noise. Weights of one seed are the same on devices of one kind that have as many SMs:
        a share of them under MPS makes others. Noise is the same everywhere.
    device : str
        Where it computes, such as ``"cuda:0"``.

    Returns
    -------
    TorchPolicy
        See `rlprof.workloads.embodied.contracts.Policy`.

    Raises
    ------
    ConfigurationError
        If there is no such family, or images do not fit.
    MissingPackageError
        If torch, or for pi0 transformers, is not installed.
    DeviceError
        If the device has no room for it.
    """
    if size.family not in FAMILIES:
        raise ConfigurationError(f"no policy is called {size.family!r}", hint=f"use {', '.join(FAMILIES)}")
    if simulator.cameras and (simulator.height != size.image or simulator.width != size.image):
        raise ConfigurationError(
            f"images of {simulator.height}x{simulator.width} pixels, and the policy sees"
            f" {size.image}x{size.image}",
            hint=f"set the simulator's image to {size.image}",
        )
    torch = need("torch", why="a policy")
    module = "flow"
    name = {"pi0": "Pi", "pi05": "Pi", "gr00t": "Gr00t", "openvla_oft": "OpenVlaOft"}[size.family]
    if size.family == "openvla_oft":
        module = "openvla_oft"
    elif size.transformers:
        module, name = "pi0_transformers", "Pi0Transformers"
    kind = getattr(need(f"rlprof.workloads.embodied.policies.{module}", why=size.family), name)
    before = torch.get_default_dtype()
    try:
        # the generator of this device alone: forking all of them would set up every GPU of the machine
        chosen = torch.device(device)
        forked = [chosen.index or 0] if chosen.type == "cuda" else []
        with torch.random.fork_rng(devices=forked), chosen:
            torch.manual_seed(seed)
            torch.set_default_dtype(getattr(torch, size.dtype))
            policy = kind(size, simulator, seed)
            policy.set_trainable()
    except (RuntimeError, MemoryError) as error:
        if not no_memory(error):
            raise
        raise DeviceError(
            f"the policy {size.family} does not fit into the memory of {device}",
            hint="use a smaller preset, or a device with more memory",
        ) from error
    finally:
        torch.set_default_dtype(before)
    return policy.eval()
