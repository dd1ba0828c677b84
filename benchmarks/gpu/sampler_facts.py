"""What the samplers do on a GPU: rates, losses, clock, load of the sampler itself, failures.

    python -m benchmarks.gpu.sampler_facts --out FOLDER [--soak 60] [--only clock,rates]

Writes `sampler_facts.json` after every step, so that a run that is cut short leaves what it had.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.common import (
    ROOT,
    Program,
    SamplerProcess,
    activity,
    environment,
    machine,
    sampling,
    save,
)

Facts = dict[str, Any]

COUNTERS = """
import json, os, resource, sys, time
import numpy as np
from rlprof.capture.samplers.cupti import METRIC
from rlprof.capture.samplers.pm_counters import PmCounters
def rss(): return int(open('/proc/self/statm').read().split()[1]) * 4096
from rlprof.capture.samplers.gpu_clock import load_driver
out = {'rss_start': rss()}
load_driver()  # no context
extra = json.loads(sys.argv[1])
c = PmCounters(0, [METRIC, *extra], 100_000, 64 << 20, 2000)
t = time.perf_counter(); out['chip'] = c.open(); out['open_s'] = time.perf_counter() - t
out['rss_open'] = rss(); out['image_bytes_per_slot'] = len(c._image) / c.slots
api = c._api
passes = []
for _ in range(12):
    time.sleep(0.05)
    t0 = time.perf_counter(); api.pm_sampling_counter_data_image_initialize(c._init.ptr)
    t1 = time.perf_counter(); api.pm_sampling_decode_data(c._decode.ptr)
    t2 = time.perf_counter(); api.pm_sampling_get_counter_data_info(c._info.ptr)
    n = c._info.num_completed_samples
    s, sp = c._sample, c._sample.ptr
    t3 = time.perf_counter()
    for i in range(n):
        s.sample_index = i; api.pm_sampling_counter_data_get_sample_info(sp)
    t4 = time.perf_counter()
    e, ep = c._evaluate, c._evaluate.ptr
    for i in range(n):
        e.range_index = i; api.profiler_host_evaluate_to_gpu_values(ep)
    t5 = time.perf_counter()
    state = c._info.num_populated_samples, int(c._decode.decode_stop_reason), int(c._decode.overflow)
    passes.append([n, *state, *[round(x * 1e6, 1) for x in (t1 - t0, t2 - t1, t4 - t3, t5 - t4)]])
out['columns'] = 'completed, populated, stop reason, overflow, us to: initialise, decode, info, evaluate'
out['passes'] = passes
def rows(d): return [[int(a), int(b), v.tolist()] for a, b, v in zip(d.start_ns, d.end_ns, d.values)]
out['first_rows'] = rows(c.decode())[:3]
out['after_stop'] = rows(c.stop())[-4:]
c.close(); out['rss_end'] = rss(); out['peak'] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps(out))
"""

REFERENCE = """
import json, time
from rlprof.capture.samplers.cupti_library import load
load()
from cupti import pm_sampling
from rlprof.capture.samplers.cupti import METRIC
from rlprof.capture.samplers.gpu_clock import load_driver
load_driver()
c = pm_sampling.Collector(0)
out = {}
c.enable(); out['enabled'] = True
c.configure(metrics=[METRIC], hardware_buffer_size=64 << 20, sampling_interval=100_000)
out['configured'] = True
c.start(); time.sleep(0.05); out['started'] = True
t = time.perf_counter(); d = c.decode(2000); out['decode_s'] = time.perf_counter() - t
t = time.perf_counter(); out['rows'] = [[s.start_timestamp, s.end_timestamp, s.metric_values] for s in d][:3]
out['evaluate_s_per_sample'] = (time.perf_counter() - t) / max(1, len(d)); out['n'] = len(d)
c.stop(); c.disable()
print(json.dumps(out))
"""

CLOCK = """
import json, time
import numpy as np
from rlprof.capture.samplers.gpu_clock import GpuClock, load_driver, describe
from rlprof.capture.samplers.clock_map import DeviceClockMap, knot
d = load_driver(); t = time.perf_counter(); c = GpuClock(d, 0); out = {'context_s': time.perf_counter() - t}
out['device'] = vars(describe(d, 0))
out['device'].pop('uuid')
r = c.burst(500)
w = np.array([x.after_ns - x.before_ns for x in r]); g = np.array([x.device_ns for x in r])
out['brackets_ns'] = [int(q) for q in np.percentile(w, [0, 1, 10, 50, 90, 99, 100])]
out['resolution_gcd_ns'] = int(np.gcd.reduce(np.diff(g)))
out['bounds_of_500_ns'] = knot(r[50:]).width_ns
out['gpu_minus_utc_s'] = (r[-1].device_ns - time.time_ns()) / 1e9
m = DeviceClockMap()
for _ in range(10):
    m.add(knot(c.burst(16))); time.sleep(0.5)
out['map_5s'] = m.facts()
c.close(); print(json.dumps(out))
"""


def python(code: str, *arguments: str, timeout_s: float = 60) -> Facts:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip
    try:
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    except (ValueError, IndexError):
        return {"code": done.returncode, "stdout": done.stdout[-500:], "stderr": done.stderr[-2500:]}


class Steps:
    """The steps, in order; each leaves what it found in `facts`."""

    def __init__(self, out: Path, soak_s: float, scratch: Path) -> None:
        self.out, self.soak_s, self.scratch = out, soak_s, scratch
        self.facts: Facts = {"command": "python -m benchmarks.gpu.sampler_facts", "machine": machine()}
        self._program: Program | None = None
        self._n = 0

    @property
    def program(self) -> Program:
        if self._program is None or self._program.process.poll() is not None:
            self._program = Program()
        return self._program

    def folder(self) -> Path:
        self._n += 1
        return self.scratch / f"{self._n}.parts"

    def counters(self) -> Facts:
        """Without a CUDA context: what opening and decoding cost."""
        more = ["sm__warps_active.avg.pct_of_peak_sustained_active"]
        return {"one": python(COUNTERS, "[]"), "two": python(COUNTERS, json.dumps(more))}

    def reference(self) -> Facts:
        """cupti-python's own collector, for comparison."""
        return python(REFERENCE)

    def clock(self) -> Facts:
        return python(CLOCK)

    def probe(self) -> Facts:
        from rlprof.capture.samplers.choose import choose

        began = time.monotonic()
        choice = choose(10_000)
        return {"text": choice.text(), "devices": list(choice.devices), "took_s": time.monotonic() - began}

    def edges(self) -> Facts:
        """Do the samples lie where the program saw its products?"""
        folder = self.folder()
        program = self.program
        sampler = SamplerProcess(folder, "cupti", 50_000)
        seen = program.ask("edges 100")["edges"]
        time.sleep(0.3)
        facts = sampler.stop()
        table = activity(folder)
        start, end = (table[c].to_numpy() for c in ("start_ns", "end_ns"))
        active = table["active_frac"].to_numpy()
        first, last = [], []
        for before, after in seen[5:]:
            at = np.flatnonzero((end > before - 2_000_000) & (start < after + 2_000_000) & (active > 0.5))
            if len(at):
                first.append(int(start[at[0]] - before))
                last.append(int(end[at[-1]] - after))
        quantiles = [0, 10, 50, 90, 100]
        return {
            "sampler": facts,
            "products": len(seen) - 5,
            "found": len(first),
            "first_active_sample_minus_launch_ns": [int(q) for q in np.percentile(first, quantiles)],
            "last_active_sample_minus_synchronised_ns": [int(q) for q in np.percentile(last, quantiles)],
        }

    def rates(self) -> Facts:
        found = {}
        for rate, seconds in ((1_000, 3), (10_000, 3), (25_000, 3)):
            folder = self.folder()
            with sampling(folder, "cupti", rate) as sampler:
                load = self.program.ask(f"load {seconds}")
                found[str(rate)] = {"sampler": sampler.stop(), "load": load, **self.quality(folder)}
        return found

    def quality(self, folder: Path) -> Facts:
        table = activity(folder)
        start, end = (table[c].to_numpy() for c in ("start_ns", "end_ns"))
        active, length = table["active_frac"].to_numpy(), None
        length = end - start
        return {
            "rows": len(start),
            "length_ns": [int(q) for q in np.percentile(length, [0, 1, 50, 99, 100])],
            "largest_step_between_samples_ns": int((start[1:] - end[:-1]).max()),
            "smallest_step_between_samples_ns": int((start[1:] - end[:-1]).min()),
            "mean_active": float(np.average(active, weights=length)),
            "quantiles_active": [round(float(q), 4) for q in np.percentile(active, [0, 10, 50, 90, 100])],
        }

    def soak(self) -> Facts:
        folder, memory = self.folder(), []
        with sampling(folder, "cupti", 10_000) as sampler:
            self.program.tell(f"load {self.soak_s}")
            limit = time.monotonic() + self.soak_s
            while time.monotonic() < limit:
                pages = int(Path(f"/proc/{sampler.process.pid}/statm").read_text().split()[1])
                memory.append(pages * os.sysconf("SC_PAGE_SIZE"))
                time.sleep(min(5.0, self.soak_s / 10))
            load = self.program.answer(self.soak_s + 60)
            facts = sampler.stop()
        return {"sampler": facts, "resident_bytes": memory, "load": load, **self.quality(folder)}

    def second(self) -> Facts:
        """A second sampler of the same GPU, and NVML's GPM beside CUPTI."""
        first, nvml = self.folder(), self.folder()
        with sampling(first, "cupti", 1_000) as sampler:
            other = SamplerProcess(self.folder(), "cupti", 1_000)
            self.program.tell("load 3")
            gpm = SamplerProcess(nvml, "nvml", 10)
            load = self.program.answer()
            both = gpm.stop()
            table = activity(nvml) if gpm.ready else None
            values = [] if table is None else [round(v, 3) for v in table["active_frac"].to_pylist()]
            return {
                "second": other.stop(),
                "nvml_beside": both,
                "nvml_values": values,
                "load": load,
                "first": sampler.stop("term"),
                "quality": self.quality(first),
            }

    def nvml(self) -> Facts:
        """GPM alone, against CUPTI's mean of the same load a moment later."""
        folder, again = self.folder(), self.folder()
        with sampling(folder, "nvml", 10) as sampler:
            self.program.ask("load 3")
            facts = sampler.stop()
        with sampling(again, "cupti", 10_000):
            self.program.ask("load 3")
        return {"sampler": facts, "nvml": self.quality(folder), "cupti": self.quality(again)}

    def killed(self) -> Facts:
        folder = self.folder()
        program = Program()
        with sampling(folder, "cupti", 10_000) as sampler:
            program.tell("load 20")
            time.sleep(2)
            program.process.send_signal(signal.SIGKILL)
            code = program.process.wait()
            at = time.monotonic_ns()
            time.sleep(1.5)
            facts = sampler.stop()
        end = activity(folder)["end_ns"].to_numpy()
        return {"program": code, "sampler": facts, "after_kill_s": float(end.max() - at) / 1e9}

    def stalled(self) -> Facts:
        """The sampler is kept from running for seconds: its buffer overflows."""
        folder = self.folder()
        with sampling(folder, "cupti", 10_000) as sampler:
            time.sleep(1)
            sampler.process.send_signal(signal.SIGSTOP)
            time.sleep(5)
            sampler.process.send_signal(signal.SIGCONT)
            time.sleep(2)
            facts = sampler.stop()
        return {"sampler": facts, **self.quality(folder)}

    def torch_profiler(self) -> Facts:
        alone = self.program.ask("profile 1000")
        with sampling(self.folder(), "cupti", 10_000):
            beside = self.program.ask("profile 1000")
        return {"alone": alone, "beside_sampling": beside}

    def metrics(self) -> Facts:
        more = "sm__warps_active.avg.pct_of_peak_sustained_active"
        with sampling(self.folder(), "cupti", 10_000, "--metrics", more) as sampler:
            time.sleep(1)
            good = sampler.stop()
        bad = SamplerProcess(self.folder(), "cupti", 10_000, "--metrics", "no__such_metric.avg")
        absent = SamplerProcess(self.folder(), "cupti", 10_000, "--devices", "7")
        return {"two": good, "unknown": bad.stop(), "no_such_gpu": absent.stop()}

    def all(self) -> dict[str, Callable[[], Facts]]:
        names = "counters reference clock edges rates second killed torch_profiler soak stalled"
        names += " metrics probe nvml"
        return {name: getattr(self, name) for name in names.split()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--soak", type=float, default=60)
    parser.add_argument("--only", default="")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which no further step starts")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        steps = Steps(options.out, options.soak, Path(scratch))
        wanted = set(options.only.split(",")) if options.only else set(steps.all())
        for name, step in steps.all().items():
            if name not in wanted or time.monotonic() - began > options.limit:
                continue
            at = time.monotonic()
            try:
                steps.facts[name] = step()
            except Exception as error:
                steps.facts[name] = {
                    "error": f"{type(error).__name__}: {error}",
                    "at": traceback.format_exc()[-1500:],
                }
            steps.facts[name]["step_s"] = round(time.monotonic() - at, 1)
            print(name, json.dumps(steps.facts[name])[:700], flush=True)
            save(options.out / "sampler_facts.json", steps.facts)
            if name == "edges" and "error" in steps.facts[name]:
                wanted = set()  # nothing else can work
        if steps._program is not None:
            steps._program.quit(10)


if __name__ == "__main__":
    main()
