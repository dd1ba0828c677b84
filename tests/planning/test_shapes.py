from __future__ import annotations

from typing import Any

import pytest

from rlprof.planning.errors import UnknownShapeError
from rlprof.planning.shapes import SHAPES, ModelShape, shape_named

#: Parameters of the published checkpoints, norms and biases included.
PUBLISHED = {
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3.1-8b": 8_030_261_248,
    "llama3.3-70b": 70_553_706_496,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "smollm2-135m": 134_515_008,
    "mixtral-8x7b": 46_702_792_704,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_the_published_checkpoint(name: str) -> None:
    """To 0.05 %: what is left out are norms and biases."""
    counted = SHAPES[name].parameters()
    assert counted <= PUBLISHED[name]
    assert counted == pytest.approx(PUBLISHED[name], rel=5e-4)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_difference_is_exactly_norms_and_biases(name: str) -> None:
    s = SHAPES[name]
    left_out = s.hidden * (2 * s.layers + 1)
    if name.startswith("qwen"):  # biases of queries, keys and values
        left_out += s.layers * (s.query_dim + 2 * s.kv_dim)
    assert s.parameters() + left_out == PUBLISHED[name]


def test_values_of_the_worked_example() -> None:
    assert SHAPES["llama2-7b"].layer_parameters == 202_375_168
    assert SHAPES["llama2-7b"].parameters() == 6_738_149_376
    assert SHAPES["llama2-7b"].parameters("scalar") == 6_607_081_472
    assert SHAPES["llama2-13b"].parameters() == 13_015_449_600
    assert SHAPES["llama2-70b"].layer_parameters == 855_638_016
    assert SHAPES["llama2-70b"].parameters() == 68_975_329_280
    assert SHAPES["llama2-34b"].parameters() == 33_743_175_680


def test_a_plain_ffn_has_two_matrices() -> None:
    s = SHAPES["gpt3-175b"]
    assert s.layer_parameters == 4 * 12288**2 + 2 * 12288 * 49152
    assert s.parameters() == pytest.approx(175e9, rel=0.01)


def test_a_shared_backbone_has_both_heads() -> None:
    s = SHAPES["llama2-7b"]
    assert s.parameters("both") == s.parameters() + 4096
    tied = SHAPES["qwen2.5-0.5b"]
    assert tied.parameters("both") == tied.parameters() + 896
    assert tied.parameters("scalar") == tied.parameters() + 896  # the embedding is needed all the same


def test_an_unknown_model_is_an_error_that_lists_those_known() -> None:
    assert shape_named("LLaMA2_7B").name == "llama2-7b"
    with pytest.raises(UnknownShapeError, match=r"unknown model 'llama9-1t'.*llama2-7b"):
        shape_named("llama9-1t")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"layers": 0}, "layers is 0"),
        ({"heads": 3}, "no multiple of 3 heads"),
        ({"kv_heads": 3}, "3 KV heads do not divide 4"),
        ({"experts": 2, "active_experts": 3}, "3 active experts of 2"),
        ({"hidden": 64.0}, "hidden is 64.0"),
    ],
)
def test_dimensions_that_cannot_be(changed: dict[str, int], said: str) -> None:
    given: dict[str, Any] = {
        "layers": 2,
        "hidden": 64,
        "ffn_hidden": 128,
        "heads": 4,
        "kv_heads": 2,
        "vocabulary": 10,
    }
    with pytest.raises(UnknownShapeError, match=said):
        ModelShape("odd", **{**given, **changed})


@pytest.mark.parametrize("head_dim", [-1, 0.5, "16", True, 10**12, None])
def test_a_head_dimension_that_cannot_be(head_dim: Any) -> None:
    with pytest.raises(UnknownShapeError, match="head_dim is"):
        ModelShape("odd", 2, 64, 128, 4, 2, 10, head_dim=head_dim)
