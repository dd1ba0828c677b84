"""Packs mujoco-warp and what it needs for a machine without a network, as small as it gets.

    python tools/pack_warp.py packages SITE_PACKAGES OUT [--arch 90] [--preset 6]
    python tools/pack_warp.py rest SITE_PACKAGES OUT [--arch 90]
    python tools/pack_warp.py kernels CACHE OUT

`packages` takes warp, mujoco_warp, mujoco, absl, etils and what etils needs from the site-packages of a
Python 3.12 on x86-64, without Warp's compiler for CPUs, tests and examples. Of the GPU code inside
Warp's library the code for one architecture is kept, as nvprune does for libraries that it can read: the
library then works on GPUs of this compute capability only. `rest` packs what was taken out, to put it
back. `kernels` takes a folder of compiled kernels (of tools/warp_kernels.py, or a used WARP_CACHE_PATH).
OUT gets parts of at most 40 MB, warp.tar.xz.1-of-1 and so on; unpack_warp.sh joins them.
"""

from __future__ import annotations

import argparse
import io
import lzma
import re
import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path

PART_BYTES = 40 * 10**6
LIBRARY = "warp/bin/warp.so"
PACKAGES = (
    *("warp", "mujoco", "mujoco_warp", "absl", "etils", "fsspec", "zipp", "importlib_resources"),
    *("typing_extensions.py",),
)
DISTRIBUTIONS = (
    *("warp_lang", "mujoco_core", "mujoco_warp", "absl_py", "etils", "fsspec", "zipp"),
    *("importlib_resources", "typing_extensions"),
)
LEFT_OUT = re.compile(
    r"/__pycache__/|^warp/(examples|tests|bin/warp-clang\.so)|^warp/native/.*\.(cu|cpp)$|^mujoco_warp/test_data"
    r"|^mujoco_warp/.*_test\.py$|^mujoco/(studio|usd|mjx|testdata|sysid|include)/|_test\.py$"
    r"|^mujoco/.*(filament|studio).*\.so"
)
_FAT = struct.Struct("<IHHQ")
_FAT_MAGIC, _CUBIN = 0xBA55ED50, 2


def keep_architecture(library: bytes, arch: int) -> tuple[bytes, int]:
    """Take the GPU code of other architectures out of a shared library.

    Parameters
    ----------
    library : bytes
        With containers of GPU code ("fat binaries").
    arch : int
        Like 90. A container without machine code for it stays as it is.

    Returns
    -------
    tuple of bytes and int
        The library, as long as before with zeros where code was, and the number of bytes taken out.
    """
    out, taken = bytearray(library), 0
    for found in re.finditer(re.escape(struct.pack("<I", _FAT_MAGIC)), library):
        start = found.start()
        entries = _entries(library, start)
        kept = b"".join(
            library[at : at + size] for kind, a, at, size in entries if (kind, a) == (_CUBIN, arch)
        )
        if not kept:
            continue
        magic, version, header, size = _FAT.unpack_from(library, start)
        _FAT.pack_into(out, start, magic, version, header, len(kept))
        out[start + header : start + header + size] = kept + bytes(size - len(kept))
        taken += size - len(kept)
    return bytes(out), taken


def _entries(library: bytes, start: int) -> list[tuple[int, int, int, int]]:
    """Kind, architecture, place and size of what is in a container; empty if it is none."""
    if start + _FAT.size > len(library):
        return []
    _, version, header, size = _FAT.unpack_from(library, start)
    at, end = start + header, start + header + size
    if version != 1 or header != _FAT.size or end > len(library):
        return []
    entries = []
    while at + 32 <= end:
        kind, _, own, payload = struct.unpack_from("<HHIQ", library, at)
        (arch,) = struct.unpack_from("<I", library, at + 28)
        if own == 0 or at + own + payload > end:
            return []
        entries.append((kind, arch, at, own + payload))
        at += own + payload
    return entries if at == end else []


def packages(site: Path, out: Path, arch: int, preset: int) -> None:
    """Pack the packages of a folder."""
    names = [n for n in PACKAGES if (site / n).exists()]
    for needed in ("warp", "mujoco", "mujoco_warp"):
        if needed not in names:
            raise SystemExit(f"pack_warp: {site} has no {needed}. Next: pip install it there")
    names += [p.name for d in DISTRIBUTIONS for p in sorted(site.glob(f"{d}-*.dist-info"))]
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for path in _files(site, names):
            name = path.relative_to(site).as_posix()
            content = path.read_bytes()
            if name == LIBRARY:
                content, taken = keep_architecture(content, arch)
                if not taken:
                    raise SystemExit(f"pack_warp: {name} has no code for sm_{arch} that could be told apart")
                print(f"{name}: {taken:,} bytes of other architectures taken out")
            _add(tar, name, content, path.stat().st_mode & 0o777)
    _write(data.getvalue(), out, "warp", preset)


def rest(site: Path, out: Path, arch: int, preset: int) -> None:
    """Pack the containers of GPU code as they were: place, length, bytes; one after the other."""
    library = (site / LIBRARY).read_bytes()
    kept, _ = keep_architecture(library, arch)
    found = b""
    for start in (m.start() for m in re.finditer(re.escape(struct.pack("<I", _FAT_MAGIC)), library)):
        end = sum(_entries(library, start)[-1][2:]) if _entries(library, start) else start
        if library[start:end] != kept[start:end]:
            found += struct.pack("<QQ", start, end - start) + library[start:end]
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        _add(tar, "warp.so.rest", found, 0o644)
    _write(data.getvalue(), out, "rest", preset)


def kernels(cache: Path, out: Path) -> None:
    """Pack compiled kernels."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for path in sorted(p for p in cache.rglob("*") if p.suffix in (".cubin", ".ptx", ".meta")):
            _add(tar, path.relative_to(cache).as_posix(), path.read_bytes(), 0o644)
    _write(data.getvalue(), out, "kernels", 6)


def _files(site: Path, names: list[str]) -> Iterator[Path]:
    for name in names:
        paths = [site / name] if (site / name).is_file() else sorted((site / name).rglob("*"))
        for path in paths:
            if path.is_file() and not LEFT_OUT.search(path.relative_to(site).as_posix()):
                yield path


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    tar.addfile(info, io.BytesIO(content))


def _write(data: bytes, out: Path, name: str, preset: int) -> None:
    window = min(256 * 2**20, max(2**16, 1 << (len(data) - 1).bit_length()))
    filters = [
        {"id": lzma.FILTER_X86},
        {"id": lzma.FILTER_LZMA2, "preset": preset, "dict_size": window},
    ]
    packed = lzma.compress(data, format=lzma.FORMAT_XZ, filters=filters)
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob(f"{name}.tar.xz.*"):
        old.unlink()
    count = -(-len(packed) // PART_BYTES)
    for number in range(count):
        part = out / f"{name}.tar.xz.{number + 1}-of-{count}"
        temporary = out / f"{part.name}.tmp"
        temporary.write_bytes(packed[number * PART_BYTES : (number + 1) * PART_BYTES])
        temporary.replace(part)
        print(f"{part}: {part.stat().st_size:,} bytes")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("packages", "rest", "kernels"))
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--arch", type=int, default=90)
    parser.add_argument("--preset", type=int, default=6)
    given = parser.parse_args()
    if given.what == "packages":
        packages(given.source, given.out, given.arch, given.preset)
    elif given.what == "rest":
        rest(given.source, given.out, given.arch, given.preset)
    else:
        kernels(given.source, given.out)


if __name__ == "__main__":
    main()
