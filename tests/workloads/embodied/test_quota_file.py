"""Shares of the SMs as a file."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from rlprof.errors import UnreadableError
from rlprof.overlap.optimize.graph_file import with_hash
from rlprof.workloads.embodied.config import configure
from rlprof.workloads.embodied.errors import ConfigurationError
from rlprof.workloads.embodied.quota_file import QuotaFile

WHOLE = {"format": "rlprof quotas", "version": 1, "quotas": {}, "reason": "", "facts": {}}


def test_shares_reach_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "quotas.json"
    QuotaFile({"simulator": 75}, "found by a search", {"sms": 98}).write(path)
    kept = QuotaFile.read(path)
    assert kept == QuotaFile({"simulator": 75}, "found by a search", {"sms": 98})
    config = configure("h200", simulator="mujoco_warp")
    assert kept.apply(config).simulator_sm_percent == 75
    assert kept.apply(config).rollout_sm_percent is None


def test_a_share_that_a_configuration_cannot_have_is_refused() -> None:
    assert QuotaFile({"rollout": 75}).apply(configure("h200")).rollout_sm_percent == 75
    with pytest.raises(ConfigurationError, match="cpu has no SMs"):
        QuotaFile({"rollout": 75}).apply(configure("tiny"))


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "quotas.json"
    QuotaFile({"kitchen": 50}).write(path)
    with pytest.raises(UnreadableError, match="a share for 'kitchen'"):
        QuotaFile.read(path)
    for share in (0, 101, -1, 10**30, 40.5, float("inf"), float("nan"), True, "40", None, [40]):
        path.write_text(json.dumps(with_hash({**WHOLE, "quotas": {"simulator": share}})))
        with pytest.raises(UnreadableError, match=r"quotas.json: has a share of .* % for simulator"):
            QuotaFile.read(path)
    for name, value in product(("quotas", "reason", "facts"), (None, 5, [["a", 1]])):
        path.write_text(json.dumps(with_hash({**WHOLE, name: value})))
        with pytest.raises(UnreadableError, match=r"quotas.json: is no file of quotas"):
            QuotaFile.read(path)
    QuotaFile({"simulator": 75}).write(path)
    document = json.loads(path.read_text())
    document["quotas"]["simulator"] = 80
    path.write_text(json.dumps(document))
    with pytest.raises(UnreadableError, match="was changed"):
        QuotaFile.read(path)
