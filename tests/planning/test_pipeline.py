from __future__ import annotations

from dataclasses import replace

import pytest

from rlprof.planning.algorithms import (
    algorithm_named,
    can_share,
    dpo,
    grpo,
    ppo,
    share_actor_critic,
)
from rlprof.planning.errors import PipelineError, UnknownShapeError, WorkloadError
from rlprof.planning.pipeline import Container, Invocation, Link, Model, Pipeline
from rlprof.planning.pipeline_file import pipeline_from_toml, pipeline_to_toml, read_pipeline, write_pipeline
from rlprof.planning.shapes import SHAPES
from rlprof.planning.unroll import unroll
from rlprof.planning.workload import LengthQuantile, Workload, three_phases
from tests.planning.made import TINY

PPO = ppo(TINY, TINY, TINY)


def test_ppo_passes_on_what_the_paper_says() -> None:
    assert {(e.source, e.target, e.container) for e in PPO.data} == {
        *(("actor_generation", f"{m}_inference", "sequences") for m in ("reference", "reward", "critic")),
        *(
            (f"{m}_inference", f"{t}_training", c)
            for m, c in (("reference", "reference_logprobs"), ("reward", "rewards"), ("critic", "values"))
            for t in ("actor", "critic")
        ),
    }
    assert {(e.source, e.target) for e in PPO.publications} == {
        ("actor_training", "actor_generation"),
        ("critic_training", "critic_inference"),
    }


def test_sizes_of_containers() -> None:
    work = Workload(4, 10, 20, rollouts_per_prompt=3)
    elements = {"prompts": 40, "sequences": 360, "values": 240, "reference_logprobs": 240, "rewards": 12}
    assert {c: PPO.volume_bytes(c, work) for c in elements} == {c: 2 * n for c, n in elements.items()}
    assert PPO.volume_bytes("actor_weights", work) == 2 * TINY.parameters()
    assert PPO.volume_bytes("critic_weights", work) == 2 * TINY.parameters("scalar")


def test_the_other_algorithms() -> None:
    assert [v.name for v in grpo(TINY, TINY).invocations] == [
        "actor_generation", "reference_inference", "reward_inference", "actor_training",
    ]  # fmt: skip
    assert [v.role for v in dpo(TINY).invocations] == ["inference", "inference", "training"]
    assert [e.target for e in dpo(TINY).publications] == ["actor_inference"]


def test_a_shared_backbone_replaces_actor_and_critic() -> None:
    shared = share_actor_critic(ppo(TINY, TINY, TINY, staleness={"actor": 1}))
    assert [(v.name, v.model) for v in shared.invocations] == [
        ("actor_generation", "actor_critic"),
        ("reference_inference", "reference"),
        ("reward_inference", "reward"),
        ("critic_inference", "actor_critic"),
        ("actor_critic_training", "actor_critic"),
    ]
    assert {(e.source, e.target) for e in shared.publications} == {
        ("actor_critic_training", "actor_generation"),
        ("actor_critic_training", "critic_inference"),
    }
    assert shared.tau == {"actor_critic": 1}
    assert shared.model_by_name["actor_critic"].parameters == TINY.parameters() + TINY.hidden


def test_only_an_actor_and_a_critic_of_one_shape_can_share() -> None:
    assert can_share(PPO)
    for other in (grpo(TINY, TINY), ppo(TINY, replace(TINY, layers=4), TINY)):
        assert not can_share(other)
        with pytest.raises(PipelineError, match="cannot share"):
            share_actor_critic(other)


def test_algorithms_by_name() -> None:
    assert algorithm_named("dpo", {"actor": TINY}) == dpo(TINY)
    for name, shapes, said in (
        ("pppo", {}, "unknown algorithm 'pppo'"),
        ("ppo", {"actor": TINY}, "needs a model for critic, reward"),
        ("grpo", {"actor": TINY, "reward": TINY, "critic": TINY}, "has no critic"),
    ):
        with pytest.raises(PipelineError, match=said):
            algorithm_named(name, shapes)
    with pytest.raises(UnknownShapeError):
        algorithm_named("dpo", {"actor": "nobody"})


# ruff: noqa: E501  one row for each way to be wrong
# A graph that is right, to be made wrong in one way at a time.
MODELS = (Model("pi", TINY, trainable=True), Model("R", TINY, "scalar"))
CONTAINERS = (Container("W", weights_of="pi"), Container("Y", "B*R*L_r"), Container("r", "B*R"))
GENERATE = Invocation("g", "generation", "pi", ("W",), ("Y",))
JUDGE = Invocation("i", "inference", "R", ("Y",), ("r",))
TRAIN = Invocation("t", "training", "pi", ("W", "r"), ("W",))
RIGHT = Pipeline(
    "right", MODELS, CONTAINERS, (GENERATE, JUDGE, TRAIN),
    (Link("g", "i", "Y"), Link("i", "t", "r")), (Link("t", "g", "W"),),
)  # fmt: skip

WRONG = {
    "data edges form a cycle: i -> g -> i": {
        "invocations": (replace(GENERATE, inputs=("W", "r")), JUDGE, TRAIN),
        "data": (*RIGHT.data, Link("i", "g", "r")),
    },
    r"i -> t \(Y\): 'i' does not put out 'Y'": {"data": (Link("g", "i", "Y"), Link("i", "t", "Y"))},
    r"g -> t \(Y\): 't' does not take 'Y'": {"data": (*RIGHT.data, Link("g", "t", "Y"))},
    "names 'x', no invocation": {"data": (*RIGHT.data, Link("x", "t", "r"))},
    r"the data edge g -> i \(Y\) is there twice": {"data": (*RIGHT.data, RIGHT.data[0])},
    "starts at 'i', which does not train": {"publications": (Link("i", "t", "r"),)},
    "'g' uses trainable model 'pi': no publication brings its weights": {"publications": ()},
    "does not carry the weights of 'pi'": {
        "invocations": (replace(GENERATE, inputs=("W", "r")), JUDGE, replace(TRAIN, outputs=("W", "r"))),
        "publications": (Link("t", "g", "r"),),
    },
    "ends at 'i', which uses model 'R'": {
        "invocations": (GENERATE, replace(JUDGE, inputs=("Y", "W")), TRAIN),
        "publications": (Link("t", "i", "W"),),
    },
    "container 'r' has no producer": {"invocations": (GENERATE, replace(JUDGE, outputs=()), TRAIN), "data": RIGHT.data[:1]},
    "container 'r' has no consumer": {"invocations": (GENERATE, JUDGE, replace(TRAIN, inputs=("W",))), "data": RIGHT.data[:1]},
    "trainable model 'pi' has 0 training": {"invocations": (GENERATE, JUDGE), "data": RIGHT.data[:1], "publications": ()},
    "'t' trains model 'pi', which is frozen": {"models": (replace(MODELS[0], trainable=False), MODELS[1])},
    "no invocation uses model 'idle'": {"models": (*MODELS, Model("idle", TINY))},
    "2 models are named 'R'": {"models": (*MODELS, MODELS[1])},
    "uses model 'S', which is not declared": {"invocations": (GENERATE, replace(JUDGE, model="S"), TRAIN)},
    "names container 'Z', which is not declared": {"invocations": (GENERATE, JUDGE, replace(TRAIN, inputs=("W", "r", "Z")))},
    "has the role 'guess'": {"invocations": (GENERATE, replace(JUDGE, role="guess"), TRAIN)},
    "has the head 'tail'": {"models": (MODELS[0], replace(MODELS[1], head="tail"))},
    r"'B\*\*R' is no count of elements": {"containers": (*CONTAINERS[:2], Container("r", "B**R"))},
    "'len' is no count": {"containers": (*CONTAINERS[:2], Container("r", "len"))},
    "staleness of 'pi' is -1": {"staleness": {"pi": -1}},
    "staleness is given for 'R'": {"staleness": {"R": 1}},
    "its input 'Q' is no declared container": {"inputs": ("Q",)},
    "has no invocation": {"invocations": ()},
}  # fmt: skip


@pytest.mark.parametrize("said", WRONG)
def test_a_graph_that_is_not_well_formed_names_the_culprit(said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        replace(RIGHT, **WRONG[said])


@pytest.mark.parametrize(
    "pipeline",
    [PPO, grpo(TINY, "qwen2.5-0.5b", staleness={"actor": 2}), dpo(TINY), share_actor_critic(PPO), RIGHT],
)
def test_a_pipeline_survives_a_toml_file(pipeline: Pipeline, tmp_path: object) -> None:
    path = f"{tmp_path}/pipeline.toml"
    write_pipeline(pipeline, path)
    assert read_pipeline(path) == pipeline
    assert pipeline_to_toml(read_pipeline(path)) == pipeline_to_toml(pipeline)


def test_names_with_any_characters_survive_toml() -> None:
    odd = replace(RIGHT, name='a "quoted\\name"\n', containers=(*CONTAINERS[:2], Container("r", "B*R")))
    assert pipeline_from_toml(pipeline_to_toml(odd)) == odd


def test_shapes_in_a_file_may_be_names() -> None:
    text = pipeline_to_toml(dpo("llama2-7b"))
    start = text.index("shape = {")
    named = text.replace(text[start : text.index("}", start) + 1], 'shape = "llama2-7b"')
    assert pipeline_from_toml(named) == dpo(SHAPES["llama2-7b"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = ", "no TOML"),
        ('name = "x"\nsurprise = 1', "unknown key 'surprise'"),
        ('name = "x"\nmodels = 3', "'models' is 3, a list"),
        ('name = "x"\n[[models]]\nname = "m"\nshape = 5', "a table is expected, not 5"),
        ('name = "x"\n[[containers]]\nnam = "m"', "unknown key 'nam'"),
        ("[[containers]]\n", r"mine.toml: containers\[0\] lacks 'name'. Next: its keys are name, elements"),
        ('name = "x"\n[[data]]\ntarget = "b"', r"mine.toml: data\[0\] lacks 'source', 'container'"),
        ('name = "x"\nstaleness = 1', "'staleness' is 1"),
    ],
)
def test_a_broken_pipeline_file_is_one_clear_error(text: str, said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        pipeline_from_toml(text, "mine.toml")


def test_unrolled_edges_by_hand() -> None:
    graph = unroll(RIGHT.with_staleness({"pi": 1}), 4)
    assert [(e.source.step, e.target.step) for e in graph.publications] == [(0, 2), (1, 3)]
    assert [(e.source.step, e.target.step) for e in graph.updates] == [(0, 1), (1, 2), (2, 3)]
    assert len(graph.data) == 2 * 4


@pytest.mark.parametrize("tau", [0, 1, 2, 5])
@pytest.mark.parametrize("steps", [1, 2, 8])
def test_a_version_is_never_staler_than_allowed(tau: int, steps: int) -> None:
    graph = unroll(PPO.with_staleness({"actor": tau, "critic": 0}), steps)
    for e in graph.publications:
        allowed = tau if e.container == "actor_weights" else 0
        assert e.target.step - (e.source.step + 1) == allowed


@pytest.mark.parametrize(
    ("quantiles", "said"),
    [
        (((0.5, 10), (0.5, 20), (1, 100)), "do not increase"),
        (((0.5, 20), (0.6, 20), (1, 100)), "do not increase"),
        (((0.0, 10), (1, 100)), "do not increase"),
        (((0.5, 10),), "the last response-length quantile"),
        (((0.5, 10), (1, 99)), "end with the fraction 1 at 100"),
        (((0.5, 0.75), (1, 100)), "the first response-length quantile is at 0.75 tokens"),
    ],
)
def test_quantiles_that_do_not_increase(quantiles: tuple[tuple[float, float], ...], said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        Workload(4, 10, 100, quantiles=tuple(LengthQuantile(*q) for q in quantiles))


def test_counts_of_a_workload() -> None:
    assert Workload(4, 10, 100, 3).step_tokens == 4 * 3 * 110
    assert three_phases(384)[0] == LengthQuantile(0.5, 96)
    for bad in (0, -1, 2.5, True):
        with pytest.raises(WorkloadError, match="prompts is"):
            Workload(bad, 10, 100)  # type: ignore[arg-type]
