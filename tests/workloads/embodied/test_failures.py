"""Runs that fail for real: an error that says what to change, no process left, the checkpoint survives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from rlprof.overlap.equality import equal_bits
from rlprof.workloads.embodied import checkpoint, metrics, record, runner
from rlprof.workloads.embodied.actor import Actor
from rlprof.workloads.embodied.build import check_devices
from rlprof.workloads.embodied.config import configure
from rlprof.workloads.embodied.env_worker import EnvWorker
from rlprof.workloads.embodied.errors import (
    ConfigurationError,
    DeviceError,
    RolloutDiedError,
    RolloutTimeoutError,
    SimulatorDiedError,
    SimulatorTimeoutError,
    WorkloadError,
    memory_of,
)
from tests.conftest import ROOT, python_path
from tests.workloads.embodied.made import small

pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'rlprof[workloads]'")

#: More than any machine has, so that the allocation really fails.
TOO_MANY = 10**14


#: The rollout's process allocates too much in its second iteration.
IN_THE_PROCESS = f"""
import sys
if any("rollout_serve" in word for word in sys.orig_argv):
    from rlprof.workloads.embodied.rollout_worker import RolloutWorker
    native = RolloutWorker.predict
    def predict(self, seen, step, *rest):
        if step.index == 1:
            import torch
            torch.empty({TOO_MANY})
        return native(self, seen, step, *rest)
    RolloutWorker.predict = predict
"""


def served() -> set[int]:
    """Processes that this one has started and not waited for, zombies too."""
    return victimsby(os.getpid())


def victimsby(parent: int) -> set[int]:
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.add(int(status.parent.name))
    return found


def saved(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(out / checkpoint.NAME, weights_only=True)
    return {k: dict(v) if k in ("actor", "rollout") and v is not None else v for k, v in found.items()}


def iterations_saved(out: Path) -> int:
    found: int = saved(out)["iteration"]
    return found


@pytest.mark.parametrize(
    ("options", "victim", "how", "kind"),
    [
        ({"schedule": "hybrid-pipe"}, "simulator", signal.SIGSTOP, SimulatorTimeoutError),
        ({"schedule": "async"}, "simulator", signal.SIGKILL, SimulatorDiedError),
        pytest.param(
            {"schedule": "async"}, "simulator", signal.SIGSTOP, SimulatorTimeoutError, marks=pytest.mark.slow
        ),
        pytest.param(
            {"schedule": "colocated-pipe", "rollout_process": True},
            "rollout",
            signal.SIGKILL,
            RolloutDiedError,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"rollout_process": True},
            "rollout",
            signal.SIGSTOP,
            RolloutTimeoutError,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_process_that_dies_or_hangs_ends_the_run_and_not_the_checkpoint(
    tmp_path, monkeypatch, options: dict[str, Any], victim: str, how: signal.Signals, kind: type[Exception]
) -> None:
    config = small(workers=2, **options)
    make, iterate, before = runner.make_trainer, runner.measured_iteration, served()
    made: list[Any] = []
    monkeypatch.setattr(runner, "make_trainer", lambda c: made.append(make(c)) or made[-1])

    def fails(*values: Any) -> Any:
        if values[-1] == 1:
            trainer = made[-1]
            victims = trainer.env.simulator if victim == "simulator" else trainer.rollout
            if how == signal.SIGSTOP:
                victims.timeout_s = 1.5
            os.kill(victims.process_ids[1] if victim == "simulator" else victims.process_id, how)
        return iterate(*values)

    monkeypatch.setattr(runner, "measured_iteration", fails)
    began = time.monotonic()
    with pytest.raises(kind) as caught:
        runner.run(config, tmp_path, 50, checkpoint_every=1)
    assert time.monotonic() - began < 120
    assert str(caught.value).count("\n") == 0
    assert "Next: " in str(caught.value)
    assert served() <= before
    done = iterations_saved(tmp_path)
    assert done >= 1
    monkeypatch.setattr(runner, "measured_iteration", iterate)
    assert len(runner.run(config, tmp_path, done + 1, resume=True).rows) == 1
    assert served() <= before


@pytest.mark.parametrize(
    ("options", "last_use"),
    [
        ({}, "answer"),
        ({"env_prefetch": True}, "answer"),
        ({"env_prefetch": True}, "prefetch"),
        ({"schedule": "colocated-pipe", "env_prefetch": True}, "prefetch"),
        ({"schedule": "async"}, "answer"),
        pytest.param({"rollout_process": True}, "answer", marks=pytest.mark.slow),
        pytest.param({"rollout_process": True, "schedule": "async"}, "answer", marks=pytest.mark.slow),
    ],
)
def test_a_process_that_dies_when_it_has_done_its_part_costs_nothing_that_was_trained(
    tmp_path, monkeypatch, options: dict[str, Any], last_use: str
) -> None:
    """What is begun for the next iteration, or only saved, does not lose the one that was trained."""
    config = small(workers=1, update_epochs=1, **options)
    synchronous = config.schedule != "async"
    make, made = runner.make_trainer, []
    monkeypatch.setattr(runner, "make_trainer", lambda c: made.append(make(c)) or made[-1])
    bootstrap, adv = EnvWorker.bootstrap_step, Actor.compute_adv

    def dies() -> None:
        trainer = made[-1]
        process = trainer.rollout if config.rollout_process else trainer.env.simulator
        ids = [process.process_id] if config.rollout_process else process.process_ids
        os.kill(ids[0], signal.SIGKILL)

    def begins(self: EnvWorker, step: Any, epoch: int, samples: Any = None) -> Any:
        if last_use == "prefetch" and (step.index, epoch) == (2, 0):
            dies()
        return bootstrap(self, step, epoch, samples)

    def trains(self: Actor, trajectories: Any) -> Any:
        found = adv(self, trajectories)
        if last_use == "answer" and self.updates == 2 * updates:
            dies()
        return found

    updates = 2  # of an iteration
    if synchronous:
        runner.run(config, tmp_path / "whole", 4)
    with monkeypatch.context() as patched:
        patched.setattr(EnvWorker, "bootstrap_step", begins)
        patched.setattr(Actor, "compute_adv", trains)
        if last_use == "prefetch":  # of an iteration that there is not
            assert runner.run(config, tmp_path / "two", 2).iterations == 2
            assert saved(tmp_path / "two")["environments"] is not None
        wanted = RolloutDiedError if config.rollout_process else SimulatorDiedError
        with pytest.raises(wanted, match="SIGKILL during"):
            runner.run(config, tmp_path / "run", 3, checkpoint_every=10 if last_use == "answer" else 1)
    done = 3 if last_use == "answer" else 2
    assert iterations_saved(tmp_path / "run") == done
    assert len(metrics.read(tmp_path / "run" / metrics.NAME)) == done
    assert saved(tmp_path / "run")["rollout" if config.rollout_process else "environments"] is None
    runner.run(config, tmp_path / "run", 4, resume=True)
    if synchronous:
        one, other = (saved(tmp_path / name) for name in ("run", "whole"))
        for name in ("actor", "rollout", "optimizer", "environments", "updates", "version"):
            assert equal_bits(one[name], other[name]), name
        text = [(tmp_path / name / record.NAME).read_text() for name in ("run", "whole")]
        assert text[0] == text[1]


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("rollout", "the memory of cpu is too small"),
        ("actor", "no memory for a micro batch of 4 samples"),
        pytest.param(
            "process", "the rollout's process: the memory of cpu is too small", marks=pytest.mark.slow
        ),
    ],
)
def test_memory_that_is_too_small_is_said_and_the_checkpoint_survives(
    tmp_path, monkeypatch, where: str, says: str
) -> None:
    """The allocation is real and really fails; torch says so of a processor in other words than of a GPU."""
    make, iterate, before = runner.make_trainer, runner.measured_iteration, served()
    made: list[Any] = []
    monkeypatch.setattr(runner, "make_trainer", lambda c: made.append(make(c)) or made[-1])
    config = small(rollout_process=where == "process")
    if where == "process":  # which imports this when it starts
        (tmp_path / "sitecustomize.py").write_text(IN_THE_PROCESS)
        monkeypatch.setenv("PYTHONPATH", python_path(tmp_path))

    def fails(*values: Any) -> Any:
        if values[-1] == 1 and where != "process":
            policy = getattr(made[-1], where).policy
            monkeypatch.setattr(policy, "_features", lambda *_: torch.empty(TOO_MANY))
        return iterate(*values)

    monkeypatch.setattr(runner, "measured_iteration", fails)
    with pytest.raises(DeviceError, match=says) as caught:
        runner.run(config, tmp_path / "run", 3, checkpoint_every=1)
    assert "Next: use" in str(caught.value)
    assert iterations_saved(tmp_path / "run") == 1
    assert served() <= before
    monkeypatch.undo()
    assert len(runner.run(config, tmp_path / "run", 2, resume=True).rows) == 1


def test_a_policy_that_does_not_fit_is_refused() -> None:
    """In a process whose address space is limited; seven billion parameters do not fit into it."""
    code = """
import resource, torch
from rlprof.workloads.embodied.errors import DeviceError
from rlprof.workloads.embodied.policies import make
from rlprof.workloads.embodied.policies.sizes import size_of
from tests.workloads.embodied.made import spec
now = next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmSize")) * 1024
resource.setrlimit(resource.RLIMIT_AS, (now + 2**29, now + 2**29))
try:
    make(size_of("openvla_oft", "h200"), spec(2, cameras=2, image=224))
except DeviceError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "openvla_oft does not fit into the memory of cpu" in done.stdout, done.stderr[-2000:]


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shape"), memory_of("cpu"):
        torch.ones(2, 3) @ torch.ones(2, 3)
    with pytest.raises(DeviceError, match="the memory of cpu"), memory_of("cpu"):
        raise MemoryError
    says = r"the memory of cuda:0 is too small \(CUDA out of memory. Tried to allocate 2 GiB\)"
    with pytest.raises(DeviceError, match=says), memory_of("cuda:0"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nMore")


@pytest.mark.parametrize(
    ("values", "kind", "says"),
    [
        ({"device": "gpu"}, ConfigurationError, "'gpu' is no device"),
        ({"device": "cuda:x"}, ConfigurationError, "'cuda:x' is no device"),
        ({"device": "cuda:99"}, DeviceError, "there is no device cuda:99: torch .* finds"),
        (
            {"schedule": "hybrid", "device": "cpu", "rollout_device": "cuda:99"},
            DeviceError,
            "there is no device cuda:99",
        ),
        ({"train_devices": "cpu,cuda:99"}, DeviceError, "there is no device cuda:99"),
    ],
)
def test_devices_that_are_not_there_are_refused_before_anything_starts(
    monkeypatch, values: dict[str, Any], kind: type[Exception], says: str
) -> None:
    from rlprof.workloads.embodied import build

    def started(*_: Any) -> None:
        pytest.fail("a simulator was started")

    monkeypatch.setattr(build, "make_simulator", started)
    config = configure("exact", **values)
    for call in (check_devices, runner.make_trainer):
        with pytest.raises(kind, match=says) as caught:
            call(config)
        assert isinstance(caught.value, WorkloadError)
        assert caught.value.hint


@pytest.mark.slow
@pytest.mark.parametrize(("how", "says"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGSTOP, "did not answer")])
def test_the_command_line_says_it_in_one_line_and_leaves_nothing(
    tmp_path, how: signal.Signals, says: str
) -> None:
    out = tmp_path / "run"
    arguments = ["run", "embodied", "--preset", "exact", "--workers", "2", "--timeout", "2", "--seed", "3"]
    arguments += ["--schedule", "hybrid-pipe", "--sm-activity", "off", "--checkpoint-every", "1"]
    code = "from rlprof.cli.main import run; run()"
    driver = subprocess.Popen(
        [sys.executable, "-c", code, *arguments, "--iterations", "1000", "--out", str(out)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        until = time.monotonic() + 120
        while not (out / checkpoint.NAME).exists() and time.monotonic() < until:
            time.sleep(0.1)
        processes = victimsby(driver.pid)
        assert len(processes) == 2
        os.kill(max(processes), how)
        _, errors = driver.communicate(timeout=120)
    finally:
        driver.kill()
        driver.wait()
    assert driver.returncode == 2
    line = errors.strip().splitlines()[-1]
    assert says in line
    assert "Next: " in line
    assert not any(Path(f"/proc/{p}").exists() for p in processes)
    done = iterations_saved(out)
    config = configure("exact", workers=2, timeout_s=2.0, seed=3, schedule="hybrid-pipe")
    assert len(runner.run(config, out, done + 1, resume=True).rows) == 1
