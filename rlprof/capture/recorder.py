"""What this process's annotations are recorded into: per-thread buffers, drained by a thread of its own.

The state of a thread (`ThreadLog`) belongs to one recorder, so that ranges which outlive a session, or are
inherited by a forked child, close without touching the next one. Buffers are plain lists: one ``extend`` of a
list is one step under the interpreter's lock, so the draining thread needs no other.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof.capture.clock import Anchor
from rlprof.capture.loop_counts import LoopCounts
from rlprof.capture.parts import part_schema, write_process
from rlprof.capture.range_writer import FIELDS, RangeWriter
from rlprof.capture.thread_log import ThreadLog, ignore
from rlprof.errors import UsageError

if TYPE_CHECKING:
    from rlprof.capture.kernels import KernelRecorder

#: Tells child processes the folder of the session to join.
ENVIRONMENT = "RLPROF_CAPTURE"
#: Seconds between two drains; what a killed process loses at most.
FLUSH_S = 0.5
#: Values in a thread's buffer at which the draining thread is woken, and at which the thread drains itself.
WAKE_AT, DRAIN_AT = 40_000 * FIELDS, 80_000 * FIELDS
#: How NVTX marks that state a count begin, and the seconds between two of one path.
COUNT_MARK = "rlprof.count:"
MARK_S = 0.1
#: Seconds that the end of a session waits for a drain that is under way.
STOP_WAIT_S = 10.0


class _Token:
    """Lives as long as its thread."""

    __slots__ = ("__weakref__",)


class Recorder:
    """Records this process's annotations, to NVTX and to a session's folder, either of which may be absent.

    Parameters
    ----------
    folder : pathlib.Path or None
        The session's folder of parts; None if there is no session.
    nvtx : Nvtx or None
        Where to emit NVTX; None if no tool listens.
    flush_s : float
        Seconds between two drains.
    """

    def __init__(self, folder: Path | None, nvtx: Any = None, flush_s: float = FLUSH_S) -> None:
        self.folder = folder
        self.nvtx = nvtx
        self.flush_s = flush_s
        self.local = threading.local()
        self._logs: list[tuple[weakref.ref[_Token], ThreadLog]] = []
        self._lock = threading.Lock()
        # released to wake the draining thread: unlike an Event, safe within a signal handler
        self._wake = threading.Lock()
        self._wake.acquire()
        self._pid = os.getpid()
        self._flusher: threading.Thread | None = None
        self._writer = RangeWriter(folder) if folder else None
        self._counts: dict[str, int] = {}
        self._marked_counts: dict[str, int] = {}
        self._mark_after_s = 0.0
        self._count_lock = threading.RLock()
        self._facts: dict[str, Any] = {}
        self._failures: tuple[str, ...] = ()
        self._kernels: KernelRecorder | None = None
        self._closed = False

    def attach(self, kernels: KernelRecorder) -> None:
        """Take along a recorder of kernels: it ends with this one, and its words go into the notes."""
        self._kernels = kernels
        self._begin()

    @property
    def is_recording(self) -> bool:
        """Whether ranges are written."""
        return self.folder is not None and not self._closed

    # --- called by the threads that are recorded

    def log(self) -> ThreadLog:
        """The state of the calling thread, made at its first range."""
        try:
            found: ThreadLog = self.local.log
        except AttributeError:
            found = ThreadLog(self)
            self.local.log = found
            self.local.token = token = _Token()
            if self.is_recording:
                self._logs.append((weakref.ref(token), found))
                if self._flusher is None:
                    self._begin()
        return found

    def crowded(self, log: ThreadLog) -> None:
        """Drain before the flush time: called when a buffer has grown past `WAKE_AT`."""
        self._wake_up()
        # never wait here: the lock may be held by this very thread, below a signal handler or a finaliser
        if len(log.buffer) >= DRAIN_AT and self._lock.acquire(blocking=False):
            try:
                self._drain()
            finally:
                self._lock.release()

    def _wake_up(self) -> None:
        with contextlib.suppress(RuntimeError):  # awake already
            self._wake.release()

    def add_counts(self, counts: LoopCounts) -> None:
        """Take over the counts of a loop that ended, and tell NVTX."""
        with self._count_lock:
            for path, count in counts.by_path().items():
                self._counts[path] = self._counts.get(path, 0) + count
            if self.nvtx is not None and time.monotonic() >= self._mark_after_s:
                self.mark_counts()

    def mark_counts(self) -> None:
        """Tell NVTX the counts that changed; each is a text of its own, so not at every loop's end."""
        if self.nvtx is not None:
            self._mark_after_s = time.monotonic() + MARK_S
            for path, count in list(self._counts.items()):
                if self._marked_counts.get(path) != count:
                    self._marked_counts[path] = count
                    self.nvtx.mark(f"{COUNT_MARK}{path}={count}")

    # --- the life of the recorder

    def _begin(self) -> None:
        with self._lock:
            if self._flusher is not None or self._closed:
                return
            self._flusher = threading.Thread(target=self._run, name="rlprof-flush", daemon=True)
        anchor = Anchor.now()
        self._facts = {**rank_facts(), "anchors": [anchor.to_dict()]}
        self._describe()
        self._flusher.start()
        _at_exit(self)

    def _describe(self) -> None:
        assert self.folder is not None
        with contextlib.suppress(OSError):
            write_process(self.folder, self._facts)

    def _run(self) -> None:
        assert self.folder is not None
        while not self._closed:
            self._wake.acquire(timeout=self.flush_s)
            with self._lock:
                if self._closed:
                    return
                if not self.folder.is_dir():
                    # the session is over and has taken its folder along
                    self._let_go()
                    return
                self._drain()

    def flush(self) -> None:
        """Write everything recorded so far."""
        if not self._closed and self._flusher is not None:
            with self._lock:
                self._drain()

    def stop(self) -> tuple[str, ...]:
        """End recording: write what is left, ranges that are open as cut now.

        Returns
        -------
        tuple of str
            What went wrong, one line each; empty if nothing did.
        """
        self.mark_counts()
        if self._writer is None or self._flusher is None:
            self._closed = True
            return ()
        # a signal handler may stop a recorder that its own thread is draining: then give up rather than hang
        if not self._lock.acquire(timeout=STOP_WAIT_S):
            return ("the last ranges were not written: the program was stopped while writing them",)
        try:
            if self._closed:
                return ()
            self._closed = True
            self._silence()
            now_ns = time.monotonic_ns()
            self._drain()
            self._guarded(lambda writer: writer.write_cut(self._each_log(), now_ns))
            self._stop_kernels()
            self._guarded(lambda writer: writer.close(self._failures))
            self._facts["anchors"].append(Anchor.now().to_dict())
            self._facts["lost_ranges"] = self._writer.lost_ranges
            self._describe()
        finally:
            self._lock.release()
        self._wake_up()
        if self._flusher is not threading.current_thread():
            self._flusher.join(timeout=1.0)
        return (*self._writer.problems(), *self._failures)

    def _stop_kernels(self) -> None:
        kernels, self._kernels = self._kernels, None
        try:
            self._failures += kernels.stop() if kernels is not None else ()
        except Exception as error:
            self._failures += (f"kernels were lost: {type(error).__name__} while writing them",)

    def forget(self) -> None:
        """Let go without writing, in the child of a fork: the files and buffers are the parent's."""
        for log in self._each_log():
            log.nvtx = None
        self._kernels = None
        self._let_go()

    def _let_go(self) -> None:
        self._closed = True
        self._silence()
        for log in self._each_log():
            log.take()
        if self._writer is not None:
            self._writer.abandon()

    def _silence(self) -> None:
        for log in self._each_log():
            log.emit = ignore

    def _each_log(self) -> list[ThreadLog]:
        return [log for _, log in list(self._logs)]

    # --- draining; the lock is held

    def _drain(self) -> None:
        # a thread that ended before its buffer is taken has nothing more to come
        ended = [(ref, log) for ref, log in list(self._logs) if ref() is None]
        values: list[Any] = []
        threads: list[tuple[int, int]] = []
        for log in self._each_log():
            if taken := log.take():
                values += taken
                threads.append((log.thread, len(taken) // FIELDS))
        for pair in ended:
            if not pair[1].open_ranges():
                self._logs.remove(pair)
        if values:
            self._guarded(lambda writer: writer.write_closed(values, threads))
        if not self._closed:
            self._guarded(lambda writer: writer.write_open(self._each_log()))
        self._guarded(lambda writer: writer.write_counts(self._all_counts()))

    def _all_counts(self) -> dict[str, int]:
        """Counts so far, those of loops under way included."""
        counts = dict(self._counts)
        for log in self._each_log():
            for loop in list(log.loops.values()):
                for path, count in loop.by_path().items():
                    counts[path] = counts.get(path, 0) + count
        return counts

    def _guarded(self, write: Callable[[RangeWriter], None]) -> None:
        """Write, and keep any failure for the end: the program that is recorded must not see it."""
        if self._writer is not None:
            try:
                write(self._writer)
            except Exception as error:
                self._failures = (f"some ranges were lost: {type(error).__name__} while writing them",)


def rank_facts() -> dict[str, Any]:
    """``rank``, ``local_rank`` and ``label`` of this process, as its launcher says (torchrun's variables)."""
    facts: dict[str, Any] = {}
    for key, variable in (("rank", "RANK"), ("local_rank", "LOCAL_RANK")):
        text = os.environ.get(variable, "")
        facts[key] = int(text) if text.isdecimal() else None
    rank = facts["rank"] if facts["rank"] is not None else facts["local_rank"]
    return {**facts, "label": f"process {os.getpid()}" if rank is None else f"rank {rank}"}


#: The recorder of this process: None when nothing listens. Every annotation looks here first.
current: Recorder | None = None
# what stays when no session is running: a recorder that only emits NVTX, or None
_idle: Recorder | None = None


def start(folder: Path, *, flush_s: float = FLUSH_S) -> Recorder:
    """Record this process's annotations into a session's folder, from now on.

    Parameters
    ----------
    folder : pathlib.Path
        The session's folder of parts; it exists.
    flush_s : float
        Seconds between two drains.

    Returns
    -------
    Recorder
        To `stop`.

    Raises
    ------
    UsageError
        If this process is being recorded already, or there is no such folder.
    """
    global current  # noqa: PLW0603
    if current is not None and current.folder is not None:
        raise UsageError(
            "this process is being recorded already", where=current.folder, hint="end that session first"
        )
    if not Path(folder).is_dir():
        raise UsageError("the session's folder does not exist", where=folder, hint="make it first")
    # imports what writing needs: in the draining thread, a fork in the middle of that would leave the child
    # stuck, and at the end of a short program it fails
    part_schema("ranges")
    current = Recorder(Path(folder).absolute(), _idle.nvtx if _idle else None, flush_s)
    return current


def stop() -> tuple[str, ...]:
    """End recording into the session's folder; NVTX, if a tool listens, goes on.

    Returns
    -------
    tuple of str
        As `Recorder.stop`.
    """
    global current
    ending, current = current, _idle
    return ending.stop() if ending is not None and ending is not _idle else ()


def emit_nvtx(nvtx: Any) -> None:
    """Emit NVTX from now on, session or not (None: do not)."""
    global current, _idle  # noqa: PLW0603
    idle = Recorder(None, nvtx) if nvtx is not None else None
    if current is None or current is _idle:
        current = idle
    else:
        current.nvtx = nvtx
    _idle = idle
    if idle is not None:
        atexit.register(idle.mark_counts)


def join_session() -> None:
    """Join the session that the environment names, if there is one and this process is in none."""
    folder = os.environ.get(ENVIRONMENT, "")
    if folder and Path(folder).is_dir() and (current is None or current.folder is None):
        recorder = start(Path(folder))
        from rlprof.capture.kernels import kernels_if_asked

        if (kernels := kernels_if_asked(Path(folder))) is not None:
            recorder.attach(kernels)


def _at_exit(recorder: Recorder) -> None:
    """Stop `recorder` when the process ends, in whatever way runs Python code."""
    reference = weakref.ref(recorder)

    def end() -> None:
        live = reference()
        if live is None or live._pid != os.getpid() or live is not current:
            return
        for problem in stop():
            with contextlib.suppress(Exception):
                print(f"rlprof: {problem}", file=sys.stderr, flush=True)

    atexit.register(end)
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        # children of multiprocessing leave by os._exit after running only these
        from multiprocessing.util import Finalize

        Finalize(None, end, exitpriority=0)


# the recorder whose drains wait for a fork
_held: Recorder | None = None


def _before_fork() -> None:
    """Wait for a drain that is under way: the child would inherit locks of its libraries as they are."""
    global _held  # noqa: PLW0603
    recorder = current
    if recorder is not None and recorder._lock.acquire(timeout=STOP_WAIT_S):
        _held = recorder


def _after_fork_in_parent() -> None:
    global _held
    held, _held = _held, None
    if held is not None:
        held._lock.release()


def _after_fork_in_child() -> None:
    """In the child: join the parent's session as a process of its own."""
    global current, _idle, _held  # noqa: PLW0603
    _held = None
    parent, idle = current, _idle
    if idle is not None:
        _idle = Recorder(None, idle.nvtx)
    if parent is not None and parent is not idle:
        parent.forget()
        current = Recorder(parent.folder, parent.nvtx, parent.flush_s)
    else:
        current = _idle


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)
