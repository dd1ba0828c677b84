"""What the verbs share at the edge: progress, standard output, exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rlprof.cli.lines import Lines
from rlprof.errors import OutputError
from rlprof.progress import Progress


def draws_bars() -> bool:
    """Whether standard error is a terminal that can draw a bar."""
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Give a progress function: a bar on standard error if that is a terminal, else plain lines at times."""
    if not draws_bars():
        yield Lines().progress
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("reading", total=1.0)

        def show(stage: str, fraction: float) -> None:
            bars.update(task, description=stage, completed=min(max(fraction, 0.0), 1.0))

        yield show


def write(text: str) -> None:
    """Write text to standard output, whole.

    Raises
    ------
    OutputError
        If it is closed or cannot be written (disk full). A reader that went away is left to the caller.
    """
    if sys.stdout is None:  # the caller closed it
        raise OutputError("standard output is closed", hint="write to a file or a pipe")
    try:
        data = (text if text.endswith("\n") else text + "\n").encode("utf-8", "replace")
        sys.stdout.flush()
        if hasattr(sys.stdout, "buffer"):
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        else:
            sys.stdout.write(data.decode())
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(
            f"standard output cannot be written ({error.strerror or error})", hint="write to another place"
        ) from error


def write_json(document: Any) -> None:
    """Write a JSON document to standard output; numbers that are not finite become null."""
    write(json_bytes(document).decode())


def json_bytes(document: Any) -> bytes:
    """A JSON document as UTF-8, indented; numbers that are not finite become null."""
    import orjson

    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY) + b"\n"


def say(text: str) -> None:
    """Tell a person something beside the result, on standard error."""
    if sys.stderr is not None:  # closed by the caller: print would take standard output in its place
        print(text, file=sys.stderr)
