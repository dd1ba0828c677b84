"""From raw measurements to a hardware file: what was measured is called calibrated, and nothing else is."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rlprof.planning.calibration.errors import CalibrationError
from rlprof.planning.calibration.estimate import (
    Estimate,
    Residual,
    interval,
    need_scipy,
    resampled,
    typical_error_frac,
)
from rlprof.planning.calibration.fit_compute import (
    BESIDE,
    LEAST_STEPS,
    Bandwidth,
    Formulas,
    fit_compute,
    fit_copies,
)
from rlprof.planning.calibration.fit_links import LinkFit, fit_link
from rlprof.planning.calibration.observation import Observation, alone, observe, split_of
from rlprof.planning.calibration.predict import predicted_time
from rlprof.planning.calibration.raw import Machine, Raw
from rlprof.planning.calibration.sweeps import COLLECTIVES, FITTED, LAUNCHED, REPLAYED, VALIDATED
from rlprof.planning.cluster import (
    EXTRA_UNITS,
    LINK_KINDS,
    LINK_UNITS,
    TIERS,
    UNITS,
    Constant,
    Hardware,
    unit_of,
)
from rlprof.planning.shapes import ModelShape

#: Share of memory that is left to the runtime where nobody says otherwise (specification B, section 5).
RESERVED_FRAC = 0.10
#: Wider intervals than this, relative to the value, are pointed out.
WIDE_FRAC = 0.25


@dataclass(frozen=True)
class Calibration:
    """A hardware file and what is behind it.

    Parameters
    ----------
    hardware : Hardware
        Every constant with its status.
    estimates : dict of str to Estimate
        By constant: those that were measured.
    residuals : tuple of Residual
        Measured beside fitted.
    notes : tuple of str
        What could not be measured, and what is uncertain.
    by_collective : dict of str to LinkFit
        Of each collective alone, as ``all_reduce.intra_node``: the hardware file has one pair for all of
        them, and this tells how far they differ.
    """

    hardware: Hardware
    estimates: Mapping[str, Estimate]
    residuals: tuple[Residual, ...]
    notes: tuple[str, ...]
    by_collective: Mapping[str, LinkFit] = field(default_factory=dict)


def calibrate(
    raw: Raw,
    *,
    name: str,
    base: Hardware | None = None,
    gpus_per_node: int | None = None,
    bandwidth: Bandwidth = "copies",
    formulas: Formulas = "printed",
    operators: bool = False,
    draws: int = 60,
    seed: int = 0,
) -> Calibration:
    """Fit every constant that the measurements determine.

    Parameters
    ----------
    raw : Raw
        Measurements.
    name : str
        Of the hardware.
    base : Hardware, optional
        Where constants come from that were not measured. Those that were calibrated on another GPU become
        nominal.
    gpus_per_node : int, optional
        Most GPUs of a node; by default the base's, or as many as were measured.
    bandwidth : {"copies", "everything"}
        Where BW_mem comes from; see `rlprof.planning.calibration.fit_compute`.
    formulas : {"printed", "extended"}
        Whether constants that the printed formulas do not have are fitted too.
    operators : bool
        Fit F_peak, the gammas (and BW_mem, unless it is that of copies) also to the whole operators of the
        half that is not held out.
    draws, seed : int
        Fits behind the intervals, and the seed of their draws.

    Raises
    ------
    CalibrationError
        If a constant that every hardware file needs was neither measured nor is in the base; says why. If
        scipy is not installed.
    """
    need_scipy()
    made = _Making(raw.machine)
    seen = [o for o in observe(raw, *VALIDATED) if operators and split_of(o) == "fit"]
    half = [o for o in seen if alone(o)]
    beside = ("optimizer", "nongemm", *LAUNCHED) if formulas == "extended" else ()
    made.compute([*observe(raw, *FITTED, *beside), *half], bandwidth, formulas, draws, seed)
    made.nongemm(observe(raw, "nongemm"), observe(raw, "norms"), formulas, draws, seed)
    for kind, kinds in (("collective", COLLECTIVES), ("p2p", ("p2p",))):
        made.links(kind, observe(raw, *kinds), draws, seed)
    if formulas == "extended":
        made.replayed(observe(raw, REPLAYED), draws, seed)
    made.given(
        "memory_bytes", float(raw.machine.memory_bytes), "as the driver or operating system reports it"
    )
    if base is None or "reserved_frac" not in base.constants:
        made.given("reserved_frac", RESERVED_FRAC, "RPEG, section 5: share of memory left to the runtime")
    fitted = made.finish(name, base, gpus_per_node)
    together = [o for o in seen if not alone(o)]
    if formulas == "extended" and together and "graph_alpha_frac" not in fitted.estimates:
        return _with_replayed(fitted, together, raw.machine)
    return fitted


def _with_replayed(fitted: Calibration, together: Sequence[Observation], machine: Machine) -> Calibration:
    """Add the latency of collectives in replayed graphs, from decode steps of several devices.

    It is what their steps take longer than predicted without any latency.
    """
    name, found = "graph_alpha_frac", []
    for o in together:
        none, whole = (
            predicted_time(o, fitted.hardware.with_value(name, frac, "trial"), machine.scalar_bytes).decode_s
            for frac in (0.0, 1.0)
        )
        found.append(max(0.0, (o.parts_s["decode_s"] - none) / (whole - none)))
    made = _Making(machine)
    value, samples = float(np.median(found)), sum(o.samples for o in together)
    estimate = Estimate(value, min(found), max(found), samples, len(found))
    source = "decode steps of several devices, of the half that is not held out"
    made.measured(name, estimate, f"rlprof calibrate: {source}", max(o.date for o in together))
    constants = {**fitted.hardware.constants, **made.constants}
    return replace(
        fitted,
        hardware=replace(fitted.hardware, constants=constants),
        estimates={**fitted.estimates, **made.estimates},
        notes=(*fitted.notes, *made.notes),
    )


def replicated_frac(shape: ModelShape) -> float:
    """Share of the bytes of norms, residuals, rotation and gate that tensor ranks do not divide.

    Norms read and write d numbers, residuals read two and write one; rotation takes three kernels over
    queries and keys (8 numbers moved for each), the gate two over the FFN (5).
    """
    whole = 2 * 2 * shape.hidden + 2 * 3 * shape.hidden
    return whole / (whole + 8 * (shape.query_dim + shape.kv_dim) + 5 * shape.ffn_hidden)


def with_estimates(
    base: Hardware, estimates: Mapping[str, Estimate], *, name: str, gpu: str, date: str, source: str
) -> Hardware:
    """Return hardware with some constants replaced by measured ones; the others as in `calibrate`."""
    made = _Making(Machine("cuda", gpu, 1, 1, "", 1))
    for constant, estimate in estimates.items():
        made.measured(constant, estimate, source, date)
    return made.finish(name, base, None).hardware


class _Making:
    """Constants, as they come."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.constants: dict[str, Constant] = {}
        self.estimates: dict[str, Estimate] = {}
        self.residuals: list[Residual] = []
        self.reasons: dict[str, str] = {}
        self.notes: list[str] = []
        self.by_collective: dict[str, LinkFit] = {}
        self.most_devices = machine.count

    def measured(self, name: str, estimate: Estimate, source: str, date: str) -> None:
        """A constant that was fitted."""
        if not date or estimate.samples < 1:
            raise CalibrationError(f"{name} has no date or no samples: it was not measured")
        self.estimates[name] = estimate
        self.constants[name] = Constant(
            _rounded(estimate.value), unit_of(name) or "", "calibrated", source, estimate.samples, date[:10],
            self.machine.name, float(f"{min(estimate.error_frac, 1e6):.3g}"),
        )  # fmt: skip
        if estimate.error_frac > WIDE_FRAC:
            self.notes.append(
                f"{name} is uncertain: {estimate.value:.3g} {unit_of(name)}, 95 % within"
                f" {estimate.low:.3g} to {estimate.high:.3g}"
            )

    def given(self, name: str, value: float, source: str) -> None:
        """A constant that is known without a measurement."""
        self.constants[name] = Constant(value, unit_of(name) or "", source=source)

    def compute(
        self, observed: Sequence[Observation], bandwidth: Bandwidth, formulas: Formulas, draws: int, seed: int
    ) -> None:
        """F_peak, BW_mem and gammas; BW_mem alone where only copies were measured."""
        date = max((o.date for o in observed), default="")
        try:
            fit = fit_compute(
                observed,
                self.machine.scalar_bytes,
                bandwidth=bandwidth,
                formulas=formulas,
                draws=draws,
                seed=seed,
            )
        except CalibrationError as error:
            self.reasons |= dict.fromkeys(("peak_flops", "gamma_m", "gamma_k"), error.what)
            copies = [o for o in observed if o.kind == "copy"]
            if copies:
                self.measured("memory_bandwidth", fit_copies(copies), "rlprof calibrate: copies", date)
            else:
                self.reasons["memory_bandwidth"] = "no copy was measured"
            return
        self.residuals += fit.residuals
        known = (*(k for k in FITTED if k != "copy"), "nongemm", *LAUNCHED, *VALIDATED)
        of = {kind: [r for r in fit.residuals if r.kind == kind] for kind in known}
        typical = {kind: typical_error_frac(there) for kind, there in of.items() if there}
        errors = ", ".join(f"{kind.replace('_', ' ')} {error:.1%}" for kind, error in typical.items())
        whole = " and whole operators" if typical.keys() & set(VALIDATED) else ""
        together = "products, transformer passes and decode steps together"
        everything = together if formulas == "extended" else "copies, products and decode steps together"
        where = {"copies": "large copies", "everything": everything}
        sources = {
            "peak_flops": f"transformer passes{whole}, eta divided out (typical residuals: {errors})",
            "gamma_m": "products and transformer passes, through min(F_peak eta, I BW_mem)",
            "gamma_k": "products and transformer passes, through min(F_peak eta, I BW_mem)",
            "memory_bandwidth": where[fit.bandwidth],
        }
        for name, source in sources.items():
            self.measured(name, getattr(fit, name), f"rlprof calibrate: {source}", date)
        for name, estimate in fit.extras.items():
            source = "updates of an optimizer" if name == "optimizer_bytes" else together
            self.measured(name, estimate, f"rlprof calibrate: {source}", date)
        if fit.bandwidth != bandwidth:
            self.notes.append(
                "memory_bandwidth is that of copies: no pass that was measured is bound by memory"
            )
        if formulas == "extended":
            self.given("head_reads_frac", 1.0, "the head's weights are read in each pass")
            if not BESIDE & fit.extras.keys():
                self.notes.append(
                    f"{', '.join(sorted(BESIDE))} are left out: they need decode steps of {LEAST_STEPS} sizes"
                )
            if "training_launch_s" not in fit.extras and self.machine.device == "cuda":
                self.notes.append("training_launch_s is left out: it needs whole operators (--fit-operators)")

    def nongemm(
        self,
        observed: Sequence[Observation],
        norms: Sequence[Observation],
        formulas: Formulas,
        draws: int,
        seed: int,
    ) -> None:
        """c_ng: the time at the size that was measured first, which becomes B_cal and l_cal.

        With extended formulas of what tensor ranks do not divide alone, norms and residuals, since the rest
        is in `elementwise_vectors`; where these were not measured alone, their share by bytes.
        """
        if not observed:
            names = ("nongemm_s", "nongemm_sequences", "nongemm_tokens")
            self.reasons |= dict.fromkeys(names, "norms and activations were not measured")
            return
        o = observed[0]
        what = "two norms, rotation, gate and residuals"
        if formulas == "extended" and norms:
            observed, what = norms, "two norms and residuals, which tensor ranks do not divide,"
        elif formulas == "extended":
            part = replicated_frac(o.shape)
            observed = [replace(x, seconds=part * x.seconds) for x in observed]
            what = f"{part:.3f}, the share by bytes of norms and residuals, of {what}"
        o = observed[0]
        spread = o.spread_frac * o.seconds
        per_token = np.array([x.seconds / x.key["sequences"] / x.key["tokens"] for x in observed])
        size = o.key["sequences"] * o.key["tokens"]
        drawn = resampled(len(observed), lambda at: np.array([np.median(per_token[at]) * size]), draws, seed)[
            :, 0
        ]
        low, high = o.seconds - spread, o.seconds + spread
        source = f"rlprof calibrate: {what} of a layer of {o.shape.name}"
        self.measured("nongemm_s", Estimate(o.seconds, low, high, o.samples, 1), source, o.date)
        across = interval(drawn, o.seconds)
        if across[1] > 2 * o.seconds or across[0] < o.seconds / 2:
            self.notes.append(
                f"norms and activations do not grow in proportion to tokens: {across[0]:.3g} to"
                f" {across[1]:.3g} s at B_cal by other sizes, {o.seconds:.3g} s measured there"
            )
        for name, value in (("nongemm_sequences", o.key["sequences"]), ("nongemm_tokens", o.key["tokens"])):
            self.constants[name] = Constant(
                float(value), unit_of(name) or "", "calibrated", "size at which nongemm_s was measured",
                o.samples,
                o.date[:10], self.machine.name, 0.0,
            )  # fmt: skip

    def replayed(self, observed: Sequence[Observation], draws: int, seed: int) -> None:
        """Latency of collectives within replayed graphs, over that of launched ones."""
        launched = self.estimates.get("collective.intra_node.alpha_s")
        if not observed or launched is None or not launched.value:
            return
        with contextlib.suppress(CalibrationError):
            alpha = fit_link(observed, draws=draws, seed=seed).alpha_s
            low, value, high = (x / launched.value for x in (alpha.low, alpha.value, alpha.high))
            self.measured(
                "graph_alpha_frac",
                Estimate(value, low, high, alpha.samples, alpha.points),
                "rlprof calibrate: all-reduces in a replayed graph, over collective.intra_node.alpha_s",
                max(o.date for o in observed),
            )

    def links(self, kind: str, observed: Sequence[Observation], draws: int, seed: int) -> None:
        """Alpha and bandwidth of each tier that was spanned."""
        for tier in TIERS:
            there = [o for o in observed if o.key["tier"] == tier]
            names = [f"{kind}.{tier}.{what}" for what in LINK_UNITS]
            if not there:
                self.reasons |= dict.fromkeys(names, "no group of GPUs spanned this tier")
                continue
            try:
                fit = fit_link(there, draws=draws, seed=seed)
            except CalibrationError as error:
                self.reasons |= dict.fromkeys(names, error.what)
                continue
            self.residuals += fit.residuals
            if kind == "collective":
                for one in dict.fromkeys(o.kind for o in there):
                    alone = [o for o in there if o.kind == one]
                    with contextlib.suppress(CalibrationError):
                        self.by_collective[f"{one}.{tier}"] = fit_link(alone, draws=draws, seed=seed)
            date, ranks = max(o.date for o in there), sorted({int(o.key["ranks"]) for o in there})
            if tier == "intra_node":  # the file may have been begun on a machine of fewer
                self.most_devices = max(self.most_devices, *ranks)
            over = f"{self.machine.backend or 'collectives'} over {' and '.join(map(str, ranks))} devices"
            source = f"rlprof calibrate: {over}, typical residual {typical_error_frac(fit.residuals):.1%}"
            self.measured(names[0], fit.alpha_s, source, date)
            self.measured(names[1], fit.bandwidth, source, date)

    def finish(self, name: str, base: Hardware | None, gpus_per_node: int | None) -> Calibration:
        """Add what the base has, and refuse what nobody has."""
        taken = dict(self.constants)
        # extras belong to the rates that they were fitted with
        own = set(EXTRA_UNITS) if "peak_flops" in taken else set()
        for key, constant in (base.constants if base else {}).items():
            if key not in taken and key not in own:
                taken[key] = _taken_over(constant, base, self.machine.name)
                if reason := self.reasons.get(key):
                    self.notes.append(
                        f"{key} is {taken[key].status}, of {base.name if base else ''}: {reason}"
                    )
        missing = [key for key in UNITS if key not in taken]
        if missing:
            why = "; ".join(f"{key}: {self.reasons.get(key, 'not measured')}" for key in missing)
            raise CalibrationError(
                f"constants that every hardware file needs were not measured ({why})",
                hint="measure all parts, or name a hardware file to take them from with --base",
            )
        for kind in LINK_KINDS:
            for tier in TIERS:
                if f"{kind}.{tier}.bandwidth" not in taken:
                    self.notes.append(
                        f"{kind}.{tier} is left out: {self.reasons.get(f'{kind}.{tier}.bandwidth', '')}"
                    )
        order = [
            *UNITS,
            *EXTRA_UNITS,
            *(f"{k}.{t}.{w}" for k in LINK_KINDS for t in TIERS for w in LINK_UNITS),
        ]
        most = gpus_per_node or max(base.gpus_per_node if base else 1, self.most_devices)
        hardware = Hardware(name, self.machine.name, most, {key: taken[key] for key in order if key in taken})
        return Calibration(
            hardware, self.estimates, tuple(self.residuals), tuple(self.notes), self.by_collective
        )


def _taken_over(constant: Constant, base: Hardware | None, gpu: str) -> Constant:
    """A constant of another file: calibrated only if it was, on the same GPU."""
    of = base.name if base else ""
    if constant.status == "calibrated" and constant.gpu != gpu:
        source = f"of {of}, calibrated on {constant.gpu}, not on {gpu}: {constant.source}"
        return replace(constant, status="nominal", source=source, samples=0, date="", gpu="", error_frac=None)
    return replace(constant, source=re.sub(r"^(?!of )", f"of {of}: ", constant.source))


def _rounded(value: float) -> float:
    """Six digits: more than any measurement has."""
    return float(f"{value:.6g}")
