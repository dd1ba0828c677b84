"""What is said of who shares which GPU."""

from __future__ import annotations

import pytest

from rlprof.overlap.quota.products import Products, WrongProduct
from rlprof.workloads.embodied import build
from rlprof.workloads.embodied import sharing as sharing_module
from rlprof.workloads.embodied.config import configure
from rlprof.workloads.embodied.errors import ConfigurationError, DeviceError
from rlprof.workloads.embodied.sharing import PERCENTAGE, PIPE, check_share, sharing


@pytest.fixture
def mps(tmp_path) -> dict[str, str]:
    (tmp_path / "control").touch()
    return {PIPE: str(tmp_path)}


def test_one_gpu_is_divided_only_where_mps_runs_and_the_simulator_is_a_client(tmp_path) -> None:
    running = {PIPE: str(tmp_path)}
    config = configure("h200", schedule="hybrid", simulator="mujoco_warp")
    found = sharing(config, running)
    assert found.label == "hybrid, time-sharing one GPU (no MPS daemon)"  # the variable alone starts none
    (tmp_path / "control").touch()
    found = sharing(config, running)
    assert found.label == (
        "hybrid on one GPU divided by MPS: simulator on 50 % of the SMs,"
        " rollout and training (one process) on all SMs"
    )
    assert found.simulator_environment == {PERCENTAGE: "50"}
    assert not found.rollout_environment
    for other in ("mujoco_arm", "libero"):
        found = sharing(configure("h200", schedule="hybrid-pipe", simulator=other), running)
        assert found.label == (
            f"hybrid, time-sharing one GPU ({other} is no CUDA client,"
            " and rollout and training are one process)"
        )
        assert not found.simulator_environment
    found = sharing(configure("h200", simulator="mujoco_warp"), running)
    assert (found.label, found.simulator_percent) == ("colocated", None)


def test_a_rollout_of_its_own_process_has_a_share_of_its_own(mps) -> None:
    config = configure("h200", schedule="hybrid", simulator="mujoco_warp", rollout_process=True)
    found = sharing(config, mps)
    assert found.label == (
        "hybrid on one GPU divided by MPS: simulator on 50 % of the SMs, rollout on 50 % of the SMs,"
        " training on all SMs"
    )
    assert found.rollout_environment == {PERCENTAGE: "50"}
    found = sharing(configure("h200", schedule="hybrid", simulator="libero", rollout_process=True), mps)
    assert "simulator time-shared, rollout on 50 % of the SMs" in found.label
    assert found.simulator_percent is None
    chosen = configure("h200", simulator="mujoco_warp", rollout_process=True, rollout_sm_percent=90)
    found = sharing(chosen, mps)
    assert found.label == ("colocated: simulator on all SMs, rollout on 90 % of the SMs, training on all SMs")
    with pytest.raises(ConfigurationError, match="no MPS daemon"):
        sharing(chosen, {})
    with pytest.raises(ConfigurationError, match="libero is no CUDA client"):
        sharing(configure("h200", simulator="libero", simulator_sm_percent=50), mps)


def test_in_one_process_with_training_rollouts_have_a_share_without_a_daemon(mps) -> None:
    config = configure("h200", simulator="mujoco_warp", rollout_sm_percent=76)
    for environ in ({}, mps):
        found = sharing(config, environ)
        assert found.label == (
            "colocated: simulator on all SMs, rollout on 76 % of the SMs (a green context),"
            " training in its process on all SMs"
        )
        assert not found.simulator_environment
    found = sharing(configure("h200", schedule="hybrid", simulator="libero", rollout_sm_percent=76), mps)
    assert found.label == (
        "hybrid, time-sharing one GPU (libero is no CUDA client, and rollout and training are one process):"
        " simulator time-shared, rollout on 76 % of the SMs (a green context),"
        " training in its process on all SMs"
    )
    config = configure("h200", simulator="mujoco_warp", rollout_sm_percent=76, simulator_sm_percent=90)
    assert "simulator on 90 % of the SMs, rollout on 76 %" in sharing(config, mps).label
    with pytest.raises(ConfigurationError, match="no MPS daemon"):
        sharing(config, {})


@pytest.mark.parametrize(
    ("values", "environ", "place"),
    [
        ({"simulator": "libero"}, {"MUJOCO_EGL_DEVICE_ID": "1"}, "the CPU, images by EGL device 1"),
        ({"simulator": "libero", "rendering": "osmesa"}, {}, "the CPU"),
        ({"simulator": "libero", "rendering": "egl-one"}, {}, "the CPU, images by EGL device 0"),
        ({"simulator": "mujoco_arm", "cameras": 0}, {}, "the CPU"),
        ({"simulator": "mujoco_arm"}, {"MUJOCO_GL": "osmesa"}, "the CPU"),
        ({"simulator": "mujoco_warp", "device": "cuda:1", "rollout_device": "cuda:0"}, {}, "cuda:1"),
    ],
)
def test_where_the_simulator_works_is_said(values, environ, place: str) -> None:
    config = configure("h200", **{"schedule": "hybrid", "rollout_device": "cuda:1", **values})
    assert f"GPUs: simulator on {place}, rollout on" in sharing(config, environ).label


WRONG = Products(100, 36, (WrongProduct(176, 1024, 256, "forward", 8, 768, None),))


def test_a_share_with_which_products_are_wrong_is_refused(mps) -> None:
    with pytest.raises(DeviceError, match=r"with 100 SMs 1 of 36 kinds .* Next: give it another share"):
        check_share("cuda:0", mps, lambda _device: WRONG)
    asked = []
    check_share("cuda:0", mps, lambda device: asked.append(device) or Products(120, 36, ()))
    assert asked == ["cuda:0"]


@pytest.mark.parametrize(("device", "daemon"), [("cpu", True), ("cuda:0", False)])
def test_nothing_is_looked_at_where_there_is_no_share(mps, device: str, daemon: bool) -> None:
    check_share(device, mps if daemon else {}, lambda _device: pytest.fail("looked"))


def test_memory_that_is_too_small_to_look_is_said(mps) -> None:
    def full(_device: str) -> Products:
        raise RuntimeError("CUDA out of memory. Tried to allocate 36 MiB")

    with pytest.raises(DeviceError, match="memory of cuda:0 is too small"):
        check_share("cuda:0", mps, full)


def test_products_that_cannot_be_computed_are_said(mps) -> None:
    def failing(_device: str) -> Products:
        raise RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED\nand much more")

    with pytest.raises(
        DeviceError, match=r"cannot be computed \(CUDA error: CUBLAS_\w+\)\. Next: .* mps status"
    ):
        check_share("cuda:0", mps, failing)


def test_clients_of_a_daemon_that_no_variable_names_are_looked_at(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sharing_module, "DEFAULT_PIPE", str(tmp_path))
    check_share("cuda:0", {}, lambda _device: pytest.fail("looked"))
    (tmp_path / "control").touch()
    with pytest.raises(DeviceError, match="1 of 36 kinds"):
        check_share("cuda:0", {}, lambda _device: WRONG)
    config = configure("h200", schedule="hybrid", simulator="mujoco_warp")
    assert sharing(config, {}).simulator_percent is None  # it may be left of one that has died


def test_all_devices_that_train_are_looked_at(monkeypatch) -> None:
    looked = []
    monkeypatch.setattr(build, "check_devices", lambda _config: None)
    monkeypatch.setattr(build, "check_share", looked.append)
    monkeypatch.setattr(build, "make_simulator", lambda *_: (_ for _ in ()).throw(LookupError))
    with pytest.raises(LookupError):
        build.make_trainer(configure("h200", train_devices="cuda:0,cuda:1"))
    assert looked == ["cuda:0", "cuda:1"]


def test_two_gpus_are_two_gpus() -> None:
    config = configure("h200", schedule="hybrid", rollout_device="cuda:1", simulator="mujoco_warp")
    label = "hybrid on two GPUs: simulator on cuda:0, rollout on cuda:1, training on cuda:0 and cuda:1"
    assert sharing(config, {}).label == label
    assert config.devices == config.actor_devices == ("cuda:0", "cuda:1")
    config = configure("h200", schedule="async", rollout_device="cuda:1", simulator="mujoco_warp")
    label = "disaggregated on two GPUs: simulator on cuda:0, rollout on cuda:1, training on cuda:0"
    assert sharing(config, {}).label == label
    config = configure("h200", train_devices="cuda:0,cuda:1")
    label = (
        "colocated on two GPUs: simulator on the CPU, images by EGL device 0, rollout on cuda:0,"
        " training on cuda:0 and cuda:1"
    )
    assert sharing(config, {}).label == label
    assert sharing(configure("tiny", schedule="hybrid"), {}).label == "hybrid, sharing the processor"
