"""The share of the SMs of rollouts that are in one process with training: by green contexts.

Training keeps all SMs, and the weights of a seed are those of a process with all SMs. What computes in other
processes, such as a simulator, runs beside it only under MPS.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

from rlprof.overlap.green import GreenContextError, SmShares
from rlprof.overlap.quota.levels import Level
from rlprof.overlap.quota.products import Products, check_products
from rlprof.unavailable import Unavailable
from rlprof.workloads.embodied.errors import DeviceError
from rlprof.workloads.embodied.nodes import ROLLOUT, VISION
from rlprof.workloads.embodied.sharing import looked_at

if TYPE_CHECKING:
    from rlprof.workloads.embodied.policies.base import TorchPolicy


class RolloutShare:
    """See the module. It is tuned as a simulator is exchanged: by keys, of which None is what it had before.

    Parameters
    ----------
    shares : SmShares
        What executors of graphs look at.
    device : str
        Of the policy.
    percent : int or None
        Share of the configuration: natively answers have this one, whatever is tried; None: all SMs.
    forget : callable
        Drops what was captured with a part of the SMs, given number of the device and SMs.
    look : callable
        Finds products that are wrong.
    """

    def __init__(
        self,
        shares: SmShares,
        device: str,
        percent: int | None = None,
        forget: Callable[[int, int], None] = lambda *_: None,
        look: Callable[[str], Products] = check_products,
    ) -> None:
        self.shares, self.percent = shares, percent
        self._device, self._number = device, int(device.partition(":")[2] or 0)
        self._forget, self._look = forget, look
        self._key: int | None = None
        self._right: set[int] = set()
        if percent is not None:
            self._check(percent)
        self._place(None)

    @classmethod
    def of(cls, policy: TorchPolicy, device: str, percent: int | None) -> RolloutShare | None:
        """Make that of a policy; None where there are no SMs.

        Raises
        ------
        GreenContextError
            If it cannot have one.
        DeviceError
            If products are wrong with it.
        """
        if not device.startswith("cuda"):
            return None
        shares = SmShares()
        policy.sm_shares = shares

        def forget(number: int, sms: int) -> None:
            captured = getattr(policy, "captured", None)
            if captured is not None:
                captured.forget_share(number, sms)

        return cls(shares, device, percent, forget)

    def current(self, percent: int | None = None) -> AbstractContextManager[None]:
        """In the block the current stream is one with a share, by default that of the configuration."""
        return self.shares.current(ROLLOUT, self._number, self.percent if percent is None else percent)

    def levels(self) -> tuple[Level, ...]:
        """Levels that there are, weakest first; the last one is all SMs.

        Raises
        ------
        GreenContextError
            If the driver cannot divide them.
        """
        return tuple(Level(sms, percent) for percent, sms in self.shares.parts(self._number).percents)

    def sms(self, percent: int) -> int:
        """SMs of a share; errors as of `levels`."""
        return self.shares.parts(self._number).amount(percent)

    # as of `Exchangeable` -----------------------------------------------------------------------------------

    @property
    def key(self) -> int | None:
        """Share that was tried last, in percent; None: the one of the configuration."""
        return self._key

    def use(self, key: int | None, *, only: bool = False) -> None:
        """Let graphs answer with a share from now on.

        Parameters
        ----------
        key : int or None
            The share, in percent; None: that of the configuration.
        only : bool
            Drop what was captured with the one before.

        Raises
        ------
        GreenContextError
            If there is none to be had; what was used before stays.
        DeviceError
            If products are wrong with it; likewise.
        """
        before = self._key
        if key is not None:
            self._check(key)
        self._place(key)
        if only and before != key:
            self.drop(before)

    def abandon(self, key: int | None) -> None:
        """Let the share of the configuration be used again, and drop what was captured with another."""
        self._place(None)
        self.drop(key)

    def drop(self, key: int | None) -> None:
        """Drop what was captured with a share that is not in use."""
        if key is None or key == self._key:
            return
        self._forget(self._number, self.sms(key))

    def _place(self, key: int | None) -> None:
        percent = self.percent if key is None else key
        self._key = key
        self.shares.percents = {} if percent is None else dict.fromkeys((ROLLOUT, VISION), percent)

    def _check(self, percent: int) -> None:
        """Compute with a share before anything is made of it."""
        if percent in self._right:
            return

        def look(device: str) -> Products:
            with self.current(percent):  # where CUDA has failed, the end of the block fails as well
                return self._look(device)

        found = looked_at(self._device, look)
        if found.wrong:
            found = replace(found, sms=self.sms(percent))
            raise DeviceError(
                f"answers on {self._device} would be other numbers than with all SMs: {found.told()}",
                hint="give the rollout another share, or none",
            )
        self._right.add(percent)


def levels_of(share: RolloutShare | None) -> tuple[Level, ...] | Unavailable:
    """Levels of a rollout, or why there are none, to be told after "it has the slack, and"."""
    if share is None:
        return Unavailable("has no SMs")
    if share.percent is not None:
        return Unavailable(f"has a share already, {share.percent} %")
    try:
        return share.levels()
    except GreenContextError as error:
        return Unavailable(f"can have no share ({error.what})")
