"""What can be wrong with a calibration."""

from __future__ import annotations

from rlprof.planning.errors import PlanningError


class CalibrationError(PlanningError):
    """Measurements that cannot be made, read, or turned into a constant; the message names which."""
