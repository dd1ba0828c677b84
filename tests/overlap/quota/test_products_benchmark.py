"""`benchmarks.gpu.products` where there is no GPU: clients, a client that fails, and the end of its time."""

from __future__ import annotations

import json
import subprocess
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.gpu import products
from rlprof.overlap.quota.products import IN_A_ROW, Products, WrongProduct, check_products
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


def test_kernels_are_those_of_the_layout_that_is_wrong() -> None:
    """The same sizes are a product forward and a gradient, by other kernels."""
    looked: list[tuple[Layout, Layout]] = []

    def wrong(a: Tensor, b: Tensor, out: Tensor) -> None:
        looked.append((layout(a), layout(b)))

    found = check_products("cpu", sizes=[(6, 16, 32), (5, 32, 16)], product=wrong).wrong
    assert [tuple(map(layout, products.operands(one, "cpu"))) for one in found] == looked[::IN_A_ROW]


Layout = tuple[tuple[int, ...], tuple[int, ...]]


def layout(matrix: Tensor) -> Layout:
    return tuple(matrix.shape), matrix.stride()


def test_what_is_wrong_is_told_where_its_kernels_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_wrong: object) -> dict[str, str]:
        raise RuntimeError("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")

    wrong = Products(100, 36, (WrongProduct(176, 1024, 256, "forward", 8, 768, None),))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("rlprof.overlap.quota.products.check_products", lambda _device: wrong)
    monkeypatch.setattr(products, "_kernels", denied)
    said = products.client("plain")
    assert said["kernels"] == {"failed": "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"}
    assert Products.from_dict(said) == wrong


def test_clients_that_end_at_the_same_time_are_all_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = subprocess.CompletedProcess([], 0, json.dumps(Products(None, 6, ()).to_dict()), "")
    monkeypatch.setattr(products.subprocess, "run", lambda *_args, **_named: answers)
    percents = [*range(100, 20, -1)]
    found = run(tmp_path, percents=percents, at_once=16)
    assert sorted(r["percent"] for r in found["rows"] if r["way"] == "as they are") == sorted(percents)
