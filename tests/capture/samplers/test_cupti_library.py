"""Which CUPTI is loaded."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rlprof.capture.samplers import cupti_library
from rlprof.capture.samplers.base import SamplerError
from rlprof.capture.samplers.cupti_library import find_library, version_gap


def library(folder: Path, place: str) -> Path:
    path = folder / place
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a library")
    return path


def test_the_first_folder_that_has_one_counts(tmp_path: Path) -> None:
    older = library(tmp_path / "env", "nvidia/cu13/lib/libcupti.so.13")
    newer = library(tmp_path / "apart", "nvidia/cu13/lib/libcupti.so.13")
    folders = [str(tmp_path / "empty"), str(tmp_path / "apart"), str(tmp_path / "env")]
    assert find_library(folders) == newer
    assert find_library(folders[2:]) == older
    assert find_library(folders[:1]) is None


def test_the_place_of_cuda_12_is_known(tmp_path: Path) -> None:
    path = library(tmp_path, "nvidia/cuda_cupti/lib/libcupti.so.12")
    assert find_library([str(tmp_path)]) == path


@pytest.mark.parametrize(
    ("library_version", "bindings", "fits"),
    [
        (130401, "13.4.0", True),
        (140000, "13.4.0", True),
        (130001, "13.4.0", False),
        (130300, "13.4.0", False),
    ],
)
def test_an_older_cupti_is_told(library_version: int, bindings: str, fits: bool) -> None:
    gap = version_gap(library_version, bindings)
    assert (gap is None) == fits
    if gap is not None:
        assert "older than cupti-python 13.4 needs" in gap


def test_a_library_that_cannot_be_loaded_is_an_error_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library(tmp_path, "nvidia/cu13/lib/libcupti.so.13")
    library_host = tmp_path / "nvidia/cu13/lib/libnvperf_host.so"
    library_host.write_bytes(b"not a library")
    monkeypatch.setenv("RLPROF_CUPTI", str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SamplerError, match=r"cannot be loaded.*pip install --target DIR cupti-python"):
        cupti_library.load()
    assert sys.path[0] == str(tmp_path)
