"""All policy families at tiny size: answers, densities, gradients, what is trained."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlprof.overlap.batches import cut
from rlprof.overlap.equality import equal_bits
from rlprof.workloads.embodied.contracts import GlobalStep, Observation
from rlprof.workloads.embodied.errors import ConfigurationError
from rlprof.workloads.embodied.policies import make
from rlprof.workloads.embodied.policies.base import each_row
from rlprof.workloads.embodied.policies.sizes import FAMILIES, Train, size_of
from tests.workloads.embodied.made import observation, spec

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'rlprof[workloads]'")

FLOW = [f for f in FAMILIES if f != "openvla_oft"]
STEP = GlobalStep(2)


def moved(policy, seed: int = 0):
    """Heads start at zero; a policy with weights everywhere tells more."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=draw))
    return policy


@pytest.mark.parametrize("cameras", [0, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_was_answered_is_evaluated_to_the_same_density_and_value(family: str, cameras: int) -> None:
    size = replace(size_of(family, "tiny"), image=32)
    policy = moved(make(size, spec(cameras=cameras), seed=1))
    seen = observation(4, cameras=cameras)
    noise = policy.noise(seen, STEP, 0, 1)
    answer = policy.act(seen, noise)
    assert answer.actions.shape == (4, 5, 4)
    assert np.abs(answer.actions).max() <= 1
    assert answer.chain.shape == (4, policy.spec.denoise_steps + 1, 5, 4)
    evaluation = policy.evaluate(seen, answer.chain)
    assert np.allclose(evaluation.log_prob.detach(), answer.log_prob, atol=2e-4)
    assert np.allclose(evaluation.value.detach(), answer.value, atol=1e-5)
    (evaluation.log_prob.sum() + evaluation.value.sum()).backward()
    assert not [n for n, p in policy.named_parameters() if p.grad is None or not p.grad.any()]


@pytest.mark.parametrize("train", ["expert", "lora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_of_16_bits_answer_and_train_as_at_full_size(family: str, train: Train) -> None:
    size = replace(
        size_of(family, "tiny"), dtype="bfloat16", image=32, train=train, lora_rank=2, preconditioned=False
    )
    policy = make(size, spec(cameras=2), seed=1)
    seen = observation(3, cameras=2)
    answer = policy.act(seen, policy.noise(seen, STEP, 0, 0))
    assert answer.log_prob.dtype == np.float32
    evaluation = policy.evaluate(seen, answer.chain)
    assert np.allclose(evaluation.log_prob.detach(), answer.log_prob, atol=1e-3)
    (evaluation.log_prob.sum() + evaluation.value.sum()).backward()
    assert all(p.dtype == torch.bfloat16 for p in policy.parameters())


@pytest.mark.parametrize("family", FLOW)
def test_a_prefix_that_was_kept_is_evaluated_as_the_observation_is(family: str) -> None:
    size = replace(size_of(family, "tiny"), image=32, train="expert")
    policy = moved(make(size, spec(cameras=2), seed=1))
    seen = observation(4, cameras=2)
    plain = policy.act(seen, policy.noise(seen, STEP, 0, 1))
    policy.keeps_prefix = True
    answer = policy.act(seen, policy.noise(seen, STEP, 0, 1))
    assert equal_bits(answer[:-1], plain[:-1])
    assert plain.prefix is None
    gradients = []
    for prefix, images in ((None, seen.images), (answer.prefix, None)):
        evaluation = policy.evaluate(seen._replace(images=images), answer.chain, prefix)
        (evaluation.log_prob.sum() + evaluation.value.sum()).backward()
        gradients.append([evaluation.log_prob, evaluation.value, *(p.grad for p in policy.trainable())])
        policy.zero_grad()
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("preset", ["tiny", "exact"])
def test_a_prefix_that_was_kept_in_inference_mode_does_for_training(preset: str) -> None:
    policy = make(replace(size_of("pi0", preset), image=32, train="expert"), spec(cameras=2), seed=1)
    policy.keeps_prefix = True
    seen = observation(4, cameras=2)
    with torch.inference_mode():
        answer = policy.act(seen, policy.noise(seen, STEP, 0, 1))
    evaluation = policy.evaluate(seen._replace(images=None), answer.chain, answer.prefix)
    torch.autograd.backward(evaluation.log_prob.sum() + evaluation.value.sum())
    assert any(p.grad is not None and p.grad.any() for p in policy.trainable())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_density_is_the_one_that_noise_is_drawn_from(family: str) -> None:
    """Over many draws the mean of the log-probability is minus the entropy."""
    policy = make(size_of(family, "tiny"), spec(), seed=1)
    seen = observation(1)
    many = Observation(np.repeat(seen.state, 1000, 0), None, np.repeat(seen.task, 1000))
    answer = policy.act(many, policy.noise(many, STEP, 0, 0))
    entropy = float(policy.evaluate(seen, answer.chain[:1]).entropy[0].detach())
    assert abs(answer.log_prob.mean() + entropy) < 0.05 * abs(answer.log_prob.std()) + 0.3


@pytest.mark.parametrize("family", FAMILIES)
def test_in_the_preset_exact_bits_do_not_depend_on_the_batch(family: str) -> None:
    policy = moved(make(size_of(family, "exact"), spec(), seed=1))
    assert policy.spec.invariant
    seen = observation(7)
    noise = policy.noise(seen, STEP, 0, 1)
    whole = policy.act(seen, noise)
    for rows in ([0, 1, 2], [6], [5, 3]):
        part = Observation(seen.state[rows], None, seen.task[rows])
        drawn = policy.noise(part, STEP, 0, 1, np.array(rows))
        assert np.array_equal(drawn, noise[rows])
        assert equal_bits(policy.act(part, drawn)[:-1], tuple(x[rows] for x in whole[:-1]))


@pytest.mark.parametrize("family", FAMILIES)
def test_exact_and_tiny_agree(family: str) -> None:
    seen = observation(3)
    answers = []
    for preset in ("tiny", "exact"):
        policy = moved(make(size_of(family, preset), spec(), seed=1))
        answers.append(policy.act(seen, policy.noise(seen, STEP, 0, 1)))
    assert all(np.allclose(a, b, atol=1e-4) for a, b in zip(*(a[:-1] for a in answers), strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_phases_are_the_answer(family: str) -> None:
    policy = moved(make(size_of(family, "tiny"), spec(), seed=1))
    seen = observation(3)
    noise = policy.noise(seen, STEP, 0, 1)
    sent, drawn = policy.upload(seen, noise)
    features = policy.vision(sent)
    prefix = policy.backbone(features)
    points = [policy.start(drawn)]
    for k in range(policy.spec.denoise_steps):
        points.append(policy.denoise_step(points[-1], prefix, features, drawn, k))
    assert equal_bits(policy.decode(tuple(points), prefix, drawn), policy.act(seen, noise))


@pytest.mark.parametrize("preset", ["tiny", "exact"])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_uploaded_is_seen_as_the_observation_is(family: str, preset: str) -> None:
    policy = moved(make(replace(size_of(family, preset), image=32), spec(cameras=2), seed=1))
    seen = observation(5, cameras=2)
    noise = policy.noise(seen, STEP, 0, 1)
    sent, drawn = policy.upload(seen, noise)
    assert sent.images.dtype == torch.uint8  # a quarter of what they are as numbers
    assert equal_bits(drawn.numpy(), noise)
    images = torch.from_numpy(seen.images).to(policy.dtype) / 255
    numbers = torch.from_numpy(seen.state), torch.from_numpy(seen.task), images

    def plain(state, task, images):
        with torch.no_grad():
            return policy._features(state, task, images)

    whole = plain(*numbers) if preset == "tiny" else each_row(plain, *numbers)
    assert equal_bits(tuple(policy.vision(sent)), tuple(whole))
    rows = (1, 3)
    part, some = policy.upload(Observation(*(x[list(rows)] for x in seen)), noise[list(rows)])
    assert equal_bits((tuple(part), some), cut((tuple(sent), drawn), rows, 0, 5))


@pytest.mark.gpu
def test_copies_that_wait_in_a_stream_are_of_what_was_seen() -> None:
    """Memory from which a copy is still to be made is not given to the next one."""
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    policy = make(replace(size_of("pi0", "tiny"), image=32), spec(cameras=2), seed=1, device="cuda:0")
    seen = [observation(16, cameras=2, seed=k) for k in range(30)]
    noise = [policy.noise(one, GlobalStep(k), 0, 0) for k, one in enumerate(seen)]
    busy = torch.rand(4096, 4096, device="cuda:0")
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(20):
            busy @ busy
        sent = [policy.upload(*one) for one in zip(seen, noise, strict=True)]
        torch.cuda.current_stream().synchronize()
    for (copy, drawn), one, native in zip(sent, seen, noise, strict=True):
        assert np.array_equal(copy.images.cpu().numpy(), one.images)
        assert np.array_equal(copy.state.cpu().numpy(), one.state)
        assert np.array_equal(drawn.cpu().numpy(), native)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_numbers_that_come_to_the_host_at_once_are_those_that_come_one_by_one(
    family: str, dtype: str
) -> None:
    policy = moved(make(replace(size_of(family, "tiny"), dtype=dtype), spec(), seed=1))
    seen = observation(3)
    sent, noise = policy.upload(seen, policy.noise(seen, STEP, 0, 1))
    features = policy.vision(sent)
    prefix = policy.backbone(features)
    points = [policy.start(noise)]
    for k in range(policy.spec.denoise_steps):
        points.append(policy.denoise_step(points[-1], prefix, features, noise, k))
    answer = policy.decode(tuple(points), prefix, noise)
    with torch.no_grad():
        chain, log_prob = policy._finish(tuple(points), prefix, noise)
        actions = chain[:, -1, : policy.spec.chunk_steps].clamp(-1, 1)
        wanted = [x.float().numpy() for x in (actions, log_prob, policy._value(prefix), chain)]
    assert equal_bits(tuple(answer[:-1]), tuple(wanted))
    assert all(x.flags.c_contiguous and x.flags.writeable for x in answer[:-1])


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_depend_on_state_task_and_noise(family: str) -> None:
    policy = moved(make(size_of(family, "tiny"), spec(), seed=1))
    seen = observation(2)
    noise = policy.noise(seen, STEP, 0, 1)
    native = policy.act(seen, noise).actions
    for changed in (seen._replace(state=seen.state + 0.5), seen._replace(task=1 - seen.task)):
        assert not np.allclose(policy.act(changed, noise).actions, native)
    assert not np.allclose(policy.act(seen, -noise).actions, native)


@pytest.mark.parametrize("family", FLOW)
def test_without_noise_a_flow_is_eulers_method(family: str) -> None:
    size = replace(size_of(family, "tiny"), noise_level=1e-9, preconditioned=False)
    policy = moved(make(size, spec(), seed=1))
    seen = observation(2)
    noise = policy.noise(seen, STEP, 0, 1)
    features = policy.vision(policy.upload(seen, noise)[0])
    prefix = policy.backbone(features)
    x, n = torch.from_numpy(noise[:, 0]), size.denoise_steps
    with torch.no_grad():
        for k in range(n):
            x = x - policy.velocity(x, torch.full((2,), 1 - k / n), prefix, features) / n
    assert np.allclose(policy.act(seen, noise).chain[:, -1], x, atol=1e-5)


@pytest.mark.parametrize("family", FLOW)
def test_an_untrained_preconditioned_flow_makes_small_actions(family: str) -> None:
    policy = make(replace(size_of(family, "tiny"), noise_level=1e-9), spec(), seed=1)
    seen = observation(8)
    assert (
        np.abs(policy.act(seen, policy.noise(seen, STEP, 0, 1)).actions).max() < 0.3
    )  # the noise has deviation 1


def test_the_state_of_pi0_does_not_look_at_the_actions() -> None:
    policy = moved(make(size_of("pi0", "tiny"), spec(), seed=1))
    seen = observation(2)
    features = policy.vision(policy.upload(seen, policy.noise(seen, STEP, 0, 1))[0])
    prefix = policy.backbone(features)
    states = []
    policy.expert.register_forward_hook(lambda _m, _i, out: states.append(out[0][:, 0]))
    with torch.no_grad():
        for scale in (0.0, 1.0):
            policy.velocity(torch.full((2, 5, 4), scale), torch.ones(2), prefix, features)
    assert torch.allclose(*states, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("train", ["expert", "lora"])
def test_what_is_not_trained_stays(family: str, train: str) -> None:
    size = replace(size_of(family, "tiny"), train=train, lora_rank=2)
    policy = make(size, spec(), seed=1)
    before = {n: p.clone() for n, p in policy.named_parameters()}
    seen = observation(4)
    chain = policy.act(seen, policy.noise(seen, STEP, 0, 1)).chain
    optimizer = torch.optim.SGD(policy.trainable(), lr=1e-2)
    for _ in range(2):  # adapters start at zero: their first factor moves in the second step
        evaluation = policy.evaluate(seen, chain + 0.1)
        optimizer.zero_grad()
        (evaluation.log_prob.sum() + evaluation.value.sum()).backward()
        optimizer.step()
    changed = {n for n, p in policy.named_parameters() if not torch.equal(p, before[n])}
    assert any(not n.startswith("vlm.") for n in changed)
    backbone = {n for n in changed if n.startswith("vlm.")}
    if train == "expert":
        assert not backbone
    else:
        assert backbone
        assert all(n.endswith(("up.weight", "down.weight")) and ".base." not in n for n in backbone)


def test_adapters_change_nothing_at_first() -> None:
    seen = observation(2)
    answers = []
    for train in ("full", "lora"):
        policy = make(replace(size_of("pi0", "tiny"), train=train), spec(), seed=1)
        answers.append(policy.act(seen, policy.noise(seen, STEP, 0, 1)))
    assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(*(a[:-1] for a in answers), strict=True))


def test_a_seed_gives_the_same_weights_and_leaves_other_draws_alone() -> None:
    torch.manual_seed(5)
    wanted = torch.rand(2)
    torch.manual_seed(5)
    a, b, c = (make(size_of("pi0", "tiny"), spec(), seed=s) for s in (1, 1, 2))
    assert torch.equal(torch.rand(2), wanted)
    assert equal_bits(dict(a.state_dict()), dict(b.state_dict()))
    assert not equal_bits(dict(a.state_dict()), dict(c.state_dict()))


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="images of 32x32 pixels"):
        make(size_of("pi0", "tiny"), spec(cameras=1))
    with pytest.raises(ConfigurationError, match="no policy is called"):
        make(replace(size_of("pi0", "tiny"), family="pi9"), spec())


@pytest.mark.parametrize(
    ("family", "least", "most"),
    [("pi05", 3.0e9, 3.7e9), ("openvla_oft", 6.5e9, 7.8e9), ("gr00t", 2.0e9, 3.6e9)],
)
def test_full_sizes_have_the_parameters_they_should(family: str, least: float, most: float) -> None:
    with torch.device("meta"):
        from rlprof.workloads.embodied.policies.flow import Gr00t, Pi
        from rlprof.workloads.embodied.policies.openvla_oft import OpenVlaOft

        kind = {"pi05": Pi, "openvla_oft": OpenVlaOft, "gr00t": Gr00t}[family]
        policy = kind(size_of(family, "h200"), spec(cameras=2, image=224), 0)
    assert least < sum(p.numel() for p in policy.parameters()) < most
