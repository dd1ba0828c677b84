from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Cli
from tests.trace.nsys_made import export, kernel


def test_a_sound_capture(cli: Cli, capture: Path) -> None:
    result = cli("doctor", capture)
    assert (result.code, result.err) == (0, "")
    assert "Windows can be ranked by measured SM activity." in result.out
    assert max(map(len, result.out.splitlines())) <= 80
    assert ("To record everything" in result.out) == ("SUSPECT" in result.out or "MISSING" in result.out)


def test_what_is_missing_comes_first_with_what_to_do(cli: Cli, tmp_path: Path) -> None:
    path = export(
        tmp_path / "kernels_only.sqlite",
        {
            "META_DATA_EXPORT": [{"name": "a", "value": "b"}],
            "ANALYSIS_DETAILS": [{"duration": 100}],
            "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(5, 90)],
        },
    )
    text = cli("doctor", path).out
    assert text.index("MISSING  ranges") < text.index("ok       kernels")
    assert "so: " in text
    assert "do: " in text
    assert "nsys profile" in text
    assert "Windows cannot be ranked" in text


def test_json(cli: Cli, capture: Path) -> None:
    document = json.loads(cli("doctor", capture, "--format", "json").out)
    assert list(document) == ["schema_version", "summary", "findings", "verdict", "command", "notes"]
    assert all(
        list(f) == ["topic", "status", "detail", "consequence", "remedy"] for f in document["findings"]
    )


def test_what_is_no_capture(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("text")
    result = cli("doctor", tmp_path / "x")
    assert result.code == 2
    assert result.err.count("\n") == 1
