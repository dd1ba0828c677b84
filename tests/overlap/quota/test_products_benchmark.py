"""`benchmarks.gpu.products` where there is no GPU: clients, a client that fails, and the end of its time."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.gpu import products
from rlprof.reproduce.rose.products import is_products, looked_at
from tests.reproduce.rose import made


def run(out: Path, **changes: object) -> dict:
    args = {
        "out": out,
        "percents": [100],
        "at_once": 1,
        "seconds": 1e6,
        "client_seconds": 1.0,
        "rehearse": True,
    }
    products.Run(Namespace(**args | changes), {}).all()
    return json.loads((out / "products.json").read_text())


@pytest.mark.slow
def test_clients_look_in_every_way(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert [(row["percent"], row["way"]) for row in found["rows"]] == [
        (100, "as they are"),
        (100, "captured"),
        (100, "cublasLt"),
    ]
    assert all(row["tried"] and row["wrong"] == [] for row in found["rows"])
    assert is_products(found)


def test_a_client_that_fails_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "WAYS", {"as they are": ({"PYTHONHOME": "/nowhere"}, "plain")})
    monkeypatch.setattr(products.Run, "all", lambda self: self.one(100, "as they are"))
    (row,) = run(tmp_path)["rows"]
    assert row["failed"]
    assert "wrong" not in row
    assert looked_at(made.checkout(tmp_path / "there", found={"rows": [row]})) == {}


def test_what_has_no_time_is_left_out(tmp_path: Path) -> None:
    found = run(tmp_path, seconds=-1e6)
    assert found["rows"] == []
    assert found["left_out"][0] == {"percent": 100, "way": "as they are"}
