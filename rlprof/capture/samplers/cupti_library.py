"""Loading cupti-python with the CUPTI that belongs to it.

PyTorch pins an older CUPTI, and cupti-python takes whatever CUPTI lies in the environment's own folder: with
an older one its calls fail for no visible reason. So the right libraries are loaded first, by their path.
Where the two cannot be installed together, install cupti-python into a folder of its own and name it:

``pip install --target DIR cupti-python; export RLPROF_CUPTI=DIR``
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlprof.capture.samplers.base import SamplerError
from rlprof.capture.samplers.process_memory import give_back_zeros_of

FOLDER = "RLPROF_CUPTI"
#: Where the wheels of CUDA 13 and 12 put the library.
PLACES = ("nvidia/cu[0-9]*/lib/libcupti.so.*", "nvidia/cuda_cupti/lib/libcupti.so.*")
#: Loaded before it, so that it finds its own.
HELPERS = ("libnvperf_host.so", "libnvperf_target.so")
APART = f"pip install --target DIR cupti-python; export {FOLDER}=DIR"


def use_own_folder() -> None:
    """Put the folder that ``RLPROF_CUPTI`` names in front of the others."""
    folder = os.environ.get(FOLDER)
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)


def find_library(folders: Sequence[str]) -> Path | None:
    """The CUPTI that the first of some folders holds.

    Parameters
    ----------
    folders : sequence of str
        Folders that packages are imported from, first first.

    Returns
    -------
    pathlib.Path or None
    """
    for folder in folders:
        for place in PLACES:
            found = sorted(Path(folder or ".").glob(place))
            if found:
                return found[0]
    return None


def version_gap(library: int, bindings: str) -> str | None:
    """Whether a CUPTI is too old for cupti-python.

    Parameters
    ----------
    library : int
        What ``cuptiGetVersion`` says, for example 130401.
    bindings : str
        Version of cupti-python, for example ``13.4.0``.

    Returns
    -------
    str or None
        What is wrong, for people.
    """
    major, minor = (int(n) for n in bindings.split(".")[:2])
    if library // 100 >= major * 100 + minor:
        return None
    return (
        f"the CUPTI {library // 10000}.{library // 100 % 100} of this environment is older than cupti-python "
        f"{major}.{minor} needs (PyTorch pins its own)"
    )


def load(*, counters: bool = True) -> Any:
    """Import ``cupti.cupti`` with its own libraries.

    Parameters
    ----------
    counters : bool
        Load what reading counters needs too: tables of every chip, tens of megabytes.

    Returns
    -------
    module
        cupti-python's low-level calls.

    Raises
    ------
    SamplerError
        If it is not installed, cannot be loaded, or CUPTI is too old.
    """
    use_own_folder()
    library = find_library(sys.path)
    try:
        if library is not None:
            for helper in HELPERS if counters else ():
                ctypes.CDLL(str(library.parent / helper), mode=ctypes.RTLD_GLOBAL)
                give_back_zeros_of(library.parent / helper)
            number = ctypes.c_uint32()
            unknown = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL).cuptiGetVersion(ctypes.byref(number))
            wrong = version_gap(number.value, importlib.metadata.version("cupti-python"))
            if wrong is not None and not unknown:
                raise SamplerError(wrong, hint=APART)
        return importlib.import_module("cupti.cupti")
    except (ImportError, OSError, RuntimeError) as error:
        raise SamplerError(
            f"cupti-python cannot be loaded ({type(error).__name__}: {error})",
            hint=APART,
        ) from error
