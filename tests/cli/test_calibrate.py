from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlprof.cli.main import app
from rlprof.errors import RlprofError
from rlprof.planning.hardware_file import read_hardware
from tests.cli.conftest import Cli
from tests.conftest import ROOT
from tests.planning.calibration import made


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("raw") / "lab.raw.jsonl"
    made.write(path, made.raw(0.02, operators=True))
    return path


def test_measurements_from_elsewhere_are_fitted_compared_and_drawn(
    cli: Cli, raw: Path, tmp_path: Path
) -> None:
    out, rows, chart = tmp_path / "lab.toml", tmp_path / "rows.csv", tmp_path / "fit.svg"
    result = cli("calibrate", "--fit-only", "--raw", raw, "-o", out, "--compare", rows, "--plot", chart)
    assert result.code == 0, result.err
    for part in (
        "peak_flops",
        "calibrated",
        "95 % interval",
        "typical residual",
        "held out, training",
        "Spearman",
    ):
        assert part in result.out
    assert "p2p.inter_rack is left out" in result.err
    assert read_hardware(str(out)).value("peak_flops") == pytest.approx(made.TRUE["peak_flops"], rel=0.1)
    assert rows.read_text().count("\n") > 60
    assert chart.read_text().startswith("<svg")
    again = cli("calibrate", "--fit-only", "--raw", raw, "-o", out)
    assert (again.code, "exists already" in again.err) == (2, True)
    planned = cli(
        "plan", "--algorithm", "grpo", "--actor", "qwen2.5-0.5b", "--reward", "qwen2.5-0.5b", "--hardware",
        f"{out}:1x1x2", "--batch", 8, "--prompt", 16, "--response", 16, "--evaluations", 10, "--workers", 1,
    )  # fmt: skip
    assert planned.code == 0, planned.err


def test_json_holds_estimates_residuals_and_accuracy(cli: Cli, raw: Path, tmp_path: Path) -> None:
    result = cli(
        "calibrate", "--fit-only", "--raw", raw, "--base", "h200", "--format", "json", "--fit-operators",
        "--bandwidth", "everything", "--compare", tmp_path / "rows.json",
    )  # fmt: skip
    assert result.code == 0, result.err
    document = json.loads(result.out)
    assert document["estimates"]["gamma_m"]["points"] > 100
    assert "whole operators" in document["hardware"]["constants"]["peak_flops"]["source"]
    assert document["hardware"]["constants"]["p2p.inter_node.bandwidth"]["status"] == "nominal"
    assert document["accuracy"]["held out"]["spearman"] > 0.99
    assert not (tmp_path / "lab.toml").exists()


def test_a_capture_says_what_it_cannot_tell(cli: Cli, tmp_path: Path) -> None:
    capture = ROOT / "datasets" / "vla_h200.rlprof"
    result = cli("calibrate", "--from", capture)
    assert result.code == 0, result.err
    assert result.out.count("cannot tell") == 13
    assert "within a cache" in result.out
    out = tmp_path / "hw.toml"
    result = cli("calibrate", "--from", capture, "--base", "h200", "-o", out)
    assert (result.code, out.exists()) == (2, False)
    assert "no constant can be told" in result.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no output is named"),
        (["-o", "hw.json"], "ends with .toml"),
        (["-o", "hw.toml", "--compare", "rows.txt"], "neither .csv nor .json"),
        (["-o", "hw.toml", "--base", "b300"], "unknown hardware"),
        (["-o", "hw.toml", "--devices", "gpu"], "--devices"),
        (["-o", "hw.toml", "--devices", "99"], "no GPU 99"),
        (["-o", "hw.toml", "--fit-only"], "hw.raw.jsonl"),
        (["-o", "hw.toml", "--limit", "soon"], "--limit"),
        (["-o", "no/hw.toml", "--devices", "cpu"], "the folder to write into does not exist"),
        (["--from", "lost.rlprof", "-o", "hw.toml", "--base", "h200"], "lost.rlprof"),
        (["--from", "lost.rlprof", "-o", "hw.toml"], "--base"),
    ],
)
def test_bad_input_is_an_error_that_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RlprofError) as error:
        app(["calibrate", *arguments], standalone_mode=False)
    assert said in str(error.value)
    assert error.value.exit_code == 2
    assert not list(tmp_path.iterdir())


def test_an_error_is_one_line(cli: Cli) -> None:
    result = cli("calibrate", "-o", "hw.json")
    assert (result.code, len(result.err.strip().splitlines())) == (2, 1)
