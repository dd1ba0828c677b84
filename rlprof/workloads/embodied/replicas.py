"""Training of one policy on several devices: each has a replica and some of the micro batches.

The first replica is the policy itself: its weights are trained, and the others take them at the beginning of
each step. A replica adds up the gradients of its micro batches, which are some in a row; then the sums of all
replicas are added up in the order of the devices. So with as many micro batches as devices, all of one kind
and with as many SMs, gradients have the bits of one device, otherwise they agree with them within a
tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from rlprof.taskgraph.threads import take_torch_threads
from rlprof.workloads.embodied.errors import ConfigurationError, need
from rlprof.workloads.embodied.offload import HostCopies, tensors_of


class Replicas:
    """See the module.

    Parameters
    ----------
    policies : sequence of Policy
        The policy, and others of the same sizes on further devices.

    Raises
    ------
    ConfigurationError
        If they do not have the same parameters.
    """

    def __init__(self, policies: Sequence[Any]) -> None:
        self._torch = need("torch", why="training")
        self.first, *self.others = policies
        self._trained = [list(policy.trainable()) for policy in policies]
        shapes = [[p.shape for p in trained] for trained in self._trained]
        if any(other != shapes[0] for other in shapes[1:]):
            raise ConfigurationError("replicas of a policy have other parameters than it")
        self._devices = [next(iter(policy.parameters())).device for policy in policies]
        self._host = [HostCopies() for _ in self.others]
        self._pool = (
            ThreadPoolExecutor(len(self.others), "rlprof train", take_torch_threads) if self.others else None
        )
        self.take_all()

    @property
    def devices(self) -> tuple[str, ...]:
        """Where they compute, in the order in which gradients are added up."""
        return tuple(map(str, self._devices))

    def take_all(self) -> None:
        """Let the others take all weights of the first, also those that are not trained."""
        for policy in self.others:
            policy.load_state_dict(self.first.state_dict())

    def gradients(self, count: int, work: Callable[[Any, int], Any]) -> list[Any]:
        """Leave the sum of the gradients of micro batches in the first replica.

        Parameters
        ----------
        count : int
            Micro batches.
        work : callable
            Gets a replica and the number of a micro batch; goes forward and backward. Micro batches of
            different replicas are at work at the same time.

        Returns
        -------
        list
            What `work` returned for each micro batch, in their order.

        Raises
        ------
        Exception
            What `work` raised, after all replicas have ended their work.
        """
        for trained in self._trained:
            for parameter in trained:
                parameter.grad = None
        self._take_trained()
        shares = np.array_split(np.arange(count), 1 + len(self.others))
        running: list[Future[list[Any]]] = []
        for k, policy in enumerate(self.others, 1):
            assert self._pool is not None
            running.append(self._pool.submit(self._serve, policy, self._devices[k], work, shares[k]))
        try:
            done = [work(self.first, int(part)) for part in shares[0]]
        finally:
            wait(running)
        for future in running:
            done += future.result()
        self._add_up()
        return done

    def _serve(self, policy: Any, device: Any, work: Callable[[Any, int], Any], share: Any) -> list[Any]:
        if device.type != "cuda":
            return [work(policy, int(part)) for part in share]
        cuda = self._torch.cuda
        with cuda.device(device):
            done = [work(policy, int(part)) for part in share]
            cuda.current_stream(device).synchronize()  # the driver's thread reads the gradients
        return done

    def _take_trained(self) -> None:
        with self._torch.no_grad():
            for trained in self._trained[1:]:
                for mine, other in zip(trained, self._trained[0], strict=True):
                    mine.copy_(other, non_blocking=True)
        for device in self._devices[1:]:
            if device.type == "cuda":
                self._torch.cuda.current_stream(device).synchronize()  # a thread of its own reads them

    def _add_up(self) -> None:
        for trained in self._trained[1:]:
            for total, part in zip(self._trained[0], trained, strict=True):
                if part.grad is None:
                    continue
                here = part.grad.to(total.device)
                total.grad = here if total.grad is None else total.grad.add_(here)
                part.grad = None

    def offload(self) -> None:
        """Move the others off their devices; the first is its owner's to move."""
        self._each(lambda k: self._host[k].offload(tensors_of(self.others[k])))

    def reload(self) -> None:
        """Move the others back."""
        self._each(lambda k: self._host[k].reload(tensors_of(self.others[k]), self.devices[k + 1]))

    def _each(self, move: Callable[[int], None]) -> None:
        for trained in self._trained[1:]:
            for parameter in trained:
                parameter.grad = None
        if self._pool is not None:
            list(self._pool.map(move, range(len(self.others))))
