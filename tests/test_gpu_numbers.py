"""Numbers of GPUs where a program sees a part of them."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from rlprof.gpu_numbers import gpu_number
from rlprof.unavailable import Unavailable
from rlprof.workloads.embodied import activity as activities

UUIDS = ["GPU-aaaa1111-2222", "GPU-bbbb1111-2222"]


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda k: k,
        nvmlDeviceGetUUID=lambda k: UUIDS[k].encode() if k else UUIDS[k],
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)


@pytest.mark.parametrize(
    ("device", "visible", "number"),
    [
        ("cuda", None, 0),
        ("cuda:1", None, 1),
        ("cuda:1", "", 1),
        ("cuda:0", "1", 1),
        ("cuda:1", "3, 2", 2),
        ("cuda:0", UUIDS[1], 1),
        ("cuda:1", f"{UUIDS[1]},GPU-aaaa", 0),
    ],
)
@pytest.mark.usefixtures("two_gpus")
def test_a_device_has_the_number_of_nvidia_smi(device: str, visible: str | None, number: int) -> None:
    assert gpu_number(device, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == number


@pytest.mark.parametrize(
    ("device", "visible", "said"),
    [
        ("cuda:0", "-1", "no GPU for cuda:0"),
        ("cuda:0", "NoDevFiles", "no GPU for cuda:0"),
        ("cuda:1", "0,,1", "no GPU for cuda:1"),  # CUDA reads no further than the gap
        ("cuda:2", "0,,1", "no GPU for cuda:2"),
        ("cuda:1", "0,-1,1", "no GPU for cuda:1"),
        ("cuda:7", "0", "no GPU for cuda:7"),
        ("cuda:0", "GPU-", "more than one GPU"),
        ("cuda:0", "MIG-aaaa1111-2222", "MIG instance"),
    ],
)
@pytest.mark.usefixtures("two_gpus")
def test_what_is_no_one_gpu_has_no_number(device: str, visible: str, said: str) -> None:
    found = gpu_number(device, {"CUDA_VISIBLE_DEVICES": visible})
    assert isinstance(found, Unavailable)
    assert said in found.reason


@pytest.mark.usefixtures("two_gpus")
def test_an_unknown_name_has_none() -> None:
    found = gpu_number("cuda:0", {"CUDA_VISIBLE_DEVICES": "GPU-cccc"})
    assert isinstance(found, Unavailable)
    assert "NVML does not know" in found.reason


def test_without_nvml_a_name_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = gpu_number("cuda:0", {"CUDA_VISIBLE_DEVICES": UUIDS[0]})
    assert isinstance(found, Unavailable)
    assert "NVML does not answer" in found.reason


def test_activity_is_not_sampled_on_another_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", UUIDS[1])
    found = activities.Activity.start(tmp_path, "cuda:0")  # type: ignore[arg-type]
    assert "NVML does not answer" in found.source
