"""Options that would do nothing are refused where a person gives them, and not where a preset does."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest

from rlprof.cli.embodied import Given, options
from rlprof.workloads.embodied.config import PRESETS, SIMULATORS, Config, configure
from rlprof.workloads.embodied.errors import ConfigurationError
from rlprof.workloads.embodied.option_effects import EFFECTS, WITHOUT_GRAPH, check_options, option_of
from rlprof.workloads.embodied.policies.sizes import FAMILIES

LIBERO: dict[str, Any] = {"simulator": "libero"}
NOTHING = [
    ("tiny", {}, {"image": 32}, "no images are drawn"),
    ("tiny", LIBERO, {"rendering": "osmesa"}, "no images are drawn"),
    ("tiny", {**LIBERO, "rendering": "egl-one"}, {"painters": 2}, "no images are drawn"),
    ("tiny", LIBERO, {"shadows": True}, "no images are drawn"),
    ("tiny", LIBERO, {"every_action": True}, "no images are drawn"),
    ("tiny", LIBERO, {"workers": 0}, "always in processes of its own"),
    ("tiny", {**LIBERO, "group": 32}, {"tasks": 3}, "2 groups have no 3"),
    ("tiny", {"policy": "openvla_oft"}, {"denoise_steps": 4}, "openvla_oft has no denoise steps"),
    ("h200", {"policy": "openvla_oft"}, {"cuda_graph": True}, "openvla_oft has no denoise steps"),
    ("exact", {"device": "cuda:0"}, {"cuda_graph": True}, "computes sample by sample"),
    ("tiny", {"schedule": "hybrid-pipe"}, {"whole_answers": True}, "the schedule hybrid-pipe"),
    ("tiny", {"schedule": "async"}, {"prefix_worker": True}, "the schedule async"),
    ("tiny", {"env_prefetch": True}, {"prefix_worker": True}, "with --env-prefetch"),
    ("tiny", {"train_pipe": True, "minibatch_scope": "epoch"}, {"whole_answers": True}, "with --train-pipe"),
    ("tiny", {"schedule": "hybrid"}, {"phases": True}, "the phases of a chunk are no nodes"),
    ("h200", {"simulator": "mujoco_warp"}, {"workers": 16}, "in one process of their own"),
    ("tiny", {}, {"workers": 65}, "64 environments make no 65 processes"),
    (
        "tiny",
        {"rollout_epochs": 1, "minibatch_scope": "epoch"},
        {"train_pipe": True},
        "one rollout epoch, and no next one",
    ),
    ("tiny", {}, {"timeout_s": 10.0}, "no call can be ended"),
]


@pytest.mark.parametrize(("preset", "others", "given", "why"), NOTHING)
def test_what_would_do_nothing_is_refused_and_the_reason_said(
    preset: str, others: dict[str, Any], given: dict[str, Any], why: str
) -> None:
    (name,) = given
    with pytest.raises(ConfigurationError, match=f"{option_of(name)} would do nothing: .*{why}") as caught:
        Given(preset, {**others, **given}).config()
    assert f"leave {option_of(name)} away" in str(caught.value.hint)
    check_options(configure(preset, **others, **given), {})  # of a preset, or of a file that is read


@pytest.mark.parametrize(
    ("preset", "given"),
    [
        ("tiny", {"cameras": 1, "image": 32}),
        ("tiny", {**LIBERO, "cameras": 2, "rendering": "egl-one", "painters": 2, "every_action": True}),
        ("tiny", {**LIBERO, "shadows": False, "workers": 2, "timeout_s": 9.0}),
        ("tiny", {**LIBERO, "group": 16, "tasks": 4}),
        ("tiny", {"denoise_steps": 4, "whole_answers": True, "prefix_worker": True}),
        ("tiny", {"policy": "openvla_oft", "cuda_graph": False}),
        ("tiny", {"workers": 0}),
        ("tiny", {"workers": 64, "timeout_s": 9.0}),
        ("tiny", {"schedule": "async", "timeout_s": 9.0}),
        ("tiny", {"rollout_process": True, "timeout_s": 9.0}),
        ("h200", {"simulator": "mujoco_warp", "workers": 1}),
        ("h200", {"cuda_graph": True, "envs": 8}),
        ("tiny", {"train_pipe": True, "minibatch_scope": "epoch"}),
    ],
)
def test_what_has_an_effect_is_not_refused(preset: str, given: dict[str, Any]) -> None:
    made = Given(preset, given).config()
    assert all(getattr(made, name) == value for name, value in given.items())


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("simulator", SIMULATORS)
@pytest.mark.parametrize("policy", FAMILIES)
def test_presets_alone_are_never_refused(preset: str, simulator: str, policy: str) -> None:
    Given(preset, {"simulator": simulator, "policy": policy}).config()


@pytest.mark.parametrize(
    ("others", "cores", "nothing"),
    [
        ({"workers": 2}, 2, "2 processes do no more than 2 at once"),
        ({"workers": 2}, 3, "2 processes do no more than 2 at once"),
        ({"workers": 1}, 1, "1 process does no more than 1 at once"),
        (LIBERO, 1, "1 process does no more than 1 at once"),
        ({"workers": 2}, 1, None),
        ({"workers": 2}, 0, None),
    ],
)
def test_turns_on_as_many_cores_as_processes_are_refused_where_no_graph_runs(
    others: dict[str, Any], cores: int, nothing: str | None
) -> None:
    given = {**others, "simulator_cores": cores}
    config = Given("tiny", given).config()  # by a graph they are of several simulators
    if nothing is None:
        check_options(config, given, WITHOUT_GRAPH)
        return
    with pytest.raises(ConfigurationError, match=f"--simulator-cores would do nothing: .*{nothing}"):
        check_options(config, given, WITHOUT_GRAPH)


def test_names_are_those_of_fields_and_options() -> None:
    named = {name for effect in (*EFFECTS, *WITHOUT_GRAPH) for name in effect.options}
    assert named <= {field.name for field in fields(Config)}
    assert named <= set(inspect.signature(options).parameters)
