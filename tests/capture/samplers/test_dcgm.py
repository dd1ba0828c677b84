"""The DCGM sampler on answers in the form of ``dcgmi dmon``, given by a script in its place.

The form is that of the output which users show in https://github.com/NVIDIA/DCGM, issues 3, 8, 151 and 244.
"""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest

from rlprof.capture.samplers import dcgm
from rlprof.capture.samplers.base import MS, SamplerError
from rlprof.capture.samplers.dcgm import DcgmSampler, parse_row

#: Of `dcgmi dmon -e 1002 -d 100`: the heading comes again every so often, the first answer may be none.
RECORDED = """#Entity   SMACT
ID
GPU 1     0.000
GPU 0     N/A
GPU 1     0.518
GPU 0     0.992
#Entity   SMACT
ID
GPU 1     0.517
GPU 0     0.991
"""


def program(tmp_path: Path, text: str, *, pause: str = "sleep 0.02", then: str = "sleep 30") -> str:
    """A ``dcgmi`` that prints recorded lines."""
    path = tmp_path / "dcgmi"
    lines = "\n".join(f"echo '{line}'; {pause}" for line in text.splitlines())
    path.write_text(f'#!/bin/sh\necho "$@" > "{tmp_path}/arguments"\n{lines}\n{then}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("GPU 0     0.518", (0, 0.518)),
        ("    GPU 12   1.000  ", (12, 1.0)),
        ("GPU 0     N/A", (0, None)),
        ("GPU 0     N/W", (0, None)),
        ("GPU 7     0.571        ", (7, 0.571)),
        ("GPU-I 21  0.000", None),  # an instance of MIG is no GPU
        ("dmon was stopped due to receiving a signal", None),
        ("      Id", None),
        ("GPU 0     140737488355328.000", (0, None)),  # DCGM's blank value
        ("#Entity   SMACT", None),
        ("ID", None),
        ("", None),
        ("GPU-I 0   0.5", None),
    ],
)
def test_rows_are_read(line: str, row: object) -> None:
    assert parse_row(line) == row


def test_recorded_answers_become_samples(tmp_path: Path) -> None:
    sampler = DcgmSampler([0, 1], 100 * MS, program(tmp_path, RECORDED))
    devices = sampler.start()
    assert 1 in [d.device for d in devices]  # those that have answered when the first number comes
    got, limit = [], time.monotonic() + 40
    while sum(s.device == 0 for s in got) < 2 and time.monotonic() < limit:
        time.sleep(0.02)
        got += sampler.drain()
    sampler.stop()
    assert [round(float(s.active_frac[0]), 3) for s in got if s.device == 1] == [0.518, 0.517]
    assert [round(float(s.active_frac[0]), 3) for s in got if s.device == 0] == [0.992, 0.991]
    assert all(s.end_ns[0] > s.start_ns[0] for s in got)
    assert (tmp_path / "arguments").read_text().split() == ["dmon", "-e", "1002", "-d", "100", "-i", "0,1"]


def test_an_answer_that_is_no_number_is_a_gap(tmp_path: Path) -> None:
    text = "GPU 0     0.1\nGPU 0     N/A\nGPU 0     0.3\n"
    sampler = DcgmSampler(None, 100 * MS, program(tmp_path, text, pause="sleep 0.2"))
    sampler.start()
    got, limit = [], time.monotonic() + 40
    while not got and time.monotonic() < limit:
        time.sleep(0.02)
        got += sampler.drain()
    sampler.stop()
    losses = sampler.losses()
    assert losses.invalid == 1
    assert losses.gaps >= 1
    assert float(got[-1].active_frac[0]) == 0.3


@pytest.mark.parametrize("first", [True, False], ids=["while it starts", "later"])
def test_answers_that_nobody_read_for_a_while_are_all_taken(tmp_path: Path, first: bool) -> None:
    """Where the machine keeps the sampler waiting, several come at once; they share the time."""
    waits = f"[ {int(first)} = 1 ] || while [ ! -e '{tmp_path}/go' ]; do sleep 0.01; done"
    text = "GPU 0     0.1\nGPU 0     0.2\nGPU 0     N/A\nGPU 0     0.4\n"
    command = program(tmp_path, text, pause=waits, then=f"touch '{tmp_path}/said'; sleep 30")
    sampler = DcgmSampler(None, 100 * MS, command)
    lines = sampler._lines

    def held_up(wait_s: float) -> list[str]:
        limit = time.monotonic() + 40
        while not (tmp_path / "said").exists() and time.monotonic() < limit:
            time.sleep(0.01)
        return lines(wait_s)

    if first:
        sampler._lines = held_up  # type: ignore[method-assign]
    sampler.start()
    sampler._lines = held_up  # type: ignore[method-assign]
    (tmp_path / "go").touch()
    got = list(sampler.drain())
    assert [float(s.active_frac[0]) for s in got] == [0.2, 0.4]
    assert all(s.end_ns[0] > s.start_ns[0] for s in got)
    assert sampler.losses().invalid == 1
    sampler.stop()


def test_what_a_dcgmi_said_last_is_heard(tmp_path: Path) -> None:
    """It says a word and ends just after it was listened to, and before it is looked at."""
    sampler = DcgmSampler(None, 100 * MS, program(tmp_path, "GPU 0     0.1", then="sleep 30"))
    sampler.start()
    process, lines, looks = sampler._process, sampler._lines, [0]
    assert process is not None

    def last_words(wait_s: float) -> list[str]:
        heard = lines(wait_s)
        looks[0] += 1
        if looks[0] == 1:
            process.kill()
            process.wait()
        return [*heard, "GPU 0     0.3"] if looks[0] == 2 else heard

    sampler._lines = last_words  # type: ignore[method-assign]
    assert sampler.drain() == []
    (sample,) = sampler.drain()
    assert float(sample.active_frac[0]) == 0.3
    with pytest.raises(SamplerError, match="dcgmi ended with code"):
        sampler.drain()
    sampler.stop()


def test_a_dcgmi_that_ends_by_itself_is_no_silence(tmp_path: Path) -> None:
    sampler = DcgmSampler(None, 100 * MS, program(tmp_path, "GPU 0     0.1\nGPU 0     0.3", then="exit 3"))
    sampler.start()
    got, told, limit = [], "", time.monotonic() + 40
    while not told and time.monotonic() < limit:
        time.sleep(0.02)
        try:
            got += sampler.drain()
        except SamplerError as error:
            told = str(error)
    sampler.stop()
    assert "dcgmi ended with code 3" in told
    assert float(got[-1].active_frac[0]) == 0.3


def test_without_a_host_engine_its_words_are_passed_on(tmp_path: Path) -> None:
    said = "Error: unable to establish a connection to the specified host: localhost"
    sampler = DcgmSampler(None, 100 * MS, program(tmp_path, said, then="exit 1"))
    with pytest.raises(SamplerError, match="unable to establish a connection"):
        sampler.start()


def test_an_error_after_the_heading_is_passed_on_and_not_the_heading(tmp_path: Path) -> None:
    said = "# Entity  SMACT\n      Id\nError setting watches. Result: Profiling is not supported for this GPU"
    sampler = DcgmSampler(None, 100 * MS, program(tmp_path, said, then="exit 1"))
    with pytest.raises(SamplerError, match="gives no SM activity: Error setting watches"):
        sampler.start()


def test_gpus_that_never_have_a_number_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen where SM activity is asked for alone: the sampler does not start, so that `auto` goes on."""
    monkeypatch.setattr(dcgm, "START_S", 0.5)
    text = "#Entity   SMACT\nID\n" + "GPU 0     N/A\nGPU 1     N/A\n" * 3
    sampler = DcgmSampler(None, 100 * MS, program(tmp_path, text))
    with pytest.raises(SamplerError, match="only N/A for GPU 0, 1"):
        sampler.start()


def test_without_dcgm_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SamplerError, match="DCGM is not installed"):
        DcgmSampler(None, 100 * MS).start()
