"""Transformations as data: what is kept of a graph is how to make it again from a fresh recording."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rlprof.errors import UsageError
from rlprof.overlap.callgraph import CallGraph
from rlprof.overlap.transforms import interleave, merge, rewire, split_chained, split_spatial, split_temporal
from rlprof.overlap.transforms.figure9 import train_beside_next_epoch

Kind = Literal[
    "split_spatial",
    "split_temporal",
    "split_chained",
    "interleave",
    "merge",
    "rewire",
    "train_beside_next_epoch",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
_FUNCTIONS: dict[Kind, Callable[..., CallGraph]] = {
    "split_spatial": split_spatial,
    "split_temporal": split_temporal,
    "split_chained": split_chained,
    "interleave": interleave,
    "merge": merge,
    "rewire": rewire,
    "train_beside_next_epoch": train_beside_next_epoch,
}
_TAKES: dict[Kind, frozenset[str]] = {
    "split_spatial": frozenset({"groups", "cuts", "downstream"}),
    "split_temporal": frozenset({"groups"}),
    "split_chained": frozenset({"segments", "cuts"}),
    "interleave": frozenset({"in_turn"}),
    "merge": frozenset(),
    "rewire": frozenset({"before", "after", "stream", "shift"}),
    "train_beside_next_epoch": frozenset({"training"}),
}
Value = int | str | tuple[int, ...] | tuple[str, ...]
#: What options hold, and whether it is several of that.
_HOLDS: dict[str, tuple[type, bool]] = {
    **dict.fromkeys(("groups", "segments", "shift"), (int, False)),
    **dict.fromkeys(("before", "after", "stream", "training"), (str, False)),
    "cuts": (int, True),
    **dict.fromkeys(("downstream", "in_turn"), (str, True)),
}


@dataclass(frozen=True, slots=True)
class Step:
    """One transformation of `rlprof.overlap.transforms`.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    target : str
        Path of the node it is applied to.
    options : tuple of (str, value)
        Its further arguments, by name.

    Raises
    ------
    UsageError
        If there is no such transformation, it takes no such argument or value, or an argument is lacking.
    """

    kind: Kind
    target: str
    options: tuple[tuple[str, Value], ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"no transformation is called {self.kind!r}", hint=f"one of {', '.join(KINDS)}")
        for name, value in self.options:
            if name not in _TAKES[self.kind]:
                takes = ", ".join(sorted(_TAKES[self.kind])) or "no further arguments"
                raise UsageError(f"{self.kind} takes no {name!r}", hint=f"it takes {takes}")
            kind, several = _HOLDS[name]
            items = value if several else (value,)
            # what comes from a file may be anything; True is a whole number to Python
            if not isinstance(items, tuple) or any(type(item) is not kind for item in items):
                one = "whole number" if kind is int else "text"
                raise UsageError(
                    f"{self.kind}: {name} is {value!r}",
                    hint=f"give {f'a list of {one}s' if several else f'a {one}'}",
                )
        if self.kind == "train_beside_next_epoch" and not self.options:
            raise UsageError(f"{self.kind} lacks 'training'", hint="name the loop over minibatches")
        object.__setattr__(self, "options", tuple(sorted(self.options)))

    def __str__(self) -> str:
        shown = "".join(
            f" {name}={','.join(map(str, value)) if isinstance(value, tuple) else value}"
            for name, value in self.options
        )
        return f"{self.kind} {self.target}{shown}"

    def to_dict(self) -> dict[str, Any]:
        """Return the step as a JSON document."""
        options = {n: list(v) if isinstance(v, tuple) else v for n, v in self.options}
        return {"kind": self.kind, "target": self.target, "options": options}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Step:
        """Make a step of its JSON document.

        Raises
        ------
        UsageError
            If the document is none of a step.
        """
        try:
            options = tuple(
                (str(n), tuple(v) if isinstance(v, list) else v) for n, v in dict(document["options"]).items()
            )
            return cls(document["kind"], str(document["target"]), options)
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError("a step of a graph file has no kind, target and options") from error


def step(kind: Kind, target: str, **options: Value) -> Step:
    """Make a step."""
    return Step(kind, target, tuple(options.items()))


def apply(graph: CallGraph, one: Step) -> CallGraph:
    """Apply a step.

    Raises
    ------
    IllegalTransformationError
        If it is refused, with the dependency, boundary or missing declaration that forbids it.
    """
    return _FUNCTIONS[one.kind](graph, one.target, **dict(one.options))


def derive(graph: CallGraph, steps: Iterable[Step]) -> CallGraph:
    """Apply steps one after another; errors as of `apply`."""
    for one in steps:
        graph = apply(graph, one)
    return graph
