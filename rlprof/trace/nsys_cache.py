"""The cache of exports that rlprof made of Nsight Systems reports.

An entry is a folder named after the report's content, the nsys that exported it and the tables taken. It is
made under a temporary name and renamed, so that an entry is whole or absent.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rlprof.trace.output import remove

#: The cache is cut to this size, least recently used entries first; `RLPROF_CACHE_MAX_BYTES` changes it.
MAX_BYTES = 10 * 10**9
#: Entries used so recently stay: a trace that is open may still read them.
KEEP_S = 3600.0
#: A temporary folder this old belongs to no process that is still at work.
STALE_S = 86400.0
_SAMPLE_BYTES = 1 << 16


def cache_root(environ: Mapping[str, str] = os.environ) -> Path:
    """`RLPROF_CACHE`, else the user's cache folder."""
    if environ.get("RLPROF_CACHE"):
        return Path(environ["RLPROF_CACHE"])
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "rlprof"
    return Path(environ.get("HOME") or Path.home()) / ".cache" / "rlprof"


def report_key(report: Path, version: str, tables: Sequence[str]) -> str:
    """Name of the entry of one report, by its size, time, first and last bytes, the nsys and the tables.

    Parameters
    ----------
    report : pathlib.Path
        The report.
    version : str
        Version of the nsys that exports it.
    tables : sequence of str
        Tables that are taken.

    Returns
    -------
    str
        24 hexadecimal digits.
    """
    stat = report.stat()
    digest = hashlib.blake2b(digest_size=12)
    digest.update(repr((stat.st_size, stat.st_mtime_ns, version, sorted(tables))).encode())
    with report.open("rb") as file:
        digest.update(file.read(_SAMPLE_BYTES))
        file.seek(max(0, stat.st_size - _SAMPLE_BYTES))
        digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


@dataclass(frozen=True)
class Place:
    """Where exports can be kept.

    Parameters
    ----------
    folder : pathlib.Path
        An existing folder that can be written.
    owner : object or None
        For a folder that goes away with this object; None for the lasting cache.
    """

    folder: Path
    owner: tempfile.TemporaryDirectory[str] | None = None

    def entry(self, key: str) -> Path:
        """Folder of an entry, whether it exists or not."""
        return self.folder / key

    @contextmanager
    def making(self, key: str) -> Iterator[Path]:
        """Give a temporary folder to fill; it becomes the entry if the block ends well."""
        temporary = self.folder / f".making-{os.getpid()}-{secrets.token_hex(4)}"
        temporary.mkdir(mode=0o700)
        try:
            yield temporary
            entry = self.entry(key)
            try:
                temporary.rename(entry)
            except OSError:
                # another process made it meanwhile; the two are alike
                if not entry.is_dir():
                    raise
        finally:
            remove(temporary)

    def prune(self, keep: str, max_bytes: int = MAX_BYTES, now_s: float | None = None) -> None:
        """Remove what was left half made, and the least recently used entries beyond `max_bytes`."""
        now_s = time.time() if now_s is None else now_s
        entries: list[tuple[float, int, Path]] = []
        with contextlib.suppress(OSError):
            for path in list(self.folder.iterdir()):
                with contextlib.suppress(OSError):
                    used_s = path.stat().st_mtime
                    if path.name.startswith(".making-"):
                        if now_s - used_s > STALE_S:
                            remove(path)
                    elif path.is_dir():
                        entries.append((used_s, _size(path), path))
        total = sum(size for _, size, _ in entries)
        for used_s, size, path in sorted(entries):
            if total <= max_bytes:
                break
            if path.name != keep and now_s - used_s > KEEP_S:
                remove(path)
                total -= size


def open_place(environ: Mapping[str, str] = os.environ) -> tuple[Place, str | None]:
    """The cache, or a temporary folder where the cache cannot be written.

    Parameters
    ----------
    environ : mapping
        Environment variables.

    Returns
    -------
    place : Place
        The folder.
    note : str or None
        Why it is a temporary one.
    """
    folder = cache_root(environ) / "nsys"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = folder / f".making-{os.getpid()}-{secrets.token_hex(4)}"
        probe.mkdir()
        probe.rmdir()
        return Place(folder), None
    except OSError as error:
        owner = tempfile.TemporaryDirectory(prefix="rlprof-")
        return Place(Path(owner.name), owner), (
            f"the cache folder cannot be written ({error.strerror}): the report was exported to a temporary "
            "folder and will be exported again next time (RLPROF_CACHE names another folder)"
        )


def max_bytes(environ: Mapping[str, str] = os.environ) -> int:
    """Size to which the cache is cut."""
    with contextlib.suppress(ValueError):
        return int(float(environ.get("RLPROF_CACHE_MAX_BYTES", "")))
    return MAX_BYTES


def touch(entry: Path) -> None:
    """Mark an entry as used now."""
    with contextlib.suppress(OSError):
        os.utime(entry)


def _size(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
