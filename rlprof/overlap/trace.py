"""Recording native runs of a region, call by call, while they happen.

What is done during a call is little: times, references of the arguments and of the result, stamps of arrays.
The rest waits until the run is over (`rlprof.overlap.assemble`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rlprof.overlap.bindings import Path
from rlprof.overlap.context import CallContext
from rlprof.overlap.device_times import DeviceTimes
from rlprof.overlap.forms import Form, form_of
from rlprof.overlap.global_random import GlobalRandom
from rlprof.overlap.lineage import Known, Lineage, Raw, RawPack, is_followed, leaves_of, stamp_of
from rlprof.overlap.modes import TorchModes, current_modes
from rlprof.overlap.remote import Done, is_reference, outcome
from rlprof.overlap.specs import Cell, Mode
from rlprof.overlap.structures import is_tensor
from rlprof.overlap.surroundings import Surroundings
from rlprof.overlap.uses import Uses, batch_size, depends_on_call, fixed_uses, uses
from rlprof.overlap.values import MemoryKey, at_path, describe, is_array, take_apart, torch_module

if TYPE_CHECKING:
    from rlprof.overlap.node import ExecutionNode
    from rlprof.overlap.program import Program


_NOTHING: Mapping[str, Any] = MappingProxyType({})
#: What was there before a run is looked at around every call, if it is no larger array and not too much.
_WATCHED_BYTES, _WATCHED = 65_536, 64


class CallRecord:
    """One call, as noted while it runs."""

    # slots: one that had a dict of its own would cost twice as much to make
    __slots__ = (
        "accesses", "args", "arrays", "batch_size", "containers", "context", "device", "effects", "end_ns",
        "failed", "has_inner", "kwargs", "modes", "node", "output", "parent", "random", "return_ns",
        "start_ns",
    )  # fmt: skip

    def __init__(self, node: ExecutionNode, context: CallContext, parent: CallRecord | None) -> None:
        self.node = node
        self.context = context
        self.parent = parent
        self.args: Sequence[Raw] = ()
        self.kwargs: Mapping[str, Raw] = _NOTHING
        self.output: Raw | None = None
        #: Arrays in its arguments.
        self.arrays: list[Known] = []
        #: Containers in its arguments that can be changed, with the identities of their items.
        self.containers: Sequence[tuple[Raw, tuple[int, ...]]] = ()
        self.accesses: tuple[tuple[Cell, Mode], ...] = ()
        self.batch_size: int | None = None
        self.modes: TorchModes | None = None
        self.has_inner = self.failed = False
        self.device: Any = None
        self.start_ns = self.return_ns = self.end_ns = 0
        #: What its own code changed, if others were called in it.
        self.effects: Sequence[str] = ()
        #: Generators of random numbers that belong to everybody, from which it drew.
        self.random: Sequence[str] = ()

    def was_given(self, value: Any) -> bool:
        """Whether an object is among its arguments."""
        return any(
            known.obj is value for raw in (*self.args, *self.kwargs.values()) for known in leaves_of(raw)
        )

    @property
    def id(self) -> str:
        """As `Invocation.id`."""
        region = self
        while region.parent is not None:
            region = region.parent
        name = region.node.name
        return name + self.context.label[len(region.context.label) :]

    def is_below(self, other: CallRecord) -> bool:
        """Whether this call ran inside the other."""
        above = self.parent
        while above is not None:
            if above is other:
                return True
            above = above.parent
        return False


class Watch:
    """What is looked at before and after every call, because an earlier run saw it change unexplained."""

    def __init__(self, ignored: tuple[object, ...] = ()) -> None:
        #: Paths in the output of a call; the id "" stands for the region's arguments.
        self.outputs: dict[str, set[Path]] = {}
        #: Arrays that are no call's.
        self.objects: dict[int, Any] = {}
        #: Arrays and objects that were there before the run, and that calls were given.
        self.kept: dict[int, Any] = {}
        #: Generators of random numbers that somebody drew from.
        self.random: set[str] = set()
        #: Objects, or names of things, that code between calls may change.
        self.ignored = ignored
        self.runs = 0

    def add(self, known: Known) -> bool:
        """Watch an array in later runs; say whether that is new."""
        if known.record is None and not known.external:
            new = id(known.obj) not in self.objects
            self.objects[id(known.obj)] = known.obj
            return new
        paths = self.outputs.setdefault("" if known.record is None else known.record.id, set())
        new = known.path not in paths
        paths.add(known.path)
        return new


class RunTrace:
    """One run of a region.

    Parameters
    ----------
    program : Program
        Whose calls they are.
    watch : Watch
        What earlier runs want to know more of.
    writes : bool
        Look for writes in place.
    owned : list of (tuple of (str, int), array), optional
        Arrays of registered state, by the key of their memory.
    """

    def __init__(
        self,
        program: Program,
        watch: Watch,
        writes: bool = True,
        owned: list[tuple[MemoryKey, Any]] | None = None,
    ) -> None:
        self.program = program
        self.devices = DeviceTimes()
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
        #: Generators that were first drawn from in this run, by whom is not known.
        self.drawn_unseen: tuple[str, ...] = ()
        #: Methods that were wrapped in their class: their first argument is their object.
        self._methods = {path for path, node in program.nodes.items() if _takes_self(node)}
        self._fixed = {path: fixed_uses(node) for path, node in program.nodes.items()}
        self._whole: dict[tuple[str, int | None], Uses] = {}
        self._torch = torch_module() is not None
        self.lock = threading.RLock()
        self._references: dict[Any, CallRecord] = {}
        self._pending: dict[int, tuple[Any, CallRecord, Done]] = {}

    def open(
        self, node: ExecutionNode, context: CallContext, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> CallRecord:
        """Note that a call starts."""
        with self.lock:
            above = context.parent.record if self.records and context.parent is not None else None
            record = CallRecord(node, context, above)
            context.record = record
            self._event += 1
            if self._pending:
                self._collect()
            if args and node.path in self._methods:
                self.lineage.components.add(id(args[0]))
            if above is None:
                self._begin(args, kwargs)
            else:
                self._before_call(above)
                above.has_inner = True
            self._open[record] = None
            self.records.append(record)
            resolve, arrays = self.lineage.resolve, record.arrays
            if args:
                record.args = [resolve(value, arrays) for value in args]
            if kwargs:
                record.kwargs = {name: resolve(value, arrays) for name, value in kwargs.items()}
            if arrays:
                self._stamp_arguments(record, arrays)
            if self._writes:
                self._note_containers(record)
            if node.batch is not None:
                record.batch_size = batch_size(node, args, kwargs)
            if self._torch:
                record.modes = current_modes()
            fixed = self._fixed.get(node.path)
            if fixed is None:
                fixed = self._uses(node, context, args, kwargs, record.batch_size)
            record.accesses = fixed
        return record

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

    def _note_containers(self, record: CallRecord) -> None:
        """Note the lists, dicts and dataclasses that a call may change."""
        for raw in (*record.args, *record.kwargs.values()) if record.kwargs else record.args:
            if isinstance(raw, RawPack) or raw.items is not None:
                found = [(one, items) for one, items in self.lineage.containers(raw)]
                record.containers = [*record.containers, *found]
                for one, _ in found:
                    if isinstance(one, Known):
                        self.lineage.container_track(one).uses.append(record)

    def _find_changes(self, record: CallRecord) -> None:
        """Find containers that an innermost call has changed."""
        for raw, before in record.containers:
            parts = take_apart(raw.whole if isinstance(raw, RawPack) else raw.obj)
            now = () if parts is None else tuple(map(id, parts.items))
            if now == before:
                continue
            if isinstance(raw, RawPack):
                raw.is_changed = True
            else:
                raw.items = now
                self.lineage.container_track(raw).write(record, self._event)

    def _before_call(self, above: CallRecord) -> None:
        """Look at what the code around a call that starts has done since the last look."""
        if self._surroundings is not None or self._random:
            self._look_around(above, own=True)  # first, for it knows better names
        if self._watched:
            self._look(above, own=True)

    def _after_call(self, record: CallRecord) -> None:
        if self._surroundings is not None or self._random:
            self._look_around(record, own=record.has_inner)
        if self._watched:
            self._look(record, own=record.has_inner)

    def _look_around(self, record: CallRecord, *, own: bool) -> None:
        """Find what the code of a call did besides values; `own`: that of a call around others."""
        busy = [r for r in self._open if not r.has_inner and not r.node.children and not r.node.is_marked]
        drawn = self._drawn.moved() if self._random else ()
        if drawn and own and not busy:
            self._note_effects(record, [f"the position of the generator of {name}" for name in drawn])
        elif drawn:
            for user in busy if own else [*busy, record]:
                user.random = tuple(dict.fromkeys([*user.random, *drawn]))
        if self._surroundings is None:
            return
        if not own and not busy:  # what a call changes that nothing is called in is its business
            self._surroundings.renew()
            return
        if not own:
            busy = [*busy, record]
        changed = self._surroundings.changed([r.node.owner for r in busy])
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
        for obj in self._watch.kept.values():
            small = not is_array(obj) or is_tensor(obj) or obj.nbytes <= _WATCHED_BYTES
            self._start_watching(obj, only_once=not small or len(self._watched) >= _WATCHED)
        for array in self._watch.objects.values():
            self._start_watching(array)
        for path in self._watch.outputs.get("", ()):
            self._start_watching(at_path((args, kwargs), path))

    def _stamp_arguments(self, record: CallRecord, arrays: list[Known]) -> None:
        for known in arrays:
            track = known.memory
            assert track is not None
            track.uses.append(record)
            if not self._writes:
                continue
            seen = stamp_of(known.obj)
            if seen != known.stamp:
                if known.stamp is not None and track.written_at < known.stamped_at:
                    self.changes.append((known, record))
                known.stamp = seen
            known.stamped_at = self._event

    def close(self, record: CallRecord, output: Any, failed: bool = False) -> None:
        """Note that a call has ended; `output` is what it returned."""
        with self.lock:
            self._event += 1
            self._open.pop(record, None)
            self._after_call(record)
            if self._writes and record.arrays:
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
                for path in self._watch.outputs.get(record.id, ()) if self._watch.outputs else ():
                    self._start_watching(at_path(output, path))

    def _find_writes(self, record: CallRecord) -> None:
        for known in record.arrays:
            seen = stamp_of(known.obj)
            if seen != known.stamp:
                track = known.memory
                assert track is not None
                # it may be known already that a call inside this one wrote
                if not any(w is record or w.is_below(record) for w in track.writers):
                    track.write(record, self._event)
                known.stamp = seen
            known.stamped_at = self._event

    def _look(self, running: CallRecord, *, own: bool) -> None:
        """Look at what is watched: a change was made by the code that ran since the last look."""
        for known in self._watched:
            seen = stamp_of(known.obj)
            if seen != known.stamp:
                assert known.memory is not None
                known.memory.write(running, self._event)
                if own:
                    self._note_effects(running, [_named(known)])
                known.stamp = seen
            known.stamped_at = self._event

    def _start_watching(self, array: Any, only_once: bool = False) -> None:
        """Look at an array or object from now on; `only_once`: now, and when a call is given it."""
        if not is_followed(array):
            return
        found: list[Known] = []
        self.lineage.resolve(array, found)
        for known in found:
            if known not in self._watched:
                known.stamp, known.stamped_at = stamp_of(known.obj), self._event
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


def _takes_self(node: ExecutionNode) -> bool:
    return node.owner is None and node.parameters[:1] == ("self",) if not node.is_marked else False


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
