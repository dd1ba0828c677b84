"""The values of each preset make a configuration."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from rlprof.workloads.embodied.config import PRESETS, Config, configure
from rlprof.workloads.embodied.errors import ConfigurationError
from rlprof.workloads.embodied.presets import LARGEST_GROUP, VALUES


@pytest.mark.parametrize("preset", VALUES)
def test_a_preset_changes_what_it_says_and_nothing_else(preset: str) -> None:
    assert configure(preset).to_dict() == asdict(Config()) | {"preset": preset} | VALUES[preset]


@pytest.mark.parametrize(("preset", "group"), [("tiny", 32), ("exact", 4), ("h200", 8)])
def test_environments_of_grpo_start_alike_in_large_groups(preset: str, group: int) -> None:
    assert configure(preset).group == 1
    assert configure(preset, algorithm="grpo").group == group
    assert configure(preset, algorithm="grpo", group=2).group == 2


def test_each_preset_has_a_name_and_a_group() -> None:
    assert (*VALUES,) == (*LARGEST_GROUP,) == PRESETS
    with pytest.raises(ConfigurationError, match=r"no preset is called 'large'.*tiny, exact, h200"):
        configure("large")
