"""Recording a number of calls of a region."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rlprof.overlap.assemble import assemble
from rlprof.overlap.context import CallContext
from rlprof.overlap.errors import RecordingError
from rlprof.overlap.forms import common
from rlprof.overlap.recording import Recording
from rlprof.overlap.remote import watching_fetches
from rlprof.overlap.trace import RunTrace
from rlprof.overlap.values import is_array, memory_key, take_apart
from rlprof.overlap.watchlist import Watchlist
from rlprof.text import counted

if TYPE_CHECKING:
    from rlprof.overlap.node import ExecutionNode
    from rlprof.overlap.program import Program


class Recorder:
    """A context manager around native training; see `Program.record`.

    Attributes
    ----------
    region : ExecutionNode
        What is recorded.
    """

    def __init__(
        self,
        program: Program,
        region: ExecutionNode,
        *,
        runs: int = 2,
        skip: int = 0,
        writes: bool = True,
        ignore: Iterable[object] = (),
    ) -> None:
        for name, number in (("runs", runs), ("skip", skip)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise RecordingError(f"{name}={number!r} is no number of runs", hint="give a whole number")
        if isinstance(ignore, str):
            raise RecordingError(f"ignore={ignore!r} is one text", hint=f"give a list: [{ignore!r}]")
        if runs < 2:
            raise RecordingError(
                f"{runs} run of {region.path} cannot tell what is the same in every run",
                hint="record 2 or more",
            )
        if region.is_marked:
            raise RecordingError(
                f"{region.path} has no entry: its iterations are marked in the code",
                hint="record the node around it",
            )
        self.region = region
        self._program = program
        self._wanted, self._skip, self._writes = runs, skip, writes
        self._runs: list[RunTrace] = []
        self._watch = Watchlist(tuple(ignore))
        self._owners: dict[tuple[str, int], str] = {}
        self._kept: list[Any] = []
        self._recording: Recording | None = None
        self._dropped = False
        self._lock = threading.Lock()

    @property
    def recording(self) -> Recording:
        """The recording, after the block.

        Raises
        ------
        RecordingError
            If the block has not ended well.
        """
        if self._recording is None:
            raise RecordingError(f"{self.region.path} has not been recorded to the end yet")
        return self._recording

    def __enter__(self) -> Recorder:
        self._program.start_recording(self)
        self._fetches = watching_fetches(self._fetched)
        self._fetches.__enter__()
        return self

    def drop(self) -> None:
        """Make no recording of what was recorded: the block ends without one."""
        self._dropped = True

    def _fetched(self, reference: Any, value: Any, error: BaseException | None) -> None:
        if self._runs and not self._runs[-1].ended:
            self._runs[-1].fetched(reference, value, error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._fetches.__exit__(None, None, None)
        self._program.stop_recording()
        if error is not None or self._dropped:
            return
        ended = [run for run in self._runs if run.ended]
        if len(ended) < self._wanted:
            calls = counted(len(ended), "time")
            raise RecordingError(
                f"{self.region.path} was called {calls}, and {self._wanted} were to be recorded",
                hint="train longer, or record fewer runs",
            )
        self._recording = assemble(
            self.region.path,
            ended,
            self._program.node_specs(),
            self._program.state_specs(),
            self._owners,
            common([run.form for run in ended if run.form is not None]),
        )

    def begin(self, context: CallContext) -> RunTrace | None:
        """Begin a run, if one is still wanted.

        Raises
        ------
        RecordingError
            If a call of the region is being recorded already, in another thread or task.
        """
        with self._lock:
            if self._skip:
                self._skip -= 1
                return None
            if len(self._runs) >= self._wanted:
                return None
            if self._runs and not self._runs[-1].ended:
                raise RecordingError(
                    f"{context.label} was called before the call of {self.region.path} that is being recorded"
                    " had ended",
                    hint="record where the calls come one after another",
                )
            owned = []
            for name, state in self._program.states.items():
                for array in _arrays(state.obj):
                    key = memory_key(array)
                    self._owners[key] = name
                    self._kept.append(array)
                    owned.append((key, array))
            run = RunTrace(self._program, self._watch, self._writes, owned)
            self._runs.append(run)
            return run

    def end(self, context: CallContext) -> None:
        """Note that a run has ended, and watch in the next what it could not explain."""
        run = context.run
        if run is None or run.ended:
            return
        run.end()
        if run.unfinished is not None:
            raise RecordingError(
                f"{run.unfinished} had not ended when {self.region.path} returned",
                hint="wait for its future inside the region",
            )
        for known in run.lineage.changed_arguments() if self._writes else ():
            path = "".join(f"[{key!r}]" for key in known.path[1:])
            raise RecordingError(
                f"the {type(known.obj).__name__} at argument {path} of {self.region.path} was changed in"
                " place by the code between calls, which is not run when a graph is",
                hint="return what is new, or wrap the code that changes it",
            )
        for known, _ in run.changes:
            self._watch.add(known)


def _arrays(value: Any, depth: int = 0) -> list[Any]:
    """Arrays of a state object: itself, its items, or its attributes."""
    if is_array(value):
        return [value]
    parts = take_apart(value)
    if depth > 3 or (parts is None and depth > 0):
        return []
    items = parts.items if parts is not None else tuple(getattr(value, "__dict__", {}).values())
    return [array for item in items for array in _arrays(item, depth + 1)]
