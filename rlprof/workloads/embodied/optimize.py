"""An embodied workload for the optimiser: what it trains, what trials may change, where it runs."""

from __future__ import annotations

import copy
import gc
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof.errors import RlprofError
from rlprof.gpu_numbers import gpu_number
from rlprof.overlap.optimize.activity import ActivitySource, NoActivity, ProgramCores, SampledDevice
from rlprof.overlap.optimize.cost import RECORDING, START
from rlprof.overlap.optimize.machine import Machine
from rlprof.overlap.optimize.program import ProgramWorkload
from rlprof.overlap.optimize.store import Store
from rlprof.overlap.optimize.workload import Measurement
from rlprof.unavailable import Unavailable
from rlprof.workloads.embodied import checkpoint
from rlprof.workloads.embodied.ahead import AheadSimulator, ResetsAhead
from rlprof.workloads.embodied.build import make_simulator, make_trainer
from rlprof.workloads.embodied.conditions import conditions
from rlprof.workloads.embodied.config import Config
from rlprof.workloads.embodied.contracts import GlobalStep, Simulator
from rlprof.workloads.embodied.errors import ConfigurationError, need
from rlprof.workloads.embodied.exchange import Exchangeable
from rlprof.workloads.embodied.graph_driver import Answers
from rlprof.workloads.embodied.levers import LEVER_FIELDS
from rlprof.workloads.embodied.nodes import Wrapped, wrap_trainer

if TYPE_CHECKING:
    from rlprof.overlap.callgraph import Call, CallGraph
    from rlprof.workloads.embodied.rollout_share import RolloutShare
    from rlprof.workloads.embodied.trainer import Trainer


@dataclass
class Embodied:
    """A trainer that is being optimised.

    Parameters
    ----------
    trainer : Trainer
        What trains.
    wrapped : Wrapped
        Its nodes.
    workload : ProgramWorkload
        As the optimiser sees it.
    counter : Counter
        Trains.
    simulator : Exchangeable
        Keys are shares of the SMs in percent, or values of the configuration.
    config : Config
        With the levers that are kept so far; what is compared with the result has to have them too.
    resets : ResetsAhead
        Of the simulators; nothing is begun ahead in what the optimiser measures.
    share : RolloutShare or None
        Of the SMs that graphs answer with; None: there is no GPU.
    memory : CallBytes or None
        Meter of the GPU's memory; None: there is no GPU.
    first : int
        Iterations that a checkpoint had.
    """

    trainer: Trainer
    wrapped: Wrapped
    workload: ProgramWorkload
    counter: Counter
    simulator: Exchangeable
    config: Config
    resets: ResetsAhead
    share: RolloutShare | None = None
    memory: CallBytes | None = None
    first: int = 0

    @property
    def free_bytes(self) -> float | None:
        """GPU memory that calls may hold at once; None: there is no GPU."""
        return None if self.memory is None else self.memory.free()

    @property
    def key(self) -> str:
        """Program version, settings and hardware as they are now."""
        return key_of(self.config)

    @property
    def iterations(self) -> int:
        """Iterations trained so far, those of the recording included."""
        return self.counter.step


class Counter:
    """Trains one iteration after another."""

    def __init__(self, trainer: Trainer, first: int = 0) -> None:
        self.trainer, self.step = trainer, first
        #: No iteration was begun and not finished.
        self.whole = True

    def __call__(self) -> dict[str, Any]:
        """One iteration."""
        self.whole = False
        result = self.trainer.iteration(GlobalStep(self.step))
        self.step += 1
        self.whole = True
        return result


@contextmanager
def embodied(
    config: Config,
    out: Path,
    *,
    spares: int = 0,
    activity: str = "auto",
    resume: Path | None = None,
    store: Store | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[Embodied]:
    """Make a trainer, record two iterations of it, and give it as a workload; ends what it started.

    Parameters
    ----------
    config : Config
        What is trained; schedule ``colocated``.
    out : pathlib.Path
        Folder for files of a sampler, while it runs.
    spares : int
        Further simulators: copies of ENV, which let rollout epochs overlap.
    activity : {"auto", "program", "host", "off"}
        Where activity comes from: counters of the GPU that computes; without one the cores that this program
        keeps busy (``program``), or all of the host's (``host``).
    resume : pathlib.Path, optional
        A checkpoint to go on from, if it is there.
    store : Store, optional
        Told what this takes and trains. Its session begins here, once the checkpoint is known to be good.
    say : callable, optional
        Told what is going on.

    Raises
    ------
    ConfigurationError
        If the schedule is none that is wrapped as nodes.
    WorkloadError
        If a part cannot be made.
    """
    if config.schedule != "colocated":
        raise ConfigurationError(
            f"the schedule {config.schedule} is no program of nodes", hint="optimise --schedule colocated"
        )
    if config.train_pipe or config.env_prefetch:
        raise ConfigurationError(
            "overlap by --train-pipe or --env-prefetch is no program of nodes", hint="leave them away"
        )
    store = Store() if store is None else store  # an empty one is false
    with ExitStack() as stack:
        spending = stack.enter_context(ExitStack())
        spending.enter_context(store.spending(START))
        torch = need("torch", why="a policy")
        cuda = config.device.startswith("cuda")
        if not cuda:
            torch.set_num_threads(1)
        say("starting simulators and policy")
        trainer = make_trainer(config)
        first_one = _ahead(trainer.env.simulator, config)
        stack.callback(first_one.close)

        def made(key: int | tuple[tuple[str, Any], ...] | None) -> Simulator:
            changes = dict(key) if isinstance(key, tuple) else {"simulator_sm_percent": key}
            return _ahead(make_simulator(replace(here.config, **changes), trainer.env.cores), config)

        further = []
        for _ in range(spares):
            spare = make_simulator(config, trainer.env.cores)
            further.append(Exchangeable(_ahead(spare, config), made))
            stack.callback(further[-1].close)
        simulator = Exchangeable(first_one, made, further)
        trainer.env.simulator = simulator
        stack.callback(simulator.close)
        first = 0
        if resume is not None and resume.exists():
            first = checkpoint.load(resume, trainer, config.to_dict(), may_differ=LEVER_FIELDS)
        wrapped = wrap_trainer(trainer, further)
        stack.callback(wrapped.unwrap)
        train = Counter(trainer, first)
        store.begin(conditions(config), goes_on_from=first, trained=lambda: train.step)
        spending.close()
        spending.enter_context(store.spending(RECORDING))
        say("recording two iterations")
        took: list[float] = []

        def recorded() -> None:
            for _ in range(2):
                began = time.monotonic()
                train()
                if cuda:
                    torch.cuda.synchronize(config.device)
                took.append(time.monotonic() - began)

        recording = wrapped.program.record(wrapped.nodes["iteration"], runs=2, run=recorded)
        for number, time_s in enumerate(took, first):
            store.train("native, recorded", Measurement(time_s), number)
        gc.collect()  # what calls were given and returned is in cycles, and holds memory of the device
        source = _activity(config, out, activity, trainer, further)
        stack.callback(source.close)

        memory = CallBytes(torch, config.device)
        resets = ResetsAhead((simulator, *further))

        def synchronise() -> None:
            if cuda:
                torch.cuda.synchronize(config.device)

        machine = machine_of(config)
        share = getattr(trainer.rollout, "share", None)
        workload = ProgramWorkload(
            wrapped.program,
            recording,
            train,
            key=key_of(config),
            states=restorables(trainer),
            arguments=lambda: ((GlobalStep(train.step),), {}),
            activity=source,
            activity_from=asked_of(config, activity),
            synchronise=synchronise,
            facts=lambda: {} if machine.gpu_reason is None else {"gpu": machine.gpu_reason},
            watch=lambda graph: Answers(trainer, graph, resets.countdown(graph)),
            call_bytes=memory.estimates,
            meter=memory.watch if cuda else None,
            machine=machine,
            sm_shares=None if share is None else share.shares,
        )
        spending.close()
        meter = memory if cuda else None
        here = Embodied(trainer, wrapped, workload, train, simulator, config, resets, share, meter, first)
        yield here


def _ahead(simulator: Simulator, config: Config) -> Simulator:
    return AheadSimulator(simulator) if config.reset_ahead else simulator


def asked_of(config: Config, activity: str) -> str:
    """What ``--activity`` asks: without a GPU ``auto`` is ``program``."""
    return "program" if activity == "auto" and not config.device.startswith("cuda") else activity


def _activity(config: Config, out: Path, wanted: str, trainer: Trainer, further: list[Any]) -> ActivitySource:
    wanted = asked_of(config, wanted)
    if wanted == "off":
        return NoActivity("not asked for")
    if wanted == "program":
        simulators = [trainer.env.simulator, *further]

        def processes() -> list[int]:
            return [pid for s in simulators for pid in getattr(s, "process_ids", ())]

        return ProgramCores(processes)
    device = gpu_number(config.device) if wanted == "auto" else None
    if isinstance(device, Unavailable):
        return NoActivity(device.reason)
    try:
        return SampledDevice(out, device)
    except RlprofError as error:
        return NoActivity(error.what)


class CallBytes:
    """How much GPU memory each call holds while it runs, seen in an iteration in which nothing overlaps.

    Parameters
    ----------
    torch : module
        PyTorch.
    device : str
        The GPU.
    """

    def __init__(self, torch: Any, device: str) -> None:
        self._torch, self._device = torch, device
        self._before = 0
        self._found: dict[str, float] = {}

    def watch(self, _graph: CallGraph) -> CallBytes:
        """Return what sees the calls of one iteration."""
        return self

    def started(self, _call: Call, _arguments: Any) -> None:
        """A call begins."""
        cuda = self._torch.cuda
        cuda.synchronize(self._device)
        cuda.reset_peak_memory_stats(self._device)
        self._before = cuda.memory_allocated(self._device)

    def ended(self, call: Call) -> None:
        """It has returned."""
        cuda = self._torch.cuda
        cuda.synchronize(self._device)
        more = float(cuda.max_memory_allocated(self._device) - self._before)
        self._found[call.node] = max(self._found.get(call.node, 0.0), more)

    def estimates(self) -> dict[str, float] | None:
        """Bytes by node; spare simulators hold theirs in processes of their own. None: nothing was seen."""
        return {**self._found, "state:ENV": 0.0} if self._found else None

    def free(self) -> float:
        """Bytes of the GPU that this process may still take."""
        cuda = self._torch.cuda
        free, _ = cuda.mem_get_info(self._device)
        kept = cuda.memory_reserved(self._device) - cuda.memory_allocated(self._device)
        return float(free + kept)


class Restored:
    """Something with a ``state_dict`` as state of a trial.

    Parameters
    ----------
    obj : object
        It loads such a dict in place: a simulator, a policy, an optimiser.
    numbers : mapping of str to object
        Attributes that belong to it, and whose they are.
    copies : list of Tensor
        Copies of 32 bits that are trained in place of weights.
    """

    def __init__(
        self, obj: Any, numbers: Mapping[str, Any] | None = None, copies: Sequence[Any] = ()
    ) -> None:
        self._obj, self._numbers, self._copies = obj, dict(numbers or {}), copies

    def snapshot(self) -> Any:
        """Return a copy of everything."""
        numbers = {name: getattr(owner, name) for name, owner in self._numbers.items()}
        return _copied(self._obj.state_dict()), _copied(list(self._copies)), numbers

    def restore(self, snapshot: Any) -> None:
        """Put it back, in place."""
        state, copies, numbers = snapshot
        self._obj.load_state_dict(_copied(state))
        for mine, kept in zip(self._copies, copies, strict=True):
            mine.data.copy_(kept)
        for name, value in numbers.items():
            setattr(self._numbers[name], name, value)


def restorables(trainer: Trainer) -> dict[str, Any]:
    """What trials may change, by the name of the state."""
    return {
        "ENV": Restored(trainer.env.simulator),
        "W": Restored(trainer.rollout.policy, {"version": trainer.rollout}),
        "THETA": Restored(trainer.actor.policy, {"updates": trainer.actor}, trainer.actor.copies()),
        "OPT": Restored(trainer.actor.optimizer),
    }


def _copied(value: Any) -> Any:
    if hasattr(value, "detach"):
        return value.detach().clone()
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copied(v) for v in value)
    return copy.copy(value)


def machine_of(config: Config) -> Machine:
    """Return what looks at the load of others, clocks and throttling beside trials."""
    return Machine(gpu_number(config.device) if config.device.startswith("cuda") else None)


def key_of(config: Config) -> str:
    """Program version, settings and conditions: measurements of another key are not reused."""
    return sha256(json.dumps(conditions(config), sort_keys=True, default=str).encode()).hexdigest()
