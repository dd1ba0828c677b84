"""A simulator that can be exchanged while a program is wrapped: a quota is fixed for a process' life.

Nodes are bound to the methods of this object; what works behind it may be one of several simulators, such as
one for each quota. The state goes along.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from rlprof.workloads.embodied.contracts import (
    Array,
    Floats,
    GlobalStep,
    Observation,
    Samples,
    Simulator,
    SimulatorSpec,
    StepResult,
)
from rlprof.workloads.embodied.env_worker import told


class Exchangeable:
    """See the module; methods are those of `rlprof.workloads.embodied.contracts.Simulator`.

    Parameters
    ----------
    simulator : Simulator
        The first one, of key None.
    make : callable
        Makes one for a key.
    beside : sequence of Exchangeable
        Others that are exchanged with it: spare ones.
    """

    def __init__(
        self,
        simulator: Simulator,
        make: Callable[[Any], Simulator],
        beside: Sequence[Exchangeable] = (),
    ) -> None:
        self.beside = tuple(beside)
        self._all: dict[Hashable, Simulator] = {None: simulator}
        self._make, self._key = make, None
        self.spec: SimulatorSpec = simulator.spec

    @property
    def key(self) -> Any:
        """Key of the one at work."""
        return self._key

    @property
    def inner(self) -> Simulator:
        """The one at work."""
        return self._all[self._key]

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Processes of the one at work."""
        return tuple(getattr(self.inner, "process_ids", ()))

    def use(self, key: Any, *, only: bool = False, beside: bool = True) -> None:
        """Let the simulator of a key work, in the state of the one before.

        If one cannot be made, or does not take the state, all stay as they are, and what was made with it is
        closed.

        Parameters
        ----------
        key : hashable
            Of it; it is made if there is none yet, at the same time as those beside it.
        only : bool
            End all others.
        beside : bool
            Exchange those beside it too.
        """
        together = self._together() if beside else [self]
        missing = [one for one in together if key not in one._all]
        _make_missing(missing, key)
        try:
            for one in together:
                if key != one._key:
                    one._all[key].load_state_dict(one.inner.state_dict())
        except BaseException:
            _close([one._all.pop(key) for one in missing])
            raise
        for one in together:
            one._key = key
        if only:
            _close([one._all.pop(k) for one in together for k in list(one._all) if k != key])

    def _together(self) -> list[Exchangeable]:
        """Those beside it, whatever is beside them, and itself, which is the last."""
        return [*(one for other in self.beside for one in other._together()), self]

    def settle(self) -> None:
        """Make the simulator at work the one of key None, and end all others; so for those beside it."""
        key = self._key
        self.use(key, only=True)
        for one in self._together():
            one._all, one._key = {None: one._all[key]}, None

    def abandon(self, key: Any) -> None:
        """Let the simulators of key None work again as they are, and end those of a key, which may be dead.

        Their state is that of when the others took over: right only where these put theirs back.
        """
        for one in self._together():
            one._key = None
        self.drop(key)

    def drop(self, key: Any) -> None:
        """End the simulator of a key that is not at work."""
        ones = self._together()
        _close([one._all.pop(key) for one in ones if key != one._key and key in one._all])

    def drop_all_but(self, *keys: Any) -> None:
        """End the simulators of all other keys that are not at work."""
        for gone in {key for one in self._together() for key in one._all} - set(keys):
            self.drop(gone)

    def reset(self, step: GlobalStep, epoch: int, samples: Samples = None) -> Observation:
        """Begin new episodes."""
        return self.inner.reset(step, epoch, **told(samples))

    def step(self, actions: Floats, samples: Samples = None) -> StepResult:
        """Carry out a chunk of actions."""
        return self.inner.step(actions, **told(samples))

    def physics(self, actions: Floats, samples: Samples = None) -> None:
        """Move the environments."""
        self.inner.physics(actions, **told(samples))

    def reward(self, samples: Samples = None) -> tuple[Floats, Array, Array]:
        """Rewards, dones and success of the last chunk."""
        return self.inner.reward(**told(samples))

    def auto_reset(self, samples: Samples = None) -> None:
        """Begin new episodes where one has ended."""
        self.inner.auto_reset(**told(samples))

    def render(self, samples: Samples = None) -> Observation:
        """What the policy sees now."""
        return self.inner.render(**told(samples))

    def state_dict(self) -> dict[str, Array]:
        """All that the environments are."""
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Array]) -> None:
        """Go back to a checkpoint."""
        self.inner.load_state_dict(state)

    def close(self) -> None:
        """End all of them."""
        _close([self._all.popitem()[1] for _ in range(len(self._all))])


def _close_made(started: Future[Simulator]) -> None:
    if started.exception() is None:
        started.result().close()


def _close(simulators: Sequence[Simulator]) -> None:
    """End simulators: all of them, also where one does not end as it should."""
    with ExitStack() as stack:
        for simulator in reversed(simulators):
            stack.callback(simulator.close)


def _make_missing(ones: Sequence[Exchangeable], key: Any) -> None:
    """Make the simulators of a key at the same time: each takes its time to start."""
    if not ones:
        return
    with ThreadPoolExecutor(len(ones)) as pool:
        started: list[Future[Simulator]] = []
        try:
            started += (pool.submit(one._make, key) for one in ones)
            made = [one.result() for one in started]
        except BaseException:  # an interruption too, and a second one: those that start are waited for
            for one in started:
                one.add_done_callback(_close_made)
            raise
    for exchangeable, simulator in zip(ones, made, strict=True):
        exchangeable._all[key] = simulator
