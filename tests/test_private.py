"""What a capture tells of the machine it was made on is found before it is shipped."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.gpu import private

RELEASE = "6.1.0-17-custom-gpu"
CLEAN = {
    "TARGET_INFO_SYSTEM_ENV": {
        "DeviceEnvironment": f"PATH={private.PATH};HOME=/tmp/home;LANG=C.UTF-8",
        "Hostname": private.HOST,
        "SoftwareReleaseVersion": "6.1.0-xxxxxxxxxxxxx",
    },
    "META_DATA_CAPTURE": {
        "DEVICE_DISPLAY_NAME": private.HOST,
        "PROCESS_0:ENVIRONMENT_VARIABLE": f'LD_LIBRARY_PATH="{private.LIBRARIES}"',
        "PROCESS_0:WORKING_DIR": "/opt/run",
        "PROCESS_0:USER_NAME": "",
    },
    "META_DATA_EXPORT": {"EXPORT_HOST": private.HOST, "EXPORT_USER": ""},
}


def export(folder: Path, changes: dict[tuple[str, str], str], processes: list[str]) -> Path:
    """The tables of nsys' parquet export that state something of the machine."""
    folder.mkdir()
    for table, clean in CLEAN.items():
        rows = clean | {name: value for (of, name), value in changes.items() if of == table}
        columns = {"name": list(rows), "value": list(rows.values())}
        pq.write_table(pa.table(columns), folder / f"{table}.parquet")
    if processes:
        pq.write_table(pa.table({"name": processes}), folder / "PROCESSES.parquet")
    return folder


def test_what_the_script_sets_is_accepted(tmp_path: Path) -> None:
    assert list(private.stated(export(tmp_path / "t", {}, ["python3", "nsys"]))) == []


@pytest.mark.parametrize(
    ("table", "name", "value", "found"),
    [
        (
            "TARGET_INFO_SYSTEM_ENV",
            "DeviceEnvironment",
            "PATH=/home/ann/bin:/bin",
            "variable: PATH=/home/ann",
        ),
        ("TARGET_INFO_SYSTEM_ENV", "Hostname", "annes-box", "host: annes-box"),
        ("TARGET_INFO_SYSTEM_ENV", "SoftwareReleaseVersion", RELEASE, f"kernel's release: {RELEASE}"),
        ("META_DATA_CAPTURE", "PROCESS_0:ENVIRONMENT_VARIABLE", 'TOKEN="abc"', "variable: TOKEN=abc"),
        ("META_DATA_CAPTURE", "PROCESS_0:WORKING_DIR", "/srv/work", "folder: /srv/work"),
        ("META_DATA_CAPTURE", "PROCESS_0:USER_NAME", "ann", "user: ann"),
        ("META_DATA_EXPORT", "EXPORT_HOST", "annes-box", "host: annes-box"),
    ],
)
def test_anything_else_is_found(tmp_path: Path, table: str, name: str, value: str, found: str) -> None:
    (line,) = private.stated(export(tmp_path / "t", {(table, name): value}, ["python3"]))
    assert line.startswith(found)


def test_processes_of_others_are_found(tmp_path: Path) -> None:
    assert list(private.stated(export(tmp_path / "t", {}, ["python3", "sshd"]))) == ["process: sshd"]


def test_a_folder_that_is_no_export_is_not_taken_for_a_clean_one(tmp_path: Path) -> None:
    assert "no export" in "".join(private.stated(export(tmp_path / "t", {}, [])))


def test_the_kernels_release_is_overwritten_at_equal_length() -> None:
    data = b"\x12\x13" + RELEASE.encode() + b"\x00rest"
    changed = private.without_release(data, RELEASE)
    assert changed == b"\x12\x13" + b"6.1.0-xxxxxxxxxxxxx" + b"\x00rest"
    assert private.without_release(changed, "6.1.0") == changed


def test_own_words_are_found_as_words_in_either_encoding() -> None:
    words = {"host name": {"annes-box"}, "value of a variable": {"/usr/bin", "short"}}
    assert list(private.told(b"... annes-box ...", words))
    assert list(private.told(private.text_of("x annes-box".encode("utf-16-le")), words))
    assert not list(private.told(b"joannes-boxes /usr/bin short", words))


def varint(number: int) -> bytes:
    """A number in sevens of bits, as reports hold them."""
    return bytes([number & 127 | 128]) + varint(number >> 7) if number > 127 else bytes([number])


def report(folder: Path, *parts: bytes, packed: bool = True) -> Path:
    """What a report looks like: its head as it is, its events in LZ4 blocks."""
    data = b"Profiler Report\x0bgpu-machine\x00J\x03lz4P\x01" + bytes(range(1, 128))
    for part in parts:
        block = bytes(pa.Codec("lz4_raw").compress(part, asbytes=True))
        data += varint(len(block)) + varint(len(part)) + block if packed else bytes(len(block))
    path = folder / "made.nsys-rep"
    path.write_bytes(data + b"\x00" * 4000)
    return path


def events(text: str) -> bytes:
    """Thousands of events, and a text that is packed in pieces: it begins and ends as they do."""
    numbers = "".join(f"/tmp/home{n * n * 7919 % 1000003:x}/" for n in range(2000))
    return f"{numbers}{text}{numbers[:999]}".encode()


def test_packed_parts_of_a_report_are_unpacked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert private.main([report(tmp_path, events(""), events(" "))], anywhere=True) == 0
    path = report(tmp_path, events(""), events(" /home/annette/x"))
    assert private.unpacked(path.read_bytes()) == events("") + b"\n" + events(" /home/annette/x")
    assert private.main([path], anywhere=True) == 1
    assert "home folder: 1 different" in capsys.readouterr().out


def test_a_report_that_cannot_be_unpacked_is_not_taken_for_a_clean_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert private.main([report(tmp_path, events(""), packed=False)], anywhere=True) == 1
    assert "could not be unpacked" in capsys.readouterr().out


def test_the_shipped_report_tells_of_nobody() -> None:
    path = Path(__file__).parent.parent / "datasets" / "vla_small_h200.nsys-rep"
    assert private.main([path], anywhere=True) == 0
