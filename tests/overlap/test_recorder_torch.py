"""Where torch tensors of recorded calls come from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlprof.overlap.bindings import Const, Ref
from rlprof.overlap.build import call_graph
from rlprof.overlap.errors import RecordingError
from rlprof.overlap.recording import Unknown
from rlprof.overlap.strided import take_view
from tests.overlap.test_recorder import argument, call, memory, recorded, sink

torch = pytest.importorskip("torch")


def fresh() -> Any:
    return torch.randn(4, 3)


@pytest.mark.parametrize(
    "cut",
    [
        lambda t: t[1:, ::2],
        lambda t: t.T,
        lambda t: t.view(-1)[5:],
        lambda t: t.unfold(0, 2, 1),
        lambda t: t.expand(2, 4, 3),
        lambda t: t.detach(),
    ],
    ids=["slice", "transposed", "flat", "unfold", "expand", "detach of no gradient"],
)
def test_a_view_taken_by_glue(cut: Any) -> None:
    seen = []

    def main(c: Any) -> None:
        seen.append(c.make())
        c.use(cut(seen[-1]))

    r = recorded(main, {"make": fresh, "use": sink})
    binding = argument(r, "use")
    assert isinstance(binding, Ref)
    assert binding.call == "main/make"
    assert binding.view is not None
    assert torch.equal(take_view(seen[0], binding.view), cut(seen[0]))


def test_a_copy_by_glue_is_unknown() -> None:
    r = recorded(lambda c: c.use(c.make() * 2), {"make": fresh, "use": sink})
    binding = argument(r, "use")
    assert isinstance(binding, Const)
    assert binding.name.startswith("?")


def test_a_detached_tensor_is_another_value() -> None:
    r = recorded(
        lambda c: c.use(c.make().detach()), {"make": lambda: fresh().requires_grad_() * 2, "use": sink}
    )
    binding = argument(r, "use")
    assert isinstance(binding, Const)
    assert binding.name.startswith("?")


def test_writes_in_place_are_counted_by_torch() -> None:
    def main(c: Any) -> None:
        made = c.make()
        c.use(made)
        c.write(made[1:])
        c.use(made)

    r = recorded(main, {"make": fresh, "use": sink, "write": lambda t: t.add_(1)})
    name = "memory:main/make"
    assert memory(r, "write") == {name: "update"}
    assert memory(r, "use") == memory(r, "use#1") == {name: "read"}
    assert call(r, "write").output == Ref("main/make", (), argument(r, "write").view)  # type: ignore[union-attr]


def test_a_buffer_that_is_written_and_returned_again() -> None:
    buffer = torch.zeros(3)

    def step() -> Any:
        buffer.add_(1)
        return buffer.view(3, 1)

    def main(c: Any) -> None:
        c.use(c.step())
        c.use(c.step())

    r = recorded(main, {"step": step, "use": sink})
    assert memory(r, "step#1") == {"memory:main/step": "update"}
    assert memory(r, "use") == {"memory:main/step": "read"}


def test_parameters_are_constant_until_an_optimiser_steps() -> None:
    layer = torch.nn.Linear(3, 2)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)

    def update(weight: Any) -> None:
        layer(torch.ones(4, 3)).sum().backward()
        optimiser.step()

    def main(c: Any) -> None:
        c.use(layer.weight)
        c.use(layer.bias)
        c.update(layer.weight)

    r = recorded(main, {"use": sink, "update": update})
    weight, bias = argument(r, "use"), argument(r, "use#1")
    assert isinstance(weight, Const)
    assert isinstance(bias, Const)
    assert r.constants[weight.name] is layer.weight
    assert list(memory(r, "update").values()) == ["update"] * 2, "also the bias, which it is not given"
    for used in ("use", "use#1"):
        assert list(memory(r, used).values()) == ["read"]
        assert memory(r, used).keys() <= memory(r, "update").keys()


def test_equal_tensors_are_constant_only_if_they_are_one() -> None:
    kept = torch.ones(2)
    r = recorded(lambda c: c.use(torch.ones(2), kept, kept.device, kept.shape, kept.dtype), {"use": sink})
    made, same, *others = (argument(r, "use", n) for n in range(5))
    assert isinstance(made, Const)
    assert r.constants[made.name] == Unknown("tensor torch.float32 (2,)", equal=True)
    assert isinstance(same, Const)
    assert r.constants[same.name] is kept
    assert [r.constants[o.name] for o in others if isinstance(o, Const)] == [
        kept.device,
        kept.shape,
        kept.dtype,
    ]


def test_times_of_a_denoising_loop_that_glue_makes_are_explained() -> None:
    def loop(c: Any) -> None:
        x = c.start()
        for i in range(3):
            x = c.denoise(x, torch.full((4,), 1 - i / 3))

    r = recorded(loop, {"start": fresh, "denoise": lambda x, t: x - t[:, None]})
    with pytest.raises(RecordingError) as caught:
        call_graph(r)
    assert str(caught.value) == (
        "main: argument 1 of main/denoise (tensor torch.float32 (4,), the same bits in every recorded run)"
        " has no known origin: it was made between main/start and main/denoise. Next: make it once, before"
        " the region, if it can never differ; else wrap the code that makes it as a node"
    )


def test_a_tensor_of_a_numpy_array_shares_its_memory() -> None:
    def main(c: Any) -> None:
        made = c.make()
        c.write(made.numpy())
        c.use(made)

    def write(array: Any) -> None:
        array += 1

    r = recorded(main, {"make": fresh, "use": sink, "write": write})
    assert memory(r, "write") == {"memory:main/make": "update"}


@pytest.mark.parametrize("first", [0, 2])
def test_tensors_made_of_one_array_of_numpy_share_its_memory(first: int) -> None:
    """Simulators fill one buffer at each step, and return it as a new tensor."""
    buffer = np.zeros(6)

    def step() -> Any:
        buffer[:] += 1
        return torch.from_numpy(buffer[first:])

    def main(c: Any) -> None:
        seen = c.step()
        c.step()
        c.use(seen)
        c.use(buffer)

    r = recorded(main, {"step": step, "use": sink})
    assert memory(r, "step") == {"memory:main/step": "refresh"}
    assert memory(r, "step#1") == {"memory:main/step": "update"}
    assert memory(r, "use") == memory(r, "use#1") == {"memory:main/step": "read"}


@pytest.mark.parametrize(
    "write",
    [lambda t: t.data.mul_(2), lambda t: np.multiply(t.numpy(), 2, out=t.numpy()), lambda t: t.mul_(2)],
    ids=["past the counter", "by numpy", "in place"],
)
def test_a_tensor_that_glue_writes_is_noticed_however_it_does(write: Any) -> None:
    def main(c: Any) -> None:
        made = c.make()
        write(made)
        c.use(made)

    r = recorded(main, {"make": lambda: torch.ones(3), "use": sink}, runs=3)
    with pytest.raises(RecordingError, match=r"its own code changes the tensor .* that main/make returned"):
        call_graph(r)


def test_looking_at_a_tensor_leaves_it_resizable() -> None:
    def main(c: Any) -> None:
        made = c.make()
        c.use(made)
        assert made.untyped_storage().resizable()

    recorded(main, {"make": lambda: torch.ones(3), "use": sink})


@pytest.mark.parametrize("take", [lambda t: t.conj(), lambda t: t.conj().imag], ids=["conjugate", "its part"])
def test_a_view_whose_conjugation_is_put_off_is_unknown(take: Any) -> None:
    """In its memory lies something else."""
    r = recorded(
        lambda c: [c.use(take(c.make()))][:0],
        {"make": lambda: torch.complex(torch.randn(3), torch.randn(3)), "use": sink},
    )
    binding = argument(r, "use")
    assert isinstance(binding, Const)
    assert isinstance(r.constants[binding.name], Unknown)
