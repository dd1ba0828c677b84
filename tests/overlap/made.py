"""Recordings written by hand: a script of calls, run twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from rlprof.overlap.bindings import Binding, Const, External, Pack, Path, Ref, View, arguments
from rlprof.overlap.recording import Invocation, Recording, Unknown
from rlprof.overlap.specs import AccessSpec, Cell, Key, Mode, NodeSpec, Role, StateSpec

NOTHING = Const("None")


def value(call: str, *path: Key, view: View | None = None) -> Ref:
    return Ref(call, tuple(path), view)


@dataclass
class Script:
    """Writes one run: `with script.node("a")` opens a call, `script.call` makes one with nothing inside."""

    run: int
    nodes: dict[str, NodeSpec] = field(default_factory=dict)
    calls: list[Invocation] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    _open: list[tuple[str, str, tuple[tuple[str, int], ...]]] = field(default_factory=list)
    _results: dict[str, Binding] = field(default_factory=dict)
    _clock: int = 0

    def unknown(self, what: str = "numpy float64 (3,)") -> Const:
        name = f"?{len(self.constants)}.{self.run}"
        self.constants[name] = Unknown(what)
        return Const(name)

    def _start(self, path: str, call: str, fields: dict[str, Any]) -> int:
        parent = self._open[-1][1] if self._open else None
        indices = self._open[-1][2] if self._open else ()
        spec = fields.pop("spec", {})
        self.nodes.setdefault(
            path, NodeSpec(path, path.rpartition("/")[0] or None, **{"declared": True, **spec})
        )
        if self.nodes[path].kind == "loop" and self._open:
            indices = (*indices, (path, fields.pop("index")))
        self._open.append((path, call, indices))
        fields.setdefault("args", ())
        self._clock += 1
        self.calls.append(
            Invocation(
                id=call,
                node=path,
                parent=parent,
                indices=indices,
                arguments=arguments(tuple(fields["args"]), fields.get("kwargs", {})),
                output=NOTHING,
                accesses=tuple(fields.get("uses", ())),
                memory=tuple(fields.get("memory", ())),
                batch_size=fields.get("batch_size"),
                start_ns=self._clock,
                return_ns=0,
                end_ns=0,
                failed=fields.get("failed", False),
            )
        )
        return len(self.calls) - 1

    def _name(self, name: str, index: int | None) -> tuple[str, str]:
        path, call = (
            (f"{self._open[-1][0]}/{name}", f"{self._open[-1][1]}/{name}") if self._open else (name,) * 2
        )
        call += "" if index is None else f"[{index}]"
        used = sum(c.id == call or c.id.startswith(call + "#") for c in self.calls)
        return path, call + (f"#{used}" if used else "")

    @contextmanager
    def node(self, name: str, index: int | None = None, **fields: Any) -> Iterator[str]:
        """A call with calls inside; its result is set by `returns`."""
        path, call = self._name(name, index)
        if index is not None:
            fields["index"] = index
        place = self._start(path, call, fields)
        yield call
        self._open.pop()
        self._clock += fields.get("lasts_ns", 1)
        self.calls[place] = replace(
            self.calls[place],
            output=self._results.get(call, NOTHING),
            return_ns=self._clock,
            end_ns=self._clock,
        )

    def returns(self, binding: Binding) -> None:
        self._results[self._open[-1][1]] = binding

    def call(self, name: str, *args: Binding, uses: Any = (), **fields: Any) -> Ref:
        """A call with nothing inside; returns its output."""
        with self.node(name, args=args, uses=uses, **fields) as call:
            self.returns(Ref(call))
        return Ref(call)

    def loop(self, name: str, count: int, declared: int | None = -1, **fields: Any) -> Iterator[int]:
        """Iterations whose body is marked; `declared` is its count if that is another."""
        spec = {"kind": "loop", "count": count if declared == -1 else declared, **fields.pop("spec", {})}
        spec.setdefault("marked", True)
        for index in range(count):
            with self.node(name, index, spec=spec, **fields):
                yield index


def record(
    body: Callable[[Script], None], states: dict[str, dict[str, Any]] | None = None, runs: int = 2
) -> Recording:
    """Run a script `runs` times; `states` are fields of StateSpec by name."""
    scripts = [Script(run) for run in range(runs)]
    for script in scripts:
        body(script)
    nodes = {path: node for script in scripts for path, node in script.nodes.items()}
    constants = {name: thing for script in scripts for name, thing in script.constants.items()}
    region = scripts[0].calls[0].node if scripts else "region"
    specs = {name: StateSpec(name, **fields) for name, fields in (states or {}).items()}
    return Recording(
        region, nodes, specs, tuple(tuple(s.calls) for s in scripts), {"None": None, **constants}
    )


def use(mode: Mode, *cells: str | Cell) -> tuple[tuple[Cell, Mode], ...]:
    return tuple((cell if isinstance(cell, Cell) else Cell(cell), mode) for cell in cells)


__all__ = ["NOTHING", "AccessSpec", "External", "Pack", "Path", "Role", "Script", "record", "use", "value"]
