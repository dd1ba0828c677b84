"""Collection is as it was before, however the block ends."""

from __future__ import annotations

import gc

import pytest

from rlprof.garbage import collection_paused


def test_collection_is_paused_and_goes_on() -> None:
    assert gc.isenabled()
    with pytest.raises(ValueError, match="inside"), collection_paused():
        assert not gc.isenabled()
        raise ValueError("inside")
    assert gc.isenabled()


def test_a_nested_pause_leaves_the_outer_one() -> None:
    with collection_paused():
        with collection_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
