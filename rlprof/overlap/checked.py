"""Checked mode: do nodes write and read the state that they declare, and no other?

Registered state is looked at before and after every call; then every call is run again on the same inputs
with undeclared state changed, and must do the same.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlprof.expect import expect
from rlprof.overlap.check_report import CheckReport, Fault, Finding
from rlprof.overlap.contents import Contents
from rlprof.overlap.context import CallContext, current
from rlprof.overlap.errors import WrapError
from rlprof.overlap.generators import GlobalRandom
from rlprof.overlap.node import ExecutionNode
from rlprof.overlap.program import Program
from rlprof.overlap.reread import Before, Piece, Reread, paths_in_memory, pieces, uses_of
from rlprof.overlap.specs import Cell, Mode
from rlprof.overlap.uses import batch_size, fixed_uses, uses
from rlprof.overlap.variables import reachable
from rlprof.text import with_article
from rlprof.unavailable import Unavailable


def check_declarations(
    program: Program,
    run: Callable[[], object],
    *,
    reads: bool = True,
    fingerprints: Mapping[str, Callable[[Any], Any]] | None = None,
    opaque: Collection[str] = (),
    seed: int = 0,
) -> CheckReport:
    """Run a wrapped program natively and compare what it does to state with what its nodes declare.

    Parameters
    ----------
    program : Program
        Wrapped, with nothing installed.
    run : callable
        Native work; it is called twice (once without `reads`), from the same state.
    reads : bool
        Look for undeclared reads as well: each call is run again at least once.
    fingerprints : mapping of str to callable, optional
        By state object, for contents that cannot be looked into: gets the object and returns a value that can
        be hashed and that differs when the contents do.
    opaque : collection of str
        Nodes that run as one unit with the calls inside them (`CallGraph.opaque`): their own code may write.
    seed : int
        Of the numbers that state is changed to.

    Returns
    -------
    CheckReport
        State and the objects that nodes are bound to are afterwards as they were before, also if `run`
        raises; what cannot be put back is among `not_checked`.

    Raises
    ------
    WrapError
        If something is installed in place of a node, or a recording is going on.

    Notes
    -----
    Only what changes during `run` is changed on purpose: the rest has one version, which no order can mix up.
    So `run` should last for two iterations at least. A write that is seen only with other inputs than those
    of `run`, or a read whose effect is lost (by a clip, say), is not found.
    """
    expect(program, Program, "the program", "give the Program whose nodes are to be checked", WrapError)
    if program.table or program._recorder is not None:
        what = f"{next(iter(program.table))} has a replacement" if program.table else "it is being recorded"
        raise WrapError(f"a program cannot be checked while {what}", hint="uninstall it first")
    watch = _Checker(program, dict(fingerprints or {}), frozenset(opaque), seed)
    kept, kept_random = Contents(watch.roots()), GlobalRandom()
    positions = {path: repr(node.switch.outside) for path, node in program.nodes.items()}
    try:
        for rereads in (False, True) if reads else (False,):
            watch.rereads = rereads
            watch.start()
            try:
                run()
            finally:
                program.refresh()
                kept.restore()
                kept_random.restore()
                for path, position in positions.items():
                    program.nodes[path].switch.outside = itertools.count(int(position[6:-1]))
    finally:
        watch.stop()
    for path, kind in kept.sealed.items():
        watch.note(path, f"{with_article(kind)} cannot be looked into or put back")
    return watch.report()


@dataclass(eq=False)
class _Frame:
    """A call that is running."""

    node: ExecutionNode
    context: CallContext
    uses: tuple[tuple[Cell, Mode], ...]
    thread: int
    changes: dict[Piece, None] = field(default_factory=dict)
    inner_writes: list[tuple[Cell, Mode]] = field(default_factory=list)
    has_inner: bool = False
    parallel: bool = False
    before: Before | None = None


class _Checker:
    """Stands before every native entry."""

    def __init__(
        self,
        program: Program,
        fingerprints: dict[str, Callable[[Any], Any]],
        opaque: frozenset[str],
        seed: int,
    ) -> None:
        self.program, self.fingerprints, self.opaque, self.seed = program, fingerprints, opaque, seed
        self.rereads = False
        self.states = {
            n: s.obj for n, s in program.states.items() if s.obj is not None and n not in fingerprints
        }
        self.partitions = {name: state.partitions for name, state in program.states.items()}
        self._frames: list[_Frame] = []
        self._last: dict[Piece, bytes] = {}
        self._changing: set[Piece] = set()
        self._returned: set[str] = set()
        self._written: set[tuple[str, str]] = set()
        self._findings: dict[tuple[str, str, str], Finding] = {}
        self._notes: dict[tuple[str, str], None] = {}
        self._calls: Counter[str] = Counter()
        self._again: Counter[str] = Counter()
        self._paused = False
        self._lock = threading.RLock()
        for name, state in program.states.items():
            if name in fingerprints:
                self.note(name, "it is seen by a fingerprint only, and cannot be changed on purpose")
            elif state.obj is None:
                self.note(name, "it has no object in this process: give State(..., obj)")

    def roots(self) -> dict[str, Any]:
        """State objects, and what entries can reach besides."""
        taken = {id(obj) for obj in self.states.values()}
        found = dict(self.states)
        for path, node in self.program.nodes.items():
            if node.native is not None:
                for name, obj in reachable(node.native).items():
                    if id(obj) not in taken:
                        taken.add(id(obj))
                        found[f"{path}: {name}"] = obj
        return found

    def note(self, subject: str, reason: str) -> None:
        """Something could not be told."""
        self._notes[subject, reason] = None

    def start(self) -> None:
        """Take the place of all entries."""
        self._last = self._look()
        for node in self.program.nodes.values():
            if not node.is_marked:
                node.switch.target = self._target(node)

    def stop(self) -> None:
        """Let natives run again."""
        self.program.refresh()

    def report(self) -> CheckReport:
        """What was found until now."""
        unseen = {subject for subject, _ in self._notes}
        never = [
            (path, access.name)
            for path, node in self.program.nodes.items()
            for access in node.accesses
            if access.mode != "read"
            and self._calls[path]
            and access.name not in unseen - set(self.fingerprints)
            if (path, access.name) not in self._written
        ]
        notes = tuple((subject, Unavailable(reason)) for subject, reason in self._notes)
        return CheckReport(
            tuple(self._findings.values()), tuple(never), notes, dict(self._calls), dict(self._again)
        )

    def _target(self, node: ExecutionNode) -> Callable[..., Any]:
        def target(*args: Any, **kwargs: Any) -> Any:
            if self._paused:
                return node.entry(*args, **kwargs)
            frame = self._enter(node, args, kwargs)
            try:
                result = node.entry(*args, **kwargs)
                if isinstance(result, concurrent.futures.Future):
                    concurrent.futures.wait([result])
            except BaseException:
                self._leave(frame, None)
                raise
            if isinstance(result, Coroutine):
                return self._awaited(frame, result)
            done = (
                result.done() and not result.exception()
                if isinstance(result, concurrent.futures.Future)
                else 0
            )
            self._leave(frame, result.result() if done else result)
            self._again_with_other_state(frame, result)
            return result

        return target

    async def _awaited(self, frame: _Frame, coroutine: Coroutine[Any, Any, Any]) -> Any:
        try:
            result = await coroutine
        except BaseException:
            self._leave(frame, None)
            raise
        self._leave(frame, result)
        if self.rereads:
            self.note(frame.node.path, "a coroutine is not run again: its reads were not checked")
        return result

    def _look(self) -> dict[Piece, bytes]:
        self._contents = Contents(self.states)
        found = pieces(self.states, self.partitions, self._contents)
        for name, fingerprint in self.fingerprints.items():
            seen = fingerprint(self.program.states[name].obj)
            found[Piece(name, None, name)] = seen if isinstance(seen, bytes) else repr(hash(seen)).encode()
        return found

    def _boundary(self) -> None:
        """Look at state; what changed since the last look was done by the innermost call."""
        now = self._look()
        for piece in now.keys() | self._last.keys():
            if now.get(piece) != self._last.get(piece):
                self._changing.add(piece)
                for frame in self._frames[-1:]:
                    frame.changes[piece] = None
        self._last = now

    def _enter(self, node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Frame:
        context = current()
        assert context is not None  # nodes set it
        context.args, context.kwargs = args, kwargs
        with self._lock:
            self._boundary()
            used = fixed_uses(node)
            if used is None:
                used = uses(node, context, args, kwargs, batch_size(node, args, kwargs))
            frame = _Frame(node, context, used, threading.get_ident())
            above = set()
            outer: CallContext | None = context
            while outer is not None:
                above.add(id(outer))
                outer = outer.parent
            for other in self._frames:
                if id(other.context) in above:
                    other.has_inner = True
                    other.inner_writes += [use for use in used if use[1] != "read"]
                else:
                    other.parallel = frame.parallel = True
            self._frames.append(frame)
            if self.rereads and not frame.parallel and node.entry is node.native:
                frame.before = Before(self.states, self.partitions, node.entry, args, kwargs, context)
        return frame

    def _leave(self, frame: _Frame, result: Any) -> None:
        with self._lock:
            self._boundary()
            returned = paths_in_memory(self._contents, result)
            self._returned |= returned
            self._frames.remove(frame)
            path = frame.node.path
            if frame.parallel:
                self.note(path, "it ran at the same time as other calls: who wrote cannot be told")
                return
            if not self.rereads:
                self._calls[path] += 1
            for piece in sorted(frame.changes, key=str):
                if frame.has_inner or piece.path not in returned:  # else it is seen when calls are recorded
                    self._judge(frame, piece)

    def _judge(self, frame: _Frame, piece: Piece) -> None:
        """Is the call allowed to have written this?"""
        node, path = frame.node, frame.node.path
        declared = uses_of(piece, frame.uses) & {"update", "refresh"}
        if not frame.has_inner or path in self.opaque:
            if declared:
                self._written.add((path, piece.state))
            else:
                self._find("undeclared write", frame, piece.state, f"{piece.path} changed")
            return
        # the node's own code is only run where the node is one unit, and it is if it alone declares the write
        inside = bool(uses_of(piece, frame.inner_writes))
        if declared and node.accesses and not inside:
            self._written.add((path, piece.state))
        else:
            self._find("write between calls", frame, piece.state, f"{piece.path} changed")

    def _find(self, fault: Fault, frame: _Frame, state: str, detail: str) -> None:
        path = frame.node.path
        self._findings.setdefault(
            (fault, path, state), Finding(fault, path, state, frame.context.label, detail)
        )

    def _again_with_other_state(self, frame: _Frame, result: Any) -> None:
        """Run a call that holds no other again, if everything that it can reach can be put back."""
        if not self.rereads or frame.has_inner or frame.parallel:
            return
        path = frame.node.path
        before = frame.before
        if before is None:
            self.note(path, "it runs in another process: its reads were not checked")
            return
        if isinstance(result, concurrent.futures.Future):
            self.note(path, "it returns a future and is not run again: its reads were not checked")
            return
        sealed = {**before.contents.sealed, **Contents({"result": result}).sealed}
        if sealed:
            place, kind = next(iter(sealed.items()))
            what = f"{place}, {with_article(kind)}"
            self.note(path, f"it can reach {what}, which cannot be put back: reads were not checked")
            return
        self._paused = True
        try:
            again = Reread(before, frame.uses, self._changing, result, self._returned)
            found = again.find(self.seed)
        finally:
            self._paused = False
        if isinstance(found, str):
            self.note(path, f"{found}; its reads were not checked")
            return
        self._again[path] += 1
        for item in found:
            fault: Fault = "not a refresh" if item.refreshed else "undeclared read"
            self._find(fault, frame, item.state, item.what)
