"""Matrix products of clients of a real MPS daemon."""

from __future__ import annotations

import shutil

import pytest

from rlprof.overlap.quota import mps
from rlprof.overlap.quota.daemons import BINARY
from rlprof.overlap.quota.levels import Level
from rlprof.overlap.quota.products import Products, ask_client, check_products

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(shutil.which(BINARY) is None, reason=f"{BINARY} is not installed"),
]


def test_products_with_all_sms_are_right() -> None:
    found = check_products()
    assert found.sms is not None
    assert found.wrong == ()


def test_clients_look_under_their_own_share() -> None:
    with mps() as daemon:
        found = [ask_client(daemon.environment(Level(percent, percent))) for percent in (100, 76, 50)]
    assert all(isinstance(one, Products) for one in found), found
    products = [one for one in found if isinstance(one, Products)]
    sms = [one.sms or 0 for one in products]
    assert sms == sorted(sms, reverse=True)
    assert len(set(sms)) == 3
    assert products[0].wrong == ()
    for one in products:  # whichever are wrong, they say how
        assert all(w.unwritten or w.error_frac for w in one.wrong)
