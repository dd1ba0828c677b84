"""The nsys command line tool: finding it, running it, and saying in one line why it failed."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rlprof.errors import DamagedTraceError, NewerReportError, NsysError, OutputError, RlprofError
from rlprof.progress import Progress, silent

#: Where nsys is found beside PATH, below the root folder. Nsight Compute brings one of its own.
PLACES = (
    "opt/nvidia/nsight-systems/*/target-linux-*/nsys",
    "opt/nvidia/nsight-systems/*/bin/nsys",
    "opt/nvidia/nsight-systems-cli/*/target-linux-*/nsys",
    "opt/nsight-systems-*/target-linux-*/nsys",
    "opt/nvidia/nsight-compute/*/host/target-linux-*/nsys",
    "usr/lib/nsight-systems/target-linux-*/nsys",
    "usr/lib/*/nsight-systems/target-linux-*/nsys",
    "usr/local/cuda*/nsight-systems-*/target-linux-*/nsys",
    "usr/local/cuda*/nsight-compute-*/host/target-linux-*/nsys",
    "usr/local/cuda*/bin/nsys",
)
#: Seconds that a question (--version, --help) may take, and that an export may show no sign of life. nsys
#: has been seen to hang for ever where /proc is not mounted.
ASK_S, STALL_S = 20.0, 180.0
REPORT_MAGIC = b"NVIDIA Tegra Profiler Report"
GET_NSYS = "run tools/install-nsys.sh, or install Nsight Systems from developer.nvidia.com/nsight-systems"


def export_command(report: str) -> str:
    """The command to run where the capture was made, for a machine without a fitting nsys."""
    return f"`nsys export --type sqlite {report}` on the machine that captured it, and read the .sqlite file"


@dataclass(frozen=True)
class Nsys:
    """One installed nsys.

    Parameters
    ----------
    path : pathlib.Path
        The executable.
    version : str
        For example ``2023.4.4.54``.
    """

    path: Path
    version: str

    @cached_property
    def _help(self) -> str:
        return _ask([str(self.path), "export", "--help"]) or ""

    @property
    def exports_parquet(self) -> bool:
        """Whether it can write a parquet directory."""
        return "parquetdir" in self._help

    @property
    def picks_tables(self) -> bool:
        """Whether it can export some of the tables only."""
        return "--tables" in self._help

    def export(
        self,
        report: Path,
        out: Path,
        *,
        kind: str,
        tables: Sequence[str] = (),
        progress: Progress = silent,
        stall_s: float | None = None,
    ) -> None:
        """Run ``nsys export``; whether the result is whole is for the caller to check.

        Parameters
        ----------
        report : pathlib.Path
            The report.
        out : pathlib.Path
            File or folder to make.
        kind : str
            ``sqlite`` or ``parquetdir``.
        tables : sequence of str
            Tables to export, where this nsys can choose; all if none are given.
        progress : Progress
            Told how much has been exported.
        stall_s : float
            Seconds without any sign of life after which nsys is ended; `STALL_S` if not given.

        Raises
        ------
        NewerReportError, DamagedTraceError, OutputError, NsysError
            By what nsys said. The process has ended in every case, Ctrl-C included.
        """
        stall_s = STALL_S if stall_s is None else stall_s
        command = [str(self.path), "export", "--type", kind, "--output", str(out)]
        if tables and self.picks_tables:
            command.append(f"--tables={','.join(tables)}")
        command.append(str(report.absolute()))  # absolute: a name may start with a dash
        try:
            code, text = run_watched(command, watch=out, progress=progress, stall_s=stall_s)
        except TimeoutError as error:
            raise NsysError(
                f"nsys {self.version} showed no sign of life for {stall_s:.0f} s and was ended",
                where=report.name,
                hint=f"see that /proc is mounted; else run {export_command(report.name)}",
            ) from error
        except OSError as error:
            raise NsysError(
                f"nsys cannot be started: {error.strerror}", where=self.path, hint=GET_NSYS
            ) from error
        if code != 0 or _DISK_FULL.search(text):
            raise explain(self.version, report, code, text)


def installed(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> tuple[Path, ...]:
    """Executables called nsys on this machine, links resolved, whether they work or not.

    Parameters
    ----------
    environ : mapping
        ``PATH``, ``CUDA_HOME`` and ``CUDA_PATH`` are used; ``RLPROF_NSYS`` names the only one to use.
    root : pathlib.Path
        Folder below which the usual places are searched.

    Returns
    -------
    tuple of pathlib.Path
        Each once; empty if there is none.
    """
    if environ.get("RLPROF_NSYS"):
        found = [Path(environ["RLPROF_NSYS"])]
    else:
        on_path = shutil.which("nsys", path=environ.get("PATH", ""))
        found = [Path(on_path)] if on_path else []
        for pattern in PLACES:
            found += sorted(root.glob(pattern))
        for home in filter(None, (environ.get("CUDA_HOME"), environ.get("CUDA_PATH"))):
            for pattern in ("bin/nsys", "nsight-*/target-linux-*/nsys", "nsight-*/host/target-linux-*/nsys"):
                found += sorted(Path(home).glob(pattern))
    real: dict[Path, None] = {}
    for path in found:
        with contextlib.suppress(OSError):
            if os.access(path, os.X_OK):
                real[path.resolve(strict=True)] = None
    return tuple(real)


def find_nsys(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> tuple[Nsys, ...]:
    """Every nsys on this machine that tells its version, newest first; parameters as for `installed`."""
    tools = [Nsys(path, version) for path in installed(environ, root) if (version := _version(path))]
    return tuple(sorted(tools, key=lambda n: version_key(n.version), reverse=True))


def version_key(version: str) -> tuple[int, ...]:
    """``2023.4.4.54`` as numbers, to compare."""
    return tuple(int(n) for n in re.findall(r"\d+", version.split("-", maxsplit=1)[0]))


def report_version(report: Path) -> str | None:
    """Version of the Nsight Systems that wrote a report; None if it cannot be told.

    It stands in a length-prefixed field near the report's end and, up to about 2023, in its first line.
    """
    with contextlib.suppress(OSError), report.open("rb") as file:
        head = file.read(256)
        file.seek(max(0, report.stat().st_size - (1 << 14)))
        for found in re.finditer(rb"2(.)(20\d\d\.\d+\.\d+[\w.-]*)", file.read(), re.S):
            if found[1][0] == len(found[2]):
                return found[2].decode().split("-", maxsplit=1)[0]
        if line := re.match(re.escape(REPORT_MAGIC) + rb"\s+(20\d\d(?:@\d+)+)", head):
            return line[1].decode().replace("@", ".")
    return None


def _version(path: Path) -> str | None:
    found = re.search(r"version\s+(\d+(?:\.\d+)+)", _ask([str(path), "--version"]) or "")
    return found[1] if found else None


def _ask(command: list[str]) -> str | None:
    """What a short command prints; None if it fails or does not end."""
    try:
        code, text = run_watched(command, stall_s=ASK_S, limit_s=ASK_S)
    except (OSError, TimeoutError):
        return None
    return text if code == 0 else None


def run_watched(
    command: Sequence[str],
    *,
    watch: Path | None = None,
    progress: Progress = silent,
    stall_s: float,
    limit_s: float | None = None,
) -> tuple[int, str]:
    """Run a command to its end, as long as it shows signs of life.

    Signs are output, growth of `watch`, and processor time where /proc tells it.

    Parameters
    ----------
    command : sequence of str
        Program and arguments.
    watch : pathlib.Path, optional
        File or folder that the command writes.
    progress : Progress
        Told the percentage that the command prints.
    stall_s : float
        Seconds without a sign of life.
    limit_s : float, optional
        Seconds in all.

    Returns
    -------
    code : int
        Exit status, negative for a signal.
    text : str
        The end of what it printed, without progress bars.

    Raises
    ------
    TimeoutError
        If it stalled; it has been ended then.
    OSError
        If it cannot be started.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # its children end with it
    )
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    text = b""
    start = alive = time.monotonic()
    signs: object = None
    try:
        while True:
            if select.select([pipe], [], [], 0.25)[0]:
                chunk = os.read(pipe, 1 << 16)
                if not chunk:
                    break
                alive = time.monotonic()
                text = (text + chunk)[-(1 << 17) :]
                if percent := re.findall(rb"(\d+)%", chunk):
                    progress("nsys export", min(1.0, int(percent[-1]) / 100))
            elif process.poll() is not None:
                break
            elif (now := (_size(watch), _processor_time(process.pid))) != signs:
                signs, alive = now, time.monotonic()
            now_s = time.monotonic()
            if now_s - alive > stall_s or (limit_s is not None and now_s - start > limit_s):
                raise TimeoutError
        code = process.wait(timeout=ASK_S)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError from error
    finally:
        _end(process)
    lines = re.split(r"[\r\n]+", text.decode("utf-8", "replace"))
    return code, "\n".join(line for line in lines if line and not re.match(r"Processing \d+ events", line))


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=2)
    if process.stdout:
        process.stdout.close()


def _size(path: Path | None) -> int:
    if path is None:
        return 0
    with contextlib.suppress(OSError):
        if path.is_dir():
            return sum(f.stat().st_size + 1 for f in path.iterdir())
        return path.stat().st_size
    return 0


def _processor_time(pid: int) -> str:
    with contextlib.suppress(OSError, IndexError):
        return " ".join(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:15])
    return ""


_NEWER = re.compile(r"created in Nsight Systems version \(?([\w.]+).*newer than your current version", re.S)
_PROTOBUF = re.compile(r"ProtobufParseException|missing required fields", re.I)
_DAMAGED = re.compile(r"magic number mismatch|Version tag is not found|Cannot read from stream", re.I)
_DISK_FULL = re.compile(r"disk is full|No space left|Error writing bytes", re.I)


def explain(version: str, report: Path, code: int, text: str) -> RlprofError:
    """Why ``nsys export`` failed, from its exit status and its text.

    Parameters
    ----------
    version : str
        The nsys that was run.
    report : pathlib.Path
        The report.
    code : int
        Exit status.
    text : str
        What it printed.

    Returns
    -------
    RlprofError
        To raise.
    """
    written_by = report_version(report)
    name, says = report.name, _reason(text)
    if _DISK_FULL.search(text):
        return disk_full(name)
    newer = _NEWER.search(text)
    if newer:
        return newer_report(name, version, newer[1])
    if _PROTOBUF.search(text):
        # so do older tools fail on a newer report, instead of saying that it is newer
        if written_by is None or version_key(written_by) > version_key(version):
            return newer_report(name, version, written_by)
        return DamagedTraceError(
            f"nsys {version} cannot parse the report, which Nsight Systems {written_by} wrote",
            where=name,
            hint=f"copy the report again, or run {export_command(name)}",
        )
    if _DAMAGED.search(text):
        return DamagedTraceError(
            f"the report is truncated or damaged (nsys: {says})",
            where=name,
            hint="copy it again; nsys writes the end of a report last, so see that it had finished",
        )
    if code < 0:
        killed = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        why = ", perhaps for lack of memory" if -code == signal.SIGKILL else ""
        return NsysError(f"nsys {version} was ended by {killed}{why}", where=name, hint=export_command(name))
    return NsysError(f"nsys {version} export failed: {says}", where=name, hint=f"run {export_command(name)}")


MORE_SPACE = "free space, or set RLPROF_CACHE to a folder on another disk"


def disk_full(name: str) -> OutputError:
    """The error for a disk that became full."""
    return OutputError("the disk became full during nsys export", where=name, hint=MORE_SPACE)


def newer_report(name: str, installed: str, written_by: str | None) -> NewerReportError:
    """The error for a report that the installed nsys is too old for."""
    by = f"Nsight Systems {written_by}" if written_by else "a newer Nsight Systems"
    wanted = f"Nsight Systems {written_by} or newer" if written_by else "a newer Nsight Systems"
    return NewerReportError(
        f"the report was written by {by}, newer than the nsys {installed} here",
        where=name,
        hint=f"install {wanted}, or run {export_command(name)}",
    )


def _reason(text: str) -> str:
    """The telling line of nsys's output, without its source paths."""
    for pattern in (r"Exportation error: (?!/)(.+)", r"std::exception::what: (.+)", r"(.+)"):
        lines = [m.strip() for m in re.findall(pattern, text) if "Throw in function" not in m]
        if lines:
            return " ".join(lines[-1].split())[:200]
    return "it said nothing"
