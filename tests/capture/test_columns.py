"""Arrow arrays without pandas."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlprof.capture.columns import arrow_array, constant

KINDS = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.uint32(): st.integers(0, 2**32 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(st.characters(codec="utf-8"), max_size=8),
    pa.dictionary(pa.int32(), pa.string()): st.sampled_from(["a", "b", "päth"]),
}


@pytest.mark.parametrize("kind", KINDS, ids=str)
@given(data=st.data())
def test_equals_what_pyarrow_makes(kind, data):
    values = data.draw(st.lists(st.none() | KINDS[kind], max_size=20))
    found = arrow_array(values, kind)
    found.validate(full=True)
    assert found.type == kind
    assert found.to_pylist() == values


@pytest.mark.parametrize("dtype", ["int64", "int32", "float64", "float32"])
def test_arrays_of_numpy(dtype):
    values = np.arange(5).astype(dtype)
    assert arrow_array(values, pa.int64()).to_pylist() == [0, 1, 2, 3, 4]
    assert arrow_array(values, pa.float64()).to_pylist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_one_column_of_several():
    values = np.arange(12.0).reshape(4, 3)[:, 1]
    assert arrow_array(values, pa.float64()).to_pylist() == [1.0, 4.0, 7.0, 10.0]


@given(st.text(st.characters(codec="utf-8"), max_size=5), st.integers(0, 20))
def test_constant(text, size):
    assert constant(text, size).to_pylist() == [text] * size


def test_a_value_that_does_not_fit():
    with pytest.raises((TypeError, OverflowError)):
        arrow_array(["x"], pa.int64())
    with pytest.raises(OverflowError):
        arrow_array([2**40], pa.int32())


def test_lone_surrogates_are_replaced():
    assert arrow_array(["a\ud800"], pa.string()).to_pylist() == ["a?"]


def test_pandas_is_not_imported(tmp_path):
    script = """
import sys, numpy as np, pyarrow as pa, rlprof.capture.recorder as r
from rlprof.capture.columns import arrow_array
for dtype in ("int64", "int32", "float64", "float32"):
    for kind in (pa.int64(), pa.int32(), pa.float64()):
        arrow_array(np.zeros(3, dtype), kind)
from pathlib import Path
import rlprof
r.start(Path(sys.argv[1]))
with rlprof.annotate("a"):
    r.current.flush()
r.stop()
assert "pyarrow" in sys.modules and "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
