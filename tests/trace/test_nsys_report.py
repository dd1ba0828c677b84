"""Reports: exports beside them, the cache, and every way in which nsys fails."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from rlprof.errors import (
    DamagedTraceError,
    NewerReportError,
    NsysError,
    OutputError,
    RlprofError,
    UnreadableError,
)
from rlprof.trace import nsys_cache, nsys_report, nsys_tool
from rlprof.trace.nsys_parquet import ParquetTables
from rlprof.trace.nsys_report import read_report
from rlprof.trace.nsys_sqlite import read_sqlite
from rlprof.trace.nsys_tool import REPORT_MAGIC, find_nsys, report_version
from tests.trace.nsys_exports import write_arrowdir, write_parquetdir
from tests.trace.nsys_made import export, push_pop

ROOT = Path(__file__).parents[2]
ROWS = {
    "META_DATA_EXPORT": [{"name": "EXPORT_SCHEMA_VERSION", "value": "3.20.3"}],
    "NVTX_EVENTS": [push_pop(0, 100, "exported by nsys")],
    "ANALYSIS_DETAILS": [{"duration": 1000}],
}
HELP = "--type parquetdir sqlite --tables=<pattern>"


def write_report(path: Path, version: str = "2025.3.1.0", *, header: bool = False) -> Path:
    """A file that starts and ends as reports do; only the fake nsys of a test can read it."""
    first = f" {version.replace('.', '@')}-1v0." if header else " 36398880."
    field = b"2" + bytes([len(version)]) + version.encode() + b":\x0836398880"
    path.write_bytes(REPORT_MAGIC + first.encode() + b"\nbody" * 1000 + (b"" if header else field) + b"end")
    return path


@pytest.fixture
def report(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return write_report(tmp_path / "run" / "run.nsys-rep")


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with no nsys and an empty cache."""
    monkeypatch.setattr(nsys_tool, "PLACES", ())
    for name in ("CUDA_HOME", "CUDA_PATH", "RLPROF_NSYS", "RLPROF_CACHE_MAX_BYTES"):
        monkeypatch.delenv(name, raising=False)
    tools = tmp_path / "bin"
    tools.mkdir()
    # the real PATH without any nsys
    for name in ("cp", "cat", "mkdir", "sleep", "sh", "touch"):
        (tools / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("RLPROF_CACHE", str(tmp_path / "cache"))
    return tools


def fake_nsys(
    path: Path, export_body: str, *, version: str = "2023.4.4.54-1v0", help_text: str = HELP
) -> Path:
    """A shell script in place of nsys; `$out`, `$kind` and `$report` are set for the body."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"""#!/bin/sh
case "$*" in
  --version) echo "NVIDIA Nsight Systems version {version}"; exit 0;;
  "export --help") echo "{help_text}"; exit 0;;
esac
echo "$*" >> "{path.parent}/calls"
while [ $# -gt 1 ]; do
  case "$1" in --output) out=$2;; --type) kind=$2;; esac
  shift
done
report=$1
{export_body}
""")
    path.chmod(0o755)
    return path


def calls(machine: Path) -> list[str]:
    file = machine / "calls"
    return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def good_export(tmp_path: Path) -> str:
    """Body of a fake nsys that exports well."""
    database = export(tmp_path / "good.sqlite", ROWS)
    con = sqlite3.connect(tmp_path / "settings.sqlite")
    con.execute("CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT)")
    con.executemany(
        "INSERT INTO META_DATA_CAPTURE VALUES (?, ?)",
        [
            ("PROCESS_0:COLLECT_CUDA_TRACE", "true"),
            ("PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE", "Node"),
            ("GPU_METRICS_OPTIONS:SAMPLING_FREQUENCY", "2000"),
            ("PROCESS_0:ENVIRONMENT_VARIABLE", "TOKEN=secret-of-alice"),
            ("PROCESS_0:USER_NAME", "alice"),
        ],
    )
    con.commit()
    con.close()
    folder = write_parquetdir(database, tmp_path / "good_pqtdir")
    return (
        f'if [ "$kind" = sqlite ]; then case "$out" in *settings*) cp {tmp_path}/settings.sqlite "$out";; '
        f'*) cp {database} "$out";; esac; else cp -r {folder} "$out"; fi\n'
        'echo "Processing 100 events: [====50%   ]" >&2; exit 0'
    )


def nothing_left(tmp_path: Path) -> bool:
    return not [p for p in (tmp_path / "cache").rglob("*") if p.name != "nsys"]


# ---- exporting and the cache ----------------------------------------------------------------------------


def test_exports_once_and_then_reads_the_cache(report, machine, good_export):
    fake_nsys(machine / "nsys", good_export)
    stages = []
    first = read_report(report, progress=lambda stage, fraction: stages.append((stage, fraction)))
    assert first.meta.format == "nsys-report"
    assert first.meta.files == ("run.nsys-rep",)
    assert first.ranges["name"].to_list() == ["exported by nsys"]
    assert first.notes == ()
    assert ("nsys export", 0.5) in stages
    assert ("nsys export", 1.0) in stages
    made = calls(machine)
    assert len(made) == 2  # the tables, and the settings
    assert "--type parquetdir" in made[0]
    assert "NVTX_EVENTS" in made[0]
    assert "ENV" not in made[0]
    second = read_report(report)
    assert second.ranges.equals(first.ranges)
    assert calls(machine) == made


def test_settings_are_kept_and_environments_are_not(report, machine, good_export, tmp_path):
    fake_nsys(machine / "nsys", good_export)
    trace = read_report(report)
    assert trace.meta.graph_mode == "node"
    assert trace.meta.sampling_hz == 2000
    cached = b"".join(p.read_bytes() for p in (tmp_path / "cache").rglob("*") if p.is_file())
    assert b"META_DATA_CAPTURE" not in cached or b"alice" not in cached
    for file in (tmp_path / "cache").rglob("META_DATA_CAPTURE.parquet"):
        assert "alice" not in str(pl.read_parquet(file).to_dicts())


def test_report_that_changed_is_exported_again(report, machine, good_export):
    fake_nsys(machine / "nsys", good_export)
    read_report(report)
    count = len(calls(machine))
    os.utime(report, (1, 1))
    read_report(report)
    assert len(calls(machine)) == 2 * count


def test_damaged_cache_entry_is_made_again(report, machine, good_export, tmp_path):
    fake_nsys(machine / "nsys", good_export)
    read_report(report)
    next((tmp_path / "cache").rglob("NVTX_EVENTS.parquet")).write_bytes(b"")
    assert read_report(report).ranges["name"].to_list() == ["exported by nsys"]


def test_nsys_that_cannot_choose_tables(report, machine, good_export, tmp_path):
    extra = f'cp {tmp_path}/secret.parquet "$out/TARGET_INFO_SYSTEM_ENV.parquet"\n'
    pl.DataFrame({"name": ["HOME"], "value": ["/home/alice"]}).write_parquet(tmp_path / "secret.parquet")
    fake_nsys(machine / "nsys", good_export.replace("echo", f"{extra}echo", 1), help_text="--type parquetdir")
    trace = read_report(report)
    assert trace.ranges["name"].to_list() == ["exported by nsys"]
    assert all("--tables" not in c for c in calls(machine))
    # environments were exported as well, and are not kept
    assert not list((tmp_path / "cache").rglob("TARGET_INFO_SYSTEM_ENV*"))


def test_nsys_that_knows_sqlite_only(report, machine, good_export):
    fake_nsys(machine / "nsys", good_export, help_text="--type sqlite hdf json", version="2021.2.4.12")
    trace = read_report(report)
    assert trace.ranges["name"].to_list() == ["exported by nsys"]
    assert len(calls(machine)) == 1
    assert "--type sqlite" in calls(machine)[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_cache_without_permission(report, machine, good_export, tmp_path):
    (tmp_path / "cache").mkdir(mode=0o500)
    fake_nsys(machine / "nsys", good_export)
    assert "cache folder cannot be written" in read_report(report).notes[0]


@pytest.mark.parametrize("help_text", [HELP, "--type sqlite"])
def test_cache_folder_that_cannot_be_made(report, machine, good_export, tmp_path, monkeypatch, help_text):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RLPROF_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    fake_nsys(machine / "nsys", good_export, help_text=help_text)
    trace = read_report(report)
    assert any("cache folder cannot be written" in n for n in trace.notes)
    assert len(list((tmp_path / "temporary").iterdir())) == 1
    assert trace.ranges["name"].to_list() == ["exported by nsys"]  # the folder lives as long as the trace
    del trace
    import gc

    gc.collect()
    assert list((tmp_path / "temporary").iterdir()) == []


def test_cache_is_cut_to_its_size_oldest_first(tmp_path):
    tmp_path = tmp_path / "place"
    tmp_path.mkdir()
    place = nsys_cache.Place(tmp_path)
    for i, name in enumerate(["old", "middle", "new", "fresh"]):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data").write_bytes(b"x" * 100)
        os.utime(tmp_path / name, (1000.0 + i, 1000.0 + i))
    (tmp_path / ".making-1-abc").mkdir()
    os.utime(tmp_path / ".making-1-abc", (1000.0, 1000.0))
    (tmp_path / ".making-2-abc").mkdir()
    os.utime(tmp_path / "fresh", (9e5, 9e5))
    place.prune("new", max_bytes=150, now_s=9e5)
    # what another process is making stays; so do the entry in use and one used within the hour
    assert sorted(p.name for p in tmp_path.iterdir()) == [".making-2-abc", "fresh", "new"]


def test_two_processes_that_make_one_entry(tmp_path):
    tmp_path = tmp_path / "place"
    tmp_path.mkdir()
    place = nsys_cache.Place(tmp_path)
    with place.making("key") as mine:
        (mine / "a").write_text("mine")
        with place.making("key") as theirs:
            (theirs / "a").write_text("theirs")
    assert [p.name for p in tmp_path.iterdir()] == ["key"]
    assert (tmp_path / "key" / "a").read_text() == "theirs"


def test_cache_root_follows_the_environment(tmp_path):
    assert nsys_cache.cache_root({"RLPROF_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert nsys_cache.cache_root({"XDG_CACHE_HOME": "/b", "HOME": "/c"}) == Path("/b/rlprof")
    assert nsys_cache.cache_root({"HOME": "/c"}) == Path("/c/.cache/rlprof")
    assert nsys_cache.max_bytes({"RLPROF_CACHE_MAX_BYTES": "1e6"}) == 10**6
    assert nsys_cache.max_bytes({}) == nsys_cache.MAX_BYTES


# ---- exports beside the report --------------------------------------------------------------------------


def beside(report: Path, kind: str, text: str, *, age_s: float = 0) -> Path:
    rows = {**ROWS, "NVTX_EVENTS": [push_pop(0, 100, text)]}
    database = export(report.parent / "source.sqlite", rows)
    if kind == ".sqlite":
        path = database.rename(report.parent / "run.sqlite")
    else:
        write = write_parquetdir if kind == "_pqtdir" else write_arrowdir
        path = write(database, report.parent / f"run{kind}")
        database.unlink()
    when = report.stat().st_mtime - age_s
    for file in [path, *(path.iterdir() if path.is_dir() else [])]:
        os.utime(file, (when, when))
    return path


@pytest.mark.parametrize("kind", ["_pqtdir", "_arwdir", ".sqlite"])
@pytest.mark.parametrize("age_s", [-3600, 0, 0.5])
def test_up_to_date_export_is_used(report, machine, good_export, kind, age_s):
    fake_nsys(machine / "nsys", good_export)
    path = beside(report, kind, "beside", age_s=age_s)
    trace = read_report(report)
    assert trace.ranges["name"].to_list() == ["beside"]
    assert trace.meta.files == ("run.nsys-rep",)
    assert f"read from {path.name} beside the report" in trace.notes
    assert calls(machine) == []


@pytest.mark.parametrize("kind", ["_pqtdir", ".sqlite"])
def test_older_export_is_not_used_where_nsys_works(report, machine, good_export, kind):
    fake_nsys(machine / "nsys", good_export)
    beside(report, kind, "beside", age_s=3600)
    assert read_report(report).ranges["name"].to_list() == ["exported by nsys"]


@pytest.mark.parametrize("kind", ["_pqtdir", ".sqlite"])
def test_older_export_is_used_with_a_note_where_nsys_is_absent(report, kind):
    path = beside(report, kind, "beside", age_s=3600)
    trace = read_report(report)
    assert trace.ranges["name"].to_list() == ["beside"]
    (note,) = [n for n in trace.notes if "beside the report" in n]
    assert note.startswith(f"read from {path.name}")
    assert "older" in note
    assert "needs nsys" in note


def test_older_export_is_used_with_a_note_where_nsys_fails(report, machine):
    fake_nsys(machine / "nsys", PROTOBUF)
    beside(report, ".sqlite", "beside", age_s=3600)
    trace = read_report(report)
    assert trace.ranges["name"].to_list() == ["beside"]
    assert any("older" in n and "written by Nsight Systems 2025.3.1.0" in n for n in trace.notes)


def test_part_of_an_export_is_used_only_where_nsys_is_absent(report, machine, good_export):
    rows = {**ROWS, "NVTX_EVENTS": [push_pop(0, 100, "beside")]}
    rows["META_DATA_EXPORT"] = [{"name": "EXPORT_PARAM_TABLES_TO_EXPORT", "value": "NVTX_EVENTS"}]
    path = export(report.parent / "run.sqlite", rows)
    trace = read_report(report)
    assert trace.ranges["name"].to_list() == ["beside"]
    assert any("holds a part of it only (exported with --tables)" in n for n in trace.notes)
    fake_nsys(machine / "nsys", good_export)
    assert read_report(report).ranges["name"].to_list() == ["exported by nsys"]
    assert path.exists()


@pytest.mark.parametrize("kind", ["_pqtdir", "_arwdir", ".sqlite"])
def test_damaged_export_beside_is_passed_over_with_a_note(report, machine, good_export, kind):
    fake_nsys(machine / "nsys", good_export)
    path = beside(report, kind, "beside", age_s=-10)
    target = path if path.is_file() else next(path.glob("NVTX_EVENTS*"))
    target.write_bytes(target.read_bytes()[: target.stat().st_size // 3])
    trace = read_report(report)
    assert trace.ranges["name"].to_list() == ["exported by nsys"]
    assert any(n.startswith(f"{path.name}, beside the report, was not used") for n in trace.notes)


def test_empty_folder_that_a_failed_export_left(report, machine, good_export):
    fake_nsys(machine / "nsys", good_export)
    (report.parent / "run_pqtdir").mkdir()
    trace = read_report(report)
    assert trace.ranges["name"].to_list() == ["exported by nsys"]
    assert trace.notes == ()


def test_quickest_of_several_exports_is_used(report):
    beside(report, ".sqlite", "sqlite")
    beside(report, "_pqtdir", "parquet")
    assert read_report(report).ranges["name"].to_list() == ["parquet"]


def test_qdrep_and_other_names(tmp_path):
    for name in ("run.qdrep", "run.rep"):
        path = write_report(tmp_path / name)
        beside(path, ".sqlite", "beside")
        assert read_report(path).ranges["name"].to_list() == ["beside"]


# ---- finding nsys ---------------------------------------------------------------------------------------


def test_newest_nsys_comes_first(tmp_path, monkeypatch):
    monkeypatch.setattr(nsys_tool, "PLACES", PLACES)
    places = {
        "opt/nvidia/nsight-systems/2024.6.1/target-linux-x64/nsys": "2024.6.1.90",
        "opt/nvidia/nsight-systems/2025.10.1/bin/nsys": "2025.10.1.2",
        "opt/nvidia/nsight-compute/2025.3.1/host/target-linux-x64/nsys": "2025.3.1.0",
        "usr/local/cuda-12.4/bin/nsys": "2023.4.4.54",
        "cuda/nsight-compute-2022/host/target-linux-x64/nsys": "2022.1.1.1",
    }
    for place, version in places.items():
        fake_nsys(tmp_path / place, "exit 0", version=version)
    (tmp_path / "opt/nvidia/nsight-systems/broken/bin").mkdir(parents=True)
    fake_nsys(tmp_path / "opt/nvidia/nsight-systems/broken/bin/nsys", "").write_text("#!/bin/sh\nexit 3\n")
    link = tmp_path / "opt/nvidia/nsight-systems/2025.10.1/target-linux-x64/nsys"
    link.parent.mkdir()
    link.symlink_to("../bin/nsys")
    found = find_nsys({"PATH": "", "CUDA_HOME": str(tmp_path / "cuda")}, root=tmp_path)
    assert [n.version for n in found] == sorted(places.values(), key=nsys_tool.version_key, reverse=True)


PLACES = nsys_tool.PLACES


def test_rlprof_nsys_names_the_only_one(tmp_path, machine):
    fake_nsys(machine / "nsys", "exit 0")
    other = fake_nsys(tmp_path / "mine" / "nsys", "exit 0", version="2022.1.1")
    assert [n.version for n in find_nsys({"PATH": str(machine), "RLPROF_NSYS": str(other)})] == ["2022.1.1"]


def test_next_nsys_is_tried_when_one_fails(report, machine, good_export, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    fake_nsys(tmp_path / "cuda" / "bin" / "nsys", "echo broken library >&2; exit 127", version="2026.1.1.1")
    fake_nsys(machine / "nsys", good_export)
    trace = read_report(report)
    assert trace.ranges["name"].to_list() == ["exported by nsys"]
    assert any("nsys 2026.1.1.1 failed" in n and "broken library" in n for n in trace.notes)


@pytest.mark.parametrize("header", [False, True])
def test_version_of_a_report(tmp_path, header):
    assert report_version(write_report(tmp_path / "a", "2023.4.4.54", header=header)) == "2023.4.4.54"
    (tmp_path / "b").write_bytes(REPORT_MAGIC + b" 36398880.\n")
    assert report_version(tmp_path / "b") is None


# ---- failures of nsys -----------------------------------------------------------------------------------

REFUSAL = """cat >&2 <<'END'
Exportation error: Report was created in Nsight Systems version (2026.2.1.15), \
newer than your current version (2023.4.4.54).
Please update to the latest version.
END
exit 1"""
PROTOBUF = """mkdir -p "$out"; cat >&2 <<'END'
[libprotobuf ERROR message_lite.cc:133] Can't parse message of type "QuadDAnalysis.Data.SessionState" \
because it is missing required fields: DeviceState.Props.Items[48].Type
Exportation error: /dvs/p4/build/ProtobufUtils.cpp(73): Throw in function void ReadMessage(PbCodedIStream&)
Dynamic exception type: boost::wrapexcept<QuadDCommon::ProtobufParseException>
std::exception::what: ProtobufParseException
END
exit 1"""


def failure(report: Path, machine: Path, body: str, error: type[RlprofError]) -> str:
    fake_nsys(machine / "nsys", body)
    with pytest.raises(error) as caught:
        read_report(report)
    assert type(caught.value) is error
    text = str(caught.value)
    assert "\n" not in text
    assert "/dvs/" not in text
    assert "Next: " in text
    assert nothing_left(report.parent.parent)
    assert [p.name for p in report.parent.iterdir()] == ["run.nsys-rep"]
    return text


def test_report_newer_than_nsys_refusal(report, machine):
    text = failure(report, machine, REFUSAL, NewerReportError)
    assert "written by Nsight Systems 2026.2.1.15, newer than the nsys 2023.4.4.54 here" in text
    assert "nsys export --type sqlite run.nsys-rep" in text


def test_report_newer_than_nsys_protobuf_exception(report, machine):
    text = failure(report, machine, PROTOBUF, NewerReportError)
    assert "written by Nsight Systems 2025.3.1.0, newer than the nsys 2023.4.4.54 here" in text
    assert "install Nsight Systems 2025.3.1.0 or newer" in text


def test_report_newer_than_nsys_of_unknown_version(report, machine):
    report.write_bytes(REPORT_MAGIC + b" 36398880.\nbody")
    text = failure(report, machine, PROTOBUF, NewerReportError)
    assert "written by a newer Nsight Systems, newer than" in text


def test_protobuf_exception_on_a_report_that_is_not_newer(report, machine):
    write_report(report, "2022.1.1.1")
    text = failure(report, machine, PROTOBUF, DamagedTraceError)
    assert "nsys 2023.4.4.54 cannot parse the report, which Nsight Systems 2022.1.1.1 wrote" in text


@pytest.mark.parametrize(
    "says",
    [
        "Section Table Reference magic number mismatch.",
        "Version tag is not found in the stream.",
        "Cannot read from stream.",
    ],
)
def test_damaged_report(report, machine, says):
    text = failure(report, machine, f'echo "Exportation error: {says}" >&2; exit 1', DamagedTraceError)
    assert says.rstrip(".") in text


def test_nsys_that_fails_for_another_reason(report, machine):
    text = failure(report, machine, 'echo "Exportation error: the moon is full" >&2; exit 1', NsysError)
    assert "nsys 2023.4.4.54 export failed: the moon is full" in text


def test_nsys_that_says_nothing(report, machine):
    assert "it said nothing" in failure(report, machine, "exit 1", NsysError)


def test_nsys_that_ends_well_and_writes_nothing(report, machine):
    assert "not whole" in failure(report, machine, "exit 0", NsysError)


def test_nsys_is_killed(report, machine):
    text = failure(report, machine, 'mkdir "$out"; kill -9 $$', NsysError)
    assert "ended by SIGKILL, perhaps for lack of memory" in text


def test_disk_becomes_full_with_status_0(report, machine):
    # as nsys does: files of 0 bytes, a line on stderr, status 0
    body = 'mkdir "$out"; touch "$out/NVTX_EVENTS.parquet" "$out/META_DATA_EXPORT.parquet"; '
    text = failure(report, machine, f'{body} echo "Error writing bytes to file" >&2; exit 0', OutputError)
    assert "the disk became full" in text
    assert "RLPROF_CACHE" in text
    assert "not whole" in failure(report, machine, f"{body} exit 0", NsysError)


def test_disk_becomes_full_with_status_1(report, machine):
    body = 'touch "$out"; echo "Exportation error: database or disk is full" >&2; exit 1'
    assert "the disk became full" in failure(report, machine, body, OutputError)


def test_big_report_on_a_full_disk(report, machine, good_export, monkeypatch):
    with report.open("ab") as file:
        file.truncate(10 * 10**9)  # sparse
    usage = shutil.disk_usage(report.parent)._replace(free=3 * 10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    text = failure(report, machine, good_export, OutputError)
    assert "about 40.0 GB are needed for a report of 10.0 GB, 3.0 GB are free" in text
    assert calls(machine) == []


def test_older_export_saves_the_day_on_a_full_disk(report, machine, monkeypatch):
    fake_nsys(machine / "nsys", "exit 0")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 0))  # type: ignore[attr-defined]
    beside(report, ".sqlite", "beside", age_s=3600)
    trace = read_report(report)
    assert any("not enough space" in n for n in trace.notes)


def test_nsys_that_hangs_is_ended(report, machine, monkeypatch, tmp_path):
    monkeypatch.setattr(nsys_tool, "STALL_S", 1.0)
    started = time.monotonic()
    text = failure(report, machine, f"echo $$ > {tmp_path}/pid; sleep 600", NsysError)
    assert time.monotonic() - started < 120
    assert "no sign of life" in text
    assert "/proc" in text
    assert not alive(int((tmp_path / "pid").read_text()))


def test_nsys_that_hangs_when_asked_its_version(tmp_path, machine, monkeypatch):
    monkeypatch.setattr(nsys_tool, "ASK_S", 0.6)
    path = fake_nsys(machine / "nsys", "")
    path.write_text("#!/bin/sh\nsleep 600\n")
    assert find_nsys({"PATH": str(machine)}) == ()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not (state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] == "Z")


def test_ctrl_c_ends_nsys_and_leaves_nothing(report, machine, tmp_path):
    fake_nsys(machine / "nsys", f'mkdir "$out"; echo $$ > {tmp_path}/pid; sleep 600')
    script = "import sys, rlprof.trace.nsys_tool as t; t.PLACES = (); from pathlib import Path; " \
        "from rlprof.trace.nsys_report import read_report; read_report(Path(sys.argv[1]))"  # fmt: skip
    process = subprocess.Popen([sys.executable, "-c", script, str(report)], cwd=ROOT, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, text = process.communicate(timeout=120)
    assert b"KeyboardInterrupt" in text
    assert not alive(int((tmp_path / "pid").read_text()))
    assert nothing_left(tmp_path)


# ---- without nsys ---------------------------------------------------------------------------------------


def test_no_nsys(report):
    with pytest.raises(NsysError) as caught:
        read_report(report)
    text = str(caught.value)
    assert "run.nsys-rep: reading a report needs nsys, and there is none here" in text
    assert "tools/install-nsys.sh" in text
    assert "`nsys export --type sqlite run.nsys-rep` on the machine that captured it" in text


def test_a_named_nsys_that_is_not_there(report, monkeypatch, tmp_path):
    monkeypatch.setenv("RLPROF_NSYS", str(tmp_path / "no_nsys"))
    with pytest.raises(NsysError, match="RLPROF_NSYS names no program"):
        read_report(report)


def test_nsys_that_does_not_run(report, machine):
    path = fake_nsys(machine / "nsys", "")
    path.write_text("#!/bin/sh\necho 'filesystem_error: canonical: /proc/1/exe' >&2\nexit 1\n")
    with pytest.raises(NsysError, match=r"nsys does not run \(it fails on --version\).*needs /proc mounted"):
        read_report(report)


@pytest.mark.parametrize(("content", "says"), [(b"", "empty"), (b"NVIDIA Teg", "does not start")])
def test_empty_or_cut_report(tmp_path, content, says):
    (tmp_path / "run.nsys-rep").write_bytes(content)
    with pytest.raises(DamagedTraceError, match=says):
        read_report(tmp_path / "run.nsys-rep")


def test_absent_report_or_a_folder(tmp_path):
    for path in (tmp_path / "absent.nsys-rep", tmp_path):
        with pytest.raises(UnreadableError, match="cannot be opened"):
            read_report(path)


# ---- the real nsys --------------------------------------------------------------------------------------


@pytest.fixture
def real_nsys(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(nsys_tool, "PLACES", PLACES)
    monkeypatch.setenv("PATH", REAL_PATH)
    tools = find_nsys()
    if not tools:
        pytest.skip("no nsys on this machine (tools/install-nsys.sh)")
    return tools[0].version


REAL_PATH = os.environ.get("PATH", "")


@pytest.mark.nsys
def test_real_report(shared_traces, real_nsys, tmp_path):
    report = shared_traces / "nsys" / "h200_nsys2023_metrics.nsys-rep"
    trace = read_report(report)
    assert trace.meta.graph_mode == "graph"
    assert trace.meta.sampling_hz == 10_000
    assert len(trace.samples) == 143205
    assert len(trace.ranges) == 125
    (entry,) = (tmp_path / "cache" / "nsys").iterdir()
    assert sum(p.stat().st_size for p in entry.rglob("*.parquet")) < 20e6
    assert not [p.name for p in entry.rglob("*") if "ENV" in p.name]


@pytest.mark.nsys
def test_real_report_newer_than_nsys(shared_traces, real_nsys, tmp_path):
    if nsys_tool.version_key(real_nsys) >= (2025, 3):
        pytest.skip("this nsys reads it")
    report = tmp_path / "newer.nsys-rep"
    shutil.copy(shared_traces / "nsys" / "h200_vla.nsys-rep", report)
    with pytest.raises(
        NewerReportError, match=r"written by Nsight Systems 2025\.3\.1\.0, newer than the nsys"
    ):
        read_report(report)


@pytest.mark.nsys
@pytest.mark.parametrize("keep", [0.35, 0.99])
def test_real_report_truncated(shared_traces, real_nsys, tmp_path, keep):
    content = (shared_traces / "nsys" / "h200_nsys2023_metrics.nsys-rep").read_bytes()
    report = tmp_path / "cut.nsys-rep"
    report.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(DamagedTraceError, match="truncated or damaged"):
        read_report(report)


def test_vla_report_with_its_export_equals_the_export(shared_traces):
    trace = read_report(shared_traces / "nsys" / "h200_vla.nsys-rep")
    reference = read_sqlite(shared_traces / "nsys" / "h200_vla.sqlite")
    assert trace.ranges.equals(reference.ranges)
    assert "read from h200_vla.sqlite beside the report" in trace.notes


def test_check_whole_names_the_damaged_table(tmp_path):
    folder = write_parquetdir(export(tmp_path / "a.sqlite", ROWS), tmp_path / "a_pqtdir")
    nsys_report.check_whole(ParquetTables(folder))
    (folder / "NVTX_EVENTS.parquet").write_bytes(b"")
    with pytest.raises(DamagedTraceError, match=r"NVTX_EVENTS\.parquet"):
        nsys_report.check_whole(ParquetTables(folder))
