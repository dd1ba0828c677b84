"""What this process's annotations are recorded into: per-thread buffers, drained by a thread of its own.

The state of a thread (`ThreadLog`) belongs to one recorder, so that ranges which outlive a session, or are
inherited by a forked child, close without touching the next one. Buffers are plain lists: one ``extend`` of a
list is one step under the interpreter's lock, so the draining thread needs no other.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof.capture.clock import Anchor
from rlprof.capture.loops import LoopCounts
from rlprof.capture.parts import PartWriter, write_process
from rlprof.errors import UsageError

if TYPE_CHECKING:
    from rlprof.capture.annotate import Annotation

#: Tells child processes the folder of the session to join.
ENVIRONMENT = "RLPROF_CAPTURE"
#: Seconds between two drains; what a killed process loses at most.
FLUSH_S = 0.5
#: Values of one closed range in a thread's buffer: name, start, end, whether it is a start/end range.
FIELDS = 4
#: Values in a thread's buffer at which the draining thread is woken, and at which the thread drains itself.
WAKE_AT, DRAIN_AT = 40_000 * FIELDS, 80_000 * FIELDS
#: Distinct names kept; ranges of further names are called `FURTHER_NAMES`.
MAX_NAMES = 65_536
FURTHER_NAMES = "(further names)"
DOMAIN = "rlprof"
#: How NVTX marks that state a count begin, and the seconds between two of one path.
COUNT_MARK = "rlprof.count:"
MARK_S = 0.1
#: Seconds that the end of a session waits for a drain that is under way.
STOP_WAIT_S = 10.0


def _ignore(_values: Iterable[Any], /) -> None:
    """Takes what a thread records when nothing is recorded."""


class _Token:
    """Lives as long as its thread."""

    __slots__ = ("__weakref__",)


class ThreadLog:
    """Open and closed ranges of one thread.

    Attributes
    ----------
    thread : int
        The thread's number in the operating system.
    stack : list of Annotation
        Open push/pop ranges, outermost first.
    loose : dict of task to list of Annotation
        Open start/end ranges of the tasks that ran interleaved with the owner of `stack`.
    overtaken : list of Annotation
        Open ranges whose enclosing range ended first: they are start/end ranges now.
    ghosts : int
        Ranges in `stack` that another thread has closed.
    loops : dict of task to LoopCounts
        Loops under way of which only some steps are marked.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.thread = threading.get_native_id()
        self.recorder = recorder
        self.nvtx = recorder.nvtx
        self.stack: list[Annotation] = []
        self.loose: dict[int, list[Annotation]] = {}
        self.overtaken: list[Annotation] = []
        self.ghosts = 0
        self.loops: dict[int, LoopCounts] = {}
        self.buffer: list[Any] = []
        self.emit: Callable[[Iterable[Any]], None] = self.buffer.extend if recorder.folder else _ignore

    def owns_stack(self, task: int) -> bool:
        """Whether a range that `task` opens now nests in this thread's stack.

        It does if the innermost open range is the task's own or belongs to no task; a task with an open
        start/end range keeps to such ranges.
        """
        return (not self.stack or self.stack[-1].task in (task, 0)) and task not in self.loose

    def open_ranges(self) -> list[Annotation]:
        """All open ranges, from any thread."""
        loose = [a for group in list(self.loose.values()) for a in list(group)]
        found = [*list(self.stack), *loose, *list(self.overtaken)]
        # start_ns is 0 while a range is being opened, log is None once it is closed
        return [a for a in found if a.log is self and a.start_ns]

    def take(self) -> list[Any]:
        """Remove and give what is in the buffer; safe beside the thread's own appending."""
        count = len(self.buffer)
        taken = self.buffer[:count]
        del self.buffer[:count]
        return taken


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
        self._wake = threading.Event()
        self._pid = os.getpid()
        self._flusher: threading.Thread | None = None
        self._writers: dict[str, PartWriter] = {}
        self._names: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._written_counts: dict[str, int] = {}
        self._marked_counts: dict[str, int] = {}
        self._mark_after_s = 0.0
        self._count_lock = threading.RLock()
        self._facts: dict[str, Any] = {}
        self._closed = False
        self._too_many_names = False

    # --- called by the threads that are recorded

    def log(self) -> ThreadLog:
        """The state of the calling thread, made at its first range."""
        try:
            found: ThreadLog = self.local.log
        except AttributeError:
            found = ThreadLog(self)
            self.local.log = found
            self.local.token = token = _Token()
            self._logs.append((weakref.ref(token), found))
            if self.folder and self._flusher is None:
                self._begin()
        return found

    def crowded(self, log: ThreadLog) -> None:
        """Drain before the flush time: called when a buffer has grown past `WAKE_AT`."""
        self._wake.set()
        # never wait here: the lock may be held by this very thread, below a signal handler or a finaliser
        if len(log.buffer) >= DRAIN_AT and self._lock.acquire(blocking=False):
            try:
                self._drain()
            finally:
                self._lock.release()

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
        while not self._closed:
            self._wake.wait(self.flush_s)
            self._wake.clear()
            with self._lock:
                if self._closed:
                    return
                if self.folder is not None and not self.folder.is_dir():
                    self._closed = True  # the session is over and has taken its folder along
                    self._silence()
                    self._abandon_files()
                    return
                self._drain()

    def flush(self) -> None:
        """Write everything recorded so far."""
        if self.folder is not None and not self._closed and self._flusher is not None:
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
        if self.folder is None or self._flusher is None:
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
            self._drain(last=True)
            self._write_cut(now_ns)
            problems = self._problems()
            if problems:
                self._writer("notes").write({"text": list(problems)})
            for writer in self._writers.values():
                writer.close()
            self._facts["anchors"].append(Anchor.now().to_dict())
            self._facts["lost_rows"] = self._lost_rows()
            self._describe()
        finally:
            self._lock.release()
        self._wake.set()
        if self._flusher is not threading.current_thread():
            self._flusher.join(timeout=1.0)
        return problems

    def forget(self) -> None:
        """Let go without writing, in the child of a fork: the files and buffers are the parent's."""
        self._closed = True
        for log in self._each_log():
            log.nvtx = None
        self._silence()
        self._abandon_files()

    def _silence(self) -> None:
        for log in self._each_log():
            log.emit = _ignore

    def _abandon_files(self) -> None:
        for writer in self._writers.values():
            writer.abandon()

    def _each_log(self) -> Iterator[ThreadLog]:
        for _, log in list(self._logs):
            yield log

    # --- draining; the lock is held

    def _writer(self, table: str) -> PartWriter:
        if table not in self._writers:
            assert self.folder is not None
            self._writers[table] = PartWriter(self.folder, table)
        return self._writers[table]

    def _drain(self, *, last: bool = False) -> None:
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
            self._write_closed(values, threads)
        if not last:
            self._write_open()
        self._write_counts()

    def _write_closed(self, values: list[Any], threads: list[tuple[int, int]]) -> None:
        import pyarrow as pa

        size = len(values) // FIELDS
        thread = [pa.repeat(pa.scalar(t, pa.int64()), n) for t, n in threads]
        self._writer("ranges").write(
            {
                "name": self._name_column(values[0::FIELDS]),
                "start_ns": pa.array(values[1::FIELDS], pa.int64()),
                "end_ns": pa.array(values[2::FIELDS], pa.int64()),
                "style": _style_column(values[3::FIELDS]),
                "thread": pa.concat_arrays(thread),
                "domain": _constant(DOMAIN, size),
                "cut": pa.repeat(False, size),
            }
        )

    def _write_open(self) -> None:
        """Write ranges that are open, once each, and that the process is alive."""
        opened = [(log, a) for log in self._each_log() for a in log.open_ranges()]
        if not opened:
            return
        self._writer("alive").write({"time_ns": [time.monotonic_ns()]})
        if fresh := [(log, a) for log, a in opened if not a.seen_open]:
            self._writer("open_ranges").write(self._open_columns(fresh))
            for _, a in fresh:
                a.seen_open = True

    def _write_cut(self, now_ns: int) -> None:
        opened = [(log, a) for log in self._each_log() for a in log.open_ranges()]
        if opened:
            ends = {"end_ns": [max(a.start_ns, now_ns) for _, a in opened], "cut": [True] * len(opened)}
            self._writer("ranges").write({**self._open_columns(opened), **ends})

    def _open_columns(self, opened: list[tuple[ThreadLog, Annotation]]) -> dict[str, Any]:
        return {
            "name": self._name_column([a.name for _, a in opened]),
            "start_ns": [a.start_ns for _, a in opened],
            "style": _style_column([a.is_loose for _, a in opened]),
            "thread": [log.thread for log, _ in opened],
            "domain": _constant(DOMAIN, len(opened)),
        }

    def _write_counts(self) -> None:
        """Write the counts that changed, those of loops under way included."""
        counts = dict(self._counts)
        for log in self._each_log():
            for loop in list(log.loops.values()):
                for path, count in loop.by_path().items():
                    counts[path] = counts.get(path, 0) + count
        changed = {p: n for p, n in counts.items() if self._written_counts.get(p) != n}
        if changed:
            self._writer("loop_counts").write({"path": list(changed), "count": list(changed.values())})
            self._written_counts.update(changed)

    def _name_column(self, names: list[str]) -> Any:
        """Names as one ever-growing dictionary, of which a file needs only what is new."""
        import pyarrow as pa

        known = self._names
        for name in set(names):
            if name not in known:
                if len(known) >= MAX_NAMES:
                    self._too_many_names = True
                    known.setdefault(FURTHER_NAMES, len(known))
                else:
                    known[name] = len(known)
        other = known.get(FURTHER_NAMES, 0)
        places = pa.array([known.get(name, other) for name in names], pa.int32())
        return pa.DictionaryArray.from_arrays(places, pa.array(list(known), pa.string()))

    def _lost_rows(self) -> int:
        return sum(w.lost_rows for t, w in self._writers.items() if t == "ranges")

    def _problems(self) -> tuple[str, ...]:
        problems = []
        if lost := self._lost_rows():
            error = next((w.error for w in self._writers.values() if w.error), None)
            full = error is not None and error.errno in (errno.ENOSPC, errno.EDQUOT)
            reason = "the disk was full" if full else f"they could not be written ({_reason(error)})"
            problems.append(f"{lost} ranges were lost: {reason}")
        if self._too_many_names:
            problems.append(
                f"over {MAX_NAMES} distinct names: later ones are called {FURTHER_NAMES!r}"
                " (give ranges constant names)"
            )
        return tuple(problems)


def _reason(error: OSError | None) -> str:
    return "an earlier error" if error is None else (error.strerror or type(error).__name__)


def _constant(text: str, size: int) -> Any:
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), size), pa.array([text]))


def _style_column(loose: list[bool]) -> Any:
    import pyarrow as pa

    styles = pa.array(["push_pop", "start_end"])
    return pa.DictionaryArray.from_arrays(pa.array([int(x) for x in loose], pa.int32()), styles)


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
        start(Path(folder))


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


def _after_fork() -> None:
    """In the child: join the parent's session as a process of its own."""
    global current, _idle  # noqa: PLW0603
    parent, idle = current, _idle
    if idle is not None:
        _idle = Recorder(None, idle.nvtx)
    if parent is not None and parent is not idle:
        parent.forget()
        current = Recorder(parent.folder, parent.nvtx, parent.flush_s)
    else:
        current = _idle


os.register_at_fork(after_in_child=_after_fork)
