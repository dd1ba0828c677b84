"""Looks at the machine: real accounts of this one, made ones of others, a GPU that NVML tells of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from random import random
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.rl_programs import make
from rlprof.analysis.machine_state import MachineState
from rlprof.analysis.trials import Rule, measure_paired
from rlprof.overlap.optimize import Options, optimize
from rlprof.overlap.optimize.log import DecisionLog
from rlprof.overlap.optimize.machine import Look, Machine, Sides
from rlprof.overlap.optimize.simulated import SimulatedWorkload
from rlprof.overlap.optimize.store import Store
from rlprof.unavailable import Unavailable

CORE = min(os.sched_getaffinity(0))
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def stat(root: Path, busy: int, stolen: int = 0) -> None:
    """Accounts of one core in ticks, and of one that this process may not use."""
    (root / "proc").mkdir(parents=True, exist_ok=True)
    other = f"cpu{CORE + 4096} 9999 0 0 0 0 0 0 0 0 0"
    text = f"cpu 1 1 1 1 1 1 1 1 1 1\ncpu{CORE} {busy} 0 0 500 7 0 0 {stolen} 0 0\n{other}\nintr 1 2\n"
    (root / "proc/stat").write_text(text)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_work_of_others_is_what_is_not_this_programs(tmp_path: Path) -> None:
    clock = Clock()
    stat(tmp_path, 1000)
    machine = Machine(root=tmp_path, clock=clock)
    before = machine.look()
    clock.now += 10
    stat(tmp_path, 1000 + round(4 / TICK_S), stolen=round(2 / TICK_S))
    found = machine.since(before)
    assert found.wall_s == 10
    # this process did nothing to speak of; a hypervisor's share counts
    assert found.others_cores == pytest.approx(0.6, abs=0.05)
    assert (found.core_mhz, found.throttled, found.sm_clock_mhz) == (None, None, None)


def test_without_accounts_nothing_is_said_of_others(tmp_path: Path) -> None:
    machine = Machine(root=tmp_path)
    found = machine.since(machine.look())
    assert found.others_cores is None
    assert found.own_cores is not None


def test_clocks_and_throttling_are_read_where_they_are(tmp_path: Path) -> None:
    stat(tmp_path, 0)
    cpu = tmp_path / f"sys/devices/system/cpu/cpu{CORE}"
    for name, text in (
        ("cpufreq/scaling_cur_freq", "3000000\n"),
        ("thermal_throttle/core_throttle_count", "4"),
    ):
        (cpu / name).parent.mkdir(parents=True)
        (cpu / name).write_text(text)
    machine = Machine(root=tmp_path)
    before = machine.look()
    (cpu / "thermal_throttle/core_throttle_count").write_text("6")
    found = machine.since(before)
    assert (found.core_mhz, found.throttled) == (3000, 2)


def test_processes_that_this_one_started_are_its_own() -> None:
    """A real one keeps a core busy; its time is in this program's, and not in the others'."""
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        machine = Machine()
        before = machine.look()
        if busy.pid not in before.own_s:
            pytest.skip("this kernel does not tell the children of a process")
        time.sleep(0.5)
        used_s = machine.look().own_s[busy.pid] - before.own_s[busy.pid]
        found = machine.since(before)
        assert used_s > 0
        assert found.own_cores is not None
        assert found.own_cores >= 0.9 * used_s / found.wall_s
    finally:
        busy.kill()
        busy.wait()


def test_a_look_costs_little() -> None:
    machine = Machine()
    machine.look()
    began = time.process_time()
    for _ in range(20):
        machine.since(machine.look())
    assert (time.process_time() - began) / 20 < 0.01


class Nvml:
    """A GPU whose power cannot be asked."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def __init__(self, *, there: bool = True) -> None:
        self._there = there

    def nvmlInit(self) -> None:
        if not self._there:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return {"GPU-a": 7}[uuid]

    def nvmlDeviceGetClockInfo(self, handle: int, which: int) -> int:
        return 1000 * which + handle

    def nvmlDeviceGetTemperature(self, handle: int, which: int) -> int:
        return 61

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return 4


@pytest.mark.parametrize("gpu", [7, "GPU-a"])
def test_a_gpu_tells_what_it_can(gpu: int | str) -> None:
    machine = Machine(gpu, nvml=Nvml())
    assert machine.gpu_reason is None
    found = machine.since(machine.look())
    assert (found.sm_clock_mhz, found.memory_clock_mhz, found.temperature_c) == (1007, 2007, 61)
    assert (found.slowed_by, found.power_w) == (4, None)


def test_why_nothing_is_known_of_a_gpu() -> None:
    assert Machine(0, nvml=Nvml(there=False)).gpu_reason == "NVML: Driver Not Loaded"
    machine = Machine(Unavailable("it is a part of one"))
    assert machine.gpu_reason == "it is a part of one"
    assert machine.since(machine.look()).sm_clock_mhz is None
    assert Machine().gpu_reason is None


class Loaded:
    """A machine on which others work whenever the reference runs."""

    def __init__(self) -> None:
        self.beside = iter([0.9, 0.1])

    def look(self) -> Look:
        return Look(0.0, 0.0, {}, None)

    def since(self, before: Look) -> MachineState:
        return MachineState(1.0, 2, own_cores=1.5, others_cores=next(self.beside))


def test_a_comparison_is_judged_by_the_states_of_its_sides() -> None:
    machine: Any = Loaded()
    sides = Sides(machine)
    found = measure_paired(sides.reference(lambda: 2.0), sides.candidate(lambda: 1.0), Rule(most_pairs=1))
    (said,) = sides.judged(found).doubts
    assert "0.90 of 2 cores busy beside the reference" in said
    assert sides.to_dict()["candidate"][0]["others_cores"] == 0.1
    assert sides.summary()["reference"]["trials"] == 1
    # nobody looks
    assert Sides(None).judged(found).doubts == ()
    assert Sides(None).to_dict() == Sides(None).summary() == {}


def test_states_are_kept_and_doubts_are_told(tmp_path: Path) -> None:
    program = make(1)
    here = SimulatedWorkload(program.graph, program.model)
    always = SimpleNamespace(
        look=lambda: Look(0.0, 0.0, {}, None),
        since=lambda _: MachineState(1.0, 2, own_cores=1.9 + random() / 100, others_cores=0.8),
    )
    here.machine = always  # type: ignore[attr-defined]
    store, log = tmp_path / "measurements.jsonl", DecisionLog()
    found = optimize(here, Options(), log=log, store=Store(store))
    assert found.total is not None
    assert found.total.doubts == ("others kept 0.80 of 2 cores busy beside both",)
    said = log.text()
    assert "doubtful: others kept 0.80 of 2 cores busy beside both" in said
    kept = [json.loads(line) for line in store.read_text().splitlines()]
    for entry in kept:
        if entry["kind"] in ("local", "complete"):
            pairs, states = entry["value"]["pairs"], entry["value"]["machine"]
            assert len(states["reference"]) == len(states["candidate"]) == len(pairs)
    assert {e["kind"] for e in kept} >= {"local", "complete"}
    # and are there again when measurements are
    told = DecisionLog()
    again = optimize(SimulatedWorkload(program.graph, program.model), Options(), log=told, store=Store(store))
    first, second = (
        [(e["steps"], e["machine"], e["result"]["doubts"]) for e in one.entries if e["what"] == "compared"]
        for one in (log, told)
    )
    assert first == second
    assert first[0][1]["reference"]["others_cores"] == 0.8
    assert again.total is not None
    assert again.total.doubts == found.total.doubts
