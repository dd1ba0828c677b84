"""The training loop as a hierarchy of execution nodes: what each call reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlprof.overlap import Batch, ExecutionNode, LoopNode, Program, State, reads, refreshes, updates, wrap
from rlprof.workloads.embodied.contracts import Simulator
from rlprof.workloads.embodied.errors import ConfigurationError
from rlprof.workloads.embodied.rollout_worker import RolloutWorker
from rlprof.workloads.embodied.trainer import Trainer

#: Component workers. The host makes what an answer needs before the device has work for it: its noise, and
#: copies of what was observed. Of one group it does so beside the answers of another; the vision tower too,
#: and with a prefix worker the backbone.
ENV, ROLLOUT, ACTOR, HOST, VISION = "env", "rollout", "actor", "host", "vision"


@dataclass
class Wrapped:
    """A wrapped trainer.

    Parameters
    ----------
    program : Program
        Its nodes and states.
    nodes : dict of str to ExecutionNode
        By name.
    states : dict of str to State
        ENV, W (rollout weights), THETA (trained weights), OPT (optimiser).
    """

    program: Program
    nodes: dict[str, ExecutionNode]
    states: dict[str, State]

    def unwrap(self) -> None:
        """Put the trainer back as it was."""
        self.program.uninstall()
        self.program.unwrap()


def wrap_trainer(trainer: Trainer, spares: Sequence[Simulator] = ()) -> Wrapped:
    """Put nodes in place of the methods of a trainer and its workers; what they compute stays the same.

    Parameters
    ----------
    trainer : Trainer
        Its code goes on calling ``rollout.predict``.
    spares : sequence of Simulator
        Further simulators of the same sizes and seed: copies of ENV, which let epochs overlap.
    """
    env, rollout, actor = trainer.env, trainer.rollout, trainer.actor
    if not isinstance(rollout, RolloutWorker):
        raise ConfigurationError(
            "the rollout worker is a process of its own, and its phases cannot be wrapped",
            hint="leave --rollout-process away",
        )
    simulator, policy = env.simulator, rollout.policy
    envs = simulator.spec.envs
    # simulators in processes of their own: that of one epoch moves while another's does
    apart = all(getattr(one, "process_ids", ()) for one in (simulator, *spares))
    state_env = State(
        "ENV",
        simulator,
        component=ENV,
        partitions=envs,
        by_sample=True,
        copies=tuple(spares),
        separate=bool(spares) and apart,
    )
    w = State("W", policy, component=ROLLOUT, rollout_weights=True)
    theta = State("THETA", actor.policy, component=ACTOR)
    opt = State("OPT", actor.optimizer, component=ACTOR)

    unit = simulator.spec.unit

    def world(*parameters: str) -> Batch:
        return Batch(parameters=parameters, samples="samples", unit=unit, invariant=simulator.spec.invariant)

    def rows(*parameters: str, samples: str | None = None) -> Batch:
        return Batch(parameters=parameters, samples=samples, unit=unit, invariant=policy.spec.invariant)

    program = Program()
    n: dict[str, ExecutionNode] = {}
    n["iteration"] = top = wrap(trainer, "iteration", program, loop=True)
    n["sync_weights"] = wrap(
        rollout,
        "sync_model_from_actor",
        top,
        reads(theta),
        refreshes(w),
        name="sync_weights",
        component=ROLLOUT,
        role="sync",
    )
    n["generate_rollouts"] = generate = wrap(trainer, "generate_rollouts", top)
    n["rollout_epoch"] = epoch = wrap(trainer, "rollout_epoch", generate, count=trainer.epochs)
    # environments that reset by themselves go on where they were
    begins = (updates if env.auto_reset else refreshes)(state_env)
    n["bootstrap_step"] = boot = wrap(
        env, "bootstrap_step", epoch, component=ENV, stateless=True, batch=world()
    )
    n["reset"] = wrap(simulator, "reset", boot, begins, component=ENV, batch=world())
    n["chunk"] = chunk = LoopNode(trainer.chunks, epoch, name="chunk")
    trainer.chunk = chunk
    _wrap_predict(n, rollout, chunk, w, rows)
    if actor.algorithm.uses_value:
        n["predict_values"] = wrap(
            rollout,
            "predict_values",
            epoch,
            reads(w),
            component=ROLLOUT,
            batch=rows("observation", samples="samples"),
        )
    n["env_interact_step"] = step = wrap(
        env, "env_interact_step", chunk, component=ENV, stateless=True, batch=world("actions")
    )
    if env.phases:
        phases = [("physics", updates, ("actions",)), ("reward", updates, ())]
        phases += [("auto_reset", updates, ())] if env.auto_reset else []
        phases += [("render", reads, ())]
        for name, mode, parameters in phases:
            n[name] = wrap(simulator, name, step, mode(state_env), component=ENV, batch=world(*parameters))
    else:
        n["step"] = wrap(simulator, "step", step, updates(state_env), component=ENV, batch=world("actions"))
    n["cal_adv_and_returns"] = advantages = wrap(trainer, "cal_adv_and_returns", top)
    n["compute_adv"] = wrap(actor, "compute_adv", advantages, component=ACTOR, stateless=True)
    n["actor_training"] = training = wrap(trainer, "actor_training", top)
    n["update_epoch"] = passes = LoopNode(trainer.update_epochs, training, name="update_epoch")
    n["part"] = part = LoopNode(trainer.parts, passes, name="part")
    n["global_batch"] = batch = LoopNode(trainer.minibatches, part, name="global_batch")
    trainer.update_epoch, trainer.part, trainer.global_batch = passes, part, batch
    program.on_unwrap(lambda: _unmark(trainer))
    n["shuffle"] = wrap(actor, "shuffle", part, component=ACTOR, stateless=True)
    n["training_step"] = wrap(
        actor, "training_step", batch, updates(theta, opt), component=ACTOR, role="update"
    )
    return Wrapped(program, n, {s.name: s for s in (state_env, w, theta, opt)})


def _wrap_predict(
    n: dict[str, ExecutionNode],
    rollout: RolloutWorker,
    chunk: ExecutionNode,
    w: State,
    rows: Callable[..., Batch],
) -> None:
    policy = rollout.policy
    by_sample = rows("observation", samples="samples")
    n["predict"] = predict = wrap(
        rollout, "predict", chunk, component=ROLLOUT, stateless=True, batch=by_sample
    )

    n["noise"] = wrap(policy, "noise", predict, component=HOST, stateless=True, batch=by_sample)
    copied = rows("observation", "noise")
    n["upload"] = wrap(policy, "upload", predict, component=HOST, stateless=True, batch=copied)
    # bound by launches, the tower leaves room to the denoise steps of another group
    n["vision"] = wrap(policy, "vision", predict, reads(w), component=VISION, batch=rows("seen"))
    method, sent = "answer", rows("features", "noise")
    if rollout.apart:
        n["backbone"] = wrap(policy, "backbone", predict, reads(w), component=VISION, batch=rows("features"))
        method, sent = "answer_from", rows("prefix", "features", "noise")
    mine = (reads(w),) if rollout.whole else ()
    n["answer"] = answer = wrap(
        rollout,
        method,
        predict,
        *mine,
        name="answer",
        component=ROLLOUT,
        stateless=not rollout.whole,
        batch=sent,
    )
    if rollout.whole:
        return

    def phase(name: str, parent: ExecutionNode, *parameters: str, weights: bool = True) -> None:
        n[name] = wrap(
            policy,
            name,
            parent,
            *(reads(w) if weights else ()),
            component=ROLLOUT,
            stateless=not weights,
            batch=rows(*parameters),
        )

    if not rollout.apart:
        phase("backbone", answer, "features")
    phase("start", answer, "noise", weights=False)
    if policy.spec.denoise_steps:
        n["denoise"] = denoise = LoopNode(policy.spec.denoise_steps, answer, name="denoise")
        rollout.denoise = denoise
        phase("denoise_step", denoise, "point", "prefix", "features", "noise")
    phase("decode", answer, "points", "prefix", "noise")


def _unmark(trainer: Trainer) -> None:
    trainer.chunk = trainer.update_epoch = trainer.part = trainer.global_batch = iter
    if isinstance(trainer.rollout, RolloutWorker):
        trainer.rollout.denoise = iter
