"""`benchmarks.gpu.products` where there is no GPU: clients, a client that fails, and the end of its time."""

from __future__ import annotations

import json
import subprocess
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.gpu import products
from rlprof.overlap import green
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


class Captured(TorchDispatchMode):
    """What is computed in a block, which `replay` computes again."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.done.append((function, args, kwargs or {}))
        return function(*args, **(kwargs or {}))

    def replay(self) -> None:
        for function, args, kwargs in self.done:
            function(*args, **kwargs)


class Event:
    def __init__(self, **_: bool) -> None: ...

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, _other: Event) -> float:
        return 1.5


class Parts(green.SmShares):
    """Shares of a GPU with three parts, which a processor stands in for."""

    now: int | None = None

    def parts(self, device: int) -> green.SmParts:
        return green.SmParts((8, 16, 32))

    @contextmanager
    def current(self, lane: str, device: int, percent: int | None) -> Iterator[None]:
        Parts.now = percent
        yield

    def beside(self, stream: Any) -> Any:
        return stream


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams, events and graphs of a processor."""
    stream = SimpleNamespace(wait_stream=lambda _other: None)
    for name, stand_in in {
        "current_stream": lambda: stream,
        "stream": lambda _stream: nullcontext(),
        "CUDAGraph": Captured,
        "graph": lambda graph, stream: graph,
        "Event": Event,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    real, ones = check_products, torch.ones
    monkeypatch.setattr(green, "SmShares", Parts)
    monkeypatch.setattr(
        "rlprof.overlap.quota.products.check_products", lambda _device, product: real("cpu", product=product)
    )
    monkeypatch.setattr(torch, "ones", lambda *size, device, dtype: ones(*size, dtype=dtype))
    monkeypatch.setattr(products, "TIMED", (8, 4, 2))


@pytest.mark.usefixtures("processor")
def test_every_part_of_the_sms_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch.mm

    def failing(a: Tensor, b: Tensor, **out: Tensor) -> Tensor:
        if Parts.now == 50:
            raise RuntimeError("cublas is lost")
        return right(a, b, **out)

    monkeypatch.setattr(torch, "mm", failing)
    whole, half, small = products.parts_of_the_sms()
    assert (whole["percent"], half["percent"], small["percent"]) == (100, 50, 25)
    for row in (whole, small):
        assert row["time_ms"] == 1.5
        assert all(row[how]["tried"] and not row[how]["wrong"] for how in ("plain", "captured"))
    assert half == {"percent": 50, "sms": 16, "failed": "RuntimeError: cublas is lost"}
    json.dumps([whole, half, small])


@pytest.mark.usefixtures("processor")
def test_parts_for_which_there_is_no_time_are_left_out() -> None:
    whole, *others = products.parts_of_the_sms(seconds=1e-3)
    assert whole["time_ms"]
    assert [row["failed"] for row in others] == ["left out: no time"] * 2


def test_parts_that_were_looked_at_are_kept_where_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = {"tried": 36, "wrong": []}
    part = {"percent": 90, "sms": 120, "plain": looked, "captured": looked, "time_ms": 1.0}
    cut_off = '{"part": {"percent": 84, "plain": {}'
    said = "\n".join(["a library says {}", json.dumps({"part": part}), cut_off]).encode()

    def over(*_args: object, **_named: object) -> None:
        raise subprocess.TimeoutExpired("products", 5.0, output=said)

    monkeypatch.setattr(products, "machine", dict)
    monkeypatch.setattr(products.subprocess, "run", over)
    monkeypatch.setattr(products.Run, "all", lambda self: self.one(100, products.GREEN))
    (row,) = run(tmp_path)["rows"]
    assert row["parts"] == [part]
    assert "timed out after 5.0 seconds" in row["failed"]
    assert looked_at(made.checkout(tmp_path / "there", found={"rows": [row]})) == {"green 120": "right"}
