"""SM activity by a running DCGM host engine: field 1002 (``DCGM_FI_PROF_SM_ACTIVE``) through ``dcgmi dmon``.

For machines whose operators run DCGM and keep the counters for it. Not verified on a machine with DCGM: the
reader is tested on answers in the form that users of ``dcgmi`` have published, and a capture says so in a
note. That form is, for example, in issues 151 (rows of GPUs and of MIG instances), 244 (``N/A`` at first, and
on some GPUs for ever if SM activity is asked for alone), 8 (``N/W``) and 3 (errors after the heading) of
https://github.com/NVIDIA/DCGM.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from rlprof.capture.samplers.base import MS, Device, Losses, SamplerError, Samples, Source, check_period

FIELD = 1002
UNVERIFIED = "SM activity by DCGM is not verified: read through dcgmi, its times are those of its answers"
_ROW = re.compile(r"^\s*GPU\s+(\d+)\s+(\S+)\s*$")
#: How long the first answer may take.
START_S = 10.0


def parse_row(line: str) -> tuple[int, float | None] | None:
    """Read one line of ``dcgmi dmon -e 1002``.

    Parameters
    ----------
    line : str
        For example ``GPU 0     0.518``.

    Returns
    -------
    tuple of int and (float or None), or None
        Number of the GPU and SM activity, 0..1; the activity is None where DCGM has no answer. None for lines
        that are no rows.
    """
    found = _ROW.match(line)
    if not found:
        return None
    try:
        share = float(found[2])
    except ValueError:  # N/A: no answer yet; N/W: not watched
        return int(found[1]), None
    return int(found[1]), share if 0.0 <= share <= 1.0 else None


class DcgmSampler:
    """Reads ``dcgmi dmon``; see `rlprof.capture.samplers.base.Sampler`.

    Parameters
    ----------
    devices : sequence of int or None
        Numbers of the GPUs; None is all of them.
    period_ns : int
        100 ms to 10 s, in whole milliseconds.
    command : str, optional
        The program, by default ``dcgmi`` on the PATH.
    now : function giving int
        The clock.

    Raises
    ------
    UsageError
        If the period is out of range.
    """

    source: Source = "sm_counters"

    def __init__(
        self,
        devices: Sequence[int] | None,
        period_ns: int,
        command: str | None = None,
        now: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        check_period("dcgm", period_ns)
        self.period_ns = round(period_ns / MS) * MS
        self.poll_ns = self.period_ns // 4
        self._devices, self._command, self._now = devices, command, now
        self._process: subprocess.Popen[bytes] | None = None
        self._text = b""
        self._last: dict[int, int] = {}
        self._answered = False
        self._early: list[Samples] = []
        self._losses = Losses()

    def start(self) -> Sequence[Device]:
        """Start ``dcgmi`` and wait for its first answer.

        Raises
        ------
        SamplerError
            ``dcgmi`` is not installed, no host engine answers, or it has no number for any GPU.
        """
        program = self._command or shutil.which("dcgmi")
        if program is None:
            raise SamplerError("DCGM is not installed (no dcgmi on the PATH)")
        arguments = [program, "dmon", "-e", str(FIELD), "-d", str(self.period_ns // MS)]
        if self._devices is not None:
            arguments += ["-i", ",".join(str(d) for d in self._devices)]
        self._process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        said: list[str] = []
        limit = time.monotonic() + START_S
        while not self._answered and time.monotonic() < limit:
            ended = self._process.poll() is not None  # before what it said last is read
            self._hear(said, wait_s=0.1)
            if ended:
                break
        if not self._answered:
            self._hear(said, wait_s=0.0)  # this process may have been kept waiting itself
        if not self._answered:
            self._end()
            raise SamplerError(
                f"the DCGM host engine gives no SM activity: {_why_none(said)}",
                hint="see that nv-hostengine runs and `dcgmi profile --list` shows field 1002",
            )
        return [Device(d) for d in sorted(self._last)]

    def _hear(self, said: list[str], wait_s: float) -> None:
        lines = self._lines(wait_s)
        said += lines
        self._early += self._take(lines)

    def drain(self) -> Sequence[Samples]:
        """The answers that have come.

        Raises
        ------
        SamplerError
            If ``dcgmi`` has ended by itself: no more will come.
        """
        assert self._process is not None
        code = self._process.poll()  # before what it said last is read
        samples = self._new()
        if not samples and code is not None:
            raise SamplerError(f"dcgmi ended with code {code} (was the host engine stopped?)")
        return samples

    def stop(self) -> Sequence[Samples]:
        """End ``dcgmi``."""
        samples = self._new()
        self._end()
        return samples

    def _new(self) -> list[Samples]:
        early, self._early = self._early, []
        return early + self._take(self._lines(wait_s=0.0))

    def losses(self) -> Losses:
        """Answers that were no number, and missing ones."""
        return self._losses

    def clock(self) -> dict[str, Any]:
        """An answer is dated by its arrival, at most a period after the fact."""
        return {"host": {"method": "arrival", "offset_ns": 0, "uncertainty_ns": self.period_ns}}

    def _take(self, lines: Sequence[str]) -> list[Samples]:
        import numpy as np

        samples = []
        answers: dict[int, list[float | None]] = {}
        for line in lines:
            if (row := parse_row(line)) is not None:
                answers.setdefault(row[0], []).append(row[1])
        for device, shares in answers.items():
            self._answered = self._answered or any(share is not None for share in shares)
            for last, at, share in self._dated(device, shares):
                if share is None:
                    self._losses.invalid += 1
                    self._losses.gap(at - last, self.period_ns)
                    continue
                start = max(last, at - 3 * self.period_ns // 2)
                if start > last:
                    self._losses.gap(start - last, self.period_ns)
                samples.append(
                    Samples(
                        device,
                        np.array([start], np.int64),
                        np.array([at], np.int64),
                        np.array([share], np.float64),
                    )
                )
        return samples

    def _dated(self, device: int, shares: list[float | None]) -> list[tuple[int, int, float | None]]:
        """Answers of a GPU that came at once, since nobody read for a while, with their starts and ends.

        They share the time since the one before; of the very first one nobody knows when it began.
        """
        at = self._now()
        last = self._last.get(device)
        if last is None:
            shares = shares[1:]
            last = at - len(shares) * self.period_ns
        self._last[device] = at
        ends = [last + (at - last) * k // len(shares) for k in range(len(shares) + 1)] if shares else []
        found = zip(ends, ends[1:], shares, strict=False)
        return [(begun, ended, share) for begun, ended, share in found if ended > begun]

    def _lines(self, wait_s: float) -> list[str]:
        assert self._process is not None
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while select.select([pipe], [], [], wait_s)[0]:
            data = os.read(pipe, 65536)
            if not data:
                break
            self._text += data
            wait_s = 0.0
        *whole, self._text = self._text.split(b"\n")
        return [line.decode(errors="replace") for line in whole]

    def _end(self) -> None:
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(2.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _why_none(said: Sequence[str]) -> str:
    """What ``dcgmi`` said instead of a number; its heading is two lines, of which the second is ``ID``."""
    rows = [row for line in said if (row := parse_row(line)) is not None]
    if rows:
        gpus = sorted({device for device, _ in rows})
        return f"only N/A for GPU {', '.join(map(str, gpus))} in {START_S:g} s"
    texts = (line.strip() for line in said)
    return next((t for t in texts if t and not t.startswith("#") and t.upper() != "ID"), "no answer")
