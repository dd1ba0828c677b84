from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

import rlprof
from rlprof.cli import analyze, main
from tests.cli.conftest import Cli


def test_version(cli: Cli) -> None:
    assert cli("--version").out == f"rlprof {rlprof.__version__}\n"


@pytest.mark.parametrize("verb", ["analyze", "doctor", "export"])
def test_help_of_each_verb(cli: Cli, verb: str) -> None:
    result = cli(verb, "--help")
    assert result.code == 0
    assert "TRACE" in result.out


def test_no_arguments_show_the_verbs(cli: Cli) -> None:
    result = cli()
    assert result.code == 2
    assert all(verb in result.out for verb in ("analyze", "doctor", "export"))
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate"],
        ["analyze"],
        ["analyze", "--nope", "x"],
        ["analyze", "x", "--format", "yaml"],
        ["analyze", "x", "--top", "0"],
        ["analyze", "x", "--top", "many"],
        ["analyze", "x", "--rank-from", "guess"],
        ["export", "x"],
        ["export", "x", "--to", "pdf", "-o", "y"],
    ],
)
def test_a_wrong_command_line_is_one_line_and_code_2(cli: Cli, arguments: list[str]) -> None:
    result = cli(*arguments)
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("rlprof: error: ")
    assert result.err.count("\n") == 1


def test_a_fault_is_one_line_and_its_traceback_is_there_for_the_asking(
    cli: Cli, capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **more: object) -> None:
        raise KeyError("column")

    monkeypatch.setattr(analyze, "load", fail)
    result = cli("analyze", capture)
    assert result.code == 2
    assert result.err.count("\n") == 1
    assert "KeyError" in result.err
    assert "RLPROF_DEBUG=1" in result.err
    monkeypatch.setenv("RLPROF_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["rlprof", "analyze", str(capture)])
    with pytest.raises(KeyError):
        main.run()


def test_ctrl_c_is_code_130_without_a_traceback(
    cli: Cli, capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(analyze, "load", interrupt)
    result = cli("analyze", capture)
    assert result.code == 130
    assert result.err == "rlprof: error: interrupted\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_what_fails_on_the_way_out_of_an_interruption_is_not_told_in_its_place(
    cli: Cli, capture: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    cleaned = []

    def ended(*arguments: object, **more: object) -> None:
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(number)  # as `timeout` sends it: to the process, and to its group
            cleaned.append(True)
            raise RuntimeError("release unlocked lock")

    monkeypatch.setattr(analyze, "load", ended)
    result = cli("analyze", capture)
    assert cleaned == [True]
    assert result.code == code
    assert result.err == f"rlprof: error: interrupted by {number.name}\n"


def test_who_is_told_to_end_again_later_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ending = main._Ending()
    for ends, at_s in ((True, 10.0), (False, 10.9), (True, 11.0), (False, 11.5)):
        monkeypatch.setattr(main.time, "monotonic", lambda at_s=at_s: at_s)
        with pytest.raises(SystemExit, match="143") if ends else nullcontext():
            ending(signal.SIGTERM, None)


def test_a_reader_that_went_away_is_quiet(capture: Path) -> None:
    command = f"{sys.executable} -m rlprof analyze '{capture}' --format csv | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""


def test_a_full_standard_output_is_one_line(capture: Path) -> None:
    command = f"{sys.executable} -m rlprof analyze '{capture}' --format json > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "standard output" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_command_line_starts_lean() -> None:
    code = (
        "import sys\nimport rlprof.cli.main\n"
        "heavy = {'polars', 'numpy', 'pyarrow', 'pandas', 'altair', 'rich', 'orjson'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("verb", ["analyze", "doctor"])
def test_a_closed_standard_output_is_one_line(capture: Path, verb: str) -> None:
    command = f'"{sys.executable}" -m rlprof.cli.main {verb} "{capture}" >&-'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "rlprof: error: standard output is closed. Next: write to a file or a pipe"
    ]


def test_a_closed_standard_error_changes_no_result(capture: Path, tmp_path: Path) -> None:
    line = f'"{sys.executable}" -m rlprof.cli.main analyze --format csv'
    with_it = subprocess.run(["sh", "-c", f'{line} "{capture}"'], capture_output=True, text=True, check=False)
    without = subprocess.run(
        ["sh", "-c", f'{line} "{capture}" 2>&-'], capture_output=True, text=True, check=False
    )
    assert (without.returncode, without.stdout) == (0, with_it.stdout)
    # what is wrong is not told in the place of the result
    lost = subprocess.run(
        ["sh", "-c", f'{line} "{tmp_path}/none" 2>&-'], capture_output=True, text=True, check=False
    )
    assert (lost.returncode, lost.stdout) == (2, "")


def test_more_rows_than_there_can_be(cli: Cli, capture: Path) -> None:
    assert cli("analyze", str(capture), "--top", str(10**30)).code == 0
