"""Language model and expert with few kernels, beside the library's own. Loading it takes most of the time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlprof.workloads.embodied.contracts import GlobalStep
from rlprof.workloads.embodied.policies import make
from rlprof.workloads.embodied.policies.sizes import PolicySize, StackSize, size_of
from tests.workloads.embodied.made import observation, spec

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'rlprof[workloads]'")
torch = pytest.importorskip("torch")

from rlprof.workloads.embodied.policies import gemma  # noqa: E402

STACK = StackSize(2, 64, 128, 8, 1, 32)
SIZE = replace(size_of("pi0", "tiny"), transformers=True, image=32, backbone=STACK, expert=STACK)
SEEN = observation(3, cameras=2)
#: Relative error (of norms): numbers of 32 bits agree to rounding; those of 16 bits are rounded elsewhere.
TOLERANCE = {"float32": 2e-6, "bfloat16": 0.02}


def _pair(size: PolicySize, device: str = "cpu") -> tuple[Any, Any]:
    """Policies of equal weights, none of them all 0; the second with the library's layers."""
    policies = [make(size, spec(3, cameras=2), seed=1, device=device) for _ in range(2)]
    own, library = policies
    assert own.lean
    library.lean = False
    for policy in policies:
        draw = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for name, parameter in policy.named_parameters():
                if "norm" in name or name.endswith("up.weight") or name.startswith("value.2"):
                    shift = 0.1 * torch.randn(parameter.shape, generator=draw)
                    parameter.add_(shift.to(parameter))
    return own, library


#: Operators that compute nothing.
VIEWS = (
    "view reshape transpose t unsqueeze expand slice select detach alias split flatten lift_fresh empty to"
)


def _ops(function: Any) -> list[str]:
    """Names of the outermost operators of torch that a call runs: about one or two kernels each."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        function()
    torchs = [e for e in profile.events() if e.name.startswith("aten::")]
    outer = [e for e in torchs if e.cpu_parent is None or not e.cpu_parent.name.startswith("aten::")]
    return [n for e in outer if (n := e.name.removeprefix("aten::")) not in VIEWS.split()]


def _error(found: Any, wanted: Any) -> float:
    a, b = (torch.as_tensor(x).detach().double().cpu() for x in (found, wanted))
    assert b.norm() > 0
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("heads", [(8, 1), (4, 2)])
def test_answers_are_the_librarys(dtype: str, heads: tuple[int, int]) -> None:
    stack = replace(STACK, heads=heads[0], kv_heads=heads[1])
    own, library = _pair(replace(SIZE, dtype=dtype, backbone=stack, expert=stack))
    limit = TOLERANCE[dtype]
    seen, noise = own.upload(SEEN, own.noise(SEEN, GlobalStep(0), 0, 0))
    with torch.no_grad():
        features = own.vision(seen)
        mine, theirs = own.backbone(features), library.backbone(features)
        assert _error(mine.summary, theirs.summary) < limit
        for a, b in zip(mine.cache, theirs.cache, strict=True):
            assert a[0].shape == b[0].shape
            assert _error(a[0], b[0]) < limit
            assert _error(a[1], b[1]) < limit
        point = own.start(noise).to(own.dtype)
        time = torch.full((3,), 0.7)
        velocities = [p.velocity(point, time, theirs, features) for p in (own, library)]
        assert _error(*velocities) < limit
    answers = [p.act(SEEN, noise) for p in (own, library)]
    assert _error(answers[0].chain[:, 1:], answers[1].chain[:, 1:]) < limit
    assert np.array_equal(answers[0].log_prob, answers[1].log_prob)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("train", "kept"), [("full", False), ("expert", False), ("expert", True), ("lora", False)]
)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_training_is_the_librarys(dtype: str, train: Any, kept: bool, device: str) -> None:
    if device != "cpu" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    own, library = _pair(replace(SIZE, dtype=dtype, train=train), device)
    # products of 32 bits go through other kernels on a GPU
    limit = TOLERANCE[dtype] if device == "cpu" else max(TOLERANCE[dtype], 1e-4)
    noise = own.noise(SEEN, GlobalStep(0), 0, 0)
    library.keeps_prefix = kept
    answer = library.act(SEEN, noise)
    found = []
    for policy in (own, library):
        seen = SEEN._replace(images=None) if kept else SEEN
        evaluation = policy.evaluate(seen, answer.chain, answer.prefix if kept else None)
        (evaluation.log_prob.sum() + evaluation.value.sum()).backward()
        gradients = {n: p.grad for n, p in policy.named_parameters() if p.grad is not None}
        found.append((evaluation, gradients))
    (mine, of_mine), (theirs, of_theirs) = found
    assert _error(mine.log_prob, theirs.log_prob) < limit
    assert set(of_mine) == set(of_theirs)
    assert any(".dit." in n and "norm" in n for n in of_mine)
    if train != "full":
        assert not any(".vlm." in n and ".base." not in n and "norm" in n for n in of_mine)
    whole = [torch.cat([g[n].double().flatten() for n in sorted(g)]) for g in (of_mine, of_theirs)]
    assert _error(*whole) < 10 * limit
    for name in of_theirs:
        if ".dit.layers" in name:
            assert _error(of_mine[name], of_theirs[name]) < 20 * limit, name


@pytest.mark.gpu
def test_a_step_on_a_gpu_has_few_kernels() -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    counts = []
    for depth in (2, 4):
        size = replace(
            SIZE, dtype="bfloat16", expert=replace(STACK, depth=depth), backbone=replace(STACK, depth=depth)
        )
        own, _ = _pair(size, "cuda:0")
        seen, noise = own.upload(SEEN, own.noise(SEEN, GlobalStep(0), 0, 0))
        features = own.vision(seen)
        prefix = own.backbone(features)
        point, time = own.start(noise).to(own.dtype), torch.full((3,), 0.7, device="cuda:0")
        with torch.no_grad():
            own.velocity(point, time, prefix, features)
            with torch.profiler.profile(activities=kinds) as profile:
                own.velocity(point, time, prefix, features)
                torch.cuda.synchronize()
        kernels = [e for e in profile.events() if str(e.device_type).endswith("CUDA")]
        counts.append(len(kernels))
    # 22 operators a layer; split matrix products and attention may take a kernel more
    assert 18 <= (counts[1] - counts[0]) / 2 <= 30, counts


def test_numbers_of_16_bits_are_as_near_to_the_exact_ones_as_the_librarys() -> None:
    own, library = _pair(replace(SIZE, dtype="bfloat16"))
    exact, _ = _pair(SIZE)
    exact.lean = False
    exact.load_state_dict({name: value.float() for name, value in library.state_dict().items()})
    sent, noise = exact.upload(SEEN, own.noise(SEEN, GlobalStep(0), 0, 0))
    with torch.no_grad():
        features = exact.vision(sent)
        prefix = exact.backbone(features)
        rounded = [[t.bfloat16() for t in pair] for pair in prefix.cache]
        point, time = own.start(noise), torch.full((3,), 0.7)
        low = prefix._replace(cache=tuple(tuple(pair) for pair in rounded))
        seen = features._replace(state=features.state.bfloat16())
        wanted = exact.velocity(point, time, prefix, features)
        errors = [_error(p.velocity(point.bfloat16(), time, low, seen), wanted) for p in (own, library)]
    assert errors[0] < 1.5 * errors[1]


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 2**-22), ("bfloat16", 2**-7)])
@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0])
def test_a_norm_is_within_the_last_place_of_the_librarys(dtype: str, limit: float, scale: float) -> None:
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm

    module = GemmaRMSNorm(64).to(getattr(torch, dtype))
    draw = torch.Generator().manual_seed(3)
    x = (5 * torch.randn(256, 64, generator=draw)).to(module.weight.dtype)
    with torch.no_grad():
        for _ in range(2):  # weights are changed in place, as where they are synchronised
            module.weight.copy_(scale * torch.randn(64, generator=draw))
            found, wanted = (f.double() for f in (gemma.norm(module, x), module(x)))
            assert bool(((found - wanted).abs() <= limit * wanted.abs()).all())


def test_gradients_are_those_of_the_formulas() -> None:
    draw = torch.Generator().manual_seed(4)
    made = [
        torch.randn(s, generator=draw, dtype=torch.float64) for s in ((2, 3, 2, 8), (8,), (2, 3, 1, 2, 4))
    ]
    x, weight, rotation = made
    x.requires_grad_()
    weight.requires_grad_()
    assert torch.autograd.gradcheck(gemma._Scale.apply, (x, weight))
    assert torch.autograd.gradcheck(lambda y: gemma.rotate(y, rotation), (x,))


def test_the_installed_library_is_known_and_its_names_stay() -> None:
    """Fails where a later transformers has other layers: then `gemma` has to follow."""
    own, library = _pair(SIZE)
    assert own.state_dict().keys() == library.state_dict().keys()
    assert not [
        n for n in own.state_dict() if not n.startswith(("pi0.model.", "pi0.embed", "pi0.action", "value."))
    ]
    seen, noise = own.upload(SEEN, own.noise(SEEN, GlobalStep(0), 0, 0))
    features = own.vision(seen)
    prefix = own.backbone(features)
    counts = []
    for policy in (own, library):
        policy.denoise_step(own.start(noise), prefix, features, noise, 0)  # what is made once
        counts.append(_ops(lambda p=policy: p.denoise_step(own.start(noise), prefix, features, noise, 0)))
    depth = STACK.depth
    assert counts[0].count("rms_norm") == 2 * depth + 1
    assert counts[0].count("scaled_dot_product_attention") == depth
    assert counts[0].count("addcmul") == 4 * depth + 1  # norms, queries, keys
    # a layer: 7 linear maps, 2 norms and their weights, 4 for the rotation, 2 for the prefix, 6 further ones
    own_ops, library_ops = (len(c) for c in counts)
    assert own_ops < 23 * depth + 40
    assert library_ops - own_ops >= 20 * depth


def test_other_layers_are_left_to_the_library() -> None:
    own, _ = _pair(SIZE)
    model = own.vlm.language_model
    assert gemma.known(model)
    assert not gemma.known(torch.nn.Linear(2, 2))
    attention = model.layers[1].self_attn
    attention.q_norm = torch.nn.Identity()
    assert not gemma.known(model)
    del attention.q_norm
    layer = model.layers[1]
    layer.mlp.act_fn, gelu = torch.nn.GELU(), layer.mlp.act_fn
    assert not gemma.known(model)
    layer.mlp.act_fn = gelu
    assert gemma.known(model)
    model.layers[0].post_attention_layernorm = torch.nn.RMSNorm(64)
    assert not gemma.known(model)


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("train", ["full", "lora"])
def test_what_is_kept_of_an_answer_in_inference_mode_does_for_training(lean: bool, train: Any) -> None:
    policy = _pair(replace(SIZE, train=train))[not lean]
    with torch.inference_mode():
        answer = policy.act(SEEN, policy.noise(SEEN, GlobalStep(0), 0, 0))
    found = policy.evaluate(SEEN, answer.chain)
    torch.autograd.backward(found.log_prob.sum() + found.value.sum())
    assert any(p.grad is not None and p.grad.any() for p in policy.vlm.language_model.parameters())
