"""What was seen when a wrapped program ran natively: the input of dependency analysis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlprof.overlap.bindings import Binding, Pack, Path
from rlprof.overlap.forms import Form
from rlprof.overlap.modes import TorchModes
from rlprof.overlap.specs import Cell, Mode, NodeSpec, StateSpec

if TYPE_CHECKING:
    from rlprof.overlap.flags import Flag, Layout


@dataclass(frozen=True, slots=True)
class Unknown:
    """A leaf without a known origin: no output of a call, no argument, not the same in every run.

    Parameters
    ----------
    what : str
        Type and shape, for people.
    equal : bool
        It is an array, or a number of numpy, and its bits were the same in every run: that can be chance.
    """

    what: str
    equal: bool = False


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call of a node.

    Parameters
    ----------
    id : str
        As `rlprof.overlap.callgraph.Call.origin`; the same in every run of the region.
    node : str
        Path of the node.
    parent : str or None
        Id of the enclosing call; None for the region's own.
    indices : tuple of (str, int)
        Loop node and iteration, outermost first, inside the region.
    arguments : Pack
        Binding of ``(args, kwargs)``. A leaf without a known origin is a `Const` whose name begins with
        ``?``; its value in the table of constants is an `Unknown`.
    output : Binding
        What was returned: `Ref` to this very call for leaves that came into being in its own code, `Ref` to
        other calls for what it passes on.
    accesses : tuple of (Cell, mode)
        Declared accesses, partitions resolved; for a node that declares nothing, an update of each cell of
        its component. Cells by sample are listed one by one.
    memory : tuple of (Cell, mode)
        Arrays seen to be written in place, or read after such a write.
    batch_size : int or None
        Samples along the batch axis.
    start_ns, return_ns : int
        Host times (`time.monotonic_ns`).
    end_ns : int
        The later of `return_ns` and the completion of its device work.
    failed : bool
        It raised.
    modes : TorchModes or None
        Modes of torch in the thread that called; None without torch.
    effects : tuple of str
        What the code between the calls inside it changed in place.
    """

    id: str
    node: str
    parent: str | None
    indices: tuple[tuple[str, int], ...]
    arguments: Pack
    output: Binding
    accesses: tuple[tuple[Cell, Mode], ...]
    memory: tuple[tuple[Cell, Mode], ...]
    batch_size: int | None
    start_ns: int
    return_ns: int
    end_ns: int
    failed: bool = False
    modes: TorchModes | None = None
    effects: tuple[str, ...] = ()

    @property
    def duration_s(self) -> float:
        """Host start to the later of host return and device completion, in seconds."""
        return (self.end_ns - self.start_ns) / 1e9


@dataclass(frozen=True)
class Recording:
    """Native runs of a region.

    Parameters
    ----------
    region : str
        Path of its node.
    nodes : mapping of str to NodeSpec
        All nodes of the program by path.
    states : mapping of str to StateSpec
        All state objects by name, those found in memory included.
    runs : tuple of tuple of Invocation
        For each run the calls in the order in which they started, the region's own first.
    constants : mapping of str to object
        Values of `Const` bindings and types of `Pack` by name.
    form : Form or None
        What the region's arguments have in common in all runs.
    flags : mapping of str to tuple of Flag
        Values that calls returned, by call, that have to stay what they were in all runs.
    layouts : mapping of str to tuple of Layout
        Containers that calls returned, by call, which had the same items in all runs.
    not_joined : mapping of str to tuple of path
        Where the outputs of calls on batches hold what could not be joined of parts, by call.
    """

    region: str
    nodes: Mapping[str, NodeSpec]
    states: Mapping[str, StateSpec]
    runs: tuple[tuple[Invocation, ...], ...]
    constants: Mapping[str, Any]
    form: Form | None = None
    flags: Mapping[str, tuple[Flag, ...]] = field(default_factory=dict)
    layouts: Mapping[str, tuple[Layout, ...]] = field(default_factory=dict)
    not_joined: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
