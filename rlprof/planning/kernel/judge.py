"""Entry point of the compiled evaluator."""

from __future__ import annotations

import numba as nb

from rlprof.planning.kernel.boxes import boxes_of
from rlprof.planning.kernel.lower import lower_step
from rlprof.planning.kernel.memory import peak_bytes
from rlprof.planning.kernel.schedule import schedule_steps
from rlprof.planning.kernel.tables import Floats, Ints, Tables


@nb.njit(cache=True, nogil=True)
def judge_states(t: Tables, states: Ints, out: Floats) -> None:
    """Judge states.

    Parameters
    ----------
    t : Tables
        Of their space.
    states : int64 (S, V, 2)
        Candidate and origin of each invocation.
    out : float64 (S, 3 + V)
        Is filled in: score, utilisation, memory ratio, and time of each invocation on the critical path.
    """
    for n in range(len(states)):
        b = boxes_of(t, states[n])
        makespan_s, busy_s = schedule_steps(t, b, lower_step(t, b), out[n, 3:])
        out[n, 0] = t.steps * t.step_tokens / makespan_s
        out[n, 1] = busy_s / (makespan_s * t.gpus)
        out[n, 2] = peak_bytes(t, b) / t.usable_bytes
