"""What fresh processes see of the GPUs, with and without MPS; the levels of a GPU, and their cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlprof.overlap.quota import probe
from rlprof.overlap.quota.errors import ClientLimitError, MpsAbsentError, MpsError, ProbeError, QuotaError
from rlprof.overlap.quota.levels import Level, distinct

#: A pipe directory in which no daemon listens: a process with it is no client.
NO_MPS = "/nonexistent/rlprof-no-mps"
#: Percentages are probed in steps of this (Specification A, section 9).
STEP = 2

_NO_DEVICE = {100, 101}
_LIMIT = {808, 809}
_MPS_DOWN = {805, 806, 807, 810}


@dataclass(frozen=True)
class Gpu:
    """A GPU as CUDA shows it here.

    Parameters
    ----------
    ordinal : int
        As CUDA counts.
    name, uuid : str
        What it is, and which.
    sm_count : int
        SMs that a process without a quota may use.
    compute_mode : int
        0 default, 2 prohibited, 3 exclusive process.
    driver : int
        CUDA version of the driver, as 1000 major + 10 minor.
    """

    ordinal: int
    name: str
    uuid: str
    sm_count: int
    compute_mode: int
    driver: int


@dataclass(frozen=True)
class ProbedLevels:
    """Levels of a GPU.

    Parameters
    ----------
    gpu : Gpu
        Which.
    step : int
        Step of the percentages that were probed.
    probed : tuple of (int, int)
        Percentage, and the SMs that a fresh client under it saw.
    date : str
        When, ISO 8601.
    """

    gpu: Gpu
    step: int
    probed: tuple[tuple[int, int], ...]
    date: str

    @property
    def levels(self) -> tuple[Level, ...]:
        """Distinct levels, weakest first."""
        return distinct(self.probed)

    def to_dict(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return asdict(self) | {"levels": [level.to_dict() for level in self.levels]}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> ProbedLevels:
        """Read what `to_dict` wrote."""
        probed = tuple((int(p), int(n)) for p, n in document["probed"])
        return cls(Gpu(**document["gpu"]), int(document["step"]), probed, str(document["date"]))


def _ask(arguments: Sequence[str], environment: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Run the probe and give its answers."""
    command = [sys.executable, "-I", "-S", probe.__file__, *arguments]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def error_of(answer: Mapping[str, Any]) -> QuotaError | None:
    """Say what an answer of the probe means that is none, and what to do."""
    if "missing" in answer:
        return MpsAbsentError(
            f"there is no NVIDIA driver here ({answer['missing']})",
            hint="rlprof quota --mechanism cores goes without a GPU",
        )
    if "failed" in answer:
        return ProbeError(f"the probe of the driver gave no answer: {answer['failed']}", hint="try again")
    code = answer.get("error")
    if code is None:
        return None
    what = f"{answer.get('call', 'the driver')} failed with {answer.get('error_name') or 'error'} ({code})"
    if code in _NO_DEVICE:
        return MpsAbsentError(
            f"CUDA sees no GPU here: {what}", hint="check CUDA_VISIBLE_DEVICES, and that the GPU is passed on"
        )
    if code in _LIMIT:
        return ClientLimitError(
            f"the MPS server takes no further client: {what}", hint="end clients that are not needed"
        )
    if code in _MPS_DOWN:
        return MpsError(
            f"a client does not reach the MPS server: {what}",
            hint="one user at a time is served; rlprof mps status, then rlprof mps stop",
        )
    if code == 46:
        return MpsAbsentError(
            f"the GPU is in exclusive use by another process: {what}",
            hint="end that process, or set the default compute mode (nvidia-smi -c DEFAULT)",
        )
    return ProbeError(what, hint="check the GPU with nvidia-smi")


def list_gpus() -> tuple[Gpu, ...]:
    """GPUs that CUDA sees in a process that is no client of MPS.

    Raises
    ------
    MpsAbsentError
        If there is no driver or no GPU.
    ProbeError
        If the driver does not answer.
    """
    for answer in _ask(["gpus"], {"CUDA_MPS_PIPE_DIRECTORY": NO_MPS}):
        error = error_of(answer)
        if error is not None:
            raise error
        if answer["gpus"]:
            return tuple(Gpu(**gpu, driver=answer["driver"]) for gpu in answer["gpus"])
    raise MpsAbsentError("CUDA sees no GPU here", hint="check CUDA_VISIBLE_DEVICES")


def choose_gpu(gpus: Sequence[Gpu], ordinal: int) -> Gpu:
    """Return the GPU of an ordinal.

    Raises
    ------
    MpsAbsentError
        If there is none, or it can run nothing.
    """
    for gpu in gpus:
        if gpu.ordinal == ordinal:
            if gpu.compute_mode == 2:
                raise MpsAbsentError(
                    f"GPU {ordinal} is in compute mode prohibited", hint="nvidia-smi -c DEFAULT allows work"
                )
            return gpu
    raise MpsAbsentError(f"there is no GPU {ordinal}", hint=f"CUDA counts 0 to {len(gpus) - 1} here")


def driver_error(environment: Mapping[str, str], *, context: bool = False) -> QuotaError | None:
    """What a fresh client finds wrong; None if it can use the GPU.

    Parameters
    ----------
    environment : mapping of str to str
        Makes a process a client.
    context : bool
        Whether it also makes a context, which takes memory of the GPU for a moment.
    """
    for answer in _ask(["sms", "0", "100", "--context"] if context else ["gpus"], environment):
        return error_of(answer)
    return ProbeError("the probe of the driver gave no answer")


def probe_levels(
    gpu: Gpu,
    environment: Mapping[str, str],
    *,
    ordinal: int = 0,
    step: int = STEP,
    date: str = "",
    progress: Callable[[str, float], None] = lambda _stage, _fraction: None,
) -> ProbedLevels:
    """Read the SM count in a fresh client under each percentage.

    Parameters
    ----------
    gpu : Gpu
        Which.
    environment : mapping of str to str
        Makes a process a client; its percentage is set here.
    ordinal : int
        Of the GPU in a client.
    step : int
        Step of the percentages, 1 to 50; 100 is always probed.
    date : str
        When.
    progress : callable
        Told how far it is.

    Raises
    ------
    QuotaError
        If a client cannot be started, or the percentage makes no difference: then clients are not under MPS.
    """
    wanted = sorted({*range(step, 101, step), 100})
    found: dict[int, int] = {}
    for more in ([], ["--context"]):  # where the driver does not say it before there is a context
        found = {}
        for answer in _ask(["sms", str(ordinal), ",".join(map(str, wanted)), *more], environment):
            error = error_of(answer)
            if error is not None:
                raise error
            found[int(answer["percentage"])] = int(answer.get("context_sm_count") or answer["sm_count"])
            progress("probing quotas", len(found) / len(wanted))
        if len(found) != len(wanted):
            raise ProbeError(
                f"{len(wanted) - len(found)} of {len(wanted)} clients gave no answer", hint="try again"
            )
        if gpu.sm_count == 1 or len(set(found.values())) > 1:
            return ProbedLevels(gpu, step, tuple(sorted(found.items())), date)
    raise QuotaError(
        f"all percentages give {gpu.sm_count} SMs: clients are not under MPS",
        hint="see rlprof mps status; MPS quotas need a GPU from Volta on",
    )


def _cached(folder: Path, gpu: Gpu, step: int) -> Path:
    return folder / "mps-levels" / f"{gpu.uuid}-{gpu.driver}-{step}.json"


def read_cached(folder: Path, gpu: Gpu, step: int) -> ProbedLevels | None:
    """Levels that were probed earlier for this GPU, driver and step; None if there are none."""
    try:
        found = ProbedLevels.from_dict(json.loads(_cached(folder, gpu, step).read_text()))
        found.levels  # noqa: B018 - raises if the file was damaged
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, QuotaError):
        return None
    return found


def write_cached(folder: Path, levels: ProbedLevels) -> None:
    """Keep levels; a folder that cannot be written is passed over, since they can be probed again."""
    path = _cached(folder, levels.gpu, levels.step)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(levels.to_dict()))
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
