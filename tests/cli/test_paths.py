"""Every option that names a file: whatever is there, one line that says what next, at once."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from rlprof.cli import main
from rlprof.errors import OutputError, UnreadableError
from tests.cli.conftest import Cli

SMALL = Path(__file__).resolve().parent.parent / "data" / "nsys" / "vla_chunk_and_training.sqlite"
SHAPES = [
    "--algorithm",
    "ppo",
    "--actor",
    "qwen2.5-0.5b",
    "--critic",
    "qwen2.5-0.5b",
    "--reward",
    "qwen2.5-0.5b",
]
LENGTHS = ["--batch", "64", "--prompt", "64", "--response", "128"]
ON = ["--hardware", "gh200:1x1x4"]
#: Commands that read a file.
READERS = {
    "analyze": ["analyze", "BAD"],
    "doctor": ["doctor", "BAD"],
    "export": ["export", "BAD", "--to", "chrome", "-o", "out.json"],
    "plan_explain": ["plan", "explain", "BAD"],
    "plan_compare": ["plan", "compare", "BAD"],
    "plan_draw": ["plan", "draw", "BAD"],
    "plan_resume": ["plan", *SHAPES, *LENGTHS, *ON, "--resume", "BAD", "-o", "out.json"],
    "plan_hardware": ["plan", *SHAPES, *LENGTHS, "--hardware", "./BAD:1x1x8"],
    "plan_algorithm": ["plan", "--algorithm", "BAD", *LENGTHS, *ON],
    "calibrate_raw": ["calibrate", "--raw", "BAD", "--fit-only"],
    "calibrate_base": ["calibrate", "--raw", "none", "--fit-only", "--base", "./BAD"],
    "calibrate_from": ["calibrate", "--from", "BAD"],
    "run_graph": ["run", "embodied", "--out", "out", "--graph", "BAD"],
    "run_quotas": ["run", "embodied", "--out", "out", "--quotas", "BAD"],
    "capture_assemble": ["capture", "--assemble", "BAD", "-o", "out.rlprof"],
}
#: Commands that write a file, with what lets them replace it.
WRITERS = {
    "plan": ["plan", *SHAPES, *LENGTHS, *ON, "--force", "-o"],
    "export": ["export", str(SMALL), "--to", "rlprof", "--force", "-o"],
    "analyze": ["analyze", str(SMALL), "--out"],
    "calibrate": ["calibrate", "--from", str(SMALL), "--base", "h200", "--force", "-o"],
    "calibrate_raw": ["calibrate", "--raw"],
    "quota": ["quota", "--branch", "A=true", "--branch", "B=true", "--mechanism", "cores", "--force", "-o"],
    "capture": ["capture", "--backend", "none", "--force", "-o", "BAD", "--", "true"],
    "run": ["run", "embodied", "--force", "--out"],
    "optimize": ["optimize", "embodied", "--force", "--out"],
}
TORCH = {"run_graph", "run_quotas", "calibrate_raw", "run", "optimize"}
BAD: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "device": lambda p: p.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "missing": lambda p: None,
}


@pytest.fixture(autouse=True)
def no_waiting() -> Iterator[None]:
    """A command that waits for ever fails."""

    def late(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def needs(name: str) -> None:
    if name in TORCH:
        pytest.importorskip("torch", reason="torch is not installed: pip install 'rlprof[workloads]'")


def listing(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if "cache" not in p.parts)


def is_one_line(err: str, name: str) -> None:
    assert err.startswith("rlprof: error: "), err
    assert err.count("\n") == 1, err
    assert name in err
    assert ". Next: " in err
    assert "unexpected" not in err


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("reader", READERS)
def test_what_cannot_be_read(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str, bad: str
) -> None:
    needs(reader)
    monkeypatch.chdir(tmp_path)
    name = "bad.toml"
    BAD[bad](tmp_path / name)
    before = listing(tmp_path)
    result = cli(*(word.replace("BAD", name) for word in READERS[reader]))
    assert (result.code, result.out) == (2, "")
    is_one_line(result.err, name)
    assert listing(tmp_path) == before


@pytest.mark.parametrize("bad", ["pipe", "device", "long name", "below a file"])
@pytest.mark.parametrize("writer", WRITERS)
def test_what_cannot_be_written(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str, bad: str
) -> None:
    needs(writer)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    name = {"long name": "n" * 300 + ".toml", "below a file": "file/below.toml"}.get(bad, "bad.toml")
    if bad in BAD:
        BAD[bad](tmp_path / name)
    before = listing(tmp_path)
    words = WRITERS[writer]
    result = cli(*([name if w == "BAD" else w for w in words] if "BAD" in words else [*words, name]))
    assert (result.code, result.out) == (2, ""), result
    is_one_line(result.err, name)
    assert listing(tmp_path) == before


def test_a_read_only_file_system(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro,size=64k", "tmpfs", str(folder)]
    if os.geteuid() or shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        for words in (["export", SMALL, "--to", "chrome", "-o"], ["analyze", SMALL, "--out"]):
            result = cli(*words, folder / "out.json")
            assert result.code == 2
            is_one_line(result.err, "out.json")
            assert "no permission to write here" in result.err or "read-only" in result.err
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device. Next: free space"),
        (PermissionError(errno.EACCES, "Permission denied", "x"), "x: Permission denied. Next: write to ano"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "x"), "x: File name too long. Next: give a short"),
        (OSError(errno.EROFS, "Read-only file system", b"x", None, "y"), "x -> y: Read-only file system. Ne"),
        (IsADirectoryError(errno.EISDIR, "Is a directory", "x"), "x: Is a directory. Next: it is a folder"),
        (OSError(errno.ECONNREFUSED, "refused"), "unexpected ConnectionRefusedError"),
        (OSError("of a library"), "unexpected OSError: of a library. Next: report it"),
    ],
    ids=lambda value: str(getattr(value, "errno", ""))[:20],
)
def test_an_error_of_the_operating_system_that_nobody_expected(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: OSError, said: str
) -> None:
    def fails(**_: object) -> None:
        raise error

    monkeypatch.setattr(main, "app", fails)
    result = cli("doctor")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert said in result.err


@pytest.mark.parametrize("kind", [OutputError, UnreadableError])
def test_an_error_without_a_step_gets_it_from_its_cause(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, kind: type[OutputError]
) -> None:
    def fails(**_: object) -> None:
        raise kind("the log cannot be used", where="log") from OSError(errno.ENOSPC, "No space left")

    monkeypatch.setattr(main, "app", fails)
    assert cli("doctor").err.startswith("rlprof: error: log: the log cannot be used. Next: free space")


@pytest.mark.parametrize(
    "command",
    [
        ["optimize", "embodied", "--out", ""],
        ["run", "embodied", "--out="],
        ["export", SMALL, "--to", "chrome", "-o", ""],
        ["capture", "--output", "", "--", "true"],
    ],
)
def test_an_output_with_an_empty_name_is_not_the_working_folder(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    done = cli(*command)
    assert done.code == 2
    assert "is given an empty name" in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_an_empty_argument_of_the_program_is_its_own(cli: Cli, tmp_path: Path) -> None:
    made = tmp_path / "run.rlprof"
    done = cli("capture", "--backend", "none", "-o", made, "--", "echo", "-o", "")
    assert (done.code, made.is_file()) == (0, True)
