"""Pipelines of known algorithms: PPO, GRPO, DPO; sharing of actor and critic (specification B, section 1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from rlprof.planning.errors import PipelineError
from rlprof.planning.pipeline import Container, Invocation, Link, Model, Pipeline
from rlprof.planning.shapes import ModelShape, shape_named

#: Names of the built-in algorithms.
ALGORITHMS = ("ppo", "grpo", "dpo")
ACTOR, CRITIC, REFERENCE, REWARD = "actor", "critic", "reference", "reward"
SHARED = "actor_critic"

_RESPONSES = "B*R*L_r"
_DATA = {
    "prompts": "B*L_p",
    "sequences": "B*R*(L_p+L_r)",
    "actor_logprobs": _RESPONSES,
    "reference_logprobs": _RESPONSES,
    "values": _RESPONSES,
    "rewards": "B*R",
}


def _shape(shape: ModelShape | str) -> ModelShape:
    return shape_named(shape) if isinstance(shape, str) else shape


def weights(model: str) -> str:
    """Name of the container that holds the weights of a model."""
    return f"{model}_weights"


def _containers(data: Iterable[str], models: Iterable[Model]) -> tuple[Container, ...]:
    held = tuple(Container(weights(m.name), weights_of=m.name) for m in models)
    return tuple(Container(name, _DATA[name]) for name in data) + held


def ppo(
    actor: ModelShape | str,
    critic: ModelShape | str,
    reward: ModelShape | str,
    reference: ModelShape | str | None = None,
    *,
    staleness: Mapping[str, int] | None = None,
) -> Pipeline:
    """Proximal policy optimisation with a learned critic and a reward model.

    Parameters
    ----------
    actor, critic, reward : ModelShape or str
        Shapes, or names of shapes.
    reference : ModelShape or str, optional
        The actor's by default.
    staleness : mapping of str to int, optional
        tau of "actor" and "critic"; 0 by default.

    Raises
    ------
    UnknownShapeError, PipelineError
        If a name is not known, or a staleness is not for a trainable model.
    """
    models = (
        Model(ACTOR, _shape(actor), trainable=True),
        Model(REFERENCE, _shape(reference or actor)),
        Model(REWARD, _shape(reward), "scalar"),
        Model(CRITIC, _shape(critic), "scalar", trainable=True),
    )
    w = {m.name: weights(m.name) for m in models}
    learned_from = ("sequences", "reference_logprobs", "rewards", "values")
    return Pipeline(
        "ppo",
        models,
        _containers(_DATA, models),
        (
            Invocation(
                "actor_generation",
                "generation",
                ACTOR,
                (w[ACTOR], "prompts"),
                ("sequences", "actor_logprobs"),
            ),
            Invocation(
                "reference_inference",
                "inference",
                REFERENCE,
                (w[REFERENCE], "sequences"),
                ("reference_logprobs",),
            ),
            Invocation("reward_inference", "inference", REWARD, (w[REWARD], "sequences"), ("rewards",)),
            Invocation("critic_inference", "inference", CRITIC, (w[CRITIC], "sequences"), ("values",)),
            Invocation(
                "actor_training", "training", ACTOR, (w[ACTOR], "actor_logprobs", *learned_from), (w[ACTOR],)
            ),
            Invocation("critic_training", "training", CRITIC, (w[CRITIC], *learned_from), (w[CRITIC],)),
        ),
        data=(
            *(Link("actor_generation", f"{m}_inference", "sequences") for m in (REFERENCE, REWARD, CRITIC)),
            *(
                Link(source, f"{m}_training", what)
                for source, what in (
                    ("reference_inference", "reference_logprobs"),
                    ("reward_inference", "rewards"),
                    ("critic_inference", "values"),
                )
                for m in (ACTOR, CRITIC)
            ),
        ),
        publications=(
            Link("actor_training", "actor_generation", w[ACTOR]),
            Link("critic_training", "critic_inference", w[CRITIC]),
        ),
        inputs=("prompts", w[REFERENCE], w[REWARD]),
        staleness=tuple((staleness or {}).items()),
    )


def grpo(
    actor: ModelShape | str,
    reward: ModelShape | str,
    reference: ModelShape | str | None = None,
    *,
    staleness: Mapping[str, int] | None = None,
) -> Pipeline:
    """Group-relative policy optimisation: no critic; the rollouts of a prompt are its baseline.

    Parameters and errors as of `ppo`.
    """
    models = (
        Model(ACTOR, _shape(actor), trainable=True),
        Model(REFERENCE, _shape(reference or actor)),
        Model(REWARD, _shape(reward), "scalar"),
    )
    w = {m.name: weights(m.name) for m in models}
    learned_from = ("sequences", "actor_logprobs", "reference_logprobs", "rewards")
    return Pipeline(
        "grpo",
        models,
        _containers((c for c in _DATA if c != "values"), models),
        (
            Invocation(
                "actor_generation",
                "generation",
                ACTOR,
                (w[ACTOR], "prompts"),
                ("sequences", "actor_logprobs"),
            ),
            Invocation(
                "reference_inference",
                "inference",
                REFERENCE,
                (w[REFERENCE], "sequences"),
                ("reference_logprobs",),
            ),
            Invocation("reward_inference", "inference", REWARD, (w[REWARD], "sequences"), ("rewards",)),
            Invocation("actor_training", "training", ACTOR, (w[ACTOR], *learned_from), (w[ACTOR],)),
        ),
        data=(
            Link("actor_generation", "reference_inference", "sequences"),
            Link("actor_generation", "reward_inference", "sequences"),
            Link("reference_inference", "actor_training", "reference_logprobs"),
            Link("reward_inference", "actor_training", "rewards"),
        ),
        publications=(Link("actor_training", "actor_generation", w[ACTOR]),),
        inputs=("prompts", w[REFERENCE], w[REWARD]),
        staleness=tuple((staleness or {}).items()),
    )


def dpo(
    actor: ModelShape | str,
    reference: ModelShape | str | None = None,
    *,
    staleness: Mapping[str, int] | None = None,
) -> Pipeline:
    """Direct preference optimisation: offline, on pairs of responses.

    In the workload a prompt then has two rollouts, the chosen and the rejected one.

    Parameters and errors as of `ppo`.
    """
    models = (Model(ACTOR, _shape(actor), trainable=True), Model(REFERENCE, _shape(reference or actor)))
    w = {m.name: weights(m.name) for m in models}
    return Pipeline(
        "dpo",
        models,
        _containers(("sequences", "actor_logprobs", "reference_logprobs"), models),
        (
            Invocation(
                "reference_inference",
                "inference",
                REFERENCE,
                (w[REFERENCE], "sequences"),
                ("reference_logprobs",),
            ),
            Invocation("actor_inference", "inference", ACTOR, (w[ACTOR], "sequences"), ("actor_logprobs",)),
            Invocation(
                "actor_training",
                "training",
                ACTOR,
                (w[ACTOR], "sequences", "actor_logprobs", "reference_logprobs"),
                (w[ACTOR],),
            ),
        ),
        data=(
            Link("reference_inference", "actor_training", "reference_logprobs"),
            Link("actor_inference", "actor_training", "actor_logprobs"),
        ),
        publications=(Link("actor_training", "actor_inference", w[ACTOR]),),
        inputs=("sequences", w[REFERENCE]),
        staleness=tuple((staleness or {}).items()),
    )


def algorithm_named(name: str, shapes: Mapping[str, ModelShape | str], **more: Mapping[str, int]) -> Pipeline:
    """Return a built-in pipeline by name.

    Parameters
    ----------
    name : str
        One of `ALGORITHMS`.
    shapes : mapping of str to ModelShape or str
        By model: "actor", "critic", "reward", "reference".
    **more
        ``staleness``.

    Raises
    ------
    PipelineError
        If there is no such algorithm, or a model is missing or foreign.
    """
    makers = {"ppo": ppo, "grpo": grpo, "dpo": dpo}
    needs = {"ppo": (ACTOR, CRITIC, REWARD), "grpo": (ACTOR, REWARD), "dpo": (ACTOR,)}
    if name not in makers:
        raise PipelineError(
            f"unknown algorithm {name!r}", hint=f"use one of {', '.join(makers)}, or a pipeline file (.toml)"
        )
    if lost := [m for m in needs[name] if m not in shapes]:
        raise PipelineError(
            f"{name} needs a model for {', '.join(lost)}", hint="give the name of a model shape"
        )
    if foreign := sorted(set(shapes) - {*needs[name], REFERENCE}):
        raise PipelineError(f"{name} has no {', '.join(foreign)}", hint="leave it out")
    return makers[name](**shapes, **more)  # type: ignore[operator,no-any-return]


def can_share(pipeline: Pipeline) -> bool:
    """Whether it has a trainable actor and a trainable critic of one backbone shape."""
    models = pipeline.model_by_name
    if ACTOR not in models or CRITIC not in models:
        return False
    a, c = models[ACTOR], models[CRITIC]
    return a.trainable and c.trainable and replace(a.shape, name="") == replace(c.shape, name="")


def share_actor_critic(pipeline: Pipeline) -> Pipeline:
    """Let one backbone with both heads stand for actor and critic.

    Their training invocations become one, which publishes to all that either published to. The staleness is
    the actor's.

    Raises
    ------
    PipelineError
        If the pipeline has no trainable actor and critic of the same shape, or one's training leads to the
        other's.
    """
    if not can_share(pipeline):
        raise PipelineError(
            f"pipeline {pipeline.name!r} cannot share actor and critic: it needs a trainable {ACTOR!r} and a "
            f"trainable {CRITIC!r} of one shape"
        )
    old = [pipeline.invocations[pipeline.training[m]] for m in (ACTOR, CRITIC)]
    joint = f"{SHARED}_training"
    new_name = {old[0].name: joint, old[1].name: joint}
    merged_model = {ACTOR: SHARED, CRITIC: SHARED}
    held = {c.name: merged_model.get(c.weights_of, c.weights_of) for c in pipeline.containers if c.weights_of}
    new_weights = {c: weights(SHARED) for c, model in held.items() if model == SHARED}

    def contained(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(new_weights.get(name, name) for name in names))

    def linked(links: Iterable[Link]) -> tuple[Link, ...]:
        moved = (
            Link(
                new_name.get(e.source, e.source),
                new_name.get(e.target, e.target),
                new_weights.get(e.container, e.container),
            )
            for e in links
        )
        return tuple(dict.fromkeys(moved))

    invocations: list[Invocation] = []
    for v in pipeline.invocations:
        if v == old[1]:
            continue
        if v == old[0]:
            takes, gives = old[0].inputs + old[1].inputs, old[0].outputs + old[1].outputs
            invocations.append(Invocation(joint, "training", SHARED, contained(takes), contained(gives)))
        else:
            model = merged_model.get(v.model, v.model)
            invocations.append(Invocation(v.name, v.role, model, contained(v.inputs), contained(v.outputs)))
    shared = Model(SHARED, pipeline.model_by_name[ACTOR].shape, "both", trainable=True)
    models = tuple(shared if m.name == ACTOR else m for m in pipeline.models if m.name != CRITIC)
    containers = dict.fromkeys(
        Container(weights(SHARED), weights_of=SHARED) if c.name in new_weights else c
        for c in pipeline.containers
    )
    staleness = {m: k for m, k in dict(pipeline.staleness).items() if m not in merged_model}
    return Pipeline(
        f"{pipeline.name}, actor and critic shared",
        models,
        tuple(containers),
        tuple(invocations),
        linked(pipeline.data),
        linked(pipeline.publications),
        contained(pipeline.inputs),
        contained(pipeline.outputs),
        tuple({**staleness, SHARED: pipeline.tau[ACTOR]}.items()),
    )
