"""Whether captures tell of the machine and the people that made them: what a shipped one must not hold.

    python -m benchmarks.gpu.private [--tables FOLDER] FILE...              where they were made
    python -m benchmarks.gpu.private --anywhere [--tables FOLDER] FILE...   elsewhere
    python -m benchmarks.gpu.private --overwrite-release REPORT

Where it was made, files are searched for this machine's own names and values: environment of all processes,
command lines, host and user names, home folders, identity, the kernel's full release. Anywhere, they are
searched for what looks like such. What nsys packed in a report (LZ4) is unpacked first.

FOLDER is nsys' `parquetdir` export of a report: what it states of its environment, processes, host and user
has to be what `all.sh` sets, word for word (`ALLOWED`). Exits with 1 and says what was found.

A report also states the kernel's full release, which names whoever built it: `--overwrite-release` replaces
what follows the version by as many x, before the report is exported.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pwd
import re
import socket
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

#: Shorter values are everywhere by chance.
LEAST = 6
#: Printable text, in bytes and in UTF-16.
RUNS = re.compile(rb"[\t -~\x80-\xff]{%d,}" % LEAST), re.compile(rb"(?:[ -~]\0){%d,}" % LEAST)
#: What a packed part of a report has at least, in bytes.
LEAST_PACKED = 2000
HOST = "gpu-machine"
LIBRARIES = "/tmp/dw/usr/lib/x86_64-linux-gnu"
PATH = "/opt/run/bin:/usr/bin:/bin"
#: What a report may state: variables of the clean environment, processes of its own.
ALLOWED = {
    "variable": {
        f"PATH={PATH}", "HOME=/tmp/home", "LANG=C.UTF-8", f"LD_LIBRARY_PATH={LIBRARIES}", "LD_PRELOAD={}",
    },
    "process": {"python3", "nsys", "nsys-launcher", "nsys-tee"},
    "host": {HOST},
    "user": {""},
    "folder": {"/opt/run"},
}  # fmt: skip
#: Own words that are everybody's: folders of the system and of `all.sh`, locales, numbers, options.
NEUTRAL = re.compile(
    r"^(/?(usr|bin|sbin|local|opt|lib|lib64|tmp|proc|dev|null|nvidia|cuda[-.0-9]*|x86_64-linux-gnu)/?)+$"
    r"|^(C|en_US)\.UTF-8$|^(/opt/run/bin/)?python[0-9.]*$|^/opt/(run|nvidia)(/\S*)?$|^/tmp/(home|site|dw)(/\S*)?$"
    r"|^x86_64$|^[0-9.:]+$|^-+[a-z-]+$|^(capture|export|profile|rlprof|benchmarks\.gpu\.\w+)$"
)
#: What gives a machine or a person away wherever it was made.
SUSPECTS = {
    "home folder": rb"/home/[a-z]\w+|/Users/\w+",
    "root's folder": rb"/root/\.?\w+",
    "key or token": rb"(?i)(secret|token|passw|api_?key)[\w-]*[=:]",
    "address": rb"\b(10|172|192\.168)\.\d{1,3}\.\d{1,3}\.\d{1,3}\b",
    "mail": rb"[\w.]+@[\w.-]+\.(com|org|net|io)\b",
}


def own_words() -> dict[str, set[str]]:
    """Names and values of this machine, by kind."""
    found: dict[str, set[str]] = {
        "host name": {socket.gethostname(), os.uname().nodename},
        "user": {u.pw_name for u in pwd.getpwall() if u.pw_uid >= 1000 and u.pw_name != "nobody"},
        "home folder": {u.pw_dir for u in pwd.getpwall() if u.pw_uid >= 1000 or u.pw_uid == 0},
        "kernel's release": {os.uname().release},
        "value of a variable": set(),
        "name of a variable": set(),
        "command line": set(),
        "machine": set(),
    }
    for place in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id"):
        with contextlib.suppress(OSError):
            found["machine"].add(Path(place).read_text().strip())
    for process in Path("/proc").glob("[0-9]*"):
        if process.name == str(os.getpid()):  # its command line names the files
            continue
        with contextlib.suppress(OSError):
            for entry in (process / "environ").read_bytes().split(b"\0"):
                name, _, value = entry.decode(errors="replace").partition("=")
                found["name of a variable"].add(name)
                found["value of a variable"] |= {value, *value.split(":")}
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            found["command line"] |= set(words)
    # names that every program's text may hold are no sign; those of one's own making are
    allowed = {v.partition("=")[0] for v in ALLOWED["variable"]}
    found["name of a variable"] = {
        n for n in found["name of a variable"] if "_" in n and len(n) >= 10
    } - allowed
    return found


def text_of(data: bytes) -> bytes:
    """The different printable texts of a file, one a line: little, where a file is mostly numbers."""
    plain, wide = ({m.group(0) for m in runs.finditer(data)} for runs in RUNS)
    return b"\n".join(sorted(plain | {w[::2] for w in wide}))


def unpacked(data: bytes) -> bytes:
    """The packed parts of an nsys report: LZ4 blocks, each behind its size and its content's size."""
    import pyarrow as pa

    codec, found = pa.Codec("lz4_raw"), []
    at, end = data.find(b"lz4"), len(data)
    while 0 <= at < end - LEAST_PACKED:
        packed, sized = _number(data, at)
        size, begin = _number(data, sized)
        stop = begin + packed
        if LEAST_PACKED < packed <= size < 255 * packed and stop <= end:
            try:
                found.append(bytes(codec.decompress(data[begin:stop], decompressed_size=size)))
            except (OSError, ValueError):  # these numbers were none of a block
                pass
            else:
                at = stop
                continue
        at += 1
    return b"\n".join(found)


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number in sevens of bits, and where it ends."""
    value = shift = 0
    while at < len(data) and shift < 35:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at
    return 0, at


def told(text: bytes, words: dict[str, set[str]]) -> Iterator[str]:
    """What of some words stands in a text, each as a word of its own."""
    for kind, values in words.items():
        for value in sorted({line for v in values for line in v.splitlines()}):
            if len(value) < LEAST or NEUTRAL.match(value) or (own := value.encode()) not in text:
                continue
            if re.search(rb"(?<![A-Za-z0-9_])" + re.escape(own) + rb"(?![A-Za-z0-9_])", text):
                yield f"{kind}: {value[:3]}... ({len(value)} characters)"


def suspicious(text: bytes) -> Iterator[str]:
    """What looks like something of a machine or a person."""
    for kind, pattern in SUSPECTS.items():
        if hits := {m.group(0)[:60] for m in re.finditer(pattern, text)}:
            yield f"{kind}: {len(hits)} different, such as {sorted(hits)[:3]}"


def stated(tables: Path) -> Iterator[str]:
    """What a report states of its machine that is not `ALLOWED`, from nsys' parquet export of it."""
    import pyarrow.parquet as pq

    def rows(table: str) -> list[dict[str, str]]:
        path = tables / f"{table}.parquet"
        return pq.read_table(path).to_pylist() if path.exists() else []

    system = {r["name"]: r["value"] for r in rows("TARGET_INFO_SYSTEM_ENV")}
    capture = [(r["name"], r["value"]) for r in rows("META_DATA_CAPTURE")]
    export = {r["name"]: r["value"] for r in rows("META_DATA_EXPORT")}
    seen: dict[str, set[str]] = {
        "variable": set(filter(None, system.get("DeviceEnvironment", "").split(";"))),
        "process": {r["name"] for r in rows("PROCESSES")},
        "host": {system.get("Hostname", HOST), export.get("EXPORT_HOST", HOST)},
        "user": {export.get("EXPORT_USER", "")},
        "folder": set(),
    }
    for name, value in capture:
        if name.endswith(":ENVIRONMENT_VARIABLE"):
            seen["variable"].add(value.replace('="', "=").removesuffix('"'))
        elif name.endswith(":USER_NAME"):
            seen["user"].add(value)
        elif name.endswith(":WORKING_DIR"):
            seen["folder"].add(value)
        elif name == "DEVICE_DISPLAY_NAME":
            seen["host"].add(value)
    if not seen["process"]:
        yield f"{tables.name} is no export of a report"
    for kind, values in seen.items():
        for value in sorted(values - ALLOWED[kind]):
            yield f"{kind}: {value[:100]}"
    release = system.get("SoftwareReleaseVersion", "")
    if not re.fullmatch(r"[0-9.]*(-?x*)", release):
        yield f"kernel's release: {release}"


def written_in(tables: Path) -> bytes:
    """All text of an export's tables."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    found: set[str] = set()
    for path in sorted(tables.glob("*.parquet")):
        for column in pq.read_table(path).columns:
            if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
                found |= {v for v in column.unique().to_pylist() if v}
    return "\n".join(sorted(found)).encode()


def without_release(data: bytes, release: str) -> bytes:
    """A report in which what follows the version of a kernel's release is overwritten, at equal length."""
    version = re.match(r"[0-9.]*", release)
    kept = version.group(0) if version else ""
    return data.replace(release.encode(), (kept + "-" + "x" * len(release))[: len(release)].encode())


def main(files: Iterable[Path], *, anywhere: bool, tables: Path | None = None) -> int:
    words = {} if anywhere else own_words()
    found: dict[str, list[str]] = {}
    for path in files:
        data = path.read_bytes()
        name = f"{path.name}: {len(data):,} bytes"
        if path.suffix == ".nsys-rep":
            inside = unpacked(data)
            name += f", {len(inside):,} unpacked"
            if not inside:
                found["packed parts"] = [f"those of {path.name} could not be unpacked"]
            data += b"\n" + inside
        text = text_of(data)
        found[name] = [*told(text, words), *suspicious(text)]
    if tables is not None:
        text = text_of(written_in(tables))
        found[tables.name] = [*stated(tables), *told(text, words), *suspicious(text)]
    for name, lines in found.items():
        print(f"{name}, {len(lines)} finding(s)")
        for line in lines:
            print(f"  FOUND {line}")
    return int(any(found.values()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--anywhere", action="store_true")
    parser.add_argument("--tables", type=Path)
    parser.add_argument("--overwrite-release", action="store_true")
    given = parser.parse_args()
    if given.overwrite_release:
        for report in given.files:
            report.write_bytes(without_release(report.read_bytes(), os.uname().release))
        sys.exit(0)
    sys.exit(main(given.files, anywhere=given.anywhere, tables=given.tables))
