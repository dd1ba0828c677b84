"""What a measurement says of itself: where, when, with what and by which command it was made."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Mapping
from typing import Any

Document = Mapping[str, Any]
#: What a document says of its machine that is no version.
NO_VERSIONS = ("gpu", "machine", "processor", "RmProfilingAdminOnly")
#: What wrote a document, by its name of the command.
PROGRAMS = {
    "run": "benchmarks.gpu.embodied run",
    "optimize": "benchmarks.gpu.optimize",
    "rollout_quota": "benchmarks.gpu.rollout_quota",
}


def run_facts(document: Document) -> dict[str, Any]:
    """Return what a measurement says of where and when it was made, and with what.

    Returns
    -------
    dict
        ``gpu`` ("none" on a processor), ``driver``, ``cores``, ``date``, versions (``python``, ``torch``),
        ``run_seed``. Null where a document does not tell.
    """
    config, machine = document.get("config") or {}, document.get("machine") or {}
    gpu, _, more = str(machine.get("gpu") or "").partition("\n")[0].partition(", ")
    return {
        "gpu": gpu or "none",
        "driver": more.partition(", ")[0] or None,
        "cores": machine.get("cores"),
        "date": machine.get("date"),
        "python": machine.get("python"),
        "torch": machine.get("torch"),
        "run_seed": config.get("seed"),
    }


def provenance(document: Document) -> dict[str, Any]:
    """Return what is kept beside a raw table of a measurement that it was read from.

    Returns
    -------
    dict
        `run_facts`, the versions of all libraries that the document names (``versions``), and the
        ``command`` that made it. What the document does not tell is left out.
    """
    machine = document.get("machine") or {}
    found = {k: v for k, v in run_facts(document).items() if v is not None}
    versions = {k: v for k, v in machine.items() if k not in (*found, *NO_VERSIONS) and v is not None}
    told = found | {"versions": versions, "command": command_of(document)}
    return {name: value for name, value in told.items() if value}


def command_of(document: Document) -> str | None:
    """Return the command that made a document, with all options that it keeps; None if it keeps none."""
    command, argv = document.get("command"), document.get("argv")
    if command not in PROGRAMS or not argv:
        return None if command is None or command in PROGRAMS else str(command)
    words = ["python", "-m", *PROGRAMS[command].split(), "--out", "OUT"]
    for name, value in argv.items():
        option = f"--{name.replace('_', '-')}"
        if name == "set" and str(value) != "None":
            words += [option, *ast.literal_eval(value)]
        elif str(value) not in ("None", "False", ""):
            words += [option] if str(value) == "True" else [option, str(value)]
    return shlex.join(words)
