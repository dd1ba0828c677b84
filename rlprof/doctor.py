"""What a capture holds, what it lacks, what that makes unanswerable, and how to record it next time.

>>> import rlprof
>>> from rlprof.doctor import diagnose
>>> print(diagnose(rlprof.read("run.nsys-rep")).verdict)    # doctest: +SKIP
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlprof.checks import CHECKS
from rlprof.findings import Case, Finding
from rlprof.progress import Progress, silent
from rlprof.trace.trace import Trace
from rlprof.unavailable import Unavailable

__all__ = ["Diagnosis", "Finding", "diagnose"]


@dataclass(frozen=True)
class Diagnosis:
    """What a capture can answer.

    Parameters
    ----------
    summary : str
        The capture in one line.
    findings : tuple of Finding
        In the order of the questions that people ask.
    verdict : str
        In one sentence: can windows be ranked, and from what.
    command : str
        Records everything that the analyses use.
    notes : tuple of str
        What the reader missed, repaired or dropped.
    """

    summary: str
    findings: tuple[Finding, ...]
    verdict: str
    command: str
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of ``rlprof doctor --format json``."""
        return {
            "schema_version": 1,
            "summary": self.summary,
            "findings": [vars(f) for f in self.findings],
            "verdict": self.verdict,
            "command": self.command,
            "notes": list(self.notes),
        }


def diagnose(trace: Trace, *, progress: Progress = silent) -> Diagnosis:
    """Look for what makes questions unanswerable.

    Parameters
    ----------
    trace : Trace
        Any capture.
    progress : Progress
        Told the check under way.

    Returns
    -------
    Diagnosis
    """
    case = Case(trace)
    findings: list[Finding] = []
    for i, check in enumerate(CHECKS):
        progress(f"checking {check.__name__.strip('_').replace('_', ' ')}", i / len(CHECKS))
        findings += check(case)
    progress("checking", 1.0)
    return Diagnosis(_summary(trace), tuple(findings), _verdict(case), case.remedies.everything, trace.notes)


def _summary(trace: Trace) -> str:
    meta = trace.meta
    processes, gpus = trace.table("processes").height, trace.table("devices").height
    held = f"{processes} process{'es' if processes != 1 else ''}, {gpus} GPU{'s' if gpus != 1 else ''}"
    written = f", written by {meta.product}" if meta.product else ""
    return f"{', '.join(meta.files)} ({meta.format}{written}): {meta.duration_ns / 1e9:.3f} s, {held}"


def _verdict(case: Case) -> str:
    if not case.has_ranges():
        return "Windows cannot be ranked: without ranges, idle time has no name."
    if isinstance(case.signals, Unavailable):
        return f"Windows cannot be ranked: {case.signals.reason}."
    return {
        "sm_counters": "Windows can be ranked by measured SM activity.",
        "kernel_union": "Windows can be ranked by busy time only, an upper bound of SM activity.",
        "host_cores": "Windows can be ranked by the activity of the host's cores only.",
    }[case.signals[0].source]
