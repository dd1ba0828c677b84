"""Denoise steps as CUDA graphs: refused without a GPU, and equal to the eager ones on one."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlprof.workloads.embodied.contracts import GlobalStep
from rlprof.workloads.embodied.errors import ConfigurationError
from rlprof.workloads.embodied.policies import make
from rlprof.workloads.embodied.policies.sizes import size_of
from tests.workloads.embodied.made import observation, spec

torch = pytest.importorskip("torch")
FLOWS = ("pi0", "pi05", "gr00t")


def test_without_a_cuda_device_it_says_what_to_change() -> None:
    policy = make(size_of("pi0", "tiny"), spec(), seed=1)
    with pytest.raises(ConfigurationError, match="need a CUDA device") as caught:
        policy.capture()
    assert "--device cuda:0" in str(caught.value.hint)
    assert policy.captured is None


@pytest.mark.parametrize("family", FLOWS)
def test_a_step_with_its_numbers_on_the_device_is_the_eager_one(family: str) -> None:
    policy = make(size_of(family, "tiny"), spec(3), seed=1)
    seen = observation(3)
    sent, noise = policy.upload(seen, policy.noise(seen, GlobalStep(0), 0, 0))
    features = policy.vision(sent)
    prefix = policy.backbone(features)
    point, plan = policy.start(noise), policy.plan(policy.device)
    with torch.no_grad():
        for index in range(policy.spec.denoise_steps):
            drawn = noise[:, index + 1]
            moved = policy.advance(point, prefix, features, drawn, plan[index, 0], plan[index, 1])
            point = policy.denoise_step(point, prefix, features, noise, index)
            assert torch.allclose(moved, point, rtol=1e-5, atol=1e-6)


def test_a_capture_that_fails_with_a_share_of_the_sms_leaves_the_graphs_of_all_of_them(monkeypatch) -> None:
    from rlprof.workloads.embodied.policies import captured

    class Chain:
        def __init__(self, *_: Any) -> None:
            self.key, self.began = None, 0
            if now.part:
                raise RuntimeError("operation not permitted")

        def begin(self, key: Any, *_: Any) -> None:
            self.key = key

        def step(self, point: Any, *_: Any, **__: Any) -> Any:
            return point

    now = SimpleNamespace(part=None, priority=0)
    policy = make(size_of("pi0", "tiny"), spec(), seed=1)
    policy.sm_shares = SimpleNamespace(context_of=lambda _: now.part, beside=lambda _: now)
    monkeypatch.setattr(captured, "_Chain", Chain)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: now)
    steps = captured.CapturedSteps.__new__(captured.CapturedSteps)
    steps._policy, steps._lock, steps._chains, steps._began = policy, threading.Lock(), {}, 0
    steps._refused = {}
    seen = observation(4)
    sent, noise = policy.upload(seen, policy.noise(seen, GlobalStep(0), 0, 0))
    features = policy.vision(sent)
    prefix, point = policy.backbone(features), policy.start(noise)

    def captured_step() -> bool:
        return steps.step(point, prefix, features, noise, 0) is not None

    assert captured_step()
    now.part = (0, 72)
    assert not captured_step()
    assert steps.refused == "with 72 SMs the capture failed (operation not permitted)"
    now.part = None
    assert captured_step()
    assert steps.graphs == 2  # the chain of the first one goes on
    steps.forget_share(0, 72)
    assert steps.refused is None


def test_a_capture_that_fails_is_told_and_steps_run_eagerly(monkeypatch) -> None:
    from rlprof.workloads.embodied.policies import captured
    from rlprof.workloads.embodied.rollout_worker import RolloutWorker

    def fails(*_: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nCompile with ...")

    policy = make(size_of("pi0", "tiny"), spec(), seed=1)
    seen = observation(4)
    worker = RolloutWorker(policy)
    wanted = worker.predict(seen, GlobalStep(0), 0, 0)
    # as on a CUDA device whose capture fails
    monkeypatch.setattr(captured, "_Chain", fails)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(priority=0))
    steps = captured.CapturedSteps.__new__(captured.CapturedSteps)
    steps._policy, steps._lock, steps._chains, steps._began = policy, threading.Lock(), {}, 0
    policy.captured, steps._refused = steps, {}
    assert worker.refused is None
    answer = worker.predict(seen, GlobalStep(0), 0, 0)
    assert np.array_equal(answer.chain, wanted.chain)
    assert worker.refused == "the capture failed (operation not permitted when stream is capturing)"
    # natively means eagerly, whatever is set
    steps._refused = {}
    assert np.array_equal(worker.answer_again(seen, GlobalStep(0), 0, 0).chain, wanted.chain)
    assert steps.refused is None
    assert policy.captured is steps
    worker.predict(seen, GlobalStep(0), 0, 0)
    steps._chains = {(4, 0): [object()]}
    worker.reload("cpu")  # weights that were on the host may lie elsewhere now
    assert steps.graphs == 0


def test_streams_of_another_priority_have_graphs_of_their_own(monkeypatch) -> None:
    from rlprof.workloads.embodied.policies import captured

    class Chain:
        key: Any = None
        began = 0

        def __init__(self, *_: Any) -> None:
            made.append(self)

        def begin(self, key: Any, *_: Any) -> None:
            self.key = key

    made: list[Chain] = []
    policy, seen = make(size_of("pi0", "tiny"), spec(), seed=1), observation(4)
    sent, noise = policy.upload(seen, policy.noise(seen, GlobalStep(0), 0, 0))
    features = policy.vision(sent)
    prefix, point = policy.backbone(features), policy.start(noise)
    monkeypatch.setattr(captured, "_Chain", Chain)
    steps = captured.CapturedSteps.__new__(captured.CapturedSteps)
    steps._policy, steps._lock, steps._chains, steps._began = policy, threading.Lock(), {}, 0
    used: list[Any] = []
    for priority in (0, -1, -1, 0):
        stream = SimpleNamespace(priority=priority)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda stream=stream: stream)
        chains: list[Any] = [steps._chain(point, prefix, features, noise, index) for index in range(2)]
        assert chains[0] is chains[1]  # from the first step to the last
        chains[0].key = None
        used.append(chains[0])
    assert used == [made[0], made[1], made[1], made[0]]
    assert steps.graphs == 2


def test_streams_of_another_share_have_graphs_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlprof.workloads.embodied.policies import captured

    shares: Any = SimpleNamespace(
        context_of=lambda stream: stream.share, beside=lambda stream: ("beside", stream.share)
    )
    asides: list[Any] = []

    class Chain:
        key: Any = None
        began = 0

        def __init__(self, *given: Any) -> None:
            asides.append(given[-1])

        def begin(self, *_: Any) -> None:
            pass

    policy, seen = make(size_of("pi0", "tiny"), spec(), seed=1), observation(4)
    policy.sm_shares = shares
    sent, noise = policy.upload(seen, policy.noise(seen, GlobalStep(0), 0, 0))
    features = policy.vision(sent)
    prefix, point = policy.backbone(features), policy.start(noise)
    monkeypatch.setattr(captured, "_Chain", Chain)
    steps = captured.CapturedSteps.__new__(captured.CapturedSteps)
    steps._policy, steps._lock, steps._chains, steps._began = policy, threading.Lock(), {}, 0
    steps._refused = {}
    for share in (None, (0, 72), (0, 40), (0, 72)):
        stream = SimpleNamespace(priority=0, share=share)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda stream=stream: stream)
        steps._chain(point, prefix, features, noise, 0)
    assert asides == [("beside", share) for share in (None, (0, 72), (0, 40))]
    steps.forget_share(0, 72)
    assert steps.graphs == 2


def _answers(policy: Any, batches: list[int]) -> list[Any]:
    found = []
    for k, batch in enumerate(batches):
        seen = observation(batch, cameras=2, seed=k)
        found.append(policy.act(seen, policy.noise(seen, GlobalStep(k), 0, 0)))
    return found


@pytest.mark.gpu
@pytest.mark.parametrize("family", [*FLOWS, "pi0 of transformers"])
def test_captured_steps_are_the_eager_ones(family: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    name, _, library = family.partition(" ")
    if library:
        pytest.importorskip("transformers")
    size = replace(size_of(name, "tiny"), image=32, transformers=bool(library))
    policy = make(size, spec(4, cameras=2), seed=1, device="cuda:0")
    batches = [4, 2, 4, 2, 4]
    eager = _answers(policy, batches)
    policy.capture()
    for _ in range(2):
        captured = _answers(policy, batches)
        assert policy.captured.refused is None
        assert policy.captured.graphs == 2
        for a, b in zip(eager, captured, strict=True):
            for x, y in zip(a[:-1], b[:-1], strict=True):  # a prefix is not kept
                assert np.allclose(x, y, rtol=1e-4, atol=1e-5)
    # two chains at once, step by step in turn, on streams of their own
    seen = [observation(4, cameras=2, seed=k) for k in (0, 2)]
    noise = [policy.noise(s, GlobalStep(k), 0, 0) for s, k in zip(seen, (0, 2), strict=True)]
    found: dict[int, Any] = {}
    barrier = threading.Barrier(2, timeout=30)  # one that fails does not leave the other waiting

    def chain(k: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            sent, drawn = policy.upload(seen[k], noise[k])
            features = policy.vision(sent)
            prefix = policy.backbone(features)
            points = [policy.start(drawn)]
            for index in range(policy.spec.denoise_steps):
                barrier.wait()
                points.append(policy.denoise_step(points[-1], prefix, features, drawn, index))
            found[k] = policy.decode(tuple(points), prefix, drawn)

    threads = [threading.Thread(target=chain, args=(k,), daemon=True) for k in (0, 1)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert policy.captured.refused is None
    assert set(found) == {0, 1}
    assert policy.captured.graphs == 3
    for k, native in enumerate((eager[0], eager[2])):
        assert np.allclose(found[k].chain, native.chain, rtol=1e-4, atol=1e-5)
    # weights that moved are seen
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.data = (parameter.data * 1.01).clone()
    policy.captured.forget()
    changed = _answers(policy, [4])[0]
    policy.captured = None
    assert np.allclose(changed.chain, _answers(policy, [4])[0].chain, rtol=1e-4, atol=1e-5)
