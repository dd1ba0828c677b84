"""Resets ahead: the next iteration's first episodes begin while this one trains.

A reset that begins all environments anew depends on seed, step and epoch alone, and nobody uses a simulator
between its last chunk and the reset that follows. So where a graph runs, what watches its calls begins these
resets as soon as the last call on any simulator has returned; the next iteration finds them done.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

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

if TYPE_CHECKING:
    from rlprof.overlap.callgraph import Call, CallGraph

#: Name of the simulator's state in a wrapped trainer, and of the loop whose index is the epoch of a reset.
STATE, EPOCH_LOOP = "ENV", "rollout_epoch"


class _Begun(NamedTuple):
    """A reset that was begun ahead."""

    step: int
    epoch: int
    found: Future[Observation]


class AheadSimulator:
    """A simulator whose next reset can be begun ahead; see `rlprof.workloads.embodied.contracts.Simulator`.

    Any call waits for a reset that was begun; what it raised is raised then, once. A call that changes the
    environments drops it: whoever needs new episodes resets anew, and that leaves nothing of it.

    Parameters
    ----------
    inner : Simulator
        What simulates. Its resets begin all environments anew, and its observations are the caller's to keep.
    """

    def __init__(self, inner: Simulator) -> None:
        self.inner = inner
        self.spec: SimulatorSpec = inner.spec
        #: Resets that were asked for and had been begun ahead.
        self.handed_out = 0
        self._thread = ThreadPoolExecutor(1, "rlprof reset ahead")
        self._begun: _Begun | None = None

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Processes of the simulator."""
        return tuple(getattr(self.inner, "process_ids", ()))

    # ahead -------------------------------------------------------------------------------------------------

    def begin(self, step: GlobalStep, epoch: int) -> None:
        """Begin new episodes in a thread beside the caller; one that was begun before is dropped.

        Parameters
        ----------
        step : GlobalStep
            Of the iteration that will ask for them.
        epoch : int
            Of it.

        Raises
        ------
        SimulatorError
            What an earlier reset that was begun raised.
        """
        self.drop()
        self._begun = _Begun(step.index, epoch, self._thread.submit(self.inner.reset, step, epoch))

    def finish(self) -> None:
        """Wait for a reset that was begun; raises as `begin`."""
        self._finished()

    def drop(self) -> None:
        """Wait for a reset that was begun, and hand it out to nobody; raises as `begin`."""
        self._finished()
        self._begun = None

    def release(self) -> None:
        """End the thread: nothing is begun any more. What a reset raises that nobody waits for is ignored."""
        try:
            if self._begun is not None:
                wait([self._begun.found])
            self._thread.shutdown()
        finally:  # interrupted: the thread ends with what it does
            self._begun = None
            self._thread.shutdown(wait=False)

    def end(self) -> None:
        """End what simulates at once, if it can be, with a reset that was begun."""
        end = getattr(self.inner, "end", None)
        if end is not None:
            end()

    def _finished(self) -> _Begun | None:
        begun = self._begun
        if begun is not None:
            wait([begun.found])
            if begun.found.exception() is not None:
                self._begun = None
            begun.found.result()
        return begun

    # the simulator -----------------------------------------------------------------------------------------

    def reset(self, step: GlobalStep, epoch: int, samples: Samples = None) -> Observation:
        """Begin new episodes, unless they were begun ahead."""
        begun = self._finished()
        self._begun = None
        if begun is not None and samples is None and (begun.step, begun.epoch) == (step.index, epoch):
            self.handed_out += 1
            return begun.found.result()
        return self.inner.reset(step, epoch, **told(samples))

    def step(self, actions: Floats, samples: Samples = None) -> StepResult:
        """Carry out a chunk of actions."""
        self.drop()
        return self.inner.step(actions, **told(samples))

    def physics(self, actions: Floats, samples: Samples = None) -> None:
        """Move the environments."""
        self.drop()
        self.inner.physics(actions, **told(samples))

    def reward(self, samples: Samples = None) -> tuple[Floats, Array, Array]:
        """Rewards, dones and success of the last chunk."""
        self.drop()
        return self.inner.reward(**told(samples))

    def auto_reset(self, samples: Samples = None) -> None:
        """Begin new episodes where one has ended."""
        self.drop()
        self.inner.auto_reset(**told(samples))

    def render(self, samples: Samples = None) -> Observation:
        """What the policy sees now."""
        self.finish()
        return self.inner.render(**told(samples))

    def state_dict(self) -> dict[str, Array]:
        """All that the environments are: after a reset that was begun."""
        self.finish()
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Array]) -> None:
        """Go back to a checkpoint."""
        self.drop()
        self.inner.load_state_dict(state)

    def close(self) -> None:
        """End processes and threads; once is enough."""
        try:
            self.release()
        finally:
            self.inner.close()


def ahead_of(simulator: Any) -> AheadSimulator | None:
    """What begins resets ahead for a simulator, behind one that can be exchanged too; None: nothing does."""
    while simulator is not None and not isinstance(simulator, AheadSimulator):
        simulator = getattr(simulator, "inner", None)
    return simulator


def first_resets(graph: CallGraph) -> dict[int, int]:
    """Epoch of the reset that begins each simulator's work in a graph.

    Parameters
    ----------
    graph : CallGraph
        Of an iteration.

    Returns
    -------
    dict of int to int
        By storage copy of the simulator's state, in the order of the epochs: 0 is the native one, k the k-th
        spare. A copy is left out if parts of its environments are begun by themselves.
    """
    first: dict[int, Call] = {}
    for call in graph.calls:
        for copy in _copies(call):
            first.setdefault(copy, call)
    found = {
        copy: next(index for loop, index in call.indices if loop.rpartition("/")[2] == EPOCH_LOOP)
        for copy, call in first.items()
        if call.samples is None and call.node.rpartition("/")[2] == "reset"
    }
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _copies(call: Call) -> set[int]:
    return {access.copy for access in call.accesses if access.cell.state == STATE}


class ResetsAhead:
    """The simulators of a trainer and their resets ahead; nothing where none is an `AheadSimulator`.

    Parameters
    ----------
    simulators : sequence of Simulator
        The native one, and the spare ones in the order of the state's copies; none: nothing is begun ahead.
    """

    def __init__(self, simulators: Sequence[Simulator]) -> None:
        self._simulators = tuple(simulators)
        self._next: GlobalStep | None = None

    @property
    def there(self) -> bool:
        """Whether any simulator begins resets ahead."""
        return bool(self._each())

    @property
    def handed_out(self) -> int:
        """Resets that were asked for and had been begun ahead."""
        return sum(one.handed_out for one in self._each())

    @contextmanager
    def during(self, step: GlobalStep) -> Iterator[None]:
        """In the block a graph that runs begins the resets of the iteration after this one."""
        self._next = GlobalStep(step.index + 1)
        try:
            yield
        finally:
            self._next = None

    def countdown(self, graph: CallGraph) -> Countdown | None:
        """What begins resets while a graph runs; None outside of `during`."""
        return None if self._next is None else Countdown(self, graph, self._next)

    def begin(self, graph: CallGraph, step: GlobalStep) -> None:
        """Begin the resets of an iteration by a graph, as the iteration before would have done."""
        for copy, epoch in first_resets(graph).items():
            one = ahead_of(self._simulators[copy]) if copy < len(self._simulators) else None
            if one is not None:
                one.begin(step, epoch)

    def finish(self) -> None:
        """Wait for all that were begun; raises what they raised."""
        for one in self._each():
            one.finish()

    def drop(self) -> None:
        """Wait for all that were begun, and hand them out to nobody; raises what they raised."""
        for one in self._each():
            one.drop()

    def release(self) -> None:
        """Wait for all that were begun, and begin nothing any more; an interruption ends the simulators."""
        each = self._each()
        try:
            wait([one._begun.found for one in each if one._begun is not None])
        except BaseException:  # Ctrl-C, or a signal that ends the program
            for one in each:
                one.end()
            raise
        finally:
            for one in each:
                one.release()

    def _each(self) -> list[AheadSimulator]:
        return [one for one in map(ahead_of, self._simulators) if one is not None]


class Countdown:
    """Begins the next resets of simulators when their last call in an iteration by a graph has returned.

    The last call of all of them: a simulator that is through earlier would take cores, and what draws its
    images the GPU, from the last chunk of another, for which everything waits.

    Parameters
    ----------
    resets : ResetsAhead
        Of the simulators.
    graph : CallGraph
        What runs.
    step : GlobalStep
        Of the next iteration, which runs by the same graph.
    """

    def __init__(self, resets: ResetsAhead, graph: CallGraph, step: GlobalStep) -> None:
        self._resets, self._graph, self._step = resets, graph, step
        self._left = sum(1 for call in graph.calls if _copies(call))
        self._lock = threading.Lock()

    def ended(self, call: Call) -> None:
        """A call has returned."""
        if not _copies(call):
            return
        with self._lock:
            self._left -= 1
            last = not self._left
        if last:
            self._resets.begin(self._graph, self._step)
