"""Recording kernels: refusals here, a real GPU where there is one."""

from __future__ import annotations

import subprocess
import sys
import types
from enum import IntEnum
from types import SimpleNamespace

import pytest

import rlprof
from rlprof.capture import kernels
from rlprof.capture.kernels import KernelsError, short_name, start_kernels
from rlprof.capture.part_reader import read_parts
from tests.conftest import python_path


class Kind(IntEnum):
    MEMCPY = 1
    MEMSET = 2
    CONCURRENT_KERNEL = 10


class FakeCupti(types.ModuleType):
    """Gives the records it was made with when it is flushed, or refuses."""

    ActivityKind = Kind
    cuptiError = RuntimeError

    def __init__(self, records=(), refuses=False):
        super().__init__("cupti.cupti")
        self.records, self.refuses = records, refuses

    def get_timestamp(self):
        import time

        return time.monotonic_ns() + 10**18  # a clock of its own

    def activity_register_callbacks(self, _requested, completed):
        if self.refuses:
            raise RuntimeError("MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")
        self.completed = completed

    def activity_enable(self, kind):
        pass

    activity_disable = activity_enable

    def activity_flush_all(self, _flag):
        self.completed(self.records)


@pytest.fixture
def fake(monkeypatch):
    """Install a fake cupti-python and hide torch."""

    def install(**how):
        module = FakeCupti(**how)
        monkeypatch.setattr(kernels.cupti_library, "load", lambda counters: module)
        found = {"cupti": object(), "torch": None}
        monkeypatch.setattr(kernels.importlib.util, "find_spec", found.get)
        return module

    return install


def record(kind, start, end, **more):
    base = {"kind": kind, "start": start, "end": end, "device_id": 0, "stream_id": 7, "correlation_id": 3}
    return SimpleNamespace(**base, **more)


def test_cupti_records_become_tables_on_the_hosts_clock(tmp_path, fake):
    import time

    now = time.monotonic_ns()
    theirs = now + 10**18
    fake(
        records=[
            record(
                Kind.CONCURRENT_KERNEL, theirs, theirs + 500,
                name="void a::gemm<1>(int)", grid_x=2, grid_y=3, grid_z=1,
            ),
            record(Kind.MEMCPY, theirs + 600, theirs + 700, copy_kind=1, bytes=64),
            record(Kind.MEMSET, theirs + 800, theirs + 900, bytes=8),
        ]
    )  # fmt: skip
    assert start_kernels(tmp_path).stop() == ()
    (part,) = read_parts(tmp_path)
    row = part.tables["kernels"].to_pylist()[0]
    assert (row["name"], row["full_name"], row["blocks"]) == ("gemm", "void a::gemm<1>(int)", 6)
    assert row["start_ns"] == pytest.approx(now, abs=2_000_000)
    assert row["end_ns"] - row["start_ns"] == pytest.approx(500, abs=2)
    kinds = [(r["kind"], r["size_bytes"]) for r in part.tables["copies"].to_pylist()]
    assert kinds == [("HtoD", 64), ("memset", 8)]


def test_no_kernel_is_said(tmp_path, fake):
    fake()
    assert start_kernels(tmp_path).stop() == ("CUPTI recorded no kernel",)


def test_refused_while_another_profiler_holds_cupti(tmp_path, fake):
    fake(refuses=True)
    with pytest.raises(KernelsError, match="another profiler may hold it"):
        start_kernels(tmp_path)


@pytest.mark.parametrize("variable", kernels.INJECTION)
def test_refused_under_nsys(tmp_path, monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    with pytest.raises(KernelsError, match="records kernels in this process already"):
        start_kernels(tmp_path)


def test_refused_where_nothing_can_record_them(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(KernelsError, match="needs torch or cupti-python"):
        start_kernels(tmp_path)


def test_a_session_goes_on_without_kernels_and_says_why(tmp_path):
    script = f"""
import rlprof
with rlprof.capture({str(tmp_path / "run.rlprof")!r}, backend="none", kernels=True):
    with rlprof.annotate("iteration"):
        pass
"""
    environment = {"NSYS_PROFILING_SESSION_ID": "1", "PATH": "/usr/bin:/bin", "PYTHONPATH": python_path()}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
    trace = rlprof.read(tmp_path / "run.rlprof")
    assert any("kernels were not recorded" in n for n in trace.notes)
    assert trace.ranges.height == 1


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::elementwise_kernel<128, 2>(int, float*)", "elementwise_kernel"),
        ("gemm", "gemm"),
        ("void (anonymous namespace)::softmax<float>(float*)", "softmax"),
        ("nvjet_sm90_tst_192x192", "nvjet_sm90_tst_192x192"),
        ("", ""),
    ],
)
def test_short_names(name, short):
    assert short_name(name) == short


@pytest.mark.gpu
def test_torch_kernels_on_a_gpu(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU here")
    x = torch.zeros(1 << 20, device="cuda")
    recorder = start_kernels(tmp_path)
    for _ in range(10):
        x.add_(1)
    assert recorder.stop() == ()
    (part,) = read_parts(tmp_path)
    assert part.tables["kernels"].num_rows >= 10


#: A program without torch: ten kernels, a copy and a memset through the driver's library alone.
WITHOUT_TORCH = """
import ctypes, sys
sys.modules["torch"] = None
import rlprof
from rlprof.capture.samplers.gpu_clock import GpuClock, load_driver
driver = load_driver()
with rlprof.capture(sys.argv[1], backend="none", kernels=True):
    with rlprof.annotate("work"):
        clock = GpuClock(driver, 0)
        looks = [clock.look(10**9) for _ in range(10)]  # the first takes long: CUPTI sets itself up
        assert None not in looks
        place, size = ctypes.c_uint64(), 1 << 20
        assert driver.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(size)) == 0
        assert driver.cuMemsetD8_v2(place, ctypes.c_ubyte(1), ctypes.c_size_t(size)) == 0
        assert driver.cuMemcpyHtoD_v2(place, ctypes.create_string_buffer(4096), ctypes.c_size_t(4096)) == 0
        assert driver.cuCtxSynchronize() == 0
assert "torch" not in [m.partition(".")[0] for m, found in sys.modules.items() if found]
"""


def rows(path, table):
    """A table of a capture, without polars."""
    import io
    import zipfile

    import pyarrow.parquet as pq

    with zipfile.ZipFile(path) as archive:
        return pq.read_table(io.BytesIO(archive.read(f"{table}.parquet"))).to_pylist()


@pytest.mark.gpu
def test_cupti_kernels_on_a_gpu_without_torch(tmp_path):
    from rlprof.capture.samplers.choose import obstacle

    if (reason := obstacle("cupti")) is not None and "administrators" not in reason:
        pytest.skip(f"cupti: {reason}")
    out = tmp_path / "run.rlprof"
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(out)],
        capture_output=True, text=True, check=False, timeout=90,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (work,) = [r for r in rows(out, "ranges") if r["name"] == "work"]
    kernels = rows(out, "kernels")
    assert [(k["name"], k["blocks"]) for k in kernels] == [("look", 1)] * 10
    copies = [(c["kind"], c["size_bytes"]) for c in rows(out, "copies")]
    assert {("memset", 1 << 20), ("HtoD", 4096)} <= set(copies)
    # the clocks agree: what the range started and waited for lies inside it
    slack_ns = 200_000
    assert all(k["start_ns"] > work["start_ns"] - slack_ns for k in kernels)
    assert all(k["end_ns"] < work["end_ns"] + slack_ns for k in kernels)
