"""What is known of a generated program: its text, and what a user would declare about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: What a variable holds: a batch, shape (batch, WIDTH); a vector, shape (WIDTH,); a list of batches.
Kind = Literal["batch", "vector", "list"]
Mode = Literal["read", "update", "refresh"]


@dataclass(frozen=True)
class StateDecl:
    """A state object: the component itself (``rows``: one for each sample) or a `Box` of it.

    Parameters
    ----------
    name : str
        Of the state, and of the attribute of its component that holds it.
    component : str
        Attribute of the main object.
    kind : {"rows", "shared", "keyed"}
        By sample; one cell; one cell for each partition.
    partitions : int
        Of a keyed one.
    copies : int
        Spare objects.
    weights : bool
        Rollout weights.
    """

    name: str
    component: str
    kind: Literal["rows", "shared", "keyed"]
    partitions: int = 0
    copies: int = 0
    weights: bool = False


@dataclass(frozen=True)
class Use:
    """Declared use of a state; `key` is the parameter that says which partition, `position` its place."""

    state: str
    mode: Mode
    key: str | None = None
    position: int = 0


@dataclass(frozen=True)
class Site:
    """A node to be.

    Parameters
    ----------
    name : str
        Of the method, or of the attribute of the main object that holds a loop.
    owner : str
        Component, or ``main``.
    parent : str or None
        Name of the parent site.
    kind : {"leaf", "plain", "loop", "body"}
        ``loop``: marks its iterations in the code; ``body``: a method that is the body of a loop.
    count : int or None
        Of iterations.
    uses : tuple of Use
        Declared.
    declared : bool
        False: the program's author says nothing about it.
    stateless : bool
        Says that it has no state.
    batched : tuple of str or None
        Parameters with an axis of samples, if a batch of it may be cut.
    sequences : tuple of str
        Parameters that are lists of samples.
    unit : int
        Samples that see each other.
    shared_outputs : tuple of int
        Of its output.
    takes_samples : bool
        It has a parameter ``samples``.
    role : {"", "sync", "update"}
        As of `rlprof.overlap.specs.NodeSpec`.
    flavour : str
        ``call``, ``coroutine``, ``future``, ``buffer`` (returns the same array each time), ``argument``
        (changes its first argument), ``condition`` (a parent whose calls depend on data).
    """

    name: str
    owner: str
    parent: str | None
    kind: Literal["leaf", "plain", "loop", "body"] = "leaf"
    count: int | None = None
    uses: tuple[Use, ...] = ()
    declared: bool = True
    stateless: bool = False
    batched: tuple[str, ...] | None = None
    sequences: tuple[str, ...] = ()
    unit: int = 1
    shared_outputs: tuple[int, ...] = ()
    takes_samples: bool = False
    role: Literal["", "sync", "update"] = ""
    flavour: str = "call"


@dataclass(frozen=True)
class Generated:
    """A program and its declarations.

    Parameters
    ----------
    seed : int
        It alone decides.
    batch : int
        Samples.
    source : str
        Classes. ``Main`` has the components as attributes; a call of ``iteration(data)`` is an iteration.
    components : tuple of str
        Attributes of ``Main``; the class is the capitalised name.
    states, sites : tuple
        Parents before children; the first site is the root loop's body.
    region : str
        Site whose calls are recorded.
    """

    seed: int
    batch: int
    source: str
    components: tuple[str, ...]
    states: tuple[StateDecl, ...]
    sites: tuple[Site, ...]
    region: str

    def features(self) -> set[str]:
        """What there is in it, for counting."""
        found = {f"flavour {s.flavour}" for s in self.sites} | {f"kind {s.kind}" for s in self.sites}
        found |= {f"state {s.kind}" for s in self.states} | {
            f"mode {u.mode}" for s in self.sites for u in s.uses
        }
        found |= {f"role {s.role}" for s in self.sites if s.role}
        found |= {"undeclared" for s in self.sites if s.kind == "leaf" and not s.declared}
        found |= {"copies" for s in self.states if s.copies} | {"units" for s in self.sites if s.unit > 1}
        found |= {"sequences" for s in self.sites if s.sequences}
        found |= {"shared outputs" for s in self.sites if s.shared_outputs}
        found |= {"coroutine region"} if "async def iteration" in self.source else set()
        found |= {"draws"} if "noise(" in self.source else set()
        return found | ({"inner region"} if self.region != self.sites[0].name else set())
