"""Whether files tell of the machine and the people that made them: what a shipped capture must not hold.

    python -m benchmarks.gpu.private FILE...        where it was made: this machine's own names and values
    python -m benchmarks.gpu.private --anywhere FILE...   elsewhere: what looks like such

Exits with 1 and says what was found (kinds and lengths, never a value). Values of environment variables of
all processes, command lines, host and user names, home folders and the machine's identity are looked for,
as text and as UTF-16. A compressed file shows nothing: give its export too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pwd
import re
import socket
import sys
from collections.abc import Iterable
from pathlib import Path

#: Shorter values are everywhere by chance.
LEAST = 6
#: What a clean environment and the image itself hold: these may be there.
NEUTRAL = re.compile(
    r"^(/?(usr|bin|sbin|local|opt|lib|lib64|tmp|proc|dev|null|nvidia|cuda[-.0-9]*|x86_64-linux-gnu)/?)+$"
    r"|^C\.UTF-8$|^python[0-9.]*$|^/opt/(run|torch|nvidia)\S*$|^/tmp/(home|site|dw)\S*$|^[0-9.:]+$|^-+[a-z-]+"
)
#: What gives a machine or a person away wherever it was made.
SUSPECTS = {
    "home folder": rb"/home/[a-z]\w+|/Users/\w+",
    "root's folder": rb"/root/\.?\w+",
    # but for those that nsys and a clean environment set
    "assigned variable": (
        rb"\b(?!NSYS_|QUADD_|CUDA_|NVTX_|LD_LIBRARY_PATH)[A-Z][A-Z0-9]+_[A-Z0-9_]{3,}=[^\s=]{3,}"
    ),
    "key or token": rb"(?i)(secret|token|passw|api_?key)[\w-]*[=:]",
    "address": rb"\b(10|172|192\.168)\.\d{1,3}\.\d{1,3}\.\d{1,3}\b",
    "mail": rb"[\w.]+@[\w-]+\.(com|org|net|io)\b",
}


def own_words() -> dict[str, set[str]]:
    """Names and values of this machine, by kind."""
    found: dict[str, set[str]] = {
        "host name": {socket.gethostname(), os.uname().nodename},
        "user": {u.pw_name for u in pwd.getpwall() if u.pw_uid >= 1000 and u.pw_name != "nobody"},
        "home folder": {u.pw_dir for u in pwd.getpwall() if u.pw_uid >= 1000 or u.pw_uid == 0},
        "value of a variable": set(),
        "name of a variable": set(),
        "command line": set(),
        "machine": set(),
    }
    for place in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id"):
        with contextlib.suppress(OSError):
            found["machine"].add(Path(place).read_text().strip())
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for entry in (process / "environ").read_bytes().split(b"\0"):
                name, _, value = entry.decode(errors="replace").partition("=")
                found["name of a variable"].add(name)
                found["value of a variable"] |= {value, *value.split(":")}
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            found["command line"] |= set(words)
    # names that every program's text may hold are no sign; those of one's own making are
    names = {n for n in found["name of a variable"] if "_" in n and len(n) >= 10}
    found["name of a variable"] = names - {"LD_LIBRARY_PATH"}
    return found


def told(data: bytes, words: dict[str, set[str]]) -> list[str]:
    """What of some words stands in a file: kind, and how long each is."""
    said = []
    for kind, values in words.items():
        for value in sorted(values):
            if len(value) < LEAST or NEUTRAL.match(value) or "python" in value or "nsys" in value:
                continue
            if value.encode() in data or value.encode("utf-16-le") in data:
                said.append(f"{kind} ({len(value)} characters, starts with {value[:3]!r})")
    return said


def suspicious(data: bytes) -> list[str]:
    """What looks like something of a machine or a person."""
    said = []
    for kind, pattern in SUSPECTS.items():
        hits = {m.group(0)[:60] for m in re.finditer(pattern, data)}
        if hits:
            said.append(f"{kind}: {len(hits)} different, such as {sorted(hits)[:3]}")
    return said


def main(files: Iterable[Path], *, anywhere: bool) -> int:
    words = {} if anywhere else own_words()
    code = 0
    for path in files:
        data = path.read_bytes()
        found = [*told(data, words), *suspicious(data)]
        print(f"{path.name}: {len(data):,} bytes, {len(found)} finding(s)")
        for line in found:
            print(f"  FOUND {line}")
        code |= bool(found)
    return code


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--anywhere", action="store_true")
    given = parser.parse_args()
    sys.exit(main(given.files, anywhere=given.anywhere))
