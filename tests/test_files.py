"""Files that people name: only regular ones are opened."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from rlprof.errors import OutputError, RlprofError, UnreadableError, step_after
from rlprof.files import is_folder, read_bytes, unreadable
from rlprof.trace.output import atomic_path, check_free, output_error


def link_to_a_pipe(path: Path) -> None:
    os.mkfifo(path.parent / "target")
    path.symlink_to("target")


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))  # the name of a socket is short


SPECIAL: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "a named pipe"),
    "link_to_a_pipe": (link_to_a_pipe, "a named pipe"),
    "socket": (listening, "a socket"),
    "device": (lambda p: p.symlink_to(os.devnull), "a device"),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_what_is_no_regular_file_is_neither_read_nor_replaced(tmp_path: Path, name: str) -> None:
    make, kind = SPECIAL[name]
    path = tmp_path / "file"
    make(path)
    with pytest.raises(UnreadableError, match=f"file: {kind}, not a file. Next: "):
        read_bytes(path)
    with pytest.raises(UnreadableError, match=f"{kind}, not a file: for a reason. Next: "):
        is_folder(path, why="for a reason")
    for refused in (lambda: check_free(path, force=True), lambda: atomic_path(path, force=True).__enter__()):
        with pytest.raises(OutputError, match=f"file: is {kind}, a file is to be written. Next: "):
            refused()
    assert not path.is_file()


def test_a_regular_file_is_read_and_a_folder_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\x00\xff")
    assert not is_folder(tmp_path / "file")
    assert is_folder(tmp_path)
    assert read_bytes(tmp_path / "file") == b"\x00\xff"
    with pytest.raises(UnreadableError, match=r"is a folder, a file is to be read\. Next: give a file in it"):
        read_bytes(tmp_path)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing", "no such file or folder"),
        ("file/below", "a part of this path is a file"),
        ("n" * 300, r"cannot be read \(File name too long\). Next: give a shorter name"),
        ("circle", r"cannot be read \(Too many levels of symbolic links\). Next: its symbolic links"),
        ("a\0b", r"a\\0b: cannot be read \(.*null.*\). Next: check the path"),
    ],
)
def test_a_path_that_leads_nowhere(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(UnreadableError, match=said):
        read_bytes(tmp_path / name)


@pytest.mark.parametrize("kind", [UnreadableError, OutputError])
def test_every_error_about_a_file_has_a_next_step(kind: type[RlprofError]) -> None:
    for number in errno.errorcode:
        error = OSError(number, os.strerror(number), "some file")
        assert step_after(error, writing=kind.writing)
        between = ValueError("of a library")
        between.__cause__ = error
        bare = OSError(number, os.strerror(number))
        for cause in (error, between, bare):
            with pytest.raises(kind, match=r"^some file: it went wrong\. Next: \S") as raised:
                raise kind("it went wrong", where="some file") from cause
            assert raised.value.hint is None
        for said in (unreadable(error, Path("some file")), output_error(bare, Path("some file"))):
            assert ". Next: " in str(said)


def test_a_hint_that_is_given_counts_more() -> None:
    with pytest.raises(RlprofError, match=r"^it went wrong\. Next: do this$"):
        raise RlprofError("it went wrong", hint="do this") from OSError(errno.ENOSPC, "full", "file")


def test_errors_that_are_not_about_files_get_no_step() -> None:
    assert step_after(OSError(errno.ECONNREFUSED, "refused"), writing=False) is None
    for cause in (None, ValueError("x"), OSError("bare")):
        with pytest.raises(RlprofError, match=r"^it went wrong$"):
            raise RlprofError("it went wrong") from cause
