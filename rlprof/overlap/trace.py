"""Recording native runs of a region, call by call, while they happen.

What is done during a call is little: times, references of the arguments and of the result, stamps of arrays.
The rest waits until the run is over (`rlprof.overlap.assemble`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlprof.overlap.bindings import Path
from rlprof.overlap.call_record import CallRecord
from rlprof.overlap.context import CallContext
from rlprof.overlap.device_times import DeviceTimes
from rlprof.overlap.forms import Form, form_of
from rlprof.overlap.generators import GlobalRandom
from rlprof.overlap.known import Known, Raw, RawPack, whole_of
from rlprof.overlap.lineage import Lineage, are_same, is_followed, items_of
from rlprof.overlap.modes import current_modes
from rlprof.overlap.remote import Done, is_reference, outcome
from rlprof.overlap.structures import is_tensor
from rlprof.overlap.surroundings import Surroundings
from rlprof.overlap.uses import NodeUses, Uses, batch_size, depends_on_call, uses
from rlprof.overlap.values import MemoryKey, at_path, describe, is_array, torch_module
from rlprof.overlap.watchlist import Watchlist

if TYPE_CHECKING:
    from rlprof.overlap.node import ExecutionNode
    from rlprof.overlap.program import Program


#: What was there before a run is looked at around every call, if it is no larger array and not too much.
_WATCHED_BYTES, _WATCHED = 65_536, 64


class RunTrace:
    """One run of a region.

    Parameters
    ----------
    program : Program
        Whose calls they are.
    watch : Watchlist
        What earlier runs want to know more of.
    writes : bool
        Look for writes in place.
    owned : list of (tuple of (str, int), array), optional
        Arrays of registered state, by the key of their memory.
    """

    def __init__(
        self,
        program: Program,
        watch: Watchlist,
        writes: bool = True,
        owned: list[tuple[MemoryKey, Any]] | None = None,
    ) -> None:
        self.program = program
        self.devices = DeviceTimes()
        self.has_devices = self.devices.present
        self.records: list[CallRecord] = []
        self.lineage = Lineage(writes, _components(program), owned)
        #: Arrays whose contents changed between two looks, and nobody was seen to write; and who saw it.
        self.changes: list[tuple[Known, CallRecord]] = []
        self.ended = False
        self.form: Form | None = None
        self._watch = watch
        self._watched: list[Known] = []
        self._writes = writes
        self._event = 0
        self._open: dict[CallRecord, None] = {}
        self._surroundings: Surroundings | None = None
        #: Generators that are looked at around every call: those that moved in an earlier run.
        self._drawn = GlobalRandom(watch.random)
        self._all_random = GlobalRandom()
        self._random = bool(watch.random)
        #: Objects or generators are looked at around every call.
        self._is_around = self._random
        #: Generators that were first drawn from in this run, by whom is not known.
        self.drawn_unseen: tuple[str, ...] = ()
        self._facts = {node: NodeUses(node) for node in program.nodes.values()}
        self._whole: dict[tuple[str, int | None], Uses] = {}
        torch = torch_module()
        self._torch = torch is not None
        #: Classes of plain arrays.
        self._arrays = frozenset({np.ndarray} if torch is None else {np.ndarray, torch.Tensor})
        self.lock = threading.RLock()
        self._acquire, self._release = self.lock.acquire, self.lock.release  # half of what a block would cost
        self._references: dict[Any, CallRecord] = {}
        self._pending: dict[int, tuple[Any, CallRecord, Done]] = {}

    def open(
        self, node: ExecutionNode, context: CallContext, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> CallRecord:
        """Note that a call starts."""
        self._acquire()
        try:
            parent = context.parent
            above: CallRecord | None = parent.record if parent is not None and self.records else None
            record = context.record = CallRecord(node, context, above)
            self._event += 1
            facts = self._facts.get(node) or NodeUses(node)
            if self._pending:
                self._collect()
            if facts.takes_self and args:
                self.lineage.components.add(id(args[0]))
            if above is None:
                self._begin(args, kwargs)
            else:
                if self._is_around:
                    self._look_around(above, True)  # first, for it knows better names
                if self._watched:
                    self._look(above, True)
                above.has_inner = True
            if self._is_around:
                self._open[record] = None
            self.records.append(record)
            if args or kwargs:
                self._note_arguments(record, args, kwargs)
            if facts.has_batch:
                axis = facts.first_axis
                if axis is not None and args and type(args[0]) in self._arrays and args[0].ndim > axis:
                    record.batch_size = args[0].shape[axis]
                else:
                    record.batch_size = batch_size(node, args, kwargs)
            if self._torch:
                record.modes = current_modes()
            record.accesses = (
                self._uses(node, context, args, kwargs, record.batch_size)
                if facts.uses is None
                else facts.uses
            )
        finally:
            self._release()
        return record

    def _note_arguments(self, record: CallRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        resolve, writes = self.lineage.resolve, self._writes
        arrays: list[Known] = []
        found: list[Raw] = []
        record.args = found
        for value in args:
            raw = resolve(value, arrays)
            found.append(raw)
            if writes and (isinstance(raw, RawPack) or raw.items is not None):
                self._note_containers(record, raw)
        if kwargs:
            record.kwargs = {name: resolve(value, arrays) for name, value in kwargs.items()}
            for raw in record.kwargs.values() if writes else ():
                if isinstance(raw, RawPack) or raw.items is not None:
                    self._note_containers(record, raw)
        if arrays:
            record.arrays = arrays
            if found == arrays:
                record.args = arrays  # one list less to keep
            self._look_at_arguments(record, arrays)

    def _uses(
        self,
        node: ExecutionNode,
        context: CallContext,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        size: int | None,
    ) -> Uses:
        """Cells that a call uses; those of calls on all samples are listed once."""
        key = (node.path, size)
        if depends_on_call(node, args, kwargs):
            return uses(node, context, args, kwargs, size)
        if key not in self._whole:
            self._whole[key] = uses(node, context, args, kwargs, size)
        return self._whole[key]

    def _note_containers(self, record: CallRecord, raw: Raw) -> None:
        """Note the lists, dicts and dataclasses in an argument, which a call may change."""
        found = list(self.lineage.containers(raw))
        record.containers = [*record.containers, *found]
        for one, _ in found:
            if type(one) is Known:
                self.lineage.container_track(one).use(record)

    def _find_changes(self, record: CallRecord) -> None:
        """Find containers that an innermost call has changed."""
        for raw, before in record.containers:
            now = items_of(whole_of(raw)) or ()
            if are_same(now, before):
                continue
            if isinstance(raw, RawPack):
                raw.is_changed = True
            else:
                raw.items = now
                self.lineage.container_track(raw).write(record, self._event)

    def _look_around(self, record: CallRecord, own: bool) -> None:
        """Find what the code of a call did besides values; `own`: that of a call around others."""
        drawn = self._drawn.moved() if self._random else ()
        found = self._surroundings.look() if self._surroundings is not None else None
        if not drawn and not found:
            return
        busy = [r for r in self._open if not r.has_inner and not r.node.children and not r.node.is_marked]
        if drawn and own and not busy:
            self._note_effects(record, [f"the position of the generator of {name}" for name in drawn])
        elif drawn:
            for user in busy if own else [*busy, record]:
                user.random = tuple(dict.fromkeys([*user.random, *drawn]))
        if found is None or not found or (not own and not busy):
            return  # what a call changes that nothing is called in is its business
        if not own:
            busy = [*busy, record]
        changed = found.outside([r.node.owner for r in busy])
        if changed:
            self._note_effects(self.records[0] if busy else record, changed)

    def _note_effects(self, record: CallRecord, changed: Sequence[str]) -> None:
        while record.node.is_marked and record.parent is not None:
            record = record.parent
        record.effects = tuple(dict.fromkeys([*record.effects, *changed]))

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.form = form_of((args, kwargs))
        self.lineage.give((args, kwargs), self._event)
        if self._writes and self._watch.runs:  # the first run may still set things up
            given = (*args, *kwargs.values())
            self._surroundings = Surroundings(self.program, given, self._watch.ignored)
            self._is_around = True
        for obj in self._watch.kept.values():
            small = not is_array(obj) or is_tensor(obj) or obj.nbytes <= _WATCHED_BYTES
            self._start_watching(obj, only_once=not small or len(self._watched) >= _WATCHED)
        for array in self._watch.objects.values():
            self._start_watching(array)
        for path in self._watch.outputs.get("", ()):
            self._start_watching(at_path((args, kwargs), path))

    def _look_at_arguments(self, record: CallRecord, arrays: list[Known]) -> None:
        """Find what was written since the last look, and by nobody who was seen."""
        writes, renewed, event = self._writes, self.lineage.stamps.renewed, self._event
        for known in arrays:
            track = known.memory
            assert track is not None
            track.use(record)
            if writes:
                changed, known.stamp = renewed(known.obj, known.stamp)
                if changed and track.written_at < known.stamped_at:
                    self.changes.append((known, record))
                known.stamped_at = event

    def close(self, record: CallRecord, output: Any, failed: bool = False) -> None:
        """Note that a call has ended; `output` is what it returned."""
        self._acquire()
        try:
            self._event += 1
            if self._is_around:
                self._open.pop(record, None)
                self._look_around(record, record.has_inner)
            if self._watched:
                self._look(record, record.has_inner)
            if record.arrays and self._writes:
                self._find_writes(record)
            if record.containers and not record.has_inner:
                self._find_changes(record)
            record.failed = failed
            if failed or record.node.is_marked:
                return
            if record.has_inner:
                record.output = self.lineage.resolve(output, [])
                own_code(record, record.output, ())
                self.lineage.note_output(output, record)
            else:
                record.output = self.lineage.returned(output, record, self._event)
                if self._watch.outputs:
                    for path in self._watch.outputs.get(record.id, ()):
                        self._start_watching(at_path(output, path))
        finally:
            self._release()

    def _find_writes(self, record: CallRecord) -> None:
        renewed, event = self.lineage.stamps.renewed, self._event
        for known in record.arrays:
            changed, known.stamp = renewed(known.obj, known.stamp)
            if changed:
                track = known.memory
                assert track is not None
                # it may be known already that a call inside this one wrote
                if not any(w is record or w.is_below(record) for w in track.writers):
                    track.write(record, event)
            known.stamped_at = event

    def _look(self, running: CallRecord, own: bool) -> None:
        """Look at what is watched: a change was made by the code that ran since the last look."""
        renewed, event = self.lineage.stamps.renewed, self._event
        for known in self._watched:
            known.stamped_at = event
            if type(known.stamp) is bytearray and (known.stamp == known.obj) is True:
                continue  # the usual case, in fewer steps
            changed, known.stamp = renewed(known.obj, known.stamp)
            if changed:
                assert known.memory is not None
                known.memory.write(running, self._event)
                if own:
                    self._note_effects(running, [_named(known)])

    def _start_watching(self, array: Any, only_once: bool = False) -> None:
        """Look at an array or object from now on; `only_once`: now, and when a call is given it."""
        if not is_followed(array):
            return
        found: list[Known] = []
        self.lineage.resolve(array, found)
        for known in found:
            if known not in self._watched:
                known.stamp, known.stamped_at = self.lineage.stamps.take(known.obj, often=True), self._event
                if not only_once:
                    self._watched.append(known)

    # calls that end in a future ----------------------------------------------------------------------------

    def add_pending(self, future: Any, record: CallRecord, done: Done) -> None:
        """Note that a call ends when `future` has its value; then `done` is called."""
        with self.lock:
            self._pending[id(future)] = (future, record, done)
            if is_reference(future):
                self._references[future] = record
                self.lineage.stands_for(future, record)

    def take_pending(self, future: Any) -> bool:
        """Say whether the call of a future is still open, and count it as ended; `lock` is held."""
        return self._pending.pop(id(future), None) is not None

    def fetched(self, reference: Any, value: Any, error: BaseException | None) -> None:
        """Note what a reference stands for: an object of this process that was made just now."""
        with self.lock:
            record = self._references.get(reference)
            if record is None:
                return
            for _, pending, done in list(self._pending.values()):
                if pending is record:
                    done(value, error)
                    return
            if error is None:
                self._event += 1
                record.output = self.lineage.returned(value, record, self._event)

    def _collect(self, references: bool = False) -> None:
        """End calls whose futures have their values: a waiting thread may be ahead of the callback."""
        for future, _, done in list(self._pending.values()):
            if references or not is_reference(future):
                found = outcome(future)
                if found is not None:
                    done(*found)

    def end(self) -> None:
        """Note that the region has returned."""
        with self.lock:
            self._collect(references=True)
            self.ended = True
            drawn = self._all_random.moved()
            self.drawn_unseen = tuple(name for name in drawn if name not in self._watch.random)
            self._watch.random.update(drawn)
            if self._writes:
                for known in self.lineage.unexplained():
                    self._watch.kept[id(known.obj)] = known.obj
            self._watch.runs += 1
            self.devices.settle(self.records)

    @property
    def unfinished(self) -> str | None:
        """Id of a call that had not ended when the region returned."""
        return next((record.id for _, record, _ in self._pending.values()), None)


def _components(program: Program) -> set[int]:
    """Ids of the objects that nodes are bound to, and of registered state."""
    owners = [node.owner for node in program.nodes.values() if not node.is_marked]
    states = [obj for state in program.states.values() for obj in (state.obj, *state.copies)]
    return {id(obj) for obj in (*owners, *states) if obj is not None}


def _named(known: Known) -> str:
    what = describe(known.obj)
    if known.record is not None:
        return f"the {what} that {known.record.id} returned"
    return f"the {what} among the region's arguments" if known.external else f"a kept {what}"


def own_code(record: CallRecord, raw: Raw, path: Path) -> None:
    """Note who made what has no other origin: the code of a call around other calls, which returns it."""
    if isinstance(raw, RawPack):
        for key, item in zip(raw.keys, raw.items, strict=True):
            own_code(record, item, (*path, key))
    elif raw.record is None and not raw.external and raw.maker is None:
        raw.maker = (record, path)
        if raw.memory is not None and raw.view is None:
            raw.memory.wholes.append(raw)  # views that are taken of it are told by it
