"""Levers of embodied training: which there are here, their values, and how the program changes to them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof.cores import usable_cores
from rlprof.errors import UnreadableError
from rlprof.overlap.optimize.levers import Lever, Row, Value
from rlprof.unavailable import Unavailable
from rlprof.workloads.embodied.config import Config
from rlprof.workloads.embodied.errors import ConfigurationError
from rlprof.workloads.embodied.graph_facts import read_graph
from rlprof.workloads.embodied.rollout_worker import RolloutWorker
from rlprof.workloads.embodied.simulators.core_turns import MOST_PLACES
from rlprof.workloads.embodied.value_types import check_value, shown

if TYPE_CHECKING:
    from rlprof.workloads.embodied.optimize import Embodied

#: Levers, and the options that fix them; those of the graph have none.
LEVERS: dict[str, tuple[str, ...]] = {
    "cuda-graph": ("cuda_graph",),
    "rendering": ("rendering",),
    "workers": ("workers",),
    "groups": (),
    "in-turn": (),
    "priorities": (),
    "overlap-rendering": ("rendering",),
    "client-priority": ("simulator_low_priority",),
    "nice": ("simulator_nice",),
    "core-turns": ("simulator_cores",),
}
#: Values of `Config` that levers change.
LEVER_FIELDS = (
    *("cuda_graph", "rendering", "painters", "shadows", "workers"),
    *("simulator_low_priority", "simulator_nice", "simulator_cores"),
)
#: Values to try in place of those that are found here; a reason: the lever is not to be tried.
Wanted = Mapping[str, "tuple[Value, ...] | Unavailable | None"]


def wanted_levers(text: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Read which levers are to be tried.

    Parameters
    ----------
    text : str or None
        ``name,name=value/value``, or ``none``; None: all but those that an option fixes.
    given : mapping of str to value
        Options that were given.

    Raises
    ------
    ConfigurationError
        If there is no such lever, or a value is none of it.
    """
    if text is None:
        return {name: _fixed(name, given) for name in LEVERS}
    if text.strip() in ("", "none"):
        return {}
    found: dict[str, Any] = {}
    for part in text.split(","):
        name, has_values, values = part.strip().partition("=")
        if name not in LEVERS:
            raise ConfigurationError(
                f"no lever is called {name!r}", hint=f"use {', '.join(LEVERS)}, or none alone"
            )
        each = dict.fromkeys(_value(name, v) for v in values.split("/")) if has_values else None
        found[name] = None if each is None else tuple(each)
    return found


def _fixed(name: str, given: Mapping[str, Any]) -> Unavailable | None:
    for field in LEVERS[name]:
        if field in given:
            return Unavailable(f"--{field.replace('_', '-')} is given, which fixes it")
    return None


def _value(name: str, text: str) -> Value:
    number = int(text) if text.isdecimal() and len(text) < 20 else None  # Python refuses thousands of digits
    if name in ("workers", "groups", "core-turns"):
        least = {"workers": 1, "groups": 2, "core-turns": 0}[name]
        if number is not None and least <= number <= MOST_PLACES:
            return number
        numbers = f"numbers from {least} to {MOST_PLACES}"
        raise ConfigurationError(f"{name}={text}", hint=f"give {numbers}, such as {name}=2/4")
    if name == "nice":
        if number is not None and number <= 19:
            return number
        raise ConfigurationError(f"nice={text}", hint="give numbers from 0 to 19, such as nice=5/10")
    if name in ("rendering", "overlap-rendering"):
        from rlprof.workloads.embodied.simulators.libero import RENDERINGS

        if text in RENDERINGS:
            return text
        raise ConfigurationError(f"{name}={text}", hint=f"give {', '.join(RENDERINGS)}")
    raise ConfigurationError(f"{name} takes no values", hint=f"give {name} alone")


def setting_levers(here: Embodied, wanted: Wanted) -> list[Lever]:
    """Levers that change settings of the program, in the order in which they are tried."""
    made: dict[str, type[CudaGraph | Rendering | Workers]] = {
        "cuda-graph": CudaGraph,
        "rendering": Rendering,
        "workers": Workers,
    }
    return [made[name](here, values) for name, values in wanted.items() if name in made]


def chosen_values(config: Config, given: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the configuration that an optimisation chooses itself where no option says them.

    Parameters
    ----------
    config : Config
        As the options say.
    given : mapping of str to value
        Options that were given.

    Returns
    -------
    dict
        ``workers``: a simulator in its own process, for without one nothing works beside it.
    """
    return {} if config.workers or "workers" in given else {"workers": 1}


def settled_by_levers(before: Config, after: Config, rows: Iterable[Row]) -> dict[str, Any]:
    """Values that levers have changed, or left as they were after a trial: a graph file demands them."""
    applied = {name for row in rows if row.outcome != "does not apply" for name in LEVERS[row.lever]}
    found = {}
    for name in LEVER_FIELDS:
        value = getattr(after, name)
        if value != getattr(before, name) or (name in applied and value is not None):
            found[name] = value
    return found


def kept_levers(*files: Path | None) -> dict[str, Any]:
    """Values of the configuration with which graphs were selected: runs that are compared have the same.

    Those that the optimisation itself chose (``chosen``) are among them, also where no lever was tried.

    Raises
    ------
    UnreadableError
        If a file is no graph file, or names what is no lever.
    """
    found: dict[str, Any] = {}
    for path in files:
        if path is not None:
            facts = read_graph(path).facts
            levers = {**(facts.get("chosen") or {}), **(facts.get("levers") or {})}
            if unknown := sorted(set(levers) - set(LEVER_FIELDS)):
                raise UnreadableError(f"has a lever {shown(unknown[0])}", where=path, hint="optimise again")
            for name, value in levers.items():
                try:
                    check_value(Config, name, value)
                except ConfigurationError as error:
                    raise UnreadableError(
                        f"has a lever of which {error.what}", where=path, hint="optimise again"
                    ) from error
            found |= levers
    return found


def check_levers(config: Config, levers: Mapping[str, Any]) -> None:
    """Make sure that a configuration has the levers with which a graph was selected.

    Raises
    ------
    ConfigurationError
        If it has others.
    """
    for name, value in levers.items():
        if getattr(config, name, None) != value:
            raise ConfigurationError(
                f"the graph was selected with {name} {value}, and {getattr(config, name, None)} is set",
                hint=f"leave --{name.replace('_', '-')} away, or optimise with it",
            )


class CudaGraph:
    """Denoise steps as CUDA graphs; see `rlprof.overlap.optimize.levers.Lever`.

    Parameters
    ----------
    here : Embodied
        What is optimised.
    wanted : tuple of value, Unavailable or None
        As in `Wanted`.
    """

    name = "cuda-graph"

    def __init__(self, here: Embodied, wanted: Sequence[Value] | Unavailable | None = None) -> None:
        self._here, self._wanted = here, wanted
        rollout = here.trainer.rollout
        assert isinstance(rollout, RolloutWorker)
        self._policy = rollout.policy
        self._steps: Any = getattr(self._policy, "captured", None)

    @property
    def present(self) -> Value:
        """Whether steps are captured."""
        return self._here.config.cuda_graph

    def others(self) -> Sequence[Value] | Unavailable:
        """Say the other one of yes and no."""
        config = self._here.config
        if isinstance(self._wanted, Unavailable):
            return self._wanted
        if not config.device.startswith("cuda"):
            return Unavailable(f"rollouts compute on {config.device}, which has no CUDA graphs")
        if not config.policy_size.denoise_steps:
            return Unavailable(f"{config.policy} has no denoise steps")
        if config.policy_size.by_row:
            return Unavailable(f"the preset {config.preset} computes sample by sample")
        return (not config.cuda_graph,)

    def use(self, value: Value) -> None:
        """Capture steps, or run them eagerly; graphs that were captured are kept meanwhile."""
        if value and self._steps is None:
            self._policy.capture()
            self._steps = self._policy.captured
        self._policy.captured = self._steps if value else None

    def refused(self) -> str | None:
        """Why steps ran eagerly."""
        captured = self._policy.captured
        return None if captured is None or captured.refused is None else str(captured.refused)

    def keep(self, value: Value) -> None:
        """Drop the graphs if steps run eagerly."""
        self._here.config = replace(self._here.config, cuda_graph=bool(value))
        if not value:
            self._steps = None


class Exchanged(ABC):
    """A lever for which the simulator is exchanged, with its state."""

    name: str
    #: Whether spare simulators are exchanged too: they do no work before there is a graph.
    beside = False

    def __init__(self, here: Embodied, wanted: Sequence[Value] | Unavailable | None = None) -> None:
        self._here, self._wanted = here, wanted

    @property
    @abstractmethod
    def present(self) -> Value:
        """The value in use."""

    @abstractmethod
    def changes(self, value: Value) -> dict[str, Any]:
        """Values of the configuration."""

    def use(self, value: Value) -> None:
        """Let a simulator of this value work, in the state of the one before."""
        key = None if value == self.present else tuple(self.changes(value).items())
        if key is not None:  # each may be many processes: there is never more than one further simulator
            self._here.simulator.drop_all_but(None, key)
        self._here.simulator.use(key, beside=self.beside)

    def refused(self) -> str | None:
        """It is one or the other."""
        return None

    def keep(self, value: Value) -> None:
        """End the other simulators, and let spare ones be like it."""
        self._here.simulator.settle()
        self._here.config = replace(self._here.config, **self.changes(value))


class Rendering(Exchanged):
    """Where images are drawn; see `CudaGraph`. What is drawn stays alike: shadows are as they were."""

    name = "rendering"

    @property
    def present(self) -> Value:
        """One of `RENDERINGS`."""
        return self._here.config.rendering or "egl"

    def others(self) -> Sequence[Value] | Unavailable:
        """Say the other places."""
        from rlprof.workloads.embodied.simulators.libero import RENDERINGS

        config = self._here.config
        if isinstance(self._wanted, Unavailable):
            return self._wanted
        if config.simulator != "libero":
            return Unavailable(f"where {config.simulator} draws cannot be chosen")
        if not config.cameras:
            return Unavailable("no images are drawn")
        return tuple(r for r in self._wanted or RENDERINGS if r != self.present)

    def changes(self, value: Value) -> dict[str, Any]:
        """Values of the configuration."""
        config = self._here.config
        # by itself osmesa leaves shadows away: that would be other work
        shadows = self.present != "osmesa" if config.shadows is None else config.shadows
        found: dict[str, Any] = {"rendering": value, "shadows": shadows}
        if config.painters is not None and value != "egl-one":
            found["painters"] = None  # nothing else has any
        return found


class Workers(Exchanged):
    """Processes of the simulator; see `CudaGraph`."""

    name = "workers"

    @property
    def present(self) -> Value:
        """How many there are."""
        return min(self._here.config.workers, self._here.config.envs)

    def others(self) -> Sequence[Value] | Unavailable:
        """Say other numbers: those that give all processes as many environments, within the cores."""
        config = self._here.config
        if isinstance(self._wanted, Unavailable):
            return self._wanted
        if config.simulator == "mujoco_warp":
            return Unavailable("all environments of mujoco_warp are in one process")
        if not config.workers:
            return Unavailable("the simulator is in this process")
        tried = self._wanted or processes_to_try(config.envs, usable_cores())
        return tuple(n for n in tried if n != self.present and int(n or 0) <= config.envs)

    def changes(self, value: Value) -> dict[str, Any]:
        """Values of the configuration."""
        return {"workers": value}


def processes_to_try(envs: int, cores: int) -> tuple[int, ...]:
    """Numbers of processes for so many environments: one core each, all equally busy, and half as many."""
    most = min(envs, cores)
    even = -(-envs // -(-envs // most))  # the fewest with which none has more environments
    return tuple(sorted({most, even, max(1, even // 2)}))
