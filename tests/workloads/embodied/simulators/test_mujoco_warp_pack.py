"""Packing for a machine without a network: GPU code of one architecture, parts, and back again."""

from __future__ import annotations

import importlib.util
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import ROOT

UNPACK = ROOT / "tools" / "unpack_warp.sh"


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pack_warp", ROOT / "tools" / "pack_warp.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pack_warp = tool()


def entry(kind: int, arch: int, payload: bytes) -> bytes:
    header = struct.pack("<HHIQ", kind, 0x101, 64, len(payload)) + bytes(12) + struct.pack("<I", arch)
    return header + bytes(64 - len(header)) + payload


def container(*entries: bytes) -> bytes:
    content = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(content)) + content


ENTRIES = st.lists(
    st.tuples(st.sampled_from([1, 2]), st.sampled_from([75, 90, 100]), st.binary(min_size=1, max_size=40)),
    min_size=1,
    max_size=5,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(ENTRIES, st.binary(max_size=30)), max_size=4))
def test_only_code_of_one_architecture_stays_and_nothing_moves(parts) -> None:
    library, expected = b"\x7fELF", []
    for entries, between in parts:
        start = len(library)
        library += container(*(entry(*e) for e in entries)) + between.replace(b"\xed", b"")
        expected.append((start, [e for e in entries if e[:2] == (2, 90)] or entries, len(library), between))
    found, taken = pack_warp.keep_architecture(library, 90)
    assert len(found) == len(library)
    for start, kept, end, between in expected:
        now = pack_warp._entries(found, start)
        assert [found[at : at + size] for _, _, at, size in now] == [entry(*e) for e in kept]
        tail = between.replace(b"\xed", b"")
        assert found[end - len(tail) : end] == tail
    before = sum(len(pack_warp._entries(library, s)) for s, *_ in expected)
    assert (taken > 0) == (sum(len(k) for _, k, *_ in expected) < before)
    assert pack_warp.keep_architecture(found, 90) == (found, 0)


def test_a_number_that_only_looks_like_a_container_is_left() -> None:
    library = (
        bytes(8) + struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 10**12) + b"rest" + struct.pack("<I", 0xBA55ED50)
    )
    assert pack_warp.keep_architecture(library, 90) == (library, 0)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Packages that stand in for the real ones, and are no bigger than needed."""
    folder = tmp_path / "site"
    library = b"ELF" + container(entry(2, 75, os.urandom(3000)), entry(2, 90, os.urandom(3000))) + b"text"
    library += container(entry(8, 75, b"as it is")) + container(entry(2, 75, b"x"), entry(2, 90, b"y"))
    for name, content in {
        "warp/__init__.py": b"__version__ = '0'\ndef init(): pass\ndef is_cuda_available(): return False\n",
        "warp/bin/warp.so": library,
        "warp/bin/warp-clang.so": b"large",
        "warp/tests/test_it.py": b"",
        "mujoco/__init__.py": b"__version__ = '0'\n",
        "mujoco_warp/__init__.py": b"",
        "mujoco_warp/_src/io_test.py": b"",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def unpack(tmp_path: Path, *parts: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "WARP_PARTS": str(tmp_path / "parts"), "PYTHON": sys.executable}
    command = ["bash", str(UNPACK), *map(str, parts), str(tmp_path / "dest")]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_parts_come_in_two_calls(tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numpy")
    out = tmp_path / "out"
    kernel = tmp_path / "cache" / "1.0" / "wp_x" / "wp_x.sm90.cubin"
    kernel.parent.mkdir(parents=True)
    kernel.write_bytes(b"code")
    (kernel.parent / "wp_x.cu").write_bytes(b"source")
    monkeypatch.setattr(pack_warp, "PART_BYTES", 2500)
    pack_warp.packages(site, out, 90, 1)
    pack_warp.kernels(tmp_path / "cache", out)
    first, second = sorted(out.glob("warp.tar.xz.*"))
    assert first.name == "warp.tar.xz.1-of-2"
    assert first.stat().st_size == 2500

    done = unpack(tmp_path, second)
    assert done.returncode == 0, done.stderr
    assert "1 of 2 parts of warp are there" in done.stdout
    done = unpack(tmp_path, first, *out.glob("kernels.*"))
    assert done.returncode == 0, done.stderr
    assert "unpack_warp: warp 0 mujoco 0" in done.stdout
    assert "already" not in done.stdout
    assert unpack(tmp_path, first).stdout.count("is there already") == 2
    (unpacked,) = (tmp_path / "dest" / "lib").glob("python3.*/site-packages")
    names = {p.relative_to(unpacked).as_posix() for p in unpacked.rglob("*") if "__pycache__" not in p.parts}
    files = {n for n in names if (unpacked / n).is_file()}
    assert files == {
        "warp/__init__.py",
        "warp/bin/warp.so",
        "mujoco/__init__.py",
        "mujoco_warp/__init__.py",
        "zz_rest.pth",
    }
    original = (site / "warp/bin/warp.so").read_bytes()
    assert (unpacked / "warp/bin/warp.so").read_bytes() == pack_warp.keep_architecture(original, 90)[0]
    pack_warp.rest(site, out, 90, 1)
    done = unpack(tmp_path, *out.glob("rest.*"))
    assert "rest unpacked" in done.stdout, done.stderr
    assert (unpacked / "warp/bin/warp.so").read_bytes() == original
    assert [p.name for p in (tmp_path / "dest" / "kernels").rglob("*.*") if p.is_file()] == [
        "wp_x.sm90.cubin"
    ]
    text = (tmp_path / "dest" / "env.sh").read_text()
    assert f"RLPROF_WARP_PYTHON={tmp_path / 'dest'}/bin/python" in text


def test_what_is_missing_is_said(tmp_path: Path, site: Path) -> None:
    done = unpack(tmp_path, tmp_path / "warp.tar.xz.1-of-1")
    assert done.returncode == 1
    assert "no file" in done.stderr
    (site / "mujoco" / "__init__.py").unlink()
    (site / "mujoco").rmdir()
    with pytest.raises(SystemExit, match="has no mujoco"):
        pack_warp.packages(site, tmp_path / "out", 90, 1)
    assert not (tmp_path / "out").exists()
