"""What a graph file says of embodied training: each fact of the type that it has to be, whoever wrote it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlprof.errors import UnreadableError
from rlprof.overlap.optimize.graph_file import GraphFile
from rlprof.workloads.embodied.value_types import shown

#: More spare simulators than anything has rollout epochs for.
MOST_SPARES = 1000


def _named(value: Any) -> bool:
    return isinstance(value, Mapping)


def _spares(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST_SPARES


def _numbers(value: Any) -> bool:
    return isinstance(value, Mapping) and all(type(number) is int for number in value.values())


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


_FACTS: dict[str, Callable[[Any], bool]] = {
    "spares": _spares,
    "levers": _named,
    "chosen": _named,
    "config": _named,
    "stream_priorities": _numbers,
    "asked": _named,
    "kept": _names,
}


def read_graph(path: Path) -> GraphFile:
    """Read a graph file whose facts are those of embodied training.

    Raises
    ------
    UnreadableError
        If it is missing, damaged, of another version, or says what no optimisation does.
    UsageError
        If a step is none.
    """
    file = GraphFile.read(path)
    check_facts(file, path)
    return file


def check_facts(file: GraphFile, path: Path | None = None) -> None:
    """Refuse a graph file with a fact of another type; one that is not there, or None, is none.

    Raises
    ------
    UnreadableError
        If there is one.
    """
    for name, fits in _FACTS.items():
        value = file.facts.get(name)
        if value is not None and not fits(value):
            raise UnreadableError(f"says that {name} is {shown(value)}", where=path, hint="optimise again")
