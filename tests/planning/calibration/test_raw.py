"""The file of raw measurements: written line by line, continued, refused where it is broken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.errors import OutputError, UnreadableError
from rlprof.planning.calibration.errors import CalibrationError
from rlprof.planning.calibration.raw import Measurement, Point, RawWriter, read_raw
from tests.planning.calibration.made import MACHINE

ONE = Measurement("copy", {"bytes": 64}, 0, (1.0, 2.0), {}, None, "2026-01-02")
TWO = Measurement("gemm", {"rows": 1}, 1, (0.5,), {"prefill_s": (0.1,)}, 7, "2026-01-02")
FAILED = Measurement("gemm", {"rows": 2}, 0, failed="OutOfMemoryError: too large")


def written(path: Path, *measurements: Measurement) -> Path:
    with RawWriter(path, MACHINE) as writer:
        for m in measurements:
            writer.add(m)
    return path


times = st.floats(1e-9, 1e6)
keys = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3)
measurements = st.builds(
    Measurement,
    st.sampled_from(["copy", "gemm", "training"]),
    keys,
    st.integers(0, 9),
    st.lists(times, min_size=1, max_size=3).map(tuple),
    st.dictionaries(
        st.text(min_size=1, max_size=4), st.lists(times, min_size=1, max_size=2).map(tuple), max_size=2
    ),
    st.none() | st.integers(0, 2**50),
    st.just("2026-01-02"),
)


@settings(max_examples=20, deadline=None)
@given(st.lists(measurements, max_size=3))
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, found: list[Measurement]) -> None:
    path = written(tmp_path_factory.mktemp("raw") / "raw.jsonl", *found)
    assert read_raw(path).measurements == tuple(found)
    assert read_raw(path).machine == MACHINE


def test_a_file_is_continued(tmp_path: Path) -> None:
    path = written(tmp_path / "raw.jsonl", ONE)
    assert read_raw(written(path, TWO, FAILED)).measurements == (ONE, TWO, FAILED)
    assert read_raw(path).of("gemm") == (TWO,)


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_line_cut_off_by_a_death_is_dropped_and_the_file_continued(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path / "raw.jsonl", ONE, TWO)
    path.write_bytes(path.read_bytes()[:-cut])
    assert read_raw(path).measurements == (ONE,)
    assert read_raw(written(path, TWO)).measurements == (ONE, TWO)


def test_the_order_of_keys_makes_no_other_point() -> None:
    assert Point("gemm", {"a": 1, "b": 2}) == Point("gemm", {"b": 2, "a": 1})
    assert (
        len(
            {
                Point("gemm", {"a": 1, "b": 2}),
                Point("gemm", {"b": 2, "a": 1}),
                Point("copy", {"a": 1, "b": 2}),
            }
        )
        == 2
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("not json", "line 3 is no JSON"),
        ('{"kind":"copy","key":{},"round":0,"seconds":[-1.0]}', "times"),
        ('{"kind":"copy","key":{},"round":0,"seconds":["1"]}', "times"),
        ('{"kind":"copy","key":{},"round":0}', "times"),
        ('{"kind":"copy","key":{},"round":0,"seconds":[0.0]}', "times"),
        ('{"kind":"copy","colour":1}', "colour"),
        ("[]", "line 3"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = written(tmp_path / "raw.jsonl", ONE)
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(CalibrationError, match=said):
        read_raw(path)


def test_what_is_no_raw_file_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text('{"format":"something else"}\n')
    with pytest.raises(CalibrationError, match="no file of raw measurements"):
        RawWriter(path, MACHINE)
    assert path.read_text() == '{"format":"something else"}\n'
    path.write_text("")
    with pytest.raises(CalibrationError, match="no measurements"):
        read_raw(path)
    with pytest.raises(UnreadableError):
        read_raw(tmp_path / "lost")
    with pytest.raises(OutputError):
        RawWriter(tmp_path / "no folder" / "raw.jsonl", MACHINE)


@pytest.mark.parametrize("other", [{"name": "Other GPU"}, {"dtype": "float16"}, {"versions": {"torch": "3"}}])
def test_measurements_of_two_machines_are_not_mixed(tmp_path: Path, other: dict[str, object]) -> None:
    path = written(tmp_path / "raw.jsonl", ONE)
    before = path.read_bytes()
    with pytest.raises(CalibrationError, match="Invented GPU"):
        RawWriter(path, replace(MACHINE, **other))  # type: ignore[arg-type]
    assert path.read_bytes() == before


def test_a_later_version_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "raw.jsonl", ONE)
    path.write_text(path.read_text().replace('"version":1', '"version":2'))
    with pytest.raises(CalibrationError, match="version 2"):
        read_raw(path)
