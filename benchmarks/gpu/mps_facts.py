"""What the steps of `benchmarks.gpu.mps` note, and what of this machine they ask for."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu.common import ROOT, environment, save

Facts = dict[str, Any]
BEGAN = time.monotonic()
NAME = "nvidia-cuda-mps"


class Noted(dict[str, Any]):
    """Facts that are written down as they come, so that what ends a step loses none of them."""

    def __init__(self, file: Path | None = None) -> None:
        super().__init__()
        self.file = file

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        if self.file is not None:
            save(self.file, dict(self))

    def attempt(self, name: str, call: Callable[[], Any]) -> None:
        """Note what a call gives, or its error."""
        try:
            self[name] = call()
        except Exception as error:
            traceback.print_exc()
            self[name] = {"error": f"{type(error).__name__}: {error}"}


def say(text: str) -> None:
    print(f"[{time.monotonic() - BEGAN:5.1f} s] {text}", flush=True)


def rlprof(*arguments: object, timeout_s: float = 60) -> Facts:
    """Run the command line; after its time it is told to end, as by a person."""
    began, late = time.monotonic(), False
    process = subprocess.Popen(
        [sys.executable, "-m", "rlprof", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(),
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        late = True
        process.terminate()
        try:
            out, err = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
    took = round(time.monotonic() - began, 2)
    facts: Facts = {"code": process.returncode, "out": out, "err": err[-2000:], "took_s": took}
    return facts | ({"late": f"told to end after {timeout_s:.0f} s"} if late else {})


def mps_processes() -> list[Facts]:
    """Every MPS process that can be seen, with what of its environment matters."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            if (folder / "comm").read_text().strip() != NAME:
                continue
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            if fields[0] in "ZX":
                continue
            pairs = (folder / "environ").read_bytes().decode("utf-8", "replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        except OSError as error:
            found.append({"pid": int(folder.name), "error": str(error)})
            continue
        kept = {
            p.split("=", 1)[0]: p.split("=", 1)[1] for p in pairs if p.startswith(("CUDA_", "RLPROF_MPS="))
        }
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        found.append(
            {"pid": int(folder.name), "parent": int(fields[1]), "command": command, "environment": kept}
        )
    return found


def last_json(text: str) -> Facts:
    """The last line that is JSON; without one the end of what was said."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            return dict(json.loads(line))
    return {"said": text[-500:]}
