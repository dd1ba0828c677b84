"""Quotas of a rollout that is in one process with training: green contexts, in a client with all SMs.

`benchmarks.gpu.rollout_quota --by green` runs it. No process is started and no weights are others; products
are looked at before a quota is used, and one by which some are wrong is not measured.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.gpu.quota_rounds import ALL, WARM_UP
from benchmarks.gpu.rollout_quota import Run, reason_of

MECHANISM = "green contexts"


class GreenRun(Run):
    """One simulator, and one rollout with a share for each quota."""

    process = False

    @property
    def share(self) -> Any:
        """Of the SMs of the rollout."""
        return self.trainer.rollout.share

    def probed(self) -> Sequence[Any]:
        """Levels by rising number of SMs: all, or those that the chosen percentages give and 100 %."""
        from rlprof.overlap.quota.levels import Level

        if not self.args.pair_only and not self.args.levels:
            return list(self.share.levels())
        chosen = [] if self.args.pair_only else self.args.levels
        by_sms = {self.share.sms(percent): percent for percent in sorted({*chosen, ALL})}
        return [Level(sms, percent) for sms, percent in sorted(by_sms.items())]

    def predict(self, percent: int) -> None:
        with self.share.current(None if percent == ALL else percent):
            super().predict(percent)

    def fits(self, wanted: int) -> int:
        """All of them: they share weights."""
        return wanted

    def start(self, percents: Sequence[int], found: dict[str, Any]) -> dict[str, list[int]]:
        """Look at products with each quota, and answer; why some are left out, and which."""
        began, failed, started = time.monotonic(), dict[str, list[int]](), dict[int, float]()
        for percent in percents:
            try:
                self.share.use(percent)
                self.rollouts[percent] = self.trainer.rollout
                for _ in range(WARM_UP):
                    self.predict(percent)
                started[percent] = round(time.monotonic() - began, 2)
            except Exception as error:
                failed.setdefault(reason_of(error), []).append(percent)
                self.share.use(None)  # what is in use is not dropped
                self.end([percent])
        self.share.use(None)
        self.start_s = time.monotonic() - began
        found["start_s"], found["started_s"] = round(self.start_s, 2), started
        found.update(self.gpu.memory())
        return failed

    def end(self, percents: Sequence[int]) -> None:
        """Drop what was captured with quotas."""
        for percent in percents:
            if self.rollouts.pop(percent, None) is not None and percent != ALL:
                self.share.drop(percent)

    def result(self) -> None:
        """As of all quotas, and what gave them."""
        super().result()
        if "quotas" in self.report.document:
            self.report.document["quotas"]["mechanism"] = MECHANISM
