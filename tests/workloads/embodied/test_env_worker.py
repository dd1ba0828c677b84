"""A chunk as one call or as its phases."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlprof.workloads.embodied.env_worker import EnvWorker
from rlprof.workloads.embodied.errors import ConfigurationError
from tests.workloads.embodied.made import spec


def test_a_simulator_that_has_no_phases_is_refused_where_they_are_asked_for() -> None:
    whole: Any = SimpleNamespace(spec=spec(), step=None, physics=None, render=None)
    EnvWorker(whole)
    with pytest.raises(ConfigurationError, match=r"the simulator made has no reward of its own.*--phases"):
        EnvWorker(whole, phases=True)
