"""Progress in plain lines on standard error, where no terminal draws a bar: a file, a pipe, a log of CI."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

#: Work that is done sooner says nothing, seconds.
QUIET_S = 10.0


class Lines:
    """Writes the newest state of some work, no more often than is of use.

    The gap between two lines is a hundredth of the time so far, within limits: no long run fills its log.

    Parameters
    ----------
    first_s : float
        No line comes before, seconds.
    least_s, most_s : float
        Limits of the gap between two lines, seconds.
    clock : callable, optional
        Seconds.
    """

    def __init__(
        self,
        first_s: float = QUIET_S,
        least_s: float = 10.0,
        most_s: float = 60.0,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._least_s, self._most_s, self._clock = least_s, most_s, clock
        self._began = clock()
        self._next = self._began + first_s

    def progress(self, stage: str, fraction: float) -> None:
        """Take a stage and the fraction done (0..1), as `rlprof.progress.Progress`."""
        self.offer(f"{stage}, {min(max(fraction, 0.0), 1.0):.0%}")

    def offer(self, text: str, *, now: bool = False) -> None:
        """Write a line if one is due, or at once; work goes on where nobody reads it any more."""
        at = self._clock()
        if not now and at < self._next:
            return
        self._next = at + min(max((at - self._began) / 100, self._least_s), self._most_s)
        if sys.stderr is None:  # closed by the caller
            return
        shown = "".join(c if c.isprintable() else "?" for c in text)
        try:
            print(shown, file=sys.stderr, flush=True)
        except (OSError, ValueError):  # the reader has gone, the disk is full, it was closed since
            self._next = float("inf")


class IterationLines:
    """A line for each iteration of training, or for the newest one where they are short.

    Parameters
    ----------
    iterations : int
        How many there are in the end.
    lines : Lines, optional
        Where they go: by default at once, and at most one a second.
    patience_s : float
        After so long without one a line says what is going on, seconds: simulators can take minutes to start.
    """

    def __init__(self, iterations: int, lines: Lines | None = None, *, patience_s: float = 5.0) -> None:
        self._iterations = iterations
        self._lines = lines or Lines(0.0, least_s=1.0, most_s=10.0)
        self._stage = "starting"
        self._waiting = threading.Timer(patience_s, self._none_yet)
        self._waiting.daemon = True

    def __enter__(self) -> IterationLines:
        """Begin to wait for the first iteration."""
        self._waiting.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Wait no more."""
        self._waiting.cancel()

    def _none_yet(self) -> None:
        self._lines.offer(f"{self._stage}: no iteration is done yet", now=True)

    def progress(self, stage: str, fraction: float) -> None:  # noqa: ARG002 - as of `Progress`
        """Take what is going on."""
        self._stage = stage

    def finished(self, row: Mapping[str, Any]) -> None:
        """Take the metrics of an iteration (`rlprof.workloads.embodied.metrics`)."""
        self._waiting.cancel()
        last = row["iteration"] + 1 == self._iterations
        self._lines.offer(iteration_line(row, self._iterations), now=last)


def iteration_line(row: Mapping[str, Any], iterations: int) -> str:
    """Metrics of an iteration in a line for people.

    Parameters
    ----------
    row : mapping of str to value
        A line of ``metrics.jsonl``, perhaps without activity.
    iterations : int
        How many there are in the end.
    """
    losses = [
        f"{name.replace('_', ' ')} {value:.3g}" for name, value in row.items() if name.endswith("_loss")
    ]
    said = [
        f"{row['wall_s']:.3g} s",
        f"{row['simulator_steps_per_s']:,.0f} simulator steps/s",
        f"return {row['return_mean']:.3f}",
        f"success {row['success_frac']:.1%}",
        *losses,
    ]
    return f"iteration {row['iteration'] + 1} of {iterations}: {', '.join(said)}"
