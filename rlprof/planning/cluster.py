"""The machines: racks of nodes of GPUs, and the constants that the cost model needs of them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, get_args

from rlprof.planning.errors import HardwareError, TopologyError
from rlprof.planning.limits import MOST_GPUS, is_count

Status = Literal["nominal", "calibrated"]
STATUSES: tuple[str, ...] = get_args(Status)
#: Levels of the network that a group of GPUs spans: one node, nodes of one rack, racks.
Tier = Literal["intra_node", "inter_node", "inter_rack"]
TIERS: tuple[Tier, ...] = get_args(Tier)

#: Constants that every hardware file holds, and their units.
UNITS: dict[str, str] = {
    "peak_flops": "FLOP/s",  # F_peak: of a large transformer forward, not the data sheet's
    "memory_bandwidth": "byte/s",  # BW_mem
    "memory_bytes": "byte",  # M_GPU
    "reserved_frac": "1",  # eps_rt: memory of the runtime
    "gamma_m": "row",  # GEMM rows at which half the peak is reached
    "gamma_k": "column",  # the same for the narrower of d / P_t and d_ff / P_t
    "nongemm_s": "s",  # c_ng: of one layer and pass, at the two sizes below
    "nongemm_sequences": "sequence",  # B_cal
    "nongemm_tokens": "token",  # l_cal
}
#: What real machines need beyond the printed formulas: units, and values that leave the formulas as printed.
#: A hardware file may hold any of them.
EXTRA_UNITS: dict[str, tuple[str, float]] = {
    "layer_s": ("s", 0.0),  # fixed time of the kernels of one layer, in each pass and decode step
    "elementwise_vectors": ("1", 0.0),  # hidden vectors moved beside products, by each token in each layer
    "logits_moves": ("1", 0.0),  # times that each logit is moved beside the head's product
    "head_reads_frac": ("1", 0.0),  # share of the head's weights that counts as read in each pass
    "kv_reads_factor": ("1", 1.0),  # bytes moved by attention in decode steps, over those of the KV cache
    "launch_s": ("s", 0.0),  # time in which the host launches one layer of a forward pass: a floor
    "training_launch_s": ("s", 0.0),  # the same of forward, recomputation and backward
    "graph_alpha_frac": ("1", 1.0),  # latency of collectives in replayed decode steps, over alpha
    "optimizer_bytes": ("byte", 18.0),  # moved by the optimizer for each parameter
}
#: Constants of each tier of the network that a hardware file knows: "collective.intra_node.alpha_s", ...
LINK_UNITS: dict[str, str] = {"alpha_s": "s", "bandwidth": "byte/s"}
LINK_KINDS: tuple[str, ...] = ("collective", "p2p")
_MAY_BE_ZERO = ("reserved_frac", "gamma_m", "gamma_k", "nongemm_s", "alpha_s", *EXTRA_UNITS)


@dataclass(frozen=True, slots=True)
class Constant:
    """One number of a hardware file.

    Parameters
    ----------
    value : float
        In `unit`.
    unit : str
        One of `UNITS` or `LINK_UNITS`.
    status : {"nominal", "calibrated"}
        Taken from a data sheet or an assumption, or measured on the GPUs themselves.
    source : str
        Where it comes from.
    samples : int
        Measurements behind it; 0 for a nominal one.
    date, gpu : str
        When (ISO 8601) and on which GPU it was measured; empty for a nominal one.
    error_frac : float or None
        Half the width of its 95 % confidence interval over its value, if known.
    """

    value: float
    unit: str
    status: Status = "nominal"
    source: str = ""
    samples: int = 0
    date: str = ""
    gpu: str = ""
    error_frac: float | None = None


@dataclass(frozen=True, slots=True)
class LinkRate:
    """Latency and inverse bandwidth of one tier: alpha in seconds, beta in seconds per byte."""

    alpha_s: float
    beta_s: float


@dataclass(frozen=True)
class Hardware:
    """A kind of GPU and its network.

    Parameters
    ----------
    name : str
        Short, as used on the command line.
    gpu : str
        Full name of the GPU.
    gpus_per_node : int
        Most GPUs of a node, N_g.
    constants : dict of str to Constant
        By the names of `UNITS`, and ``kind.tier.alpha_s`` and ``kind.tier.bandwidth`` for the tiers known;
        of `EXTRA_UNITS` those that are not neutral.

    Raises
    ------
    HardwareError
        If a constant is missing, unknown, of a wrong unit or out of range, or is called calibrated without
        a sample count, a date and a GPU.
    """

    name: str
    gpu: str
    gpus_per_node: int
    constants: dict[str, Constant] = field(hash=False)

    def __post_init__(self) -> None:
        _check(self)

    def value(self, name: str) -> float:
        """Return the value of a constant, in its unit; of `EXTRA_UNITS` the neutral one if there is none.

        Raises
        ------
        HardwareError
            If there is none of this name.
        """
        if name not in self.constants:
            if name in EXTRA_UNITS:
                return EXTRA_UNITS[name][1]
            raise HardwareError(
                f"hardware {self.name!r} has no constant {name!r}",
                hint="calibrate it on a cluster that has this tier, or add it to the hardware file",
            )
        return self.constants[name].value

    def link(self, kind: Literal["collective", "p2p"], tier: Tier) -> LinkRate:
        """Return alpha and beta of collectives or of point-to-point transfers; errors as `value`."""
        return LinkRate(self.value(f"{kind}.{tier}.alpha_s"), 1.0 / self.value(f"{kind}.{tier}.bandwidth"))

    def with_value(self, name: str, value: float, source: str) -> Hardware:
        """Return the same hardware with one constant replaced by a nominal one, for what-if questions.

        Raises
        ------
        HardwareError
            If there is no such constant, or the value cannot be.
        """
        constant = Constant(value, unit_of(name) or "", source=source)
        return replace(self, constants={**self.constants, name: constant})

    @cached_property
    def nominal(self) -> tuple[str, ...]:
        """Names of the constants that were not measured."""
        return tuple(name for name, c in self.constants.items() if c.status == "nominal")


def unit_of(name: str) -> str | None:
    """Return the unit of a constant; None if there is no such constant."""
    if name in UNITS:
        return UNITS[name]
    if name in EXTRA_UNITS:
        return EXTRA_UNITS[name][0]
    kind, _, rest = name.partition(".")
    tier, _, what = rest.partition(".")
    return LINK_UNITS.get(what) if kind in LINK_KINDS and tier in TIERS else None


def _check(hardware: Hardware) -> None:
    where = f"hardware {hardware.name!r}"
    if not isinstance(hardware.gpus_per_node, int) or hardware.gpus_per_node < 1:
        raise HardwareError(f"{where}: gpus_per_node is {hardware.gpus_per_node!r}", hint="give at least 1")
    for name, constant in hardware.constants.items():
        _check_constant(name, constant, where)
    needed = [*UNITS]
    for kind in LINK_KINDS:
        tiers = {t for t in TIERS if any(f"{kind}.{t}.{what}" in hardware.constants for what in LINK_UNITS)}
        needed += [f"{kind}.{t}.{what}" for t in TIERS if t in tiers for what in LINK_UNITS]
    missing = [name for name in needed if name not in hardware.constants]
    if missing:
        raise HardwareError(
            f"{where} lacks {', '.join(missing)}", hint="add it, with value, unit, status and source"
        )
    if hardware.constants["reserved_frac"].value >= 1:
        raise HardwareError(f"{where}: reserved_frac leaves no memory", hint="give a fraction below 1")


def _check_constant(name: str, constant: Constant, where: str) -> None:
    unit = unit_of(name)
    if unit is None:
        raise HardwareError(
            f"{where}: unknown constant {name!r}",
            hint=f"known are {', '.join((*UNITS, *EXTRA_UNITS))}, and kind.tier.alpha_s and .bandwidth",
        )
    if constant.unit != unit:
        raise HardwareError(f"{where}: {name} is in {constant.unit!r}", hint=f"give it in {unit!r}")
    if isinstance(constant.value, bool) or not isinstance(constant.value, int | float):
        raise HardwareError(f"{where}: {name} is {constant.value!r}, no number")
    zero = name.rpartition(".")[2] in _MAY_BE_ZERO
    # smaller ones than any machine's make times that are no numbers
    too_small = constant.value < _SMALLEST and not (zero and constant.value == 0)
    if not math.isfinite(constant.value) or too_small:
        raise HardwareError(
            f"{where}: {name} is {constant.value!r}",
            hint=f"give a finite number of at least {'0 or ' if zero else ''}{_SMALLEST:g}",
        )
    if constant.status not in STATUSES:
        raise HardwareError(
            f"{where}: {name} has the status {constant.status!r}", hint=f"use {' or '.join(STATUSES)}"
        )
    if not constant.source:
        raise HardwareError(
            f"{where}: {name} has no source", hint="say where it comes from: a data sheet, a run"
        )
    if constant.status == "calibrated" and not (constant.samples > 0 and constant.date and constant.gpu):
        raise HardwareError(
            f"{where}: {name} is called calibrated without samples, date and gpu",
            hint="add how many measurements, when and on which GPU, or call it nominal",
        )


_SMALLEST = 1e-30
_NOTATION = re.compile(r"^(?P<name>.+?):(?P<r>-?\d+)x(?P<n>-?\d+)x(?P<g>-?\d+)$", re.ASCII)


@dataclass(frozen=True)
class Cluster:
    """The device space D = [N_r] x [N_n] x [N_g] of one kind of hardware.

    GPUs are numbered rack by rack, node by node.

    Parameters
    ----------
    hardware : Hardware
        Constants.
    racks, nodes_per_rack, gpus_per_node : int
        N_r, N_n, N_g.

    Raises
    ------
    TopologyError
        If a count is below 1, there are more GPUs than planning takes, or a node has more than the hardware
        knows.
    HardwareError
        If the hardware has no constants for a tier that the cluster has.
    """

    hardware: Hardware
    racks: int
    nodes_per_rack: int
    gpus_per_node: int

    def __post_init__(self) -> None:
        for name in ("racks", "nodes_per_rack", "gpus_per_node"):
            value = getattr(self, name)
            if not is_count(value):
                raise TopologyError(
                    f"cluster {self}: {name} is {value!r}", hint="give racks x nodes x GPUs, each at least 1"
                )
        if self.size > MOST_GPUS:
            raise TopologyError(
                f"cluster {self}: {self.size:,} GPUs", hint=f"plan for at most {MOST_GPUS:,} GPUs"
            )
        if self.gpus_per_node > self.hardware.gpus_per_node:
            raise TopologyError(
                f"cluster {self}: a node of {self.hardware.name} has at most"
                f" {self.hardware.gpus_per_node} GPUs, not {self.gpus_per_node}",
                hint="use more nodes, or another hardware file",
            )
        for tier, there in zip(
            TIERS, (self.gpus_per_node > 1, self.nodes_per_rack > 1, self.racks > 1), strict=True
        ):
            for kind in LINK_KINDS if there else ():
                self.hardware.value(f"{kind}.{tier}.bandwidth")

    def __str__(self) -> str:
        return f"{self.hardware.name}:{self.racks}x{self.nodes_per_rack}x{self.gpus_per_node}"

    @property
    def size(self) -> int:
        """Number of GPUs."""
        return self.racks * self.nodes_per_rack * self.gpus_per_node

    @property
    def usable_bytes(self) -> float:
        """M_eff = (1 - eps_rt) M_GPU, of each GPU."""
        return (1.0 - self.hardware.value("reserved_frac")) * self.hardware.value("memory_bytes")

    def gpu_name(self, number: int) -> str:
        """Return the coordinates of a GPU, as "rack/node/GPU"."""
        node, gpu = divmod(number, self.gpus_per_node)
        rack, node = divmod(node, self.nodes_per_rack)
        return f"{rack}/{node}/{gpu}"


def parse_cluster(text: str, hardware: Hardware) -> Cluster:
    """Read the topology of ``name:RxNxG``; the hardware is given.

    Raises
    ------
    TopologyError
        If the text is something else, or the topology cannot be.
    """
    return Cluster(hardware, *split_notation(text)[1:])


def split_notation(text: str) -> tuple[str, int, int, int]:
    """Split ``name:RxNxG`` into name, racks, nodes per rack and GPUs per node.

    Raises
    ------
    TopologyError
        If the text is something else.
    """
    match = _NOTATION.match(text.strip())
    if match is None:
        raise TopologyError(
            f"{text!r} is no cluster",
            hint="write hardware:racks x nodes x GPUs, like gh200:2x8x4 or ./hw.toml:1x1x8",
        )
    return match["name"], int(match["r"]), int(match["n"]), int(match["g"])
