"""Open captures: find the format by content, read one or merge several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import cast

from rlprof.errors import RankError
from rlprof.expect import expect
from rlprof.progress import Progress, silent
from rlprof.trace.detect import Capture, captures
from rlprof.trace.foreign import some
from rlprof.trace.formats import Format
from rlprof.trace.guard import guarded, reading
from rlprof.trace.trace import Trace

#: Module and function that read each format; imported when the format is met.
READERS: Mapping[Format, tuple[str, str]] = {
    "nsys-report": ("rlprof.trace.nsys_report", "read_report"),
    "nsys-sqlite": ("rlprof.trace.nsys_sqlite", "read_sqlite"),
    "nsys-parquet": ("rlprof.trace.nsys_parquet", "read_parquetdir"),
    "nsys-arrow": ("rlprof.trace.nsys_parquet", "read_arrowdir"),
    "rlprof": ("rlprof.trace.native", "read_rlprof"),
    "kineto": ("rlprof.trace.kineto", "read_kineto"),
    "chrome-jsonl": ("rlprof.trace.chrome_jsonl", "read_chrome_jsonl"),
}


def read(
    path: str | Path,
    *more: str | Path,
    progress: Progress = silent,
    rank_from: str = "auto",
    anchors: Mapping[str, int] | None = None,
) -> Trace:
    """Read one capture, or several as the ranks or processes of one run.

    Parameters
    ----------
    path : str or pathlib.Path
        A capture of any format that rlprof reads (found by content), or a folder of PyTorch or
        Chrome-trace files, which are one rank each.
    *more : str or pathlib.Path
        Further captures of the same run; all are put on one clock.
    progress : Progress
        Told the stage and the fraction done.
    rank_from : {"auto", "file", "none"}
        Where the rank of a file comes from: ``auto``: what the capture says, else its name; ``file``: its
        name, else its place in the order given; ``none``: files have no ranks.
    anchors : mapping of file to int, optional
        Time 0 of a file's own clock in ns on the common clock (Unix time, if other files state theirs), in
        place of what the capture says. The file is named as given, or by its name alone.

    Returns
    -------
    Trace
        Tables are read when first asked for.

    Raises
    ------
    UnreadableError, NotATraceError, DamagedTraceError, NsysError
        If a file cannot be used.
    ClockError
        If several files cannot be put on one clock.
    RankError
        If two files claim one rank, or are one capture.
    UsageError
        If `anchors` names a file that was not given, or `rank_from` is none of the three.

    Examples
    --------
    >>> import rlprof
    >>> trace = rlprof.read("rank0.nsys-rep", "rank1.nsys-rep")    # doctest: +SKIP
    """
    for given in (path, *more):
        expect(given, (str, PathLike), "the capture", "give the path of a file or folder")
    places = [captures(Path(given)) for given in (path, *more)]
    found = [capture for place in places for capture in place.captures]
    left_aside = [name for place in places for name in place.left_aside]
    _refuse_twice(found)
    traces = []
    for i, capture in enumerate(found):
        share: Progress = lambda stage, part, i=i: progress(stage, (i + part) / len(found))  # type: ignore[misc]  # noqa: E731
        traces.append(_read_one(capture, share))
    trace = traces[0]
    if len(traces) > 1 or anchors:
        from rlprof.trace.merge import merge

        trace = merge(traces, names=[str(c.path) for c in found], rank_from=rank_from, anchors=anchors)
    if left_aside:
        note = f"files of the folder that are no traces were left aside: {some(left_aside)}"
        trace = replace(trace, base_notes=(*trace.base_notes, note))
    return trace


def _read_one(capture: Capture, progress: Progress) -> Trace:
    module, function = READERS[capture.format]
    with reading(capture.path):
        reader = cast(Callable[..., Trace], getattr(import_module(module), function))
        return guarded(reader(capture.path, progress=progress), capture.path)


def _refuse_twice(found: list[Capture]) -> None:
    seen: dict[tuple[int, int], Path] = {}
    for capture in found:
        status = capture.path.stat()
        first = seen.setdefault((status.st_dev, status.st_ino), capture.path)
        if first is not capture.path:
            raise RankError(
                f"{first} and {capture.path} are one and the same file", hint="give each capture once"
            )
