"""Hardware files: the constants of a kind of GPU and its network, in TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlprof.planning.cluster import Cluster, Constant, Hardware, split_notation
from rlprof.planning.documents import record
from rlprof.planning.errors import HardwareError
from rlprof.planning.files import read_text, write_text
from rlprof.planning.pipeline_file import toml_key, toml_value

FORMAT, VERSION = "rlprof.hardware", 1
SHIPPED = Path(__file__).parent / "hardware"


def shipped_hardware() -> tuple[str, ...]:
    """Names of the hardware files that come with rlprof."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.toml")))


def hardware_to_document(hardware: Hardware) -> dict[str, Any]:
    """Return hardware as a document of plain values."""
    constants = {}
    for name, c in hardware.constants.items():
        table: dict[str, Any] = {"value": c.value, "unit": c.unit, "status": c.status, "source": c.source}
        if c.status == "calibrated":
            table |= {"samples": c.samples, "date": c.date, "gpu": c.gpu}
        if c.error_frac is not None:
            table["error_frac"] = c.error_frac
        constants[name] = table
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": hardware.name,
        "gpu": hardware.gpu,
        "gpus_per_node": hardware.gpus_per_node,
        "constants": constants,
    }


def hardware_from_document(document: Any, where: str) -> Hardware:
    """Make hardware of a document.

    Raises
    ------
    HardwareError
        If it has another form or version, or a constant is missing, unknown, of a wrong unit or out of range.
    """
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise HardwareError(f'{where}: no hardware file: "format" is not "{FORMAT}"')
    if document.get("version") != VERSION:
        raise HardwareError(
            f"{where}: a hardware file of version {document.get('version')}, known is {VERSION}",
            hint="write it with this version of rlprof, or upgrade rlprof",
        )
    tables = document.get("constants")
    if not isinstance(tables, Mapping):
        raise HardwareError(f"{where}: there is no table [constants]")
    constants = {}
    for name, table in tables.items():
        if isinstance(table, Mapping) and not (table.keys() & {"value", "unit"}):
            raise HardwareError(
                f"{where}: constant {name!r} has neither value nor unit",
                hint=f'quote names that hold a dot: [constants."{name}.inter_node.alpha_s"]',
            )
        constants[str(name)] = record(Constant, table, f"{where}: {name}", HardwareError)
    rest = {k: v for k, v in document.items() if k not in ("format", "version")}
    try:
        return record(Hardware, rest, where, HardwareError, constants=constants)
    except HardwareError as error:
        if str(error).startswith(where):
            raise
        raise HardwareError(error.what, where=where, hint=error.hint) from error


def hardware_from_toml(text: str, where: str = "hardware") -> Hardware:
    """Read hardware from TOML text; errors as `hardware_from_document`."""
    try:
        return hardware_from_document(tomllib.loads(text), where)
    except tomllib.TOMLDecodeError as wrong:
        raise HardwareError(f"{where}: no TOML: {wrong}") from wrong


def hardware_to_toml(hardware: Hardware) -> str:
    """Write hardware as `hardware_from_toml` reads it."""
    document = hardware_to_document(hardware)
    constants = document.pop("constants")
    lines = [f"{key} = {toml_value(value)}" for key, value in document.items()]
    for name, table in constants.items():
        lines += ["", f"[constants.{toml_key(name)}]", *(f"{k} = {toml_value(v)}" for k, v in table.items())]
    return "\n".join(lines) + "\n"


def read_hardware(name_or_path: str) -> Hardware:
    """Read a shipped hardware file by name, or any by path.

    Raises
    ------
    HardwareError
        If there is none of this name, or the file is broken.
    UnreadableError
        If the file cannot be read.
    """
    if name_or_path in shipped_hardware():
        path = SHIPPED / f"{name_or_path}.toml"
        return hardware_from_toml(path.read_text(encoding="utf-8"), name_or_path)
    if not name_or_path.endswith(".toml") and "/" not in name_or_path:
        raise HardwareError(
            f"unknown hardware {name_or_path!r}",
            hint=f"use one of {', '.join(shipped_hardware())}, or the path of a hardware file (.toml)",
        )
    return hardware_from_toml(read_text(name_or_path, HardwareError), name_or_path)


def write_hardware(hardware: Hardware, path: str | Path) -> None:
    """Write a hardware file, whole or not at all.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    write_text(hardware_to_toml(hardware), path)


def cluster_named(text: str) -> Cluster:
    """Return the cluster of ``name:RxNxG``, such as ``gh200:2x8x4`` or ``./hw.toml:1x1x8``.

    Raises
    ------
    TopologyError
        If the text is something else, or the topology cannot be.
    HardwareError, UnreadableError
        As `read_hardware`.
    """
    name, *counts = split_notation(text)
    racks, nodes, gpus = counts
    return Cluster(read_hardware(name), racks, nodes, gpus)
