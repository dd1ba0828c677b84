"""Environment variables, user, host and path names inside a capture never reach any output."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

DATA = Path(__file__).resolve().parent.parent / "data"
MARKERS = {
    "env": "hf_SECRETTOKEN123",
    "user": "jane_doe_user",
    "host": "gpu-host-17.internal",
    "folder": "/home/jane_doe_user/projects/secret",
    "command": "train.py --api-key=sk-SECRETKEY",
}


@pytest.fixture
def capture_with_personal_data(tmp_path: Path) -> Path:
    """A capture whose tables of environment, target, command line and export are full of markers."""
    path = tmp_path / "capture_with_personal_data.sqlite"
    path.write_bytes((DATA / "nsys" / "vla_chunk_and_training.sqlite").read_bytes())
    con = sqlite3.connect(path)
    con.execute("CREATE TABLE IF NOT EXISTS META_DATA_CAPTURE (name TEXT, value TEXT)")
    con.execute("CREATE TABLE IF NOT EXISTS META_DATA_EXPORT (name TEXT, value TEXT)")
    con.execute("CREATE TABLE IF NOT EXISTS TARGET_INFO_SYSTEM_ENV (name TEXT, nameEnum INT, value TEXT)")
    con.execute("CREATE TABLE IF NOT EXISTS PROCESSES (globalPid INT, pid INT, name TEXT)")
    con.execute("CREATE TABLE IF NOT EXISTS ThreadNames (nameId INT, priority INT, globalTid INT)")
    con.executemany(
        "INSERT INTO META_DATA_CAPTURE VALUES (?, ?)",
        [
            ("PROCESS_0:ENVIRONMENT_VARIABLE", f"HF_TOKEN={MARKERS['env']}"),
            ("PROCESS_0:COMMAND_LINE", MARKERS["command"]),
            ("PROCESS_0:WORKING_DIRECTORY", MARKERS["folder"]),
            ("USER_NAME", MARKERS["user"]),
        ],
    )
    con.executemany(
        "INSERT INTO META_DATA_EXPORT VALUES (?, ?)",
        [
            ("EXPORT_HOST", MARKERS["host"]),
            ("EXPORT_USER", MARKERS["user"]),
            ("EXPORT_REPORT_PATH", MARKERS["folder"] + "/run.nsys-rep"),
        ],
    )
    con.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('Hostname', 1, ?)", (MARKERS["host"],))
    con.execute("INSERT INTO PROCESSES VALUES (1, 1, ?)", (MARKERS["folder"] + "/python",))
    con.commit()
    con.close()
    return path


@pytest.fixture
def trace_with_personal_data(tmp_path: Path) -> Path:
    """A PyTorch trace that says where and by whom it was made."""
    at = 1_700_000_000_000_000
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "step", "pid": 7, "tid": 7, "ts": at, "dur": 9000},
        {
            "ph": "X",
            "cat": "kernel",
            "name": "gemm",
            "pid": 0,
            "tid": 7,
            "ts": at + 10,
            "dur": 100,
            "args": {"device": 0, "stream": 7, "correlation": 1, "Call stack": MARKERS["folder"] + "/a.py"},
        },
        {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": MARKERS["command"]}},
    ]
    document = {
        "traceName": MARKERS["folder"] + "/trace.json",
        "hostname": MARKERS["host"],
        "environment": {"HF_TOKEN": MARKERS["env"], "USER": MARKERS["user"]},
        "traceEvents": events,
    }
    path = tmp_path / "trace_with_personal_data.json"
    path.write_text(json.dumps(document))
    return path


COMMANDS = {
    "table": ["analyze", "{}"],
    "json": ["analyze", "{}", "--format", "json"],
    "csv": ["analyze", "{}", "--format", "csv"],
    "markdown": ["analyze", "{}", "--format", "markdown"],
    "out": ["analyze", "{}", "--out", "result"],
    "doctor": ["doctor", "{}"],
    "doctor_json": ["doctor", "{}", "--format", "json"],
    "chrome": ["export", "{}", "--to", "chrome", "-o", "result"],
    "parquet": ["export", "{}", "--to", "parquet", "-o", "result"],
    "sqlite": ["export", "{}", "--to", "sqlite", "-o", "result"],
    "rlprof": ["export", "{}", "--to", "rlprof", "-o", "result"],
    "wrong_window": ["analyze", "{}", "--window", "1e6:2e6"],
    "wrong_iteration": ["analyze", "{}", "--iteration", "nope"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", ["capture_with_personal_data", "trace_with_personal_data"])
def test_no_output_holds_what_is_personal(
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    command: str,
    kind: str,
) -> None:
    path: Path = request.getfixturevalue(kind)
    assert all(m.encode() in path.read_bytes() for m in MARKERS.values())
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    # named relatively: the folder it lies in is the user's own, and is said back in errors only
    given = Path("..") / path.name
    result = cli(*(a.format(given) for a in COMMANDS[command]))
    assert result.code == (2 if command.startswith("wrong") else 0), result.err
    written = [p for p in folder.rglob("*") if p.is_file()]
    assert bool(written) == ("result" in COMMANDS[command])
    outputs = {"standard output": result.out.encode(), "standard error": result.err.encode()}
    outputs |= {p.name: _plain(p) for p in written}
    for where, content in outputs.items():
        for marker in MARKERS.values():
            assert marker.encode() not in content, (where, marker)


def _plain(path: Path) -> bytes:
    """The bytes of a file, and of what is compressed inside it."""
    import zipfile

    import pyarrow.parquet as pq

    content = path.read_bytes()
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                with archive.open(name) as member:
                    content += (
                        json.dumps(pq.read_table(member).to_pylist(), default=str).encode()
                        if name.endswith(".parquet")
                        else member.read()
                    )
    elif path.suffix == ".parquet":
        content += json.dumps(pq.read_table(path).to_pylist(), default=str).encode()
        content += str(pq.read_schema(path).metadata).encode()
    return content
