"""Window-guided optimisation (Rose, Algorithm 1): find what may overlap, try it, keep what is faster."""

from __future__ import annotations

from rlprof.overlap.optimize.algorithm import optimize
from rlprof.overlap.optimize.options import Options
from rlprof.overlap.optimize.outcome import Optimization, Round
from rlprof.overlap.optimize.steps import Step, apply, derive
from rlprof.overlap.optimize.workload import Measurement, Profile, Workload

__all__ = [
    "Measurement",
    "Optimization",
    "Options",
    "Profile",
    "Round",
    "Step",
    "Workload",
    "apply",
    "derive",
    "optimize",
]
