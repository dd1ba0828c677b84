"""Pipelines in TOML files: user-defined graphs."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from rlprof.planning.documents import pipeline_from_document, pipeline_to_document
from rlprof.planning.errors import PipelineError
from rlprof.planning.files import read_text, write_text
from rlprof.planning.pipeline import Pipeline


def pipeline_from_toml(text: str, where: str = "pipeline") -> Pipeline:
    """Read a pipeline.

    Parameters
    ----------
    text : str
        Keys ``name``, ``inputs``, ``outputs``; the table ``staleness``; and, repeated, the tables ``models``
        (name, shape as a name or a table, head, trainable), ``containers`` (name, elements or weights_of),
        ``invocations`` (name, role, model, inputs, outputs), ``data`` and ``publications`` (source, target,
        container).
    where : str
        What the text is, for errors.

    Raises
    ------
    PipelineError, UnknownShapeError
        If it is no TOML, a key is unknown or missing, a shape is not known, or the graph is not well-formed.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as wrong:
        raise PipelineError(f"{where}: no TOML: {wrong}") from wrong
    return pipeline_from_document(document, where, PipelineError)


def pipeline_to_toml(pipeline: Pipeline) -> str:
    """Write a pipeline as `pipeline_from_toml` reads it."""
    document = pipeline_to_document(pipeline)
    staleness = document.pop("staleness")
    plain = {k: v for k, v in document.items() if not (isinstance(v, list) and v and isinstance(v[0], dict))}
    lines = [f"{key} = {toml_value(value)}" for key, value in plain.items()]
    lines += ["", "[staleness]", *(f"{toml_key(m)} = {steps}" for m, steps in staleness.items())]
    for key, tables in document.items():
        if key in plain:
            continue
        for table in tables:
            lines += ["", f"[[{key}]]", *(f"{toml_key(k)} = {toml_value(v)}" for k, v in table.items())]
    return "\n".join(lines) + "\n"


def toml_key(key: str) -> str:
    """Write a key, quoted where it must be."""
    bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if bare else toml_value(key)


def toml_value(value: Any) -> str:
    """Write a string, number, boolean, list or table as an inline TOML value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{toml_key(k)} = {toml_value(v)}' for k, v in value.items())} }}"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped) + '"'


def read_pipeline(path: str | Path) -> Pipeline:
    """Read a pipeline from a TOML file.

    Raises
    ------
    UnreadableError
        If the file cannot be read.
    PipelineError, UnknownShapeError
        As `pipeline_from_toml`.
    """
    return pipeline_from_toml(read_text(path, PipelineError), str(path))


def write_pipeline(pipeline: Pipeline, path: str | Path) -> None:
    """Write a pipeline to a TOML file, whole or not at all.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    write_text(pipeline_to_toml(pipeline), path)
