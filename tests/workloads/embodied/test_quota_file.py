"""Shares of the SMs as a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlprof.errors import UnreadableError
from rlprof.workloads.embodied.config import configure
from rlprof.workloads.embodied.errors import ConfigurationError
from rlprof.workloads.embodied.quota_file import QuotaFile


def test_shares_reach_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "quotas.json"
    QuotaFile({"simulator": 75}, "found by a search", {"sms": 98}).write(path)
    kept = QuotaFile.read(path)
    assert kept == QuotaFile({"simulator": 75}, "found by a search", {"sms": 98})
    config = configure("h200", simulator="mujoco_warp")
    assert kept.apply(config).simulator_sm_percent == 75
    assert kept.apply(config).rollout_sm_percent is None


def test_a_share_that_a_configuration_cannot_have_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="one process"):
        QuotaFile({"rollout": 75}).apply(configure("h200"))


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "quotas.json"
    QuotaFile({"kitchen": 50}).write(path)
    with pytest.raises(UnreadableError, match="a share for 'kitchen'"):
        QuotaFile.read(path)
    QuotaFile({"simulator": 75}).write(path)
    document = json.loads(path.read_text())
    document["quotas"]["simulator"] = 80
    path.write_text(json.dumps(document))
    with pytest.raises(UnreadableError, match="was changed"):
        QuotaFile.read(path)
