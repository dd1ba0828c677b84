"""Whatever is handed over: one line that says what, where and what next, code 2, nothing half written."""

from __future__ import annotations

import gzip
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, Result
from tests.conftest import python_path

DATA = Path(__file__).resolve().parent.parent / "data"
SMALL = DATA / "nsys" / "vla_chunk_and_training.sqlite"
RANK = DATA / "kineto" / "two_ranks_rank-0.json.gz"
# the version of the Nsight Systems that wrote it stands near the end
REPORT = b"NVIDIA Tegra Profiler Report 36398880.\n" + bytes(4096) + b"2\x0b2025.3.1.90"

# What nsys says to a report that is newer than it: a refusal, or an exception of protobuf.
NSYS = """#!/bin/sh
case "$1" in
  --version) echo "NVIDIA Nsight Systems version 2023.4.4.54-234433681190v0";;
  export) [ "$2" = --help ] && { echo parquetdir; exit 0; }; SAYS >&2; exit CODE;;
esac
"""
REFUSAL = NSYS.replace(
    "SAYS",
    "echo 'Exportation error: Report was created in Nsight Systems version (2025.3.1.90), newer than your "
    "current version (2023.4.4.54). Please update.'",
).replace("CODE", "1")
PROTOBUF = NSYS.replace(
    "SAYS",
    "echo '[libprotobuf ERROR message_lite.cc:133] Can not parse message of type SessionState because it is "
    "missing required fields: DeviceState.Props.Items[48].Type'; "
    "echo 'Dynamic exception type: boost::wrapexcept<QuadDCommon::ProtobufParseException>'",
).replace("CODE", "1")


def cut(source: Path, share: float) -> bytes:
    raw = source.read_bytes()
    return raw[: int(len(raw) * share)]


def malformed() -> bytes:
    raw = bytearray(SMALL.read_bytes())
    third = len(raw) // 3
    raw[third : 2 * third] = b"\xff" * third
    return bytes(raw)


CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda p: p.touch(), "empty"),
    "text": (lambda p: p.write_text("no trace\n"), "looks like text"),
    "binary": (lambda p: p.write_bytes(bytes(range(256)) * 40), "binary"),
    "sqlite_cut_short": (lambda p: p.write_bytes(cut(SMALL, 0.5)), "cut short"),
    "sqlite_header_only": (lambda p: p.write_bytes(SMALL.read_bytes()[:16]), "cut short"),
    "sqlite_malformed": (lambda p: p.write_bytes(malformed()), "malformed"),
    "sqlite_of_others": (
        lambda p: sqlite3.connect(p).execute("CREATE TABLE a (b)").connection.close(),
        "SQLite",
    ),
    "kineto_cut_short": (lambda p: p.write_bytes(cut(RANK, 0.5)), ""),
    "kineto_text_cut_short": (lambda p: p.write_bytes(gzip.decompress(RANK.read_bytes())[:50_000]), ""),
    "kineto_without_events": (lambda p: p.write_text('{"traceEvents": []}'), ""),
    "json_of_others": (lambda p: p.write_text('{"a": 1}'), "traceEvents"),
    "gzip_of_rubbish": (lambda p: p.write_bytes(b"\x1f\x8b\x08" + b"\xff" * 99), "gzip"),
    "rlprof_cut_short": (lambda p: p.write_bytes(b"PK\x03\x04" + bytes(50)), "zip"),
    "rlprof_with_broken_meta": (lambda p: _zip(p, {"meta.json": "{"}), "meta.json"),
    "zip_of_others": (lambda p: _zip(p, {"a": "b"}), "zip archive"),
    "report_cut_short": (lambda p: p.write_bytes(REPORT[:20]), "cut short"),
    "folder": (lambda p: p.mkdir(), "folder"),
    "pipe": (os.mkfifo, "named pipe"),
    "dangling_link": (lambda p: p.symlink_to(p.parent / "nowhere"), "symbolic link"),
    "missing": (lambda p: None, "no such file"),
}


def _zip(path: Path, members: dict[str, str]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)


def holds(result: Result, path: Path, said: str) -> None:
    """One line on standard error that names the file, and nothing else."""
    assert result.code == 2, result
    assert result.out == ""
    assert result.err.startswith("rlprof: error: "), result.err
    assert result.err.count("\n") == 1, result.err
    assert "Traceback" not in result.err
    assert path.name in result.err
    assert said in result.err
    assert "unexpected" not in result.err
    assert ". Next: " in result.err


def listing(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if "cache" not in p.parts)


def analyze(run: Cli, folder: Path, name: str) -> None:
    make, said = CASES[name]
    path = folder / "bad input é.sqlite"
    make(path)
    before = listing(folder)
    holds(run("analyze", path, "--out", folder / "out"), path, said)
    assert listing(folder) == before


@pytest.mark.parametrize("name", CASES)
def test_bad_input(cli: Cli, tmp_path: Path, name: str) -> None:
    analyze(cli, tmp_path, name)


@pytest.mark.parametrize("name", ["sqlite_malformed", "kineto_cut_short", "missing"])
def test_bad_input_as_a_process_of_its_own(process: Cli, tmp_path: Path, name: str) -> None:
    analyze(process, tmp_path, name)


@pytest.mark.parametrize("verb", [["doctor"], ["export", "--to", "chrome", "-o", "out.json"]])
@pytest.mark.parametrize("name", CASES)
def test_bad_input_of_the_other_verbs(
    cli: Cli, tmp_path: Path, name: str, verb: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make, said = CASES[name]
    path = tmp_path / "bad.json"
    make(path)
    monkeypatch.chdir(tmp_path)
    before = listing(tmp_path)
    holds(cli(verb[0], path, *verb[1:]), path, said)
    assert listing(tmp_path) == before


def test_a_file_without_permission(process: Cli, tmp_path: Path) -> None:
    path = tmp_path / "secret.sqlite"
    shutil.copy(SMALL, path)
    path.chmod(0)
    if os.access(path, os.R_OK):  # root reads everything: take the permission away where it is asked for
        before = (
            "import pathlib\n"
            "def refuse(self, *a, **k): raise PermissionError(13, 'Permission denied', str(self))\n"
            "pathlib.Path.open = refuse"
        )
    else:
        before = ""
    holds(process("analyze", path, before=before), path, "no permission")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (REFUSAL, "newer"),
        (PROTOBUF, "newer"),
        ("#!/bin/sh\nexit 3\n", "nsys"),
        (None, "nsys"),
    ],
    ids=["refused_as_newer", "protobuf_exception", "nsys_that_fails", "nsys_absent"],
)
def test_a_report_that_nsys_cannot_export(
    process: Cli, tmp_path: Path, script: str | None, said: str
) -> None:
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(REPORT)
    nsys = tmp_path / "nsys"
    if script is not None:
        nsys.write_text(script)
        nsys.chmod(0o755)
    before = listing(tmp_path)
    holds(process("analyze", report, env={"RLPROF_NSYS": str(nsys)}), report, said)
    assert listing(tmp_path) == before


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_job_that_is_ended_leaves_nothing(process: Cli, tmp_path: Path, name: str, code: int) -> None:
    before = (
        "import os, signal\n"
        "from rlprof.report import html\n"
        f"html.write_report = lambda *a, **k: os.kill(os.getpid(), signal.{name})"
    )
    result = process("analyze", SMALL, "--out", tmp_path / "out", before=before)
    assert result.code == code
    assert "Traceback" not in result.err
    assert listing(tmp_path) == []


# --- a full disk ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1_000, 100_000, 400_000])
@pytest.mark.parametrize(
    "arguments",
    [
        ["analyze", str(SMALL), "--out", "out"],
        ["export", str(SMALL), "--to", "chrome", "-o", "out"],
        ["export", str(SMALL), "--to", "sqlite", "-o", "out"],
    ],
    ids=["analyze", "chrome", "sqlite"],
)
def test_a_file_that_may_not_grow_leaves_nothing(
    process: Cli, tmp_path: Path, arguments: list[str], limit: int
) -> None:
    before = f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
    result = process(*arguments, before=before)
    assert resource.getrlimit(resource.RLIMIT_FSIZE) != (limit, limit)
    if result.code == 0:
        pytest.skip("the result is smaller than the limit")
    assert result.code == 2
    assert result.err.count("\n") == 1, result.err
    assert "cannot be written" in result.err or "full" in result.err
    assert listing(tmp_path) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB; only root can make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if os.geteuid() or shutil.which("mount") is None or subprocess.run(command, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("existing", [False, True])
def test_out_on_a_full_disk_leaves_nothing(process: Cli, small_disk: Path, existing: bool) -> None:
    out = small_disk / "out"
    if existing:
        out.mkdir()
        (out / "windows.csv").write_text("of an earlier run")
    before = listing(small_disk)
    result = process("analyze", SMALL, "--out", out)
    assert result.code == 2
    assert result.err.count("\n") == 1
    assert "disk is full" in result.err
    assert listing(small_disk) == before
    if existing:
        assert (out / "windows.csv").read_text() == "of an earlier run"


@pytest.mark.parametrize("to", ["chrome", "sqlite", "parquet", "rlprof"])
def test_an_export_to_a_full_disk_leaves_nothing(process: Cli, small_disk: Path, to: str) -> None:
    (small_disk / "filler").write_bytes(bytes(240 * 1024))
    result = process("export", SMALL, "--to", to, "-o", small_disk / "out")
    assert result.code == 2
    assert result.err.count("\n") == 1, result.err
    assert "disk is full" in result.err
    assert listing(small_disk) == ["filler"]


def test_python_itself_is_not_needed_on_the_path(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rlprof", "doctor", str(SMALL)],
        env={"PATH": "/nonexistent", "HOME": str(tmp_path), "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
