"""Peak memory, compiled."""

from __future__ import annotations

import numba as nb
import numpy as np

from rlprof.planning.kernel.tables import Boxes, Tables


@nb.njit(cache=True)
def peak_bytes(t: Tables, b: Boxes) -> float:
    """The peak of the fullest GPU: over all sets of boxes that share a GPU.

    Boxes that overlap pairwise have a GPU in common, and more invocations never need less.
    """
    count, share, at = len(t.first), b.share, b.at
    models = t.model.max() + 1
    kept = np.zeros(models)
    clique = np.zeros(1 << count, np.bool_)
    clique[0] = True
    peak = 0.0
    for members in range(1, 1 << count):
        lowest = 0
        while not members >> lowest & 1:
            lowest += 1
        rest = members & (members - 1)
        if not clique[rest]:
            continue
        ok = True
        for v in range(lowest + 1, count):
            if rest >> v & 1 and share[lowest, v] == 0:
                ok = False
                break
        clique[members] = ok
        if not ok:
            continue
        kept[:] = 0.0
        most = 0.0
        for v in range(count):
            if not members >> v & 1:
                continue
            c = at[v]
            resident = t.trained[v] < 0 or (t.tau[v] > 0 and share[v, t.trained[v]] == 0)
            adds = t.transient[c]
            if resident:
                kept[t.model[v]] = max(kept[t.model[v]], t.weights[c])
            else:
                adds += t.weights[c]
            second = b.fused[v]
            if second >= 0:
                other = at[second]
                adds += t.transient[other] + t.weights[other]
            most = max(most, adds)
        for v in range(count):
            if members >> v & 1 and t.trains[v]:
                kept[t.model[v]] = t.optimizer[at[v]]
        total = 0.0
        for m in range(models):
            total += kept[m]
        peak = max(peak, total + most)
    return peak
