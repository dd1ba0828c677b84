"""From what was noted in several runs to a recording: bindings, constants, memory written in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from rlprof.overlap.bindings import Binding, Const, External, Pack, Ref, arguments
from rlprof.overlap.call_record import CallRecord
from rlprof.overlap.constants import Constants, equal_bits, is_same, is_scalar
from rlprof.overlap.errors import RecordingError
from rlprof.overlap.flags import find_flags, find_layouts, find_not_joined
from rlprof.overlap.forms import Form
from rlprof.overlap.known import Known, MemoryTrack, Raw, RawPack, is_shared, whole_of
from rlprof.overlap.recording import Invocation, Recording
from rlprof.overlap.specs import Cell, Mode, NodeSpec, StateSpec
from rlprof.overlap.trace import RunTrace
from rlprof.overlap.values import describe, take_apart


class Assembler:
    """Makes bindings of what was noted.

    Parameters
    ----------
    runs : sequence of RunTrace
        All runs, ended.
    states : mapping of str to StateSpec
        Declared state objects.
    owners : mapping of (str, int) to str
        State objects by the memory that they hold.
    """

    def __init__(
        self,
        runs: Sequence[RunTrace],
        states: Mapping[str, StateSpec],
        owners: Mapping[tuple[str, int], str],
    ) -> None:
        self.runs = runs
        self.constants = Constants()
        self.states = dict(states)
        self._owners = owners
        self._constant_names: dict[tuple[str, int], str] = {}
        self._ids = [[record.id for record in run.records] for run in runs]
        self._written = {
            id(track): track.writers for run in runs for track in run.lineage.memories if track.writers
        }
        self._memory = self._memory_accesses()

    def invocations(self) -> tuple[tuple[Invocation, ...], ...]:
        """Return the calls of every run."""
        by_id: dict[str, list[CallRecord]] = {}
        for run, ids in zip(self.runs, self._ids, strict=True):
            for record, name in zip(run.records, ids, strict=True):
                by_id.setdefault(name, []).append(record)
        bound: dict[int, tuple[Pack, Binding]] = {}
        for records in by_id.values():
            for record, ins, out in self._bind(records):
                bound[id(record)] = (ins, out)
        return tuple(
            tuple(
                self._invocation(record, name, *bound[id(record)])
                for record, name in zip(run.records, ids, strict=True)
            )
            for run, ids in zip(self.runs, self._ids, strict=True)
        )

    def _invocation(self, record: CallRecord, name: str, ins: Pack, out: Binding) -> Invocation:
        region = record
        while region.parent is not None:
            region = region.parent
        outside = len(region.context.indices)
        return Invocation(
            id=name,
            node=record.node.path,
            parent=None if record.parent is None else record.parent.id,
            indices=record.context.indices[outside:],
            arguments=ins,
            output=out,
            accesses=record.accesses,
            memory=tuple(self._memory.get(name, {}).items()),
            batch_size=record.batch_size,
            start_ns=record.start_ns,
            return_ns=record.return_ns,
            end_ns=max(record.end_ns, record.return_ns),
            failed=record.failed,
            modes=record.modes,
            effects=tuple(record.effects),
        )

    # bindings ----------------------------------------------------------------------------------------------

    def _bind(self, records: list[CallRecord]) -> list[tuple[CallRecord, Pack, Binding]]:
        """Arguments and output of the records of one call in all runs."""
        if len({(len(r.args), tuple(r.kwargs), r.output is None) for r in records}) > 1:
            return [one for record in records for one in self._bind([record])]
        positional = [self._settle([r.args[i] for r in records]) for i in range(len(records[0].args))]
        named = {k: self._settle([r.kwargs[k] for r in records]) for k in records[0].kwargs}
        if records[0].output is None:
            outputs: list[Binding] = [self.constants.const(None)] * len(records)
        else:
            outputs = self._settle([r.output for r in records if r.output is not None], made_by=records)
        return [
            (
                record,
                arguments(tuple(p[n] for p in positional), {k: v[n] for k, v in named.items()}),
                outputs[n],
            )
            for n, record in enumerate(records)
        ]

    def _settle(self, raws: list[Raw], made_by: list[CallRecord] | None = None) -> list[Binding]:
        """Bindings of one value in all runs."""
        packs = [raw for raw in raws if isinstance(raw, RawPack)]
        if len(packs) == len(raws):
            first = packs[0]
            if any((p.kind, p.keys) != (first.kind, first.keys) for p in packs):
                return [self._settle([raw], _nth(made_by, n))[0] for n, raw in enumerate(raws)]
            items = [self._settle([p.items[i] for p in packs], made_by) for i in range(len(first.items))]
            if any(p.is_changed for p in packs) and made_by is None:
                return [self._changed(p, "which the call changes in place") for p in packs]
            one_object = all(p.whole is first.whole for p in packs) and len(packs) > 1
            if one_object and first.kind != "tuple" and all(isinstance(b, Const) for i in items for b in i):
                return [self.constants.const(first.whole)] * len(packs)
            if one_object and first.kind != "tuple" and made_by is None:
                return [
                    self._changed(p, "kept from run to run and filled by the code between calls")
                    for p in packs
                ]
            kind = self.constants.kind(first.kind)
            return [Pack(kind, first.keys, tuple(item[n] for item in items)) for n in range(len(packs))]
        if packs:
            return [self._settle([raw], _nth(made_by, n))[0] for n, raw in enumerate(raws)]
        return self._leaves([raw for raw in raws if isinstance(raw, Known)], made_by)

    def _changed(self, pack: RawPack, how: str) -> Const:
        return self.constants.unknown(pack.whole, how)

    def _leaves(self, leaves: list[Known], made_by: list[CallRecord] | None) -> list[Binding]:
        open_ends = [k.record is None and not (k.external and not is_shared(k.obj)) for k in leaves]
        shared = all(is_shared(k.obj) for k in leaves)
        own = made_by is not None and all(
            k.record is record for k, record in zip(leaves, made_by, strict=True)
        )
        if (all(open_ends) or (shared and not own)) and self._is_constant(leaves):
            return [self.constants.const(leaves[0].obj)] * len(leaves)
        equal = len(leaves) > 1 and all(open_ends) and equal_bits([k.obj for k in leaves])
        if shared and not own and all(k.external for k in leaves):
            return [self._argument(leaves)] * len(leaves)
        return [self._origin(known, equal) for known in leaves]

    def _argument(self, leaves: list[Known]) -> Binding:
        """Which of the region's arguments a value is, told by values: one place must fit all runs."""
        places = set.intersection(*({known.path, *known.places} for known in leaves))
        if len(places) == 1:
            return External(places.pop())
        how = "equal to several arguments of the region" if places else "equal to other arguments in each run"
        return self.constants.unknown(leaves[0].obj, how)

    def _is_constant(self, leaves: list[Known]) -> bool:
        objects = [k.obj for k in leaves]
        if isinstance(objects[0], np.bool_):
            return False  # numpy has two of them, so that one object says nothing, and they come from arrays
        if all(o is objects[0] for o in objects):
            # of a single run nothing can be said but for what Python shares
            return len(objects) > 1 or is_scalar(objects[0])
        if any(known.maker is not None for known in leaves):
            return False  # made anew by a call's own code: equal perhaps because the runs had equal inputs
        return is_same(objects)

    def _origin(self, known: Known, equal: bool) -> Binding:
        if known.record is not None:
            return Ref(known.record.id, known.path, known.view)
        if known.external:
            return External(known.path, known.view)
        if known.maker is not None:
            record, path = known.maker
            return Ref(record.id, path, known.view)
        return self.constants.unknown(known.obj, equal=equal)

    # memory ------------------------------------------------------------------------------------------------

    def _memory_accesses(self) -> dict[str, dict[Cell, Mode]]:
        """For each call the memory that it writes in place, or uses while others write it."""
        found: dict[str, dict[Cell, Mode]] = {}
        for run in self.runs:
            for track in run.lineage.memories:
                owner = self._owners.get(track.key)
                if owner is None and not self._is_written(track):
                    continue
                cells = self._cells(track, owner)
                for record, mode in _uses(track):
                    cell_modes = found.setdefault(record.id, {})
                    for cell in cells:
                        if owner is not None and _declares(record, cell, mode):
                            continue
                        cell_modes[cell] = _stronger(cell_modes.get(cell), mode)
            for record in run.records:
                for generator in record.random:
                    cell = Cell(f"random:{generator}")
                    self.states.setdefault(cell.state, StateSpec(cell.state, memory=True))
                    found.setdefault(record.id, {})[cell] = "update"
        return {name: modes for name, modes in found.items() if modes}

    def _is_written(self, track: MemoryTrack) -> bool:
        names = self._names
        return bool(track.writers) or any(_name(known) in names for known in track.wholes)

    @property
    def _names(self) -> set[str]:
        """Names of memory that some run saw written."""
        if not hasattr(self, "_written_names"):
            self._written_names = {
                _name(known)
                for run in self.runs
                for track in run.lineage.memories
                if track.writers
                for known in track.wholes[:1]
            }
        return self._written_names

    def _cells(self, track: MemoryTrack, owner: str | None) -> Iterable[Cell]:
        if owner is not None:
            spec = self.states[owner]
            if spec.partitions is None:
                return [Cell(owner)]
            return [Cell(owner, k) for k in range(spec.partitions)]
        name = _name(track.wholes[0]) if track.wholes else self._constant_name(track)
        self.states.setdefault(name, StateSpec(name, memory=True))
        return [Cell(name)]

    def _constant_name(self, track: MemoryTrack) -> str:
        """Name memory that no call returned after the call that used it first, in the first run."""
        if track.key not in self._constant_names:
            first = next((r.id for r in (*track.uses, *track.writers)), "nobody")
            name, number = f"memory:given to {first}", 1
            while name in self._constant_names.values():
                number += 1
                name = f"memory:given to {first} {number}"
            self._constant_names[track.key] = name
        return self._constant_names[track.key]


def _nth(records: list[CallRecord] | None, n: int) -> list[CallRecord] | None:
    return None if records is None else [records[n]]


def _name(known: Known) -> str:
    call = "the arguments" if known.record is None else known.record.id
    path = "".join(f".{key}" for key in known.path)
    return f"memory:{call}{path}"


def _uses(track: MemoryTrack) -> list[tuple[CallRecord, Mode]]:
    found: list[tuple[CallRecord, Mode]] = []
    if track.creator is not None:
        found.append((track.creator, "refresh"))
    found += [(record, "read") for record in track.uses if not record.has_inner]
    found += [(record, "update") for record in track.writers]
    return found


def _stronger(known: Mode | None, mode: Mode) -> Mode:
    if known is None or known == mode:
        return mode
    return "refresh" if "refresh" in (known, mode) else "update"


def _declares(record: CallRecord, cell: Cell, mode: Mode) -> bool:
    declared = [m for c, m in record.accesses if c == cell]
    return bool(declared) and (mode == "read" or any(m != "read" for m in declared))


def assemble(
    region: str,
    runs: Sequence[RunTrace],
    nodes: Mapping[str, NodeSpec],
    states: Mapping[str, StateSpec],
    owners: Mapping[tuple[str, int], str],
    form: Form | None = None,
) -> Recording:
    """Make a recording of what was noted.

    Parameters
    ----------
    region : str
        Path of the node.
    runs : sequence of RunTrace
        Ended.
    nodes, states : mapping
        As in `Recording`.
    owners : mapping of (str, int) to str
        State objects by the memory that they hold (`memory_key`).
    form : Form, optional
        Of the region's arguments.

    Raises
    ------
    RecordingError
        If an array changed and it is not known who wrote.
    """
    made = Assembler(runs, states, owners)
    invocations = made.invocations()
    for known, seen_by in runs[-1].changes:
        if known.memory is not None and known.memory.key in owners:
            continue
        raise RecordingError(
            f"{describe(known.obj)} that {seen_by.id} was given had been changed since it was last seen, and"
            " no call was seen to write it",
            hint="record one run more, or declare a State that holds the array",
        )
    if len(runs) > 1 and runs[-1].drawn_unseen:
        raise RecordingError(
            f"{region} drew from the generator of {runs[-1].drawn_unseen[0]} in the last run alone, and it is"
            " not known which call did",
            hint="record one run more",
        )
    return Recording(
        region,
        _with_names(nodes, runs),
        made.states,
        invocations,
        made.constants.table,
        form,
        find_flags(runs),
        find_layouts(runs),
        find_not_joined(runs),
    )


def _with_names(nodes: Mapping[str, NodeSpec], runs: Sequence[RunTrace]) -> dict[str, NodeSpec]:
    """Nodes whose `shared_outputs` name items of named tuples also by their names, as bindings do."""
    found = dict(nodes)
    for record in (record for run in runs for record in run.records):
        node = found[record.node.path]
        if node.batch is None or not node.batch.shared_outputs or record.output is None:
            continue
        value = whole_of(record.output)
        parts = take_apart(value) if isinstance(value, tuple) else None
        named = () if parts is None else parts.keys
        shared = dict.fromkeys(node.batch.shared_outputs)
        shared |= dict.fromkeys(name for place, name in enumerate(named) if place in shared)
        if len(shared) > len(node.batch.shared_outputs):
            found[node.path] = replace(node, batch=replace(node.batch, shared_outputs=tuple(shared)))
    return found
