"""What `Trace.table` gives back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlprof.trace.tables import SCHEMAS, TABLE_NAMES, conform, empty
from rlprof.trace.trace import Loaded, Trace, TraceMeta

META = TraceMeta("nsys-sqlite", ("made.sqlite",), 0, 1_000)


@pytest.mark.parametrize("held", [True, False], ids=["held", "absent"])
@given(data=st.data())
def test_columns_come_in_the_order_asked_for(held, data):
    """Rows are unpacked by position: (process, device) must not come as (device, process)."""
    name = data.draw(st.sampled_from(TABLE_NAMES))
    asked = data.draw(st.lists(st.sampled_from(list(SCHEMAS[name])), min_size=1, unique=True))
    first = data.draw(st.lists(st.sampled_from(list(SCHEMAS[name])), min_size=1, unique=True))
    loaders = {name: lambda columns: Loaded(conform(empty(name), name, columns))} if held else {}
    trace = Trace(META, loaders)
    assert trace.table(name, first).columns == first
    assert trace.table(name, asked).columns == asked
    assert trace.table(name).columns == list(SCHEMAS[name])
