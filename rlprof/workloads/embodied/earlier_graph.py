"""The graph that an earlier session of an optimisation left in its folder: it is not lost unsaid."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from rlprof.errors import OutputError, RlprofError, UnreadableError
from rlprof.files import read_bytes
from rlprof.overlap.optimize.graph_file import GraphFile
from rlprof.overlap.optimize.levers import Row
from rlprof.overlap.optimize.outcome import Optimization
from rlprof.trace.output import atomic_path
from rlprof.unavailable import Unavailable
from rlprof.workloads.embodied.graph_facts import read_graph
from rlprof.workloads.embodied.levers import Wanted
from rlprof.workloads.embodied.optimize_search import Request
from rlprof.workloads.embodied.quota_file import QuotaFile

#: Options of which more may be given to go on: what was tried before is tried again, and then more.
AT_LEAST = ("--rounds", "--targets", "--alternatives", "--pairs", "--local-pairs", "--spares")


def asked(request: Request) -> dict[str, Any]:
    """Options that decide what is found, for ``graph.json``; the budget is that of a session."""
    return {
        "--rounds": request.rounds,
        "--targets": request.targets,
        "--alternatives": request.alternatives,
        "--epsilon": request.epsilon,
        "--groups": ",".join(map(str, request.groups)),
        "--pairs": request.pairs,
        "--local-pairs": request.local_pairs,
        "--spares": request.spares,
        "--activity": request.activity,
        "--levers": levers_text(request.levers),
    }


def levers_text(wanted: Wanted) -> str:
    """Levers as `--levers` takes them, in the order of their names; those that an option fixes left out."""
    parts = []
    for name, values in sorted(wanted.items()):
        if not isinstance(values, Unavailable):
            parts.append(name if values is None else f"{name}={'/'.join(map(str, values))}")
    return ",".join(parts) or "none"


def kept(rows: Iterable[Row]) -> list[str]:
    """Names of the levers that were kept."""
    return [row.lever for row in rows if row.outcome == "kept"]


@contextmanager
def _kept(path: Path) -> Iterator[None]:
    """Say of a file that cannot be read how to go on without losing it."""
    try:
        yield
    except RlprofError as error:
        raise UnreadableError(
            f"what an earlier session found {error.what}",
            where=path,
            hint="move it to another folder, and --resume goes on without it",
        ) from error


@dataclass(frozen=True)
class EarlierGraph:
    """What was found before.

    Parameters
    ----------
    file : GraphFile
        With steps, or with levers that were kept.
    quotas : mapping of str to int
        Shares that were found for it.
    contents : mapping of str to bytes
        Its files as they are, by name.
    """

    file: GraphFile
    quotas: Mapping[str, int] = field(default_factory=dict)
    contents: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, quotas: Path) -> EarlierGraph | None:
        """Read it; None if there is none, or it is the native order as it was.

        Raises
        ------
        UnreadableError
            If a file is there that cannot be read: it would be lost, whatever it holds.
        """
        if not path.exists():
            return None
        with _kept(path):
            made = cls(read_graph(path), {}, {path.name: read_bytes(path)})
        if not (made.file.steps or made.levers):
            return None
        if not quotas.exists():
            return made
        with _kept(quotas):
            shares, contents = QuotaFile.read(quotas).quotas, read_bytes(quotas)
        return replace(made, quotas=shares, contents={**made.contents, quotas.name: contents})

    @property
    def levers(self) -> list[str]:
        """Levers that were kept; of a file that does not say it, what levers have settled."""
        found = self.file.facts.get("kept")
        return list(self.file.facts.get("levers") or {} if found is None else found)

    def check(self, request: Request, path: Path) -> None:
        """Refuse options with which less, or something else, would be found.

        Raises
        ------
        OutputError
            If one is given: the first that differs is named.
        """
        before, now = self.file.facts.get("asked") or {}, asked(request)
        for option, value in now.items():
            was = before.get(option, value)
            more = option in AT_LEAST and type(was) is type(value) and value > was
            if value != was and not more:
                raise OutputError(
                    f"the graph that is there was found with {option} {was}, not {value}",
                    where=path,
                    hint=f"give {option} {was}, or another --out; --force, without --resume, begins anew",
                )

    def outlives(self, found: Optimization) -> bool:
        """Whether it stays: it is of the same program, and a session came to less."""
        if found.native.hash != self.file.native_hash:
            return False
        before, now = len(self.file.steps), len(found.steps)
        if found.stopped and now < before:
            return True
        return not now and (before > 0 or not kept(found.levers))

    def goes_on_in(self, file: GraphFile) -> bool:
        """Whether what was found now has all of it: its steps, and more after them, and its levers."""
        settled, config = self.file.facts.get("levers") or {}, file.facts.get("config") or {}
        first, streams = (f.facts.get("stream_priorities") or {} for f in (self.file, file))
        return (
            file.native_hash == self.file.native_hash
            and file.steps[: len(self.file.steps)] == self.file.steps
            and all(config.get(name) == value for name, value in settled.items())
            and all(streams.get(name) == value for name, value in first.items())
        )

    def quotas_are_of(self, file: GraphFile) -> bool:
        """Whether shares that were found for it are of what was found now: the same graph and levers."""
        alike = ("levers", "stream_priorities")
        return file.graph_hash == self.file.graph_hash and all(
            (file.facts.get(name) or {}) == (self.file.facts.get(name) or {}) for name in alike
        )

    def set_aside(self, folder: Path) -> Path:
        """Write its files into a folder of their own within a folder, whole or not at all.

        Raises
        ------
        OutputError
            If they cannot be written.
        """
        aside = next(to for n in count(1) if not os.path.lexists(to := folder / f"earlier-{n}"))
        with atomic_path(aside, folder=True) as beside:
            for name, content in self.contents.items():
                (beside / name).write_bytes(content)
        return aside

    def to_dict(self, file: str) -> dict[str, Any]:
        """Say in ``result.json`` what it is, and in which file of the folder."""
        return {
            "file": file,
            "date": self.file.facts.get("date"),
            "steps": [str(one) for one in self.file.steps],
            "levers": dict(self.file.facts.get("levers") or {}),
            "quotas": dict(self.quotas),
        }

    def line(self, *, stays: bool) -> str:
        """Say in a line that it stays, or was set aside."""
        steps, date = len(self.file.steps), self.file.facts.get("date")
        what = [f"{steps} step{'' if steps == 1 else 's'}"] if steps else []
        what += [f"levers {', '.join(self.levers)}"] if self.levers else []
        what += [f"quotas {', '.join(f'{k} {v} %' for k, v in self.quotas.items())}"] if self.quotas else []
        of = f" of {date}" if date else ""
        became = "stays as it is" if stays else "was set aside for what this one found"
        return f"the graph that an earlier session{of} found {became} ({'; '.join(what)})"
