"""Compiled layers beside eager ones. Most tests trace as for a compiler, and run what was traced as it is."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial, partialmethod
from typing import Any

import numpy as np
import pytest

from rlprof.workloads.embodied import rollout_serve
from rlprof.workloads.embodied.build import make_trainer
from rlprof.workloads.embodied.config import Config, configure
from rlprof.workloads.embodied.contracts import GlobalStep
from rlprof.workloads.embodied.errors import ConfigurationError, MissingPackageError, RenderError
from rlprof.workloads.embodied.offload import tensors_of
from rlprof.workloads.embodied.policies import make
from rlprof.workloads.embodied.policies.sizes import PolicySize, StackSize, size_of
from rlprof.workloads.embodied.rollout_worker import RolloutWorker
from tests.workloads.embodied.made import SMALL, observation, spec

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'rlprof[workloads]'")
torch = pytest.importorskip("torch")

from rlprof.workloads.embodied.policies import compiled, siglip  # noqa: E402
from rlprof.workloads.embodied.policies.pi0_transformers import Pi0Transformers  # noqa: E402

_compile = Pi0Transformers.compile_layers

STACK = StackSize(2, 64, 128, 8, 1, 32)
VISION = StackSize(2, 32, 64, 2, 2, 16)
SIZE = replace(
    size_of("pi0", "tiny"), transformers=True, image=32, backbone=STACK, expert=STACK, vision=VISION
)
#: Relative error (of norms): fused code rounds to 16 bits less often.
TOLERANCE = {"float32": 2e-6, "bfloat16": 0.02}
PARTS = ["vision", "backbone", "expert"]


@pytest.fixture(autouse=True)
def _apart() -> Iterator[None]:
    """Compiled code of one test is none of another's."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _policy(size: PolicySize = SIZE, device: str = "cpu") -> Any:
    """A policy, no weights of which are all 0."""
    policy = make(size, spec(3, cameras=2), seed=1, device=device)
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "norm" in name or name.endswith("up.weight") or name.startswith("value.2"):
                parameter.add_((0.1 * torch.randn(parameter.shape, generator=draw)).to(parameter))
    return policy


def _answer(policy: Any, batch: int = 3, step: int = 0) -> Any:
    seen = observation(batch, cameras=2, seed=step)
    return policy.act(seen, policy.noise(seen, GlobalStep(step), 0, 0))


def _error(found: Any, wanted: Any) -> float:
    a, b = (torch.as_tensor(x).detach().double().cpu() for x in (found, wanted))
    assert b.norm() > 0
    return float((a - b).norm() / b.norm())


def _near(found: Any, wanted: Any, limit: float) -> None:
    assert _error(found.chain[:, 1:], wanted.chain[:, 1:]) < limit
    assert _error(found.value, wanted.value) < limit
    assert np.array_equal(found.log_prob, wanted.log_prob)  # of the noise alone


def _made(policy: Any) -> list[tuple[str, int, int]]:
    return [(c.part, c.shape[0], c.graphs) for c in policy.compiled.compilations]


@pytest.mark.parametrize(("dtype", "train"), [("float32", "lora"), ("bfloat16", "expert")])
def test_answers_are_the_eager_ones_and_layers_share_their_code(dtype: str, train: Any) -> None:
    policy = _policy(replace(SIZE, dtype=dtype, train=train))
    eager = [_answer(policy, batch, k) for k, batch in enumerate((4, 2, 4))]
    policy.compile_layers(backend="aot_eager")
    for _ in range(2):
        for k, batch in enumerate((4, 2, 4)):
            _near(_answer(policy, batch, k), eager[k], TOLERANCE[dtype])
    assert policy.compiled.refused is None
    # two layers, one graph; images of both cameras are samples of the tower
    images = {"vision": 2}
    assert _made(policy) == [(part, images.get(part, 1) * n, 1) for n in (4, 2) for part in PARTS]


def test_vision_put_together_here_is_the_librarys() -> None:
    for dtype, limit in TOLERANCE.items():
        policy = _policy(replace(SIZE, dtype=dtype))
        assert siglip.known(policy.vlm)
        pixels = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * 2 - 1
        assert siglip.difference(policy.vlm, pixels.to(policy.dtype)) < limit


def test_a_tower_that_is_another_one_is_left_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = _policy()
    wanted = _answer(policy)
    monkeypatch.setattr(siglip, "difference", lambda *_: 0.5)
    policy.compile_layers(backend="eager")
    _near(_answer(policy), wanted, 1e-6)
    assert policy.compiled.refused == "vision: features differ from the library's by 0.5"
    assert _made(policy) == [("backbone", 3, 1), ("expert", 3, 1)]
    policy.vlm.vision_tower.encoder.layers[0].gate = torch.nn.Identity()
    assert not siglip.known(policy.vlm)
    policy.compile_layers(backend="eager")
    assert policy.compiled.refused == "vision: this transformers has another vision tower"


def test_weights_that_are_renewed_or_have_moved_are_seen_without_another_compilation() -> None:
    policy = _policy()
    policy.compile_layers(backend="aot_eager")
    _answer(policy)
    graphs = compiled._graphs()
    for change in ("in place", "elsewhere"):
        with torch.no_grad():
            for tensor in tensors_of(policy):
                if tensor.is_floating_point():
                    if change == "in place":
                        tensor.mul_(1.1)
                    else:
                        tensor.data = tensor.data * 1.1  # as `HostCopies` puts them
        _near(_answer(policy), RolloutWorker(policy).answer_again(*_again()), 2e-6)
    assert len(policy.compiled.compilations) == 3
    assert compiled._graphs() == graphs


def _again() -> tuple[Any, ...]:
    return observation(3, cameras=2), GlobalStep(0), 0, 0


@pytest.mark.slow
def test_more_shapes_than_torch_expects_are_compiled() -> None:
    one = replace(STACK, depth=1)
    policy = _policy(replace(SIZE, backbone=one, expert=one, vision=replace(VISION, depth=1)))
    policy.compile_layers(backend="eager")
    for batch in range(1, 6):  # ten of Gemma's layers
        _answer(policy, batch)
    assert policy.compiled.refused is None
    assert {c.graphs for c in policy.compiled.compilations} == {1}
    assert len(policy.compiled.compilations) == 15
    assert torch._dynamo.config.recompile_limit < compiled.MOST_SHAPES  # of other programs


def test_threads_that_answer_at_once_compile_once() -> None:
    policy = _policy()
    wanted = [_answer(policy, batch) for batch in (3, 2)]
    policy.compile_layers(backend="eager")
    found: dict[int, Any] = {}
    barrier = threading.Barrier(4, timeout=30)

    def answer(k: int) -> None:
        barrier.wait()
        found[k] = [_answer(policy, (3, 2)[k % 2]) for _ in range(2)]

    threads = [threading.Thread(target=answer, args=(k,), daemon=True) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    for k in range(4):
        for again in found[k]:
            _near(again, wanted[k % 2], 2e-6)
    assert sorted(_made(policy)) == sorted((p, n * (1 + (p == "vision")), 1) for p in PARTS for n in (2, 3))


def test_inference_mode_has_code_of_its_own_and_training_none() -> None:
    policy = _policy(replace(SIZE, train="full"))
    policy.compile_layers(backend="eager")
    _answer(policy)
    with torch.inference_mode():
        answer = _answer(policy)
    assert policy.compiled.refused is None
    assert [c.part for c in policy.compiled.compilations] == PARTS * 2
    graphs = compiled._graphs()
    found = policy.evaluate(observation(3, cameras=2), answer.chain)
    torch.autograd.backward(found.log_prob.sum() + found.value.sum())
    assert compiled._graphs() == graphs
    parts = (policy.vlm.language_model, policy.pi0.model.dit, policy.vlm.vision_tower)
    assert all(any(p.grad is not None and p.grad.any() for p in part.parameters()) for part in parts)


def test_answers_are_given_again_eagerly() -> None:
    policy = _policy()
    worker = RolloutWorker(policy)
    wanted = worker.predict(*_again())
    policy.compile_layers(backend="eager")
    again = worker.answer_again(*_again())
    assert np.array_equal(again.chain, wanted.chain)
    assert policy.compiled is not None
    assert not policy.compiled.compilations
    worker.predict(*_again())
    assert [c.part for c in policy.compiled.compilations] == PARTS
    assert worker.compile_refused is None


def test_layers_that_do_not_compile_run_eagerly_and_it_is_told() -> None:
    def fails(graph: Any, inputs: Any) -> Any:
        if len(inputs) > 8:  # layers, not the little one
            raise RuntimeError("no kernel image is available\nfor execution")
        return graph.forward

    policy = _policy()
    wanted = _answer(policy)
    policy.compile_layers(backend=fails)
    worker = RolloutWorker(policy)
    for _ in range(2):
        answer = worker.predict(*_again())
        assert np.allclose(answer.chain, wanted.chain, rtol=1e-6, atol=1e-7)
    why = "the compilation failed (RuntimeError: no kernel image is available for execution)"
    assert worker.compile_refused == "; ".join(f"{part}: {why}" for part in PARTS)
    assert not policy.compiled.compilations


def test_code_that_would_have_to_be_made_anew_too_often_is_told() -> None:
    policy = _policy()
    policy.compile_layers(backend="eager")
    wanted = _answer(policy)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)  # for which there is other code
        with torch._dynamo.config.patch(recompile_limit=1):
            _near(_answer(policy), wanted, 1e-5)
    finally:
        torch.set_default_dtype(before)
    assert "recompile limit exceeded" in policy.compiled.refused
    assert len(policy.compiled.compilations) == 3


def test_layers_that_would_all_be_compiled_are_told_early() -> None:
    stack = replace(STACK, depth=6)
    policy = _policy(replace(SIZE, backbone=stack))
    for layer in policy.vlm.language_model.layers:  # classes of their own: code of one is none of another's
        layer.mlp.__class__ = type("GemmaMLP", (type(layer.mlp),), {})
    wanted = _answer(policy)
    policy.compile_layers(backend="eager")
    graphs = compiled._graphs()
    _near(_answer(policy), wanted, 1e-6)
    assert policy.compiled.refused == (
        "backbone: the compilation failed (RuntimeError: layers of a stack do not share their code)"
    )
    assert [c.part for c in policy.compiled.compilations] == ["vision", "expert"]
    assert compiled._graphs() - graphs == 2 + compiled.MOST_GRAPHS + 1


def test_without_a_compiler_it_says_what_to_install() -> None:
    def missing(*_: Any) -> Any:
        raise FileNotFoundError("No working compiler found in ('', 'g++')")

    policy = _policy()
    with pytest.raises(MissingPackageError, match="No working compiler found") as caught:
        policy.compile_layers(backend=missing)
    assert "--compile-policy away, or install what it needs" in str(caught.value.hint)
    assert policy.compiled is None


def test_what_cannot_be_compiled_is_refused() -> None:
    for family in ("pi0", "pi05", "gr00t", "openvla_oft"):
        policy = make(size_of(family, "tiny"), spec(), seed=1)
        with pytest.raises(ConfigurationError, match="are not compiled") as caught:
            policy.compile_layers()
        assert "--preset h200" in str(caught.value.hint)
    with pytest.raises(ConfigurationError, match="sample by sample"):
        _policy(replace(SIZE, by_row=True)).compile_layers()
    policy = _policy()
    policy.lean = False
    with pytest.raises(ConfigurationError, match="left to the library"):
        policy.compile_layers()
    for values in ({}, {"preset": "exact"}, {"preset": "h200", "policy": "gr00t"}):
        with pytest.raises(ConfigurationError, match="not compiled in the preset"):
            configure(compile_policy=True, **values)
    assert configure("h200", compile_policy=True).compile_policy


def test_nothing_is_compiled_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from rlprof.workloads.embodied.policies import captured

    policy = _policy()
    policy.compile_layers(backend="eager")
    seen = observation(3, cameras=2)
    sent, noise = policy.upload(seen, policy.noise(seen, GlobalStep(0), 0, 0))
    features = policy.vision(sent)
    prefix = policy.backbone(features)
    taken: list[bool] = []

    class Chain:
        key, began = None, 0

        def __init__(self, *_: Any) -> None:
            def other() -> None:
                taken.append(policy.compiled.lock.acquire(blocking=False))

            thread = threading.Thread(target=other)
            thread.start()
            thread.join()

        def begin(self, *_: Any) -> None: ...

    monkeypatch.setattr(captured, "_Chain", Chain)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(priority=0))
    steps = captured.CapturedSteps.__new__(captured.CapturedSteps)
    steps._policy, steps._lock, steps._chains, steps._began = policy, threading.Lock(), {}, 0
    steps._chain(policy.start(noise), prefix, features, noise, 0)
    assert taken == [False]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_answers_of_inductor_are_the_eager_ones(dtype: str) -> None:
    policy = _policy(replace(SIZE, dtype=dtype))
    wanted = _answer(policy)
    policy.compile_layers()
    for _ in range(2):
        _near(_answer(policy), wanted, TOLERANCE[dtype])
    assert policy.compiled.refused is None
    assert _made(policy) == [("vision", 6, 1), ("backbone", 3, 1), ("expert", 3, 1)]


def _kernels(function: Any) -> int:
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.no_grad():
        function()
        with torch.profiler.profile(activities=kinds) as profile:
            function()
            torch.cuda.synchronize()
    return sum(str(e.device_type).endswith("CUDA") for e in profile.events())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_compiled_and_captured_answers_are_the_eager_ones(dtype: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    policy = _policy(replace(SIZE, dtype=dtype), "cuda:0")
    limit = max(TOLERANCE[dtype], 1e-4)  # products of 32 bits go through other kernels
    batches = (4, 2, 4) if dtype == "bfloat16" else (4, 4)  # each size is some seconds of compilation
    eager = [_answer(policy, batch, k) for k, batch in enumerate(batches)]
    policy.compile_layers()
    policy.capture()
    for _ in range(2):
        for k, batch in enumerate(batches):
            _near(_answer(policy, batch, k), eager[k], limit)
    assert policy.compiled.refused is None
    assert policy.captured.refused is None
    assert {c.graphs for c in policy.compiled.compilations} == {1}
    assert {(c.part, c.shape[0]) for c in policy.compiled.compilations} == {
        (part, n * (1 + (part == "vision"))) for part in PARTS for n in set(batches)
    }
    # weights that have moved
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.data = (parameter.data * 1.01).clone()
    policy.captured.forget()
    changed = _answer(policy, 4)
    policy.captured = policy.compiled = None
    _near(changed, _answer(policy, 4), limit)


@pytest.mark.gpu
def test_threads_compile_and_capture_side_by_side() -> None:
    """A lane of each group: one compiles while another would capture, on a stream of its own."""
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    policy = _policy(replace(SIZE, dtype="bfloat16"), "cuda:0")
    wanted = [_answer(policy, batch) for batch in (4, 2)]
    policy.compile_layers()
    policy.capture()
    found: dict[int, Any] = {}

    def lane(k: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream(priority=-(k // 2))):
            found[k] = [_answer(policy, (4, 2)[k % 2]) for _ in range(3)]

    threads = [threading.Thread(target=lane, args=(k,), daemon=True) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(100)
    assert policy.compiled.refused is None
    assert policy.captured.refused is None
    assert policy.captured.graphs == 4  # two sizes, two priorities
    assert sorted(found) == [0, 1, 2, 3]
    for k, answers in found.items():
        for answer in answers:
            _near(answer, wanted[k % 2], TOLERANCE["bfloat16"])
    assert len(policy.compiled.compilations) == 6
    assert {c.graphs for c in policy.compiled.compilations} == {1}


@pytest.mark.gpu
def test_a_compiled_layer_has_fewer_kernels() -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    counts: dict[str, list[int]] = {"eager": [], "compiled": []}
    for depth in (2, 4):
        stack = replace(STACK, depth=depth)
        policy = _policy(replace(SIZE, dtype="bfloat16", expert=stack, backbone=stack), "cuda:0")
        seen = observation(3, cameras=2)
        sent, noise = policy.upload(seen, policy.noise(seen, GlobalStep(0), 0, 0))
        features = policy.vision(sent)
        prefix = policy.backbone(features)
        point, time = policy.start(noise).to(policy.dtype), torch.full((3,), 0.7, device="cuda:0")
        for way, found in counts.items():
            if way == "compiled":
                policy.compile_layers()
            found.append(_kernels(partial(policy.velocity, point, time, prefix, features)))
        assert policy.compiled.refused is None
    eager, fused = ((c[1] - c[0]) / 2 for c in counts.values())
    # 7 products, attention, and what lies between: norms, rotation, gelu, sums
    assert 10 <= fused <= eager - 4, counts


@pytest.mark.parametrize("schedule", ["colocated", pytest.param("hybrid-pipe", marks=pytest.mark.slow)])
def test_iterations_say_what_was_refused_and_answers_are_given_again(
    schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlprof.workloads.embodied import record, runner
    from rlprof.workloads.embodied.drivers import make_driver

    monkeypatch.setattr(Config, "policy_size", replace(SIZE, train="expert", denoise_steps=2))
    monkeypatch.setattr(Pi0Transformers, "compile_layers", partialmethod(_compile, backend="eager"))
    # in a process of its own: what GL is to be had was settled in this one when MuJoCo was loaded
    drawn = {"cameras": 2, "image": 32, "workers": 1}
    config = configure("tiny", **{**SMALL, **drawn, "schedule": schedule, "compile_policy": True})
    try:
        trainer = make_trainer(config)
    except RenderError as error:
        pytest.skip(f"no images can be made here: {error.what}")
    policy: Any = trainer.rollout.policy
    try:
        driver, seen = make_driver(trainer, config), record.watch(trainer)
        for index in range(2):
            done = runner.measured_iteration(trainer, driver, config, seen, index)
            assert done.row["compile_refused"] is None
            assert done.row["semantic_differences"] == []
        made = {(c.part, c.graphs) for c in policy.compiled.compilations}
        assert made == {(part, 1) for part in PARTS}
        assert trainer.actor.policy.compiled is None
        again = record.replay_answers(trainer, done.result["trajectories"], GlobalStep(1))
        assert again.chain < 1e-4
        policy.compiled._refused["expert"] = "it is so"
        done = runner.measured_iteration(trainer, driver, config, seen, 2)
        assert done.row["compile_refused"] == "expert: it is so"
        driver.close()
    finally:
        trainer.rollout.close()
        trainer.env.simulator.close()


def test_a_process_of_rollouts_compiles_and_tells_what_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Config, "policy_size", SIZE)
    monkeypatch.setattr(Pi0Transformers, "compile_layers", partialmethod(_compile, backend="eager"))
    config = configure("tiny", **{**SMALL, "cameras": 2, "image": 32}, compile_policy=True)
    threads = torch.get_num_threads()
    try:
        worker = rollout_serve._worker(config.to_dict(), spec(4, cameras=2))
    finally:
        torch.set_num_threads(threads)
    worker.predict(*_again())
    assert [c.part for c in worker.policy.compiled.compilations] == PARTS
    worker.policy.compiled._refused["vision"] = "it is so"
    answer = rollout_serve._perform(
        worker, {"weights": np.zeros(1, np.uint8)}, {"call": "reload", "device": "cpu"}
    )
    assert answer == {"ok": True, "refused": None, "compile_refused": "vision: it is so"}
