"""Collection is as it was before, however the block ends."""

from __future__ import annotations

import gc

import pytest

from rlprof.garbage import collection_paused


def test_collection_is_paused_and_goes_on() -> None:
    assert gc.isenabled()
    seen = []
    with pytest.raises(ZeroDivisionError), collection_paused():
        seen.append(gc.isenabled() or 1 / 0)
    assert not seen
    assert gc.isenabled()


def test_a_nested_pause_leaves_the_outer_one() -> None:
    with collection_paused():
        with collection_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
